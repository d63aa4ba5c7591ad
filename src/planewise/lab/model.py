"""Values of a lab: hosts, names, addresses, files. Touches nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from planewise.boot.model import Accelerator, Kernel
from planewise.errors import BadInputError

HostId = Literal["a", "b"]
HOSTS: tuple[HostId, HostId] = ("a", "b")

MAX_PFS = 8
"""Each PF takes a PCIe root port of the machine."""

PREFIX = "pw-lab-"
"""Prefix of the names of a lab's QEMU processes."""

MANAGEMENT_NETWORK = "198.19.255.240/28"
MANAGEMENT_GATEWAY = "198.19.255.241"
MANAGEMENT_HOST = "198.19.255.242"
"""Addresses inside QEMU's user-mode network, which joins a host to this machine's loopback only."""

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,23}")


@dataclass(frozen=True)
class LabSpec:
    """Parameters of a lab."""

    name: str = "default"
    pfs: int = 1
    """SR-IOV PFs of each host; PF i of one host is cabled to PF i of the other."""
    memory_mib: int = 2048
    """Memory of each host."""
    cpus: int = 2
    """Virtual CPUs of each host."""
    root: str = "/"
    """The hosts' root directory, read-only. A root other than `/` is of Debian or Ubuntu, and its
    systemd is the hosts' init."""

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            BadInputError: a value is out of range.
        """
        if not _NAME.fullmatch(self.name):
            raise BadInputError(
                f"`{self.name}` is not a name for a lab",
                where="--name",
                remedy="up to 24 small letters, digits and hyphens, such as `default`",
            )
        for flag, value, low, high in (
            ("--pfs", self.pfs, 1, MAX_PFS),
            ("--memory", self.memory_mib, 512, 1 << 20),
            ("--cpus", self.cpus, 1, 64),
        ):
            if not low <= value <= high:
                raise BadInputError(f"{value} is not between {low} and {high}", where=flag)


def process_name(lab: str, host: HostId) -> str:
    """Name of a host's QEMU process."""
    return f"{PREFIX}{lab}-{host}"


def pf_mac(host: HostId, index: int) -> str:
    """MAC address of PF `index` of a host: locally administered."""
    return f"02:70:77:6c:{HOSTS.index(host):02x}:{index:02x}"


def management_mac(host: HostId) -> str:
    """MAC address of the interface for ssh to a host."""
    return f"02:70:77:6d:{HOSTS.index(host):02x}:00"


@dataclass(frozen=True)
class HostPaths:
    """Files of one host in the lab's state directory."""

    initrd: Path
    serial_log: Path
    pidfile: Path


@dataclass(frozen=True)
class LabPaths:
    """Files of a lab in its state directory."""

    directory: Path

    @property
    def record(self) -> Path:
        """The lab's record (`state.LabRecord`)."""
        return self.directory / "lab.json"

    @property
    def key(self) -> Path:
        """The private key for both hosts."""
        return self.directory / "key"

    @property
    def known_hosts(self) -> Path:
        """The hosts' public keys, in ssh's format."""
        return self.directory / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """For users: `ssh -F` with this file reaches the hosts `a` and `b`."""
        return self.directory / "ssh_config"

    def host(self, host: HostId) -> HostPaths:
        """Files of one host."""
        return HostPaths(
            initrd=self.directory / f"{host}.initrd",
            serial_log=self.directory / f"{host}.log",
            pidfile=self.directory / f"{host}.pid",
        )

    def cable(self, host: HostId, index: int) -> Path:
        """The socket at this host's end of cable `index`."""
        return self.directory / f"{host}{index}.cable"


@dataclass(frozen=True)
class LabPlatform:
    """QEMU, kernel and programs of this machine for a lab."""

    qemu: Path
    qemu_version: tuple[int, int]
    kernel: Kernel
    accelerator: Accelerator
    cache: Path
    """Mounted by the hosts beside the machine's root."""
    base_initrd: Path
    """The first part of all hosts' initramfs."""
    layers: tuple[str, ...] = field(default=())
    """Directories below `cache` laid over the machine's root: unpacked packages."""
    kernel_layers: tuple[str, ...] = field(default=())
    """The layers with the kernel's modules; another root gets only these."""
