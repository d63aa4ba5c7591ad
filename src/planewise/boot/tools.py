"""Finds busybox, sshd and modprobe for the hosts of a lab.

Programs that the machine lacks are unpacked into the cache and laid over the hosts' root. Nothing
is installed, and no daemon starts on the machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from planewise.boot import packages
from planewise.errors import UnsupportedError

_PACKAGES = (
    "busybox-static",
    "kmod",
    "libkmod2",
    "libwrap0",
    "openssh-server",
    "openssh-sftp-server",
)
_TREE = "tools"
_NEEDS_MIB = 30
_SBIN = "/usr/sbin:/sbin:/usr/bin:/bin"


@dataclass(frozen=True)
class Tools:
    """Paths of the programs."""

    busybox: Path
    layers: tuple[str, ...]
    """Directories of the cache to lay over the hosts' root."""


def find(cache: Path) -> Tools:
    """The machine's programs, or unpacked ones where it lacks some.

    Raises:
        UnsupportedError: a program is missing, and apt cannot download it.
        StorageError: no room to unpack.
    """
    busybox = shutil.which("busybox", path=_SBIN)
    usable = busybox if busybox and is_static(Path(busybox).read_bytes()) else None
    if usable and Path("/usr/sbin/sshd").exists() and shutil.which("modprobe", path=_SBIN):
        return Tools(Path(usable), ())
    tree = packages.fetch(_TREE, _PACKAGES, cache, needs_mib=_NEEDS_MIB)
    if not _starts(tree):
        # Unpacked before an upgrade of the machine, for other libraries.
        shutil.rmtree(tree, ignore_errors=True)
        tree = packages.fetch(_TREE, _PACKAGES, cache, needs_mib=_NEEDS_MIB)
        if not _starts(tree):
            raise UnsupportedError(
                "the sshd of the package openssh-server does not run on this machine",
                remedy="install openssh-server (its service need not run)",
            )
    return Tools(Path(usable) if usable else tree / "usr/bin/busybox", (_TREE,))


def is_static(program: bytes) -> bool:
    """Whether an ELF program needs no loader. Pure."""
    return program.startswith(b"\x7fELF") and b"/ld-linux" not in program[:4096]


def _starts(tree: Path) -> bool:
    libraries = ":".join(str(path) for path in sorted((tree / "usr/lib").glob("*-linux-gnu*")))
    process = subprocess.run(
        [str(tree / "usr/sbin/sshd"), "-?"],
        capture_output=True,
        check=False,
        env=os.environ | {"LD_LIBRARY_PATH": libraries},
    )
    return process.returncode != 127  # the loader's code for a library that is missing
