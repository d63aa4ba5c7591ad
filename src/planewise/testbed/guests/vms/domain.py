"""A virtual machine as a value, and libvirt's XML for it. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal
from xml.sax.saxutils import escape, quoteattr

from planewise.errors import BadInputError
from planewise.testbed.guests.vms.image import AGENT_PORT, COMMAND_LINE
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
    ring_packets: int | None = None
    """Of a virtio NIC's receive ring; None: QEMU's default."""
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
) -> str:
    """libvirt's description of a transient domain without a NIC, which is attached once it runs:
    https://libvirt.org/formatdomain.html.

    `console` is the file with the output of its serial console. A managed one has the mark by which
    planewised may plug VFs into it, and slots of PCI Express, which the partner of a standby NIC
    needs.
    """
    kvm, image = platform.accelerator.name == "kvm", platform.image
    cpus = options.main_cpus if guest.role == "main" else options.background_cpus
    cpuset = f" cpuset='{','.join(map(str, cpus))}'" if cpus else ""
    mark = f"<metadata><pw:managed xmlns:pw='{_MARK}'/></metadata>" if options.managed else ""
    slots = "".join(
        f"<controller type='pci' index='{index}' model='pcie-root-port'/>"
        for index in range(1, 1 + _SLOTS)
        if options.managed
    )
    # QEMU's HPET goes on at 250 Hz after the guest's kernel has left it: 2 % of a CPU for nothing.
    # 31 virtio-serial ports, the default, are 62 queues, each with a file that QEMU polls whenever
    # it wakes. QEMU has a restored guest announce itself for a second: a kernel that sets its NIC
    # down meanwhile deadlocks with that (virtnet_close, Linux 6.12).
    return f"""\
<domain type='{"kvm" if kvm else "qemu"}' xmlns:qemu='{_QEMU}'>
  <name>{guest.netns}</name>
  <memory unit='MiB'>{options.memory_mib or image.memory_mib}</memory>
  {mark}{_SHARED if options.shared_memory else ""}
  <vcpu{cpuset}>{options.vcpus}</vcpu>
  <os>
    <type arch='x86_64' machine='{"q35" if options.managed else "pc"}'>hvm</type>
    <kernel>{escape(str(image.kernel))}</kernel>
    <initrd>{escape(str(image.initrd))}</initrd>
    <cmdline>{COMMAND_LINE} nr_cpus={options.vcpus}</cmdline>
  </os>
  <features><acpi/>{"" if kvm else _TRANSLATED}</features>
  <cpu mode='{"host-passthrough" if kvm else "maximum"}'/>
  <clock offset='utc'><timer name='hpet' present='no'/></clock>
  <on_poweroff>destroy</on_poweroff>
  <on_reboot>destroy</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>{escape(platform.qemu)}</emulator>
    {slots}
    <serial type='file'>
      <source path={quoteattr(console)}/><target type='isa-serial' port='0'/>
    </serial>
    <controller type='virtio-serial' ports='2'/>
    <channel type='unix'><target type='virtio' name='{AGENT_PORT}'/></channel>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
  <qemu:commandline>
    <qemu:arg value='-global'/><qemu:arg value='virtio-net-device.guest_announce=off'/>
  </qemu:commandline>
</domain>
"""


_SHARED = "<memoryBacking><source type='memfd'/><access mode='shared'/></memoryBacking>"
_TRANSLATED = f"<tcg><tb-cache unit='MiB'>{TRANSLATED_MIB}</tb-cache></tcg>"
_NO_OFFLOADS = "csum='off' tso4='off' tso6='off' ecn='off' ufo='off'"


def nic_xml(nic: AnyNic) -> str:
    """libvirt's description of a NIC."""
    if isinstance(nic, Passthrough):
        domain, bus, slot, number = re.split("[:.]", nic.address)
        return f"""\
<hostdev mode='subsystem' type='pci' managed='no'>
  <driver name='vfio'/>
  <source>
    <address domain='0x{domain}' bus='0x{bus}' slot='0x{slot}' function='0x{number}'/>
  </source>
  <rom enabled='no'/>
</hostdev>
"""
    host = f"<target dev='{nic.port}' managed='no'/>"
    if nic.socket:
        host = f"<source type='unix' path={quoteattr(nic.socket)} mode='server'/>"
    return f"""\
<interface type='{"vhostuser" if nic.socket else "ethernet"}'>
  <mac address='{nic.mac}'/>
  {host}
  <model type='{nic.model}'/>
  {"<teaming type='persistent'/>" if nic.standby else ""}
  {_driver_xml(nic) if nic.model == "virtio" else ""}
  <rom enabled='no'/>
</interface>
"""


def _driver_xml(nic: Nic) -> str:
    attributes = {
        "name": "" if nic.socket else "vhost" if nic.vhost else "qemu",
        "queues": nic.queues if nic.queues > 1 else "",
        "rx_queue_size": nic.ring_packets or "",
    }
    words = " ".join(f"{name}='{value}'" for name, value in attributes.items() if value)
    off = "" if nic.offloads else f"<host {_NO_OFFLOADS} gso='off'/><guest {_NO_OFFLOADS}/>"
    return f"<driver {words}>{off}</driver>"
