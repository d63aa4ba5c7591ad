"""Pilots: what each plane roughly forwards, for the place of a ladder, never for a result."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from planewise.errors import PlanewiseError
from planewise.judge.statistics.values import PLR
from planewise.measure.designs.cells import Cell, cells_of
from planewise.measure.designs.design import Design, SweepPart
from planewise.measure.designs.ladders import ladder_around, ladder_at_pdr
from planewise.measure.designs.schedule import TRIAL_OVERHEAD_S, VISIT_OVERHEAD_S, build_s
from planewise.measure.runs.experiment import Progress
from planewise.measure.runs.stations import Stations
from planewise.measure.station import Place, Station
from planewise.measure.trials.load import LoadTrial
from planewise.store.models import TrialRecord

PILOT_S = 0.2
"""Duration of a pilot."""
PILOTS = 2
"""Overload trials of each plane, of which the better counts: a pause of the machine spoils one."""
MOST_PILOTS = 5
"""Further trials that search PDR."""
_WITHIN = 0.95
"""Share of what a pilot sent that a generator sends reliably."""
_BELOW = 0.97
"""Of what a lossy trial forwarded: if throughput is flat, nothing is lost there."""
_ABOVE = 1.15
"""Of the highest load without loss, while none with loss is known."""
_CLOSE = 1.1
"""A load with loss and one without that are no further apart than this show where PDR is."""


@dataclass(frozen=True)
class Range:
    """What one plane forwarded of as much as could be offered."""

    forwarded_pps: float
    most_pps: float
    """The most that the generator can offer to this plane."""
    pdr_pps: float = math.inf
    """Where pilots put PDR; infinite where none looked for it, or none lost anything."""

    def ladder(self, sweep: SweepPart) -> tuple[float, ...]:
        """The offered loads [pps] of an automatic ladder."""
        per_block = sweep.loads_per_block
        if per_block is not None and self.pdr_pps < self.most_pps:
            return ladder_at_pdr(self.pdr_pps, sweep.loads, per_block, self.most_pps)
        return ladder_around(self.forwarded_pps, sweep.loads, self.most_pps)


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
            return dict.fromkeys(self.by_cell, tuple(sorted(sweep.offered_pps)))
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
    pilots = PILOTS if design.sweep.loads_per_block is None else PILOTS + MOST_PILOTS
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
        best = Range(forwarded_pps, max(pilot.most_pps for pilot in pilots))
        if sweep.loads_per_block is None:
            return best
        pdr_pps = find_pdr(self._loss_and_rate, best.forwarded_pps, best.most_pps)
        return replace(best, pdr_pps=pdr_pps)

    def _measure(self, load_pps: float) -> TrialRecord:
        self.trials += 1
        trial = LoadTrial("pilot", load_pps, self._size_bytes, PILOT_S)
        place = Place("pilot", self._cell.levels(), 0, 0)
        try:
            return self._station.measure(trial, place, lambda _: None).record
        except PlanewiseError as error:
            error.what = f"pilot on {self._cell.plane}: {error.what}"
            raise

    def _loss_and_rate(self, load_pps: float) -> tuple[float, float] | None:
        """Loss ratio and forwarding rate at a load; None where it was not sent."""
        record = self._measure(load_pps)
        if record.counts is None or record.load is None or "generator" in record.limits:
            return None
        plr = record.counts.lost / max(record.counts.sent, 1)
        return plr, record.load.achieved_pps * (1 - plr)


def _range(record: TrialRecord, offered_pps: float) -> Range:
    """The range that one pilot shows. Pure."""
    if record.counts is None or record.load is None:
        return Range(0.0, 0.0)
    sent_pps = record.load.achieved_pps
    forwarded_pps = sent_pps * record.counts.received / max(record.counts.sent, 1)
    return Range(forwarded_pps, sent_pps * _WITHIN if "generator" in record.limits else offered_pps)


def find_pdr(
    measure: Callable[[float], tuple[float, float] | None], forwarded_pps: float, most_pps: float
) -> float:
    """PDR [pps], as far as MOST_PILOTS trials find it; infinite where `most_pps` loses nothing.

    `measure` offers a load and returns loss ratio and forwarding rate; None: the generator did not
    send it. `forwarded_pps` came through in overload: PDR lies above it where overload harms, below
    it where throughput rises beyond PDR.
    """
    clean_pps, lossy_pps, carried_pps = 0.0, math.inf, forwarded_pps
    for _ in range(MOST_PILOTS):
        load_pps = min(_next_load(clean_pps, lossy_pps, carried_pps), most_pps)
        trial = measure(load_pps)
        if trial is None:
            continue
        plr, trial_forwarded_pps = trial
        if plr > PLR:
            lossy_pps, carried_pps = load_pps, trial_forwarded_pps
        else:
            clean_pps = load_pps
        if clean_pps >= most_pps:
            return math.inf
        if clean_pps and lossy_pps <= _CLOSE * clean_pps:
            break
    # What a lossy load forwarded is at most throughput at PDR, if that is flat from there on.
    return min(max(clean_pps, carried_pps), lossy_pps)


def _next_load(clean_pps: float, lossy_pps: float, carried_pps: float) -> float:
    if not clean_pps:
        return _BELOW * carried_pps
    if math.isinf(lossy_pps):
        return _ABOVE * clean_pps
    return math.sqrt(clean_pps * lossy_pps)
