"""A fleet's findings in words, and their page. Reads nothing."""

from __future__ import annotations

from pathlib import Path

from planewise.fleet.analysis import Findings, NodeResult, Outlier
from planewise.fleet.map import fleet_map
from planewise.report import html
from planewise.store.files import write_file
from planewise.units import percent_text

MOST_DIFFERENCES = 8
"""Most differences of an outlier that are shown; --json has all."""


def headline(findings: Findings) -> str:
    """The answer in one sentence."""
    worse = [outlier.node for outlier in findings.outliers]
    margin = percent_text(findings.margin)
    if worse:
        named = f"{', '.join(worse[:5])}{f' and {len(worse) - 5} more' if worse[5:] else ''}"
        verb = "are" if len(worse) > 1 else "is"
        return (
            f"of {findings.nodes} nodes {named} {verb} worse than the median node by more than "
            f"{margin}; at most {percent_text(findings.alpha)} of such claims are expected to be "
            "false"
        )
    unknown = sum(
        all(result.change != result.change for result in results)
        for results in _by_node(findings).values()
    )
    tail = f"; of {unknown} nothing is known" if unknown else ""
    return (
        f"none of {findings.nodes} nodes is known to be worse than the median node by more than "
        f"{margin}{tail}"
    )


def _by_node(findings: Findings) -> dict[str, list[NodeResult]]:
    nodes: dict[str, list[NodeResult]] = {}
    for ranking in findings.rankings:
        for result in ranking.nodes:
            nodes.setdefault(result.node, []).append(result)
    return nodes


def result_text(plane: str, metric: str, result: NodeResult) -> str:
    """One plane and metric of a node: `rtt on vf: 31 % more in its pairs (26 % to 36 %)`."""
    more = "more" if result.change > 0 else "less"
    ends = sorted((abs(result.low), abs(result.high)))
    return (
        f"{metric} on {plane}: {percent_text(abs(result.change))} {more} in its pairs than in "
        f"those of the median node ({percent_text(ends[0])} to {percent_text(ends[1])}; "
        f"{result.meetings} pairs)"
    )


def sentences(outlier: Outlier) -> list[str]:
    """Sentences on a node that is worse."""
    texts = [result_text(*result) for result in outlier.results]
    for difference in outlier.differences[:MOST_DIFFERENCES]:
        clause = (
            "no other node has that"
            if difference.shared_by == 1
            else f"{difference.shared_by} nodes have that, "
            f"{difference.worse_of_these} of them worse"
        )
        texts.append(
            f"{difference.what} is {difference.value}, on most nodes {difference.usual}; {clause}"
        )
    if not outlier.differences:
        texts.append("its fingerprint is like that of most nodes")
    return texts


def render(findings: Findings) -> str:
    """The page as HTML text; it loads nothing."""
    maps = [fleet_map(ranking, findings.margin) for ranking in findings.rankings]
    page = html.filled(
        "fleet.html.j2",
        findings=findings,
        title=findings.title or "Which nodes are slow?",
        headline=headline(findings),
        sentences=sentences,
        figures=html.drawn(maps),
    )
    return html.unbroken(page)


def write(findings: Findings, file: Path) -> None:
    """Writes the page, as a whole or not at all. PlanewiseError when it cannot."""
    write_file(file, render(findings).encode())
