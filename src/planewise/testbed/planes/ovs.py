"""Plane `ovs`: a veth pair whose host end is a port of an Open vSwitch, with the NIC another.

Without DPDK: a frame of no known flow goes to ovs-vswitchd, which installs the flow that the
datapath then forwards by (https://docs.openvswitch.org/en/stable/faq/design/). The datapath is the
kernel's in a namespace whose kernel has it, else ovs-vswitchd's own, which reads and writes packet
sockets. A server has one kernel datapath, which another Open vSwitch may have: ours has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from planewise.testbed.host import Host
from planewise.testbed.model import Site
from planewise.testbed.openvswitch import OpenVswitch, appctl, vsctl
from planewise.testbed.plan import RunProgram, SetUp, Step
from planewise.testbed.planes.bridge import BridgePlane
from planewise.testbed.planes.plane import Switch

if TYPE_CHECKING:
    from planewise.testbed.machine import MachineState, PlacedGuest, Resources

Datapath = Literal["system", "netdev"]
"""As Open vSwitch calls them: the kernel's, and its own in user space."""

OVS_REMEDY = "install openvswitch-switch"

_AGEING_S = 3600
"""As long as Open vSwitch allows: a guest that only receives is not to be forgotten."""


def datapath_of(host: Host, *, alone: bool) -> Datapath:
    """The datapath of our switch on a host; `alone`: no other switch can be in its namespace."""
    # Listing the datapaths fails where the kernel has no netlink family for them.
    if alone and not host.run(["ovs-dpctl", "dump-dps"]).exit_code:
        return "system"
    return "netdev"


class OpenVswitchBridge(Switch):
    """A bridge of an Open vSwitch of ours, which learns as a switch does (no controller)."""

    name = "ovs"
    user_space = True

    def interface(self, site: Site) -> str:
        return f"{site.bridge}v"

    def directory(self, place: Site | MachineState) -> str:
        """Where it has its sockets on the host."""
        return f"{place.directory}-{self.name}"

    def make_directory(self, here: MachineState) -> str:
        """Makes that directory; it goes with the switch."""
        program = here.program(self.name)
        directory = self.directory(here)
        here.host.run(["mkdir", "-p", directory]).check()
        program.callback(here.host.run, ["rm", "-rf", directory])
        return directory

    def create(self, here: MachineState, site: Site) -> tuple[Step, ...]:
        """Starts it; what a failed start leaves is gone, so that another may be tried."""
        try:
            return self.start(here, site)
        except BaseException:
            here.end_program(self.name)
            raise

    def start(self, here: MachineState, site: Site) -> tuple[Step, ...]:
        """See `create`."""
        directory = self.make_directory(here)
        switch = here.program(self.name).enter_context(OpenVswitch(here.host, directory))
        here.switch_pids[self.name] = switch.pid
        # A namespace of ours, where a host is one, has no other switch.
        here.notes[self.name] = datapath_of(here.host, alone=bool(here.machine.netns))
        switch.configure(*self._bridge(site, here.notes[self.name]))
        return (SetUp(site.netns, self.interface(site)),)

    def described(self, site: Site) -> tuple[object, ...]:
        words = self._bridge(site, "<system or netdev>")
        return ("start ovs-vswitchd", self.configured(site, *words))

    def _bridge(self, site: Site, datapath: str) -> tuple[str, ...]:
        bridge = self.interface(site)
        return (
            *("add-br", bridge, "--", "set", "bridge", bridge, f"datapath_type={datapath}"),
            *bridge_settings(site),
            *("--", "set", "interface", bridge, f"mtu_request={site.mtu_bytes}"),
        )

    def add_nic(self, site: Site) -> tuple[Step, ...]:
        return (self.configured(site, "add-port", self.interface(site), site.nic),)

    def release_nic(self, site: Site) -> tuple[Step, ...]:
        return (self.configured(site, "del-port", self.interface(site), site.nic),)

    def join(self, site: Site, port: str) -> Step:
        return self.configured(site, "add-port", self.interface(site), port)

    def leave(self, here: MachineState, port: str) -> None:
        here.host.run(vsctl(self.directory(here), "--if-exists", "del-port", port))

    def know(self, site: Site, port: str, mac: str) -> Step:
        entry = (self.interface(site), port, "0", mac)
        return RunProgram("", appctl(self.directory(site), "fdb/add", *entry))

    def configured(self, site: Site, *arguments: str) -> Step:
        """Changes its database, and waits until it has done so."""
        return RunProgram("", vsctl(self.directory(site), *arguments))

    def complete(self, here: MachineState, netns: str, interface: str) -> tuple[Step, ...]:
        """Where frames are forwarded in user space, they must be complete."""
        if here.notes[self.name] == "system":
            return ()
        return (RunProgram(netns, ("ethtool", "-K", interface, "tx", "off")),)

    def remarks(self, host: Host, *, here: bool) -> tuple[str, ...]:
        """How it forwards; see `Plane.remarks`."""
        if datapath_of(host, alone=here) == "system":
            return ("Open vSwitch forwards in the kernel (datapath system)",)
        why = "this kernel has none for it" if here else "the kernel's is not ours on a server"
        return (f"Open vSwitch forwards in user space (datapath netdev), as {why}",)


class OvsPlane(BridgePlane):
    """What OpenStack and OVN-Kubernetes give a guest, without their flows."""

    name = "ovs"
    description = "a veth pair into an Open vSwitch without DPDK that has the NIC as a port"
    guests = ("namespace", "container", "process")
    for_vms = "virtio-ovs is the same path for virtual machines"
    functions: ClassVar = {"process": ("kernel", "xdp"), "container": ("kernel", "xdp")}
    rank = 25
    switch = OpenVswitchBridge()
    learns_on_servers = False
    switch_is_program = True
    needs = ("ovs",)
    remedy = OVS_REMEDY

    def lacking(self, found: Resources) -> str:
        return lacking(found)

    def remarks(self, host: Host, *, here: bool) -> tuple[str, ...]:
        told = self.switch.remarks(host, here=here)
        if datapath_of(host, alone=here) == "system":
            return told
        why = "nothing would do that work"
        return (*told, f"the guests' checksum and segmentation offloads are off: {why}")

    def plug(
        self, here: MachineState, site: Site, placed: Sequence[PlacedGuest]
    ) -> tuple[Step, ...]:
        """As `attach` says, with complete frames."""
        guests = [one.guest for one in placed]
        whole = [self.switch.complete(here, guest.netns, guest.interface) for guest in guests]
        return (*super().plug(here, site, placed), *(step for steps in whole for step in steps))

    def unplug(self, here: MachineState, placed: PlacedGuest) -> None:
        """The switch forgets the port."""
        self.switch.leave(here, self.host_interface(placed.guest))


def lacking(found: Resources) -> str:
    """See `Plane.lacking`."""
    return "" if found.ovs else f"there is no Open vSwitch on {found.place}"


def bridge_settings(site: Site) -> tuple[str, ...]:
    """Of the record of a bridge that learns as a switch does."""
    return (
        f'other_config:hwaddr="{site.bridge_mac}"',
        "other_config:disable-in-band=true",
        f"other_config:mac-aging-time={_AGEING_S}",
    )


PLANE = OvsPlane()
