"""The arrows between the rooms run one way (docs/design.md)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import planewise

ROOT = Path(planewise.__file__).parent

MAY_IMPORT = {
    "store": set[str](),
    "judge": {"store"},
    "advise": {"judge", "store"},
    "report": {"judge", "store"},
    "live": {"store"},
    "boot": set(),
    "lab": {"boot"},
    "testbed": {"store", "lab", "boot"},
    "measure": {"testbed", "judge", "store"},
}
"""Room -> rooms that it may know. measure knows judge for the searches, which place trials."""


def imported_rooms(file: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "planewise":
                names = [f"planewise.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("planewise.")}
    return rooms


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    files = sorted((ROOT / room).rglob("*.py"))
    assert files
    for file in files:
        beyond = imported_rooms(file) - MAY_IMPORT[room] - {room, "errors", "units", "procfs"}
        assert not beyond, f"{file.relative_to(ROOT)} imports {', '.join(sorted(beyond))}"


def test_the_search_knows_a_measurer_and_no_testbed() -> None:
    for file in (ROOT / "measure" / "search").rglob("*.py"):
        assert "testbed" not in imported_rooms(file), file.name


def test_virtual_machines_boot_without_a_lab() -> None:
    for file in (ROOT / "testbed" / "vms").rglob("*.py"):
        assert "lab" not in imported_rooms(file), file.name


def test_only_the_testbed_and_the_doctor_touch_sysfs_or_netlink() -> None:
    for file in ROOT.rglob("*.py"):
        room = file.relative_to(ROOT).parts[0]
        if room in ("testbed", "doctor.py"):
            continue
        text = file.read_text()
        assert "pyroute2" not in text, file.name
        assert "/sys/class" not in text, file.name
