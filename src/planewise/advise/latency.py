"""Latency of an allocator's guests, predicted from what two planes showed, and as measured.

A guest has a VF for a share of the time and the paravirtual plane for the rest. Its round trips
are then a mixture, by these shares, of those that a run of both planes found at its request rate.
Knows no file.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from hdrh.histogram import HdrHistogram

from planewise.advise.gain import Interval
from planewise.errors import BadInputError
from planewise.judge.bounded import exact, median_of
from planewise.judge.statistics.paired import median_interval
from planewise.store.levels import keeps_levels
from planewise.store.models import ManagedGuest, TrialRecord

_MEDIAN = 0.5

Distribution = Sequence[tuple[float, int]]
"""Round-trip times [ns], each with how often it was seen, rising."""


@dataclass(frozen=True)
class PredictedGroup:
    """Guests of one request rate under one policy: their median round-trip time."""

    policy: str
    request_pps: float
    measured_at_pps: float
    """The request rate at which both planes were measured; the nearest there is."""
    held: float
    """Share of the time for which these guests had a VF, on average."""
    blocks: int
    predicted_ns: float
    """Median over blocks."""
    measured_ns: float
    error: Interval
    """Predicted over measured, less one: median over blocks, with its 95 % interval."""


def predict_groups(
    planes: Iterable[TrialRecord], slow: str, fast: str, allocated: Iterable[TrialRecord]
) -> tuple[PredictedGroup, ...]:
    """Every group of guests under every policy; `planes` are round trips of both planes.

    Raises:
        BadInputError: a plane was not measured, or no trial of an allocator has groups.
    """
    times = _times(planes)
    rates = sorted({rate for plane, rate in times if (fast, rate) in times and plane == slow})
    if not rates:
        raise BadInputError(
            f"no rate has round-trip times of both {slow} and {fast}",
            remedy="measure both planes at the groups' request rates",
        )
    cells: dict[tuple[str, float], list[tuple[float, float, float]]] = defaultdict(list)
    for trial in allocated:
        if trial.status != "done" or trial.alloc is None or trial.alloc.window_s <= 0:
            continue
        for rate, guests in _groups(trial.alloc.guests).items():
            measured = trial.alloc.groups.get(f"{rate:g}")
            if measured is None:
                continue
            held = fmean(min(1.0, guest.held_s / trial.alloc.window_s) for guest in guests)
            near = _nearest(rates, rate)
            predicted = mixed_quantile(times[slow, near], times[fast, near], held, _MEDIAN)
            cells[str(trial.cell["policy"]), rate].append((held, predicted, measured.p50_ns))
    if not cells:
        raise BadInputError(
            "no trial of an allocator has round-trip times by group",
            remedy="give a run such as that of experiments/flexvf-groups-lab.yaml",
        )
    return tuple(
        _group(policy, rate, _nearest(rates, rate), blocks)
        for (policy, rate), blocks in sorted(cells.items())
    )


def mixed_quantile(slow: Distribution, fast: Distribution, held: float, quantile: float) -> float:
    """The quantile of round trips that are `fast` with probability `held`, else `slow`. Pure."""
    weighted = sorted(
        (time, share * count / total)
        for of_plane, share in ((slow, 1 - held), (fast, held))
        if (total := sum(count for _, count in of_plane)) and share > 0
        for time, count in of_plane
    )
    below = 0.0
    for time, weight in weighted:
        below += weight
        if below >= quantile - 1e-12:
            return time
    return weighted[-1][0]


def _times(trials: Iterable[TrialRecord]) -> dict[tuple[str, float], Distribution]:
    """By plane and request rate, all round trips that were measured together."""
    counts: dict[tuple[str, float], dict[float, int]] = defaultdict(lambda: defaultdict(int))
    for trial in trials:
        latency = trial.latency.get("rtt_user")
        if trial.kind != "rtt" or not keeps_levels(trial) or latency is None or not latency.hdr:
            continue
        key = str(trial.cell.get("plane")), float(trial.cell.get("frequency_pps", 0))
        for item in HdrHistogram.decode(latency.hdr).get_recorded_iterator():
            counts[key][item.value_iterated_to] += item.count_added_in_this_iter_step
    return {key: sorted(found.items()) for key, found in counts.items()}


def _groups(guests: Mapping[str, ManagedGuest]) -> dict[float, list[ManagedGuest]]:
    groups: dict[float, list[ManagedGuest]] = {}
    for guest in guests.values():
        groups.setdefault(guest.request_pps, []).append(guest)
    return groups


def _nearest(rates: Sequence[float], wanted: float) -> float:
    return min(rates, key=lambda rate: abs(math.log(rate / wanted)))


def _group(
    policy: str, rate: float, near: float, blocks: Sequence[tuple[float, float, float]]
) -> PredictedGroup:
    held, predicted, measured = zip(*blocks, strict=True)
    errors = [exact(p / m - 1) for p, m in zip(predicted, measured, strict=True)]
    return PredictedGroup(
        policy=policy,
        request_pps=rate,
        measured_at_pps=near,
        held=fmean(held),
        blocks=len(blocks),
        predicted_ns=median_of([exact(one) for one in predicted]).value,
        measured_ns=median_of([exact(one) for one in measured]).value,
        error=Interval(median_of(errors).value, *median_interval(errors)),
    )
