"""netperf: classic console output, `-o` CSV, `-k` keywords and JSON of them; many tests a file.

Followed: HewlettPackard/netperf 2.7, src/netlib.c and src/nettest_omni.c (the banner of each test,
the classic rows of STREAM and RR tests, `Interim result` of demo mode, the omni output selectors).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from planewise.store.importers.text import lines, parse_json
from planewise.store.readings import SCALES, Collected, Readings, Unit, number_of

NAME = "netperf"
MARKS = ((0.9, " TEST from ", "AF_INET|STREAM"), (0.85, "Throughput Units|THROUGHPUT_UNITS"))

_BANNER = re.compile(r"^(?:MIGRATED )?((?:TCP|UDP|SCTP|OMNI|DCCP)\b.*?) TEST(?: from|$|,|:)")
_UNITS = re.compile(r"(?:10\^([369])|([KMGT]?))(bits|bytes)/s", re.IGNORECASE)
_INTERIM = re.compile(r"^Interim result: +([\d.]+) +(\S+) over ([\d.]+)")
_LATENCY = re.compile(r"^(?:(?:(\d+)(?:th|st|nd|rd)[ _]percentile)|p(\d+)|(mean))[ _]latency")
_POWERS = {"3": 1e3, "6": 1e6, "9": 1e9}


def parse(text: str, path: Path) -> list[Readings]:
    """What each test measured; equal tests are runs. BadInputError where no test finished."""
    found = Collected(path, NAME)
    if text.lstrip()[:1] in "{[":
        value = parse_json(text, path)
        for record in value if isinstance(value, list) else [value]:
            if isinstance(record, dict):
                _selected(found, {str(k).lower(): str(v) for k, v in record.items()}, "")
    else:
        for test, rows in _tests(text):
            _test(found, test, rows)
    return found.finish("no test of netperf in it finished")


def _tests(text: str) -> Iterator[tuple[str, list[str]]]:
    """The lines of each test, from its banner on."""
    test, rows = "", list[str]()
    for _, line in lines(text):
        if banner := _BANNER.match(line.strip()):
            yield test, rows
            test = banner[1].title().replace("Tcp", "TCP").replace("Udp", "UDP")
            rows = []
        else:
            rows.append(line.strip())
    yield test, rows


def _test(found: Collected, test: str, rows: list[str]) -> None:
    unit, scale = _rate_unit(" ".join(rows))
    interim = [match for row in rows if (match := _INTERIM.match(row))]
    if len(interim) > 1:
        unit, scale = _rate_unit(interim[0][2])
        rates = [number_of(match[1]) * scale for match in interim]
        found.add(_quantity(unit), unit, "interval", rates, test)
        return
    pairs, header = dict[str, str](), list[str]()
    for row in rows:
        name, sign, value = row.partition("=")
        cells = next(csv.reader([row]), []) if "," in row and '"' not in row else []
        if sign and name.isupper():
            pairs[name.lower()] = value
        elif "throughput" in row.lower() and cells:
            header = [cell.strip().lower() for cell in cells]
        elif header and len(cells) == len(header):
            _selected(found, dict(zip(header, cells, strict=True)), test)
    if pairs:
        _selected(found, pairs, test)
    elif not header:
        _classic(found, test, rows, unit, scale)


def _classic(found: Collected, test: str, rows: list[str], unit: Unit, scale: float) -> None:
    numbers = [[number_of(cell) for cell in row.split()] for row in rows]
    cells = [row for row in numbers if len(row) >= 4 and all(cell == cell for cell in row)]
    if not cells:
        return
    if "Request" in test and len(cells[0]) >= 6:
        found.add("transactions", "1/s", "run", [cells[0][5]], test)
    elif test.startswith("UDP") and len(cells[0]) >= 6:  # the second row is the receiver's
        received = cells[1][3] if len(cells) > 1 else cells[0][5]
        found.add(_quantity(unit), unit, "run", [received * scale], test)
    elif "Request" not in test and len(cells[0]) >= 5:
        found.add(_quantity(unit), unit, "run", [cells[0][4] * scale], test)


def _selected(found: Collected, fields: dict[str, str], test: str) -> None:
    """Adds omni's selected fields, by their names in lower case."""
    rate = number_of(fields.get("throughput", ""))
    if rate == rate:
        unit, scale = _rate_unit(fields.get("throughput units", fields.get("throughput_units", "")))
        found.add(_quantity(unit), unit, "run", [rate * scale], test)
    for name, text in fields.items():
        value = number_of(text)
        if (match := _LATENCY.match(name)) and value >= 0:
            quantity = f"{match[1] or match[2]}th percentile" if not match[3] else "mean"
            found.add(f"{quantity} of latency", "ns", "run", [value * 1e3], test)


def _rate_unit(text: str) -> tuple[Unit, float]:
    """A rate's unit: bit/s with their factor, or transactions."""
    match = _UNITS.search(text)
    if match is None:
        return ("1/s", 1.0) if "Trans" in text else ("bit/s", 1e6)
    scale = _POWERS[match[1]] if match[1] else SCALES[match[2].lower()]
    return "bit/s", scale * (8 if match[3].lower() == "bytes" else 1)


def _quantity(unit: Unit) -> str:
    return "transactions" if unit == "1/s" else "throughput"
