"""k8s-netperf's results, JSON (`--json`) and CSV: a mean of several runs for each scenario.

Followed: cloud-bulldozer/k8s-netperf, pkg/archive/archive.go and docs/output-and-results.md. The
CSV has a 95 % interval of the mean; the JSON has it in newer versions only (`confidence`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

from planewise.store.importers.fields import Fields, check, entries
from planewise.store.importers.text import parse_json
from planewise.store.readings import Collected, Readings, number_of

NAME = "k8s-netperf"

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


class _Result(Fields):
    """A scenario; CSV and JSON write the same value as text or not."""

    driver: object = ""
    profile: object = ""
    local: object = False
    hostNetwork: object = False  # noqa: N815, as the tool writes it
    service: object = False
    parallelism: object = 1
    samples: object = 1
    messageSize: object = ""  # noqa: N815
    burst: object = 0
    throughput: object = None
    tputMetric: object = ""  # noqa: N815
    latency: object = None
    udpLossPercent: object = None  # noqa: N815
    low: object = None
    high: object = None


def recognise(head: bytes, path: Path) -> float:
    """The name of the throughput's unit, or of the samples in each of its tables."""
    return 0.95 if b'"tputMetric"' in head or b",# of Samples," in head else 0.0


def parse(text: str, path: Path) -> list[Readings]:
    """Throughput and latency of each scenario. BadInputError for another table of the tool."""
    found = Collected(path, NAME)
    for row in _rows(text, path):
        result = check(_Result, row, "a result", str(path))
        said = str(result.tputMetric).lower()
        unit, scale = ("bit/s", 1e6) if said == "mb/s" else ("1/s", 1.0)
        where = _scenario(result)
        runs = number_of(str(result.samples))
        runs = int(runs) if 1 <= runs <= 1e6 else 1
        low, value, high = (
            number * scale if (number := number_of(str(one))) >= 0 else None
            for one in (result.low, result.throughput, result.high)
        )
        if value is not None:
            name = "throughput" if unit == "bit/s" else "transactions"
            found.add_number(
                name, "bit/s" if unit == "bit/s" else "1/s", value, where,
                runs=runs, low=low, high=high,
            )  # fmt: skip
        if (latency := number_of(str(result.latency))) > 0:
            found.add_number("99th percentile of latency", "ns", latency * 1e3, where, runs=runs)
        lost = number_of(str(result.udpLossPercent))
        if "UDP" in where and lost >= 0:
            found.add_number("UDP loss", "share", lost / 100, where, runs=runs)
    return found.finish("it has no throughput, no latency and no loss")


def _rows(text: str, path: Path) -> Iterator[object]:
    if text.lstrip()[:1] in "[{":
        value = parse_json(text, path)
        for document in entries(value if isinstance(value, list) else [value]):
            ends = document.get("confidence")
            two = ends if isinstance(ends, list) and len(ends) == 2 else (None, None)
            yield {**document, "low": two[0], "high": two[1]}
        return
    try:
        for row in csv.DictReader(io.StringIO(text)):
            lost = {"udpLossPercent": "Value"} if row.get("Type") == "UDP Percent Loss" else {}
            yield {name: row[of] for name, of in (_CSV | lost).items() if row.get(of)}
    except csv.Error:
        return


def _scenario(result: _Result) -> str:
    def yes(value: object) -> bool:
        return str(value).lower() == "true"

    parts = [
        f"{result.profile} {result.messageSize} B".strip(),
        str(result.driver),
        "host network" if yes(result.hostNetwork) else "pod network",
        "service" if yes(result.service) else "",
        "same node" if yes(result.local) else "",
        f"{result.parallelism} streams" if str(result.parallelism) not in ("1", "0") else "",
        f"burst {result.burst}" if str(result.burst) not in ("0", "") else "",
    ]
    return ", ".join(part for part in parts if part)[:120]
