"""Cells, summaries and curves of a run directory, for the report's sections.

Packets become summaries here, a few cells at a time; only a scatter's share of them is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property, partial

from planewise.errors import BadInputError
from planewise.judge.curve import Curve
from planewise.judge.drift import Drift, find_drift
from planewise.judge.from_store import curves_from_trials
from planewise.judge.statistics.metrics import Observed, RunSample, observe, rtt_source
from planewise.judge.verdict import Verdict, judge
from planewise.report import left_out, theme
from planewise.report.left_out import LeftOut
from planewise.report.rtt_cell import RttCell, read, summarise
from planewise.store.cells import NO_PLANE, Factors, Naming, by_series, rank
from planewise.store.levels import keeps_levels
from planewise.store.models import HostState, RunInfo, TrialRecord
from planewise.store.packets import RttMetric
from planewise.store.recommendation import Recommendation
from planewise.store.rundir import RunReader


@dataclass(frozen=True)
class JudgedCurve:
    """A load-loss curve with its verdict."""

    plane: str
    factors: Factors
    curve: Curve
    verdict: Verdict


_STATE: tuple[tuple[Callable[[HostState], bool], str], ...] = (
    (lambda state: state.governor != "none", "frequency governor"),
    (lambda state: state.cpu_mhz is not None, "CPU clock"),
    (lambda state: state.temperature_c is not None, "temperature"),
    (lambda state: state.throttled is not None, "throttling"),
    (lambda state: state.steal is not None, "steal time"),
    (lambda state: state.foreign_cpu is not None, "CPU time of other programs"),
    (lambda state: bool(state.offloads), "NIC offloads"),
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

    def place(self, cell: tuple[str, Factors]) -> tuple[object, ...]:
        """Sort key of a series and its factors: by condition, then in the order of the planes."""
        return rank(cell[1]), self.plane_rank(cell[0])

    @cached_property
    def done(self) -> list[TrialRecord]:
        """Trials that have a result."""
        return [trial for trial in self.trials if trial.status == "done"]

    @cached_property
    def counted(self) -> list[TrialRecord]:
        """Trials of `done` that kept their cells' levels; averages and figures use only these."""
        return [trial for trial in self.done if keeps_levels(trial)]

    @cached_property
    def sample(self) -> RunSample:
        """The trials by series, for statistics."""
        return RunSample(self.info.run, self.info, by_series(self.trials, self.naming))

    @cached_property
    def observed(self) -> Callable[[str], Observed]:
        """Reads a metric of all cells, once."""
        return cache(partial(observe, [self.sample]))

    @cached_property
    def recommendation(self) -> Recommendation | None:
        """The run's recommendation; a damaged file is noted, not fatal."""
        try:
            return self.run.recommendation()
        except BadInputError as error:
            self._notes.append(LeftOut("the recommendation", error.what))
            return None

    @cached_property
    def planes(self) -> tuple[str, ...]:
        """All planes (series, where the background's planes vary as well)."""
        names = dict.fromkeys(
            series for trial in self.trials for series in self.naming.like(self.key(trial)[0])
        )
        return tuple(sorted(names, key=self.plane_rank))

    @cached_property
    def colours(self) -> dict[str, str]:
        """The colour of each plane."""
        return theme.colours_of(self.planes)

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
        """`Emulated` or `Virtualised` times; empty on bare hardware."""
        return "Emulated" if self.info.emulated else "Virtualised" if self.virtual else ""

    @cached_property
    def rtt_metric(self) -> RttMetric:
        """The kind of RTT that figures show: from user-space stamps, as the recommendation uses.

        Kernel stamps for all planes, where a trial has no others.
        """
        return rtt_source(self.trials)

    @cached_property
    def rtt(self) -> list[RttCell]:
        """RTT by cell, by context and plane."""
        cells: dict[tuple[str, Factors], list[TrialRecord]] = {}
        for trial in self.counted:
            if trial.kind == "rtt":
                cells.setdefault(self.key(trial), []).append(trial)

        def summary(key: tuple[str, Factors]) -> tuple[RttCell | None, list[LeftOut]]:
            packets = read(self.run.path, cells[key], self.rtt_metric)
            return summarise(*key, self.rtt_metric, cells[key], packets)

        result: list[RttCell] = []
        with ThreadPoolExecutor(2) as pool:  # reading and sorting release the GIL
            for cell, notes in pool.map(summary, cells):
                self._notes += notes
                if cell is not None:
                    result.append(cell)
        return sorted(result, key=lambda cell: self.place((cell.plane, cell.factors)))

    @cached_property
    def curves(self) -> list[JudgedCurve]:
        """Load-loss curves by context and plane, each judged by the default rule."""
        result = [
            JudgedCurve(self.naming.series(cell), self.naming.factors(cell), curve, judge(curve))
            for cell, curve in curves_from_trials(self.trials)
        ]
        return sorted(result, key=lambda item: self.place((item.plane, item.factors)))

    @cached_property
    def drift(self) -> tuple[Drift, ...]:
        """Changes of the hosts or of the results during the run."""
        return find_drift(self.trials, self.info)

    @cached_property
    def watched(self) -> dict[str, tuple[list[str], list[str]]]:
        """By host, the kinds of state that it recorded around trials, and those that it has no
        counter for: unknown, which does not mean that they did not change."""
        states: dict[str, list[HostState]] = {}
        for trial in self.done:
            for role, state in trial.host.items():
                states.setdefault(role, []).append(state)
        return {
            role: (
                [name for has, name in _STATE if any(map(has, of_host))],
                [name for has, name in _STATE if not any(map(has, of_host))],
            )
            for role, of_host in states.items()
        }

    @cached_property
    def left_out(self) -> list[LeftOut]:
        """What the figures leave out or show with reservations, and why."""
        _ = self.rtt, self.recommendation  # they add notes
        notes = list(self._notes)
        if self.is_cut:
            notes.append(left_out.CUT)
        series = self.naming.series
        skipped = Counter((series(skip.cell), skip.reason) for skip in self.info.skipped)
        for (plane, why), times in skipped.items():
            notes.append(LeftOut(f"cells of {plane}", f"not possible on this host: {why}", times))
        return notes + left_out.of_trials((self.key(trial)[0], trial) for trial in self.trials)
