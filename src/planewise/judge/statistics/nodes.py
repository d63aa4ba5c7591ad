"""Which nodes of a fleet are slow, from measurements that belong to two nodes each.

A pair's value is v_a + v_b plus the pair's own deviation, v being what a node adds (in logarithms:
what it multiplies a time by). Least squares give every v that the meetings determine; the variance
of a pair's deviation is moderated: each node's own residuals count as much as nodes turn out to
differ in them (Smyth 2004, doi 10.2202/1544-6115.1027, sections 4 to 6.2). Two tests must both
refute that a node's v is within the margin of the fleet's median: that of v itself, which minds
nodes that are noisier than others, and the agreement of all its meetings, which rests on no
distribution and minds pairs that are far off by themselves. Many nodes are tested at a false
discovery rate under any dependence (Benjamini and Yekutieli 2001, doi 10.1214/aos/1013699998):
estimates of nodes that met share measurements, and are negatively correlated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.special import digamma, polygamma, stdtr, stdtrit
from scipy.stats import false_discovery_control

from planewise.judge.statistics.comparison import MARGIN

Floats = NDArray[np.float64]

RESOLUTION = 1e-3
"""Relative resolution of a latency histogram: a pair's value is known no better."""
_LEAST_DF = 0.5
"""Residual degrees of freedom of a node below which its own residuals say nothing."""


@dataclass(frozen=True)
class NodeEffect:
    """What a node adds to its pairs, against the fleet's median node; in logarithms."""

    node: int
    meetings: int
    effect: float = math.nan
    """NaN where the meetings do not tell the node from its partners."""
    low: float = -math.inf
    high: float = math.inf
    """95 % interval of this node alone; infinite where nothing is known."""
    p: float = 1.0
    """Of the effect being no more than the margin, one-sided; 1 where nothing is known."""
    why: str = ""
    """Why nothing is known of it; else empty."""


@dataclass(frozen=True)
class NodeEffects:
    """All nodes of one metric."""

    nodes: tuple[NodeEffect, ...]
    """In the order of their numbers."""
    pair_deviation: float
    """Standard deviation of a pair from the sum of its nodes; NaN where it is not known."""


def node_effects(
    nodes: int, meetings: Sequence[tuple[int, int, float]], *, margin: float = MARGIN
) -> NodeEffects:
    """What each of `nodes` adds, with its interval and its p value against `margin`.

    A meeting is the numbers of two nodes, and the logarithm of a quantity that is worse when it is
    larger.
    """
    pairs = np.array([meeting[:2] for meeting in meetings], dtype=np.intp).reshape(-1, 2)
    fixed = determined(nodes, pairs)
    met = np.bincount(pairs.ravel(), minlength=nodes)
    effects = [
        NodeEffect(
            node,
            int(met[node]),
            why="its meetings do not tell it from its partners: it needs more of them"
            if met[node]
            else "none of its pairs was measured",
        )
        for node in range(nodes)
    ]
    used = fixed[pairs[:, 0]]  # both nodes of a pair are determined, or neither
    if not used.any():
        return NodeEffects(tuple(effects), math.nan)
    values = np.array([value for _, _, value in meetings], dtype=np.float64)[used]
    a, b = (np.cumsum(fixed) - 1)[pairs[used]].T
    size = int(fixed.sum())

    def by_node(of_pairs: Floats) -> Floats:
        """The sum over the pairs of each node, from shape (pairs,) to (size,)."""
        sums = np.bincount(np.concatenate([a, b]), np.tile(of_pairs, 2), minlength=size)
        return sums.astype(np.float64)

    met_fixed = by_node(np.ones(len(values)))
    normal = np.diag(met_fixed)
    np.add.at(normal, (np.concatenate([a, b]), np.concatenate([b, a])), 1.0)
    covariance = np.linalg.inv(normal)
    v = covariance @ by_node(values)
    residuals = values - v[a] - v[b]
    leverage = covariance[a, a] + covariance[b, b] + 2 * covariance[a, b]
    free = np.clip(1 - leverage, 0.0, 1.0)
    total = float(free.sum())
    if total < _LEAST_DF:
        why = "no node met enough others to tell how far pairs deviate by themselves"
        unknown = (replace(effect, why=why) if fixed[effect.node] else effect for effect in effects)
        return NodeEffects(tuple(unknown), math.nan)
    pooled = max(float((residuals**2).sum()) / total, RESOLUTION**2)
    variance, freedom = moderated(by_node(residuals**2), by_node(free), pooled, total)
    # The median of n estimates has about π/2 times the variance of their mean.
    variances = np.maximum(np.diag(covariance), 1 / size)
    error = np.sqrt(variance * (variances + math.pi / 2 * float(variances.mean()) / size))
    centre = float(np.median(v))
    # Deletion of one pair (Cook and Weisberg 1982, section 2.2.1): how far it lies above what the
    # other meetings of its nodes predict. Of its only meeting a node has no prediction.
    known = free > 1e-9
    strays = np.divide(residuals, free, out=np.full(len(free), math.inf), where=known)
    added = np.full((2, len(free)), -math.inf)
    """What a node added to a pair, by what the partner adds elsewhere."""
    for side, (node, partner) in enumerate(((a, b), (b, a))):
        rest = (covariance[partner, partner] + covariance[a, b])[known] * strays[known]
        added[side, known] = v[node][known] + residuals[known] + rest
    least = math.log1p(margin)
    agreeing = _agreement(np.concatenate([a, b]), added.ravel() - centre - least, np.sort(strays))
    p = np.maximum(stdtr(freedom, (least - (v - centre)) / error), agreeing)
    half = error * stdtrit(freedom, 0.975)
    for index, node in enumerate(np.flatnonzero(fixed)):
        value, width = float(v[index]) - centre, float(half[index])
        effects[node] = NodeEffect(
            int(node), int(met[node]), value, value - width, value + width, float(p[index])
        )
    return NodeEffects(tuple(effects), math.sqrt(pooled))


def _agreement(node: NDArray[np.intp], beyond: Floats, strays: Floats) -> Floats:
    """Chance, for each node, that its meetings stray as far `beyond` the margin as they do.

    All of them, or all but one; the smaller of both chances counts twice. A pair strays as often as
    pairs did in this fleet (`strays`, sorted), whatever the distribution: so a few pairs that are
    far off by themselves accuse neither of their nodes.
    """
    beyond = beyond[np.lexsort((beyond, node))]
    meetings = np.bincount(node).astype(np.float64)
    first = np.concatenate([[0], np.cumsum(meetings)[:-1]]).astype(np.intp)
    # Never 0, as the fleet is a sample.
    above = strays.size - np.searchsorted(strays, beyond)
    share = (above + 1) / (strays.size + 1)
    all_met, next_met = share[first], share[np.minimum(first + 1, share.size - 1)]
    # Of all but one: a binomial's tail, from above.
    all_but_one = np.where(meetings > 1, meetings * next_met ** (meetings - 1), 1.0)
    return np.asarray(np.minimum(2 * np.minimum(all_met**meetings, all_but_one), 1.0))


def moderated(
    squares: Floats, freedom: Floats, pooled: float, total: float
) -> tuple[Floats, Floats]:
    """Variance of each node's pairs and its degrees of freedom, shapes (n,).

    `squares` are sums of squares with `freedom` degrees each. How much variances differ between
    nodes is told by how much their logarithms scatter beyond what chance makes (Smyth 2004,
    section 6.2); where they scatter no more, the `pooled` variance with `total` degrees serves all.
    """
    has_df = freedom >= _LEAST_DF
    half = freedom[has_df] / 2
    logs = np.log(np.maximum(squares[has_df] / freedom[has_df], RESOLUTION**2))
    logs += np.log(half) - digamma(half)
    enough = logs.size >= 3
    beyond = float(logs.var(ddof=1) - polygamma(1, half).mean()) if enough else 0.0
    if beyond <= 0:
        return np.full(len(squares), pooled), np.full(len(squares), total)
    # Half the prior's degrees of freedom: where trigamma is that much.
    prior_half = math.exp(brentq(lambda x: math.log(polygamma(1, math.exp(x)) / beyond), -50, 50))
    prior = math.exp(float(logs.mean()) + float(digamma(prior_half)) - math.log(prior_half))
    df = 2 * prior_half + freedom
    variance = (2 * prior_half * prior + squares) / df
    return np.maximum(variance, RESOLUTION**2), np.minimum(df, total)


def determined(nodes: int, pairs: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which nodes the pairs (m, 2) determine: those joined, by meetings, to a circle of odd length.

    Elsewhere the nodes fall into two sides that only ever met the other side: what one side adds
    more, the other may add less. So of each node there are two, one a side; every meeting joins
    the sides, and a circle of odd length joins a node with itself.
    """
    a, b = pairs.T
    ends = np.concatenate([a, b]), np.concatenate([b, a]) + nodes
    joined = coo_array((np.ones(len(ends[0])), ends), shape=(2 * nodes, 2 * nodes))
    _, group = connected_components(joined, directed=False)
    return np.asarray(group[:nodes] == group[nodes:])


def false_discovery(p: Sequence[float]) -> Floats:
    """Adjusted p values, shape as `p`: those at most q are claimed at a false discovery rate of q.

    Benjamini and Yekutieli 2001, theorem 1.3: under any dependence.
    """
    return np.asarray(false_discovery_control(p, method="by") if len(p) else p, dtype=np.float64)
