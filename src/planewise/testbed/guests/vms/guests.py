"""Virtual machines' NICs and networks, saved ones, and their removal from a host."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planewise.errors import PlanewiseError
from planewise.testbed.guests.vms import image
from planewise.testbed.guests.vms.domain import Nic, NicModel, VmOptions
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import Guest

BOOT_LIMIT_S = 300.0
"""From start to ready. An emulated guest takes 3 s of CPU time."""

LAB_BOOT_LIMIT_S = 1800.0
"""The same in a lab, where the guest's emulated CPU is emulated once more: a minute and a half on
an idle machine, and many on a busy one."""


def boot_limit_s(host: Host) -> float:
    """How long a guest may take on a host from start to ready [s]. Pure."""
    return LAB_BOOT_LIMIT_S if host.place.startswith("lab:") else BOOT_LIMIT_S


def network_of(
    guest: Guest, mtu_bytes: int, neighbours: Mapping[str, str] | None
) -> tuple[str, ...]:
    """Arguments of `pw-probe network` in a guest; `neighbours` are MACs by IP address. Pure."""
    return (
        *(f"address={guest.ipv4}/15", f"address={guest.ipv6}/48", f"mtu={mtu_bytes}"),
        *(f"neighbour={ip},{mac}" for ip, mac in (neighbours or {}).items()),
    )


def last_words(console: str) -> list[str]:
    """The first failure on a console, else its lines. Pure."""
    lines = [line.strip() for line in console.splitlines() if line.strip()]
    failures = [line for line in lines if line.startswith(image.FAILED) or "Kernel panic" in line]
    return [failures[0].removeprefix(image.FAILED)] if failures else lines


def nic_of(
    model: NicModel, guest: Guest, port: str, platform: VmPlatform, options: VmOptions
) -> Nic:
    """A guest's NIC on an existing port of the host. Pure."""
    return Nic(
        model=model,
        mac=guest.mac,
        port=port,
        vhost=options.vhost and platform.vhost and model == "virtio",
        queues=options.queues if model == "virtio" else 1,
        offloads=options.offloads,
        ring_packets=options.ring_packets,
        standby=options.managed and model == "virtio",
    )


# QEMU of a killed run ends a moment after its connection; the ports are removed after it.
_REMOVE = """
for process in /proc/[0-9]*; do
    case $(tr '\\0' ' ' 2>/dev/null <$process/cmdline) in
        *qemu*"guest=pw-$1-"*) kill -s KILL ${process#/proc/} 2>/dev/null; died="$died $process" ;;
    esac
done
n=0
for process in $died; do
    while [ -e $process ] && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.05; done
done
for link in $(ip -o link | sed -n "s/^[0-9]*: \\(pw$1[0-9a-f]*\\)[:@].*/\\1/p"); do
    ip link delete "$link"
done
"""


def remove_guests(host: Host, token: str) -> None:
    """Ends the virtual machines of this token on a host, and removes their ports.

    Raises:
        PlanewiseError: that failed.
    """
    done = host.run(["sh", "-c", _REMOVE, "sh", token], timeout_s=120)
    if done.stderr.strip():
        raise PlanewiseError(
            f"not all virtual machines could be removed from {host.place}: {done.last_line}",
            remedy="`planewise clean` tries again",
        )


_MAGIC = b"LibvirtQemudSave"
_NUMBERS = struct.Struct("<19I")
_HEADER = len(_MAGIC) + _NUMBERS.size
_LENGTH, _COOKIE = 1, 4
"""Places in the header of the length of the XML, and of the offset of a cookie behind it."""


@dataclass(frozen=True)
class Saved:
    """A file with a guest in it, as libvirt saves one.

    Source: libvirt's src/qemu/qemu_saveimage.h (virQEMUSaveHeader): version, length of the XML
    before the stream, whether it ran, format, offset of a cookie, and 14 unused numbers.
    """

    path: Path
    stream_at: int
    """Offset of QEMU's part of the file [byte]."""
    numbers: tuple[int, ...]
    """The numbers of the file's header."""

    def header(self, xml: str) -> bytes:
        """The part before the stream of a file that restores the guest as this domain. Pure."""
        text = xml.encode() + b"\0"
        numbers = list(self.numbers)
        numbers[_LENGTH], numbers[_COOKIE] = len(text), 0
        return _MAGIC + _NUMBERS.pack(*numbers) + text


def read(path: Path) -> Saved:
    """Reads a file that libvirt saved a guest to.

    Raises:
        PlanewiseError: the file is another one.
    """
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if len(header) < _HEADER or not header.startswith(_MAGIC):
        raise PlanewiseError(f"{path} holds no guest that libvirt saved", remedy="remove the file")
    numbers = _NUMBERS.unpack(header[len(_MAGIC) :])
    return Saved(path, _HEADER + numbers[_LENGTH], numbers)
