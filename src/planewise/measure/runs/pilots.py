"""Pilots: what each plane roughly forwards, for the place of a ladder, never for a result."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planewise.errors import PlanewiseError
from planewise.measure.designs.cells import Cell, cells_of
from planewise.measure.designs.design import Design, SweepPart
from planewise.measure.designs.ladders import ladder_around, ladder_beyond
from planewise.measure.designs.schedule import TRIAL_OVERHEAD_S, VISIT_OVERHEAD_S, build_s
from planewise.measure.runs.experiment import Progress
from planewise.measure.runs.stations import Stations
from planewise.measure.runs.sut import MIN_LOAD_PPS
from planewise.measure.station import Place, Station
from planewise.measure.trials.load import LoadTrial
from planewise.store.models import TrialRecord

PILOT_S = 0.2
"""Duration of a pilot."""
PILOTS = 2
"""Overload trials of each plane, of which the better counts: a pause of the machine spoils one."""
_AGAIN = 1.2
"""A ladder that grows has a third pilot, at this multiple of what the others forwarded: far beyond
its capacity, a plane may forward less than it can."""
_WITHIN = 0.95
"""Share of what a pilot sent that a generator sends reliably."""


@dataclass(frozen=True)
class Range:
    """What one plane forwarded of as much as could be offered."""

    forwarded_pps: float
    max_load_pps: float
    """The most that the generator can offer to this plane."""
    min_load_pps: float = MIN_LOAD_PPS

    def ladder(self, sweep: SweepPart) -> tuple[float, ...]:
        """The offered loads [pps] of an automatic ladder."""
        if sweep.until_verdict:
            return ladder_beyond(self.forwarded_pps, self.max_load_pps)
        return ladder_around(self.forwarded_pps, sweep.loads, self.max_load_pps)


@dataclass(frozen=True)
class Ranges:
    """The pilots' results for the cells of a design with a sweep."""

    by_cell: Mapping[Cell, Range]
    pace: float = 1.0
    """Time that pilots took besides sending, over its estimate."""

    def ladders(self, design: Design) -> dict[Cell, tuple[float, ...]]:
        """The offered loads [pps] of every cell: the design's own, or around what was forwarded."""
        sweep = design.sweep
        if sweep is None:
            return {}
        if sweep.offered_pps != "auto":
            return dict.fromkeys(self.by_cell, sweep.placeholders)
        return {cell: plane_range.ladder(sweep) for cell, plane_range in self.by_cell.items()}


def find_ranges(
    design: Design, stations: Stations, unavailable: Mapping[Cell, str], progress: Progress
) -> Ranges:
    """Runs the pilots that an automatic ladder needs.

    Pilots are overload trials of each plane, kind of guest and path, on its first cell without load
    (else its first cell). All cells of these share the range, so that their curves can be laid over
    one another.
    """
    if design.sweep is None:
        return Ranges({})
    cells = [cell for cell in cells_of(design) if cell not in unavailable]
    if design.sweep.offered_pps != "auto":
        return Ranges(dict.fromkeys(cells, Range(0.0, math.inf)))
    ranges: dict[Cell, Range] = {}
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.plane, cell.guest, cell.path), []).append(cell)
    pilots = PILOTS + design.sweep.until_verdict
    group_s = VISIT_OVERHEAD_S + pilots * (PILOT_S + TRIAL_OVERHEAD_S)
    progress.begin("finding each plane's range", group_s * len(groups))
    expected_s = taken_s = 0.0
    for number, group in enumerate(groups.values()):
        progress.step(f"pilot on {group[0].plane}", number * group_s)
        first = next((cell for cell in group if cell.load_type == "none"), group[0])
        with stations.station(replace(first, load_type="none")) as station:
            max_pps = min(design.sweep.max_pps, station.max_pps(design.frame_sizes()[0]))
        began = time.monotonic()
        with stations.station(first) as station:
            pilot = _Pilot(station, first, design.frame_sizes()[0])
            ranges.update(dict.fromkeys(group, pilot.range(design.sweep, max_pps)))
        taken_s += time.monotonic() - began - pilot.trials * PILOT_S
        expected_s += VISIT_OVERHEAD_S + pilot.trials * TRIAL_OVERHEAD_S + build_s(first.testbed)
    return Ranges(ranges, max(taken_s, 0.0) / expected_s if expected_s else 1.0)


class _Pilot:
    """The pilots on one cell."""

    def __init__(self, station: Station, cell: Cell, size_bytes: int) -> None:
        self._station, self._cell, self._size_bytes = station, cell, size_bytes
        self.trials = 0

    def range(self, sweep: SweepPart, offered_pps: float) -> Range:
        """What the cell forwards when as much as possible is offered.

        A plane's transmit path costs the generator's CPU time too: what it could not send to this
        plane now it cannot send in a trial.
        """
        pilots = [_range(self._measure(offered_pps), offered_pps) for _ in range(PILOTS)]
        forwarded_pps = max(pilot.forwarded_pps for pilot in pilots)
        if not forwarded_pps:
            raise PlanewiseError(
                f"the pilot on plane {self._cell.plane} delivered no packet",
                remedy="see `planewise doctor`; leave the plane out of the design",
            )
        if sweep.until_verdict:
            load_pps = min(_AGAIN * forwarded_pps, offered_pps)
            again = _range(self._measure(load_pps), load_pps)
            forwarded_pps = max(forwarded_pps, again.forwarded_pps)
        return Range(forwarded_pps, max(pilot.max_load_pps for pilot in pilots))

    def _measure(self, load_pps: float) -> TrialRecord:
        self.trials += 1
        trial = LoadTrial("pilot", load_pps, self._size_bytes, PILOT_S)
        place = Place("pilot", self._cell.levels(), 0, 0)
        try:
            return self._station.measure(trial, place, lambda _: None).record
        except PlanewiseError as error:
            error.what = f"pilot on {self._cell.plane}: {error.what}"
            raise


def _range(record: TrialRecord, offered_pps: float) -> Range:
    """The range that one pilot shows. Pure."""
    if record.counts is None or record.load is None:
        return Range(0.0, 0.0)
    sent_pps = record.load.achieved_pps
    forwarded_pps = sent_pps * record.counts.received / max(record.counts.sent, 1)
    return Range(forwarded_pps, sent_pps * _WITHIN if "generator" in record.limits else offered_pps)
