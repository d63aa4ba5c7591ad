"""A figure's main result in one plain sentence. Describes, does not infer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from planewise.report import theme
from planewise.report.data import CpuCell
from planewise.report.rtt_cell import RttCell
from planewise.report.summaries import Spread
from planewise.store.cells import Factors, common_factors, words
from planewise.units import time_text

Time = Callable[[RttCell], Spread | str]


def of_times(cells: Sequence[RttCell], time: Time, what: str) -> str:
    """The plane that most often has the lowest median, and the largest gap between planes."""
    spreads = [(cell, spread) for cell in cells if isinstance(spread := time(cell), Spread)]
    if not spreads:
        return f"The {what} could not be measured in any of these conditions."
    common = common_factors(cell.factors for cell in cells)
    contexts: dict[Factors, list[tuple[float, str]]] = {}
    for cell, spread in spreads:
        contexts.setdefault(cell.factors, []).append((spread.median_ns, cell.plane))
    several = {factors: sorted(times) for factors, times in contexts.items() if len(times) > 1}
    if not several:
        least = min(spreads, key=lambda pair: pair[1].median_ns)
        most = max(spreads, key=lambda pair: pair[1].median_ns)
        if least is most:
            return f"Its median {what} is {time_text(least[1].median_ns)}."
        return (
            f"The median {what} lies between {time_text(least[1].median_ns)} "
            f"({least[0].plane}, {words(least[0].factors, common)}) and "
            f"{time_text(most[1].median_ns)} ({most[0].plane}, {words(most[0].factors, common)})."
        )
    wins: dict[str, int] = {}
    for times in several.values():
        wins[times[0][1]] = wins.get(times[0][1], 0) + 1
    best = max(wins, key=lambda plane: wins[plane])
    factors, times = max(several.items(), key=lambda pair: pair[1][-1][0] / max(pair[1][0][0], 1.0))
    (low, lowest), (high, highest) = times[0], times[-1]
    n = len(several)
    often = (
        "In the one condition"
        if n == 1
        else ("In both conditions" if n == 2 else f"In all {n} conditions")
        if wins[best] == n
        else f"In {wins[best]} of {n} conditions"
    )
    gap = (
        f"{words(factors, common)}: {time_text(low)} with {lowest}, "
        f"{time_text(high)} with {highest}"
        + (f" ({high / low:.2g} times)" if low > 0 and high / low < 1000 else "")
    )
    return f"{often} {best} has the lowest median {what}; the widest gap is at {gap}."


def of_tail(cells: Sequence[RttCell]) -> str:
    """The lowest and the highest 99th percentile."""
    common = common_factors(cell.factors for cell in cells)
    tails = [(value, cell) for cell in cells if (value := cell.tail_ns.get("p99")) is not None]
    if not tails:
        return "There are too few packets to speak of the slowest of a hundred."
    low, least = min(tails, key=lambda pair: pair[0])
    high, most = max(tails, key=lambda pair: pair[0])
    if least is most:
        return f"One packet of a hundred takes longer than {time_text(low)}."
    return (
        f"One packet of a hundred takes longer than {time_text(low)} with {least.plane}, "
        f"{words(least.factors, common)}, and longer than {time_text(high)} with {most.plane}, "
        f"{words(most.factors, common)}."
    )


def of_overhead(cells: Sequence[RttCell]) -> str:
    """The share of the round trip that the sender's host takes."""
    shares = [
        (cell.overhead.median_ns / cell.median_ns, cell)
        for cell in cells
        if isinstance(cell.overhead, Spread) and cell.median_ns > 0
    ]
    if not shares:
        return "The RTT overhead could not be measured in any of these conditions."
    common = common_factors(cell.factors for cell in cells)
    low, lowest = min(shares, key=lambda pair: pair[0])
    high, highest = max(shares, key=lambda pair: pair[0])
    if low == high:
        return f"At the median the sender's host takes {theme.share(round(low, 3))} of the RTT."
    return (
        f"At the median the sender's host takes between {theme.share(round(low, 2))} "
        f"({lowest.plane}, {words(lowest.factors, common)}) and {theme.share(round(high, 2))} "
        f"({highest.plane}, {words(highest.factors, common)}) of the round trip."
    )


def of_cpu(cells: Sequence[CpuCell]) -> str:
    """The busiest and the least busy host."""
    common = common_factors(cell.factors for cell in cells)

    def text(cell: CpuCell) -> str:
        host = "" if cell.host == "shared" else f" at the {cell.host}"
        return (
            f"{theme.share(round(cell.busy, 3))}{host} with {cell.plane}, "
            f"{words(cell.factors, common)}"
        )

    least, most = min(cells, key=lambda c: c.busy), max(cells, key=lambda c: c.busy)
    if least is most:
        return f"The CPUs are busy for {text(most)}."
    return f"The CPUs are busiest for {text(most)}; least for {text(least)}."


def of_losses(cells: Sequence[RttCell]) -> str:
    """The number of lost probe packets, and the cell that lost the largest share."""
    sent, lost = sum(cell.sent for cell in cells), sum(cell.lost for cell in cells)
    if not sent:
        return "No packet was counted."
    if not lost:
        return f"None of {theme.count(sent)} probe packets was lost."
    common = common_factors(cell.factors for cell in cells)
    worst = max((cell for cell in cells if cell.sent), key=lambda cell: cell.lost / cell.sent)
    return (
        f"Of {theme.count(sent)} probe packets {theme.count(lost)} were lost "
        f"({theme.share(lost / sent)}), most with {worst.plane}, {words(worst.factors, common)}: "
        f"{theme.share(worst.lost / worst.sent)}."
    )
