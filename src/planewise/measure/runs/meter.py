"""What guests send and what CPUs do, each second; only for live views, as it costs CPU time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from planewise.errors import PlanewiseError
from planewise.store.models import KpiSample, Throughput
from planewise.testbed.hosts.gauges import GaugeReading, Gauges, busy, throughput

if TYPE_CHECKING:
    from planewise.measure.station import Place, Station

INTERVAL_S = 1.0
_SHARE = 0.1
"""Of the time at most goes into reading other hosts: a slow one is read less often."""


def sample(
    previous: GaugeReading, current: GaugeReading, place: Place | None, order: Sequence[str] = ()
) -> KpiSample:
    """What happened between two readings, as a line of kpis.jsonl. Pure but for the time of day.

    `order` is that of the guests; `place` the trial that ran, None between two.
    """
    rates = throughput(previous, current)
    names = [name for name in order if name in rates]
    names += [name for name in rates if name not in names]
    return KpiSample(
        at=datetime.now(UTC),
        trial="" if place is None else place.trial,
        cell={} if place is None else place.cell,
        interval_s=max(0.0, current.at_s - previous.at_s),
        vnfs={name: Throughput(tx_pps=rates[name][0], tx_bps=rates[name][1]) for name in names},
        total=Throughput(
            tx_pps=sum(pps for pps, _ in rates.values()),
            tx_bps=sum(bps for _, bps in rates.values()),
        ),
        cpu=busy(previous, current),
    )


class Meter:
    """Reads a visible station while it is watched.

    `on_sample` receives a sample a second; `complain` one sentence, when a host cannot be read.
    """

    def __init__(
        self,
        on_sample: Callable[[KpiSample], None],
        complain: Callable[[str], None],
        interval_s: float = INTERVAL_S,
    ) -> None:
        self._on_sample = on_sample
        self._complain = complain
        self._interval_s = interval_s
        self._lock = threading.Lock()
        """Held while hosts are read: a station is not torn down meanwhile."""
        self._gauges: Gauges | None = None
        self._order: tuple[str, ...] = ()
        self._previous: GaugeReading | None = None
        self._remote = False
        self._place: Place | None = None
        """The trial that runs."""
        self._recent: Place | None = None
        """The last one that ended since hosts were read."""
        self._complained = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meter", daemon=True)

    @contextmanager
    def watching(self, station: Station) -> Iterator[None]:
        """While inside, the station's guests are read, if it has gauges."""
        if not station.gauges:
            yield
            return
        gauges = Gauges(station.gauges, station.gauge_hosts)
        with self._lock:
            self._gauges, self._previous = gauges, None
            self._remote = station.gauge_hosts is not None
            self._order = tuple(gauge.guest for gauge in station.gauges)
        try:
            yield
        finally:
            with self._lock:
                self._gauges = self._previous = None
                gauges.close()

    @contextmanager
    def trial(self, place: Place) -> Iterator[None]:
        """While inside, samples are of this trial."""
        self._place = place
        try:
            yield
        finally:
            self._place, self._recent = None, place

    @contextmanager
    def silent(self) -> Iterator[None]:
        """While inside, nothing is read: the trial itself reports what is sent."""
        with self._lock:
            gauges, self._gauges = self._gauges, None
        try:
            yield
        finally:
            with self._lock:
                self._gauges, self._previous = gauges, None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        wait_s = spent_s = 0.0
        while not self._ended.wait(wait_s):
            began, alone = time.monotonic(), False
            try:
                alone = self._read()
            except (PlanewiseError, OSError) as error:
                if not self._complained:
                    self._complained = True
                    self._complain(f"guest traffic cannot be shown: {error}")
            took_s = time.monotonic() - began
            wait_s = max(self._interval_s - took_s, 0.0)
            spent_s += took_s
            # A first reading is useless until a second has followed: the station may be gone
            # before a long pause ends.
            if self._remote and not alone:
                wait_s = max(wait_s, spent_s / _SHARE - spent_s)
                spent_s = 0.0

    def _read(self) -> bool:
        """Reads the gauges; returns whether this was the first reading of a station."""
        with self._lock:
            if self._gauges is None:
                return False
            current = self._gauges.read()
            previous, self._previous = self._previous, current
            order = self._order
        # Many trials are shorter than an interval.
        place = self._place or self._recent
        self._recent = None
        if previous is not None:
            self._on_sample(sample(previous, current, place, order))
        return previous is None
