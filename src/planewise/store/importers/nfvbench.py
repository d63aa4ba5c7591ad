"""NFVbench's JSON results (`--json FILE`): NDR/PDR searches and fixed rates.

Followed: opnfv/nfvbench, nfvbench/stats_collector.py (commit 60277e5), chain_runner.py (0d70709)
and traffic_client.py (05d97da):
`benchmarks.network.service_chain.<chain>.result.result.<frame size>` holds
`iteration_stats.ndr_pdr`, every iteration of the search with `tx_pps` (intended, both
directions), `tx_pkts`, `rx_pkts`, and `drop_pct`, which counts packets in spite of its name; or,
for a fixed rate, `stats.overall` and `run_config.direction-total.orig.rate_pps`.
NFVbench's REST API and OPNFV's result database (xtesting) wrap such results in other objects.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields
from planewise.store.importers.text import parse_json
from planewise.store.loads import LoadTrials, Trial, load_trials

NAME = "nfvbench"
MARKS = (
    (0.9, '"nfvbench_version"|"service_chain"'),
    (0.8, '"iteration_stats"', '"ndr_pdr"'),
    (0.4, '"benchmarks"', '"network"'),
)

_DEEPEST = 12
"""Most objects and lists around a result."""
_COMMON = ("flow_count", "service_chain_count", "bidirectional")


def parse(text: str, path: Path) -> list[LoadTrials]:
    """A curve for each result, service chain and frame size. BadInputError for another format."""
    where = str(path)
    content = parse_json(text, path)
    results = list(_results(content)) or [content]
    curves = []
    for number, value in enumerate(results, start=1):
        result = Fields(value, "the file's content", where)
        about = {name: result.text(name) for name in ("date", "nfvbench_version")}
        for chain, benchmark in result.inner("benchmarks.network.service_chain").value.items():
            place = f"service_chain.{chain}"
            measured = Fields(benchmark, place, where, f"{place}.").inner("result")
            common = {name: text for name, text in about.items() if text}
            info = {**common, "chain": chain, **_common(measured)}
            label = chain if len(results) == 1 else f"result {number}: {chain}"
            for size, analysis in measured.inner("result").value.items():
                if size != "warning" and isinstance(analysis, dict):
                    curve = f"{label} {size}"
                    fields = Fields(analysis, curve, where, f"{curve}: ")
                    curves.append(_curve(fields, path, curve, {**info, "frame_size": size}))
    if not curves:
        raise BadInputError(
            "no frame size was measured: there are no trials in it",
            where=where,
            remedy="give the result of an NDR/PDR search or of a fixed rate",
        )
    return curves


def _results(value: object, depth: int = 0) -> Iterator[object]:
    """NFVbench's results within a value, however they are wrapped."""
    if isinstance(value, dict) and "benchmarks" in value:
        yield value
    elif isinstance(value, dict | list) and depth < _DEEPEST:
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _results(inner, depth + 1)


def _common(measured: Fields) -> dict[str, str | int | float]:
    known = {name: measured.get(name) for name in _COMMON}
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in known.items()
        if isinstance(value, str | int | float)
    }


def _curve(
    analysis: Fields, path: Path, curve: str, info: Mapping[str, str | int | float]
) -> LoadTrials:
    bounds = {f"{name}_pps": analysis.optional(f"{name}.rate_pps") for name in ("ndr", "pdr")}
    reported = {name: pps for name, pps in bounds.items() if pps is not None}
    trials: list[Trial] = []
    notes = []
    iterations = analysis.get("iteration_stats")
    if isinstance(iterations, dict):
        trials += _iterations(iterations, analysis, curve)
    elif analysis.get("stats") is not None:
        trials.append(
            Trial(
                0,
                analysis.number("run_config.direction-total.orig.rate_pps"),
                analysis.number("stats.overall.tx.total_pkts"),
                analysis.number("stats.overall.rx.total_pkts"),
                limited=bool(analysis.text("run_config.warning")),
            )
        )
    elif reported:
        notes.append(
            "NFVbench kept no iterations of the search (an older version): the numbers are as "
            "reported and nothing can be judged"
        )
    else:
        raise BadInputError(
            f"{curve}: neither iterations nor NDR and PDR are in it", where=str(path)
        )
    return load_trials(
        path, trials, format_name=NAME, curve=curve, info=info, notes=notes, reported=reported
    )


def _iterations(iterations: Mapping[str, object], analysis: Fields, curve: str) -> Iterator[Trial]:
    duration_s = analysis.optional("ndr.duration_sec") or analysis.optional("pdr.duration_sec")
    for name, records in iterations.items():
        for index, record in enumerate(records if isinstance(records, list) else (), start=1):
            place = f"{curve}: iteration_stats.{name}, iteration {index}"
            one = Fields(record, place, analysis.where, f"{place}: ")
            sent, rate = one.number("tx_pkts"), one.loose("total_tx_pps") or 0.0
            seconds = duration_s or (sent / rate if rate > 0 else 0.0)
            yield Trial(
                0,
                one.number("tx_pps"),
                sent,
                one.number("rx_pkts"),
                seconds if seconds > 0 else math.nan,
                limited=bool(one.text("warning")),
            )
