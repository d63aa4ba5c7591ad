"""What is strange about a curve: warnings, each with the numbers it rests on. Knows no testbed."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import ndtr

from planewise.judge.curve import Curve, Floats, LoadPoint, RunTable
from planewise.judge.curve_draws import (
    MIN_STEP,
    CapacityTrend,
    Draws,
    Moments,
    groups,
    lag1,
    normal_tail,
)
from planewise.units import percent_text, rate_text

Evidence = Mapping[str, float | int | str]

_ALPHA = 0.01
"""False alarms of a whole curve per check: each load is tested at this over their number."""
_MATERIAL_PLR = 1e-4
"""Loss and variation below this are not worth a warning of their own."""
_MATERIAL_FALL = 0.02
"""Share of its peak by which throughput has to fall to be called trashing."""
_STRAY_SHARE = 1e-3
"""More arrivals than packets sent, as a share: more than this is not a few stray packets."""
_ACHIEVED_SHARE = 0.01
"""How far what was sent may be from the offered load."""
_MIN_RUNS = 3
_BUSY = 0.95
"""Busy share of a host's CPUs from which on there was no room for what is measured."""
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


def diagnose(
    curve: Curve, ladder: Moments, draws: Draws, plr: float, drift: CapacityTrend | None = None
) -> tuple[Caution, ...]:
    """All warnings about `curve`: at most one of a kind, with the worst load as evidence.

    `ladder` and `draws` are those of the verdict; `plr` is its loss limit, `drift` the
    trend over the whole sweep where it is known.
    """
    return (
        *_few_runs(curve),
        *_limited(curve),
        *host_busy(curve),
        *_offered_not_sent(curve),
        *_more_received_than_sent(curve),
        *_mixed_durations(curve),
        *_pooled_loads(curve),
        *_outlying_runs(curve, plr),
        *_autocorrelated(curve),
        *_drifting(curve, plr),
        *_sweep_drifting(drift),
        *_not_monotone(ladder),
        *_trashing(ladder, draws),
        *_unexplained_loss(curve),
    )


def _few_runs(curve: Curve) -> Iterator[Caution]:
    few = [point for point in curve.points if point.count < _MIN_RUNS]
    if few:
        fewest = min(point.count for point in few)
        yield Caution(
            "few-runs",
            f"{len(few)} of {len(curve.points)} loads have fewer than {_MIN_RUNS} runs (the "
            f"fewest: {fewest}): how much runs vary is then mostly assumed",
            {"loads": len(few), "fewest_runs": fewest},
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
    """Whether the host's CPUs were taken even where the system had little to do.

    Then other work shared them with the system, and how much it got was a matter of chance. Where
    the ladder has no low load, its lowest is looked at.
    """
    best_pps = float(curve.forwarded_pps.max())
    low = [point for point in curve.points if point.offered_pps <= _LITTLE * best_pps]
    points = low or curve.points[:1]
    shares = np.concatenate([point.table.busy for point in points])
    shares = shares[~np.isnan(shares)]
    if not shares.size or float(np.median(shares)) < _BUSY:
        return ()
    busy = float(np.median(shares))
    return (
        Caution(
            "host-busy",
            f"the host's CPUs were {percent_text(round(busy, 2))} busy even at "
            f"{rate_text(points[0].offered_pps)}, where the system has little to do: other work "
            "took its time",
            {"busy": busy, "offered_pps": points[0].offered_pps, "runs": int(shares.size)},
        ),
    )


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


def _pooled_loads(curve: Curve) -> Iterator[Caution]:
    pooled = groups(curve.offered_pps)
    if len(pooled) < len(curve.points):
        yield Caution(
            "loads-pooled",
            f"{len(curve.points)} loads were pooled into {len(pooled)}, as TIR between loads "
            f"closer than {percent_text(MIN_STEP)} says nothing",
            {"loads": len(curve.points), "groups": len(pooled)},
        )


def _outlying_runs(curve: Curve, plr: float) -> Iterator[Caution]:
    """Few runs far above the others that alone move a load's mean materially."""
    outliers: dict[LoadPoint, tuple[int, float]] = {}
    for point in curve.points:
        values = point.plr_per_run
        if values.size < 5:
            continue
        median = float(np.median(values))
        spread = 1.4826 * float(np.median(np.abs(values - median)))
        far = values > median + max(10 * spread, plr / 2)
        count = int(far.sum())
        if 0 < count <= max(1, values.size // 10):
            outliers[point] = count, float(values[~far].mean())
    if outliers:
        worst = max(outliers, key=lambda point: point.plr_counted - outliers[point][1])
        count, without = outliers[worst]
        yield Caution(
            "outlying-runs",
            f"{_at(outliers, worst)} {count} of {worst.count} runs lost up to "
            f"{percent_text(float(worst.plr_per_run.max()))}, the others "
            f"{percent_text(max(without, 0))} on average: they make the mean "
            f"{percent_text(worst.plr)}",
            {
                "loads": len(outliers),
                "offered_pps": worst.offered_pps,
                "outlying_runs": count,
                "runs": worst.count,
                "worst_plr": float(worst.plr_per_run.max()),
                "mean_plr_without": without,
                "mean_plr": worst.plr_counted,
            },
        )


def _varying(curve: Curve, runs: int) -> list[LoadPoint]:
    """Loads with at least so many runs whose loss and its variation are material."""
    return [
        point
        for point in curve.points
        if point.count >= runs and point.deviation is not None and point.deviation > _MATERIAL_PLR
    ]


def _autocorrelated(curve: Curve) -> Iterator[Caution]:
    points = _varying(curve, 10)
    shares: dict[LoadPoint, float] = {}
    for point in points:
        size = point.count
        rho = lag1(point.plr_per_run)
        # Under independence lag-1 correlation is about normal around −1/K (Moran 1948).
        z = (rho + 1 / size) / math.sqrt((size - 2) ** 2 / (size**2 * (size - 1)))
        if rho > 0 and normal_tail(z) / 2 < _ALPHA / len(points):
            shares[point] = rho
    if shares:
        worst = max(shares, key=lambda point: shares[point])
        rho, size = shares[worst], worst.count
        yield Caution(
            "autocorrelated",
            f"{_at(shares, worst)} consecutive runs resemble each other (lag-1 correlation "
            f"{rho:+.2f}): {size} runs prove as much as about "
            f"{max(1, size * (1 - rho) / (1 + rho)):.0f} independent ones",
            {"loads": len(shares), "offered_pps": worst.offered_pps, "lag1": rho, "runs": size},
        )


def _drifting(curve: Curve, plr: float) -> Iterator[Caution]:
    points = _varying(curve, 10)
    gaps: dict[LoadPoint, tuple[float, float, float]] = {}
    for point in points:
        tau, z = _kendall_trend(point.plr_per_run)
        third = point.count // 3
        early = float(point.plr_per_run[:third].mean())
        late = float(point.plr_per_run[-third:].mean())
        # Autocorrelation alone makes trends look significant: only strong, material ones count.
        if normal_tail(z) < _ALPHA / len(points) and abs(tau) > 0.35 and abs(late - early) > plr:
            gaps[point] = tau, early, late
    if gaps:
        worst = max(gaps, key=lambda point: abs(gaps[point][2] - gaps[point][1]))
        tau, early, late = gaps[worst]
        yield Caution(
            "drifting",
            f"{_at(gaps, worst)} loss {'rises' if tau > 0 else 'falls'} over the runs, from "
            f"{percent_text(max(early, 0))} in the first third to {percent_text(max(late, 0))} in "
            f"the last (Kendall's tau {tau:+.2f})",
            {
                "loads": len(gaps),
                "offered_pps": worst.offered_pps,
                "kendall_tau": tau,
                "first_third_plr": early,
                "last_third_plr": late,
            },
        )


def _sweep_drifting(drift: CapacityTrend | None) -> Iterator[Caution]:
    if drift is not None and drift.material:
        yield Caution(
            "capacity-drifts",
            "throughput at saturated loads changed by "
            f"{percent_text(drift.change, signed=True)} from the first to the last trial of the "
            f"sweep (t = {drift.t:.1f})",
            {"change": drift.change, "t": drift.t},
        )


def _kendall_trend(values: Floats) -> tuple[float, float]:
    """Mann and Kendall's test of a trend over the index: tau and its normal deviate.

    At most the 2000 means of equal chunks are compared, so that a million runs stay cheap.
    """
    if values.size > 2000:
        values = np.array([chunk.mean() for chunk in np.array_split(values, 2000)])
    size = values.size
    signs = np.sign(values[None, :] - values[:, None])
    score = float(np.triu(signs, 1).sum())
    _, ties = np.unique(values, return_counts=True)
    variance = (
        size * (size - 1) * (2 * size + 5) - float((ties * (ties - 1) * (2 * ties + 5)).sum())
    ) / 18
    if variance <= 0:
        return 0.0, 0.0
    return score / (size * (size - 1) / 2), (score - math.copysign(1, score)) / math.sqrt(variance)


def _not_monotone(ladder: Moments) -> Iterator[Caution]:
    """Loads that lose materially and significantly less than a lower load."""
    mean, scale = ladder.mean, ladder.scale
    alpha = _ALPHA / max(1, mean.size - 1)
    falls: list[tuple[float, int, int]] = []
    worst = 0
    for index in range(1, mean.size):
        if mean[index - 1] > mean[worst]:
            worst = index - 1
        fall = float(mean[worst] - mean[index])
        error = math.hypot(float(scale[worst]), float(scale[index]))
        if fall > _MATERIAL_PLR and float(ndtr(-fall / error)) < alpha:
            falls.append((fall, worst, index))
    if falls:
        _, lower, higher = max(falls)
        yield Caution(
            "loss-not-monotone",
            f"less is lost at {rate_text(ladder.offered_pps[higher])} "
            f"({percent_text(max(mean[higher], 0))}) than at "
            f"{rate_text(ladder.offered_pps[lower])} ({percent_text(mean[lower])}): a search that "
            "assumes that loss rises with load may end anywhere between",
            {
                "loads": len(falls),
                "lower_load_pps": float(ladder.offered_pps[lower]),
                "lower_load_plr": float(mean[lower]),
                "higher_load_pps": float(ladder.offered_pps[higher]),
                "higher_load_plr": float(mean[higher]),
                "standard_error": math.hypot(float(scale[lower]), float(scale[higher])),
            },
        )


def _trashing(ladder: Moments, draws: Draws) -> Iterator[Caution]:
    """Throughput that falls materially with load (PASTRAMI, equation 5: past O_trash)."""
    forwarded = ladder.offered_pps * (1 - ladder.mean)
    peak = int(forwarded.argmax())
    if peak == forwarded.size - 1:
        return
    low = peak + 1 + int(forwarded[peak + 1 :].argmin())
    drawn = draws.forwarded_pps
    share = float((drawn[:, low] < (1 - _MATERIAL_FALL) * drawn[:, peak]).mean())
    if share >= 1 - _ALPHA:
        fall = 1 - float(forwarded[low] / forwarded[peak])
        yield Caution(
            "trashing",
            f"throughput falls by {percent_text(fall)} with load: from "
            f"{rate_text(forwarded[peak])} at {rate_text(ladder.offered_pps[peak])} offered to "
            f"{rate_text(forwarded[low])} at {rate_text(ladder.offered_pps[low])}",
            {
                "peak_offered_pps": float(ladder.offered_pps[peak]),
                "peak_throughput_pps": float(forwarded[peak]),
                "low_offered_pps": float(ladder.offered_pps[low]),
                "low_throughput_pps": float(forwarded[low]),
                "share_of_draws": share,
            },
        )


def _unexplained_loss(curve: Curve) -> Iterator[Caution]:
    """Loss that drop counters do not explain, at loads where a counter was read."""
    counts = {point: _lost_and_explained(point.table) for point in curve.points}
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


def _lost_and_explained(table: RunTable) -> tuple[int, int]:
    """Packets lost, and those that counters explain, over the runs that have a counter."""
    counted = table.drops >= 0
    lost = np.maximum(table.sent - table.received, 0)[counted]
    return int(lost.sum()), int(np.minimum(table.drops[counted], lost).sum())


def _at(points: Collection[LoadPoint], worst: LoadPoint) -> str:
    if len(points) == 1:
        return f"at {rate_text(worst.offered_pps)}"
    return f"at {len(points)} loads, most at {rate_text(worst.offered_pps)}:"
