"""Load trials between two ends that no single process sees: virtual machines, two servers.

One `pw-probe` sends, another accounts for what arrives, and both are told the same numbers of
frames. No clock is shared, so that there is no one-way delay and no frame is late: what has not
arrived when the receiver is ended is lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from planewise.errors import PlanewiseError
from planewise.measure.runs.stage import Place, TrialResult
from planewise.measure.trials.frames import HostGenerator, record
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.probe import LossOutput, ReceiveOutput, SendOutput, TrialOutput, parse
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.counters import DROPS, Reading
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import CounterPoint, HostRole

READY_S = 120.0
"""How long an end may take to say that it is ready, and to end. A virtual machine is slow to
start a program where its CPU is emulated."""

DRAIN_S = 0.5
"""How long frames may take after the last was sent, at least."""


@dataclass(frozen=True)
class LoadEnd:
    """One end of a load trial."""

    host: Host
    name: str
    """As results call it: `sender-main`."""
    interface: str
    """As `pw-probe` there names it: `eth0`, or `eth0@netns`."""
    inside: str | None = None
    """The virtual machine that it is in."""
    ring_mib: int = 32
    """Room of the receiver for frames that it has not looked at yet."""


@dataclass(frozen=True)
class ApartPath:
    """What a load trial between two ends needs of a testbed."""

    sender: LoadEnd
    responder: LoadEnd
    source: str
    destination: str
    next_hop_mac: str
    counters: Mapping[Host, Sequence[CounterPoint]]
    """By host, interfaces between the ends whose drop counters tell where frames were lost."""
    refused: Literal["lost", "again"] | None = None
    """What becomes of frames that the sender's NIC has no room for; None: by the NIC's kind."""


def counters_between(
    hosts: Mapping[HostRole, Host], points: Iterable[CounterPoint], ends: Iterable[str]
) -> dict[Host, list[CounterPoint]]:
    """Of the interfaces on the way, by host, those that are not in one of the `ends`: these are
    looked at by the probes there. Pure."""
    inside = set(ends)
    points_of: dict[Host, list[CounterPoint]] = {}
    for point in points:
        if point.netns not in inside:
            points_of.setdefault(hosts[cast("HostRole", point.host)], []).append(point)
    return points_of


def measure_load_apart(
    path: ApartPath, trial: LoadTrial, place: Place, generator: HostGenerator
) -> TrialResult:
    """Runs one load trial. PlanewiseError when it could not be run or ended early."""
    first = time.time_ns()  # no two trials of one machine have it
    sender, responder = path.sender, path.responder
    max_pps = generator.max_pps(trial.size_bytes)
    first_readings = _read(path.counters)
    with responder.host.start(
        receive_command(path, trial, first),
        netns=responder.inside,
    ) as listening:
        listening.wait_ready("ready", READY_S)
        sent = sender.host.run(
            send_command(path, trial, first, max_pps),
            netns=sender.inside,
            timeout_s=READY_S + 3 * trial.duration_s,
            expected_s=trial.duration_s,
        )
        time.sleep(DRAIN_S)  # a time that the result depends on, not one that something takes
        listening.interrupt()
        received = listening.wait(READY_S)
    last_readings = _read(path.counters)
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
        # A virtual machine sees what it was given of its host's CPUs, and not what it cost.
        if end.inside is None and probe.cpu is not None
    }
    return TrialResult(record(place, output, cpu))


def send_command(path: ApartPath, trial: LoadTrial, first: int, max_pps: float) -> list[str]:
    """The command line of the sending end. Pure."""
    return [
        *(path.sender.host.probe, "send"),
        *("--tx", path.sender.interface),
        *("--rate", f"{trial.offered_pps:.3f}"),
        *("--duration", f"{trial.duration_s:g}"),
        *("--first", str(first)),
        *("--size", str(trial.size_bytes)),
        *("--src", path.source),
        *("--dst", path.destination),
        *("--dst-mac", path.next_hop_mac),
        *("--max-pps", f"{max_pps:.0f}"),
        *(() if path.refused is None else ("--refused", path.refused)),
    ]


def receive_command(path: ApartPath, trial: LoadTrial, first: int) -> list[str]:
    """The command line of the receiving end. Pure."""
    end = path.responder
    planned = max(1, round(trial.offered_pps * trial.duration_s) + 1)
    return [
        *(end.host.probe, "receive"),
        *("--rx", end.interface),
        *("--first", str(first)),
        *("--count", str(planned)),
        *("--ring-mib", str(end.ring_mib)),
    ]


def dropped_between(first: Iterable[Reading], last: Iterable[Reading]) -> tuple[LossOutput, ...]:
    """The drop counters that rose. Pure.

    Raises:
        PlanewiseError: a counter went backwards.
    """
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

    Counters count drops of other traffic, too: what they explain is never more than what was lost.
    What the ends know comes first, as it is exact. `names` are those of sender and receiver.
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


def _read(points: Mapping[Host, Sequence[CounterPoint]]) -> list[Reading]:
    return [counters.read(host, point) for host, of_host in points.items() for point in of_host]
