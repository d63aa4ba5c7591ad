"""What is released, on clean hosts of two distributions: `make release`, then PLANEWISE_RELEASE=1.

Slow (a quarter of an hour on two idle cores) and outside `make test`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from planewise import lab
from planewise.testbed.remote import LabHost
from tests.documents import ROOT
from tests.lab.conftest import Silence, state_directory, why_not
from tests.roots import root

__all__ = ["state_directory"]

SUITES = ("bookworm", "noble")
"""Debian 12 and Ubuntu 24.04."""

LIMIT_S = 600.0
"""A systemd that boots emulated, on a busy machine, takes minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    if not os.environ.get("PLANEWISE_RELEASE"):
        reason = "releases are installed on clean hosts only with PLANEWISE_RELEASE=1"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(3600))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def artifacts() -> Path:
    """What `make release` wrote, with the checksums that it wrote."""
    folder = Path(os.environ.get("PLANEWISE_DIST", str(ROOT / "dist")))
    assert (folder / "SHA256SUMS").is_file(), f"{folder} has no release: `make release` first"
    subprocess.run(["sha256sum", "--check", "--quiet", "SHA256SUMS"], cwd=folder, check=True)
    return folder


def artifact(folder: Path, pattern: str) -> Path:
    """The one artifact of this name."""
    (file,) = folder.glob(pattern)
    return file


@dataclass(frozen=True)
class Clean:
    """Two freshly booted hosts of one distribution."""

    suite: str
    a: LabHost
    b: LabHost
    ssh_config: Path


@pytest.fixture(scope="module", params=SUITES)
def clean(request: pytest.FixtureRequest, state_directory: Path) -> Iterator[Clean]:
    """A lab whose hosts boot a minimal root of the distribution, by its own systemd."""
    suite = request.param
    spec = lab.LabSpec(suite, memory_mib=1536, cpus=1, root=str(root(suite, "python3-venv")))
    status = lab.up(spec, Silence(), LIMIT_S)
    a, b = (LabHost(suite, name, name=name) for name in lab.HOSTS)
    try:
        yield Clean(suite, a, b, status.directory / "ssh_config")
    finally:
        a.close()
        b.close()
        lab.down(suite)
