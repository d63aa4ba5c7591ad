"""flent's data files (`.flent`, `.flent.gz`): every series of a test, a value each step.

Followed: tohojo/flent, flent/resultset.py (format versions 1 to 4): `results` has a list a series,
null where a tool said nothing, `metadata.SERIES_META` its unit.
"""

from __future__ import annotations

from pathlib import Path

from planewise.store.importers.fields import Fields
from planewise.store.importers.text import parse_json
from planewise.store.readings import Collected, Readings, Unit

NAME = "flent"
MARKS = ((0.95, '"metadata"', '"x_values"|"SERIES_META"|"DATA_FILENAME"|"TEST_PARAMETERS"|FLENT'),)

_UNITS: dict[str, tuple[Unit, float]] = {
    "ms": ("ns", 1e6),
    "s": ("ns", 1e9),
    "us": ("ns", 1e3),
    "mbits/s": ("bit/s", 1e6),
    "mbit/s": ("bit/s", 1e6),
    "gbits/s": ("bit/s", 1e9),
    "kbits/s": ("bit/s", 1e3),
    "bits/s": ("bit/s", 1.0),
    "packets/s": ("pps", 1.0),
    "pps": ("pps", 1.0),
    "requests/s": ("1/s", 1.0),
    "trans/s": ("1/s", 1.0),
}


def parse(text: str, path: Path) -> list[Readings]:
    """A series each, where its unit is a rate or a time."""
    file = Fields(parse_json(text, path), "the file's content", str(path))
    found = Collected(path, NAME)
    about = file.get("metadata.SERIES_META")
    for name, values in file.inner("results").value.items():
        meta = about.get(name) if isinstance(about, dict) else None
        said = str(meta.get("UNITS", "")) if isinstance(meta, dict) else ""
        known = _UNITS.get(said.lower().strip()) or (None if said else _guessed(name))
        if known is None:
            continue  # counters of hosts and queues beside the test
        unit, scale = known
        steps = [
            float(value) * scale
            for value in (values if isinstance(values, list) else ())
            if isinstance(value, int | float) and not isinstance(value, bool)
        ]
        test = file.text("metadata.NAME")
        found.add(name.strip() or "unnamed", unit, "interval", steps, test)
    return found.finish("no series in it has values")


def _guessed(series: str) -> tuple[Unit, float] | None:
    """Of a series whose unit the file (older versions) leaves out: flent's names show it."""
    if "::" in series:
        return None
    if series.startswith("Ping"):
        return "ns", 1e6
    return ("bit/s", 1e6) if series.startswith("TCP") else None
