"""What a trial measured, or the load trials of a block: a value, its resolution and bounds."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planewise.judge.bounded import Bounded
from planewise.judge.headroom import headrooms
from planewise.store.models import TrialRecord

PLR = 0.005
"""Loss ratio that PDR allows."""


@dataclass(frozen=True)
class MeasuredValue:
    """What a trial, or the load trials of a block, measured."""

    value: float
    resolution: float
    """Least difference that the instrument can tell, in the unit of the value."""
    at_least: bool = False
    """Something other than the SUT, or the end of the ladder, was the limit: the true value is
    this or more."""
    headroom: float = 0.0
    """How much more it may be: nothing is known between two loads of a ladder."""
    at_most: bool = False
    """The ladder begins above it: the true value is this or less."""
    counts: tuple[int, int] | None = None
    """Packets lost and sent, where the value is their ratio."""

    @property
    def bounded(self) -> Bounded:
        """The value with what is known of where the truth lies: what statistics use."""
        low = -math.inf if self.at_most else self.value
        return Bounded(self.value, low, math.inf if self.at_least else self.value + self.headroom)


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
    """The mean forwarding rate of a block at this load, or at the nearest that the block has.

    The choice of the load minds no result of the block, which the greatest rate would favour.
    Where its trials lost nothing, more is possible: up to the next load that lost something, and
    without limit where there is none.
    """
    rates: dict[float, list[tuple[float, TrialRecord]]] = defaultdict(list)
    for trial in trials:
        if trial.load is not None and (rate := forwarded_pps(trial)) is not None:
            rates[trial.load.intended_pps].append((rate, trial))
    if not rates or load_pps is None:
        return None
    at_load = rates[min(rates, key=lambda load: abs(load - load_pps))]
    rate = statistics.fmean(rate for rate, _ in at_load)
    durations_s = [trial.duration_s for _, trial in at_load if trial.duration_s]
    resolution = 1 / sum(durations_s) if durations_s else 1.0
    if any(trial.is_bound for _, trial in at_load):
        return MeasuredValue(rate, resolution, at_least=True)
    if any(trial.counts and trial.counts.lost for _, trial in at_load):
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
    """PDR of a block, read off its loads as the verdict reads it off the means of all blocks.

    Its resolution is how far apart the lower and the upper reading between the two loads are.
    Where the first load already loses more: at most that load.
    """
    ladder = _ladder(trials)
    if not ladder:
        return None
    loads, losses = np.array(ladder).T
    if losses[0] > PLR:
        return MeasuredValue(ladder[0][0], 0.0, at_most=True)
    if (losses <= PLR).all():
        return MeasuredValue(ladder[-1][0], 0.0, at_least=True)
    read = headrooms(loads, losses[None, :], PLR)
    low, high = float(read.pdr_low_pps[0]), float(read.pdr_high_pps[0])
    return MeasuredValue(low, high - low, headroom=high - low)


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
