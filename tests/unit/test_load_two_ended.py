"""Load trials whose two ends no single process sees: what both say, put together."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from planewise.measure.station import Station
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.load_one_process import Generator, command
from planewise.measure.trials.load_two_ended import combine
from planewise.measure.trials.probe import BackendOutput, LossOutput, ReceiveOutput, SendOutput
from planewise.testbed.model import CounterPoint, TrialPath

NAMES = ("sender-main", "responder-main")


def sending(sent: int, *drops: LossOutput, limits: tuple[str, ...] = ()) -> SendOutput:
    return SendOutput(
        command="send",
        version="1",
        size_bytes=64,
        started_ns=1,
        duration_s=1,
        intended_pps=1000,
        achieved_pps=sent,
        sent=sent,
        drops=drops,
        limits=limits,
        generator=BackendOutput(max_pps=1e6),
    )


def receiving(received: int, *drops: LossOutput) -> ReceiveOutput:
    return ReceiveOutput(command="receive", version="1", received=received, drops=drops)


def drop(where: str, counter: str, count: int) -> LossOutput:
    return LossOutput(where=where, counter=counter, count=count)


counts = st.integers(min_value=0, max_value=1 << 40)
drops = st.lists(counts.map(lambda count: drop("eth0", "rx_dropped", count)), max_size=4)


@given(sent=counts, received=counts, at_ends=drops, between=drops)
def test_every_frame_is_received_or_lost_and_counters_explain_no_more_than_that(
    sent: int, received: int, at_ends: list[LossOutput], between: list[LossOutput]
) -> None:
    done = combine(sending(sent, *at_ends), receiving(received, *at_ends), between, NAMES)
    assert done.sent == done.received + done.lost
    assert done.received == received
    assert done.lost == sum(part.count for part in done.loss) + done.unexplained
    assert all(part.count > 0 for part in done.loss)
    assert ("sut" in done.limits) == (done.lost > 0)


def test_what_the_ends_know_comes_before_the_counters_of_what_lies_between() -> None:
    sent = sending(1000, drop("eth0", "refused", 30))
    got = receiving(900, drop("eth0@pw-1", "rx_dropped", 20))
    done = combine(sent, got, [drop("sender:tap0", "tx_dropped", 70)], NAMES)
    assert [(part.where, part.counter, part.count) for part in done.loss] == [
        ("responder-main:eth0", "rx_dropped", 20),
        ("sender-main:eth0", "refused", 30),
        ("sender:tap0", "tx_dropped", 50),
    ]
    assert done.limits == ("sut",)


def test_a_generator_or_a_sink_that_was_the_limit_is_named_and_the_system_is_not_blamed() -> None:
    behind = combine(sending(1000, limits=("generator",)), receiving(900), [], NAMES)
    assert behind.limits == ("generator",)
    full = combine(sending(1000), receiving(900, drop("sink", "ring_dropped", 100)), [], NAMES)
    assert full.limits == ("sink",)
    assert full.unexplained == 0


def test_counters_of_interfaces_outside_any_namespace_are_named_as_the_probe_reads_them() -> None:
    path = TrialPath("a", "eth0", "b", "eth0", "", "", "198.18.0.2", "", "")
    points = [CounterPoint("sender", "", "port0"), CounterPoint("sender", "c", "wire0")]
    generator = SimpleNamespace(
        host=SimpleNamespace(probe="pw-probe"), max_pps=lambda *_: 1e6, placement=list
    )
    station = Station(
        {}, {}, path=path, counter_points=points, generator=cast("Generator", generator)
    )
    argv = command(station, LoadTrial("x", 100, 64, 1))
    named = [argv[at + 1] for at, word in enumerate(argv) if word == "--counter"]
    assert named == ["port0", "wire0@c"]
