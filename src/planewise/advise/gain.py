"""What a fast plane saves a guest's packets, by packet rate and frame size.

Publication F (section 4.3) ranks guests by the *boost* of a VF: by how much the median latency
falls, as a share of the paravirtual one. The daemon's policy `benefit` needs the same in time: what
each packet of a guest saves at that guest's rate. Both come from one run, block by block.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import combinations
from statistics import fmean

import numpy as np
from scipy.optimize import isotonic_regression

from planewise.advise.gain_profile import (
    CurvePoint,
    GainProfile,
    MeasuredRow,
    ProfileHost,
    SizeMatters,
    SwitchPrice,
)
from planewise.errors import BadInputError
from planewise.judge.bounded import (
    Bounded,
    exact,
    mapped,
    mean_of,
    median_interval,
    median_of,
    minus,
)
from planewise.judge.statistics.metrics import RunSample, observe
from planewise.store.levels import MissedLevel, missed_levels
from planewise.store.models import Level, TrialRecord
from planewise.units import count_text, percent_text, rate_text, time_text

PASSES = 4
"""How often a round trip between two guests passes the plane: request and answer, at either end."""
PACKETS_PER_ROUND_TRIP = 2
"""Packets that a guest's interface counts in one: one sent, one received."""
FEWEST_BLOCKS = 6
"""With fewer, no order statistics hold a median with 95 %."""
SIZE_MARGIN = 0.25
"""Savings of the largest and the smallest frame that differ by less are practically the same."""

VARIED = {"plane", "frequency_pps", "size_bytes"}


Interval = tuple[float, float, float]
"""A median over blocks with its 95 % interval (order statistics); infinite where it is open."""


def gain_of(
    sample: RunSample, slow: str, fast: str, switch: SwitchPrice | None = None
) -> tuple[GainProfile, list[str]]:
    """The gain of plane `fast` over `slow` in this run, and sentences that a reader needs.

    It carries the fingerprint of the run's sender.

    Raises:
        BadInputError: the run cannot tell: other factors vary, a plane is missing, too few blocks,
            or the time saved by all packets of a second surely falls with the rate.
    """
    _check(sample, slow, fast)
    medians, tails = (_by_stratum(sample, name, slow, fast) for name in ("rtt", "rtt_p99"))
    rows, notes, saved = [], list(_missed(sample.trials)), {}
    for stratum, pairs in sorted(medians.items()):
        if len(pairs) < FEWEST_BLOCKS:
            notes.append(
                f"{_stratum_text(stratum)}: {len(pairs)} blocks have both planes and "
                f"{FEWEST_BLOCKS} are needed, so it is left out"
            )
            continue
        saved[stratum] = {block: minus(a, b) for block, (a, b) in pairs.items()}
        rows.append(_row(stratum, pairs, tails.get(stratum, {})))
    if not rows:
        raise BadInputError(
            f"no packet rate has {FEWEST_BLOCKS} blocks with both {slow} and {fast}",
            where=sample.label,
            remedy="; ".join(("set blocks: 8 in the design, or resume the run", *notes)),
        )
    curve, curve_notes = _curve(saved, sample.label)
    size_matters, size_note = _size(saved)
    info, hosts = sample.info, sample.info.hosts
    host = hosts.get("sender") or hosts.get("shared") or next(iter(hosts.values()))
    profile = GainProfile(
        format=2,
        kind="gain",
        planewise=info.planewise,
        run=info.run,
        slow=slow,
        fast=fast,
        size_matters=size_matters,
        emulated=info.emulated,
        host=ProfileHost.model_validate(host, from_attributes=True),
        curve=curve,
        measured=tuple(rows),
        switch=switch,
    )
    return profile, [*notes, *curve_notes, size_note]


def _check(sample: RunSample, slow: str, fast: str) -> None:
    levels: dict[str, set[Level]] = defaultdict(set)
    trials = [trial for trial in sample.trials if trial.status == "done" and trial.kind == "rtt"]
    for trial in trials:
        for name, level in sample.cell(trial).items():
            levels[name].add(level)
    for plane in (slow, fast):
        if plane not in levels["plane"]:
            planes = ", ".join(sorted(map(str, levels["plane"]))) or "no plane"
            raise BadInputError(
                f"the run has no round-trip times of plane '{plane}'; it has {planes}",
                where=sample.label,
                remedy="name two of its planes with --plane and --against",
            )
    varied = sorted(name for name in levels if name not in VARIED and len(levels[name]) > 1)
    if varied:
        raise BadInputError(
            f"the run varies {', '.join(varied)}, too: its gain is not that of the plane alone",
            where=sample.label,
            remedy="measure with plane, frequency_pps and size_bytes as the only factors, as "
            "experiments/boost.yaml does",
        )


# --- values by stratum ---------------------------------------------------------------------------

Stratum = tuple[float, int]
"""Round trips a second, frame bytes."""
Pairs = Mapping[int, tuple[Bounded, Bounded]]
"""By block: the slow and the fast plane."""


def _stratum_text(stratum: Stratum) -> str:
    return f"{rate_text(stratum[0])} of {stratum[1]} bytes"


def _stratum(cell: Mapping[str, Level]) -> Stratum:
    return float(cell.get("frequency_pps", 0)), int(cell.get("size_bytes", 0))


def _missed(trials: Iterable[TrialRecord]) -> Iterable[str]:
    """What trials that are not at their level achieved: `observe` has left them out."""
    by_level: dict[tuple[Stratum, str, str], list[MissedLevel]] = defaultdict(list)
    for trial in trials:
        if trial.kind == "rtt":
            for missed in missed_levels(trial):
                key = _stratum(trial.cell), str(trial.cell.get("plane")), missed.factor
                by_level[key].append(missed)
    for (stratum, plane, _), several in sorted(by_level.items()):
        middle = sorted(several, key=lambda level: level.share)[len(several) // 2]
        yield (
            f"{_stratum_text(stratum)} on {plane}: {count_text(len(several), 'trial')} left out "
            f"({middle.sentence})"
        )


def _by_stratum(sample: RunSample, metric: str, slow: str, fast: str) -> dict[Stratum, Pairs]:
    """Blocks with both planes by stratum; several trials of a block are averaged."""
    values: dict[Stratum, dict[int, dict[str, list[Bounded]]]] = {}
    for observation in observe([sample], metric).observations:
        planes = values.setdefault(_stratum(observation.cell), {}).setdefault(observation.block, {})
        planes.setdefault(str(observation.cell["plane"]), []).append(observation.bounded)
    return {
        stratum: {
            block: (mean_of(planes[slow]), mean_of(planes[fast]))
            for block, planes in sorted(blocks.items())
            if slow in planes and fast in planes
        }
        for stratum, blocks in values.items()
    }


def _interval(values: Iterable[Bounded]) -> Interval:
    values = list(values)
    return median_of(values).value, *median_interval(values)


def _boost(slow: Bounded, fast: Bounded) -> Bounded:
    """1 − fast/slow, with the ends that bounds leave."""
    low = 1 - fast.high / slow.low if slow.low > 0 and math.isfinite(fast.high) else -math.inf
    high = 1 - fast.low / slow.high if fast.low > 0 else 1.0
    return Bounded(min(max(1 - fast.value / slow.value, low), high), low, high)


def _row(stratum: Stratum, pairs: Pairs, tails: Pairs) -> MeasuredRow:
    boost, low, high = _interval(_boost(a, b) for a, b in pairs.values())
    tail = median_of([_boost(a, b) for a, b in tails.values()]).value if tails else math.nan
    return MeasuredRow(
        round_trips_pps=stratum[0],
        size_bytes=stratum[1],
        blocks=len(pairs),
        slow_us=median_of([a for a, _ in pairs.values()]).value / 1e3,
        fast_us=median_of([b for _, b in pairs.values()]).value / 1e3,
        boost_percent=100 * boost,
        boost_low_percent=_closed(100 * low),
        boost_high_percent=_closed(100 * high),
        boost_p99_percent=_closed(100 * tail),
    )


# --- the curve -----------------------------------------------------------------------------------


def _curve(
    saved: Mapping[Stratum, Mapping[int, Bounded]], where: str
) -> tuple[tuple[CurvePoint, ...], list[str]]:
    """The time that a packet saves by packet rate, fitted so that the gain never falls.

    What ranks guests is the time that all packets of a second save. A guest that sends more cannot
    gain less; the fit is the isotonic regression of that (Barlow et al., Statistical inference
    under order restrictions, 1972), weighed by the blocks' precision. Under the same order a lower
    end holds for all higher rates, too, and an upper end for all lower ones.
    """
    rates = sorted({frequency for frequency, _ in saved})
    gains = []
    for rate in rates:
        blocks: dict[int, list[Bounded]] = defaultdict(list)
        for stratum, values in saved.items():
            if stratum[0] == rate:
                for block, value in values.items():
                    blocks[block].append(value)
        # µs a second: each round trip's saving is that of PASSES passes, of which the guest's
        # interface counts PACKETS_PER_ROUND_TRIP.
        scale = rate * PACKETS_PER_ROUND_TRIP / PASSES / 1e3
        gains.append(
            _interval(
                mapped(mean_of(several), lambda end, by=scale: end * by)  # type: ignore[misc]
                for several in blocks.values()
            )
        )
    middles, lows, highs = zip(*gains, strict=True)
    floor = np.maximum.accumulate(lows)
    ceiling = np.minimum.accumulate(highs[::-1])[::-1]
    if (floor > ceiling).any():
        slower, faster = max(
            combinations(range(len(gains)), 2),
            key=lambda pair: lows[pair[0]] - highs[pair[1]],
        )
        raise BadInputError(
            f"the gain falls with the packet rate: {_per_second(lows[slower])} or more at "
            f"{rate_text(rates[slower])} and {_per_second(highs[faster])} or less at "
            f"{rate_text(rates[faster])}",
            where=where,
            remedy="look in the run's report for what disturbed the faster trials, and measure "
            "with rates that both planes carry",
        )
    spreads = [max(high - low, 1e-9) for low, high in zip(lows, highs, strict=True)]
    weights = [1 / spread**2 if math.isfinite(spread) else 1e-12 for spread in spreads]
    fitted = isotonic_regression(middles, weights=weights).x
    points, notes = [], []
    for rate, fit, low, high in zip(rates, fitted, floor, ceiling, strict=True):
        pps = PACKETS_PER_ROUND_TRIP * rate
        if fit < 0:
            notes.append(f"at {rate_text(rate)} the fast plane saves nothing: it counts as 0 µs")
        ends = {"low_us": _closed(float(low) / pps), "high_us": _closed(float(high) / pps)}
        points.append(CurvePoint(pps=pps, saved_us=max(float(fit), 0.0) / pps, **ends))
    return tuple(points), notes


def _per_second(us: float) -> str:
    return f"{time_text(us * 1e3)} a second"


def _size(saved: Mapping[Stratum, Mapping[int, Bounded]]) -> tuple[SizeMatters, str]:
    """Whether the saving depends on the frame size, block by block over all rates."""
    sizes = sorted({size for _, size in saved})
    if len(sizes) < 2:
        return "not known", "one frame size was measured: whether size matters is not known"
    small, large = sizes[0], sizes[-1]
    rates = [rate for rate, size in saved if size == small and (rate, large) in saved]
    ratios = []
    for block in sorted({block for values in saved.values() for block in values}):
        pairs = [
            (saved[rate, small][block], saved[rate, large][block])
            for rate in rates
            if block in saved[rate, small] and block in saved[rate, large]
        ]
        if pairs and (saved_small := fmean(a.value for a, _ in pairs)) > 0:
            ratios.append(exact(fmean(b.value for _, b in pairs) / saved_small))
    if len(ratios) < FEWEST_BLOCKS:
        return "not known", "too few blocks tell whether the frame size matters"
    ratio, low, high = _interval(ratios)
    words = (
        f"frames of {large} bytes save {percent_text(ratio)} of what frames of {small} bytes save "
        f"({percent_text(low)} to {percent_text(high)})"
    )
    if low > 1 - SIZE_MARGIN and high < 1 + SIZE_MARGIN:
        return "no", f"the frame size does not matter, as publication F assumes: {words}"
    if low > 1 or high < 1:
        return "yes", f"the frame size matters, contrary to publication F: {words}"
    return "not known", f"whether the frame size matters is not known: {words}"


def _closed(value: float) -> float | None:
    return value if math.isfinite(value) else None
