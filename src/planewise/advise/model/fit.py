"""Fits a host's profile to measured throughput. Parameters are the profile's, none a row's own."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares
from scipy.special import stdtrit

from planewise.advise.model.capacity import Chain, Plane, predict
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


@dataclass(frozen=True)
class Measured:
    """What a chain carried: packets that all functions sent a second."""

    plane: Plane
    chain: Chain
    pps: float


def fit(start: Profile, rows: Sequence[Measured], source: str) -> Profile:
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
    profile = start
    widths: dict[Plane, float] = {}
    for plane, names in (("vf-passthrough", (*_NIC, *_VF_CORE)), ("vhost-user", _VHOST)):
        own = [row for row in rows if row.plane == plane]
        if not own:
            continue
        if len(own) <= len(names):
            raise BadInputError(
                f"{len(own)} rows of {plane} cannot tell {len(names)} parameters",
                remedy="measure chains of several lengths, patterns and frame sizes",
            )
        profile = _fitted(profile, own, names, source)
        widths[own[0].plane] = _width(start, profile, own, names)
    if not widths:
        raise BadInputError(
            "there is nothing to fit", remedy="rows of vf-passthrough or vhost-user"
        )
    spread = SpreadPart(
        vf=widths.get("vf-passthrough"),
        vhost=widths.get("vhost-user"),
        basis="measurement",
        source=source,
    )
    return profile.model_copy(update={"spread": spread})


def _width(
    start: Profile, fitted: Profile, rows: Sequence[Measured], names: Sequence[str]
) -> float:
    """Half of the 95 % interval of a new row, as a logarithm of predicted over measured.

    From how far rows lie off a fit that has not seen them: each number of functions is left out in
    turn, as what is asked for is mostly a number that was not measured. The wider of Student's t
    times the deviation, and of the quantile that split conformal prediction takes (Lei et al., JASA
    2018, section 2.2), which does not suppose that deviations are normal.
    """
    unseen: list[float] = []
    for number in {row.chain.vnfs for row in rows}:
        rest = [row for row in rows if row.chain.vnfs != number]
        if len(rest) <= len(names):
            continue
        without = _fitted(start, rest, names, "")
        unseen += np.abs(
            _errors(without, [row for row in rows if row.chain.vnfs == number])
        ).tolist()
    freedom = len(rows) - len(names)
    if len(unseen) < len(rows):  # too few numbers of functions: the fit's own rows must do
        # Of a new row: its own scatter, and that of the parameters, on average over the rows.
        scatter = float((_errors(fitted, rows) ** 2).sum()) / freedom
        return float(stdtrit(freedom, 0.975)) * math.sqrt(scatter * (1 + len(names) / len(rows)))
    student = float(stdtrit(freedom, 0.975)) * math.sqrt(statistics.fmean(e**2 for e in unseen))
    rank = math.ceil((len(unseen) + 1) * _COVERED)
    return max(student, sorted(unseen)[rank - 1]) if rank <= len(unseen) else student


def _fitted(start: Profile, rows: Sequence[Measured], names: Sequence[str], source: str) -> Profile:
    first = np.log([_value(start, name) for name in names])

    def residuals(logs: NDArray[np.float64]) -> NDArray[np.float64]:
        return _errors(_with(start, names, logs, source), rows)

    found = least_squares(
        residuals,
        first,
        loss="soft_l1",
        f_scale=_SOFT,
        x_scale=0.1,
        diff_step=np.full(first.shape, 1e-3),
        bounds=(first - math.log(20), first + math.log(20)),
    )
    return _with(start, names, found.x, source)


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
    said = {"basis": "measurement", "source": source}
    nic = {name: value for name, value in values.items() if name in _NIC}
    cores = {name: value for name, value in values.items() if name not in _NIC}
    return profile.model_copy(
        update={
            "nic": profile.nic.model_copy(update={**nic, **said} if nic else {}),
            "cores": profile.cores.model_copy(update={**cores, **said} if cores else {}),
        }
    )
