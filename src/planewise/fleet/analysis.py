"""Judges a fleet's nodes by its pairs: which are slow by which plane, and in what they differ."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planewise.errors import BadInputError
from planewise.fleet.plan import Fleet
from planewise.fleet.run import names
from planewise.judge.statistics.comparison import MARGIN
from planewise.judge.statistics.flips import ALPHA
from planewise.judge.statistics.metrics import Metric, Observation, RunSample, metrics_in, observe
from planewise.judge.statistics.nodes import NodeEffect, false_discovery, node_effects
from planewise.judge.statistics.runs import described_host
from planewise.store.models import Fingerprint, Level
from planewise.store.rundir import RunReader

USUAL = ("rtt", "rtt_p99", "throughput", "goodput", "transmitted")
"""Default metrics."""

Outcome = Literal["worse", "practically the same", "not known"]


@dataclass(frozen=True)
class NodeResult:
    """One node by one plane and metric."""

    node: str
    meetings: int
    """Number of its measured pairs."""
    change: float
    """Change of the metric in its pairs against the fleet's median node: 0.2 is 20 % more; NaN:
    not known."""
    low: float
    high: float
    """95 % interval of this node alone."""
    p: float
    """p-value, for this node, plane and metric, of being no worse than the margin."""
    p_fleet: float
    """Adjusted for all nodes, planes and metrics of the report."""
    outcome: Outcome
    why: str
    """Reason of *not known*; else empty."""


@dataclass(frozen=True)
class Ranking:
    """All nodes by one plane and metric, the worst first, unknown ones last."""

    plane: str
    metric: Metric
    typical: float
    """Median over pairs, in the metric's unit."""
    pair_deviation: float
    """Standard deviation of a pair from what its nodes predict, as a share; NaN: not known."""
    pairs: int
    bounds: int
    """Pairs with only a bound, which do not count."""
    nodes: tuple[NodeResult, ...]


@dataclass(frozen=True)
class NodeDifference:
    """A fact in which a node differs from most nodes."""

    what: str
    value: str
    usual: str
    """The value of most nodes."""
    shared_by: int
    """Number of nodes with its value, including itself."""
    worse_of_these: int
    """Number of these that are worse by some plane and metric."""


@dataclass(frozen=True)
class Outlier:
    """A node that is worse by some plane and metric."""

    node: str
    results: tuple[tuple[str, str, NodeResult], ...]
    """Plane, metric and result of each, the clearest first."""
    differences: tuple[NodeDifference, ...]
    """Rarest value first."""


@dataclass(frozen=True)
class Findings:
    """Results of the report."""

    title: str
    nodes: int
    pairs: int
    """Of the design."""
    measured: int
    failures: Mapping[int, str]
    margin: float
    alpha: float
    """False discovery rate over all results that are *worse*."""
    rankings: tuple[Ranking, ...]
    outliers: tuple[Outlier, ...]
    emulated: str
    """Why times are not those of hardware; empty when they are."""


def find(
    fleet: Fleet,
    metrics: Sequence[str] = (),
    *,
    margin: float = MARGIN,
    alpha: float = ALPHA,
) -> Findings:
    """Reads all run directories of a fleet and judges its nodes.

    Raises:
        BadInputError: no pair is measured, or a metric is not a ratio or does not exist.
    """
    samples, hosts, emulated = _read(fleet)
    if not samples:
        raise BadInputError(
            "no pair of this fleet is measured yet",
            where=str(fleet.path),
            remedy=f"planewise fleet run --resume {fleet.path}",
        )
    available = metrics_in(samples)
    found: list[tuple[Ranking, Sequence[NodeEffect]]] = []
    for name in metrics or [name for name in USUAL if name in available]:
        found += _rankings(fleet, samples, name, margin)
    rankings = _judged(found, fleet.plan.nodes, margin, alpha)
    return Findings(
        title=fleet.plan.title,
        nodes=len(fleet.plan.nodes),
        pairs=len(fleet.matches),
        measured=len(samples),
        failures=fleet.failures(),
        margin=margin,
        alpha=alpha,
        rankings=rankings,
        outliers=_outliers(rankings, hosts),
        emulated=emulated,
    )


def _read(fleet: Fleet) -> tuple[list[RunSample], dict[str, Fingerprint], str]:
    samples: list[RunSample] = []
    hosts: dict[str, Fingerprint] = {}
    emulated = ""
    for match in fleet.matches:
        if fleet.state(match) not in ("begun", "done"):
            continue
        reader = RunReader(fleet.directory(match))
        trials = reader.trials()
        if not trials:
            continue
        samples.append(RunSample(str(match.index), reader.info, trials))
        emulated = emulated or reader.info.emulated
        for role, node in zip(("sender", "responder"), names(fleet, match), strict=True):
            host = reader.info.hosts.get(role) or reader.info.hosts.get("shared")
            if host is not None:
                hosts[node] = host
    return samples, hosts, emulated


def _rankings(
    fleet: Fleet, samples: Sequence[RunSample], name: str, margin: float
) -> Iterable[tuple[Ranking, Sequence[NodeEffect]]]:
    """The ranking of pairs on each plane, before nodes are judged, and what pairs show of nodes."""
    observed = observe(samples, name)
    if not observed.metric.as_ratio:
        raise BadInputError(
            f"{name} may be 0, and nodes are compared by ratio",
            where="--metric",
            remedy=f"choose among {', '.join(USUAL)}, ndr, pdr, cpu_per_packet",
        )
    planes: dict[str, list[Observation]] = defaultdict(list)
    for observation in observed.observations:
        planes[str(observation.cell.get("plane", ""))].append(observation)
    for plane, observations in planes.items():
        exact = [
            observation
            for observation in observations
            if not observation.at_least and not observation.at_most
        ]
        values = _pair_values(exact, observed.metric.lower_is_better)
        ends = {str(match.index): (match.sender, match.responder) for match in fleet.matches}
        meetings = [(*ends[run], value) for run, value in values.items()]
        effects = node_effects(len(fleet.plan.nodes), meetings, margin=margin)
        measured = {observation.run for observation in observations}
        typical = statistics.median([one.value for one in exact]) if exact else math.nan
        deviation, bounds = math.expm1(effects.pair_deviation), len(measured) - len(values)
        ranking = Ranking(plane, observed.metric, typical, deviation, len(values), bounds, ())
        yield ranking, effects.nodes


def _pair_values(observations: Iterable[Observation], lower_is_better: bool) -> dict[str, float]:
    """The logarithm of each pair's value, adjusted for loads and other factors; larger is worse.

    The mean over cells of the median over blocks less the cell's median over all pairs. So a pair
    that lacks a cell is not taken to be faster or slower for it.
    """
    blocks: dict[tuple[tuple[str, Level], ...], dict[str, list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for observation in observations:
        if observation.value > 0:
            value = math.log(observation.value)
            cell = tuple(sorted(observation.cell.items()))
            blocks[cell][observation.run].append(value if lower_is_better else -value)
    shifts: dict[str, list[float]] = defaultdict(list)
    for pairs in blocks.values():
        values = {run: statistics.median(values) for run, values in pairs.items()}
        usual = statistics.median(values.values())
        for run, value in values.items():
            shifts[run].append(value - usual)
    return {run: statistics.fmean(values) for run, values in shifts.items()}


def _judged(
    found: Sequence[tuple[Ranking, Sequence[NodeEffect]]],
    names: Sequence[str],
    margin: float,
    alpha: float,
) -> tuple[Ranking, ...]:
    """The rankings with their nodes, worst first. The tests of all metrics are one family."""
    tests = [effect.p for _, effects in found for effect in effects]
    adjusted = iter(false_discovery(tests))
    judged = []
    for ranking, effects in found:
        sign = 1 if ranking.metric.lower_is_better else -1
        nodes = [
            _result(names[effect.node], effect, sign, float(next(adjusted)), margin, alpha)
            for effect in effects
        ]
        nodes.sort(
            key=lambda node: (math.isnan(node.change), node.p_fleet, -sign * node.change, node.node)
        )
        judged.append(replace(ranking, nodes=tuple(nodes)))
    return tuple(judged)


def _result(
    node: str, effect: NodeEffect, sign: int, p_fleet: float, margin: float, alpha: float
) -> NodeResult:
    """A node's result; `sign` is 1 where less of the metric is better."""
    low_first = (effect.low, effect.high)[::sign]
    change, low, high = (_exp(sign * end) - 1 for end in (effect.effect, *low_first))
    outcome: Outcome = "not known"
    why = effect.why
    if not why:
        if p_fleet <= alpha:
            outcome = "worse"
        elif -margin <= low and high <= margin:
            outcome = "practically the same"
        else:
            why = "its interval reaches beyond the margin"
    return NodeResult(node, effect.meetings, change, low, high, effect.p, p_fleet, outcome, why)


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def _outliers(rankings: Sequence[Ranking], hosts: Mapping[str, Fingerprint]) -> tuple[Outlier, ...]:
    worse: dict[str, list[tuple[str, str, NodeResult]]] = defaultdict(list)
    for ranking in rankings:
        for result in ranking.nodes:
            if result.outcome == "worse":
                worse[result.node].append((ranking.plane, ranking.metric.name, result))
    facts = {node: _facts(host) for node, host in hosts.items()}
    outliers = [
        Outlier(
            node,
            tuple(sorted(results, key=lambda result: result[2].p)),
            _differences(node, facts, frozenset(worse)),
        )
        for node, results in worse.items()
    ]
    return tuple(sorted(outliers, key=lambda outlier: outlier.results[0][2].p))


def _facts(host: Fingerprint) -> dict[str, str]:
    """Facts of a node: its fingerprint without names, and the doctor's warnings."""
    facts = {name: value for name, value in described_host(host) if name != "hostname"}
    for disturbance in host.disturbances:
        facts[f"the doctor's warning of {disturbance.name}"] = "yes"
    return facts


def _differences(
    node: str, facts: Mapping[str, Mapping[str, str]], worse: frozenset[str]
) -> tuple[NodeDifference, ...]:
    """Facts of a node whose value differs from that of the majority of nodes."""
    differences = []
    for what in dict.fromkeys(name for host_facts in facts.values() for name in host_facts):
        values = {name: host_facts.get(what, "none") for name, host_facts in facts.items()}
        usual, count = Counter(values.values()).most_common(1)[0]
        value = values.get(node, usual)
        if value == usual or 2 * count <= len(values):
            continue
        sharing = [name for name in values if values[name] == value]
        differences.append(
            NodeDifference(what, value, usual, len(sharing), len(worse.intersection(sharing)))
        )
    differences.sort(key=lambda fact: (fact.shared_by - fact.worse_of_these, fact.what))
    return tuple(differences)
