"""What can be measured at all: kind of guest × plane × here or two hosts × measurement.

Asks planes what they attach. Whether a host has what a plane needs (a kernel's feature, Docker,
SR-IOV) is the testbed's to say (`Testbed.expect`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from planewise.measure.trials import KINDS
from planewise.testbed import planes
from planewise.testbed.planes.kinds import GuestKind

HostPair = Literal["here", "two hosts"]
PLACES: tuple[HostPair, ...] = ("here", "two hosts")

GUESTS: tuple[GuestKind, ...] = ("namespace", "container", "vm")
"""What can be a main guest; processes are functions of chains alone."""

_OTHERS = tuple(kind.part for kind in KINDS if kind.own_part is not None)
MEASUREMENTS = ("rtt", "load", "tcp", *_OTHERS, "sweep", "search")
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
                reason = planes.refusal(plane.name, guest, local=place == "here")
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


def places(cells: Iterable[MatrixCell]) -> str:
    """Where guests of a kind can be measured on a plane, in words, from those cells. Pure."""
    can: dict[str, set[str]] = {place: set() for place in PLACES}
    for cell in cells:
        can[cell.place] |= set() if cell.reason else {cell.measurement}
    measured = {place: measurements for place, measurements in can.items() if measurements}
    if not measured:
        return "no"
    complete = all(measurements == set(MEASUREMENTS) for measurements in measured.values())
    named = "yes" if len(measured) == len(PLACES) else " and ".join(measured)
    return named if complete else f"{named}: {', '.join(sorted(set.union(*measured.values())))}"


def reasons(cells: Iterable[MatrixCell]) -> dict[str, None]:
    """Why what cannot be measured cannot, each sentence once. Pure."""
    return dict.fromkeys(cell.reason for cell in cells if cell.reason)


FUNCTIONS: tuple[GuestKind, ...] = ("process", "container", "vm")
"""What can be a function of a chain."""


def functions() -> dict[str, list[str]]:
    """By plane, what can forward in a function of each of `FUNCTIONS`, in words. Pure."""
    return {
        plane: [", ".join(forwarders.get(kind, ())) or "no" for kind in FUNCTIONS]
        for plane, forwarders in planes.FUNCTIONS_OF.items()
    }
