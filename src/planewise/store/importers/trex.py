"""TRex's stateless results: statistics of trials, and the NDR benchmark's. Knows those alone.

Followed: cisco-system-traffic-generator/trex-core, ndr_bench.py (commit 27e0153) and the
statistics of its stateless client.
- Statistics: what `STLClient.get_stats()` returns, as JSON: `total.opackets` sent and
  `total.ipackets` received. They hold neither the intended load nor the duration; a file that
  wants to be exact wraps each trial: {"rate_pps": …, "duration_s": …, "stats": {…}}. Without,
  the load is `global.tx_expected_pps` or else `total.tx_pps`, the measured rate.
- NDR benchmark: what `stl_ndr_bench_tool.py -o json` prints (`ndr_bench.py`, to_json):
  {"results": {…}, "config": {…}}, the one iteration that it settled on.
One value, a list of them, or one a line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.text import mapping, number, read_text, values
from planewise.store.loads import LoadTrials, TrialColumns

NAME = "trex"
TITLE = "TRex: stateless statistics (get_stats) or its NDR benchmark, as JSON"

_MULTIPLIER = re.compile(r"\s*([\d.]+(?:[eE][+]?\d+)?)\s*([kmg]?)pps\s*", re.IGNORECASE)
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
QUEUE_FULL_SHARE = 0.01
"""More attempts to send that met a full queue than this: the generator was at its limit."""


def recognise(head: bytes, path: Path) -> float:
    """`opackets` beside `ipackets`, or the benchmark's vocabulary."""
    if b'"drop_rate_percentage"' in head and b'"rate_tx_bps"' in head:
        return 0.9
    if b'"opackets"' in head and b'"ipackets"' in head:
        return 0.9
    return 0.0


def read(path: Path) -> list[LoadTrials]:
    """One curve. BadInputError with file and line for what is not of this format."""
    return parse(read_text(path), path)


def parse(text: str, path: Path) -> list[LoadTrials]:
    """The same from the file's text; `path` only names it."""
    columns = TrialColumns(path)
    notes: dict[str, None] = {}
    reported: dict[str, float] = {}
    info: dict[str, str | int | float] = {}
    measured = False
    for line, value in values(text, path):
        where = f"{path}:{line}"
        trial = mapping(value, "a trial", where)
        if isinstance(trial.get("results"), dict):
            _benchmark(columns, trial, line, where, notes, reported, info)
            measured = True
        else:
            measured |= _statistics(columns, trial, line, where, notes)
    return [
        columns.finish(
            format_name=NAME,
            info=info,
            notes=list(notes),
            reported=reported,
            group_measured=measured,
        )
    ]


def _statistics(
    columns: TrialColumns,
    trial: Mapping[str, object],
    line: int,
    where: str,
    notes: dict[str, None],
) -> bool:
    """Adds one trial; whether its load is a measured rate."""
    stats = trial
    if isinstance(trial.get("stats"), dict):
        stats = mapping(trial["stats"], "stats", where)
    total = mapping(stats.get("total"), "total", where)
    sent = number(total.get("opackets"), "total.opackets", where)
    everywhere = stats.get("global")
    everywhere = everywhere if isinstance(everywhere, dict) else {}
    intended = _intended_pps(trial, everywhere, where)
    if intended is None:
        offered = number(total.get("tx_pps"), "total.tx_pps", where)
        notes["the loads are measured rates (total.tx_pps): the statistics hold no intended "
              "load; add rate_pps and duration_s to each trial to be exact"] = None  # fmt: skip
    else:
        offered = intended
    full = everywhere.get("queue_full")
    limited = isinstance(full, int | float) and full > QUEUE_FULL_SHARE * sent > 0
    duration = next(
        (trial[key] for key in ("duration_s", "duration") if trial.get(key) is not None), None
    )
    columns.add(
        line=line,
        offered_pps=offered,
        sent=sent,
        received=number(total.get("ipackets"), "total.ipackets", where),
        duration_s=math.nan if duration is None else number(duration, "the duration", where),
        limited=limited,
    )
    return intended is None


def _intended_pps(
    trial: Mapping[str, object], everywhere: Mapping[str, object], where: str
) -> float | None:
    for key in ("rate_pps", "offered_pps", "intended_pps"):
        if trial.get(key) is not None:
            return number(trial[key], key, where)
    multiplier = trial.get("mult")
    if isinstance(multiplier, str) and (match := _MULTIPLIER.fullmatch(multiplier)):
        try:
            return float(match[1]) * _SCALE[match[2].lower()]
        except ValueError:
            return None
    expected = everywhere.get("tx_expected_pps")
    if isinstance(expected, int | float) and expected > 0:
        return number(expected, "global.tx_expected_pps", where)
    return None


def _benchmark(
    columns: TrialColumns,
    trial: Mapping[str, object],
    line: int,
    where: str,
    notes: dict[str, None],
    reported: dict[str, float],
    info: dict[str, str | int | float],
) -> None:
    results = mapping(trial["results"], "results", where)
    config = mapping(trial.get("config"), "config", where)
    # ndr_bench.py doubles the duration it is given and sleeps for half of it.
    duration_s = number(config.get("iteration_duration"), "config.iteration_duration", where) / 2
    rate = number(results.get("tx_pps"), "results.tx_pps", where)
    lost = number(results.get("drop_rate_percentage"), "results.drop_rate_percentage", where)
    if not 0 <= lost <= 100:
        raise BadInputError(
            f"results.drop_rate_percentage is {lost:g}: it must be between 0 and 100", where=where
        )
    full = number(results.get("queue_full_percentage", 0), "results.queue_full_percentage", where)
    limited = full > 100 * QUEUE_FULL_SHARE
    columns.add(
        line=line,
        offered_pps=rate,
        sent=float(round(rate * duration_s)) if math.isfinite(rate * duration_s) else math.inf,
        received=rate * duration_s * (1 - lost / 100),
        duration_s=duration_s,
        limited=limited,
    )
    allowed = config.get("pdr")
    if isinstance(allowed, int | float):
        reported["ndr_pps" if allowed == 0 else "pdr_pps"] = rate
        info["allowed_loss_percent"] = allowed
    if isinstance(results.get("title"), str):
        info["title"] = str(results["title"])
    notes["the NDR benchmark keeps only the iteration that it settled on; give the outputs of "
          "several rates to have a curve"] = None  # fmt: skip
