"""TRex's stateless results: statistics of trials, and the NDR benchmark's. Knows those alone.

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
from typing import Annotated

from pydantic import BeforeValidator

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields, LooseNumber, LooseText, Number, at, check
from planewise.store.importers.text import values
from planewise.store.loads import LoadTrials, TrialColumns

NAME = "trex"

_MULTIPLIER = re.compile(r"\s*([\d.]+(?:[eE][+]?\d+)?)\s*([kmg]?)pps\s*", re.IGNORECASE)
_SCALE = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9}
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


class _Statistics(Fields):
    sent: Number = at("total", "opackets")
    received: Number = at("total", "ipackets")
    tx_pps: Number | None = at("total", "tx_pps", default=None)
    queue_full: LooseNumber = at("global", "queue_full", default=None)
    tx_expected_pps: LooseNumber = at("global", "tx_expected_pps", default=None)


class _Trial(Fields):
    rate_pps: Number | None = None
    offered_pps: Number | None = None
    intended_pps: Number | None = None
    mult: LooseText = None
    duration_s: Number | None = None
    duration: Number | None = None
    stats: Annotated[
        dict[str, object] | None,
        BeforeValidator(lambda value: value if isinstance(value, dict) else None),
    ] = None


class _Benchmark(Fields):
    tx_pps: Number = at("results", "tx_pps")
    lost_percent: Number = at("results", "drop_rate_percentage")
    queue_full_percent: Number = at("results", "queue_full_percentage", default=0.0)
    title: LooseText = at("results", "title", default=None)
    iteration_s: Number = at("config", "iteration_duration")
    allowed_percent: LooseNumber = at("config", "pdr", default=None)


def recognise(head: bytes, path: Path) -> float:
    """`opackets` beside `ipackets`, or the benchmark's vocabulary."""
    if b'"drop_rate_percentage"' in head and b'"rate_tx_bps"' in head:
        return 0.9
    if b'"opackets"' in head and b'"ipackets"' in head:
        return 0.9
    return 0.0


def parse(text: str, path: Path) -> list[LoadTrials]:
    """One curve. BadInputError with file and line for what is not of this format."""
    columns = TrialColumns(path)
    notes: dict[str, None] = {}
    reported: dict[str, float] = {}
    info: dict[str, str | int | float] = {}
    measured = False
    for line, value in values(text, path):
        where = f"{path}:{line}"
        if isinstance(value, dict) and isinstance(value.get("results"), dict):
            benchmark = check(_Benchmark, value, "a trial", where)
            _benchmark(columns, benchmark, line, where)
            _keep_result(benchmark, reported, info)
            notes[_ONE_ITERATION] = None
            measured = True
            continue
        trial = check(_Trial, value, "a trial", where)
        stats = value if trial.stats is None else trial.stats
        statistics = check(_Statistics, stats, "stats", where)
        intended = _intended_pps(trial, statistics)
        if intended is None:
            notes[_MEASURED] = None
            measured = True
        _add(columns, trial, statistics, intended, line, where)
    return [
        columns.finish(
            format_name=NAME,
            info=info,
            notes=list(notes),
            reported=reported,
            group_measured=measured,
        )
    ]


def _add(
    columns: TrialColumns,
    trial: _Trial,
    statistics: _Statistics,
    intended: float | None,
    line: int,
    where: str,
) -> None:
    offered = statistics.tx_pps if intended is None else intended
    if offered is None:
        raise BadInputError(
            "total.tx_pps is missing, and there is no intended load",
            where=where,
            remedy="add rate_pps and duration_s to each trial",
        )
    duration_s = trial.duration_s if trial.duration_s is not None else trial.duration
    full = statistics.queue_full or 0
    columns.add(
        line=line,
        offered_pps=offered,
        sent=statistics.sent,
        received=statistics.received,
        duration_s=math.nan if duration_s is None else duration_s,
        limited=full > QUEUE_FULL_SHARE * statistics.sent > 0,
    )


def _intended_pps(trial: _Trial, statistics: _Statistics) -> float | None:
    for rate in (trial.rate_pps, trial.offered_pps, trial.intended_pps):
        if rate is not None:
            return rate
    if trial.mult is not None and (match := _MULTIPLIER.fullmatch(trial.mult)):
        try:
            return float(match[1]) * _SCALE[match[2].lower()]
        except ValueError:
            return None
    expected = statistics.tx_expected_pps
    return expected if expected is not None and expected > 0 else None


def _benchmark(columns: TrialColumns, trial: _Benchmark, line: int, where: str) -> None:
    # ndr_bench.py doubles the duration it is given and sleeps for half of it.
    duration_s = trial.iteration_s / 2
    lost = trial.lost_percent
    if not 0 <= lost <= 100:
        raise BadInputError(
            f"results.drop_rate_percentage is {lost:g}: it must be between 0 and 100", where=where
        )
    sent = trial.tx_pps * duration_s
    columns.add(
        line=line,
        offered_pps=trial.tx_pps,
        sent=float(round(sent)) if math.isfinite(sent) else math.inf,
        received=sent * (1 - lost / 100),
        duration_s=duration_s,
        limited=trial.queue_full_percent > 100 * QUEUE_FULL_SHARE,
    )


def _keep_result(
    trial: _Benchmark, reported: dict[str, float], info: dict[str, str | int | float]
) -> None:
    allowed = trial.allowed_percent
    if allowed is not None:
        reported["ndr_pps" if allowed == 0 else "pdr_pps"] = trial.tx_pps
        info["allowed_loss_percent"] = allowed
    if trial.title is not None:
        info["title"] = trial.title
