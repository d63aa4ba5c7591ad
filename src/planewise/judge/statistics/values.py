"""What a trial measured, or the load trials of a block: a value, its resolution and bounds."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from planewise.store.models import TrialRecord

PLR = 0.005
"""Loss ratio that PDR allows."""


@dataclass(frozen=True)
class MeasuredValue:
    """What a trial, or the load trials of a block, measured: as the fields of `Observation`."""

    value: float
    resolution: float
    at_least: bool = False
    headroom: float = 0.0
    at_most: bool = False
    counts: tuple[int, int] | None = None


def forwarded_pps(trial: TrialRecord) -> float | None:
    """Forwarding rate of a load trial; None when it sent nothing."""
    if trial.load is None or trial.counts is None or not trial.counts.sent:
        return None
    return trial.load.achieved_pps * trial.counts.received / trial.counts.sent


def best_load(trials: Sequence[TrialRecord]) -> float | None:
    """The offered load of a cell at which it forwards most on average, of those that at least half
    of its blocks measured. The greatest rate of each block would count the luckiest trial."""
    rates: dict[float, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if trial.load is not None and (rate := forwarded_pps(trial)) is not None:
            rates[trial.load.intended_pps][trial.block].append(rate)
    most = max(map(len, rates.values()), default=0)
    means = {
        load: statistics.fmean(map(statistics.fmean, by_block.values()))
        for load, by_block in rates.items()
        if 2 * len(by_block) >= most
    }
    return max(means, key=lambda load: means[load], default=None)


def forwarded(trials: Sequence[TrialRecord], load_pps: float | None) -> MeasuredValue | None:
    """The forwarding rate of a block at this load, or its greatest where it lacks the load.

    Where the trial lost nothing, more is possible: up to the next load that lost something, and
    without limit where there is none.
    """
    at_load = [t for t in trials if t.load is not None and t.load.intended_pps == load_pps]
    rates = [
        (rate, trial.is_bound, trial)
        for trial in at_load or trials
        if (rate := forwarded_pps(trial)) is not None
    ]
    if not rates:
        return None
    rate, limited, trial = max(rates, key=lambda item: item[:2])
    resolution = 1 / trial.duration_s if trial.duration_s else 1.0
    if limited:
        return MeasuredValue(rate, resolution, at_least=True)
    if trial.counts and trial.counts.lost:
        return MeasuredValue(rate, resolution)
    lossy = [t.load.intended_pps for t in trials if t.load and t.counts and t.counts.lost > 0]
    above = [load for load in lossy if load >= rate]
    return MeasuredValue(
        rate, resolution, at_least=not above, headroom=min(above, default=rate) - rate
    )


def _ladder(trials: Sequence[TrialRecord]) -> list[tuple[float, float]]:
    """Offered loads, rising, with the mean PLR of the trials there that tell of the SUT."""
    losses: dict[float, list[float]] = defaultdict(list)
    for trial in trials:
        if not trial.is_bound and trial.counts and trial.counts.sent and trial.load:
            losses[trial.load.intended_pps].append(trial.counts.lost / trial.counts.sent)
    return [(load, statistics.fmean(lost)) for load, lost in sorted(losses.items()) if load > 0]


def ndr(trials: Sequence[TrialRecord]) -> MeasuredValue | None:
    """Highest load up to which nothing was lost; its resolution is the step that follows.

    Where the first load already lost packets: at most that load.
    """
    ladder = _ladder(trials)
    if not ladder:
        return None
    lossy = next((i for i, (_, plr) in enumerate(ladder) if plr > 0), len(ladder))
    if lossy == 0:
        return MeasuredValue(ladder[0][0], 0.0, at_most=True)
    load = ladder[lossy - 1][0]
    if lossy == len(ladder):
        return MeasuredValue(load, 0.0, at_least=True)
    step_pps = ladder[lossy][0] - load
    return MeasuredValue(load, step_pps, headroom=step_pps)


def pdr(trials: Sequence[TrialRecord]) -> MeasuredValue | None:
    """First crossing of 0.5 % loss, interpolated (docs/concepts/verdict.md).

    Its resolution is how far apart the lower and the upper reading between the two loads are.
    Where the first load already loses more: at most that load.
    """
    ladder = _ladder(trials)
    if not ladder:
        return None
    over = next((i for i, (_, plr) in enumerate(ladder) if plr > PLR), len(ladder))
    if over == 0:
        return MeasuredValue(ladder[0][0], 0.0, at_most=True)
    low, plr_low = ladder[over - 1]
    if over == len(ladder):
        return MeasuredValue(low, 0.0, at_least=True)
    high, plr_high = ladder[over]
    chord = low + (PLR - plr_low) / (plr_high - plr_low) * (high - low)
    knee = min(max(high * (1 - plr_high) / (1 - PLR), chord), high)
    return MeasuredValue(chord, knee - chord, headroom=knee - chord)


def transmitted(trial: TrialRecord) -> MeasuredValue | None:
    """Rate of all functions of a chain; a counter's step is one packet."""
    if trial.chain is None:
        return None
    step_pps = 1 / trial.duration_s if trial.duration_s else 1.0
    return MeasuredValue(trial.chain.tx_pps, step_pps, at_least=trial.is_bound)


def transmitted_bits(trial: TrialRecord) -> MeasuredValue | None:
    """The same in bits a second, of frames without FCS."""
    if trial.chain is None:
        return None
    packet_bits = 8 * trial.chain.frame_bytes
    step_bps = packet_bits / trial.duration_s if trial.duration_s else 1.0
    return MeasuredValue(trial.chain.tx_bps, step_bps, at_least=trial.is_bound)


def goodput(trial: TrialRecord) -> MeasuredValue | None:
    """What a TCP receiver got [bit/s]; the step is one message."""
    if trial.tcp is None:
        return None
    message_bits = 8 * trial.tcp.message_bytes
    step_bps = message_bits / trial.duration_s if trial.duration_s else 1.0
    return MeasuredValue(trial.tcp.goodput_bps, step_bps, at_least=trial.is_bound)


def figure_of(trial: TrialRecord, name: str) -> MeasuredValue | None:
    """A number that the trial brings with it; None where it has not this one."""
    figure = trial.figures.get(name)
    if figure is None:
        return None
    return MeasuredValue(figure.value, figure.resolution, at_least=trial.is_bound)
