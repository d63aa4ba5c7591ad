"""Whether this machine and a root can have a lab as it is asked for. Changes nothing."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from planewise import procfs
from planewise.errors import BadInputError, UnsupportedError
from planewise.lab.model import HOSTS, LabPlatform, LabSpec

_NEEDED = {"systemd": "lib/systemd/systemd", "openssh-server": "sbin/sshd"}
"""Package of a root of its own -> its file below /usr."""


def memory(spec: LabSpec) -> None:
    """Whether two hosts fit into what is available now.

    Raises:
        UnsupportedError: they do not.
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
    """Whether hosts can boot from the root that is asked for.

    Raises:
        BadInputError: it has no systemd, or no sshd.
    """
    for package, file in _NEEDED.items():
        if spec.root != "/" and not (Path(spec.root) / "usr" / file).is_file():
            raise BadInputError(
                f"{spec.root} is not a root that a host can boot from: it has no /usr/{file}",
                where="--root",
                remedy=f"make it of a Debian or Ubuntu release with {package}, as mmdebstrap does",
            )


def modules(spec: LabSpec, platform: LabPlatform) -> None:
    """Whether a root of its own has the modules of the kernel that boots it.

    Raises:
        BadInputError: it has not, and no unpacked package has them, either.
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
