"""Virtual machines as guests; skipped by name where they cannot be."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from planewise.errors import UnsupportedError
from planewise.measure.runs.stations import SECOND_WIRE
from planewise.testbed.guests.vms.platform import VmPlatform, platform_of
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.pair import local_pair
from planewise.testbed.model import HOSTS
from planewise.testbed.setting import Setting
from planewise.testbed.testbed import Testbed

TWO_AND_TWO = Setting("vm", "virtio-bridge", "virtio-bridge", 1, "north-south")
"""A main guest and a background guest on each host."""


def why_not() -> str | None:
    """Why there can be no virtual machines here, or None."""
    if os.environ.get("PLANEWISE_NO_LAB"):
        return "QEMU is not allowed here (PLANEWISE_NO_LAB)"
    try:
        lent()
    except UnsupportedError as error:
        return f"{error.what}: {error.remedy}"
    return None


@cache
def lent() -> VmPlatform:
    """What this machine lends to virtual machines; UnsupportedError where it cannot."""
    host = LocalHost("this machine")
    try:
        return platform_of(host)
    finally:
        host.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = why_not() if here else None
    for item in here:
        item.add_marker("vm")
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def platform() -> VmPlatform:
    """What this machine lends to virtual machines."""
    return lent()


@pytest.fixture(scope="session")
def up(platform: VmPlatform, said: list[str]) -> Iterator[Testbed]:
    """Two main guests behind virtio-bridge and a background guest on each host."""
    with (
        local_pair(1500, SECOND_WIRE) as pair,
        Testbed(pair, 1500) as testbed,
    ):
        testbed.platforms.update(dict.fromkeys(HOSTS, platform))
        begun = time.monotonic()
        with testbed.arrange(TWO_AND_TWO):
            ready_s = time.monotonic() - begun
            said.append(f"4 guests ready after {ready_s:.1f} s ({platform.accelerator.name})")
        yield testbed
