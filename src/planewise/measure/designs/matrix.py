"""What can be measured at all: kind of guest × plane × here or on two hosts.

Every kind of trial between guests can be measured wherever guests can be. Whether a host has what a
plane needs (a kernel's feature, Docker, SR-IOV) is up to the testbed (`Testbed.check`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from planewise.measure.trials import KINDS
from planewise.testbed import planes
from planewise.testbed.model import GuestKind
from planewise.testbed.settings import SETTINGS

HostPair = Literal["here", "two hosts"]
PLACES: tuple[HostPair, ...] = ("here", "two hosts")

GUESTS: tuple[GuestKind, ...] = ("namespace", "container", "vm")
"""Kinds of main guests; processes are only functions of chains."""

FUNCTIONS: tuple[GuestKind, ...] = ("process", "container", "vm")
"""Kinds of functions of a chain."""

_OTHERS = tuple(kind.key for kind in KINDS if kind.own_part is not None)
MEASUREMENTS = ("rtt", "load", "tcp", *_OTHERS, "sweep", "search")
"""What is measured between guests."""

GUEST_NEEDS: Mapping[GuestKind, tuple[str, ...]] = MappingProxyType(
    {"container": ("docker",), "vm": ("vm",)}
)
"""What a host must have for guests of a kind."""


@dataclass(frozen=True)
class MatrixCell:
    """One cell of the table."""

    guest: GuestKind
    plane: str
    place: HostPair
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
                needs = dict.fromkeys(plane.needs + GUEST_NEEDS.get(guest, ()))
                yield MatrixCell(guest, plane.name, place, reason, () if reason else tuple(needs))


def places(cells: Iterable[MatrixCell]) -> str:
    """Where guests of a kind can be measured on a plane, in words. Pure."""
    can = {cell.place for cell in cells if not cell.reason}
    return "yes" if len(can) == len(PLACES) else next(iter(can), "no")


def settings_table() -> dict[str, dict[str, str]]:
    """By setting and plane, the kinds of guest that it exists for, or why it does not."""
    table: dict[str, dict[str, str]] = {}
    for name, setting in SETTINGS.items():
        for plane in planes.PLANES:
            reasons = {kind: setting.refusal(plane.name, kind) for kind in plane.guests}
            able = [kind for kind in GUESTS if not reasons.get(kind, "no such guests")]
            table.setdefault(name, {})[plane.name] = ", ".join(able) or "no"
    return table


def functions() -> dict[str, list[str]]:
    """By plane, what can forward in a function of each of `FUNCTIONS`, in words. Pure."""
    return {
        plane: [", ".join(forwarders.get(kind, ())) or "no" for kind in FUNCTIONS]
        for plane, forwarders in planes.FUNCTIONS_OF.items()
    }
