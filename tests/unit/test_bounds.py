"""No code path turns a bound into an exact value: from trials through metrics, comparisons, the
recommendation, the report's tables and the advice."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from planewise.advise.evidence import gather
from planewise.advise.forecast import forecast
from planewise.advise.model.capacity import ChainWorkload
from planewise.advise.recommend import rankings_of, recommend
from planewise.advise.table import cells
from planewise.advise.workload import Workload
from planewise.judge.bounded import Bound
from planewise.judge.statistics.comparison import Family, compare_levels
from planewise.judge.statistics.metrics import RunSample, observe
from planewise.judge.statistics.sentences import level_text, sentence
from planewise.report.data import RunData
from planewise.report.figure import PrintedNumber
from planewise.report.html import rankings
from planewise.store.models import TrialRecord
from planewise.store.recommendation import Recommendation
from tests.unit.test_recommend import info_with_host, load, rtt

PLANES = ("veth", "bridge")
LADDER = (1000.0, 2000.0, 4000.0)
BLOCKS = 9

KINDS: dict[str, tuple[float, tuple[str, ...]]] = {
    "exact": (3000.0, ()),
    "generator": (3000.0, ("generator",)),
    "ladder too short": (9000.0, ()),
    "below the ladder": (300.0, ()),
}
"""What a block's trials are like: the plane's capacity, and the limits of the highest trial."""
OF_THROUGHPUT: dict[str, Bound] = {"generator": "at least", "ladder too short": "at least"}
OF_NDR: dict[str, Bound] = {
    "generator": "at least",
    "ladder too short": "at least",
    "below the ladder": "at most",
}
Kinds = dict[str, list[str]]

runs = st.fixed_dictionaries(
    {
        plane: st.lists(st.sampled_from(sorted(KINDS)), min_size=BLOCKS, max_size=BLOCKS)
        | st.sampled_from(sorted(KINDS)).map(lambda kind: [kind] * BLOCKS)
        for plane in PLANES
    }
)
lost_probes = st.sampled_from((0, 0, 40))


def trials_of(kinds: Kinds, lost: int = 0) -> list[TrialRecord]:
    """RTT trials, of which the first plane loses probes, and a ladder a plane and block."""
    trials = []
    for plane in PLANES:
        for block, kind in enumerate(kinds[plane]):
            capacity, limits = KINDS[kind]
            # The generator ends where the plane does: what the plane can do is not seen.
            sent = [min(offered, capacity) if limits else offered for offered in LADDER]
            trials += [
                load(plane, block, offered, capacity + block, limits if offered == sent[-1] else ())
                for offered in dict.fromkeys(sent)
            ]
            trials.append(rtt(plane, "none", block, 10 + block / 9, lost * (plane == PLANES[0])))
    return trials


def family_of(trials: list[TrialRecord], metric: str) -> Family:
    return compare_levels(observe([RunSample("run", info_with_host(), trials)], metric), "plane")


@given(runs)
def test_metrics_say_of_each_block_whether_it_is_a_bound(kinds: Kinds) -> None:
    sample = RunSample("run", info_with_host(), trials_of(kinds))
    for metric, expected in (("throughput", OF_THROUGHPUT), ("ndr", OF_NDR)):
        for one in observe([sample], metric).observations:
            kind = kinds[str(one.cell["plane"])][one.block]
            assert one.bounded.bound == expected.get(kind, "exact"), (metric, kind)


@given(runs)
def test_comparisons_keep_bounds_open(kinds: Kinds) -> None:
    trials = trials_of(kinds)
    for metric, expected in (("throughput", OF_THROUGHPUT), ("ndr", OF_NDR)):
        family = family_of(trials, metric)
        bounds = {plane: [expected.get(kind, "exact") for kind in kinds[plane]] for plane in PLANES}
        for value in family.values:
            of_blocks = bounds[str(value.level)]
            most = max(of_blocks.count("at least"), of_blocks.count("at most"))
            assert (value.bound == "exact") == (most < BLOCKS / 2)
            if value.bound != "exact":
                assert level_text(value, family.metric).startswith(("at ", "not known"))
                assert value.low is None or value.high is None
        for one in family.comparisons:
            a, b = bounds[str(one.a)], bounds[str(one.b)]
            if "at least" in a or "at most" in b:
                assert one.high == math.inf
            if "at most" in a or "at least" in b:
                assert one.low in (-1.0, -math.inf)
            if {*a, *b} != {"exact"}:
                assert one.outcome != "practically the same"
            if one.bound != "exact" and one.outcome in ("better", "worse"):
                assert re.search(r" is (at least|at most) ", sentence(one, family))


@given(runs, lost_probes)
def test_the_recommendation_and_the_report_say_bounds(kinds: Kinds, lost: int) -> None:
    trials = trials_of(kinds, lost)
    advice = recommend(trials, info_with_host())
    metrics = {"forwarded": "throughput", "rtt_p50": "rtt", "rtt_p99": "rtt_p99"}
    for place in advice.ranking:
        if place.metric not in metrics or place.load_type != "all":
            continue
        family = family_of(trials, metrics[place.metric])
        value = family.value(place.plane)
        assert value is not None
        assert place.bound == value.bound
        (comparison,) = family.comparisons
        if place.effect is None:
            assert place.effect_bound == "exact"
        else:
            assert (place.effect_bound == "exact") == (comparison.bound == "exact")
        if place.bound != "exact":
            assert place.low is None or place.high is None
    told = " ".join((advice.headline, *advice.reasons))
    rates = {p.plane: p for p in advice.ranking if (p.metric, p.load_type) == ("forwarded", "all")}
    for plane, place in rates.items():
        for words in re.findall(
            rf"{plane} (?:forwards most, )?((?:at \w+ )?[\d.]+ [kM]?pps)", told
        ):
            assert words.startswith("at ") == (place.bound != "exact"), told
    for text, bound, effect in shown_in_report(advice):
        assert text.startswith(("at ", "not known")) == (bound != "exact")
        assert effect in ("exact", "") or "at least" in text or "at most" in text or "not" in text


def shown_in_report(advice: Recommendation) -> list[tuple[str, Bound, str]]:
    """The report's entries, the small print with them, and what they are bounds of."""
    by_text = []
    for title, table in rankings(cast("RunData", SimpleNamespace(recommendation=advice))):
        metric = {"Median": "rtt_p50", "99th": "rtt_p99", "Forwarding": "forwarded"}
        name = metric.get(title.split()[0], "cpu")
        for plane, entry, *_ in table.rows:
            (place,) = (
                p
                for p in advice.ranking
                if (p.metric, p.plane) == (name, plane) and p.load_type != "all"
            )
            assert isinstance(entry, PrintedNumber)
            effect = "" if place.note or place.effect is None else place.effect_bound
            by_text.append((f"{entry.text} {entry.small}", place.bound, effect))
    return by_text


@given(runs, lost_probes, st.floats(1e4, 1e5))
def test_an_advice_takes_no_bound_for_a_measurement_that_decides(
    kinds: Kinds, lost: int, goal_ns: float
) -> None:
    trials, info = trials_of(kinds, lost), info_with_host()
    rates = rankings_of(trials, info)["forwarded"]
    for evidence in gather("run", trials, info):
        workload = Workload(ChainWorkload("north-south", 1, 64), latency_ns=goal_ns)
        advised = forecast(None, [evidence], workload, evidence.plane)
        told = " ".join(statement.text for statement in advised.statements)
        rate = next(p for p in rates if (p.plane, p.load_type) == (evidence.plane, "none"))
        assert (f"guests: {rate.bound} " in told) == (rate.bound != "exact")
        (tail,) = evidence.tails
        assert (f"{tail.bound} " in cells(advised)[5]) == (tail.bound != "exact")
        if tail.bound == "exact":
            assert advised.meets_latency == (tail.value <= goal_ns)
        else:
            assert advised.meets_latency == (False if tail.value > goal_ns else None)
