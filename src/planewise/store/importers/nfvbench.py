"""NFVbench's JSON results (`--json FILE`): NDR/PDR searches and fixed rates. Knows that alone.

Followed: opnfv/nfvbench, nfvbench/stats_collector.py (commit 60277e5), chain_runner.py (0d70709)
and traffic_client.py (05d97da):
`benchmarks.network.service_chain.<chain>.result.result.<frame size>` holds
`iteration_stats.ndr_pdr`, every iteration of the search with `tx_pps` (intended, both
directions), `tx_pkts`, `rx_pkts`, and `drop_pct`, which counts packets in spite of its name; or,
for a fixed rate, `stats.overall` and `run_config.direction-total.orig.rate_pps`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.text import mapping, number, parse_json, read_text
from planewise.store.loads import LoadTrials, TrialColumns

NAME = "nfvbench"
TITLE = "NFVbench: results written with --json"


def recognise(head: bytes, path: Path) -> float:
    """`benchmarks` with a service chain, or iterations of an NDR/PDR search."""
    if b'"nfvbench_version"' in head or b'"service_chain"' in head:
        return 0.9
    if b'"iteration_stats"' in head and b'"ndr_pdr"' in head:
        return 0.8
    return 0.4 if b'"benchmarks"' in head and b'"network"' in head else 0.0


def read(path: Path) -> list[LoadTrials]:
    """One curve a service chain and frame size. BadInputError for what is not of this format."""
    return parse(read_text(path), path)


def parse(text: str, path: Path) -> list[LoadTrials]:
    """The same from the file's text; `path` only names it."""
    where = str(path)
    result = mapping(parse_json(text, path), "the file's content", where)
    benchmarks = mapping(result.get("benchmarks"), "benchmarks", where)
    network = mapping(benchmarks.get("network"), "benchmarks.network", where)
    chains = mapping(network.get("service_chain"), "service_chain", where)
    info = {
        key: value
        for key in ("date", "nfvbench_version")
        if isinstance(value := result.get(key), str)
    }
    curves = []
    for chain, benchmark in chains.items():
        place = f"service_chain.{chain}"
        outer = mapping(mapping(benchmark, place, where).get("result"), f"{place}.result", where)
        sizes = mapping(outer.get("result"), f"{place}.result.result", where)
        for size, analysis in sizes.items():
            if size == "warning" or not isinstance(analysis, dict):
                continue
            curves.append(
                _curve(
                    analysis,
                    path,
                    f"{chain} {size}",
                    {**info, "chain": str(chain), "frame_size": str(size), **_common(outer)},
                )
            )
    if not curves:
        raise BadInputError(
            "no frame size was measured: there are no trials in it",
            where=where,
            remedy="give the result of an NDR/PDR search or of a fixed rate",
        )
    return curves


def _common(outer: Mapping[str, object]) -> dict[str, str | int | float]:
    common: dict[str, str | int | float] = {}
    for key in ("flow_count", "service_chain_count", "bidirectional"):
        value = outer.get(key)
        if isinstance(value, str | int | float):
            common[key] = str(value).lower() if isinstance(value, bool) else value
    return common


def _curve(
    analysis: dict[str, object], path: Path, curve: str, info: dict[str, str | int | float]
) -> LoadTrials:
    columns = TrialColumns(path)
    notes = []
    reported = {}
    duration = None
    for tag in ("ndr", "pdr"):
        found = analysis.get(tag)
        if isinstance(found, dict):
            place = f"{curve}: {tag}"
            rate = found.get("rate_pps")
            if rate is not None:
                reported[f"{tag}_pps"] = number(rate, f"{place}.rate_pps", str(path))
            duration = duration or found.get("duration_sec")
    if "iteration_stats" in analysis:
        place = f"{curve}: iteration_stats"
        stats = mapping(analysis["iteration_stats"], place, str(path))
        for name, records in stats.items():
            if not isinstance(records, list):
                continue
            for index, record in enumerate(records, start=1):
                _iteration(columns, record, duration, f"{place}.{name}, iteration {index}", path)
    elif "stats" in analysis:
        _fixed_rate(columns, analysis, curve, path)
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


def _iteration(
    columns: TrialColumns, value: object, duration: object, place: str, path: Path
) -> None:
    record = mapping(value, place, str(path))

    def field(name: str) -> float:
        return number(record.get(name), f"{place}: {name}", str(path))

    sent = field("tx_pkts")
    rate = record.get("total_tx_pps")
    measured_s = sent / rate if isinstance(rate, int | float) and rate > 0 else 0.0
    duration_s = number(duration, "duration_sec", str(path)) if duration else measured_s
    columns.add(
        line=0,
        offered_pps=field("tx_pps"),
        sent=sent,
        received=field("rx_pkts"),
        duration_s=duration_s if duration_s > 0 else float("nan"),
        limited=isinstance(record.get("warning"), str),
    )


def _fixed_rate(
    columns: TrialColumns, analysis: Mapping[str, object], curve: str, path: Path
) -> None:
    where = str(path)
    stats = mapping(analysis["stats"], f"{curve}: stats", where)
    overall = mapping(stats.get("overall"), f"{curve}: stats.overall", where)
    sent = mapping(overall.get("tx"), f"{curve}: stats.overall.tx", where).get("total_pkts")
    received = mapping(overall.get("rx"), f"{curve}: stats.overall.rx", where).get("total_pkts")
    config = mapping(analysis.get("run_config"), f"{curve}: run_config", where)
    total = mapping(config.get("direction-total"), f"{curve}: direction-total", where)
    offered = mapping(total.get("orig"), f"{curve}: direction-total.orig", where).get("rate_pps")
    columns.add(
        line=0,
        offered_pps=number(offered, f"{curve}: run_config…orig.rate_pps", where),
        sent=number(sent, f"{curve}: stats.overall.tx.total_pkts", where),
        received=number(received, f"{curve}: stats.overall.rx.total_pkts", where),
        limited=isinstance(config.get("warning"), str),
    )
