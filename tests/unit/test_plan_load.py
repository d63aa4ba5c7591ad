"""Background loads are bounded, interface counters are parsed, failures become sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import BadInputError, PlanewiseError
from planewise.testbed.counters import Reading, parse
from planewise.testbed.host import Finished
from planewise.testbed.load import LoadSpec, Work, shortfall
from planewise.testbed.model import CounterPoint

NET_DEV = """\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0       0          0
 wire0:    1234      12    1    2    3     4          5         6       78       9   10   11   12    13      14         15
"""  # noqa: E501

POINT = CounterPoint("sender", "pw-0badcafe-s", "wire0")


def test_counters_are_read_by_interface_and_column() -> None:
    counters = parse(NET_DEV)
    assert set(counters) == {"lo", "wire0"}
    wire = counters["wire0"]
    assert (wire["rx_bytes"], wire["rx_packets"], wire["rx_dropped"]) == (1234, 12, 2)
    assert (wire["tx_bytes"], wire["tx_dropped"], wire["tx_compressed"]) == (78, 11, 15)


@given(st.text())
def test_no_text_breaks_the_parser_of_counters(text: str) -> None:
    for counters in parse(text).values():
        assert all(value >= 0 for value in counters.values())


def test_what_was_counted_is_a_difference() -> None:
    first, last = Reading(POINT, {"rx_packets": 5}), Reading(POINT, {"rx_packets": 9})
    assert last.since(first) == {"rx_packets": 4}


def test_a_counter_that_went_backwards_is_an_error_and_no_number() -> None:
    first, last = Reading(POINT, {"rx_packets": 9}), Reading(POINT, {"rx_packets": 5})
    with pytest.raises(PlanewiseError, match="went backwards"):
        last.since(first)


@pytest.mark.parametrize(
    "wrong",
    [
        {"cpu_share": 0.0},
        {"cpu_share": 0.95},
        {"rate_pps": -1.0},
        {"rate_pps": 1e9},
        {"burst": 0},
        {"payload_bytes": 70_000},
        {"limit_s": 0.0},
        {"rate_pps": float("nan")},
    ],
)
def test_a_load_beyond_its_bounds_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(BadInputError, match=next(iter(wrong))):
        LoadSpec("cpu", "sender", **wrong)  # type: ignore[arg-type]


def test_a_load_that_fell_behind_during_a_trial_says_by_how_much() -> None:
    cpu = LoadSpec(type="cpu", cpu_share=0.5)
    start = Work(10.0, 3.0)
    # Half of four CPUs over two seconds: four seconds of CPU time.
    assert shortfall(cpu, start, Work(12.0, 7.0), 8, 4) == ()
    assert shortfall(cpu, start, Work(12.0, 5.0), 8, 4) == (
        "CPU load got 25 % of the CPUs during this trial, 50 % was asked for",
    )
    network = LoadSpec(type="network", rate_pps=1000, burst=10)
    assert shortfall(network, start, Work(12.0, 1803.0 - 80), 8, 4) == ()
    (said,) = shortfall(network, start, Work(12.0, 1003.0), 8, 4)
    assert said == "network load sent 500 packets/s during this trial, 1000 were asked for"
    assert shortfall(LoadSpec(), start, start, 0, 4) == ()


def test_a_failed_probe_becomes_its_own_sentence_and_remedy() -> None:
    said = "pw-probe: cannot listen on 198.18.0.1:5000\n  choose another port\n"
    with pytest.raises(PlanewiseError) as caught:
        Finished(("/x/pw-probe", "sink"), 1, "", said).check()
    assert caught.value.what == "pw-probe failed (exit code 1): cannot listen on 198.18.0.1:5000"
    assert caught.value.remedy == "choose another port"


def test_a_killed_process_is_named_with_its_signal() -> None:
    with pytest.raises(PlanewiseError, match=r"sleep failed \(ended by SIGKILL\): it said nothing"):
        Finished(("sleep", "9"), 137, "", "").check()


def test_output_that_is_no_json_is_a_sentence() -> None:
    with pytest.raises(PlanewiseError, match="did not print JSON"):
        Finished(("pw-probe", "cpu"), 0, "{", "").json()
