"""`planewise compare`: the levels of any factor, by any metric, on replicates, in plain words."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from planewise.commands import console, readings
from planewise.commands.options import JsonOption, MarginOption, WideOption
from planewise.units import percent_text, time_text

if TYPE_CHECKING:
    from planewise.judge.analysis import Analysis
    from planewise.judge.statistics.comparison import Comparison, Family
    from planewise.judge.statistics.metrics import Metric
    from planewise.judge.statistics.pooled import PooledTest
    from planewise.judge.statistics.ranking import RankingCheck
    from planewise.store.models import Level


def compare(
    runs: Annotated[
        list[Path],
        Argument(
            metavar="RUN|FILE", help="Run directories, analysed together, or files of other tools."
        ),
    ],
    factor: Annotated[
        str,
        Option(
            help="Factor to compare; `run` compares runs, `series` planes together with those "
            "of their background guests."
        ),
    ] = "plane",
    metric: Annotated[
        list[str] | None,
        Option(
            help="Such as rtt, rtt_p99, loss, throughput, pdr, goodput, cpu[:HOST[:MODE]], or "
            "all; may be repeated. A wrong name lists them.",
            show_default="rtt",
        ),
    ] = None,
    by: Annotated[
        str | None,
        Option(
            help="Factor by whose levels results are compared separately (default: the load's "
            "location)."
        ),
    ] = None,
    baseline: Annotated[str | None, Option(help="Compare every level with this one only.")] = None,
    margin: MarginOption = 0.05,
    tails: Annotated[
        bool, Option("--tails", help="Also compare the 99th and 99.9th percentiles of RTT.")
    ] = False,
    kendall: Annotated[
        bool, Option("--kendall", help="Also print Kendall's tau-b of each level with the metric.")
    ] = False,
    as_published: Annotated[
        bool,
        Option(
            "--as-published",
            help="Also run the publications' tests, on pooled readings of RTT and CPU; prints a "
            "warning.",
        ),
    ] = False,
    wide: WideOption = False,
    json: JsonOption = False,
) -> None:
    """Compare planes, or the levels of any other factor.

    Pairs are made within blocks, with all else alike. The answer is better, worse, practically the
    same, or not known. Files of other tools are compared by each quantity that they share; files in
    several folders are runs of their folder.
    """
    if any(run.is_file() for run in runs):
        readings.compare(runs, margin, json=json)
        return
    # Thousands of small products: threads that wait for each other cost five times their work.
    # numpy reads this when it is loaded, which is below.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    metrics = list(metric or [])
    if tails:
        metrics += ["rtt", "rtt_p99", "rtt_p999"]
    from planewise.judge.analysis import Question, analyse

    question = Question(factor, tuple(metrics), by, baseline, margin)
    analysis = analyse(runs, question, as_published=as_published)
    if json:
        console.print_json(_as_json(analysis))
    else:
        _print(analysis, kendall=kendall, wide=wide)


# --- for people ---------------------------------------------------------------------------------


def _print(analysis: Analysis, *, kendall: bool, wide: bool) -> None:
    out = console.out()
    for place, (family, ranking) in enumerate(
        zip(analysis.families, analysis.rankings, strict=True)
    ):
        if place:
            out.print()
        _print_family(family, ranking, kendall=kendall, wide=wide)
    if analysis.pooled is not None:
        _print_pooled(analysis.pooled)
    lines = [*_run_sentences(analysis), *analysis.notes]
    if lines:
        out.print()
        console.print_items(out, lines)


def _run_sentences(analysis: Analysis) -> list[str]:
    if not analysis.differences:
        if len(analysis.samples) > 1:
            return ["The runs' hosts, designs and versions are alike as far as they are known."]
        return []
    lines = [difference.sentence for difference in analysis.differences]
    factors = {name for sample in analysis.samples for name in sample.extra}
    if any(family.factor in factors for family in analysis.families):
        lines.append(
            "A difference between runs may come from any of these, or from what nobody recorded. "
            "One run of each does not show how much runs vary: measure each twice."
        )
    return lines


def _print_family(
    family: Family, ranking: RankingCheck | None, *, kendall: bool, wide: bool
) -> None:
    from planewise.judge.statistics.sentences import level_text, summary

    out = console.out()
    metric = family.metric
    for level, reason in family.not_measurable.items():
        out.print(f"{metric.title} of {level} is not measurable: {reason}.")
    several = len(family.strata) > 1

    def by_stratum(title: str, cell: Callable[[Level, str], str]) -> None:
        console.print_rows(
            (title, *(family.strata if several else ("",))),
            [
                (str(level), *(cell(level, stratum) for stratum in family.strata))
                for level in family.levels
            ],
        )

    def value(level: Level, stratum: str) -> str:
        known = family.value(level, stratum)
        return level_text(known, metric) if known else "not measured"

    def tau(level: Level, stratum: str) -> str:
        bar = next(b for b in family.kendall if (b.level, b.stratum) == (level, stratum))
        if bar.correlation is None:
            return "none"
        ends = (bar.correlation.tau, bar.correlation.low, bar.correlation.high)
        return "{:+.2f} ({:+.2f} to {:+.2f})".format(*ends)

    by_stratum(metric.title, value)
    if family.comparisons:
        out.print()
        titles = ("compared", "answer", "change", "95 % interval", "effect", "p (family)", "blocks")
        skipped = 0 if several else 1
        console.print_rows(
            (family.by.replace("_", " "), *titles)[skipped:],
            [_cells(comparison, metric)[skipped:] for comparison in family.comparisons],
            less=("blocks", "p (family)", "effect"),
            wide=wide,
        )
    if kendall:
        out.print()
        by_stratum("Kendall's tau-b", tau)
    if family.notes:
        out.print()
    console.print_items(out, family.notes)
    out.print()
    if ranking is not None:
        out.print(ranking.sentence)
    for line in summary(family):
        out.print(line, style="bold" if line[:3] != "But" else None)


def _cells(comparison: Comparison, metric: Metric) -> tuple[str, ...]:
    from planewise.judge.statistics.sentences import bound_text, change_text

    ends = (comparison.change, comparison.low, comparison.high)
    change, low, high = (change_text(end, comparison, metric) for end in ends)
    return (
        comparison.stratum,
        f"{comparison.a} – {comparison.b}",
        comparison.outcome,
        bound_text(comparison.bound, change),
        "too few blocks" if low == high == "unbounded" else f"{low} to {high}",
        f"{comparison.rank_biserial:+.2f}",
        "< 0.0001" if comparison.p_family < 0.0001 else f"{comparison.p_family:.4f}",
        str(comparison.blocks),
    )


def _print_pooled(pooled: tuple[PooledTest, ...]) -> None:
    from planewise.judge.statistics.pooled import WARNING

    def shift(test: PooledTest) -> str:
        if test.metric == "rtt":
            return time_text(test.median_shift)
        points = percent_text(test.median_shift, signed=True).removesuffix("%").strip()
        return f"{points} points"

    out = console.out()
    out.print(f"\nwarning: {WARNING}\n")
    titles = ("as published", "metric", "compared", "pairs", "median shift", "p", "Kendall's tau-b")
    console.print_rows(
        titles,
        [
            (
                test.stratum,
                test.metric,
                f"{test.a} – {test.b}",
                str(test.pairs),
                shift(test),
                f"{test.p:.3g}" if test.log10_p > -300 else f"10^{test.log10_p:.0f}",
                f"{test.tau:+.3f}",
            )
            for test in pooled
        ],
    )


# --- for programs -------------------------------------------------------------------------------


def _as_json(analysis: Analysis) -> dict[str, object]:
    from planewise.judge.statistics.pooled import WARNING

    pooled = analysis.pooled and {
        "warning": WARNING,
        "tests": [
            {
                **asdict(test),
                "unit": "ns" if test.metric == "rtt" else "share",
                "p": test.p,
                "kendall_tau_b": test.tau,
            }
            for test in analysis.pooled
        ],
    }
    return {
        "runs": [
            {"label": sample.label, "path": str(path), "run": sample.info.run}
            for path, sample in zip(analysis.paths, analysis.samples, strict=True)
        ],
        "differences": [
            {"what": difference.what, "values": dict(difference.values)}
            for difference in analysis.differences
        ],
        "families": list(map(_family_json, analysis.families, analysis.rankings)),
        "as_published": pooled,
        "notes": [*_run_sentences(analysis), *analysis.notes],
    }


def _family_json(family: Family, ranking: RankingCheck | None) -> dict[str, object]:
    from planewise.judge.statistics.sentences import sentence

    metric, sending = family.metric, family.metric.sending
    of_family = ("factor", "by", "levels", "strata", "scale", "notes")
    of_metric = ("title", "unit", "lower_is_better")
    of_sending = ("frequency_pps", "pattern", "application")
    return {
        **{name: getattr(family, name) for name in of_family},
        "metric": metric.name,
        **{name: getattr(metric, name) for name in of_metric},
        **{name: getattr(sending, name, None) for name in of_sending},
        "not_measurable": {str(level): why for level, why in family.not_measurable.items()},
        "values": [asdict(value) for value in family.values],
        "comparisons": [
            {**asdict(comparison), "sentence": sentence(comparison, family)}
            for comparison in family.comparisons
        ],
        "kendall": [
            {
                "level": bar.level,
                "stratum": bar.stratum,
                **(asdict(bar.correlation) if bar.correlation else {"tau": None}),
            }
            for bar in family.kendall
        ],
        "ranking": asdict(ranking) if ranking else None,
    }
