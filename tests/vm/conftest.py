"""Virtual machines as guests; skipped by name where they cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from planewise.errors import UnsupportedError
from planewise.testbed.model import TestbedSpec
from planewise.testbed.vms import testbed as vms
from planewise.testbed.vms.guests import Platform
from planewise.testbed.vms.testbed import VmTestbed

_said: list[str] = []
"""What the summary adds: figures for people, which no test asserts."""


def why_not() -> str | None:
    """Why there can be no virtual machines here, or None."""
    if os.environ.get("PLANEWISE_NO_LAB"):
        return "QEMU is not allowed here (PLANEWISE_NO_LAB)"
    try:
        vms.check()
        vms.platform()
    except UnsupportedError as error:
        return f"{error.what}: {error.remedy}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    reason = why_not() if here else None
    for item in here:
        item.add_marker("vm")
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _said:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def say() -> list[str]:
    """Takes what the summary shall say."""
    return _said


@pytest.fixture(scope="session")
def platform() -> Platform:
    """What this machine lends to virtual machines."""
    return vms.platform()


@pytest.fixture(scope="session")
def up(platform: Platform, say: list[str]) -> Iterator[VmTestbed]:
    """Two main guests behind virtio-bridge and a background guest on each host."""
    spec = TestbedSpec("virtio-bridge", background_guests=1)
    with VmTestbed(spec, platform) as testbed:
        slowest = max(one.ready_s for one in testbed.started)
        say.append(f"4 guests ready after {slowest:.1f} s ({platform.accelerator.name})")
        yield testbed
