"""The sections of a report, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

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
    with ThreadPoolExecutor(1) as pool:
        packets = pool.submit(lambda: data.rtt)  # reading and sorting release the GIL
        comparisons = compared.compare(data)
        packets.result()
    yield from allocation.sections(data)
    yield from rtt.times(data)
    yield from guests.sections(data)
    yield from chains.sections(data)
    yield from other.sections(data)
    yield from settings.sections(data)
    yield from compared.sections(comparisons)
    yield from rtt.details(data)
    yield from load.sections(data)
    yield from cpu.sections(data)
    yield from schedule.sections(data)
    yield from compared.statistics(comparisons, data)
