"""A Debian host with systemd on which planewised runs under its own unit: PLANEWISE_SYSTEMD=1.

Slow (its root is made once in some minutes, booted emulated in one or two) and outside `make test`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from planewise import __version__, lab
from planewise.testbed.hosts import programs
from tests.documents import ROOT
from tests.lab.conftest import state_directory, why_not
from tests.roots import booted, root

from .stage import DAEMON_JSON, Stage

__all__ = ["state_directory"]

PACKAGES = (
    *("curl", "docker.io", "dpdk-dev", "ethtool", "iputils-ping", "libvirt-clients"),
    *("libvirt-daemon-system", "procps", "python3", "qemu-system-x86"),
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = why_not()
    if not os.environ.get("PLANEWISE_SYSTEMD"):
        reason = "planewised runs under its unit on a booted Debian only with PLANEWISE_SYSTEMD=1"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker("lab")
            item.add_marker(pytest.mark.timeout(3600))
            if reason:
                item.add_marker(pytest.mark.skip(reason=reason))


def _artifacts() -> ModuleType:
    """packaging/artifacts.py, which is no module of a package."""
    path = ROOT / "packaging" / "artifacts.py"
    spec = importlib.util.spec_from_file_location("planewise_artifacts", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package of the programs that were set up last, as `make release` assembles it."""
    artifacts = _artifacts()
    out, empty = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("empty")
    built = {name: Path(programs.find(name)).read_bytes() for name in ("planewised", "pw-probe")}
    release = artifacts.Release(__version__, os.uname().machine, 0, built, empty, empty)
    artifacts.debian_package(release, out)
    (file,) = out.glob("planewised_*.deb")
    return file


@pytest.fixture(scope="session")
def stage(state_directory: Path, package: Path) -> Iterator[Stage]:
    """Host a with the package installed and its unit running, beside Docker, libvirt and DPDK."""
    debian = root("bookworm", *PACKAGES)
    settings = debian / "etc" / "docker" / "daemon.json"
    # Docker starts with the host: it must not take its usual addresses even once.
    if not settings.exists():
        settings.parent.mkdir(exist_ok=True)
        settings.write_text(json.dumps(DAEMON_JSON))
    with booted(lab.LabSpec("systemd", pfs=2, memory_mib=3072, cpus=1, root=str(debian))) as hosts:
        ready = Stage(hosts.a, hosts.b)
        ready.install(package)
        yield ready
