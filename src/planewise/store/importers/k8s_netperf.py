"""k8s-netperf's results, JSON (`--json`) and CSV: a mean of several runs for each scenario.

Followed: cloud-bulldozer/k8s-netperf, pkg/archive/archive.go and docs/output-and-results.md. The
CSV has a 95 % interval of the mean; the JSON has it in newer versions only (`confidence`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

from planewise.store.importers.text import parse_json
from planewise.store.readings import Collected, Readings, Unit, number_of

NAME = "k8s-netperf"
MARKS = ((0.95, '"tputMetric"|,# of Samples,'),)

_CSV = {
    "driver": "Driver",
    "profile": "Profile",
    "local": "Same node",
    "hostNetwork": "Host Network",
    "service": "Service",
    "parallelism": "Parallelism",
    "samples": "# of Samples",
    "messageSize": "Message Size",
    "burst": "Burst",
    "low": "Confidence metric - low",
    "high": "Confidence metric - high",
    "throughput": "Avg Throughput",
    "tputMetric": "Throughput Metric",
    "latency": "99%tile Observed Latency",
}


def parse(text: str, path: Path) -> list[Readings]:
    """Throughput and latency of each scenario. BadInputError for another table of the tool."""
    found = Collected(path, NAME)
    for row in _rows(text, path):
        unit: Unit = "1/s"
        scale, name = 1.0, "transactions"
        if row.get("tputMetric", "").lower() == "mb/s":
            unit, scale, name = "bit/s", 1e6, "throughput"
        where = _scenario(row)
        runs = number_of(row.get("samples", "1"))
        runs = int(runs) if 1 <= runs <= 1e6 else 1
        low, value, high = (
            number * scale if (number := number_of(row.get(one, ""))) >= 0 else None
            for one in ("low", "throughput", "high")
        )
        if value is not None:
            found.add_number(name, unit, value, where, runs=runs, low=low, high=high)
        if (latency := number_of(row.get("latency", ""))) > 0:
            found.add_number("99th percentile of latency", "ns", latency * 1e3, where, runs=runs)
        lost = number_of(row.get("udpLossPercent", ""))
        if "UDP" in where and lost >= 0:
            found.add_number("UDP loss", "share", lost / 100, where, runs=runs)
    return found.finish("it has no throughput, no latency and no loss")


def _rows(text: str, path: Path) -> Iterator[Mapping[str, str]]:
    """The scenarios, every value as text: CSV and JSON write the same ones."""
    if text.lstrip()[:1] in "[{":
        value = parse_json(text, path)
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                ends = one.get("confidence")
                two = ends if isinstance(ends, list) and len(ends) == 2 else ("", "")
                fields = one | {"low": two[0], "high": two[1]}
                yield {str(name): str(value) for name, value in fields.items()}
        return
    try:
        for row in csv.DictReader(io.StringIO(text)):
            lost = {"udpLossPercent": "Value"} if row.get("Type") == "UDP Percent Loss" else {}
            yield {name: row[of] for name, of in (_CSV | lost).items() if row.get(of)}
    except csv.Error:
        return


def _scenario(row: Mapping[str, str]) -> str:
    def yes(name: str) -> bool:
        return row.get(name, "").lower() == "true"

    streams, burst = row.get("parallelism", "1"), row.get("burst", "0")
    parts = [
        f"{row.get('profile', '')} {row.get('messageSize', '')} B".strip(),
        row.get("driver", ""),
        "host network" if yes("hostNetwork") else "pod network",
        "service" if yes("service") else "",
        "same node" if yes("local") else "",
        f"{streams} streams" if streams not in ("1", "0") else "",
        f"burst {burst}" if burst not in ("0", "") else "",
    ]
    return ", ".join(part for part in parts if part)[:120]
