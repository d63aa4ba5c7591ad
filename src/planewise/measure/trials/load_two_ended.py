"""Load trials between two ends that no single process sees: virtual machines, two servers.

One `pw-probe` sends and another counts what arrives; both know the same frame numbers. They share
no clock, so there is no one-way delay and no late frame: what has not arrived when the receiver is
stopped is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, cast

from planewise.errors import PlanewiseError
from planewise.measure.station import Place, Station, TrialResult
from planewise.measure.trials.load_one_process import record
from planewise.measure.trials.probe import LossOutput, ReceiveOutput, SendOutput, TrialOutput, parse
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.counters import DROPS, Reading

if TYPE_CHECKING:
    from planewise.measure.trials.load import LoadTrial
    from planewise.testbed.model import HostRole

READY_S = 120.0
"""How long an end may take to start or to end; slow in a virtual machine with an emulated CPU."""

DRAIN_S = 0.5
"""Frames may arrive for so long after the last was sent."""

_RING_MIB, _GUEST_RING_MIB = 32, 4
"""Room of the receiver for frames that it has not read yet. A virtual machine has little memory: 4
MiB are 30 000 of the smallest frames."""


def measure(station: Station, trial: LoadTrial, place: Place) -> TrialResult:
    """Runs one load trial. PlanewiseError when it could not be run or ended early."""
    first = time.time_ns()  # unique among the trials of a machine
    ends = station.ends
    sender, responder = ends["sender"], ends["responder"]
    max_pps = station.max_pps(trial.size_bytes)
    first_readings = _read(station)
    with responder.host.start(
        receive_command(station, trial, first), netns=responder.netns_of_probe
    ) as listening:
        listening.wait_ready("ready", READY_S)
        sent = sender.host.run(
            send_command(station, trial, first, max_pps),
            netns=sender.netns_of_probe,
            timeout_s=READY_S + 3 * trial.duration_s,
            expected_s=trial.duration_s,
        )
        time.sleep(DRAIN_S)  # a time that the result depends on, not one that something takes
        listening.interrupt()
        received = listening.wait(READY_S)
    last_readings = _read(station)
    sending, receiving = parse(sent, SendOutput), parse(received, ReceiveOutput)
    if sending.interrupted:
        raise KeyboardInterrupt
    for error in (sending.error, receiving.error):
        if error is not None:
            raise PlanewiseError(error.what, remedy=error.remedy)
    drops = dropped_between(first_readings, last_readings)
    output = combine(sending, receiving, drops, (sender.name, responder.name))
    cpu = {
        role: probe.cpu.all
        for role, end, probe in (("sender", sender, sending), ("responder", responder, receiving))
        # A virtual machine sees its share of its host's CPUs, not what it costs.
        if not end.machine and probe.cpu is not None
    }
    return TrialResult(record(place, output, cpu))


def send_command(station: Station, trial: LoadTrial, first: int, max_pps: float) -> list[str]:
    """The command line of the sending end. Pure."""
    path, end = station.path, station.ends["sender"]
    assert path is not None
    return [
        *(end.host.probe, "send"),
        *("--tx", end.port),
        *("--rate", f"{trial.offered_pps:.3f}"),
        *("--duration", f"{trial.duration_s:g}"),
        *("--first", str(first)),
        *("--size", str(trial.size_bytes)),
        *("--src", path.source(station.ip_version)),
        *("--dst", path.destination(station.ip_version)),
        *("--dst-mac", path.next_hop_mac),
        *("--max-pps", f"{max_pps:.0f}"),
        *(() if station.refused is None else ("--refused", station.refused)),
    ]


def receive_command(station: Station, trial: LoadTrial, first: int) -> list[str]:
    """The command line of the receiving end. Pure."""
    end = station.ends["responder"]
    planned = max(1, round(trial.offered_pps * trial.duration_s) + 1)
    return [
        *(end.host.probe, "receive"),
        *("--rx", end.port),
        *("--first", str(first)),
        *("--count", str(planned)),
        *("--ring-mib", str(_GUEST_RING_MIB if end.machine else _RING_MIB)),
    ]


def dropped_between(first: Iterable[Reading], last: Iterable[Reading]) -> tuple[LossOutput, ...]:
    """The drop counters that rose. PlanewiseError when a counter went backwards. Pure."""
    return tuple(
        LossOutput(where=f"{now.point.host}:{now.point.interface}", counter=name, count=count)
        for was, now in zip(first, last, strict=True)
        for name, count in now.since(was).items()
        if name in DROPS and count > 0
    )


def combine(
    sent: SendOutput, received: ReceiveOutput, drops: Iterable[LossOutput], names: tuple[str, str]
) -> TrialOutput:
    """Joins the outputs of both ends into that of one process. Pure.

    Counters also count drops of other traffic, so they explain at most what was lost. Drops at the
    ends come first, as they are exact. `names` are those of sender and receiver.
    """
    # A sink cannot receive what was never sent: a frame that an error cut off may have been.
    all_sent = max(sent.sent, received.received)
    lost = all_sent - received.received
    unexplained, loss = lost, []
    for part in (*_named(received.drops, names[1]), *_named(sent.drops, names[0]), *drops):
        count = min(part.count, unexplained)
        unexplained -= count
        if count:
            loss.append(part.model_copy(update={"count": count}))
    limits = list(sent.limits)
    if any(part.counter == "ring_dropped" for part in received.drops):
        limits.append("sink")
    if lost and not {"generator", "sink"} & set(limits):
        limits.append("sut")
    fields = dict(received) | dict(sent)
    return TrialOutput.model_validate(
        {
            **fields,
            "command": "trial",
            "sent": all_sent,
            "lost": lost,
            "loss": tuple(loss),
            "unexplained": unexplained,
            "limits": tuple(limits),
            "cpu": None,
        }
    )


def _named(drops: Iterable[LossOutput], end: str) -> list[LossOutput]:
    """Puts the end before each interface, as both ends may have interfaces of one name."""
    return [
        part.model_copy(update={"where": f"{end}:{part.where.partition('@')[0]}"}) for part in drops
    ]


def _read(station: Station) -> list[Reading]:
    """Counters between the ends; the probes read those of the ends' own interfaces."""
    inside = {end.netns for end in station.ends.values()}
    return [
        counters.read(station.hosts[cast("HostRole", point.host)], point)
        for point in station.counter_points
        if point.netns not in inside
    ]
