"""Load-loss curves: runs at a ladder of offered loads, and their statistics.

Formulas: PASTRAMI (arXiv 2410.18644), sections IV and V. With offered load O [packet/s] and a
run that sent S packets of which N arrived: PLR = 1 − N/S, DR = 1 − PLR, forwarding rate
R = O · DR. A load's PLR is the mean over its runs; the interval is Student's, K − 1 degrees of
freedom.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from planewise.errors import BadInputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_UNKNOWN: Mapping[str, float] = {
    "sent": -1, "received": -1, "duration_s": math.nan, "order": -1, "drops": -1, "limited": False,
    "busy": math.nan, "foreign": math.nan,
}  # fmt: skip
"""The fields of `Run` in their order, with what a column has where a value is not known."""
_KINDS = {float: np.float64, int: np.int64, bool: np.bool_}
RUN = np.dtype([(name, _KINDS[type(unknown)]) for name, unknown in _UNKNOWN.items()])
Runs: TypeAlias = Any
"""Runs by column: a recarray of type `RUN` and shape (K,). A million cost memory and not time."""


@dataclass(frozen=True, slots=True)
class Run:
    """One trial at one offered load."""

    sent: int
    """Packets offered, at least 1."""
    received: int
    """Packets that arrived; a few more than `sent` are tolerated (stray packets)."""
    duration_s: float | None = None
    order: int | None = None
    """Place in the experiment's real order; None: the order in which the runs are given."""
    drops: int | None = None
    """Losses of this run that a drop counter explains; None where no counter was read."""
    limited: bool = False
    """Whether something other than the SUT limited the trial (generator, sink, clock)."""
    busy: float | None = None
    """Busy share (0 to 1) of the CPUs of the host that forwarded; None where it is not known, or
    where the trial loaded them on purpose."""
    foreign: float | None = None
    """Share (0 to 1) of those CPUs' time that other programs took; None where it is not known."""

    def __post_init__(self) -> None:
        """BadInputError for counts and durations that no trial can have."""
        if self.sent < 1:
            raise BadInputError(f"{self.sent} packets sent: a run needs at least one")
        if self.received < 0:
            raise BadInputError(f"{self.received} packets received: a count cannot be negative")
        if self.duration_s is not None and (self.duration_s <= 0 or math.isinf(self.duration_s)):
            raise BadInputError(f"a duration of {self.duration_s} s is not possible")

    @property
    def plr(self) -> float:
        """Packet loss ratio, as counted: below 0 when more arrived than was sent."""
        return 1 - self.received / self.sent


def by_column(sent: ArrayLike, received: ArrayLike, **known: ArrayLike | None) -> Runs:
    """Runs from what is known of their fields; a field that is None is not known of any run."""
    runs: Runs = np.recarray(np.shape(sent), RUN)
    for name, column in {**_UNKNOWN, "sent": sent, "received": received, **known}.items():
        runs[name] = _UNKNOWN[name] if column is None else column
    return runs


def _of_runs(runs: Sequence[Run]) -> Runs:
    columns: dict[str, Any] = {
        name: [unknown if (value := getattr(run, name)) is None else value for run in runs]
        for name, unknown in _UNKNOWN.items()
    }
    return by_column(**columns)


@dataclass(frozen=True, eq=False)
class LoadPoint:
    """All runs at one offered load.

    `runs` may be given as a sequence of Run; they are kept by column. The statistics leave out runs
    with `limited` set, unless all are.
    """

    offered_pps: float
    runs: Runs

    def __post_init__(self) -> None:
        """BadInputError when the load is not a positive number or there is no run."""
        if not (math.isfinite(self.offered_pps) and self.offered_pps > 0):
            raise BadInputError(f"an offered load of {self.offered_pps} packet/s is not a load")
        if len(self.runs) == 0:
            raise BadInputError(f"no run at the offered load {self.offered_pps:.0f} packet/s")
        if not isinstance(self.runs, np.recarray):
            object.__setattr__(self, "runs", _of_runs(self.runs))

    @cached_property
    def table(self) -> Runs:
        """The runs that count, in the experiment's order where it is known for all."""
        runs = self.runs
        if (runs.order >= 0).all():
            runs = runs[np.argsort(runs.order, kind="stable")]
        return runs if runs.limited.all() else runs[~runs.limited]

    @property
    def limited(self) -> int:
        """Number of runs that something other than the SUT limited."""
        return int(self.runs.limited.sum())

    @property
    def count(self) -> int:
        """K, the number of runs that count."""
        return len(self.table)

    @cached_property
    def plr_per_run(self) -> Floats:
        """PLR of each run as counted (below 0 when more arrived than was sent), shape (K,)."""
        plr: Floats = 1 - self.table.received / self.table.sent
        return plr

    @cached_property
    def plr_counted(self) -> float:
        """Mean PLR as counted; may be a little below 0."""
        return float(self.plr_per_run.mean())

    @property
    def plr(self) -> float:
        """Mean PLR, not below 0."""
        return max(0.0, self.plr_counted)

    @property
    def dr(self) -> float:
        """Delivery ratio, 1 − PLR."""
        return 1 - self.plr

    @property
    def forwarded_pps(self) -> float:
        """Forwarding rate R = O · (1 − PLR)."""
        return self.offered_pps * self.dr

    @cached_property
    def deviation(self) -> float | None:
        """Sample standard deviation of the runs' PLR (K − 1); None for a single run."""
        return None if self.count < 2 else float(self.plr_per_run.std(ddof=1))

    @cached_property
    def half_width95(self) -> float | None:
        """Half of Student's 95 % interval of the mean PLR, K − 1 degrees of freedom."""
        if self.deviation is None:
            return None
        return float(stdtrit(self.count - 1, 0.975)) * self.deviation / math.sqrt(self.count)

    @property
    def interval95(self) -> tuple[float, float] | None:
        """Student's 95 % interval of the mean PLR, cut to 0..1; None for a single run."""
        if self.half_width95 is None:
            return None
        return (
            max(0.0, self.plr_counted - self.half_width95),
            max(0.0, min(1.0, self.plr_counted + self.half_width95)),
        )

    @property
    def delta_ucl95(self) -> float | None:
        """Δ_UCL95 = (UCL95 − PLR) / PLR; None for a single run or no loss."""
        if self.half_width95 is None or self.plr_counted <= 0:
            return None
        return self.half_width95 / self.plr_counted

    @property
    def achieved_pps(self) -> float | None:
        """What was really sent per second, over all runs; None where a duration is unknown."""
        total_s = float(self.table.duration_s.sum())
        return float(self.table.sent.sum()) / total_s if total_s > 0 else None

    @property
    def drops(self) -> int | None:
        """Losses that drop counters explain, over all runs; None when one run has no counter."""
        drops = self.table.drops
        return None if bool((drops < 0).any()) else int(drops.sum())

    @property
    def lost(self) -> int:
        """Packets lost over all runs, not below 0 in any."""
        return int(np.maximum(self.table.sent - self.table.received, 0).sum())


@dataclass(frozen=True)
class Curve:
    """A load-loss curve. Points are kept by rising load; points of the same load become one."""

    name: str
    points: tuple[LoadPoint, ...]
    source: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from: `file`, `format`, `cell`, …; free, JSON-like."""

    def __post_init__(self) -> None:
        """BadInputError when there is no point."""
        if not self.points:
            raise BadInputError(f"the curve {self.name} has no load")
        by_load: dict[float, list[Runs]] = {}
        for point in self.points:
            by_load.setdefault(point.offered_pps, []).append(point.runs)
        points = (
            LoadPoint(load, np.concatenate(parts).view(np.recarray))
            for load, parts in sorted(by_load.items())
        )
        object.__setattr__(self, "points", tuple(points))

    @classmethod
    def from_runs(
        cls,
        name: str,
        runs: Mapping[float, Sequence[Run]],
        source: Mapping[str, Any] | None = None,
    ) -> Curve:
        """A curve from the runs at each offered load [packet/s]."""
        points = tuple(LoadPoint(load, at_load) for load, at_load in runs.items())
        return cls(name, points, source or {})

    @cached_property
    def tested(self) -> Curve:
        """The loads at which at least one run was limited by nothing but the SUT.

        The curve itself where that is all of them, or none.
        """
        tested_points = tuple(point for point in self.points if point.limited < len(point.runs))
        return (
            self
            if len(tested_points) in (0, len(self.points))
            else Curve(self.name, tested_points, self.source)
        )

    @property
    def untested(self) -> bool:
        """Whether every run was limited by something else than the SUT."""
        return all(point.limited == len(point.runs) for point in self.points)

    @cached_property
    def offered_pps(self) -> Floats:
        """Offered loads, rising, shape (L,)."""
        return np.array([point.offered_pps for point in self.points], dtype=np.float64)

    @cached_property
    def plr(self) -> Floats:
        """Mean PLR at each load as counted (may be a little below 0), shape (L,)."""
        return np.array([point.plr_counted for point in self.points], dtype=np.float64)

    @cached_property
    def forwarded_pps(self) -> Floats:
        """Forwarding rate R = O · (1 − PLR) at each load, shape (L,)."""
        return self.offered_pps * (1 - self.plr)

    @cached_property
    def tir(self) -> Floats:
        """TIR = ΔR/ΔO from each load to the next, shape (L − 1,)."""
        return np.diff(self.forwarded_pps) / np.diff(self.offered_pps)

    @cached_property
    def counts(self) -> Ints:
        """Runs that count at each load, shape (L,)."""
        return np.array([point.count for point in self.points], dtype=np.int64)

    def first_over(self, plr: float) -> int | None:
        """Index of the first load whose mean PLR exceeds `plr`; None when none does."""
        over = np.flatnonzero(self.plr > plr)
        return int(over[0]) if over.size else None
