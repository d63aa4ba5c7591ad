"""The median of a law with skew and strays, from readings that may be bounds: a search's estimate.

Pure statistics. The law is Pearson's of type III (1895): a gamma law, shifted, to either side;
normal where it has no skew. A share of readings may lie far below it, and a share far above (Box
and Tiao, 1968): half of all trials is then another share of the rest. Location, scale, skew and
both shares are unknown and integrated out over a grid.
The middle one of readings, which assumes no law, scatters by a quarter more than the mean where the
law is normal, and by nearly half more than this law's median where capacity is only ever lost.
"""

from __future__ import annotations

from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from planewise.measure.search.median import LEAST
from planewise.measure.search.particles import Array

_SKEWS = (-2.0, -1.4, -0.9, -0.45, 0.0, 0.45, 0.9, 1.4, 2.0)
"""From the exponential law to its mirror image; all as likely before."""
_STRAYS = {0.0: 0.55, 0.07: 0.3, 0.18: 0.15}
"""Prior probability of a share of strays on one side."""
_LOCATIONS = np.linspace(-2.5, 2.5, 61)
"""About the readings' median, in robust deviations."""
_SCALES = np.exp(np.linspace(-1.1, 1.0, 22))
"""In robust deviations, from a third to 2.7: an exponential law's is 1.4, and that of few readings
is off by less than a factor of two."""
_FLOOR = 1e-4
"""Share of a law with heavy tails where no strays are: a reading does not make the scale."""
_FURTHEST, _STEP = 12.0, 0.01
_GRID = np.arange(-_FURTHEST, _FURTHEST + _STEP / 2, _STEP)


@cache
def _laws() -> tuple[Array, Array, Array, Array]:
    """The laws of a reading: ln density and ln probability above, shape (laws, grid), and median
    and ln prior, shape (laws,); all in deviations."""
    heavy, far = stats.t(2), stats.cauchy()
    densities, aboves, priors = [], [], []
    for skew, (low, low_prior), (high, high_prior) in product(
        _SKEWS, _STRAYS.items(), _STRAYS.items()
    ):
        law, rest = stats.pearson3(skew), 1 - low - high
        # Strays are on their side of the law's mean: half of Cauchy's law.
        side = np.where(_GRID < 0, low, high)
        densities.append(
            rest * law.pdf(_GRID) + 2 * side * far.pdf(_GRID) + _FLOOR * heavy.pdf(_GRID)
        )
        strays = np.where(
            _GRID < 0, high + low * (1 - 2 * far.cdf(_GRID)), high * 2 * far.sf(_GRID)
        )
        aboves.append(np.maximum(rest * law.sf(_GRID) + strays, _FLOOR * heavy.sf(_GRID)))
        priors.append(low_prior * high_prior)
    medians = [np.interp(0.5, above[::-1], _GRID[::-1]) for above in aboves]
    return np.log(densities), np.log(aboves), np.array(medians), np.log(priors)


def skewed_median(value: Array, bound: NDArray[np.bool_]) -> float | None:
    """The median of the law of readings; None where fewer than `LEAST` are more than bounds.

    Args:
        value: readings, shape (n,).
        bound: whether the reading is a lower bound, shape (n,).
    """
    exact = value[~bound]
    if exact.size < LEAST:
        return None
    middle = float(np.median(exact))
    deviation = float(stats.median_abs_deviation(exact, scale="normal"))
    if deviation <= 0:
        return middle
    scale = deviation * _SCALES[:, None]
    location = middle + deviation * _LOCATIONS
    away = (value - location[:, None, None]) / scale
    place = np.rint((away.clip(-_FURTHEST, _FURTHEST) + _FURTHEST) / _STEP).astype(np.intp)
    inside, above = place[..., ~bound], place[..., bound]
    densities, aboves, law_medians, priors = _laws()
    # Shape (laws, locations, scales).
    log_likelihood = np.array(
        [
            density[inside].sum(axis=-1) + beyond[above].sum(axis=-1) + prior
            for density, beyond, prior in zip(densities, aboves, priors, strict=True)
        ]
    ) - exact.size * np.log(scale[:, 0])
    weight = np.exp(log_likelihood - log_likelihood.max()).ravel()
    at = (location[:, None] + scale[:, 0] * law_medians[:, None, None]).ravel()
    order = np.argsort(at)
    cumulated = np.cumsum(weight[order])
    return float(at[order][np.searchsorted(cumulated, 0.5 * cumulated[-1])])
