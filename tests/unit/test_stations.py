"""How the kinds of guest of one run share the hosts."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar

import pytest

from planewise.errors import PlanewiseError
from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design_file import load_design
from planewise.measure.runs import stations
from planewise.measure.runs.stations import Stations
from planewise.measure.station import Place, Station, Trial, TrialResult

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from planewise.testbed.setting import Setting

LOG: list[str] = []


class FakeTestbed:
    """Writes what it does to LOG; on two servers nothing of another testbed may stand beside it."""

    standing: ClassVar[set[str]] = set()

    def __init__(self, pair: SimpleNamespace, *_: object) -> None:
        self.alone = pair.separate
        self.kind = ""

    def check(self, settings: list[Setting]) -> dict[Setting, str]:
        return {}

    def check_alive(self, setting: Setting) -> None:
        return

    @contextmanager
    def arrange(self, setting: Setting) -> Iterator[SimpleNamespace]:
        self.kind = setting.kind
        assert not self.alone or self.standing <= {self.kind}, "two kinds would have the same NIC"
        self.standing.add(self.kind)
        LOG.append(f"{setting.kind} on {setting.plane}")
        yield SimpleNamespace()

    def close(self) -> None:
        if self.kind in self.standing:
            self.standing.discard(self.kind)
            LOG.append(f"{self.kind} cleared")


def visits(tmp_path: Path, separate: bool, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    path = tmp_path / "design.yaml"
    path.write_text(
        "factors: {guest: [namespace, vm], plane: [bridge, virtio-bridge, macvlan]}\n"
        "constraints:\n"
        "  - {when: {guest: vm}, require: {plane: virtio-bridge}}\n"
        "  - {when: {guest: namespace}, require: {plane: [bridge, macvlan]}}\n"
    )
    design = load_design(path)
    LOG.clear()
    pair = SimpleNamespace(separate=separate, machines={})
    monkeypatch.setattr(stations, "Testbed", FakeTestbed)
    monkeypatch.setattr(stations, "local_pair", lambda *_: nullcontext(pair))
    monkeypatch.setattr(Stations, "_station", lambda *_: Station({}, {}))
    with Stations(design, pair if separate else None) as opened:  # type: ignore[arg-type]
        cells = cells_of(design)
        for cell in [cell for cell in cells if cell not in opened.unavailable(cells)]:
            with opened.station(cell):
                pass
        seen = list(LOG)
    assert not FakeTestbed.standing
    return seen


def test_kinds_of_guest_take_turns_at_the_nics_of_two_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert visits(tmp_path, True, monkeypatch) == [
        "namespace on bridge",
        "namespace cleared",
        "vm on virtio-bridge",
        "vm cleared",
        "namespace on macvlan",
    ]


def test_on_this_machine_each_kind_has_hosts_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert visits(tmp_path, False, monkeypatch) == [
        "namespace on bridge",
        "vm on virtio-bridge",
        "namespace on macvlan",
    ]


class Failing(Trial):
    """A trial that gets no answer."""

    expected_s = 0.0

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
