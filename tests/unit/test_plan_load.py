"""Background loads are bounded, interface counters are parsed, failures become sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planewise.errors import PlanewiseError
from planewise.measure.designs.design import BackgroundPart
from planewise.testbed.hosts.counters import Reading, parse
from planewise.testbed.hosts.host import FinishedProcess
from planewise.testbed.loads.background import Demand, LoadSpec, Work, achieved, demand
from planewise.testbed.loads.crew import Count
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
        {"cpu_share": 1.01},
        {"rate_pps": -1.0},
        {"rate_pps": 1.1e9},
        {"burst_packets": 0},
        {"payload_bytes": 70_000},
        {"rate_pps": float("nan")},
    ],
)
def test_a_load_beyond_its_bounds_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        BackgroundPart.model_validate(wrong)


def test_a_total_is_the_same_whatever_the_number_of_guests() -> None:
    spec = LoadSpec("cpu", cpu_share=0.5)
    for guests in (1, 2, 8, 128):
        each = demand(spec, guests, cpus=4)
        assert guests * each.threads * each.share == pytest.approx(2.0)
    assert demand(LoadSpec("network", rate_pps=8000), 8, 4).rate_pps == 1000


def test_by_guest_the_number_of_guests_is_the_load() -> None:
    spec = LoadSpec("cpu", by_guest=True, cpu_share=0.25, rate_pps=500)
    for guests in (1, 8, 128):
        assert demand(spec, guests, cpus=2) == Demand(1, 0.25, 500)
    assert demand(LoadSpec("cpu", by_guest=True, cpu_share=2.5), 1, 2) == Demand(3, 2.5 / 3, 20_000)
    endless = LoadSpec("cpu", by_guest=True, cpu_share=None, busy_threads=2, rate_pps=None)
    assert demand(endless, 64, 2) == Demand(2, 1.0, None)


def counts(at_s: float, **values: float) -> dict[str, Count]:
    return {name: Count(value, at_s) for name, value in values.items()}


def test_what_a_load_achieved_is_told_by_guest_and_in_total() -> None:
    guests = {f"b{number}": 3e9 for number in range(8)}
    spec = LoadSpec("cpu", cpu_share=0.5)
    after = Work(counts(12.0, **{name: value + 4e8 for name, value in guests.items()}))
    done = achieved(spec, Work(counts(10.0, **guests)), after, cpus=4)
    assert done is not None
    assert (done.unit, done.wanted, done.window_s) == ("cpus", 2.0, 2.0)
    assert done.achieved == pytest.approx(1.6)
    assert done.guests == pytest.approx(dict.fromkeys(guests, 0.2))
    assert done.resolution == pytest.approx(8 * 0.25 * 0.01 / 2)
    network = LoadSpec("network", by_guest=True, rate_pps=None, burst=16)
    idle = Work(counts(10.0, b0=0, b1=0), counts(10.0, s0=0, s1=0))
    sent = Work(counts(11.0, b0=500, b1=700), counts(11.0, s0=500, s1=500))
    done = achieved(network, idle, sent, cpus=4)
    assert done is not None
    assert (done.wanted, done.achieved, done.received_pps) == (None, 1200.0, 1000.0)
    assert done.resolution == 32.0
    assert achieved(LoadSpec(), Work({}), Work({}), 4) is None


def test_guests_that_are_slow_to_answer_are_each_judged_over_their_own_time() -> None:
    # 64 busy virtual machines, a second and a half to answer each: at 2 pps all the while they
    # were once said to reach 86 of 128 pps.
    spec = LoadSpec("network", by_guest=True, rate_pps=2, burst=1)
    before = {f"b{n}": Count(0, 10 + 0.5 * n, 0.25) for n in range(64)}
    after = {f"b{n}": Count(2 * (90 + n), 100 + 1.5 * n, 0.75) for n in range(64)}
    done = achieved(spec, Work(before), Work(after), cpus=2)
    assert done is not None
    assert done.achieved == pytest.approx(128.0)
    assert done.guests == pytest.approx(dict.fromkeys(before, 2.0))
    # A packet of each just outside, and half an answer's time at either end of its window.
    assert done.resolution == pytest.approx(sum((1 + 2 * 1.0) / (90 + n) for n in range(64)))


def test_a_failed_probe_becomes_its_own_sentence_and_remedy() -> None:
    said = "pw-probe: cannot listen on 198.18.0.1:5000\n  choose another port\n"
    with pytest.raises(PlanewiseError) as caught:
        FinishedProcess(("/x/pw-probe", "sink"), 1, "", said).check()
    assert caught.value.what == "pw-probe failed (exit code 1): cannot listen on 198.18.0.1:5000"
    assert caught.value.remedy == "choose another port"


def test_a_killed_process_is_named_with_its_signal() -> None:
    with pytest.raises(
        PlanewiseError, match=r"sleep failed \(ended by SIGKILL\): it printed nothing"
    ):
        FinishedProcess(("sleep", "9"), 137, "", "").check()


def test_output_that_is_no_json_is_a_sentence() -> None:
    with pytest.raises(PlanewiseError, match="did not print JSON"):
        FinishedProcess(("pw-probe", "cpu"), 0, "{", "").json()
