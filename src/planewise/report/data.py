"""Cells, summaries and curves of a run directory, for the figures. Knows no drawing.

Packets become summaries here, a few cells at a time; only a scatter's share of them is kept.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from planewise.errors import BadInputError
from planewise.judge.curve import Curve
from planewise.judge.drift import Drift, find_drift
from planewise.judge.from_store import curves_from_trials
from planewise.judge.verdict import Verdict, judge
from planewise.report import left_out, theme
from planewise.report import packets as packet_files
from planewise.report.left_out import LeftOut
from planewise.report.packets import Packets, Unread
from planewise.report.rtt_cell import RttCell, summarise
from planewise.store.cells import NO_PLANE, Factors, Naming, level_rank, rank
from planewise.store.levels import cpu_of, keeps_levels, missed_levels
from planewise.store.models import (
    ChainResult,
    CoreUse,
    FrameAccount,
    HostState,
    Level,
    Limit,
    RunInfo,
    TcpResult,
    TrialRecord,
)
from planewise.store.packets import RttMetric
from planewise.store.recommendation import Recommendation
from planewise.store.rundir import RunReader
from planewise.units import count_text


@dataclass(frozen=True)
class CpuCell:
    """CPU of one host in one cell's RTT trials, mean over replicates."""

    plane: str
    factors: Factors
    host: str
    shares: Mapping[str, float]
    """By group of `CPU_GROUPS`, each a share of all CPUs' time; idle is what remains."""
    replicates_busy: tuple[float, ...]
    """Busy share of each replicate."""

    @property
    def replicates(self) -> int:
        """Number of replicates."""
        return len(self.replicates_busy)

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the busy share over replicates (n − 1); None of a single one."""
        return statistics.stdev(self.replicates_busy) if self.replicates > 1 else None

    @property
    def busy(self) -> float:
        """Share of time in which the CPUs were not idle."""
        return sum(self.shares.values())


CPU_GROUPS: Mapping[str, tuple[str, ...]] = {
    "programs": ("usr", "nice", "guest", "gnice"),
    "kernel": ("sys",),
    "interrupts": ("irq", "soft"),
    "stolen": ("steal",),
    "waiting": ("iowait",),
}
"""mpstat's modes by group."""


@dataclass(frozen=True)
class ChainCell:
    """Throughput of one chain over all its replicates."""

    plane: str
    path: str
    vnfs: int
    size: int | str
    """Bytes of a frame with FCS, or `imix`."""
    pps: tuple[float, ...]
    """Rate that all functions transmit together, by replicate."""
    bps: tuple[float, ...]
    delivered: float
    """Packets that came back, as a share of those offered."""
    limit: Limit
    """The bottleneck of most replicates."""
    why: str
    """Evidence of that bottleneck, from the first replicate that it limited."""
    cores: tuple[CoreUse, ...]
    """Of that replicate."""
    frames: FrameAccount | None
    """Of all replicates together; None where older versions measured them."""


@dataclass(frozen=True)
class TcpCell:
    """Goodput of TCP over all replicates of a cell."""

    label: str
    """Plane, and functions where there are any."""
    message_bytes: int
    bps: tuple[float, ...]
    retransmits: int


@dataclass(frozen=True)
class JudgedCurve:
    """A load-loss curve with its verdict."""

    plane: str
    factors: Factors
    curve: Curve
    verdict: Verdict


@dataclass(frozen=True)
class OrderedTrial:
    """One trial in the run's order."""

    order: int
    plane: str
    factors: Factors
    kind: str
    failed: bool
    relative: float | None
    """Median RTT of the trial over the median of its cell's medians; None without an RTT, and
    where the cell has no other trial."""
    median_ns: float | None
    trial: TrialRecord


@dataclass(frozen=True)
class RecordedState:
    """Kinds of state that a host recorded around trials, and those that it has no counter for."""

    host: str
    recorded: tuple[str, ...]
    unsupported: tuple[str, ...]
    """Unknown, which does not mean that it did not change."""


_STATE: tuple[tuple[Callable[[HostState], bool], str], ...] = (
    (lambda state: state.governor != "none", "frequency governor"),
    (lambda state: state.cpu_mhz is not None, "clock of the CPUs"),
    (lambda state: state.temperature_c is not None, "temperature"),
    (lambda state: state.throttled is not None, "throttling"),
    (lambda state: state.steal is not None, "time that the hypervisor gave to others"),
    (lambda state: state.foreign_cpu is not None, "CPU time of other programs"),
    (lambda state: bool(state.offloads), "offloads of network cards"),
)


def virtual_reason(info: RunInfo) -> str:
    """Why the times of a run are not those of bare hardware; empty when they are."""
    if info.emulated:
        return info.emulated
    kinds = {host.virtualisation for host in info.hosts.values()} - {"", "none"}
    return f"measured in a virtual machine ({', '.join(sorted(kinds))})" if kinds else ""


class RunData:
    """Data of a report, computed on first access."""

    def __init__(self, run: RunReader) -> None:
        """Reads the trials. BadInputError for a line that is not a trial record."""
        self.run = run
        self.info = run.info
        self.trials: list[TrialRecord] = run.trials()
        self.is_cut = run.is_cut()
        self._notes: list[LeftOut] = []
        self.naming = Naming(trial.cell for trial in self.trials)
        self._keys: dict[str, tuple[str, Factors]] = {}

    def key(self, trial: TrialRecord) -> tuple[str, Factors]:
        """Series (mostly the plane) and other levels of the trial's cell."""
        cell_key = self._keys.get(trial.trial)
        if cell_key is None:
            cell_key = self.naming.series(trial.cell), self.naming.factors(trial.cell)
            self._keys[trial.trial] = cell_key
        return cell_key

    @cached_property
    def done(self) -> list[TrialRecord]:
        """Trials that have a result."""
        return [trial for trial in self.trials if trial.status == "done"]

    @cached_property
    def counted(self) -> list[TrialRecord]:
        """Trials of `done` that kept their cells' levels; averages and figures use only these."""
        return [trial for trial in self.done if keeps_levels(trial)]

    @cached_property
    def recommendation(self) -> Recommendation | None:
        """The run's recommendation; a damaged file is noted, not fatal."""
        try:
            return self.run.recommendation()
        except BadInputError as error:
            self._notes.append(LeftOut("The recommendation", error.what))
            return None

    @cached_property
    def planes(self) -> tuple[str, ...]:
        """All planes (series, where the background's planes vary as well)."""
        names = dict.fromkeys(
            series for trial in self.trials for series in self.naming.like(self.key(trial)[0])
        )
        return tuple(sorted(names, key=self.plane_rank))

    def plane_rank(self, series: str) -> tuple[int, str]:
        """Sort key of a series: planes in the order of their colours, unknown planes last."""
        order = list(theme.PLANES)
        plane = self.naming.plane(series)
        place = order.index(plane) if plane in order else len(order)
        return (place + (plane == NO_PLANE), series)

    @cached_property
    def virtual(self) -> str:
        """See `virtual_reason`."""
        return virtual_reason(self.info)

    @property
    def virtual_word(self) -> str:
        """`emulated` or `virtualised` times; empty on bare hardware."""
        return "emulated" if self.info.emulated else "virtualised" if self.virtual else ""

    @cached_property
    def rtt_metric(self) -> RttMetric:
        """The kind of RTT that figures show: from user-space stamps, as the recommendation uses.

        Kernel stamps for all planes, where a trial has no others.
        """
        trials = [trial for trial in self.done if trial.kind == "rtt"]
        return "rtt_user" if all("rtt_user" in trial.latency for trial in trials) else "rtt_kernel"

    @cached_property
    def rtt(self) -> list[RttCell]:
        """RTT by cell, by context and plane."""
        return self._rtt_cells(trial for trial in self.counted if trial.kind == "rtt")

    @cached_property
    def missed(self) -> list[RttCell]:
        """As `rtt`, over trials that missed a level of their cell."""
        trials = (trial for trial in self.done if trial.kind == "rtt" and missed_levels(trial))
        return self._rtt_cells(trials)

    def _rtt_cells(self, trials: Iterable[TrialRecord]) -> list[RttCell]:
        cells: dict[tuple[str, Factors], list[TrialRecord]] = {}
        for trial in trials:
            cells.setdefault(self.key(trial), []).append(trial)
        summaries = packet_files.summarise(
            self.run.path, list(cells.values()), self.rtt_metric, self._summary
        )
        result: list[RttCell] = []
        for summary, notes in summaries:
            self._notes += notes
            if summary is not None:
                result.append(summary)
        return sorted(result, key=lambda cell: (rank(cell.factors), self.plane_rank(cell.plane)))

    @cached_property
    def cpu(self) -> list[CpuCell]:
        """CPU by cell and host during RTT trials (load trials where there are no others)."""
        sampled = [trial for trial in self.counted if cpu_of(trial)]
        kind = "rtt" if any(trial.kind == "rtt" for trial in sampled) else "load"
        cells: dict[tuple[str, Factors, str], list[Mapping[str, float]]] = {}
        for trial in sampled:
            if trial.kind == kind:
                for host, modes in trial.cpu.items():
                    key = (*self.key(trial), host)
                    cells.setdefault(key, []).append(modes)
        result = []
        for (plane, factors, host), samples in cells.items():
            grouped = [
                {
                    group: sum(modes.get(mode, 0.0) for mode in members)
                    for group, members in CPU_GROUPS.items()
                }
                for modes in samples
            ]
            busy = [sum(groups.values()) for groups in grouped]
            result.append(
                CpuCell(
                    plane=plane,
                    factors=factors,
                    host=host,
                    shares={
                        group: statistics.fmean(groups[group] for groups in grouped)
                        for group in CPU_GROUPS
                    },
                    replicates_busy=tuple(busy),
                )
            )
        return sorted(
            result, key=lambda cell: (rank(cell.factors), cell.host, self.plane_rank(cell.plane))
        )

    @cached_property
    def curves(self) -> list[JudgedCurve]:
        """Load-loss curves by context and plane, each judged by the default rule."""
        result = []
        for cell, curve in curves_from_trials(self.trials):
            plane, factors = self.naming.series(cell), self.naming.factors(cell)
            result.append(JudgedCurve(plane, factors, curve, judge(curve)))
        return sorted(result, key=lambda item: (rank(item.factors), self.plane_rank(item.plane)))

    @cached_property
    def chains(self) -> list[ChainCell]:
        """Throughput of chains, by plane, path, length and frame size."""
        cells: dict[tuple[str, str, int, Level], list[ChainResult]] = {}
        kinds: dict[Level, set[tuple[Level, Level]]] = {}
        for trial in self.done:
            if trial.chain is not None:
                guest_kinds = kinds.setdefault(trial.cell.get("plane", NO_PLANE), set())
                guest_kinds.add((trial.cell.get("guest", ""), trial.cell.get("forwarder", "")))
        for trial in self.done:
            if trial.chain is not None:
                cell = trial.cell
                plane = cell.get("plane", NO_PLANE)
                several = len({guest for guest, _ in kinds[plane]}) > 1
                variant = (cell.get("guest", "") if several else "", cell.get("forwarder", ""))
                key = (
                    ", ".join(str(part) for part in (plane, *variant) if part),
                    str(cell.get("path", "")),
                    int(cell.get("vnfs", len(trial.chain.vnfs))),
                    cell.get("size_bytes", 0),
                )
                cells.setdefault(key, []).append(trial.chain)
        chain_cells = []
        for (plane, path, vnfs, size), results in cells.items():
            limit, _ = Counter(result.limit for result in results).most_common(1)[0]
            shown = next(result for result in results if result.limit == limit)
            offered = sum(result.offered_pps for result in results)
            chain_cells.append(
                ChainCell(
                    plane=plane,
                    path=path,
                    vnfs=vnfs,
                    size=size if isinstance(size, str) else int(size),
                    pps=tuple(result.tx_pps for result in results),
                    bps=tuple(result.tx_bps for result in results),
                    delivered=sum(result.delivered_pps for result in results) / offered
                    if offered
                    else 0.0,
                    limit=limit,
                    why=shown.why,
                    cores=shown.cores,
                    frames=_all_frames([result.frames for result in results if result.frames]),
                )
            )
        return sorted(
            chain_cells,
            key=lambda cell: (
                level_rank(cell.size),
                self.plane_rank(cell.plane.partition(", ")[0]),
                cell.plane,
                cell.path != "north-south",
                cell.vnfs,
            ),
        )

    @cached_property
    def tcp(self) -> list[TcpCell]:
        """Goodput of TCP, by plane, functions and message size."""
        cells: dict[tuple[str, int, int], list[TcpResult]] = {}
        for trial in self.done:
            if trial.tcp is not None:
                plane = str(trial.cell.get("plane", NO_PLANE))
                key = (plane, int(trial.cell.get("vnfs", 0)), trial.tcp.message_bytes)
                cells.setdefault(key, []).append(trial.tcp)
        ordered = sorted(cells.items(), key=lambda cell: (self.plane_rank(cell[0][0]), cell[0]))
        return [
            TcpCell(
                label=plane if not vnfs else f"{plane}, {count_text(vnfs, 'function')}",
                message_bytes=message,
                bps=tuple(result.goodput_bps for result in results),
                retransmits=sum(result.retransmits for result in results),
            )
            for (plane, vnfs, message), results in ordered
        ]

    @cached_property
    def visits(self) -> list[OrderedTrial]:
        """All trials in the order in which they were run."""
        medians: dict[tuple[str, Factors], list[float]] = {}
        for trial in self.counted:
            if trial.kind == "rtt" and (rtt := trial.latency.get(self.rtt_metric)):
                medians.setdefault(self.key(trial), []).append(rtt.p50_ns)
        result = []
        for trial in sorted(self.trials, key=lambda trial: trial.order):
            key = self.key(trial)
            rtt = trial.latency.get(self.rtt_metric)
            median = rtt.p50_ns if rtt and keeps_levels(trial) and trial.kind == "rtt" else None
            # A single trial is its cell's median: relative to itself it would show no drift.
            several = len(medians.get(key, ())) > 1
            of_cell = statistics.median(medians[key]) if several else 0.0
            result.append(
                OrderedTrial(
                    order=trial.order,
                    plane=key[0],
                    factors=key[1],
                    kind=trial.kind,
                    failed=trial.status == "failed",
                    relative=median / of_cell if median is not None and of_cell > 0 else None,
                    median_ns=median,
                    trial=trial,
                )
            )
        return result

    @cached_property
    def drift(self) -> tuple[Drift, ...]:
        """Changes of the hosts or of the results during the run."""
        return find_drift(self.trials, self.info)

    @cached_property
    def watched(self) -> tuple[RecordedState, ...]:
        """Recorded kinds of state by host; empty where no state was recorded."""
        states: dict[str, list[HostState]] = {}
        for trial in self.done:
            for role, state in trial.host.items():
                states.setdefault(role, []).append(state)
        return tuple(
            RecordedState(
                role,
                recorded=tuple(words for has, words in _STATE if any(map(has, host_states))),
                unsupported=tuple(words for has, words in _STATE if not any(map(has, host_states))),
            )
            for role, host_states in states.items()
        )

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """What the figures leave out or show with reservations, and why."""
        _ = self.rtt, self.missed, self.recommendation  # they add notes
        notes = list(self._notes)
        if self.is_cut:
            notes.append(left_out.CUT)
        series = self.naming.series
        notes += left_out.of_skipped((series(skip.cell), skip.reason) for skip in self.info.skipped)
        return notes + left_out.of_trials((self.key(trial)[0], trial) for trial in self.trials)

    def _summary(
        self, trials: Sequence[TrialRecord], packets: Packets | Unread
    ) -> tuple[RttCell | None, list[LeftOut]]:
        plane, factors = self.key(trials[0])
        return summarise(plane, factors, self.rtt_metric, trials, packets)


def _all_frames(accounts: Sequence[FrameAccount]) -> FrameAccount | None:
    """Sum of the frame accounts of several replicates."""
    if not accounts:
        return None
    lost: Counter[str] = Counter()
    for account in accounts:
        for place, frames in account.lost.items():
            lost[place] += frames
    return FrameAccount(
        sent=sum(account.sent for account in accounts),
        received=sum(account.received for account in accounts),
        lost=dict(lost),
        foreign=sum(account.foreign for account in accounts),
    )
