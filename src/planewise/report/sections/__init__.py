"""The sections of a report, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterator

from planewise.report.data import RunData
from planewise.report.figure import Section
from planewise.report.sections import (
    allocation,
    chains,
    compared,
    cpu,
    guests,
    load,
    other,
    rtt,
    schedule,
    settings,
)


def choose(data: RunData) -> Iterator[Section]:
    """The sections that this run has data for, with all their figures."""
    yield from allocation.sections(data)
    yield from rtt.times(data)
    yield from guests.sections(data)
    yield from chains.sections(data)
    yield from other.sections(data)
    yield from settings.sections(data)
    comparisons = compared.compare(data)  # while the figures so far are drawn
    yield from compared.sections(comparisons)
    yield from rtt.details(data)
    yield from load.sections(data)
    yield from cpu.sections(data)
    yield from schedule.sections(data)
    yield from compared.statistics(comparisons, data)
