"""The programs that the hosts need beyond the outer machine's: busybox, sshd, modprobe.

What the machine has is used; the rest is unpacked into the cache and laid over the hosts' root.
Nothing is installed, and no daemon starts on the machine.
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
    """Where the programs are."""

    busybox: Path
    layers: tuple[str, ...]
    """Directories of the cache that must lie over the hosts' root."""


def find(cache: Path) -> Tools:
    """The machine's own programs, and what is unpacked in their place.

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
        # The machine was upgraded since: the libraries below it are others.
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
    libraries = ":".join(str(found) for found in sorted((tree / "usr/lib").glob("*-linux-gnu*")))
    done = subprocess.run(
        [str(tree / "usr/sbin/sshd"), "-?"],
        capture_output=True,
        check=False,
        env=os.environ | {"LD_LIBRARY_PATH": libraries},
    )
    return done.returncode != 127  # the loader's code for a library that is missing
