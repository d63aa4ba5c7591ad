"""What a fast plane saves a guest's packets, by packet rate and frame size.

Publication F (section 4.3) ranks guests by the *boost* of a VF: by how much the median latency
falls, as a share of the paravirtual one. The daemon's policy `benefit` needs the same in time: what
each packet of a guest saves at that guest's rate. Both come from one run, block by block.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
from planewise.judge.bounded import Bounded, exact, mapped, mean_of, median_of, minus
from planewise.judge.statistics import RunSample, observe
from planewise.judge.statistics.estimates import median_interval
from planewise.store.levels import MissedLevel, missed_levels
from planewise.store.models import Level, RunInfo, TrialRecord
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


@dataclass(frozen=True)
class Interval:
    """A median over blocks with its 95 % interval (order statistics); infinite where it is open."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class GainRow:
    """Both planes at one packet rate and frame size."""

    frequency_pps: float
    """Round trips a second."""
    size_bytes: int
    """Frame, with FCS."""
    blocks: int
    slow_ns: Interval
    """Median RTT on the slow plane."""
    fast_ns: Interval
    boost: Interval
    """1 − fast/slow of the medians: publication F's boost, as a share."""
    boost_p99: Interval
    """The same of the 99th percentiles."""


@dataclass(frozen=True)
class CpuRow:
    """Kernel CPU time per packet on both planes under load."""

    size_bytes: int
    slow_ns: Interval
    fast_ns: Interval


@dataclass(frozen=True)
class Gain:
    """What a run says of the gain of one plane over another."""

    slow: str
    fast: str
    rows: tuple[GainRow, ...]
    curve: tuple[CurvePoint, ...]
    """By rising packet rate; the time saved by all packets of a second never falls with it."""
    cpu: tuple[CpuRow, ...]
    size_matters: SizeMatters
    notes: tuple[str, ...]
    """Sentences that a reader needs."""


def gain_of(sample: RunSample, slow: str, fast: str) -> Gain:
    """The gain of plane `fast` over `slow` in this run.

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
            remedy=f"set blocks: 8 in the design, or resume the run; {'; '.join(notes)}".rstrip(
                "; "
            ),
        )
    curve, curve_notes = _curve(saved, sample.label)
    size_matters, size_note = _size(saved)
    notes += [*curve_notes, size_note]
    return Gain(
        slow, fast, tuple(rows), curve, _cpu(sample, slow, fast), size_matters, tuple(notes)
    )


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


def _interval(values: Sequence[Bounded]) -> Interval:
    return Interval(median_of(values).value, *median_interval(values))


def _boost(slow: Bounded, fast: Bounded) -> Bounded:
    """1 − fast/slow, with the ends that bounds leave."""
    low = 1 - fast.high / slow.low if slow.low > 0 and math.isfinite(fast.high) else -math.inf
    high = 1 - fast.low / slow.high if fast.low > 0 else 1.0
    return Bounded(min(max(1 - fast.value / slow.value, low), high), low, high)


def _row(stratum: Stratum, pairs: Pairs, tails: Pairs) -> GainRow:
    boost_p99 = (
        _interval([_boost(a, b) for a, b in tails.values()])
        if tails
        else Interval(math.nan, -math.inf, math.inf)
    )
    return GainRow(
        frequency_pps=stratum[0],
        size_bytes=stratum[1],
        blocks=len(pairs),
        slow_ns=_interval([a for a, _ in pairs.values()]),
        fast_ns=_interval([b for _, b in pairs.values()]),
        boost=_interval([_boost(a, b) for a, b in pairs.values()]),
        boost_p99=boost_p99,
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
        gains.append(_interval([_scaled(mean_of(several), scale) for several in blocks.values()]))
    floor = np.maximum.accumulate([gain.low for gain in gains])
    ceiling = np.minimum.accumulate([gain.high for gain in reversed(gains)])[::-1]
    if (floor > ceiling).any():
        slower, faster = max(
            combinations(range(len(gains)), 2),
            key=lambda pair: gains[pair[0]].low - gains[pair[1]].high,
        )
        raise BadInputError(
            f"the gain falls with the packet rate: {_per_second(gains[slower].low)} or more at "
            f"{rate_text(rates[slower])} and {_per_second(gains[faster].high)} or less at "
            f"{rate_text(rates[faster])}",
            where=where,
            remedy="look in the run's report for what disturbed the faster trials, and measure "
            "with rates that both planes carry",
        )
    spreads = [max(gain.high - gain.low, 1e-9) for gain in gains]
    weights = [1 / spread**2 if math.isfinite(spread) else 1e-12 for spread in spreads]
    fitted = isotonic_regression([gain.value for gain in gains], weights=weights).x
    points, notes = [], []
    for rate, fit, low, high in zip(rates, fitted, floor, ceiling, strict=True):
        pps = PACKETS_PER_ROUND_TRIP * rate
        if fit < 0:
            notes.append(f"at {rate_text(rate)} the fast plane saves nothing: it counts as 0 µs")
        ends = {"low_us": _closed(float(low) / pps), "high_us": _closed(float(high) / pps)}
        points.append(CurvePoint(pps=pps, saved_us=max(float(fit), 0.0) / pps, **ends))
    return tuple(points), notes


def _scaled(value: Bounded, scale: float) -> Bounded:
    return mapped(value, lambda end: end * scale)


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
    interval = _interval(ratios)
    words = (
        f"frames of {large} bytes save {percent_text(interval.value)} of what frames of {small} "
        f"bytes save ({percent_text(interval.low)} to {percent_text(interval.high)})"
    )
    if interval.low > 1 - SIZE_MARGIN and interval.high < 1 + SIZE_MARGIN:
        return "no", f"the frame size does not matter, as publication F assumes: {words}"
    if interval.low > 1 or interval.high < 1:
        return "yes", f"the frame size matters, contrary to publication F: {words}"
    return "not known", f"whether the frame size matters is not known: {words}"


def _cpu(sample: RunSample, slow: str, fast: str) -> tuple[CpuRow, ...]:
    values: dict[tuple[int, str], list[Bounded]] = defaultdict(list)
    for observation in observe([sample], "cpu_per_packet").observations:
        values[int(observation.cell.get("size_bytes", 0)), str(observation.cell["plane"])].append(
            observation.bounded
        )
    sizes = sorted({size for size, _ in values})
    return tuple(
        CpuRow(size, _interval(values[size, slow]), _interval(values[size, fast]))
        for size in sizes
        if (size, slow) in values and (size, fast) in values
    )


def profile_of(gain: Gain, info: RunInfo, switch: SwitchPrice | None = None) -> GainProfile:
    """The gain with the host of the run's sender, whose fingerprint it carries."""
    hosts = info.hosts
    host = hosts.get("sender") or hosts.get("shared") or next(iter(hosts.values()))
    return GainProfile(
        format=2,
        kind="gain",
        planewise=info.planewise,
        run=info.run,
        slow=gain.slow,
        fast=gain.fast,
        size_matters=gain.size_matters,
        emulated=info.emulated,
        host=ProfileHost.model_validate(host, from_attributes=True),
        curve=gain.curve,
        measured=tuple(
            MeasuredRow(
                round_trips_pps=row.frequency_pps,
                size_bytes=row.size_bytes,
                blocks=row.blocks,
                slow_us=row.slow_ns.value / 1e3,
                fast_us=row.fast_ns.value / 1e3,
                boost_percent=100 * row.boost.value,
                boost_low_percent=_closed(100 * row.boost.low),
                boost_high_percent=_closed(100 * row.boost.high),
                boost_p99_percent=_closed(100 * row.boost_p99.value),
            )
            for row in gain.rows
        ),
        switch=switch,
    )


def _closed(value: float) -> float | None:
    return value if math.isfinite(value) else None
