"""From two readings of a chain's counters to its throughput and to what bounds it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from planewise.store.models import (
    ChainResult,
    CoreUse,
    Counts,
    FrameAccount,
    KpiSample,
    Level,
    Limit,
    Throughput,
    VnfTotal,
)
from planewise.testbed.chains.model import FCS_BYTES, GENERATOR, SWITCH, Placement
from planewise.testbed.chains.reading import ChainReading
from planewise.units import list_text, percent_text

FULL = 0.95
"""Share of its time on packets from which a core counts as busy: it also reads counters, takes
interrupts, and polls its other ports."""

FULL_KERNEL = 0.9
"""The same of a core on which the kernel forwards: bursts overflow its queues before that."""

WAITED = 0.05
"""Share of time that a polling task was kept from its core, from which that bounds the chain."""

FULL_RING = 0.01
"""Share of a function's packets that found its ring full, from which it counts as too slow."""


@dataclass(frozen=True)
class ReadingDelta:
    """Differences between two readings of one chain."""

    seconds: float
    first: ChainReading
    last: ChainReading

    @classmethod
    def of(cls, first: ChainReading, last: ChainReading) -> ReadingDelta:
        """From `first` to the later `last`."""
        return cls(max(last.at_s - first.at_s, 1e-9), first, last)

    @property
    def offered(self) -> int:
        """Packets that the generator sent."""
        return max(0, self.last.offered - self.first.offered)

    @property
    def ends_seconds(self) -> float:
        """Time between the readings of the ends' counters, by their own host's clock."""
        return self._between(self.first.ends_at_s, self.last.ends_at_s)

    def seconds_of(self, name: str) -> float:
        """Time between the readings of a function's counters."""
        return self._between(self.first.vnfs[name].at_s, self.last.vnfs[name].at_s)

    def _between(self, first_s: float | None, last_s: float | None) -> float:
        """Time between two readings by a clock of their own, where they have one."""
        if first_s is None or last_s is None:
            return self.seconds
        return max(last_s - first_s, 1e-9)

    @property
    def delivered(self) -> int:
        """Packets that came back; more than `offered` where some were in flight at the start."""
        return max(0, self.last.delivered - self.first.delivered)

    @property
    def missing(self) -> float | None:
        """Share of the packets that generator and functions sent and neither got; None: unknown."""
        # As rates: the hosts were not read at the same moments.
        arrived, sent = self.delivered / self.ends_seconds, self.offered / self.ends_seconds
        for name, end in self.last.vnfs.items():
            start = self.first.vnfs[name]
            if end.received is None or start.received is None:
                return None
            arrived += (end.received - start.received) / self.seconds_of(name)
            sent += (end.packets - start.packets) / self.seconds_of(name)
        return _share(1 - arrived / sent) if sent > 0 else 0.0

    @property
    def lost_on_uplink(self) -> float | None:
        """Share of the generator's packets lost on the switch's uplink; None: it has none."""
        first, last = self.first.uplink, self.last.uplink
        if first is None or last is None:
            return None
        lost = self.offered - (last[0] - first[0]) + (last[1] - first[1]) - self.delivered
        return _share(lost / self.offered) if self.offered else 0.0

    def used(self, cpu: int) -> float:
        """Share of a CPU's time that was not idle."""
        start, end = self.first.cpus[cpu], self.last.cpus[cpu]
        total = end.total_s - start.total_s
        return _share(1 - (end.idle_s - start.idle_s) / total) if total > 0 else 0.0

    def cpu_share(self, task: str, cpus: int = 1) -> float | None:
        """Share of its CPUs' time that a task had; None where it is not a thread of its own."""
        if task not in self.last.tasks_s:
            return None
        spent = self.last.tasks_s[task] - self.first.tasks_s.get(task, 0.0)
        return _share(spent / self.seconds / cpus)

    def forwarding(self, cpu: int) -> float | None:
        """Share of a CPU's time in which the kernel forwarded; None where others forward."""
        if self.first.kernel_s is None or self.last.kernel_s is None:
            return None
        spent = self.last.kernel_s[cpu] - self.first.kernel_s[cpu]
        # Both are counted in ticks, and read at slightly different moments.
        return min(_share(spent / self.seconds), self.used(cpu))

    def busy_share(self, task: str, cpus: int = 1) -> float | None:
        """Share of its CPUs' time that a task spent on packets; None: unknown."""
        cpu_share = self.cpu_share(task, cpus)
        if task == SWITCH:
            if self.first.polling is None or self.last.polling is None or cpu_share is None:
                return None
            busy = self.last.polling.busy - self.first.polling.busy
            idle = self.last.polling.idle - self.first.polling.idle
            return _share(cpu_share * busy / (busy + idle)) if busy + idle > 0 else None
        if task not in self.last.busy_s:
            return None
        # The cycle counter goes on while another task has the core.
        busy_s = self.last.busy_s[task] - self.first.busy_s.get(task, 0.0)
        share = _share(busy_s / self.seconds)
        return share if cpu_share is None else min(share, cpu_share)

    def totals(self) -> tuple[VnfTotal, ...]:
        """Totals of every function."""
        totals = []
        for name, end in self.last.vnfs.items():
            start = self.first.vnfs[name]
            packets = max(0, end.packets - start.packets)
            size = max(0, end.bytes - start.bytes)
            totals.append(
                VnfTotal(
                    name=name,
                    tx_packets=packets,
                    tx_pps=packets / self.seconds_of(name),
                    tx_bps=8 * size / self.seconds_of(name),
                    dropped=max(0, end.dropped - start.dropped),
                    busy=self.busy_share(name),
                )
            )
        return tuple(totals)

    def cores(self, placement: Placement) -> tuple[CoreUse, ...]:
        """Use of every CPU that has a task."""
        cores = []
        for cpu, tasks in placement.tasks.items():
            sizes = {task: len(placement.cpus(task)) for task in tasks}
            shares = [s for task in tasks if (s := self.cpu_share(task, sizes[task])) is not None]
            working = [s for task in tasks if (s := self.busy_share(task, sizes[task])) is not None]
            if (forwarding := self.forwarding(cpu)) is not None and GENERATOR not in tasks:
                shares = working = [forwarding]
            cores.append(
                CoreUse(
                    cpu=cpu,
                    tasks=tasks,
                    used=self.used(cpu),
                    ours=_share(sum(shares)) if shares else None,
                    working=_share(sum(working)) if working else None,
                )
            )
        return tuple(cores)


def _share(value: float) -> float:
    """`value` within 0 and 1: counters read one after the other may yield slightly more than 1."""
    return min(1.0, max(0.0, value))


def kpi(delta: ReadingDelta, at: datetime, trial: str, cell: Mapping[str, Level]) -> KpiSample:
    """One interval as a line of kpis.jsonl."""
    totals = delta.totals()
    host = f"{delta.last.host} " if delta.last.host else ""
    return KpiSample(
        at=at,
        trial=trial,
        cell=dict(cell),
        interval_s=delta.seconds,
        vnfs={total.name: Throughput(tx_pps=total.tx_pps, tx_bps=total.tx_bps) for total in totals},
        total=Throughput(
            tx_pps=sum(total.tx_pps for total in totals),
            tx_bps=sum(total.tx_bps for total in totals),
        ),
        cpu={f"{host}{cpu}": delta.used(cpu) for cpu in delta.last.cpus},
    )


def result(
    delta: ReadingDelta,
    placement: Placement,
    asked_bytes: float,
    frames: FrameAccount | None = None,
) -> ChainResult:
    """A trial's throughput; `asked_bytes` is the mean frame [with FCS] where none was sent."""
    totals = delta.totals()
    bps, pps = sum(total.tx_bps for total in totals), sum(total.tx_pps for total in totals)
    find = _limit if delta.first.kernel_s is None else _limit_of_kernel
    limit, why = _generator_limit(delta, frames) or find(delta, placement)
    return ChainResult(
        offered_pps=delta.offered / delta.ends_seconds,
        delivered_pps=delta.delivered / delta.ends_seconds,
        tx_pps=pps,
        tx_bps=bps,
        frame_bytes=bps / 8 / pps + FCS_BYTES if pps else asked_bytes,
        vnfs=totals,
        cores=delta.cores(placement),
        limit=limit,
        why=why,
        frames=frames,
    )


def counts(delta: ReadingDelta) -> Counts:
    """Packets that the generator sent and got back."""
    sent = max(delta.offered, delta.delivered)
    return Counts(sent=sent, received=delta.delivered, lost=sent - delta.delivered)


def _generator_limit(delta: ReadingDelta, frames: FrameAccount | None) -> tuple[Limit, str] | None:
    """The generator, where it offered no more than the chain carries.

    Not a device on a switch that polls, which always has more frames: see `_limit`.
    """
    if _by_device(delta):
        return None
    offered, lost = delta.offered, delta.offered - delta.delivered
    if frames is not None and frames.sent:
        offered, lost = frames.sent, frames.sent - frames.received
    if lost > FULL_RING * offered:
        return None
    share = percent_text(max(0, lost) / max(1, offered))
    why = f"{share} of the packets were lost: the generator offered no more than is carried"
    return "generator", why


def _by_device(delta: ReadingDelta) -> bool:
    """Whether the generator is a device on a switch that polls."""
    return delta.last.polling is not None and delta.last.uplink is None


def _limit(delta: ReadingDelta, placement: Placement) -> tuple[Limit, str]:
    """The limit of a chain of polling tasks, and the evidence.

    Tasks that waited for their cores come first: nothing else can be known then. A function that is
    too slow shows by its full ring and busy core, the switch by a busy core without a full ring
    behind it.
    """
    if waiting := _kept_waiting(delta, placement):
        return "shared core", waiting
    switch = delta.busy_share(SWITCH, max(1, len(placement.cpus(SWITCH))))
    totals = delta.totals()
    full = {
        total.name: share
        for total in totals
        if (share := total.dropped / max(1, total.dropped + total.tx_packets)) > FULL_RING
    }
    busy = {total.name: total.busy for total in totals if (total.busy or 0.0) >= FULL}
    if full and busy:
        return (
            "VNF core",
            f"{_names(list(busy))} spent {percent_text(min(b or 0.0 for b in busy.values()))} of "
            "the time on packets, and the switch had more for it than its ring holds",
        )
    if switch is not None and switch >= FULL:
        why = f"the switch spent {percent_text(switch)} of its core's time on packets"
        if full:
            name = max(full, key=lambda name: full[name])
            why += f"; {percent_text(full[name])} of those for {name} found its ring full"
        return "PMD core", why
    missed = delta.lost_on_uplink
    if missed is not None and missed > FULL_RING:
        return (
            "uplink",
            f"{percent_text(missed)} of the packets were lost between generator and switch, "
            f"whose core had {percent_text(1 - (switch or 0.0))} of its time left",
        )
    if (missing := delta.missing) is not None and missing > FULL_RING:
        return (
            "NIC",
            f"{percent_text(missing)} of what was sent from VF to VF did not arrive, and no "
            "function's core was busy",
        )
    if not full and delta.offered and _by_device(delta):
        return "generator", "neither the switch nor a function was busy, and nothing was lost"
    if delta.last.machines and delta.last.polling is None:
        return (
            "VNF core",
            f"the virtual machines of {_names([total.name for total in totals])} poll and share "
            "their cores only with QEMU, which hands them each frame; packets were lost before "
            "them",
        )
    return "unknown", "no core was busy, yet packets found rings full"


def _limit_of_kernel(delta: ReadingDelta, placement: Placement) -> tuple[Limit, str]:
    """The limit of a chain whose functions are the kernel's own forwarding, and the evidence."""
    functions = {
        cpu: tasks for cpu, tasks in placement.tasks.items() if GENERATOR not in tasks
    } or placement.tasks
    cpu = max(functions, key=lambda cpu: delta.forwarding(cpu) or 0.0)
    forwarding, used = delta.forwarding(cpu) or 0.0, delta.used(cpu)
    names = _names([task for task in functions[cpu] if task != GENERATOR])
    where = f"CPU {cpu}, on which {names} forwarded,"
    if GENERATOR in functions[cpu]:
        return "shared core", f"CPU {cpu} was shared by the generator and {names}"
    if used < FULL_KERNEL:
        idle, missing = percent_text(1 - used), delta.missing
        if missing is not None and missing > FULL_RING:
            lost = f"{percent_text(missing)} of what was sent from VF to VF did not arrive"
            return "NIC", f"{lost}, and {where} was idle for {idle}"
        lost = percent_text((delta.offered - delta.delivered) / delta.offered)
        return "unknown", f"{lost} of the packets were lost, yet {where} was idle for {idle}"
    if used - forwarding > WAITED:
        share = percent_text(used - forwarding)
        return (
            "shared core",
            f"other programs had {share} of CPU {cpu}, on which {names} forwarded",
        )
    share = percent_text(forwarding)
    if delta.last.machines:
        ran = f"CPU {cpu} ran the virtual machines of {names} for {share} of the time"
        return "VNF core", ran
    return "kernel", f"{where} did so for {share} of the time"


def _kept_waiting(delta: ReadingDelta, placement: Placement) -> str:
    """A sentence on polling tasks that had to wait for their core; empty where none had."""
    for cpu, tasks in placement.tasks.items():
        known = {task: delta.cpu_share(task, len(placement.cpus(task))) for task in tasks}
        shares = {task: share for task, share in known.items() if share is not None}
        if not shares or sum(shares.values()) / len(shares) >= 1 - WAITED:
            continue
        missed, names = max(0.0, 1 - sum(shares.values())), _names(list(shares))
        others = f"other programs had {percent_text(missed)} of"
        if len(shares) == 1:
            return f"{others} CPU {cpu}, on which {names} polls"
        shared = f"CPU {cpu} was shared by {names}, each of which polls"
        return shared if missed < WAITED else f"{shared}, and {others} it"
    return ""


def _names(names: list[str]) -> str:
    return list_text(["the switch" if name == SWITCH else name for name in names])
