"""iperf3's JSON (`-J`, `--json-stream`): TCP and UDP, with the intervals of each run.

Followed: esnet/iperf, src/iperf_api.c and src/iperf_client_api.c, 3.0 to 3.18. `intervals[].sum`
(or the one of `streams`) holds each interval, `end` the whole run. A UDP sender's intervals are
what it offered, so a client's file has what arrived as one number only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields, LooseNumber, LooseText, at, check, entries
from planewise.store.importers.text import values
from planewise.store.readings import Collected, Readings

NAME = "iperf3"
_TEXT = b"[ ID] Interval"
"""Heads the table for people."""


class _Sum(Fields):
    bits_per_second: LooseNumber = None
    jitter_ms: LooseNumber = None
    lost_percent: LooseNumber = None
    lost_packets: LooseNumber = None
    packets: LooseNumber = None
    omitted: object = None


class _Run(Fields):
    protocol: LooseText = at("start", "test_start", "protocol", default=None)
    error: LooseText = None
    intervals: object = None
    end: object = None


def recognise(head: bytes, path: Path) -> float:
    """The version that iperf3 writes first, or rates within intervals."""
    if _TEXT in head or (b"iperf 3" in head and (b'"version"' in head or b'"start"' in head)):
        return 0.95
    return 0.8 if b'"bits_per_second"' in head and b'"interval' in head else 0.0


def parse(text: str, path: Path) -> list[Readings]:
    """Each direction's throughput; of UDP loss and jitter, too. BadInputError for a failed run."""
    if _TEXT.decode() in text:
        raise BadInputError(
            "this is the text that iperf prints for people, with rounded figures",
            where=str(path),
            remedy="measure with `iperf3 --json`",
        )
    found = Collected(path, NAME)
    error = ""
    stream: dict[str, Any] = {"intervals": []}
    runs: list[object] = []
    for _, value in values(text, path):
        if isinstance(value, dict) and isinstance(value.get("event"), str):
            part, data = value["event"], value.get("data")
            if part == "interval":
                stream["intervals"].append(data)
            else:
                stream[part] = data
            if part == "end":
                runs.append(stream)
                stream = {"intervals": []}
        else:
            runs.append(value)
    if stream["intervals"]:  # cut short
        runs.append(stream)
    for value in runs:
        run = check(_Run, value, "a run", str(path))
        error = run.error or error
        for suffix, direction in (("", ""), ("_bidir_reverse", "reverse")):
            _direction(found, run, suffix, direction)
    why = f": {' '.join(error.split())[:150]}" if error else ""
    return found.finish(f"iperf3 measured nothing{why}")


def _direction(found: Collected, run: _Run, suffix: str, direction: str) -> None:
    end = run.end if isinstance(run.end, dict) else {}
    sums = [
        check(_Sum, interval.get(f"sum{suffix}") or _only_stream(interval), "sum", str(found.file))
        for interval in entries(run.intervals)
        if not suffix or f"sum{suffix}" in interval
    ]
    sums = [part for part in sums if part.omitted is not True and part.bits_per_second is not None]
    whole = _whole(end, f"sum_received{suffix}", found.file)
    both = _whole(end, f"sum{suffix}", found.file)
    udp = (run.protocol or "").upper() == "UDP" or any(one.packets is not None for one in sums)
    udp = udp or both.lost_percent is not None
    rates = [part.bits_per_second for part in sums if part.bits_per_second is not None]
    if not udp:
        name = "TCP throughput"
        sent = _whole(end, f"sum_sent{suffix}", found.file)
        one = whole.bits_per_second or sent.bits_per_second or both.bits_per_second
        if len(rates) > 1:
            found.add(name, "bit/s", "interval", rates, direction)
        elif one is not None:
            found.add(name, "bit/s", "run", [one], direction)
        return
    name = "UDP received rate"
    loss = whole.lost_percent if whole.lost_percent is not None else both.lost_percent
    received = [part for part in sums if part.lost_packets is not None]
    rate = whole.bits_per_second
    if not rate and both.bits_per_second is not None and loss is not None:
        rate = both.bits_per_second * (1 - min(max(loss, 0), 100) / 100)
    if len(received) > 1:
        found.add(name, "bit/s", "interval", rates, direction)
    elif rate is not None and loss is not None:
        found.add(name, "bit/s", "run", [rate], direction)
    if loss is not None:
        found.add("UDP loss", "share", "run", [loss / 100], direction)
    jitter = whole.jitter_ms if whole.jitter_ms is not None else both.jitter_ms
    if jitter is not None:
        found.add("UDP jitter", "ns", "run", [jitter * 1e6], direction)


def _only_stream(interval: dict[str, object]) -> object:
    streams = entries(interval.get("streams"))
    return streams[0] if len(streams) == 1 else {}


def _whole(end: dict[str, object], name: str, path: Path) -> _Sum:
    value = end.get(name)
    return check(_Sum, value if isinstance(value, dict) else {}, name, str(path))
