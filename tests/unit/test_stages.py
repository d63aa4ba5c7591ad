"""How the stages of one run share two servers."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, cast

from planewise.measure.designs.cells import Cell, cells_of
from planewise.measure.designs.design_file import load_design
from planewise.measure.runs.stages import Stages

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import Self

    from planewise.testbed.hosts.pair import Pair


class MadeUpStage:
    """Says what it does; a cell may only stand while nothing of another stage does."""

    def __init__(self, kind: str, standing: set[str], log: list[str]) -> None:
        self.kind, self.standing, self.log = kind, standing, log

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        return {}

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        assert self.standing <= {self.kind}
        return 1.0

    @contextmanager
    def station(self, cell: Cell) -> Iterator[None]:
        assert self.standing <= {self.kind}, "two stages would have the same NIC"
        self.standing.add(self.kind)
        self.log.append(f"{cell.guest} on {cell.plane}")
        yield

    def clear(self) -> None:
        self.standing.discard(self.kind)
        self.log.append(f"{self.kind} cleared")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.standing.discard(self.kind)


def visits(tmp_path: Path, pair: Pair | None) -> list[str]:
    path = tmp_path / "design.yaml"
    path.write_text(
        "factors: {guest: [namespace, vm], plane: [bridge, virtio-bridge, macvlan]}\n"
        "constraints:\n"
        "  - {when: {guest: vm}, require: {plane: virtio-bridge}}\n"
        "  - {when: {guest: namespace}, require: {plane: [bridge, macvlan]}}\n"
    )
    design = load_design(path)
    log: list[str] = []
    standing: set[str] = set()
    makers = {
        kind: lambda _, kind=kind: MadeUpStage(kind, standing, log) for kind in ("namespace", "vm")
    }
    with Stages(design, pair, makers) as stages:  # type: ignore[arg-type]
        cells = cells_of(design)
        possible = [cell for cell in cells if cell not in stages.unavailable(cells)]
        for cell in possible:
            if pair is None:
                standing.clear()
            stages.max_pps(cell, 64)
            with stages.station(cell):
                pass
    return log


def test_kinds_of_guest_take_turns_at_the_nics_of_two_servers(tmp_path: Path) -> None:
    log = visits(tmp_path, cast("Pair", object()))
    assert log == [
        "namespace on bridge",
        "namespace cleared",
        "vm on virtio-bridge",
        "vm cleared",
        "namespace on macvlan",
    ]


def test_on_this_machine_each_kind_has_hosts_of_its_own(tmp_path: Path) -> None:
    assert visits(tmp_path, None) == [
        "namespace on bridge",
        "vm on virtio-bridge",
        "namespace on macvlan",
    ]
