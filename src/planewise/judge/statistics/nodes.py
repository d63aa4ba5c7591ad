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
from scipy.special import digamma, polygamma, stdtr, stdtrit

from planewise.judge.statistics.comparison import MARGIN

Floats = NDArray[np.float64]

RESOLUTION = 1e-3
"""Relative resolution of a latency histogram: a pair's value is known no better."""
_LEAST_DF = 0.5
"""Residual degrees of freedom of a node below which its own residuals say nothing."""


@dataclass(frozen=True)
class Meeting:
    """What one pair of nodes measured."""

    a: int
    b: int
    """Numbers of the nodes."""
    value: float
    """Logarithm of a quantity that is worse when it is larger."""


@dataclass(frozen=True)
class NodeEffect:
    """What a node adds to its pairs, against the fleet's median node; in logarithms."""

    node: int
    meetings: int
    effect: float
    """NaN where the meetings do not tell the node from its partners."""
    low: float
    high: float
    """95 % interval of this node alone; infinite where nothing is known."""
    p: float
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


def node_effects(nodes: int, meetings: Sequence[Meeting], *, margin: float = MARGIN) -> NodeEffects:
    """What each of `nodes` adds, with its interval and its p value against `margin`."""
    pairs = np.array([(meeting.a, meeting.b) for meeting in meetings], dtype=np.intp).reshape(-1, 2)
    values = np.array([meeting.value for meeting in meetings], dtype=np.float64)
    met = np.bincount(pairs.ravel(), minlength=nodes)
    fixed = determined(nodes, pairs)
    used = fixed[pairs[:, 0]]  # both nodes of a pair are determined, or neither
    effects = [_unknown(node, int(met[node])) for node in range(nodes)]
    if not used.any():
        return NodeEffects(tuple(effects), math.nan)
    ends = (np.cumsum(fixed) - 1)[pairs[used]]
    fit = _fit(int(fixed.sum()), ends, values[used])
    if not math.isfinite(fit.deviation):
        why = "no node met enough others to tell how far pairs deviate by themselves"
        effects = [replace(effect, why=why) if fixed[effect.node] else effect for effect in effects]
        return NodeEffects(tuple(effects), math.nan)
    alone = stdtr(fit.freedom, (math.log1p(margin) - fit.effect) / fit.error)
    p = np.maximum(alone, fit.agreement(math.log1p(margin)))
    half = fit.error * stdtrit(fit.freedom, 0.975)
    for index, node in enumerate(np.flatnonzero(fixed)):
        value = float(fit.effect[index])
        low, high = value - float(half[index]), value + float(half[index])
        effects[node] = NodeEffect(int(node), int(met[node]), value, low, high, float(p[index]))
    return NodeEffects(tuple(effects), fit.deviation)


def _unknown(node: int, meetings: int) -> NodeEffect:
    why = (
        "its meetings do not tell it from its partners: it needs more of them"
        if meetings
        else "none of its pairs was measured"
    )
    return NodeEffect(node, meetings, math.nan, -math.inf, math.inf, 1.0, why)


@dataclass(frozen=True)
class _Fit:
    """Arrays of shape (n,), one entry a node that is determined."""

    effect: Floats
    error: Floats
    """Standard error."""
    freedom: Floats
    """Degrees of freedom of the error."""
    deviation: float
    """Standard deviation of a pair from the sum of its nodes."""
    least: tuple[Floats, Floats]
    """What a node added, by what the partner adds elsewhere, in the meeting in which that is least,
    and in the next; against the median node."""
    meetings: Floats
    strays: Floats
    """(m,) How far each pair lies above what the other meetings of its nodes predict; sorted."""

    def agreement(self, margin: float) -> Floats:
        """Chance, shape (n,), that a node's meetings stray as far as they do beyond `margin`.

        All of them, or all but one; the smaller of both chances counts twice. A pair strays as
        often as pairs did in this fleet, whatever the distribution: so a few pairs that are far off
        by themselves accuse neither of their nodes.
        """
        k = self.meetings
        share, next_share = (self._share_above(added - margin) for added in self.least)
        all_but_one = np.where(k > 1, k * next_share ** (k - 1), 1.0)  # binomial tail, from above
        return np.asarray(np.minimum(2 * np.minimum(share**k, all_but_one), 1.0))

    def _share_above(self, value: Floats) -> Floats:
        """Share of pairs that stray beyond each value; never 0, as the fleet is a sample."""
        above = self.strays.size - np.searchsorted(self.strays, value)
        return np.asarray((above + 1) / (self.strays.size + 1))


def _fit(nodes: int, ends: NDArray[np.intp], values: Floats) -> _Fit:
    """Least squares of values (m,) on the two nodes of each of m pairs, `ends` (m, 2)."""
    normal = np.zeros((nodes, nodes))
    a, b = ends[:, 0], ends[:, 1]
    for row, column in ((a, a), (b, b), (a, b), (b, a)):
        np.add.at(normal, (row, column), 1.0)
    covariance = np.linalg.inv(normal)
    v = covariance @ np.bincount(ends.ravel(), np.repeat(values, 2), minlength=nodes)
    residuals = values - v[a] - v[b]
    leverage = covariance[a, a] + covariance[b, b] + 2 * covariance[a, b]
    free = np.clip(1 - leverage, 0.0, 1.0)
    total = float(free.sum())
    variances = np.maximum(np.diag(covariance), 1 / nodes)
    # The median of n estimates has about π/2 times the variance of their mean.
    scale = variances + math.pi / 2 * float(variances.mean()) / nodes
    centre = float(np.median(v))
    if total < _LEAST_DF:
        unknown = np.full(nodes, math.nan)
        return _Fit(v - centre, unknown, unknown, math.nan, (unknown, unknown), unknown, unknown)
    squares, freedom = (
        np.bincount(ends.ravel(), np.repeat(of_pairs, 2), minlength=nodes).astype(np.float64)
        for of_pairs in (residuals**2, free)
    )
    pooled = max(float((residuals**2).sum()) / total, RESOLUTION**2)
    variance, df = moderated(squares, freedom, pooled, total)
    # Deletion of one pair (Cook and Weisberg 1982, section 2.2.1); of its only meeting a node has
    # no prediction, and infinity says so.
    with np.errstate(divide="ignore", invalid="ignore"):
        strays = np.where(free > 1e-9, residuals / free, math.inf)
    met = np.concatenate([a, b])
    added = np.concatenate(
        [
            np.where(
                free > 1e-9,
                v[node] + residuals + (covariance[partner, partner] + covariance[a, b]) * strays,
                -math.inf,
            )
            for node, partner in ((a, b), (b, a))
        ]
    )
    added = added[np.lexsort((added, met))] - centre
    meetings = np.bincount(ends.ravel(), minlength=nodes).astype(np.float64)
    first = np.concatenate([[0], np.cumsum(meetings)[:-1]]).astype(np.intp)
    least = (added[first], added[np.minimum(first + 1, added.size - 1)])
    error = np.sqrt(variance * scale)
    return _Fit(v - centre, error, df, math.sqrt(pooled), least, meetings, np.sort(strays))


def moderated(
    squares: Floats, freedom: Floats, pooled: float, total: float
) -> tuple[Floats, Floats]:
    """Variance of each node's pairs and its degrees of freedom, shapes (n,).

    `squares` are sums of squares with `freedom` degrees each. How much variances differ between
    nodes is told by how much their logarithms scatter beyond what chance makes (Smyth 2004,
    section 6.2); where they scatter no more, the `pooled` variance with `total` degrees serves all.
    """
    has_df = freedom >= _LEAST_DF
    prior, prior_df = pooled, math.inf
    if has_df.sum() >= 3:
        half = freedom[has_df] / 2
        logs = np.log(np.maximum(squares[has_df] / freedom[has_df], RESOLUTION**2))
        logs += np.log(half) - digamma(half)
        beyond = float(logs.var(ddof=1) - polygamma(1, half).mean())
        if beyond > 0:
            prior_df = 2 * _inverse_trigamma(beyond)
            prior = math.exp(
                float(logs.mean()) + float(digamma(prior_df / 2)) - math.log(prior_df / 2)
            )
    if math.isinf(prior_df):
        return np.full(len(squares), pooled), np.full(len(squares), total)
    df = prior_df + freedom
    variance = (prior_df * prior + squares) / df
    return np.maximum(variance, RESOLUTION**2), np.minimum(df, total)


def _inverse_trigamma(value: float) -> float:
    """x with trigamma(x) = value, by Newton's method (Smyth 2004, appendix)."""
    if value > 1e7:
        return 1 / math.sqrt(value)
    if value < 1e-6:
        return 1 / value
    x = 0.5 + 1 / value
    for _ in range(50):
        trigamma = float(polygamma(1, x))
        step = trigamma * (1 - trigamma / value) / float(polygamma(2, x))
        x += step
        if -step / x < 1e-8:
            break
    return x


def determined(nodes: int, pairs: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which nodes the pairs (m, 2) determine: those joined, by meetings, to a circle of odd length.

    Elsewhere the nodes fall into two sides that only ever met the other side: what one side adds
    more, the other may add less.
    """
    partners: list[list[int]] = [[] for _ in range(nodes)]
    for a, b in pairs.tolist():
        partners[a].append(b)
        partners[b].append(a)
    result = np.zeros(nodes, dtype=np.bool_)
    side: dict[int, bool] = {}
    for start in range(nodes):
        if start in side:
            continue
        side[start], queue, odd = True, [start], False
        for node in queue:
            for partner in partners[node]:
                if partner not in side:
                    side[partner] = not side[node]
                    queue.append(partner)
                odd |= side[partner] == side[node]
        result[queue] = odd
    return result


def false_discovery(p: Sequence[float]) -> Floats:
    """Adjusted p values, shape as `p`: those at most q are claimed at a false discovery rate of q.

    Benjamini and Yekutieli 2001, theorem 1.3: under any dependence.
    """
    values = np.asarray(p, dtype=np.float64)
    if not values.size:
        return values
    order = np.argsort(values)
    ranks = np.arange(1, values.size + 1)
    raised = values[order] * float((1 / ranks).sum()) * values.size / ranks
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.minimum.accumulate(raised[::-1])[::-1], 1.0)
    return adjusted
