"""From a design's factors to its cells: every combination that can be. Pure; knows no order.

A *cell* here is what a testbed must be set up for; the traffic factors (frequency, size, protocol)
belong to its trials, so that going through them changes nothing on the testbed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from planewise.measure.design import (
    RTT_FACTORS,
    SAME,
    TRAFFIC_FACTORS,
    Design,
    LoadLocation,
    LoadType,
    Protocol,
    TrafficPath,
)
from planewise.store.models import Level
from planewise.testbed.planes.kinds import GuestKind

CELL_FACTORS = (
    "plane",
    "guest",
    "background_plane",
    "background_guests",
    "load_type",
    "load_location",
    "path",
)
"""The factors of a cell, in the order of its name."""


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

    @property
    def background(self) -> str:
        """The plane of the background guests."""
        return self.plane if self.background_plane == SAME else self.background_plane

    def levels(self) -> dict[str, Level]:
        """As a trial record has them."""
        return {name: getattr(self, name) for name in CELL_FACTORS}

    @property
    def name(self) -> str:
        """Short and unique in a run: `bridge,namespace,same,8,cpu,responder,north-south`."""
        return ",".join(str(level) for level in self.levels().values())


@dataclass(frozen=True, order=True)
class RttTraffic:
    """What an RTT trial sends."""

    frequency_pps: float
    size_bytes: int
    protocol: Protocol


@dataclass(frozen=True)
class Traffic:
    """What is sent in one cell."""

    rtt: tuple[RttTraffic, ...] = ()
    """One RTT trial each."""
    load_sizes_bytes: tuple[int, ...] = ()
    """One ladder of load trials each."""


def expand(design: Design) -> dict[Cell, Traffic]:
    """All cells in the order of the design, each with its traffic.

    Without load, its location has no meaning; without background guests, neither load nor their
    plane has: such combinations are one cell, with the first level of what has no meaning and
    `load_type` none. A cell is there when one of the combinations that it stands for is allowed.
    """
    rtt: dict[Cell, dict[RttTraffic, None]] = {}
    loads: dict[Cell, dict[int, None]] = {}
    cells: dict[Cell, None] = {}
    for levels in combinations(design):
        cell = _cell(levels, design)
        if "protocol" in levels:
            traffic = RttTraffic(*(levels[name] for name in TRAFFIC_FACTORS))  # type: ignore[arg-type]
            rtt.setdefault(cell, {})[traffic] = None
        else:
            loads.setdefault(cell, {})[int(levels["size_bytes"])] = None
        cells[cell] = None
    return {cell: Traffic(tuple(rtt.get(cell, ())), tuple(loads.get(cell, ()))) for cell in cells}


def cells_of(design: Design) -> tuple[Cell, ...]:
    """All cells in the order of the design."""
    return tuple(expand(design))


def combinations(design: Design) -> Iterator[dict[str, Level]]:
    """Every allowed combination of levels: one a kind of trial that it is measured with.

    Those of load trials do without the factors that only RTT trials have.
    """
    factors = design.factors
    kinds: list[tuple[str, ...]] = []
    if design.rtt is not None:
        kinds.append(TRAFFIC_FACTORS)
    if design.sweep is not None:
        kinds.append(tuple(name for name in TRAFFIC_FACTORS if name not in RTT_FACTORS))
    for outer in product(*(getattr(factors, name) for name in CELL_FACTORS)):
        of_cell = dict(zip(CELL_FACTORS, outer, strict=True))
        for traffic in kinds:
            for inner in product(*(getattr(factors, name) for name in traffic)):
                levels = of_cell | dict(zip(traffic, inner, strict=True))
                if all(constraint.allows(levels) for constraint in design.constraints):
                    yield levels


def _cell(levels: dict[str, Level], design: Design) -> Cell:
    own = {name: levels[name] for name in CELL_FACTORS}
    first = design.factors
    if own["background_guests"] == 0:
        own |= {"load_type": "none", "background_plane": first.background_plane[0]}
    if own["load_type"] == "none":
        own["load_location"] = first.load_location[0]
    return Cell(**own)  # type: ignore[arg-type]
