"""How the kinds of guest of one run share the hosts."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import pytest

from planewise.errors import PlanewiseError
from planewise.measure.designs.cells import Cell, cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.design_file import load_design
from planewise.measure.runs import stations
from planewise.measure.runs.stations import Stations
from planewise.measure.station import Place, Station, Trial, TrialResult

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from planewise.testbed.setting import Setting


class FakeTestbed:
    """Writes down what each testbed is asked to arrange."""

    made: ClassVar[list[FakeTestbed]] = []

    def __init__(self, *_: object) -> None:
        self.arranged: list[str] = []
        self.made.append(self)

    def check(self, settings: list[Setting]) -> dict[Setting, str]:
        return {}

    def check_alive(self, setting: Setting) -> None:
        return

    @contextmanager
    def arrange(self, setting: Setting) -> Iterator[SimpleNamespace]:
        self.arranged.append(f"{setting.kind} on {setting.plane}")
        yield SimpleNamespace()

    def close(self) -> None:
        self.made.remove(self)


@pytest.mark.parametrize(
    ("separate", "by_testbed"),
    [
        (True, [["namespace on bridge", "vm on virtio-bridge", "namespace on macvlan"]]),
        (False, [["namespace on bridge"], ["vm on virtio-bridge"], ["namespace on macvlan"]]),
    ],
)
def test_two_servers_have_one_testbed_and_here_each_switch_and_kind_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separate: bool, by_testbed: list[list[str]]
) -> None:
    path = tmp_path / "design.yaml"
    path.write_text(
        "factors: {guest: [namespace, vm], plane: [bridge, virtio-bridge, macvlan]}\n"
        "constraints:\n"
        "  - {when: {guest: vm}, require: {plane: virtio-bridge}}\n"
        "  - {when: {guest: namespace}, require: {plane: [bridge, macvlan]}}\n"
    )
    design = load_design(path)
    pair = SimpleNamespace(separate=separate, machines={})
    monkeypatch.setattr(stations, "Testbed", FakeTestbed)
    monkeypatch.setattr(stations, "local_pair", lambda *_: nullcontext(pair))
    monkeypatch.setattr(Stations, "_station", lambda *_: Station({}, {}))
    with Stations(design, pair if separate else None) as opened:  # type: ignore[arg-type]
        cells = cells_of(design)
        for cell in [cell for cell in cells if cell not in opened.unavailable(cells)]:
            with opened.station(cell):
                pass
        arranged = [testbed.arranged for testbed in FakeTestbed.made if testbed.arranged]
    assert sorted(arranged) == sorted(by_testbed)
    assert not FakeTestbed.made


def test_network_load_to_guests_that_nobody_can_reach_is_refused() -> None:
    cell = Cell(
        "veth",
        background_guests=8,
        background_plane="pasta",
        load_type="network",
        load_location="sender",
    )
    with Stations(Design.model_validate({"factors": {"plane": "veth"}, "rtt": {}})) as opened:
        (reason,) = opened.unavailable([cell]).values()
    assert (
        reason
        == "network load at the sender is sent to guests, and nobody can reach those on pasta"
    )


class Failing(Trial):
    """A trial that gets no answer."""

    expected_s = 0.0

    @classmethod
    def requested(cls, request: object) -> list[Trial]:
        return []

    @classmethod
    def offered(cls, design: object) -> Iterator[tuple[str, float | str]]:
        return iter(())

    def measure_on(self, station: Station, place: Place, on_sample: object) -> TrialResult:
        raise PlanewiseError("nobody answered")


def test_a_guest_that_ended_is_the_reason_of_a_failed_trial() -> None:
    def ended() -> None:
        raise PlanewiseError("the virtual machine responder-main ended")

    place = Place("t", {}, 0, 0)
    with pytest.raises(PlanewiseError, match="responder-main ended"):
        Station({}, {}, check=ended).measure(Failing("t"), place, lambda _: None)
    with pytest.raises(PlanewiseError, match="nobody answered"):
        Station({}, {}).measure(Failing("t"), place, lambda _: None)
