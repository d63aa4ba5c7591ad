"""A finished run on the terminal: the recommendation first, then the ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from planewise.commands.console import out, print_json
from planewise.units import rate_text, time_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planewise.pipeline import FinishedRun
    from planewise.store.recommendation import RankedPlane, Recommendation

_METRIC_TITLES = {
    "rtt_p50": "median RTT",
    "rtt_p99": "99th percentile RTT",
    "forwarded": "highest forwarding rate",
    "cpu": "kernel CPU per packet",
}
_LOAD_TITLES = {"none": "idle", "cpu": "CPU load", "network": "network load"}

WIDE = 10.0
"""Intervals whose ends differ by more than this factor are not printed."""


def print_result(finished: FinishedRun, json: bool) -> None:
    """Prints a finished run: recommendation, ranking, path of the report.

    Raises:
        typer.Exit: code 1, when the run was cut short or every trial failed.
    """
    _print(finished, json)
    outcome = finished.outcome
    if outcome.info.status != "done" or (outcome.failed and not outcome.done):
        raise typer.Exit(1)


def _print(finished: FinishedRun, json: bool) -> None:
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
    if info.emulated:
        console.print(f"Emulated times, not those of hardware: {info.emulated}.")
    print_recommendation(advice)
    if outcome.failed:
        tried = outcome.failed + outcome.done
        console.print(f"{outcome.failed} of {tried} trials failed: the report says why.")
    resume = f"planewise run --resume {finished.directory}"
    if info.status != "done":
        console.print(f"The run is {info.status}; continue it with {resume}")
    elif info.reason:
        console.print(f"Of the design, {info.reason}; continue with {resume}")
    console.print(f"Report: {finished.report}")


def print_recommendation(advice: Recommendation) -> None:
    """Prints the recommendation, its reasons and its reservations."""
    console = out()
    console.print(advice.headline, style="bold")
    console.print()
    for metric, title in _METRIC_TITLES.items():
        places = [place for place in advice.ranking if place.metric == metric]
        if places:
            _print_ranking(title, metric, places)
    if not advice.ranking:  # else the rankings have it
        for text in advice.reasons:
            console.print(f"  - {text}")
        if advice.reasons:
            console.print()
    if advice.reservations:
        console.print("Reservations", style="bold")
        for text in advice.reservations:
            console.print(f"  - {text}")
        console.print()


def _print_ranking(title: str, metric: str, places: Sequence[RankedPlane]) -> None:
    """A table of planes by load: value and its 95 % interval."""
    from rich.table import Table

    loads = [load for load in dict.fromkeys(place.load_type for place in places) if load != "all"]
    planes = dict.fromkeys(place.plane for place in places)
    table = Table(title, *(_LOAD_TITLES.get(load, load) for load in loads), box=None)
    for plane in planes:
        row = [plane]
        for load in loads:
            ranked = [p for p in places if p.plane == plane and p.load_type == load]
            row.append(_value(metric, ranked[0]) if ranked else "not measured")
        table.add_row(*row)
    console = out()
    console.print(table)
    console.print()


def _value(metric: str, place: RankedPlane) -> str:
    from planewise.judge.statistics.sentences import bound_text

    show = rate_text if metric == "forwarded" else time_text
    text = bound_text(place.bound, show(place.value))
    if place.low is not None and place.high is not None:
        # With two replicates an interval may reach from picoseconds to minutes.
        wide = place.high > WIDE * place.low
        text += "  (too few to tell)" if wide else f"  ({show(place.low)} to {show(place.high)})"
    return text
