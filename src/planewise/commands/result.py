"""A finished run on the terminal: the rankings, and the answer last, above the prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from planewise.commands.console import out, print_items, print_json, print_rows
from planewise.units import RATES, TIMES, three_digits, unit_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from planewise.pipeline import FinishedRun
    from planewise.store.recommendation import RankedPlane, Recommendation

_METRICS = {
    "rtt_p50": ("median RTT", TIMES),
    "rtt_p99": ("99th percentile RTT", TIMES),
    "forwarded": ("forwarding rate at the best load", RATES),
    "cpu": ("kernel CPU per packet", TIMES),
}
_FIRST = ("rtt_p50", "forwarded")
"""Metrics that are printed without --wide."""
_RESERVATIONS = 3
_LOADS = {"none": "idle", "cpu": "CPU load", "network": "network load"}

WIDE = 10.0
"""Intervals whose ends differ by more than this factor are not printed."""


def print_result(finished: FinishedRun, json: bool, *, wide: bool = False) -> None:
    """Prints a finished run: rankings, the answer, reservations and the path of the report.

    Raises:
        typer.Exit: code 1, when the run was cut short or every trial failed.
    """
    _print(finished, json, wide=wide)
    outcome = finished.outcome
    if outcome.info.status != "done" or (outcome.failed and not outcome.done):
        raise typer.Exit(1)


def _print(finished: FinishedRun, json: bool, *, wide: bool) -> None:
    advice = finished.recommendation
    outcome, info = finished.outcome, finished.outcome.info
    if json:
        print_json(
            {
                "run": str(finished.directory),
                "report": str(finished.report),
                "status": info.status,
                "trials_done": outcome.done,
                "trials_failed": outcome.failed,
                "reason": info.reason,
                "drift": [
                    {"code": drift.code, "sentence": drift.sentence, "evidence": {**drift.evidence}}
                    for drift in finished.drift
                ],
                "recommendation": advice.model_dump(mode="json"),
            }
        )
        return
    console = out()
    console.print()
    _print_effects(finished.directory, wide=wide)
    print_recommendation(advice, wide=wide)
    if info.emulated:
        console.print(f"Emulated times: {info.emulated}.")
    if outcome.failed:
        tried = outcome.failed + outcome.done
        console.print(f"{outcome.failed} of {tried} trials failed: the report says why.")
    resume = f"planewise run --resume {finished.directory}"
    if info.status != "done":
        console.print(f"The run is {info.status}; continue it with {resume}")
    elif info.reason:
        console.print(f"Of the design, {info.reason}; continue with {resume}")
    console.print(f"Report: {finished.report}")


def _print_effects(directory: Path, *, wide: bool) -> None:
    """What each setting does, where the run varied some; `wide` prints what is not known, too."""
    from planewise.judge.effects import effects
    from planewise.judge.statistics.metrics import RunSample
    from planewise.store.rundir import RunReader

    reader = RunReader(directory)
    found = effects(RunSample(reader.info.run, reader.info, reader.trials()))
    known = [effect for effect in found if effect.comparison.outcome in ("better", "worse")]
    if not found:
        return
    console = out()
    console.print("Against the default, largest effect of each plane first:")
    places = dict.fromkeys((effect.plane, effect.setting) for effect in found)
    for place in places:
        here = [e for e in (found if wide else known) if (e.plane, e.setting) == place]
        if here:
            console.print(", ".join(place), style="bold")
        for effect in here:
            console.print(f"  {effect.comparison.outcome}: {effect.metric.title} {effect.text}")
    if not wide:
        console.print(f"{len(found) - len(known)} other effects are small or not known (--wide).")
    console.print()


def print_recommendation(advice: Recommendation, *, wide: bool = False) -> None:
    """Prints the rankings, then the answer and three reservations; `wide` prints all of them."""
    console = out()
    metrics = dict.fromkeys(place.metric for place in advice.ranking)
    for metric in metrics:
        if wide or metric in _FIRST or not set(_FIRST) & metrics.keys():
            _print_ranking(metric, [place for place in advice.ranking if place.metric == metric])
    if not advice.ranking:  # else the rankings have it
        print_items(console, advice.reasons)
    console.print(advice.headline, style="bold")
    shown = advice.reservations if wide else advice.reservations[:_RESERVATIONS]
    print_items(console, shown)
    if more := len(advice.reservations) - len(shown):
        console.print(f"  {more} more {'is' if more == 1 else 'are'} in the report.")
    console.print()


def _print_ranking(metric: str, places: Sequence[RankedPlane]) -> None:
    """A table of planes by load: value and 95 % interval, in one unit for the whole table."""
    loads = [load for load in dict.fromkeys(place.load_type for place in places) if load != "all"]
    title, units = _METRICS[metric]
    size, unit = unit_of([place.value for place in places], units)
    by_cell = {(place.plane, place.load_type): place for place in places}

    def cell(plane: str, load: str) -> str:
        place = by_cell.get((plane, load))
        return _value(place, size) if place else "not measured"

    print_rows(
        (f"{title} [{unit}]", *(_LOADS.get(load, load) for load in loads)),
        [
            (plane, *(cell(plane, load) for load in loads))
            for plane in dict.fromkeys(place.plane for place in places)
        ],
    )
    out().print()


def _value(place: RankedPlane, size: float) -> str:
    from planewise.judge.statistics.sentences import bound_text

    text = bound_text(place.bound, three_digits(place.value / size))
    if place.low is not None and place.high is not None:
        # With two replicates an interval may reach from picoseconds to minutes.
        is_wide = place.high > WIDE * place.low
        ends = f"{three_digits(place.low / size)} to {three_digits(place.high / size)}"
        text += " (too few)" if is_wide else f" ({ends})"
    return text
