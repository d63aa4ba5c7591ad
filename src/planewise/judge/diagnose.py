"""What is strange about a curve: warnings, each with the numbers it rests on."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from planewise.judge.curve import Curve, LoadPoint
from planewise.judge.interval import Estimate
from planewise.units import percent_text, rate_text

Evidence = Mapping[str, float | int | str]

_CERTAIN = 3.0
"""Standard errors by which two loads must differ …"""
_CERTAIN_DRIFT = 5.0
"""… and the first and the last runs at a load, as runs that resemble their predecessors do more."""
_MATERIAL_PLR = 1e-4
"""Loss and variation below this are not worth a warning of their own."""
_MATERIAL_FALL = 0.02
"""Share of its peak by which throughput has to fall to be called trashing."""
_STRAY_SHARE = 1e-3
"""More arrivals than packets sent, as a share: more than this is not a few stray packets."""
_ACHIEVED_SHARE = 0.01
"""How far what was sent may be from the offered load."""
_MIN_RUNS_DRIFT = 9
_BUSY, _FOREIGN = 0.95, 0.5
"""Share of a host's CPUs that was busy, or that other programs took, from which on there was too
little room for what is measured."""
_LITTLE = 0.5
"""Offered loads up to this share of the best throughput give the system little to do."""


@dataclass(frozen=True)
class Caution:
    """Something that a reader of the verdict should know."""

    code: str
    """Stable name, for programs."""
    text: str
    """One sentence with the evidence in it."""
    evidence: Evidence = field(default_factory=dict)
    """The same evidence as numbers."""


def diagnose(curve: Curve, seen: Estimate, plr: float) -> tuple[Caution, ...]:
    """All warnings about `curve`: at most one of a kind, with the worst load as evidence."""
    return (
        *_limited(curve),
        *host_busy(curve),
        *_offered_not_sent(curve),
        *_more_received_than_sent(curve),
        *_mixed_durations(curve),
        *drifting(curve, plr),
        *_not_monotone(seen),
        *_trashing(seen),
        *_unexplained_loss(curve),
    )


def _limited(curve: Curve) -> Iterator[Caution]:
    limited = [point for point in curve.points if point.limited]
    if limited:
        none_left = [point for point in limited if point.limited == len(point.runs)]
        worst = max(limited, key=lambda point: point.limited)
        yield Caution(
            "not-limited-by-sut",
            f"{_at(limited, worst)} {worst.limited} of {len(worst.runs)} runs were limited by the "
            "generator, the sink or the clock, not by the SUT; they are left out"
            + (f", but {len(none_left)} loads have no others" if none_left else ""),
            {
                "loads": len(limited),
                "loads_without_others": len(none_left),
                "offered_pps": worst.offered_pps,
                "limited_runs": worst.limited,
                "runs": len(worst.runs),
            },
        )


def host_busy(curve: Curve) -> tuple[Caution, ...]:
    """Whether other work took the host's CPUs, so that the system's share was a matter of chance.

    By what other programs are recorded to have taken, or by CPUs that were busy even where the
    system had little to do. Where the ladder has no low load, its lowest is looked at.
    """
    best_pps = float(curve.forwarded_pps.max())
    low = [point for point in curve.points if point.offered_pps <= _LITTLE * best_pps]
    points = low or curve.points[:1]
    load_pps = points[0].offered_pps
    busy, foreign = (
        (float(np.median(known)), known.size) if known.size else (0.0, 0)
        for name in ("busy", "foreign")
        for shares in [np.concatenate([getattr(point.table, name) for point in points])]
        for known in [shares[~np.isnan(shares)]]
    )
    if foreign[0] >= _FOREIGN:
        taken = percent_text(round(foreign[0], 2))
        text = f"other programs took {taken} of the host's CPUs at {rate_text(load_pps)}"
        evidence = {"foreign": foreign[0], "offered_pps": load_pps, "runs": foreign[1]}
    elif busy[0] >= _BUSY:
        text = (
            f"the host's CPUs were {percent_text(round(busy[0], 2))} busy even at "
            f"{rate_text(load_pps)}, where the system has little to do: other work took its time"
        )
        evidence = {"busy": busy[0], "offered_pps": load_pps, "runs": busy[1]}
    else:
        return ()
    return (Caution("host-busy", text, evidence),)


def _offered_not_sent(curve: Curve) -> Iterator[Caution]:
    off = {
        point: sent / point.offered_pps - 1
        for point in curve.points
        if (sent := point.achieved_pps) is not None
    }
    off_rate = [point for point, error in off.items() if abs(error) > _ACHIEVED_SHARE]
    if off_rate:
        worst = max(off_rate, key=lambda point: abs(off[point]))
        yield Caution(
            "load-not-achieved",
            f"{_at(off_rate, worst)} what was really sent differs from the offered load by "
            f"{percent_text(off[worst], signed=True)}",
            {"loads": len(off_rate), "offered_pps": worst.offered_pps, "difference": off[worst]},
        )


def _more_received_than_sent(curve: Curve) -> Iterator[Caution]:
    excess = {point: float(-point.plr_per_run.min()) for point in curve.points}
    stray = [point for point, share in excess.items() if share > _STRAY_SHARE]
    if stray:
        worst = max(stray, key=lambda point: excess[point])
        yield Caution(
            "more-received-than-sent",
            f"{_at(stray, worst)} a run received {percent_text(excess[worst])} more than it sent: "
            "other traffic or duplicates are counted",
            {"loads": len(stray), "offered_pps": worst.offered_pps, "excess": excess[worst]},
        )


def _mixed_durations(curve: Curve) -> Iterator[Caution]:
    times_s = np.concatenate([point.table.duration_s for point in curve.points])
    times_s = times_s[~np.isnan(times_s)]
    if not times_s.size:
        return
    shortest_s, longest_s = float(times_s.min()), float(times_s.max())
    if longest_s > shortest_s * 1.1:
        yield Caution(
            "mixed-durations",
            f"trials last between {shortest_s:g} s and {longest_s:g} s and count alike; short "
            "ones vary more and fill buffers for a larger share of their time",
            {"shortest_s": shortest_s, "longest_s": longest_s},
        )


def drifting(curve: Curve, plr: float) -> tuple[Caution, ...]:
    """Whether loss in the last third of a load's runs is another than in the first."""
    changes: dict[LoadPoint, tuple[float, float]] = {}
    for point in curve.points:
        third = point.count // 3
        if point.count < _MIN_RUNS_DRIFT:
            continue
        early, late = point.plr_per_run[:third], point.plr_per_run[-third:]
        error = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / third)
        change = abs(float(late.mean() - early.mean()))
        if change > max(plr, _CERTAIN_DRIFT * error):
            changes[point] = float(early.mean()), float(late.mean())
    if not changes:
        return ()
    worst = max(changes, key=lambda point: abs(changes[point][1] - changes[point][0]))
    first, last = changes[worst]
    return (
        Caution(
            "drifting",
            f"{_at(changes, worst)} loss {'rises' if last > first else 'falls'} over the runs, "
            f"from {percent_text(max(first, 0))} in the first third to "
            f"{percent_text(max(last, 0))} in the last: the middle third counts",
            {
                "loads": len(changes),
                "offered_pps": worst.offered_pps,
                "first_third_plr": first,
                "last_third_plr": last,
            },
        ),
    )


def _not_monotone(seen: Estimate) -> Iterator[Caution]:
    """A load that loses certainly less than a lower one."""
    worst = np.maximum.accumulate(seen.mean)
    fall = worst - seen.mean
    lower = np.array([int(seen.mean[: index + 1].argmax()) for index in range(fall.size)])
    error = np.hypot(seen.error, seen.error[lower])
    certain = (fall > _MATERIAL_PLR) & (fall > _CERTAIN * error)
    if certain.any():
        high = int(np.where(certain, fall, 0).argmax())
        low = int(lower[high])
        yield Caution(
            "loss-not-monotone",
            f"less is lost at {rate_text(seen.offered_pps[high])} "
            f"({percent_text(max(seen.mean[high], 0))}) than at "
            f"{rate_text(seen.offered_pps[low])} ({percent_text(seen.mean[low])}): a search that "
            "assumes that loss rises with load may end anywhere between",
            {
                "loads": int(certain.sum()),
                "lower_load_pps": float(seen.offered_pps[low]),
                "lower_load_plr": float(seen.mean[low]),
                "higher_load_pps": float(seen.offered_pps[high]),
                "higher_load_plr": float(seen.mean[high]),
            },
        )


def _trashing(seen: Estimate) -> Iterator[Caution]:
    """Throughput that falls materially with load (PASTRAMI, equation 5: past O_trash)."""
    forwarded = seen.forwarded_pps
    peak = int(forwarded.argmax())
    if peak == forwarded.size - 1:
        return
    low = peak + 1 + int(forwarded[peak + 1 :].argmin())
    error = math.hypot(*(float(seen.error[i] * seen.offered_pps[i]) for i in (peak, low)))
    fall = float(forwarded[peak] - forwarded[low])
    if fall - _CERTAIN * error >= _MATERIAL_FALL * forwarded[peak]:
        yield Caution(
            "trashing",
            f"throughput falls by {percent_text(fall / float(forwarded[peak]))} with load: from "
            f"{rate_text(forwarded[peak])} at {rate_text(seen.offered_pps[peak])} offered to "
            f"{rate_text(forwarded[low])} at {rate_text(seen.offered_pps[low])}",
            {
                "peak_offered_pps": float(seen.offered_pps[peak]),
                "peak_throughput_pps": float(forwarded[peak]),
                "low_offered_pps": float(seen.offered_pps[low]),
                "low_throughput_pps": float(forwarded[low]),
            },
        )


def _unexplained_loss(curve: Curve) -> Iterator[Caution]:
    """Loss that drop counters do not explain, at loads where a counter was read."""
    counts: dict[LoadPoint, tuple[int, int]] = {}
    for point in curve.points:
        counted = point.table.drops >= 0
        each = np.maximum(point.table.sent - point.table.received, 0)[counted]
        explained = np.minimum(point.table.drops[counted], each)
        counts[point] = int(each.sum()), int(explained.sum())
    suspects = [
        point
        for point, (lost, explained) in counts.items()
        if lost and 1 - explained / lost > 0.1 and point.plr_counted > _MATERIAL_PLR
    ]
    if suspects:
        worst = max(suspects, key=lambda point: counts[point][0] - counts[point][1])
        lost, explained = counts[worst]
        yield Caution(
            "loss-unexplained",
            f"{_at(suspects, worst)} drop counters explain {explained} of {lost} lost packets: "
            f"{percent_text(round(1 - explained / lost, 2))} vanished elsewhere",
            {
                "loads": len(suspects),
                "offered_pps": worst.offered_pps,
                "lost": lost,
                "explained": explained,
            },
        )


def _at(points: Collection[LoadPoint], worst: LoadPoint) -> str:
    if len(points) == 1:
        return f"at {rate_text(worst.offered_pps)}"
    return f"at {len(points)} loads, most at {rate_text(worst.offered_pps)}:"
