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


def residuals(trials: Iterable[TrialRecord]) -> list[tuple[TrialRecord, float]]:
    """Trials in the order of time, each with how far the logarithm of its median RTT is from the
    mean of its cell; only cells with at least two trials have any."""
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
            found += [(trial, log - mean) for trial, log in zip(of_cell, logs, strict=True)]
    return sorted(found, key=lambda one: one[0].started)


def _in_results(trials: Sequence[TrialRecord]) -> Iterable[Drift]:
    found = residuals(trials)
    seconds = np.array([trial.started.timestamp() for trial, _ in found])
    blocks = np.array([trial.block for trial, _ in found])
    values = np.array([value for _, value in found])
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
    where = {"host": role}
    governors = list(dict.fromkeys(state.governor for state in states))
    if len(governors) > 1:
        changed = f"{host}'s frequency governor changed during the run: {' then '.join(governors)}."
        yield Drift("governor", changed, where)
    for name in dict.fromkeys(name for state in states for name in state.offloads):
        settings = list(dict.fromkeys(s.offloads[name] for s in states if name in s.offloads))
        if len(settings) > 1:
            changed = f"{host}'s offloads of {name} changed during the run: "
            yield Drift("offloads", f"{changed}{' then '.join(settings)}.", {**where, "nic": name})
    clock = _ends([state.cpu_mhz for state in states if state.cpu_mhz])
    if clock and abs(clock[1] / clock[0] - 1) >= CLOCK_CHANGE:
        yield Drift(
            "clock",
            f"{host}'s CPUs ran at {clock[0]:.0f} MHz in the first third of the trials and at "
            f"{clock[1]:.0f} MHz in the last.",
            {**where, "first_mhz": clock[0], "last_mhz": clock[1]},
        )
    heat = _ends([state.temperature_c for state in states if state.temperature_c is not None])
    if heat and abs(heat[1] - heat[0]) >= HEAT_CHANGE_C:
        yield Drift(
            "heat",
            f"{host} went from {heat[0]:.0f} °C in the first third of the trials to "
            f"{heat[1]:.0f} °C in the last.",
            {**where, "first_c": heat[0], "last_c": heat[1]},
        )
    throttled = [state.throttled for state in states if state.throttled]
    if throttled:
        yield Drift(
            "throttled",
            f"{host}'s CPUs were slowed down for their heat in {len(throttled)} of "
            f"{len(states)} trials.",
            {**where, "times": sum(throttled)},
        )
    taken: tuple[tuple[DriftCode, str, str, float], ...] = (
        ("steal", "its hypervisor gave", " to others", STEAL),
        ("foreign_cpu", "programs that are not Planewise's used", "", FOREIGN_CPU),
    )
    for code, cause, whom, limit in taken:
        shares = [share for state in states if (share := getattr(state, code)) is not None]
        above = [share for share in shares if share > limit]
        if len(above) > FEW_TRIALS * len(shares):
            yield Drift(
                code,
                f"{host}: {cause} more than {percent_text(limit)} of all CPUs' time{whom} in "
                f"{len(above)} of {len(shares)} trials (up to {percent_text(round(max(above), 2))}"
                ").",
                {**where, "trials": len(above), "of": len(shares), "most": max(above)},
            )


def _ends(values: Sequence[float]) -> tuple[float, float] | None:
    """Medians of the first third and of the last; None of fewer than six values."""
    third = len(values) // 3
    if third < 2:
        return None
    return float(np.median(values[:third])), float(np.median(values[-third:]))
