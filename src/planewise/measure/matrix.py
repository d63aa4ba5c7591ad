"""What can be measured at all: kind of guest × plane × here or two hosts × measurement.

Asks planes what they attach. Whether a host has what a plane needs (a kernel's feature, Docker,
SR-IOV) is the testbed's to say (`Testbed.expect`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType
from typing import Literal

from planewise.testbed import planes
from planewise.testbed.planes.kinds import GuestKind

HostPair = Literal["here", "two hosts"]
PLACES: tuple[HostPair, ...] = ("here", "two hosts")

GUESTS: tuple[GuestKind, ...] = ("namespace", "container", "vm")
"""What can be a main guest; processes are functions of chains alone."""

MEASUREMENTS = ("rtt", "load", "tcp", "connect", "sweep", "search")
"""Every station of guests offers what each of them needs."""


@dataclass(frozen=True)
class MatrixCell:
    """One cell of the table."""

    guest: GuestKind
    plane: str
    place: HostPair
    measurement: str
    reason: str
    """Why it cannot be measured; empty where it can, on hosts that have what it needs."""
    needs: tuple[str, ...]
    """What a host must have beside a kernel."""


def matrix() -> Iterator[MatrixCell]:
    """Every cell of the table."""
    for guest in GUESTS:
        for plane in planes.PLANES:
            for place in PLACES:
                reason = planes.refusal(plane.name, guest, here=place == "here")
                needs = plane.needs + GUEST_NEEDS.get(guest, ())
                for measurement in MEASUREMENTS:
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


def rows(cells: Iterable[MatrixCell]) -> Iterator[tuple[str, str, str, str, str, str]]:
    """The table with a row for each guest, plane and place: what works, what cannot and why, what
    a host must have. Pure."""
    for key, group in groupby(cells, key=lambda cell: (cell.guest, cell.plane, cell.place)):
        together = list(group)
        works = [cell.measurement for cell in together if not cell.reason]
        reasons = dict.fromkeys(cell.reason for cell in together if cell.reason)
        needs = dict.fromkeys(need for cell in together for need in cell.needs)
        yield (*key, " ".join(works), "; ".join(reasons), " ".join(needs))
