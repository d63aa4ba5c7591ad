"""The map of a fleet: every node as a square, by one plane and metric."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from planewise.fleet.analysis import NodeResult, Ranking
from planewise.judge.statistics.metrics import Metric
from planewise.report import theme, vega
from planewise.report.figure import Entry, Figure, Missing, PrintedNumber, Table, slug
from planewise.report.vega import Row, Span, Spec
from planewise.units import percent_text

MOST_ROWS = 60
"""Most nodes in the table beside the map; --json has all."""


def fleet_map(ranking: Ranking, margin: float) -> Figure:
    """Every node by one plane and metric, by name; the table is in the order of the ranking."""
    plane, metric, nodes = ranking.plane, ranking.metric.title, ranking.nodes
    worse = [node for node in nodes if node.outcome == "worse"]
    title = f"{metric[:1].upper()}{metric[1:]}, {plane}"
    share = percent_text(margin)
    lead = (
        f"{len(worse)} of {len(nodes)} nodes are worse than the median node by more than {share}: "
        f"{', '.join(node.node for node in worse[:5])}{' and others' if worse[5:] else ''}"
        if worse
        else f"of {len(nodes)} nodes none is known to be worse than the median by over {share}"
    )

    rows = _squares(ranking, margin)
    present = {row["class"] for row in rows}
    return Figure(
        name=f"fleet-{slug(plane)}-{slug(metric)}",
        title=title,
        lead=lead,
        caption="A square is a node, in the order of names from the left and from above. Its "
        "colour says how its pairs compare with those of the median node.",
        panels=(_panel(rows),),
        table=_table(nodes),
        key={name: _COLOURS[name] for name in _COLOURS if name in present},
    )


WORSE, ABOVE, WITHIN, BELOW, UNKNOWN = (
    "known to be worse",
    "above the margin, not known",
    "within the margin",
    "better than the margin",
    "not determined",
)
_COLOURS = {
    WORSE: theme.var("alert"),
    ABOVE: theme.var("responder"),
    WITHIN: theme.var("line"),
    BELOW: theme.var("wire"),
    UNKNOWN: theme.var("instrument"),
}


def _class(node: NodeResult, metric: Metric, margin: float) -> str:
    if node.outcome == "worse":
        return WORSE
    if math.isnan(node.change):
        return UNKNOWN
    worsening = node.change if metric.lower_is_better else -node.change
    if worsening > margin:
        return ABOVE
    return BELOW if worsening < -margin else WITHIN


def _squares(ranking: Ranking, margin: float) -> list[Row]:
    """A square a node, in lines of equal length."""
    nodes = sorted(ranking.nodes, key=lambda node: _natural(node.node))
    across = max(10, math.ceil(math.sqrt(len(nodes))))
    return [
        {
            "x": number % across + 0.5,
            "y": number // across + 0.5,
            "class": _class(node, ranking.metric, margin),
            "hover": f"{node.node}: {_change(node)}",
        }
        for number, node in enumerate(nodes)
    ]


def _panel(rows: Sequence[Row]) -> Spec:
    across, down = (math.ceil(max(row[way] for row in rows)) for way in ("x", "y"))
    side = min(26.0, vega.WIDTH / across)
    place: dict[str, Spec] = {
        way: {"field": way, "type": "quantitative", "scale": Span(*ends).scale, "axis": None}
        for way, ends in (("x", (0.0, across)), ("y", (down, 0.0)))
    }
    encoding = {**place, "color": vega.coloured("class", _COLOURS)}
    squares = vega.mark("square", rows, encoding, hover=True, size=(side - 2) ** 2, opacity=1)
    return vega.panel([squares], "", width=across * side, height=down * side)


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """A sort key in which node 9 comes before node 10."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)


def _change(node: NodeResult) -> str:
    return "not known" if math.isnan(node.change) else f"{node.change:+.1%}".replace("%", " %")


def _table(nodes: Sequence[NodeResult]) -> Table:
    rows: list[tuple[Entry, ...]] = []
    for node in nodes[:MOST_ROWS]:
        change: Entry = Missing(node.why)
        if not math.isnan(node.change):
            interval = f"{node.low:+.1%} to {node.high:+.1%}".replace("%", " %")
            change = PrintedNumber(_change(node), node.change, small=interval)
        meetings = PrintedNumber.count(node.meetings)
        rows.append((node.node, change, meetings, node.outcome))
    if len(nodes) > MOST_ROWS:
        more = f"{len(nodes) - MOST_ROWS} more nodes: --json lists them"
        rows.append((more, Missing(""), Missing(""), ""))
    return Table(("Node", "Against the median node", "Meetings", "Outcome"), tuple(rows))
