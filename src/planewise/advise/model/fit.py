"""Fit the stations of a plane to measured chains: the simplest ones that the rows don't refute.

The time of a row is the largest of its stations' sums of times. All times are fitted together by
least squares, then times are dropped one by one as long as the others explain the rows as well.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares, linprog

from planewise.advise.model.capacity import (
    WORDS,
    ChainWorkload,
    line_ns,
    predict,
    visits,
)
from planewise.advise.model.profile import PLANES, Dimension, Fitted, Plane, Profile, Station
from planewise.errors import BadInputError

Floats = NDArray[np.float64]
Kept = NDArray[np.bool_]

_NOISE = 0.02
"""Relative error below which rows agree: repeated searches for a rate differ as much."""
_SOFT = 0.03
"""Relative error from which a row counts less than by its square: some rows lie far off."""
_ALIKE = 1e-6
"""Columns are collinear where a singular value of unit columns is smaller."""
_PREFERRED = ("switch core", "VNF core")
"""Of stations that these rows cannot tell apart, the first one is fitted."""
_TIMES = ("visit_ns", "packet_ns", "byte_ns", "hop_ns", "hop_byte_ns", "port_ns")
_EACH_PACKET = ("visit_ns", "packet_ns")
_SPANNED = ("visit_ns", "packet_ns", "hop_ns")


@dataclass(frozen=True)
class Measured:
    """What a chain carried: packets that all functions sent a second."""

    plane: Plane
    chain: ChainWorkload
    pps: float


@dataclass(frozen=True)
class HeldOut:
    """Rows of a plane, each predicted by a fit to the rows with other values of `dimension`."""

    plane: Plane
    dimension: Dimension
    errors: tuple[float, ...]
    """ln(predicted / measured) of each row."""


@dataclass(frozen=True)
class Fit:
    """A fitted profile, how well it predicts, and what its rows leave open."""

    profile: Profile
    left_out: tuple[HeldOut, ...]
    open: tuple[str, ...]
    """What the rows cannot tell and the measurement that would, in sentences."""


@dataclass(frozen=True, eq=False)
class _Rows:
    """The rows of a plane as matrices; a column is a time of a station."""

    stations: Mapping[str, Sequence[int]]
    """The columns of each."""
    times: Sequence[str]
    """The time of each column."""
    counts: Floats
    """How often each time is taken, shape (stations, rows, columns)."""
    measured_ns: Floats
    """Time between two packets that enter a chain, shape (rows,)."""
    line_ns: Floats
    held: Floats
    """Times of the starting profile, shape (columns,)."""
    bytes: Floats
    """Frame sizes, shape (rows,)."""

    def taken(self, theta: Floats) -> Floats:
        """Time of each station and, last, the line, shape (stations + 1, rows)."""
        return np.vstack([self.counts @ theta, np.maximum(self.line_ns, 1e-9)])

    def kept(self, kept: Kept) -> Iterator[tuple[str, Sequence[int]]]:
        """The columns of each station that are kept."""
        return ((name, [k for k in own if kept[k]]) for name, own in self.stations.items())


def fit(start: Profile, rows: Sequence[Measured], source: str) -> Fit:
    """`start` with the stations that agree best with `rows`, by plane.

    What no row tells stays as it is in `start`. `source` names the data.

    Raises:
        BadInputError: no rows, or one without packets.
    """
    if not rows:
        raise BadInputError("there is nothing to fit", remedy=f"rows of {', '.join(PLANES)}")
    if any(not (math.isfinite(row.pps) and row.pps > 0) for row in rows):
        raise BadInputError(
            "a throughput of no packets fits no model", remedy="leave such rows out"
        )
    profile, left_out, unknown = start, list[HeldOut](), list[str]()
    for plane in dict.fromkeys(row.plane for row in rows):
        own = [row for row in rows if row.plane == plane]
        profile, never = _fitted(profile, own, source)
        seen = {name: sorted({getattr(row.chain, name) for row in own} - {None}) for name in WORDS}
        held = [
            _leave_out(start, own, name, values) for name, values in seen.items() if len(values) > 1
        ]
        left_out += held
        fitted = Fitted(
            plane=plane,
            rows=len(own),
            seen={name: tuple(values) for name, values in seen.items()},
            errors={part.dimension: max(map(abs, part.errors)) for part in held},
            basis="measurement",
            source=source,
        )
        others = tuple(part for part in profile.fitted if part.plane != plane)
        profile = profile.model_copy(update={"fitted": (*others, fitted)})
        if never:
            unknown.append(
                f"{plane}: how fast {' and '.join(never)} are, as they limited no row; measure a "
                "short chain on more switch cores"
            )
        alone = [WORDS[name] for name, values in seen.items() if len(values) == 1]
        unknown.append(
            f"{plane}: intervals for any other {', '.join(alone)}, as all rows have the same; "
            "measure chains that differ in it"
        )
    return Fit(profile, tuple(left_out), tuple(unknown))


def _leave_out(
    start: Profile, rows: Sequence[Measured], name: Dimension, values: Sequence[object]
) -> HeldOut:
    errors = []
    for value in values:
        unseen = [row for row in rows if getattr(row.chain, name) == value]
        remaining = [row for row in rows if getattr(row.chain, name) != value]
        without, _ = _fitted(start, remaining, "")
        for row in unseen:
            prediction = predict(without, row.plane, row.chain)
            errors.append(math.log(prediction.pps / row.pps) if prediction else math.inf)
    return HeldOut(rows[0].plane, name, tuple(errors))


def _fitted(
    start: Profile, measured: Sequence[Measured], source: str
) -> tuple[Profile, tuple[str, ...]]:
    """The profile with the plane's stations fitted, and the stations that never limit a row."""
    plane = measured[0].plane
    rows = _matrices(start, measured)
    kept = _identifiable(rows)
    held = np.zeros(len(rows.times))
    for own in rows.stations.values():
        if kept[own].any():
            held[own] = np.where(kept[own], 0.0, rows.held[own])
    theta = _simplest(rows, kept, held)
    binding = rows.taken(theta).argmax(axis=0)
    parts, never = [], []
    for index, (name, own) in enumerate(rows.stations.items()):
        fitted = index in binding
        values = theta[own]
        if not fitted:  # as in the starting profile, but no slower than the rows allow
            times = np.maximum(rows.counts[index] @ rows.held, 1e-12)
            values = rows.held[own] * float(min(1.0, (rows.measured_ns / times).min()))
        if not fitted and rows.counts[index].any():
            never.append(name)
        if not values.any():
            continue
        old = next((one for one in start.stations_of(plane) if one.name == name), None)
        basis = {"basis": "measurement", "source": source} if fitted else {}
        update = dict(zip((rows.times[k] for k in own), values.tolist(), strict=True)) | basis
        made = old or Station.model_validate({"plane": plane, "name": name})
        parts.append(made.model_copy(update=update))
    others = tuple(one for one in start.stations if one.plane != plane)
    return start.model_copy(update={"stations": (*others, *parts)}), tuple(never)


def _matrices(start: Profile, measured: Sequence[Measured]) -> _Rows:
    plane = measured[0].plane
    counts = [dict(visits(plane, row.chain)) for row in measured]
    if start.line_gbps or len({row.chain.frame_bytes for row in measured}) == 1:
        for row in counts:
            del row["line rate"]
    names = tuple(
        (station, time) for station, times in counts[0].items() for time in _TIMES if time in times
    )
    matrix = np.array(
        [
            [
                [row[name].get(time, 0.0) * (name == station) for name, time in names]
                for row in counts
            ]
            for station in counts[0]
        ]
    )
    known = {one.name: one for one in start.stations_of(plane)}
    stations: dict[str, list[int]] = {}
    for column, (station, _) in enumerate(names):
        stations.setdefault(station, []).append(column)
    return _Rows(
        stations=stations,
        times=[time for _, time in names],
        counts=matrix,
        measured_ns=np.array([row.chain.length * 1e9 / row.pps for row in measured]),
        line_ns=np.array([line_ns(start, row.chain) for row in measured]),
        bytes=np.array([row.chain.frame_bytes for row in measured]),
        held=np.array([getattr(known.get(name), time, 0.0) for name, time in names]),  # type: ignore[call-overload]
    )


def _identifiable(rows: _Rows) -> Kept:
    """The columns that these rows can tell apart, first those that the starting profile has."""
    own: list[tuple[Floats, list[int]]] = []
    order = sorted(enumerate(rows.stations.items()), key=lambda one: one[1][0] not in _PREFERRED)
    for index, (station, columns) in order:
        matrix = rows.counts[index]
        found: list[int] = []
        for k in sorted(columns, key=lambda k: (not rows.held[k], _TIMES.index(rows.times[k]))):
            if not matrix[:, k].any():
                continue
            # Two of these three span the third, and a fit without negative times may need any two.
            free = rows.times[k] in _SPANNED and station == "switch core"
            rivals = [[j] for j in found if rows.times[j] in _SPANNED] if free else [found]
            if all(_rank(matrix[:, [*j, k]]) > _rank(matrix[:, j]) for j in rivals):
                found.append(k)
        mine = matrix[:, found]
        same = any(
            _rank(mine) == _rank(theirs) == _rank(np.hstack([mine, theirs]))
            for theirs in (others[:, columns] for others, columns in own)
        )
        own.append((matrix, [] if same else found))
    kept = np.zeros(len(rows.times), np.bool_)
    kept[[k for _, found in own for k in found]] = True
    return kept


def _rank(columns: Floats) -> int:
    lengths = np.linalg.norm(columns, axis=0)
    return int(np.linalg.matrix_rank(columns / lengths, tol=_ALIKE)) if columns.size else 0


def _simplest(rows: _Rows, kept: Kept, held: Floats) -> Floats:
    """Times with as few of `kept` above zero as explain the rows."""
    size = len(rows.measured_ns)
    theta, cost = _least_squares(rows, kept, held, _slowest(rows, kept, held))
    while int(kept.sum()) > 1:
        trials = []
        for group, first in _removable(rows, kept):
            rest = kept.copy()
            rest[group] = False
            less, more = _least_squares(rows, rest, held, theta)
            before, after = (_penalty(size, int(one.sum()), first) for one in (kept, rest))
            saved = math.inf if before == math.inf else before - after
            change = _misfit(more, size) - _misfit(cost, size) - saved
            # Of changes that are alike, the one to a later time.
            trials.append((change, round(_misfit(more, size), 6), -group[0], group, more, less))
        change, _, _, group, more, less = min(trials, key=lambda trial: trial[:3])
        if change > 0:
            break
        kept[group] = False
        theta, cost = less, more
    guessed = _of_one_size(rows, kept, theta)
    if guessed:
        kept[guessed] = False
        theta, _ = _least_squares(rows, kept, held, theta)
    return theta


def _of_one_size(rows: _Rows, kept: Kept, theta: Floats) -> list[int]:
    """Times for each byte, alone in their station, that limit rows of a single frame size.

    Such rows don't tell a time for each byte from one for each packet.
    """
    binding = rows.taken(theta).argmax(axis=0)
    found: list[int] = []
    for index, (_, own) in enumerate(rows.kept(kept)):
        if [rows.times[k] for k in own] == ["byte_ns"] and int(kept.sum()) > 1:
            sizes = np.unique(rows.bytes[binding == index])
            found += own if len(sizes) == 1 else []
    return found


def _removable(rows: _Rows, kept: Kept) -> Iterator[tuple[list[int], bool]]:
    """The columns that may go next, each one alone and each station, and whether they begin with
    the main time of the plane's main station, which goes last."""
    for name, own in rows.kept(kept):
        main = name in ("switch core", "NIC packet rate")
        if len(own) > 1 and int(kept.sum()) > len(own):
            yield list(own), main
        for k in own:
            left = {rows.times[j] for j in own if j != k}
            # A core that takes time for bytes, hops or ports takes some for each packet.
            if not left or not left.isdisjoint(_EACH_PACKET):
                yield [k], main and k == own[0]


def _misfit(cost: float, size: int) -> float:
    return size * math.log(cost / size + _NOISE**2)


def _penalty(size: int, count: int, lenient: bool) -> float:
    """What a model of `count` times pays for them.

    The larger of generalised cross-validation, which estimates the error on a row left out (Craven
    and Wahba 1979), and Schwarz's criterion, which doesn't grow too lax with many rows.
    """
    schwarz = count * math.log(size)
    if lenient:
        return schwarz
    return max(schwarz, -2 * size * math.log(1 - count / size)) if count < size else math.inf


def _least_squares(rows: _Rows, kept: Kept, held: Floats, near: Floats) -> tuple[Floats, float]:
    """The best times of the columns `kept` near a guess, and the robust sum of squares."""
    columns = np.flatnonzero(kept)
    station = rows.counts.max(axis=0)[:, columns]
    shares = np.array([np.median(one[one > 0] / rows.measured_ns[one > 0]) for one in station.T])
    scale = 1 / shares
    places = np.arange(len(rows.measured_ns))

    def full(values: Floats) -> Floats:
        theta = held.copy()
        theta[columns] = values * scale
        return theta

    def residuals(values: Floats) -> Floats:
        logs: Floats = np.log(rows.taken(full(values)).max(axis=0) / rows.measured_ns)
        return logs

    def slopes(values: Floats) -> Floats:
        times = rows.taken(full(values))
        binding = times.argmax(axis=0)
        of_line = binding == len(rows.counts)
        counts = rows.counts[np.where(of_line, 0, binding), places][:, columns]
        counts[of_line] = 0.0
        relative: Floats = counts * scale / times.max(axis=0)[:, None]
        return relative

    best = least_squares(
        residuals,
        np.maximum(near[columns] * shares, 1e-3),
        slopes,
        bounds=(0, np.inf),
        loss="soft_l1",
        f_scale=_SOFT,
        max_nfev=100,
    )
    return full(best.x), 2 * float(best.cost)


def _slowest(rows: _Rows, kept: Kept, held: Floats) -> Floats:
    """The largest times of each station alone that let no row be slower than it was measured."""
    theta = held.copy()
    for counts, (_, columns) in zip(rows.counts, rows.kept(kept), strict=True):
        if columns:
            shares = counts[:, columns] / rows.measured_ns[:, None]
            room = np.maximum(1 - counts @ held / rows.measured_ns, 0.0)
            best = linprog(-shares.sum(axis=0), A_ub=shares, b_ub=room, bounds=(0, None))
            theta[columns] = best.x
    return theta
