"""What replicates tell about levels of a factor: comparisons, correlations, intervals of quantiles.

Rests on replicates (one value a cell and block); packets within a replicate are not independent
and are never the unit of inference (DESIGN principle 6). docs/concepts/statistics.md explains it.
"""
