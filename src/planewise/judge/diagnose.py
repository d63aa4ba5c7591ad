"""What is strange about a curve: warnings, each with the numbers it rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
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
"""Share of its peak by which throughput has to fall to be called thrashing."""
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
        *_thrashing(seen),
        *_unexplained_loss(curve),
    )


def _at_worst(
    code: str,
    found: Mapping[LoadPoint, float],
    about: Callable[[LoadPoint], tuple[str, Evidence]],
) -> tuple[Caution, ...]:
    """A caution on the loads in `found`, where there are any: what `about` says of the worst."""
    if not found:
        return ()
    worst = max(found, key=lambda point: found[point])
    at = f"at {rate_text(worst.offered_pps)}"
    if len(found) > 1:
        at = f"at {len(found)} loads, most {at}:"
    words, evidence = about(worst)
    evidence = {"loads": len(found), "offered_pps": worst.offered_pps, **evidence}
    return (Caution(code, f"{at} {words}", evidence),)


def _limited(curve: Curve) -> tuple[Caution, ...]:
    limited = {point: float(point.limited) for point in curve.points if point.limited}
    without = sum(point.limited == len(point.runs) for point in limited)

    def about(worst: LoadPoint) -> tuple[str, Evidence]:
        count, runs = worst.limited, len(worst.runs)
        words = (
            f"{count} of {runs} runs were limited by the generator, the sink or the clock, not by "
            "the SUT; they are left out"
        )
        words += f", but {without} loads have no others" if without else ""
        return words, {"loads_without_others": without, "limited_runs": count, "runs": runs}

    return _at_worst("not-limited-by-sut", limited, about)


def host_busy(curve: Curve) -> tuple[Caution, ...]:
    """Whether other work took the host's CPUs, so that the system's share was a matter of chance.

    By what other programs are recorded to have taken, or by CPUs that were busy even where the
    system had little to do. Where the ladder has no low load, its lowest is looked at.
    """
    best_pps = float(curve.forwarded_pps.max())
    low = [point for point in curve.points if point.offered_pps <= _LITTLE * best_pps]
    points = low or curve.points[:1]
    load_pps = points[0].offered_pps
    taken: dict[str, float] = {}
    for name, limit in (("foreign", _FOREIGN), ("busy", _BUSY)):
        shares = np.concatenate([getattr(point.table, name) for point in points])
        known = shares[~np.isnan(shares)]
        if known.size and not taken and (share := float(np.median(known))) >= limit:
            taken = {name: share, "offered_pps": load_pps, "runs": known.size}
    if not taken:
        return ()
    share_text = percent_text(round(next(iter(taken.values())), 2))
    text = (
        f"other programs took {share_text} of the host's CPUs at {rate_text(load_pps)}"
        if "foreign" in taken
        else f"the host's CPUs were {share_text} busy even at {rate_text(load_pps)}, where the "
        "system has little to do: other work took its time"
    )
    return (Caution("host-busy", text, taken),)


def _offered_not_sent(curve: Curve) -> tuple[Caution, ...]:
    off = {
        point: sent / point.offered_pps - 1
        for point in curve.points
        if (sent := point.achieved_pps) is not None
    }

    def about(worst: LoadPoint) -> tuple[str, Evidence]:
        error = percent_text(off[worst], signed=True)
        words = f"what was really sent differs from the offered load by {error}"
        return words, {"difference": off[worst]}

    found = {point: abs(error) for point, error in off.items() if abs(error) > _ACHIEVED_SHARE}
    return _at_worst("load-not-achieved", found, about)


def _more_received_than_sent(curve: Curve) -> tuple[Caution, ...]:
    excess = {point: float(-point.plr_per_run.min()) for point in curve.points}

    def about(worst: LoadPoint) -> tuple[str, Evidence]:
        words = (
            f"a run received {percent_text(excess[worst])} more than it sent: other traffic or "
            "duplicates are counted"
        )
        return words, {"excess": excess[worst]}

    stray = {point: share for point, share in excess.items() if share > _STRAY_SHARE}
    return _at_worst("more-received-than-sent", stray, about)


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
    ends: dict[LoadPoint, tuple[float, float]] = {}
    for point in curve.points:
        third = point.count // 3
        if point.count < _MIN_RUNS_DRIFT:
            continue
        early, late = point.plr_per_run[:third], point.plr_per_run[-third:]
        error = math.sqrt((early.var(ddof=1) + late.var(ddof=1)) / third)
        if abs(float(late.mean() - early.mean())) > max(plr, _CERTAIN_DRIFT * error):
            ends[point] = float(early.mean()), float(late.mean())

    def about(worst: LoadPoint) -> tuple[str, Evidence]:
        first, last = ends[worst]
        words = (
            f"loss {'rises' if last > first else 'falls'} over the runs, from "
            f"{percent_text(max(first, 0))} in the first third to {percent_text(max(last, 0))} in "
            "the last: the middle third counts"
        )
        return words, {"first_third_plr": first, "last_third_plr": last}

    changes = {point: abs(last - first) for point, (first, last) in ends.items()}
    return _at_worst("drifting", changes, about)


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


def _thrashing(seen: Estimate) -> Iterator[Caution]:
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
            "thrashing",
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


def _unexplained_loss(curve: Curve) -> tuple[Caution, ...]:
    """Loss that drop counters do not explain, at loads where a counter was read."""
    counts: dict[LoadPoint, tuple[int, int]] = {}
    for point in curve.points:
        counted = point.table.drops >= 0
        each = np.maximum(point.table.sent - point.table.received, 0)[counted]
        lost, explained = int(each.sum()), int(np.minimum(point.table.drops[counted], each).sum())
        if lost and 1 - explained / lost > 0.1 and point.plr_counted > _MATERIAL_PLR:
            counts[point] = lost, explained

    def about(worst: LoadPoint) -> tuple[str, Evidence]:
        lost, explained = counts[worst]
        words = (
            f"drop counters explain {explained} of {lost} lost packets: "
            f"{percent_text(round(1 - explained / lost, 2))} vanished elsewhere"
        )
        return words, {"lost": lost, "explained": explained}

    vanished = {point: float(lost - explained) for point, (lost, explained) in counts.items()}
    return _at_worst("loss-unexplained", vanished, about)
