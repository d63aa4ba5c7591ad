"""What replicates tell about levels of a factor: comparisons, correlations, intervals of quantiles.

Rests on replicates (one value a cell and block); packets within a replicate are not independent
and are never the unit of inference (DESIGN principle 6). docs/concepts/statistics.md explains it.
"""

from planewise.judge.statistics.comparison import (
    Comparison,
    Family,
    LevelValue,
    compare_levels,
)
from planewise.judge.statistics.kendall import KendallBar
from planewise.judge.statistics.metrics import (
    Metric,
    Observation,
    Observed,
    by_sending,
    metrics_in,
    observe,
)
from planewise.judge.statistics.ranking import RankingCheck, check_ranking
from planewise.judge.statistics.values import RunSample

__all__ = [
    "Comparison",
    "Family",
    "KendallBar",
    "LevelValue",
    "Metric",
    "Observation",
    "Observed",
    "RankingCheck",
    "RunSample",
    "by_sending",
    "check_ranking",
    "compare_levels",
    "metrics_in",
    "observe",
]
