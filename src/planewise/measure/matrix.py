"""What can be measured at all: kind of guest × plane × here or two hosts × measurement.

Asks planes what they attach and stations what they measure. Whether a host has what a plane needs
(a kernel's feature, Docker, SR-IOV) is the testbed's to say (`Testbed.expect`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Literal

from planewise.measure.schedule import LoadStation, RttStation, TcpStation
from planewise.measure.station import GuestStation
from planewise.measure.vms import VmStation
from planewise.testbed import planes
from planewise.testbed.planes import Plane
from planewise.testbed.planes.kinds import GUEST_WORDS, GuestKind

Place = Literal["here", "two hosts"]
PLACES: tuple[Place, ...] = ("here", "two hosts")

MEASUREMENTS: Mapping[str, type] = MappingProxyType(
    {
        "rtt": RttStation,
        "load": LoadStation,
        "tcp": TcpStation,
        "sweep": LoadStation,
        "search": LoadStation,
    }
)
"""What is measured, with what a station must offer for it."""

STATIONS: Mapping[GuestKind, type] = MappingProxyType(
    {"namespace": GuestStation, "container": GuestStation, "vm": VmStation}
)
"""Where main guests of a kind are measured; processes are functions of chains alone."""


@dataclass(frozen=True)
class MatrixCell:
    """One cell of the table."""

    guest: GuestKind
    plane: str
    place: Place
    measurement: str
    reason: str
    """Why it cannot be measured; empty where it can, on hosts that have what it needs."""
    needs: tuple[str, ...]
    """What a host must have beside a kernel."""


def matrix() -> Iterator[MatrixCell]:
    """Every cell of the table."""
    for guest in STATIONS:
        for plane in planes.PLANES:
            for place in PLACES:
                for measurement in MEASUREMENTS:
                    reason = refusal(guest, plane, place, measurement)
                    needs = plane.needs + GUEST_NEEDS.get(guest, ())
                    yield MatrixCell(
                        guest,
                        plane.name,
                        place,
                        measurement,
                        reason,
                        () if reason else tuple(dict.fromkeys(needs)),
                    )


GUEST_NEEDS: Mapping[GuestKind, tuple[str, ...]] = MappingProxyType(
    {"container": ("docker",), "vm": ("vm",)}
)
"""What a host must have for guests of a kind."""


def refusal(guest: GuestKind, plane: Plane, place: Place, measurement: str) -> str:
    """Why no host can measure a cell, as a sentence; empty where one can. Pure."""
    if why := planes.refusal(plane.name, guest, here=place == "here"):
        return why
    if not issubclass(STATIONS[guest], MEASUREMENTS[measurement]):
        return f"{measurement} is not measured between {GUEST_WORDS[guest][1]} yet"
    return ""


def rows(cells: Iterable[MatrixCell]) -> Iterator[tuple[str, str, str, str, str, str]]:
    """The table with a row for each guest, plane and place: what works, what cannot and why, what
    a host must have. Pure."""
    for key, group in groupby(cells, key=lambda cell: (cell.guest, cell.plane, cell.place)):
        together = list(group)
        works = [cell.measurement for cell in together if not cell.reason]
        reasons = dict.fromkeys(cell.reason for cell in together if cell.reason)
        needs = dict.fromkeys(need for cell in together for need in cell.needs)
        yield (*key, " ".join(works), "; ".join(reasons), " ".join(needs))
