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

from collections.abc import Iterator
from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields, LooseNumber, LooseText, Number, at, check
from planewise.store.importers.text import parse_json
from planewise.store.loads import LoadTrials, TrialColumns

NAME = "nfvbench"

_DEEPEST = 12
"""Most objects and lists around a result."""


class _File(Fields):
    chains: dict[str, object] = at("benchmarks", "network", "service_chain")
    date: LooseText = None
    nfvbench_version: LooseText = None


class _Chain(Fields):
    sizes: dict[str, object] = at("result", "result")
    flow_count: object = at("result", "flow_count", default=None)
    service_chain_count: object = at("result", "service_chain_count", default=None)
    bidirectional: object = at("result", "bidirectional", default=None)


class _Analysis(Fields):
    ndr_pps: Number | None = at("ndr", "rate_pps", default=None)
    ndr_s: Number | None = at("ndr", "duration_sec", default=None)
    pdr_pps: Number | None = at("pdr", "rate_pps", default=None)
    pdr_s: Number | None = at("pdr", "duration_sec", default=None)
    iteration_stats: dict[str, object] | None = None


class _Iteration(Fields):
    tx_pps: Number
    tx_pkts: Number
    rx_pkts: Number
    total_tx_pps: LooseNumber = None
    warning: LooseText = None


class _FixedRate(Fields):
    offered_pps: Number = at("run_config", "direction-total", "orig", "rate_pps")
    sent: Number = at("stats", "overall", "tx", "total_pkts")
    received: Number = at("stats", "overall", "rx", "total_pkts")
    warning: LooseText = at("run_config", "warning", default=None)


def recognise(head: bytes, path: Path) -> float:
    """`benchmarks` with a service chain, or iterations of an NDR/PDR search."""
    if b'"nfvbench_version"' in head or b'"service_chain"' in head:
        return 0.9
    if b'"iteration_stats"' in head and b'"ndr_pdr"' in head:
        return 0.8
    return 0.4 if b'"benchmarks"' in head and b'"network"' in head else 0.0


def parse(text: str, path: Path) -> list[LoadTrials]:
    """A curve for each result, service chain and frame size. BadInputError for another format."""
    where = str(path)
    content = parse_json(text, path)
    results = list(_results(content)) or [content]
    curves = []
    for number, value in enumerate(results, start=1):
        result = check(_File, value, "the file's content", where)
        info = result.model_dump(include={"date", "nfvbench_version"}, exclude_none=True)
        for chain, benchmark in result.chains.items():
            place = f"service_chain.{chain}"
            outer = check(_Chain, benchmark, place, where, f"{place}.")
            common = {**info, "chain": chain, **_common(outer)}
            label = chain if len(results) == 1 else f"result {number}: {chain}"
            for size, analysis in outer.sizes.items():
                if size != "warning" and isinstance(analysis, dict):
                    named = {**common, "frame_size": size}
                    curves.append(_curve(analysis, path, f"{label} {size}", named))
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


def _common(outer: _Chain) -> dict[str, str | int | float]:
    values = (
        (name, getattr(outer, name))
        for name in ("flow_count", "service_chain_count", "bidirectional")
    )
    return {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in values
        if isinstance(value, str | int | float)
    }


def _curve(
    analysis: dict[str, object], path: Path, curve: str, info: dict[str, str | int | float]
) -> LoadTrials:
    columns = TrialColumns(path)
    notes = []
    parts = check(_Analysis, analysis, curve, str(path), f"{curve}: ")
    reported = parts.model_dump(include={"ndr_pps", "pdr_pps"}, exclude_none=True)
    duration = parts.ndr_s or parts.pdr_s
    if parts.iteration_stats is not None:
        for name, records in parts.iteration_stats.items():
            for index, record in enumerate(records if isinstance(records, list) else (), start=1):
                place = f"{curve}: iteration_stats.{name}, iteration {index}"
                iteration = check(_Iteration, record, place, str(path), f"{place}: ")
                _add_iteration(columns, iteration, duration)
    elif "stats" in analysis:
        fixed = check(_FixedRate, analysis, curve, str(path), f"{curve}: ")
        columns.add(
            line=0,
            offered_pps=fixed.offered_pps,
            sent=fixed.sent,
            received=fixed.received,
            limited=fixed.warning is not None,
        )
    else:
        notes.append(
            "NFVbench kept no iterations of the search (an older version): the numbers are as "
            "reported and nothing can be judged"
        )
        if not reported:
            raise BadInputError(
                f"{curve}: neither iterations nor NDR and PDR are in it", where=str(path)
            )
    return columns.finish(format_name=NAME, curve=curve, info=info, notes=notes, reported=reported)


def _add_iteration(columns: TrialColumns, record: _Iteration, duration: float | None) -> None:
    rate = record.total_tx_pps or 0.0
    duration_s = duration or (record.tx_pkts / rate if rate > 0 else 0.0)
    columns.add(
        line=0,
        offered_pps=record.tx_pps,
        sent=record.tx_pkts,
        received=record.rx_pkts,
        duration_s=duration_s if duration_s > 0 else float("nan"),
        limited=record.warning is not None,
    )
