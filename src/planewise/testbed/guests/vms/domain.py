"""A virtual machine as a value, and libvirt's XML for it. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from xml.etree import ElementTree

from planewise.errors import BadInputError
from planewise.testbed.guests.vms.image import AGENT_PORT
from planewise.testbed.model import Guest

if TYPE_CHECKING:
    from planewise.testbed.guests.vms.platform import VmPlatform

NicModel = Literal["e1000", "virtio"]

MAX_VCPUS = 64
_QEMU = "http://libvirt.org/schemas/domain/qemu/1.0"
"""XML namespace of arguments that libvirt passes to QEMU unchanged."""
_MARK = "urn:planewise:libvirt:1"
"""XML namespace of the mark by which planewised manages a domain (docs/reference/alloc.md)."""
_SLOTS = 4
"""For the NIC, the agent's channel, a VF, and one spare."""
TRANSLATED_MIB = 32
"""QEMU's cache of translated code for an emulated CPU; its default is 1 GiB, of which an idle guest
fills 60 MiB."""


@dataclass(frozen=True)
class VmOptions:
    """Options of a testbed's virtual machines, the same for all."""

    vcpus: int = 1
    memory_mib: int | None = None
    """None: as much as the guest's kernel needs."""
    queues: int = 1
    """Queue pairs of a virtio NIC."""
    vhost: bool = True
    """Serve virtio in the kernel (vhost-net) where it has that."""
    offloads: bool = False
    """Let a virtio NIC hand over unfinished checksums and large segments. Off, guests of all planes
    put the same frames on the wire."""
    main_cpus: tuple[int, ...] = ()
    """CPUs of the host that the main guest's virtual CPUs may run on; empty: all."""
    background_cpus: tuple[int, ...] = ()
    shared_memory: bool = False
    """Let a switch in user space see the guest's memory, as vhost-user needs it."""
    programs: tuple[str, ...] = ()
    """Programs of this machine that guests have beside pw-probe and a shell."""
    managed: bool = False
    """Let planewised give a guest VFs while it runs."""

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("vcpus", self.vcpus, 1, MAX_VCPUS),
            ("queues", self.queues, 1, self.vcpus),
            ("memory_mib", self.memory_mib or 64, 64, 1 << 20),
        ):
            if not low <= value <= high:
                raise BadInputError(
                    f"virtual machines with {name} {value} are not possible",
                    remedy=f"give {low} to {high}"
                    + (", a queue a virtual CPU" if name == "queues" else ""),
                )


@dataclass(frozen=True)
class Nic:
    """The NIC of a virtual machine, on an existing tap or macvtap, or shared with a switch."""

    model: NicModel
    mac: str
    port: str = ""
    """The host side's interface."""
    socket: str = ""
    """Where QEMU listens for a switch in user space; a guest gets the interface once the switch has
    connected. Empty: the kernel has the host side."""
    vhost: bool = False
    queues: int = 1
    offloads: bool = False
    ring_packets: int | None = None
    """Of a virtio NIC's receive ring; None: QEMU's default."""
    standby: bool = False
    """Whether the guest's kernel sends by a VF in its place while it has one (net_failover)."""


@dataclass(frozen=True)
class Passthrough:
    """A PCI function of the host that a virtual machine has for itself (VFIO).

    vfio-pci is its driver already: libvirt changes nothing of it.
    """

    address: str
    """As sysfs has it: `0000:01:10.2`."""


AnyNic = Nic | Passthrough


def domain_xml(
    guest: Guest,
    platform: VmPlatform,
    options: VmOptions,
    console: str,
    nic: AnyNic | None = None,
    network: Sequence[str] = (),
) -> str:
    """libvirt's description of a transient domain: https://libvirt.org/formatdomain.html.

    `console` is the file with the output of its serial console, `network` the arguments of
    `pw-probe network` in it. A managed one has the mark by which planewised may plug VFs into it,
    and slots of PCI Express, which the partner of a standby NIC needs.
    """
    kvm, image = platform.accelerator.name == "kvm", platform.image
    cpus = options.main_cpus if guest.role == "main" else options.background_cpus
    domain = ElementTree.Element("domain", type="kvm" if kvm else "qemu")
    _add(domain, "name", guest.netns)
    _add(domain, "memory", str(options.memory_mib or image.memory_mib), unit="MiB")
    if options.managed:
        _add(_add(domain, "metadata"), f"{{{_MARK}}}managed")
    if options.shared_memory:
        backing = _add(domain, "memoryBacking")
        _add(backing, "source", type="memfd")
        _add(backing, "access", mode="shared")
    vcpu = _add(domain, "vcpu", str(options.vcpus))
    if cpus:
        vcpu.set("cpuset", ",".join(str(cpu) for cpu in cpus))
    system = _add(domain, "os")
    _add(system, "type", "hvm", arch="x86_64", machine="q35" if options.managed else "pc")
    _add(system, "kernel", str(image.kernel))
    _add(system, "initrd", str(image.initrd))
    line = image.command_line(cpus=options.vcpus, network=tuple(network))
    _add(system, "cmdline", line)
    features = _add(domain, "features")
    _add(features, "acpi")
    if not kvm:
        _add(_add(features, "tcg"), "tb-cache", str(TRANSLATED_MIB), unit="MiB")
    _add(domain, "cpu", mode="host-passthrough" if kvm else "maximum")
    # QEMU's HPET goes on at 250 Hz after the guest's kernel has left it: 2 % of a CPU for nothing.
    _add(_add(domain, "clock", offset="utc"), "timer", name="hpet", present="no")
    for event in ("on_poweroff", "on_reboot", "on_crash"):
        _add(domain, event, "destroy")
    devices = _add(domain, "devices")
    _add(devices, "emulator", platform.qemu)
    if options.managed:
        for index in range(1, 1 + _SLOTS):
            _add(devices, "controller", type="pci", index=str(index), model="pcie-root-port")
    if nic is not None:
        _add_device(devices, nic)
    serial = _add(devices, "serial", type="file")
    _add(serial, "source", path=console)
    _add(serial, "target", type="isa-serial", port="0")
    # 31 ports, the default, are 62 queues, each with a file that QEMU polls whenever it wakes.
    _add(devices, "controller", type="virtio-serial", ports="2")
    channel = _add(devices, "channel", type="unix")
    _add(channel, "target", type="virtio", name=AGENT_PORT)
    _add(devices, "controller", type="usb", model="none")
    _add(devices, "memballoon", model="none")
    # QEMU has a restored guest announce itself for a second: a kernel that sets its NIC down
    # meanwhile deadlocks with that (virtnet_close, Linux 6.12).
    arguments = _add(domain, f"{{{_QEMU}}}commandline")
    for word in ("-global", "virtio-net-device.guest_announce=off"):
        _add(arguments, f"{{{_QEMU}}}arg", value=word)
    ElementTree.indent(domain)
    return ElementTree.tostring(domain, encoding="unicode")


def nic_xml(nic: AnyNic) -> str:
    """libvirt's description of a NIC, to be attached to a running domain."""
    devices = ElementTree.Element("devices")
    _add_device(devices, nic)
    return ElementTree.tostring(devices[0], encoding="unicode")


def _add_device(devices: ElementTree.Element, nic: AnyNic) -> None:
    if isinstance(nic, Nic):
        _add_nic(devices, nic)
        return
    domain, bus, slot, number = re.split("[:.]", nic.address)
    device = _add(devices, "hostdev", mode="subsystem", type="pci", managed="no")
    _add(device, "driver", name="vfio")
    _add(
        _add(device, "source"),
        "address",
        domain=f"0x{domain}",
        bus=f"0x{bus}",
        slot=f"0x{slot}",
        function=f"0x{number}",
    )
    _add(device, "rom", enabled="no")


def _add_nic(devices: ElementTree.Element, nic: Nic) -> None:
    interface = _add(devices, "interface", type="vhostuser" if nic.socket else "ethernet")
    _add(interface, "mac", address=nic.mac)
    if nic.socket:
        _add(interface, "source", type="unix", path=nic.socket, mode="server")
    else:
        _add(interface, "target", dev=nic.port, managed="no")
    _add(interface, "model", type=nic.model)
    if nic.standby:
        _add(interface, "teaming", type="persistent")
    if nic.model == "virtio":
        driver = _add(interface, "driver")
        if not nic.socket:
            driver.set("name", "vhost" if nic.vhost else "qemu")
        if nic.queues > 1:
            driver.set("queues", str(nic.queues))
        if nic.ring_packets is not None:
            driver.set("rx_queue_size", str(nic.ring_packets))
        if not nic.offloads:
            off = dict.fromkeys(("csum", "tso4", "tso6", "ecn", "ufo"), "off")
            _add(driver, "host", **off, gso="off")
            _add(driver, "guest", **off)
    _add(interface, "rom", enabled="no")


def _add(
    parent: ElementTree.Element, tag: str, text: str = "", **attributes: str
) -> ElementTree.Element:
    child = ElementTree.SubElement(parent, tag, attributes)
    if text:
        child.text = text
    return child
