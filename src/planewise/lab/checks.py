"""Checks that this machine and a root can boot a lab. Changes nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from planewise import procfs
from planewise.errors import BadInputError, UnsupportedError
from planewise.lab.model import HOSTS, LabPlatform, LabSpec

_NEEDED = {"systemd": "lib/systemd/systemd", "openssh-server": "sbin/sshd"}
"""Packages that a root other than `/` needs, each with a file below /usr."""


def memory(spec: LabSpec) -> None:
    """Checks that the memory of two hosts is available.

    Raises:
        UnsupportedError: it is not.
    """
    with suppress(OSError, KeyError):
        free_mib = procfs.memory(Path("/proc/meminfo").read_text())["MemAvailable"] >> 20
        needed_mib = len(HOSTS) * spec.memory_mib
        if needed_mib > free_mib:
            raise UnsupportedError(
                f"two hosts of {spec.memory_mib} MiB need {needed_mib} MiB of memory, "
                f"and {free_mib} MiB are available",
                remedy=f"--memory {max(512, free_mib * 4 // 10)}",
            )


def root(spec: LabSpec) -> None:
    """Checks that hosts can boot from the root.

    Raises:
        BadInputError: the root has no systemd or no sshd.
    """
    for package, file in _NEEDED.items():
        if spec.root != "/" and not (Path(spec.root) / "usr" / file).is_file():
            raise BadInputError(
                f"{spec.root} is not a root that a host can boot from: it has no /usr/{file}",
                where="--root",
                remedy=f"make it of a Debian or Ubuntu release with {package}, as mmdebstrap does",
            )


def modules(spec: LabSpec, platform: LabPlatform) -> None:
    """Checks that a root other than `/` has the modules of its kernel.

    Raises:
        BadInputError: neither the root nor an unpacked package has them.
    """
    version = platform.kernel.version
    if spec.root == "/" or platform.kernel_layers:
        return
    if not (Path(spec.root) / "usr/lib/modules" / version).is_dir():
        raise BadInputError(
            f"{spec.root} has no modules of the kernel {version}, which is this machine's",
            where="--root",
            remedy=f"copy /lib/modules/{version} into it",
        )
