"""Plane `ovs`: a veth pair whose host end is a port of an Open vSwitch, with the NIC another.

Without DPDK: a frame of no known flow goes to ovs-vswitchd, which installs the flow that the
datapath then forwards by (https://docs.openvswitch.org/en/stable/faq/design/). The datapath is the
kernel's in a namespace whose kernel has it, else ovs-vswitchd's own, which reads and writes packet
sockets. A server has one kernel datapath, which another Open vSwitch may have: ours has its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Literal

from planewise.testbed.hosts.host import Host
from planewise.testbed.model import Site
from planewise.testbed.plan import Step, run_program, set_up
from planewise.testbed.planes.bridge import BridgePlane
from planewise.testbed.planes.plane import Need, Switch
from planewise.testbed.switches.openvswitch import OpenVswitch, appctl, vsctl

if TYPE_CHECKING:
    from planewise.testbed.guests.kind import PlacedGuest
    from planewise.testbed.hosts.machine import MachineState

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

    def make_directory(self, state: MachineState) -> str:
        """Makes that directory; it goes with the switch."""
        program = state.program(self.name)
        directory = self.directory(state)
        state.host.run(["mkdir", "-p", directory]).check()
        program.callback(state.host.run, ["rm", "-rf", directory])
        return directory

    def create(self, state: MachineState, site: Site) -> tuple[Step, ...]:
        """Starts it; cleans up after a failed start, so that another may be tried."""
        try:
            return self.start(state, site)
        except BaseException:
            state.end_program(self.name)
            raise

    def start(self, state: MachineState, site: Site) -> tuple[Step, ...]:
        directory = self.make_directory(state)
        switch = state.program(self.name).enter_context(OpenVswitch(state.host, directory))
        state.switch_pids[self.name] = switch.pid
        # A namespace of ours, where a host is one, has no other switch.
        state.datapaths[self.name] = datapath_of(state.host, alone=bool(state.machine.netns))
        switch.configure(*self._bridge(site, state.datapaths[self.name]))
        return (set_up(site.netns, self.interface(site)),)

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

    def leave(self, state: MachineState, port: str) -> None:
        state.host.run(vsctl(self.directory(state), "--if-exists", "del-port", port))

    def static_entry(self, site: Site, port: str, mac: str) -> Step:
        entry = (self.interface(site), port, "0", mac)
        return run_program("", appctl(self.directory(site), "fdb/add", *entry))

    def configured(self, site: Site, *arguments: str) -> Step:
        """Changes its database, and waits until the daemon has followed."""
        return run_program("", vsctl(self.directory(site), *arguments))

    def disable_offloads(self, state: MachineState, netns: str, interface: str) -> tuple[Step, ...]:
        """See `Switch.disable_offloads`: in user space nothing fills in checksums."""
        if state.datapaths.get(self.name) == "system":
            return ()
        return (run_program(netns, ("ethtool", "-K", interface, "tx", "off")),)

    def remarks(self, host: Host, *, local: bool) -> tuple[str, ...]:
        """How it forwards; see `Plane.remarks`."""
        if datapath_of(host, alone=local) == "system":
            return ("Open vSwitch forwards in the kernel (datapath system)",)
        reason = (
            "this kernel has none for it"
            if local
            else "another switch may use the kernel's on a server"
        )
        return (f"Open vSwitch forwards in user space (datapath netdev), as {reason}",)


class OvsPlane(BridgePlane):
    """What OpenStack and OVN-Kubernetes give a guest, without their flows."""

    name = "ovs"
    rank = 25
    switch = OpenVswitchBridge()
    learns_on_servers = False
    switch_is_program = True
    needs: ClassVar[tuple[Need, ...]] = ("ovs",)
    remedy = OVS_REMEDY

    def remarks(self, host: Host, *, local: bool) -> tuple[str, ...]:
        remarks = super().remarks(host, local=local)
        if datapath_of(host, alone=local) == "system":
            return remarks
        reason = "nothing would do that work"
        return (*remarks, f"the guests' checksum and segmentation offloads are off: {reason}")

    def plug(
        self, state: MachineState, site: Site, placed: Sequence[PlacedGuest]
    ) -> tuple[Step, ...]:
        """Attaches guests, and disables their offloads where the switch needs that."""
        steps = list(super().plug(state, site, placed))
        for guest in (placed_guest.guest for placed_guest in placed):
            steps += self.switch.disable_offloads(state, guest.netns, guest.interface)
        return tuple(steps)


def bridge_settings(site: Site) -> tuple[str, ...]:
    """Settings of a bridge's record: it learns as a switch does."""
    return (
        f'other_config:hwaddr="{site.bridge_mac}"',
        "other_config:disable-in-band=true",
        f"other_config:mac-aging-time={_AGEING_S}",
    )


PLANE = OvsPlane()
