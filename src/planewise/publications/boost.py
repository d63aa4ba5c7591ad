"""Publication F's figure 5 from a run: what the faster plane saves, by packet rate.

Knows gains; checks no claim.
"""

from __future__ import annotations

import math

from planewise.advise.gain import Gain, GainRow, gain_of
from planewise.errors import BadInputError
from planewise.judge.statistics import RunSample
from planewise.publications.answers import AskedRun
from planewise.publications.claims import GainOf
from planewise.report import charts, facets, theme
from planewise.report.facets import Item
from planewise.report.figure import Figure, PrintedNumber, Table
from planewise.report.sections import guests
from planewise.report.sections.guests import Point
from planewise.store.cells import Naming
from planewise.units import percent_text, rate_text


def boost_figure(claim: GainOf, run: AskedRun) -> Figure | None:
    """Boost by packet rate, a line a frame size; None where the run lacks the planes."""
    planes = {str(trial.cell.get("plane")) for trial in run.trials}
    fast = next((plane for plane in (claim.fast, claim.stand_in) if plane in planes), None)
    if fast is None or claim.slow not in planes:
        return None
    try:
        gain = gain_of(RunSample(run.info.run, run.info, run.trials), claim.slow, fast)
    except BadInputError:
        return None
    return figure(gain)


def figure(gain: Gain) -> Figure:
    """The saved share of the median round-trip time, as publication F draws it."""
    rows = sorted(gain.rows, key=lambda row: (row.size_bytes, row.frequency_pps))
    items = [Item(_size(row), (("frequency_pps", row.frequency_pps),), _point(row)) for row in rows]
    (panel,) = facets.split(items, Naming([]), "frequency_pps").panels
    span = guests.span_of(item.content for item in items)
    colours = theme.colours_of(dict.fromkeys(item.series for item in items))
    best = max(rows, key=lambda row: row.boost.value)
    lead = (
        f"Most is saved with {_size(best)} at {rate_text(best.frequency_pps)}: "
        f"{percent_text(best.boost.value)}."
    )
    return Figure(
        name="boost",
        title=f"Round-trip time that {gain.fast} saves over {gain.slow}, by packet rate",
        caption=(
            "1 − fast/slow of the medians, the median over blocks; thin line: its 95 % interval by "
            f"order statistics. Below zero {gain.fast} is slower. The axis upwards is {span.word}."
        ),
        alt=f"Lines of the share of round-trip time saved, by packet rate. {lead}",
        lead=lead,
        panels=(
            charts.lines(
                "",
                guests.rows(panel, lambda point: percent_text(point.value)),
                colours,
                span,
                "share",
                guests.levels_of(panel, "packets a second"),
            ),
        ),
        table=Table.of(
            rows,
            {
                "Frames": _size,
                "Round trips a second": lambda row: PrintedNumber.rate(row.frequency_pps),
                "Saved": lambda row: PrintedNumber(percent_text(row.boost.value), row.boost.value),
                "95 % interval": lambda row: guests.interval(_point(row), percent_text),
                "Blocks": lambda row: PrintedNumber.plain(row.blocks),
            },
        ),
    )


def _size(row: GainRow) -> str:
    return f"{row.size_bytes} bytes"


def _point(row: GainRow) -> Point:
    boost = row.boost
    return Point(
        boost.value,
        "exact",
        boost.low if math.isfinite(boost.low) else None,
        boost.high if math.isfinite(boost.high) else None,
        row.blocks,
    )
