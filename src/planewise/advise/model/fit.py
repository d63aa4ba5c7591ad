"""Fits a host's profile to measured throughput, and tests it on rows left out of the fit.

Parameters are the profile's, none a row's own. How far a prediction may lie off is known from whole
groups of rows that were left out: each number of functions, each frame size, each pattern.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import stdtrit

from planewise.advise.model.capacity import ChainWorkload, Extrapolation, Plane, predict
from planewise.advise.model.profile import CoresPart, NicPart, Profile, SpreadPart
from planewise.errors import BadInputError

_NIC = ("packets_mpps", "loop_mpps", "loop_gbps", "loop_overhead_bytes")
_VF_CORE = ("vf_ns", "vf_byte_ns")
_VHOST = (
    "vhost_ns",
    "crossing_ns",
    "copy_byte_ns",
    "pmd_ns",
    "pmd_port_ns",
    "pmd_byte_ns",
    "pmd_gbps",
)
_COVERED = 0.95
"""Share of new rows that an interval is to hold."""
_SOFT = 0.03
"""Relative deviation from which a row counts less than by its square: some rows lie far off."""

_FURTHEST = math.log(1000.0)
"""How far a parameter may lie from where the fit starts: a switch whose tables overflow takes a
hundred times as long for a packet as one whose do not."""


@dataclass(frozen=True)
class Measured:
    """What a chain carried: packets that all functions sent a second."""

    plane: Plane
    chain: ChainWorkload
    pps: float


@dataclass(frozen=True)
class HeldOut:
    """Rows of a plane, each predicted by a fit that saw no row of its group."""

    plane: Plane
    kind: Extrapolation
    """What the rows of a group have in common."""
    groups: tuple[tuple[float, ...], ...]
    """ln(predicted / measured) of each row, by group."""

    @property
    def errors(self) -> list[float]:
        """Errors of all rows, without sign."""
        return [abs(error) for group in self.groups for error in group]

    @property
    def width(self) -> float | None:
        """Half of the 95 % interval of a row of a new group; None without groups."""
        return _width(self.groups)

    @property
    def inside(self) -> float:
        """Share of rows within the width that the *other* groups give."""
        covered = []
        for index, group in enumerate(self.groups):
            width = _width(self.groups[:index] + self.groups[index + 1 :])
            covered += [width is not None and abs(error) <= width for error in group]
        return statistics.fmean(covered)


def _width(groups: Sequence[tuple[float, ...]]) -> float | None:
    """Student's t, with as many degrees of freedom as groups were left out, times the deviation;
    or, where it is wider, the quantile of cross-conformal prediction by groups (CV+, Barber et al.,
    Annals of Statistics 2021, section 3), which does not suppose that deviations are normal."""
    errors = [abs(error) for group in groups for error in group]
    if not errors:
        return None
    student = float(stdtrit(len(groups), (1 + _COVERED) / 2))
    student *= math.sqrt(statistics.fmean(error**2 for error in errors))
    rank = math.ceil((len(errors) + 1) * _COVERED)
    return max(student, sorted(errors)[min(rank, len(errors)) - 1])


@dataclass(frozen=True)
class Fit:
    """A fitted profile, and how well it predicts rows left out of the fit."""

    profile: Profile
    left_out: tuple[HeldOut, ...]


def fit(start: Profile, rows: Sequence[Measured], source: str) -> Fit:
    """`start` with the parameters of its NIC and cores that agree best with `rows`.

    Least squares of the logarithm of predicted over measured, with a soft loss. What no row tells
    of stays as it is in `start`, and has no interval. `source` names the data.

    Raises:
        BadInputError: too few rows, or one without packets.
    """
    for row in rows:
        if not (math.isfinite(row.pps) and row.pps > 0):
            raise BadInputError(
                "a throughput of no packets fits no model", remedy="leave such rows out"
            )
    profile, left_out = start, list[HeldOut]()
    spread: dict[str, float | None] = {}
    fitted: dict[Plane, tuple[str, ...]] = {
        "vf-passthrough": (*_NIC, *_VF_CORE),
        "vhost-user": _VHOST,
    }
    for plane, all_names in fitted.items():
        on_plane = [row for row in rows if row.plane == plane]
        if not on_plane:
            continue
        names = _identifiable(all_names, on_plane)
        if len(on_plane) <= len(names):
            raise BadInputError(
                f"{len(on_plane)} rows of {plane} cannot tell {len(names)} parameters",
                remedy="measure chains of several lengths, patterns and frame sizes",
            )
        profile = _fitted(profile, on_plane, names, source)
        held_out = [_leave_out(start, on_plane, names, kind) for kind in _GROUPS]
        left_out += [part for part in held_out if part.groups]
        widths = [part.width for part in held_out]
        if widths[0] is None:
            widths[0] = _in_sample_width(profile, on_plane, names)
        # A chain unlike those measured is predicted no better than one like them.
        least = widths[0] or 0.0
        widths = [None if width is None else max(width, least) for width in widths]
        suffix = "vf" if plane == "vf-passthrough" else "vhost"
        spread |= dict(zip((suffix, f"{suffix}_frame", f"{suffix}_pattern"), widths, strict=True))
    if not spread:
        raise BadInputError(
            "there is nothing to fit", remedy="rows of vf-passthrough or vhost-user"
        )
    part = SpreadPart(
        **spread,
        most_functions=max(row.chain.vnfs for row in rows),
        frames_bytes=tuple(sorted({row.chain.frame_bytes for row in rows})),
        patterns=tuple(sorted({row.chain.pattern for row in rows})),
        basis="measurement",
        source=source,
    )
    return Fit(profile.model_copy(update={"spread": part}), tuple(left_out))


def _identifiable(names: Sequence[str], rows: Sequence[Measured]) -> tuple[str, ...]:
    """Those of `names` that such rows determine; the others stay as they are."""
    numbers = {row.chain.vnfs for row in rows}
    unknown = set()
    if len(numbers) == 1:
        unknown.add("pmd_port_ns")
    if not any(row.chain.through for row in rows):
        unknown.add("crossing_ns")
    if numbers == {1}:
        # Each packet takes the time of one function and of the switch: the slower core binds.
        unknown.add("copy_byte_ns")
    return tuple(name for name in names if name not in unknown)


_GROUPS: dict[Extrapolation, Callable[[ChainWorkload], object]] = {
    "number of functions": lambda chain: chain.vnfs,
    "frame size": lambda chain: chain.frame_bytes,
    "pattern": lambda chain: chain.pattern,
}


def _leave_out(
    start: Profile, rows: Sequence[Measured], names: Sequence[str], kind: Extrapolation
) -> HeldOut:
    """Leaves each group out in turn, where enough rows remain to be fitted."""
    group_of = _GROUPS[kind]
    groups = []
    for group in sorted({group_of(row.chain) for row in rows}, key=str):
        remaining = [row for row in rows if group_of(row.chain) != group]
        if len(remaining) > len(names):
            without = _fitted(start, remaining, names, "")
            unseen = [row for row in rows if group_of(row.chain) == group]
            groups.append(tuple(_errors(without, unseen).tolist()))
    return HeldOut(rows[0].plane, kind, tuple(groups))


def _in_sample_width(fitted: Profile, rows: Sequence[Measured], names: Sequence[str]) -> float:
    """The width from the fitted rows, where no group can be left out.

    Of a new row: its scatter, and that of the parameters, on average over the rows.
    """
    freedom = len(rows) - len(names)
    scatter = float((_errors(fitted, rows) ** 2).sum()) / freedom
    return float(stdtrit(freedom, 0.975)) * math.sqrt(scatter * (1 + len(names) / len(rows)))


def _fitted(start: Profile, rows: Sequence[Measured], names: Sequence[str], source: str) -> Profile:
    initial = np.log([_value(start, name) for name in names])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        return _errors(_with(start, names, logs, source), rows)

    solution = least_squares(
        residuals,
        initial,
        loss="soft_l1",
        f_scale=_SOFT,
        x_scale=0.1,
        diff_step=np.full(initial.shape, 1e-3),
        bounds=(initial - _FURTHEST, initial + _FURTHEST),
    )
    return _with(start, names, solution.x, source)


def _errors(profile: Profile, rows: Sequence[Measured]) -> NDArray[np.float64]:
    """Logarithms of predicted over measured, shape (rows,)."""
    return np.array(
        [math.log(predict(profile, row.plane, row.chain).pps / row.pps) for row in rows]
    )


def _value(profile: Profile, name: str) -> float:
    part: NicPart | CoresPart = profile.nic if name in _NIC else profile.cores
    return max(float(getattr(part, name)), 1e-3)


def _with(
    profile: Profile, names: Sequence[str], logs: NDArray[np.float64], source: str
) -> Profile:
    values = dict(zip(names, np.exp(logs).tolist(), strict=True))
    origin = {"basis": "measurement", "source": source}
    nic = {name: value for name, value in values.items() if name in _NIC}
    cores = {name: value for name, value in values.items() if name not in _NIC}
    return profile.model_copy(
        update={
            "nic": profile.nic.model_copy(update={**nic, **origin} if nic else {}),
            "cores": profile.cores.model_copy(update={**cores, **origin} if cores else {}),
        }
    )
