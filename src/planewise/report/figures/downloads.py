"""A download beside the guests' requests: throughput over time, and duration."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from planewise.report import theme
from planewise.report.allocation import POLICIES
from planewise.report.figures import vega
from planewise.report.figures.allocation import SHADES
from planewise.report.figures.base import Entry, Figure, PrintedNumber, Table
from planewise.report.figures.vega import Row, Span, Spec
from planewise.store.models import AllocResult, Download
from planewise.units import bits_text, time_text

HEIGHT = 180
_COLOURS = dict(zip(POLICIES, SHADES, strict=True))

Results = Mapping[str, Sequence[AllocResult]]
"""Trials with a download, by policy."""


def figure(results: Results) -> Figure:
    """A line a trial: payload by second, up to the last byte."""
    rows: list[Row] = [
        {
            "at": at_s,
            "bps": bps,
            "series": policy,
            "trial": f"{policy} {number}",
        }
        for policy, trials in results.items()
        for number, download in enumerate(_downloads(trials), start=1)
        for at_s, bps in _steps(download)
    ]
    colours = {policy: _COLOURS[policy] for policy in results}
    across = Span(0.0, max((float(row["at"]) for row in rows), default=1.0), log=False)
    span = Span(0.0, 1.05 * max((float(row["bps"]) for row in rows), default=1.0) or 1.0, log=False)

    def draw(width: int) -> Spec:
        room = 74
        plot = width - 24 - room
        x = vega.quantitative(
            "at", across, vega.x_axis("seconds after its begin", across, "number", plot)
        )
        lines = vega.mark(
            "line",
            rows,
            {
                "x": x,
                "y": vega.quantitative("bps", span, vega.y_axis(span, "bits", room)),
                "color": vega.coloured("series", colours),
                "detail": vega.nominal("trial"),
            },
            strokeWidth=1.5,
            opacity=0.7,
        )
        panel = vega.layers([lines], width=plot, height=HEIGHT)
        return vega.finish(vega.below([vega.key(colours, width - 24), panel]))

    return Figure(
        name="download",
        title="Throughput of a download, by policy",
        lead=_lead(results),
        caption="A line a trial: payload that arrived at the client in each second, from the "
        "first byte to the last. The end of a line is the end of the download.",
        alt=f"Throughput of downloads along time. {_lead(results)}",
        draw=draw,
        table=table(results),
    )


def table(results: Results) -> Table:
    """Durations of downloads, and the share of time in which their guest held a VF."""
    rows: list[tuple[Entry, ...]] = []
    for policy, trials in results.items():
        downloads = _downloads(trials)
        took = sorted(download.seconds for download in downloads)
        bps = statistics.median(8 * download.bytes / download.seconds for download in downloads)
        held_share = statistics.fmean(_held_share(result) for result in trials)
        median_s = statistics.median(took)
        rows.append(
            (
                policy,
                PrintedNumber(time_text(median_s * 1e9), median_s),
                PrintedNumber(time_text(took[0] * 1e9), took[0]),
                PrintedNumber(time_text(took[-1] * 1e9), took[-1]),
                PrintedNumber(bits_text(bps), bps),
                PrintedNumber(theme.share(round(held_share, 3)), held_share),
                PrintedNumber(str(len(took)), len(took)),
            )
        )
    return Table(
        (
            "Policy",
            "Takes (median)",
            "Shortest",
            "Longest",
            "Throughput",
            "Its guest held a VF",
            "Trials",
        ),
        tuple(rows),
    )


def _steps(download: Download) -> Iterator[tuple[float, float]]:
    """Two points for each interval, its begin and its end: a single interval is a line, too."""
    begin_s = 0.0
    for interval in download.intervals:
        yield from ((begin_s, interval.bps), (interval.end_s, interval.bps))
        begin_s = interval.end_s


def _downloads(results: Sequence[AllocResult]) -> list[Download]:
    return [result.download for result in results if result.download is not None]


def _held_share(result: AllocResult) -> float:
    assert result.download is not None
    return min(1.0, result.guests[result.download.guest].held_s / result.window_s)


def _lead(results: Results) -> str:
    took = {
        policy: statistics.median(download.seconds for download in _downloads(trials))
        for policy, trials in results.items()
    }
    medians = ", ".join(f"{policy} {time_text(seconds * 1e9)}" for policy, seconds in took.items())
    return f"Median time of the whole download: {medians}."
