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
from planewise.testbed.model import Guest, Site
from planewise.testbed.openvswitch import OpenVswitch, appctl, vsctl
from planewise.testbed.plan import RunProgram, SetUp, Step
from planewise.testbed.planes.bridge import BridgePlane
from planewise.testbed.planes.plane import Switch, neighbours

if TYPE_CHECKING:
    from planewise.testbed.machine import MachineState, PlacedGuest, Resources

Datapath = Literal["system", "netdev"]
"""As Open vSwitch calls them: the kernel's, and its own in user space."""

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

    def interface(self, site: Site) -> str:
        return f"{site.bridge}v"

    def create(self, here: MachineState, site: Site) -> tuple[Step, ...]:
        here.directory = f"{here.host.directory}/ovs"
        here.host.run(["mkdir", "-p", here.directory]).check()
        switch = here.opened.enter_context(OpenVswitch(here.host, here.directory))
        here.notes[self.name] = datapath_of(here.host, alone=bool(site.netns))
        bridge = self.interface(site)
        switch.configure(
            "add-br", bridge,
            "--", "set", "bridge", bridge, f"datapath_type={here.notes[self.name]}",
            f'other_config:hwaddr="{site.bridge_mac}"', "other_config:disable-in-band=true",
            f"other_config:mac-aging-time={_AGEING_S}",
            "--", "set", "interface", bridge, f"mtu_request={site.mtu_bytes}",
        )  # fmt: skip
        return (SetUp(site.netns, bridge),)

    def add_nic(self, site: Site) -> tuple[Step, ...]:
        return (_configure(site, "add-port", self.interface(site), site.nic),)

    def release_nic(self, site: Site) -> tuple[Step, ...]:
        return (_configure(site, "del-port", self.interface(site), site.nic),)


class OvsPlane(BridgePlane):
    """What OpenStack and OVN-Kubernetes give a guest, without their flows."""

    name = "ovs"
    description = "a veth pair into an Open vSwitch without DPDK that has the NIC as a port"
    guests = ("namespace", "container")
    functions: ClassVar = {}
    rank = 25
    switch = OpenVswitchBridge()
    needs = ("ovs",)
    remedy = "install openvswitch-switch"

    def lacking(self, found: Resources) -> str:
        return "" if found.ovs else f"there is no Open vSwitch on {found.place}"

    def remarks(self, host: Host, *, here: bool) -> tuple[str, ...]:
        if datapath_of(host, alone=here) == "system":
            return ("Open vSwitch forwards in the kernel (datapath system)",)
        why = "this kernel has none for it" if here else "the kernel's is not ours on a server"
        return (
            f"Open vSwitch forwards in user space (datapath netdev), as {why}",
            "the guests' checksum and segmentation offloads are off: nothing would do that work",
        )

    def join(self, site: Site, port: str) -> Step:
        return _configure(site, "add-port", site.uplink, port)

    def plug(
        self, here: MachineState, site: Site, placed: Sequence[PlacedGuest]
    ) -> tuple[Step, ...]:
        """As `attach` says; where frames are forwarded in user space, they must be complete."""
        steps = super().plug(here, site, placed)
        if here.notes.get(self.name) == "system":
            return steps
        complete = (
            RunProgram(
                placed_guest.guest.netns,
                ("ethtool", "-K", placed_guest.guest.interface, "tx", "off"),
            )
            for placed_guest in placed
        )
        return (*steps, *complete)

    def unplug(self, here: MachineState, placed: PlacedGuest) -> None:
        """The switch forgets the port."""
        port = self.host_interface(placed.guest)
        here.host.run(vsctl(here.directory, "--if-exists", "del-port", port))

    def introduce(self, site: Site, guest: Guest, peer: Guest, within: bool) -> tuple[Step, ...]:
        """Static neighbours, and static entries of the switch against flooding."""

        def known(port: str, mac: str) -> RunProgram:
            entry = (site.uplink, port, "0", mac)
            return RunProgram("", appctl(site.directory, "fdb/add", *entry))

        return (
            *neighbours(guest, peer, peer.mac),
            known(self.host_interface(guest), guest.mac),
            *(() if within else (known(site.nic, peer.mac),)),
        )


def _configure(site: Site, *arguments: str) -> RunProgram:
    return RunProgram("", vsctl(site.directory, *arguments))


PLANE = OvsPlane()
