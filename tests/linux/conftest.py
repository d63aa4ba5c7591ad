"""Tests on real namespaces: as root directly, as a plain user inside a user namespace."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from planewise.errors import UnsupportedError
from planewise.testbed.hosts import privilege
from tests.linux import probe

_refusal = ""


def pytest_configure() -> None:
    """Goes on inside a user namespace where that is needed; the process outside only waits."""
    global _refusal
    try:
        privilege.ensure()
    except UnsupportedError as error:
        _refusal = f"{error.what}; {error.remedy}"


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_left_before() -> None:
    """A killed session leaves what would fail tests that end with nothing left."""
    if not _refusal:
        subprocess.run([sys.executable, "-m", "planewise", "clean"], check=True, timeout=300)


@pytest.fixture(autouse=True)
def _may_make_namespaces() -> None:
    if _refusal:
        pytest.skip(_refusal)


@pytest.fixture
def netns_pair() -> Iterator[probe.Network]:
    """Two namespaces joined by a veth pair, with IPv4 and IPv6 addresses."""
    with probe.cable() as network:
        yield network


@pytest.fixture
def netns_relay() -> Iterator[probe.Network]:
    """The same with a third namespace between, which passes nothing on by itself."""
    with probe.relay() as network:
        yield network
