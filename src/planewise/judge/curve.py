"""Load-loss curves: runs at a ladder of offered loads, and their statistics.

Formulas: PASTRAMI (arXiv 2410.18644), sections IV and V. With offered load O [packet/s] and a
run that sent S packets of which N arrived: PLR = 1 − N/S, DR = 1 − PLR, forwarding rate
R = O · DR. A load's PLR is the mean over its runs; the interval is Student's, K − 1 degrees of
freedom.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from planewise.errors import BadInputError

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

_UNKNOWN = -1
"""In the integer columns of a RunTable: not recorded."""
_REAL = ("duration_s", "busy", "foreign")
"""Columns of a RunTable in which NaN says so."""


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
        problem = _first_problem(
            np.array([self.sent]),
            np.array([self.received]),
            np.array([math.nan if self.duration_s is None else self.duration_s]),
        )
        if self.duration_s is not None and math.isnan(self.duration_s):
            problem = (0, "the duration is not a number")
        if problem is not None:
            raise BadInputError(problem[1])

    @property
    def plr(self) -> float:
        """Packet loss ratio, as counted: below 0 when more arrived than was sent."""
        return 1 - self.received / self.sent


class RunTable(Sequence[Run]):
    """Many runs by column, so that a million of them cost memory and not time.

    `sent` and `received` are int64 of shape (K,), `duration_s`, `busy` and `foreign` float64 (NaN:
    unknown), `order` and `drops` int64 (−1: unknown), `limited` bool.
    """

    __slots__ = (
        "busy", "drops", "duration_s", "foreign", "limited", "order", "received", "sent"
    )  # fmt: skip

    def __init__(
        self,
        sent: ArrayLike,
        received: ArrayLike,
        *,
        duration_s: ArrayLike | None = None,
        order: ArrayLike | None = None,
        drops: ArrayLike | None = None,
        limited: ArrayLike | None = None,
        busy: ArrayLike | None = None,
        foreign: ArrayLike | None = None,
    ) -> None:
        """BadInputError names the first run whose counts or duration no trial can have."""
        self.sent: Ints = _counts(sent, "sent")
        size = self.sent.size
        self.received: Ints = _counts(received, "received")
        unknown = np.full(size, np.nan)
        self.duration_s, self.busy, self.foreign = (
            unknown if column is None else _column(column, np.float64)
            for column in (duration_s, busy, foreign)
        )
        self.order: Ints = np.full(size, _UNKNOWN) if order is None else _column(order, np.int64)
        self.drops: Ints = np.full(size, _UNKNOWN) if drops is None else _column(drops, np.int64)
        self.limited: Bools = (
            np.zeros(size, np.bool_) if limited is None else _column(limited, np.bool_)
        )
        for name in self.__slots__:
            if getattr(self, name).shape != (size,):
                raise BadInputError(
                    f"the column {name} has {getattr(self, name).size} values for {size} runs"
                )
        problem = _first_problem(self.sent, self.received, self.duration_s)
        if problem is not None:
            raise BadInputError(f"run {problem[0] + 1}: {problem[1]}")

    @classmethod
    def of(cls, runs: Iterable[Run]) -> RunTable:
        """The same runs by column; a RunTable is returned as it is."""
        if isinstance(runs, RunTable):
            return runs
        runs = tuple(runs)
        return cls(
            [run.sent for run in runs],
            [run.received for run in runs],
            **{
                name: [math.nan if (v := getattr(run, name)) is None else v for run in runs]
                for name in _REAL
            },
            order=[_UNKNOWN if run.order is None else run.order for run in runs],
            drops=[_UNKNOWN if run.drops is None else run.drops for run in runs],
            limited=[run.limited for run in runs],
        )

    @classmethod
    def concatenate(cls, tables: Sequence[RunTable]) -> RunTable:
        """All runs of `tables`, one after the other."""
        return cls(
            **{
                name: np.concatenate([getattr(table, name) for table in tables])
                for name in cls.__slots__
            }
        )

    def take(self, indices: ArrayLike) -> RunTable:
        """The runs at `indices` (or where a bool mask is true), in that order."""
        at = np.asarray(indices)
        return RunTable(**{name: getattr(self, name)[at] for name in self.__slots__})

    def in_order(self) -> RunTable:
        """The runs in the experiment's order where it is known for all, else as given."""
        if self.sent.size < 2 or bool((self.order == _UNKNOWN).any()):
            return self
        return self.take(np.argsort(self.order, kind="stable"))

    @property
    def plr(self) -> Floats:
        """Packet loss ratio of each run as counted, shape (K,)."""
        return 1 - self.received / self.sent

    def __len__(self) -> int:
        return int(self.sent.size)

    @overload
    def __getitem__(self, index: int) -> Run: ...
    @overload
    def __getitem__(self, index: slice) -> RunTable: ...
    def __getitem__(self, index: int | slice) -> Run | RunTable:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        real = (float(getattr(self, name)[index]) for name in _REAL)
        duration_s, busy, foreign = (None if math.isnan(value) else value for value in real)
        return Run(
            int(self.sent[index]),
            int(self.received[index]),
            duration_s,
            None if self.order[index] == _UNKNOWN else int(self.order[index]),
            None if self.drops[index] == _UNKNOWN else int(self.drops[index]),
            bool(self.limited[index]),
            busy,
            foreign,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunTable):
            return NotImplemented
        return all(
            np.array_equal(getattr(self, name), getattr(other, name), equal_nan=name in _REAL)
            for name in self.__slots__
        )

    def __hash__(self) -> int:
        return hash((self.sent.tobytes(), self.received.tobytes()))

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


def _first_problem(sent: Any, received: Any, duration_s: Floats) -> tuple[int, str] | None:
    """Index and description of the first run that cannot be, None when all can."""
    checks = (
        (~(np.asarray(sent) > 0), "{} packets sent: a run needs at least one", sent),
        (~(np.asarray(received) >= 0), "{} packets received: a count cannot be negative", received),
        (
            ~(np.isnan(duration_s) | ((duration_s > 0) & np.isfinite(duration_s))),
            "a duration of {} s is not possible",
            duration_s,
        ),
    )
    for bad, text, values in checks:
        if bad.any():
            index = int(np.argmax(bad))
            return index, text.format(values[index])
    return None


def _counts(values: ArrayLike, name: str) -> Ints:
    array = np.asarray(values)
    if array.dtype.kind == "f":
        bad = ~np.isfinite(array)
        if bad.any():
            index = int(np.argmax(bad))
            raise BadInputError(f"run {index + 1}: {array[index]} packets {name} is not a count")
    return _column(array, np.int64)


def _column(values: ArrayLike, kind: type[Any]) -> NDArray[Any]:
    try:
        array = np.asarray(values).astype(kind)
    except (TypeError, ValueError, OverflowError) as error:
        raise BadInputError(
            f"a column of runs holds something that is not a number: {error}"
        ) from error
    array = np.ascontiguousarray(array)
    array.setflags(write=False)
    return array
