"""An advice as a table and sentences: what terminal and page both show. Prints nothing."""

from __future__ import annotations

from planewise.advise.forecast import PlaneForecast
from planewise.judge.statistics.sentences import bound_text
from planewise.units import percent_text, time_text

EMULATED = (
    "The profile is of an emulated host: its order of planes may hold, its figures say nothing of "
    "a real one and are not shown."
)
COLUMNS = ("plane", "Mpps", "interval", "Gbit/s", "share", "p99 RTT", "cores", "bottleneck")
NUMBERS = ("Mpps", "Gbit/s", "share", "p99 RTT", "cores")
"""The columns that hold numbers."""


def cells(ranked: PlaneForecast) -> tuple[str, ...]:
    """A plane's row, in the order of the columns."""
    tail = "–"
    if ranked.rtt_p99_ns is not None:
        tail = bound_text(ranked.rtt_p99_bound, time_text(ranked.rtt_p99_ns))
    cores = str(ranked.host_cores)
    if not ranked.possible:
        return ranked.plane, "–", "–", "–", "–", tail, cores, "not possible here"
    low, high = ranked.low_pps, ranked.high_pps
    interval = (
        ("–" if ranked.pps is None else "not known")
        if low is None
        else f"{low / 1e6:.3g} or more"
        if high is None
        else f"{low / 1e6:.3g} to {high / 1e6:.3g}"
    )
    return (
        ranked.plane,
        "–"
        if ranked.pps is None
        else bound_text("at least" if ranked.at_least else "exact", f"{ranked.pps / 1e6:.3g}"),
        interval,
        "–" if ranked.gbps is None else f"{ranked.gbps:.3g}",
        "–" if ranked.share is None else percent_text(round(ranked.share, 3)),
        tail,
        cores,
        ranked.bottleneck,
    )
