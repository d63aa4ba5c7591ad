"""From a design's factors to its cells: every allowed combination. Pure.

A *cell* is what a testbed is set up for; the traffic factors (frequency, size, protocol) belong to
its trials and change nothing on the testbed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Literal, cast

from planewise.measure.designs.design import SAME, Design, LoadLocation
from planewise.store.models import Level
from planewise.testbed.model import Forwarder, GuestKind, LoadType, TrafficPath
from planewise.testbed.planes import FUNCTIONS_OF
from planewise.testbed.setting import Setting
from planewise.testbed.settings import vm_options

CELL_FACTORS = (
    "plane",
    "guest",
    "background_plane",
    "background_guests",
    "load_type",
    "load_location",
    "path",
    "setting",
    "vnfs",
)
"""The factors of a cell, in the order of its name; the last is that of chains."""
CHAIN_FACTORS = ("plane", "guest", "forwarder", "path", "vnfs")
"""Of these, those that a chain has; it has no background guests, and no load beside its own."""


@dataclass(frozen=True)
class CellTestbed(Setting):
    """Guests and planes that a cell needs; between cells of one testbed nothing is built."""

    __test__ = False  # not a test class, whatever its name says to pytest

    vnfs: int = 0
    forwarder: Forwarder | Literal[""] = ""


@dataclass(frozen=True, order=True)
class Cell:
    """One combination of factor levels, as a testbed is set up for it."""

    plane: str
    load_type: LoadType = "none"
    load_location: LoadLocation = "responder"
    background_guests: int = 0
    guest: GuestKind = "namespace"
    background_plane: str = SAME
    """As the design says it; `background` is the plane that it means."""
    path: TrafficPath = "north-south"
    vnfs: int = 0
    """Network functions of a chain; 0: no chain."""
    forwarder: Forwarder | Literal[""] = ""
    """What sends frames on in each; empty: the plane's usual forwarder."""
    setting: str = ""
    """Settings that differ from the testbed's; empty in designs without them."""

    @property
    def background(self) -> str:
        """The plane of the background guests."""
        return self.plane if self.background_plane == SAME else self.background_plane

    @property
    def testbed(self) -> CellTestbed:
        """The testbed that it needs; cells with the same one differ in their load alone."""
        behind = self.background if self.background_guests else self.plane
        return CellTestbed(
            self.guest,
            self.plane,
            behind,
            self.background_guests,
            self.path,
            vm_options(self.setting),
            self.vnfs,
            self.forwarder,
        )

    def levels(self) -> dict[str, Level]:
        """The levels, as a trial record has them."""
        names = CHAIN_FACTORS if self.vnfs else CELL_FACTORS[:-1]
        levels = {name: getattr(self, name) for name in names}
        return {name: level for name, level in levels.items() if level != ""}

    @property
    def name(self) -> str:
        """Short and unique in a run: `bridge,namespace,same,8,cpu,responder,north-south`; that of
        a chain: `vhost-user,process,east-west,3`."""
        return ",".join(str(level) for level in self.levels().values())


def expand(design: Design) -> dict[Cell, dict[str, tuple[dict[str, Level], ...]]]:
    """All cells in the order of the design, each with its traffic: by part of the design, the
    levels of that part's own factors.

    Combinations that differ only in a factor without meaning are one cell, which has the factor's
    first level: the location without load, load and background plane without background guests, the
    path of a chain of one function. A cell exists when one of its combinations is allowed.
    """
    kinds = design.kinds()
    # By cell and kind of trial, the traffic in order and each but once.
    levels_by_kind: dict[Cell, dict[str, dict[tuple[Level, ...], None]]] = {}
    for kind, levels in _combinations(design):
        traffic = levels_by_kind.setdefault(_cell(levels, design), {}).setdefault(kind, {})
        traffic[tuple(levels[name] for name in kinds[kind])] = None
    return {
        cell: {
            kind: tuple(dict(zip(kinds[kind], row, strict=True)) for row in rows)
            for kind, rows in traffic.items()
        }
        for cell, traffic in levels_by_kind.items()
    }


def cells_of(design: Design) -> tuple[Cell, ...]:
    """All cells in the order of the design."""
    return tuple(expand(design))


def combinations(design: Design) -> Iterator[dict[str, Level]]:
    """Every allowed combination of levels, for each kind of trial without other kinds' factors."""
    for _, levels in _combinations(design):
        yield levels


def factors_in_use(design: Design) -> frozenset[str]:
    """The factors that some trial of the design has."""
    return frozenset(CELL_FACTORS).union(*design.kinds().values())


def _combinations(design: Design) -> Iterator[tuple[str, dict[str, Level]]]:
    factors = design.factors
    kinds, named = design.kinds().items(), _names_forwarders(design)
    for outer in product(*(getattr(factors, name) for name in CELL_FACTORS)):
        of_cell = dict(zip(CELL_FACTORS, outer, strict=True))
        for kind, traffic in kinds:
            for inner in product(*(getattr(factors, name) for name in traffic)):
                levels = of_cell | dict(zip(traffic, inner, strict=True))
                if all(constraint.allows(levels) for constraint in design.constraints):
                    for forwarder in _forwarders(of_cell, design, named):
                        yield kind, levels | forwarder


def _forwarders(
    levels: Mapping[str, Level], design: Design, named: bool
) -> Iterator[dict[str, Level]]:
    """The factor `forwarder`, once for each of the design's functions that match a combination.

    It is left out where every function has its plane's usual forwarder: such cells are those of
    designs without `functions`.
    """
    if not design.functions:
        yield {}
    plane, guest = str(levels["plane"]), cast("GuestKind", levels["guest"])
    for function in design.functions:
        if function.guest == guest and (function.plane is None or plane in function.plane):
            yield {"forwarder": function.forwarder} if named else {}


def _names_forwarders(design: Design) -> bool:
    """Whether some function has another forwarder than its plane's usual one."""
    return any(
        function.forwarder != next(iter(FUNCTIONS_OF.get(plane, {}).get(function.guest, ())), None)
        for function in design.functions
        for plane in function.plane or design.factors.plane
    )


def _cell(levels: dict[str, Level], design: Design) -> Cell:
    of_cell = {name: levels[name] for name in (*CELL_FACTORS, "forwarder") if name in levels}
    factors = design.factors
    if of_cell["background_plane"] == of_cell["plane"] and SAME in factors.background_plane:
        of_cell["background_plane"] = SAME
    if of_cell["background_guests"] == 0:
        of_cell |= {"load_type": "none", "background_plane": factors.background_plane[0]}
    if of_cell["load_type"] == "none":
        of_cell["load_location"] = factors.load_location[0]
    if of_cell["vnfs"] == 1:
        of_cell["path"] = factors.path[0]
    return Cell(**of_cell)  # type: ignore[arg-type]
