"""The median of a law with skew, from readings that may be bounds: a search's estimate.

Pure statistics. The law is Pearson's of type III (1895): a gamma law, shifted, to either side;
normal where it has no skew. Location, scale and skew are unknown and integrated out over a grid.
The middle one of readings, which assumes no law, scatters by a quarter more than the mean where the
law is normal, and by nearly half more than this law's median where capacity is only ever lost.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from planewise.measure.search.median import LEAST
from planewise.measure.search.particles import Array

_SKEWS = (-2.0, -1.4, -0.9, -0.45, 0.0, 0.45, 0.9, 1.4, 2.0)
"""From the exponential law to its mirror image; all as likely before."""
_LOCATIONS = np.linspace(-2.5, 2.5, 61)
"""About the readings' median, in robust deviations."""
_SCALES = np.exp(np.linspace(-1.2, 1.5, 28))
"""In robust deviations, from a third to four and a half."""
_STRAY = 1e-4
"""Share of readings from a law with heavy tails: one reading far off does not make the scale."""
_FURTHEST = 12.0
_GRID = np.linspace(-_FURTHEST, _FURTHEST, 2401)


@cache
def _law(skew: float) -> tuple[Array, Array, float]:
    """ln density and ln probability above, on `_GRID`, and the median, in deviations."""
    law = stats.pearson3(skew)
    stray = _STRAY * stats.t(2).pdf(_GRID)
    above = np.maximum(law.sf(_GRID), _STRAY * stats.t(2).sf(_GRID))
    return np.log(law.pdf(_GRID) + stray), np.log(above), float(law.median())


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
    log_likelihood, medians = [], []
    for skew in _SKEWS:
        density, above, median = _law(skew)
        seen = np.interp(away[..., ~bound], _GRID, density) - np.log(scale)
        beyond = np.interp(away[..., bound], _GRID, above)
        log_likelihood.append(seen.sum(axis=-1) + beyond.sum(axis=-1))
        medians.append(location[:, None] + scale[:, 0] * median)
    weight = np.exp(np.array(log_likelihood) - np.max(log_likelihood)).ravel()
    at = np.array(medians).ravel()
    order = np.argsort(at)
    cumulated = np.cumsum(weight[order])
    return float(at[order][np.searchsorted(cumulated, 0.5 * cumulated[-1])])
