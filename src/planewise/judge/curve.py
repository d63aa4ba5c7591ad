"""Load-loss curves: runs at a ladder of offered loads, and their statistics.

Formulas: PASTRAMI (arXiv 2410.18644), sections IV and V. With offered load O [packet/s] and a
run that sent S packets of which N arrived: PLR = 1 − N/S, DR = 1 − PLR, forwarding rate
R = O · DR. A load's PLR is the mean over its runs; the interval is Student's, K − 1 degrees of
freedom.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from planewise.errors import BadInputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_UNKNOWN = -1
_COLUMNS: Mapping[str, tuple[type[Any], Any]] = {
    "sent": (np.int64, _UNKNOWN),
    "received": (np.int64, _UNKNOWN),
    "duration_s": (np.float64, math.nan),
    "order": (np.int64, _UNKNOWN),
    "drops": (np.int64, _UNKNOWN),
    "limited": (np.bool_, False),
    "busy": (np.float64, math.nan),
    "foreign": (np.float64, math.nan),
}
"""Type of each column of a RunTable, and what stands in it where nothing was recorded."""


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
        if self.duration_s is not None and math.isnan(self.duration_s):
            raise BadInputError("the duration is not a number")
        duration_s = math.nan if self.duration_s is None else self.duration_s
        for _, problem in _impossible(*map(np.atleast_1d, (self.sent, self.received, duration_s))):
            raise BadInputError(problem)

    @property
    def plr(self) -> float:
        """Packet loss ratio, as counted: below 0 when more arrived than was sent."""
        return 1 - self.received / self.sent


class RunTable(Sequence[Run]):
    """Many runs by column, so that a million of them cost memory and not time.

    Columns are the fields of `Run`, arrays of shape (K,), with NaN or −1 where a value is unknown.
    """

    __slots__ = tuple(_COLUMNS)
    sent: Ints
    received: Ints
    duration_s: Floats
    order: Ints
    drops: Ints
    limited: Bools
    busy: Floats
    foreign: Floats

    def __init__(self, sent: ArrayLike, received: ArrayLike, **columns: ArrayLike | None) -> None:
        """BadInputError names the first run whose counts or duration no trial can have."""
        given = {"sent": sent, "received": received, **columns}
        for name, (kind, unknown) in _COLUMNS.items():
            values = given.pop(name, None)
            column = np.full(len(self), unknown) if values is None else _column(name, values, kind)
            setattr(self, name, column)
            if column.shape != (len(self),):
                raise BadInputError(
                    f"the column {name} has {column.size} values for {len(self)} runs"
                )
        if given:
            raise TypeError(f"a run has no {', '.join(given)}")
        for index, problem in _impossible(self.sent, self.received, self.duration_s):
            raise BadInputError(f"run {index + 1}: {problem}")

    @classmethod
    def of(cls, runs: Iterable[Run]) -> RunTable:
        """The same runs by column; a RunTable is returned as it is."""
        if isinstance(runs, RunTable):
            return runs
        runs = tuple(runs)
        return cls(
            **{
                name: [unknown if (v := getattr(run, name)) is None else v for run in runs]
                for name, (_, unknown) in _COLUMNS.items()
            }
        )

    @classmethod
    def concatenate(cls, tables: Sequence[RunTable]) -> RunTable:
        """All runs of `tables`, one after the other."""
        return cls(
            **{
                name: np.concatenate([getattr(table, name) for table in tables])
                for name in _COLUMNS
            }
        )

    def take(self, indices: ArrayLike | slice) -> RunTable:
        """The runs at `indices` (or where a bool mask is true), in that order."""
        at = indices if isinstance(indices, slice) else np.asarray(indices)
        return RunTable(**{name: getattr(self, name)[at] for name in _COLUMNS})

    def in_order(self) -> RunTable:
        """The runs in the experiment's order where it is known for all, else as given."""
        if len(self) < 2 or bool((self.order == _UNKNOWN).any()):
            return self
        return self.take(np.argsort(self.order, kind="stable"))

    @property
    def plr(self) -> Floats:
        """Packet loss ratio of each run as counted, shape (K,)."""
        return 1 - self.received / self.sent

    def __len__(self) -> int:
        return int(self.sent.size)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.take(index)
        values = {name: getattr(self, name)[index].item() for name in _COLUMNS}
        # Nothing but NaN differs from itself.
        unknown = {
            name: None
            for name in ("duration_s", "order", "drops", "busy", "foreign")
            if values[name] == _UNKNOWN or values[name] != values[name]
        }
        return Run(**values | unknown)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunTable):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, name), getattr(other, name), equal_nan=True)
            for name in _COLUMNS
        )

    def __repr__(self) -> str:
        return f"RunTable({len(self)} runs)"


@dataclass(frozen=True, eq=False)
class LoadPoint:
    """All runs at one offered load.

    `runs` may be given as any sequence of Run; it is kept as a RunTable. The statistics leave
    out runs with `limited` set, unless all are.
    """

    offered_pps: float
    runs: Sequence[Run]

    def __post_init__(self) -> None:
        """BadInputError when the load is not a positive number or there is no run."""
        if not (math.isfinite(self.offered_pps) and self.offered_pps > 0):
            raise BadInputError(f"an offered load of {self.offered_pps} packet/s is not a load")
        if len(self.runs) == 0:
            raise BadInputError(f"no run at the offered load {self.offered_pps:.0f} packet/s")
        object.__setattr__(self, "runs", RunTable.of(self.runs))

    @cached_property
    def table(self) -> RunTable:
        """The runs that count, in the experiment's order."""
        runs = RunTable.of(self.runs).in_order()
        if runs.limited.any() and not runs.limited.all():
            runs = runs.take(~runs.limited)
        return runs

    @property
    def limited(self) -> int:
        """Number of runs that something other than the SUT limited."""
        return int(RunTable.of(self.runs).limited.sum())

    @property
    def count(self) -> int:
        """K, the number of runs that count."""
        return len(self.table)

    @cached_property
    def plr_per_run(self) -> Floats:
        """PLR of each run as counted (below 0 when more arrived than was sent), shape (K,)."""
        return self.table.plr

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
        by_load: dict[float, list[LoadPoint]] = {}
        for point in self.points:
            by_load.setdefault(point.offered_pps, []).append(point)
        object.__setattr__(
            self,
            "points",
            tuple(
                group[0]
                if len(group) == 1
                else LoadPoint(load, RunTable.concatenate([RunTable.of(p.runs) for p in group]))
                for load, group in sorted(by_load.items())
            ),
        )

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


def _impossible(sent: Ints, received: Ints, duration_s: Floats) -> Iterator[tuple[int, str]]:
    """Index of the first run of each kind that cannot be, and why it can't."""
    possible = np.isnan(duration_s) | ((duration_s > 0) & np.isfinite(duration_s))
    for wrong, text, values in (
        (sent <= 0, "{} packets sent: a run needs at least one", sent),
        (received < 0, "{} packets received: a count cannot be negative", received),
        (~possible, "a duration of {} s is not possible", duration_s),
    ):
        if wrong.any():
            index = int(np.argmax(wrong))
            yield index, text.format(values[index])


def _column(name: str, values: ArrayLike, kind: type[Any]) -> NDArray[Any]:
    try:
        given = np.asarray(values)
        if given.dtype.kind == "f" and kind is np.int64 and not np.isfinite(given).all():
            index = int(np.argmin(np.isfinite(given)))
            raise BadInputError(f"run {index + 1}: {given[index]} packets {name} is not a count")
        array = np.ascontiguousarray(given.astype(kind))
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInputError(
            f"a column of runs holds something that is not a number: {error}"
        ) from error
    array.setflags(write=False)
    return array
