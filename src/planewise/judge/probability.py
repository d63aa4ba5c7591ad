"""How probable GOOD is, by the share of drawn curves that are good. Pure; knows no curve.

The share alone is no probability: draws are wide where runs are few, and know nothing of states and
disturbances that did not show. Of simulated systems it is known how often a share came from a good
one; between the knots below the probability is interpolated. They are systems other than the
benches': `python benches/adversaries.py --verdicts` prints what was said against what is true.
"""

from __future__ import annotations

import numpy as np

_SHARE = (0.0, 0.02, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 0.95, 1.0)
_PROBABILITY = (0.03, 0.13, 0.19, 0.38, 0.49, 0.72, 0.83, 0.92, 0.92, 0.96)
"""Of 140 systems of each of 39 cases (numbers 812000 to 812039 and 820000 to 820099; at 2 to 50
runs a load: 27 000 verdicts), by likelihood, rising."""


def probability_good(share: float) -> float:
    """The probability that headroom is below its limit, given the share of draws in which it is."""
    return float(np.interp(share, _SHARE, _PROBABILITY))
