"""TRex's stateless results: statistics of trials, and the NDR benchmark's.

Followed: cisco-system-traffic-generator/trex-core, ndr_bench.py (commit 27e0153) and the
statistics of its stateless client.
- Statistics: what `STLClient.get_stats()` returns, as JSON: `total.opackets` sent and
  `total.ipackets` received. They hold neither the intended load nor the duration; a file
  may add them to each trial: {"rate_pps": …, "duration_s": …, "stats": {…}}. Without,
  the load is `global.tx_expected_pps` or else `total.tx_pps`, the measured rate.
- NDR benchmark: what `stl_ndr_bench_tool.py -o json` prints (`ndr_bench.py`, to_json):
  {"results": {…}, "config": {…}}, the one iteration that it settled on.
One value, a list of them, or one a line.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields
from planewise.store.importers.text import values
from planewise.store.loads import LoadTrials, Trial, load_trials
from planewise.store.readings import SCALES, number_of

NAME = "trex"
MARKS = ((0.9, '"drop_rate_percentage"', '"rate_tx_bps"'), (0.9, '"opackets"', '"ipackets"'))

_MULTIPLIER = re.compile(r"\s*([\d.]+(?:e\+?\d+)?)\s*([kmg]?)pps\s*", re.IGNORECASE)
QUEUE_FULL_SHARE = 0.01
"""With a larger share of attempts that met a full queue, the generator was the limit."""

_MEASURED = (
    "the loads are measured rates (total.tx_pps): the statistics hold no intended load; add "
    "rate_pps and duration_s to each trial to be exact"
)
_ONE_ITERATION = (
    "the NDR benchmark keeps only the iteration that it settled on; give the outputs of several "
    "rates to have a curve"
)


def parse(text: str, path: Path) -> list[LoadTrials]:
    """One curve. BadInputError with file and line for what is not of this format."""
    trials: list[Trial] = []
    notes: list[str] = []
    reported: dict[str, float] = {}
    info: dict[str, str | int | float] = {}
    for line, value in values(text, path):
        trial = Fields(value, "a trial", f"{path}:{line}")
        if isinstance(trial.get("results"), dict):
            trials.append(_benchmark(trial, line))
            notes.append(_ONE_ITERATION)
            if (allowed := trial.loose("config.pdr")) is not None:
                reported["ndr_pps" if allowed == 0 else "pdr_pps"] = trials[-1].offered_pps
                info["allowed_loss_percent"] = allowed
            if title := trial.text("results.title"):
                info["title"] = title
            continue
        stats = trial.inner("stats") if isinstance(trial.get("stats"), dict) else trial
        sent, received = stats.number("total.opackets"), stats.number("total.ipackets")
        offered = _intended_pps(trial, stats)
        if offered is None:
            notes.append(_MEASURED)
            offered = stats.optional("total.tx_pps")
        if offered is None:
            raise BadInputError(
                "total.tx_pps is missing, and there is no intended load",
                where=trial.where,
                remedy="add rate_pps and duration_s to each trial",
            )
        seconds = (trial.optional(name) for name in ("duration_s", "duration"))
        duration_s = next((value for value in seconds if value is not None), math.nan)
        full = stats.loose("global.queue_full") or 0.0
        limited = full > QUEUE_FULL_SHARE * sent > 0
        trials.append(Trial(line, offered, sent, received, duration_s, limited=limited))
    return [
        load_trials(
            path, trials, format_name=NAME, info=info, notes=notes, reported=reported,
            group_measured=bool(notes),
        )
    ]  # fmt: skip


def _intended_pps(trial: Fields, stats: Fields) -> float | None:
    for name in ("rate_pps", "offered_pps", "intended_pps"):
        if (rate := trial.optional(name)) is not None:
            return rate
    if match := _MULTIPLIER.fullmatch(trial.text("mult")):
        rate = number_of(match[1]) * SCALES[match[2].lower()]
        return None if math.isnan(rate) else rate
    expected = stats.loose("global.tx_expected_pps")
    return expected if expected is not None and expected > 0 else None


def _benchmark(trial: Fields, line: int) -> Trial:
    # ndr_bench.py doubles the duration it is given and sleeps for half of it.
    duration_s = trial.number("config.iteration_duration") / 2
    rate, lost = trial.number("results.tx_pps"), trial.number("results.drop_rate_percentage")
    if not 0 <= lost <= 100:
        raise BadInputError(
            f"results.drop_rate_percentage is {lost:g}: it must be between 0 and 100",
            where=trial.where,
        )
    sent = rate * duration_s
    full = trial.optional("results.queue_full_percentage") or 0.0
    return Trial(
        line,
        rate,
        float(round(sent)) if math.isfinite(sent) else math.inf,
        sent * (1 - lost / 100),
        duration_s,
        limited=full > 100 * QUEUE_FULL_SHARE,
    )
