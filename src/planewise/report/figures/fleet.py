"""The map of a fleet: every node as a square, by one plane and metric. Knows no run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from planewise.report import theme
from planewise.report.figures import vega
from planewise.report.figures.base import WIDE, Entry, Figure, Missing, Table, Value, slug
from planewise.report.figures.vega import Row, Span, Spec

MOST_ROWS = 60
"""Nodes that the table beside the map lists; --json has all."""


@dataclass(frozen=True)
class Place:
    """A node on the map."""

    node: str
    change: float
    """Of the metric against the median node, as a share; NaN: not known."""
    low: float
    high: float
    worsening: float
    """The same as a share that is positive where it is for the worse."""
    meetings: int
    outcome: str
    why: str


def fleet_map(
    plane: str, metric: str, places: Sequence[Place], margin: float, virtual: str = ""
) -> Figure:
    """`places` in the order of the ranking, the worst first; the map is in the order of names."""
    worse = [place for place in places if place.outcome == "worse"]
    title = f"{metric[:1].upper()}{metric[1:]}, {plane}"
    share = theme.share(margin)
    lead = (
        f"{len(worse)} of {len(places)} nodes are worse than the median node by more than {share}: "
        f"{', '.join(place.node for place in worse[:5])}{' and others' if worse[5:] else ''}"
        if worse
        else f"of {len(places)} nodes none is known to be worse than the median by over {share}"
    )

    def draw(width: int) -> Spec:
        return _draw(places, margin, width)

    return Figure(
        name=f"fleet-{slug(plane)}-{slug(metric)}",
        title=title,
        lead=lead,
        caption="A square is a node, in the order of names from the left and from above. Its "
        "colour says how its pairs compare with those of the median node.",
        alt=f"Map of {len(places)} nodes. {lead}.",
        draw=draw,
        table=_table(places),
        virtual=virtual,
    )


WORSE, ABOVE, WITHIN, BELOW, UNKNOWN = (
    "known to be worse",
    "above the margin, not known",
    "within the margin",
    "better than the margin",
    "not determined",
)
_COLOURS = {
    WORSE: theme.ALERT.light,
    ABOVE: theme.PARTS["responder"].light,
    WITHIN: theme.GRID.light,
    BELOW: theme.PARTS["wire"].light,
    UNKNOWN: theme.PARTS["instrument"].light,
}


def _class(place: Place, margin: float) -> str:
    if place.outcome == "worse":
        return WORSE
    if math.isnan(place.worsening):
        return UNKNOWN
    if place.worsening > margin:
        return ABOVE
    return BELOW if place.worsening < -margin else WITHIN


def _draw(places: Sequence[Place], margin: float, width: int) -> Spec:
    room = width - 16
    side = max(8, min(26, int(room / math.sqrt(max(1, len(places)) * (2 if width >= WIDE else 1)))))
    across = max(1, room // side)
    rows: list[Row] = []
    for number, place in enumerate(sorted(places, key=lambda place: _natural(place.node))):
        rows.append(
            {
                "x": number % across + 0.5,
                "y": number // across + 0.5,
                "class": _class(place, margin),
                "hover": f"{place.node}: {_change(place)}",
            }
        )
    down = -(-len(places) // across)
    encoding = {
        "x": vega.quantitative("x", Span(0, across, log=False)),
        "y": vega.quantitative("y", Span(down, 0, log=False)),
        "color": vega.coloured("class", _COLOURS),
    }
    squares = vega.mark("square", rows, encoding, hover=True, size=(side - 2) ** 2, opacity=1)
    chart = vega.layers([squares], width=across * side, height=down * side)
    present = {row["class"] for row in rows}
    key = vega.key({name: _COLOURS[name] for name in _COLOURS if name in present}, room)
    return vega.finish(vega.below([key, chart], spacing=12))


def _natural(name: str) -> tuple[tuple[bool, int, str], ...]:
    """A sort key in which node 9 comes before node 10."""
    parts: list[str] = []
    for letter in name:
        if parts and parts[-1].isdigit() == letter.isdigit():
            parts[-1] += letter
        else:
            parts.append(letter)
    return tuple((part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts)


def _change(place: Place) -> str:
    return "not known" if math.isnan(place.change) else f"{place.change:+.1%}".replace("%", " %")


def _table(places: Sequence[Place]) -> Table:
    rows: list[tuple[Entry, ...]] = []
    for place in places[:MOST_ROWS]:
        change: Entry = Missing(place.why)
        if not math.isnan(place.change):
            interval = f"{place.low:+.1%} to {place.high:+.1%}".replace("%", " %")
            change = Value(_change(place), place.change, small=interval)
        meetings = Value(theme.count(place.meetings), place.meetings)
        rows.append((place.node, change, meetings, place.outcome))
    if len(places) > MOST_ROWS:
        rest = f"{len(places) - MOST_ROWS} more nodes: --json lists them"
        rows.append((rest, Missing(""), Missing(""), ""))
    return Table(("Node", "Against the median node", "Meetings", "Outcome"), tuple(rows))
