"""iperf3's JSON (`-J`, `--json-stream`): TCP and UDP, with the intervals of each run.

Followed: esnet/iperf, src/iperf_api.c and src/iperf_client_api.c, 3.0 to 3.18. `intervals[].sum`
(or the one of `streams`) holds each interval, `end` the whole run. A UDP sender's intervals are
what it offered, so a client's file has what arrived as one number only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields
from planewise.store.importers.text import values
from planewise.store.readings import Collected, Readings

NAME = "iperf3"
MARKS = (
    (0.95, r"\[ ID\] Interval"),
    (0.95, "iperf 3", '"version"|"start"'),
    (0.8, '"bits_per_second"', '"interval'),
)
_TEXT = "[ ID] Interval"
"""Heads the table for people."""


def parse(text: str, path: Path) -> list[Readings]:
    """Each direction's throughput; of UDP loss and jitter, too. BadInputError for a failed run."""
    if _TEXT in text:
        raise BadInputError(
            "this is the text that iperf prints for people, with rounded figures",
            where=str(path),
            remedy="measure with `iperf3 --json`",
        )
    found = Collected(path, NAME)
    error = ""
    for value in _runs(text, path):
        run = Fields(value, "a run", str(path))
        error = " ".join(run.text("error").split())[:150] or error
        for suffix, direction in (("", ""), ("_bidir_reverse", "reverse")):
            _direction(found, run, suffix, direction)
    return found.finish(f"iperf3 measured nothing{f': {error}' if error else ''}")


def _runs(text: str, path: Path) -> Iterator[object]:
    """The runs; one that --json-stream wrote event by event as if it were written whole."""
    stream: dict[str, Any] = {"intervals": []}
    for _, value in values(text, path):
        event = value.get("event") if isinstance(value, dict) else None
        if not isinstance(value, dict) or not isinstance(event, str):
            yield value
        elif event == "interval":
            stream["intervals"].append(value.get("data"))
        else:
            stream[event] = value.get("data")
        if event == "end":
            yield stream
            stream = {"intervals": []}
    if stream["intervals"]:  # cut short
        yield stream


def _direction(found: Collected, run: Fields, suffix: str, direction: str) -> None:
    parts = []
    for interval in run.each("intervals"):
        streams = interval.each("streams")
        if isinstance(total := interval.get(f"sum{suffix}"), dict):
            parts.append(Fields(total, "sum", run.where))
        elif len(streams) == 1 and not suffix:
            parts.append(streams[0])
    rates = {
        part: bps
        for part in parts
        if part.get("omitted") is not True and (bps := part.loose("bits_per_second")) is not None
    }

    def whole(of: str, field: str) -> float | None:
        return run.loose(f"end.{of}{suffix}.{field}")

    def add(quantity: str, of_intervals: bool, rate: float | None) -> None:
        if of_intervals:
            found.add(quantity, "bit/s", "interval", list(rates.values()), direction)
        elif rate is not None:
            found.add(quantity, "bit/s", "run", [rate], direction)

    received, both = (whole(of, "bits_per_second") for of in ("sum_received", "sum"))
    loss, jitter_ms = (
        value if (value := whole("sum_received", field)) is not None else whole("sum", field)
        for field in ("lost_percent", "jitter_ms")
    )
    udp = run.text("start.test_start.protocol").upper() == "UDP"
    udp |= whole("sum", "lost_percent") is not None
    if not udp and all(part.loose("packets") is None for part in rates):
        rate = received or whole("sum_sent", "bits_per_second") or both
        add("TCP throughput", len(rates) > 1, rate)
        return
    if not received and both is not None and loss is not None:
        received = both * (1 - min(max(loss, 0), 100) / 100)
    of_receiver = sum(part.loose("lost_packets") is not None for part in rates) > 1
    add("UDP received rate", of_receiver, received if loss is not None else None)
    if loss is not None:
        found.add("UDP loss", "share", "run", [loss / 100], direction)
    if jitter_ms is not None:
        found.add("UDP jitter", "ns", "run", [jitter_ms * 1e6], direction)
