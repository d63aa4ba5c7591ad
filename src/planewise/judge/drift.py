"""Did the machine stay the same while it was measured? Works on a run's trials alone.

Looks at the results themselves (each cell against its own mean, in the order of time) and at what
was recorded of the hosts around every trial. Blocks keep comparisons fair under drift; absolute
values, and intervals over blocks, carry it. Nothing here changes a result.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from planewise.judge.statistics.metrics import rtt_source
from planewise.store.levels import keeps_levels
from planewise.store.models import HostState, Level, RunInfo, TrialRecord
from planewise.units import percent_text

RESULT_CHANGE = 0.05
"""Relative change over the run from which a significant trend in the results is reported."""
P_VALUE = 0.01
"""Of Kendall's test of the residuals against time."""
BLOCK_CHANGE = 0.10
"""How far a block must lie off the others."""
STEAL, FOREIGN_CPU = 0.01, 0.10
"""Shares of all CPUs' time that a trial should not lose to others."""
FEW_TRIALS = 0.05
"""Share of the trials that may have lost more before it is reported."""
CLOCK_CHANGE, HEAT_CHANGE_C = 0.05, 10.0
NORMAL_MAD = 0.6744897501960817
"""Median absolute deviation of the standard normal distribution."""
_MOST_POINTS = 500
"""The slope is taken over all pairs of points: so many groups of neighbouring trials at most."""

DriftCode = Literal[
    "results", "block", "session", "governor", "clock", "heat", "throttled", "steal",
    "foreign_cpu", "offloads",
]  # fmt: skip


@dataclass(frozen=True)
class Drift:
    """Something that changed, or kept changing, while the run was measured."""

    code: DriftCode
    sentence: str
    """For people, with the numbers in it."""
    evidence: Mapping[str, Level] = field(default_factory=dict)


def find_drift(trials: Iterable[TrialRecord], info: RunInfo | None = None) -> tuple[Drift, ...]:
    """Everything that changed, results first. Empty when the machine stayed the same.

    `info` adds what changed between the sittings of a resumed run.
    """
    done = sorted((trial for trial in trials if keeps_levels(trial)), key=lambda trial: trial.order)
    drifts = [*_in_results(done)]
    if info is not None:
        for session in info.sessions:
            drifts += [
                Drift("session", f"The run was continued on a system that had changed: {change}.")
                for change in session.changed
            ]
    for role in dict.fromkeys(role for trial in done for role in trial.host):
        drifts += _in_host(role, [trial.host[role] for trial in done if role in trial.host])
    return tuple(drifts)


@dataclass(frozen=True)
class Residual:
    """How far a trial's median RTT is from its cell's."""

    trial: TrialRecord
    log_relative: float
    """Logarithm of the trial's median, less the mean of its cell's."""


def residuals(trials: Iterable[TrialRecord]) -> list[Residual]:
    """A residual a trial, in the order of time; only cells with at least two trials have any."""
    trials = list(trials)
    source = rtt_source(trials)
    cells: dict[tuple[tuple[str, Level], ...], list[TrialRecord]] = {}
    for trial in trials:
        if trial.kind == "rtt" and source in trial.latency and trial.latency[source].p50_ns > 0:
            cells.setdefault(tuple(sorted(trial.cell.items())), []).append(trial)
    found = []
    for of_cell in cells.values():
        if len(of_cell) > 1:
            logs = [math.log(trial.latency[source].p50_ns) for trial in of_cell]
            mean = math.fsum(logs) / len(logs)
            found += [Residual(trial, log - mean) for trial, log in zip(of_cell, logs, strict=True)]
    return sorted(found, key=lambda one: one.trial.started)


def _in_results(trials: Sequence[TrialRecord]) -> Iterable[Drift]:
    found = residuals(trials)
    seconds = np.array([one.trial.started.timestamp() for one in found])
    blocks = np.array([one.trial.block for one in found])
    values = np.array([one.log_relative for one in found])
    if len(np.unique(blocks)) < 2:
        return
    yield from _trend(seconds, values)
    yield from _odd_blocks(blocks, values)


def _trend(seconds: NDArray[np.float64], values: NDArray[np.float64]) -> Iterable[Drift]:
    groups = np.array_split(np.arange(len(seconds)), min(_MOST_POINTS, len(seconds)))
    x = np.array([seconds[group].mean() for group in groups])
    y = np.array([values[group].mean() for group in groups])
    if len(x) < 8 or x[-1] <= x[0] or np.ptp(y) == 0:
        return
    first, second = np.triu_indices(len(x), 1)
    apart = x[second] > x[first]
    slopes = (y[second] - y[first])[apart] / (x[second] - x[first])[apart]
    if abs(math.expm1(float(np.median(slopes)) * (x[-1] - x[0]))) < RESULT_CHANGE:
        return
    # Loaded here: it takes a second, and few runs have a change to be tested.
    from scipy import stats

    p_value = stats.kendalltau(x, y).pvalue
    slope, _, low, high = stats.theilslopes(y, x, 0.95)
    change, least, most = (math.expm1(value * (x[-1] - x[0])) for value in (slope, low, high))
    if p_value < P_VALUE:
        yield Drift(
            "results",
            f"Round-trip times {'rose' if change > 0 else 'fell'} by "
            f"{percent_text(round(abs(change), 2))} over the run, in all cells alike (95 %: "
            f"{percent_text(round(least, 2), signed=True)} to "
            f"{percent_text(round(most, 2), signed=True)}). Planes are compared within blocks, "
            "which this hardly affects, but absolute times are.",
            {"change": change, "low": least, "high": most, "p_value": float(p_value)},
        )


def _odd_blocks(blocks: NDArray[np.int64], values: NDArray[np.float64]) -> Iterable[Drift]:
    numbers = np.unique(blocks)
    if len(numbers) < 4:
        return
    medians = np.array([np.median(values[blocks == number]) for number in numbers])
    # The median absolute deviation, as the standard deviation of a normal distribution.
    spread = float(np.median(np.abs(medians - np.median(medians)))) / NORMAL_MAD
    for number, median in zip(numbers, medians, strict=True):
        off = math.expm1(median - float(np.median(medians[numbers != number])))
        if abs(off) >= BLOCK_CHANGE and abs(math.log1p(off)) > 4 * spread:
            yield Drift(
                "block",
                f"Block {int(number) + 1} was {percent_text(round(abs(off), 2))} "
                f"{'slower' if off > 0 else 'faster'} than the others, over all cells: something "
                "else was running.",
                {"block": int(number), "off": off},
            )


def _in_host(role: str, states: Sequence[HostState]) -> Iterable[Drift]:
    host = "The host" if role == "shared" else f"The {role} host"
    governors = list(dict.fromkeys(state.governor for state in states))
    if len(governors) > 1:
        yield Drift(
            "governor",
            f"{host}'s frequency governor changed during the run: {' then '.join(governors)}.",
            {"host": role},
        )
    for name in dict.fromkeys(name for state in states for name in state.offloads):
        settings = list(dict.fromkeys(s.offloads[name] for s in states if name in s.offloads))
        if len(settings) > 1:
            yield Drift(
                "offloads",
                f"{host}'s offloads of {name} changed during the run: {' then '.join(settings)}.",
                {"host": role, "nic": name},
            )
    yield from _from_first_to_last(host, role, states)
    throttled = [state.throttled for state in states if state.throttled]
    if throttled:
        yield Drift(
            "throttled",
            f"{host}'s CPUs were slowed down for their heat in {len(throttled)} of "
            f"{len(states)} trials.",
            {"host": role, "times": sum(throttled)},
        )
    yield from _lost("steal", "its hypervisor gave", host, role, [s.steal for s in states], STEAL)
    yield from _lost(
        "foreign_cpu",
        "programs that are not Planewise's used",
        host,
        role,
        [s.foreign_cpu for s in states],
        FOREIGN_CPU,
    )


def _from_first_to_last(host: str, role: str, states: Sequence[HostState]) -> Iterable[Drift]:
    """Clock and heat: the first third of the trials against the last."""
    clocks = [state.cpu_mhz for state in states if state.cpu_mhz]
    if len(clocks) >= 6:
        first, last = _ends(clocks)
        if abs(last / first - 1) >= CLOCK_CHANGE:
            yield Drift(
                "clock",
                f"{host}'s CPUs ran at {first:.0f} MHz in the first third of the trials and at "
                f"{last:.0f} MHz in the last.",
                {"host": role, "first_mhz": first, "last_mhz": last},
            )
    heats = [state.temperature_c for state in states if state.temperature_c is not None]
    if len(heats) >= 6:
        first, last = _ends(heats)
        if abs(last - first) >= HEAT_CHANGE_C:
            yield Drift(
                "heat",
                f"{host} went from {first:.0f} °C in the first third of the trials to "
                f"{last:.0f} °C in the last.",
                {"host": role, "first_c": first, "last_c": last},
            )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    third = len(values) // 3
    return float(np.median(values[:third])), float(np.median(values[-third:]))


def _lost(
    code: DriftCode,
    cause: str,
    host: str,
    role: str,
    shares: Sequence[float | None],
    limit: float,
) -> Iterable[Drift]:
    numbers = [share for share in shares if share is not None]
    above = [share for share in numbers if share > limit]
    if len(above) > FEW_TRIALS * len(numbers):
        loss = f"{cause} more than {percent_text(limit)} of all CPUs' time"
        loss += " to others" if code == "steal" else ""
        yield Drift(
            code,
            f"{host}: {loss} in {len(above)} of {len(numbers)} trials "
            f"(up to {percent_text(round(max(above), 2))}).",
            {"host": role, "trials": len(above), "of": len(numbers), "most": max(above)},
        )
