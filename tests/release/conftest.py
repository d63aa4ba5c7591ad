"""What is released, on clean hosts of two distributions: `make release`, then PLANEWISE_RELEASE=1.

Slow (a quarter of an hour on two idle cores) and outside `make test`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from planewise import lab
from tests.documents import ROOT
from tests.lab.conftest import state_directory, why_not
from tests.roots import BOOT_LIMIT_S, Clean, booted, root

__all__ = ["Clean", "state_directory"]

SUITES = ("bookworm", "noble")
"""Debian 12 and Ubuntu 24.04."""

LIMIT_S = BOOT_LIMIT_S


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


@pytest.fixture(scope="module", params=SUITES)
def clean(request: pytest.FixtureRequest, state_directory: Path) -> Iterator[Clean]:
    """A lab whose hosts boot a minimal root of the distribution, by its own systemd."""
    suite = request.param
    spec = lab.LabSpec(suite, memory_mib=1536, cpus=1, root=str(root(suite, "python3-venv")))
    with booted(spec) as hosts:
        yield hosts
