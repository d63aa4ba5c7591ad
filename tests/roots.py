"""Clean roots of Debian and Ubuntu, made by mmdebstrap, kept in the lab's cache; booted."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from planewise import lab
from planewise.boot import packages
from planewise.testbed.hosts.remote import LabHost
from tests.lab.conftest import Silence

BOOTABLE = ("apt", "systemd-sysv", "udev", "dbus", "kmod", "openssh-server", "iproute2")
"""What a minimal root needs beyond itself to be booted in a lab and reached there."""

BOOT_LIMIT_S = 600.0
"""A systemd that boots emulated, on a busy machine, takes minutes."""

_COMPONENTS = {"noble": "main,universe"}


def root(suite: str, *more: str) -> Path:
    """A minimal root of a suite with these packages beside BOOTABLE; skips where it cannot be had.

    Fetched from the mirrors that mmdebstrap knows for the suite; made once.
    """
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        pytest.skip("a root of a distribution is made by mmdebstrap, as root")
    wanted = ",".join(sorted({*BOOTABLE, *more}))
    cache = packages.cache_directory() / "roots"
    target = cache / f"{suite}-{hashlib.sha256(wanted.encode()).hexdigest()[:12]}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the kernel lets go of it however its holder ends
        return target if target.is_dir() else _made(suite, wanted, target)


def _made(suite: str, wanted: str, target: Path) -> Path:
    """Makes the root; its name is there once it is whole."""
    scratch = target.with_suffix(".new")
    shutil.rmtree(scratch, ignore_errors=True)
    made = subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", "--mode=root"),
            *(f"--components={_COMPONENTS.get(suite, 'main')}", f"--include={wanted}"),
            *(suite, str(scratch)),
        ],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if made.returncode != 0:
        shutil.rmtree(scratch, ignore_errors=True)
        pytest.skip(f"no root of {suite} can be had: {made.stderr.strip()[-300:]}")
    return scratch.rename(target)


@dataclass(frozen=True)
class Clean:
    """Two freshly booted hosts of one distribution."""

    suite: str
    a: LabHost
    b: LabHost
    ssh_config: Path


@contextmanager
def booted(spec: lab.LabSpec) -> Iterator[Clean]:
    """A lab, named after its suite, whose hosts boot a root by its own systemd."""
    status = lab.up(spec, Silence(), BOOT_LIMIT_S)
    a, b = (LabHost(spec.name, name, name=name) for name in lab.HOSTS)
    try:
        yield Clean(spec.name, a, b, status.directory / "ssh_config")
    finally:
        a.close()
        b.close()
        lab.down(spec.name)
