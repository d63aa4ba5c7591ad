"""Plane `vhost-user`: memory shared with a switch in user space, which polls.

The switch is Open vSwitch with DPDK's datapath. It has the NIC by DPDK's af_packet device, so that
no NIC needs to be taken from its kernel, and captures on it see every frame.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from planewise.testbed.hosts import hugepages
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import HOSTS, Guest, Site
from planewise.testbed.plan import Step, set_up
from planewise.testbed.planes.ovs import OpenVswitchBridge, bridge_settings
from planewise.testbed.planes.vm import VmPlane
from planewise.testbed.switches.dpdk_switch import (
    SWITCH_BYTES,
    Port,
    RunningDpdkSwitch,
    af_packet,
    read_ports,
    vhost_port,
)

if TYPE_CHECKING:
    from planewise.testbed.guests.kind import PlacedGuest
    from planewise.testbed.hosts.machine import MachineState

_UPLINK = "uplink"
_SLEEP_US = 200
"""Of a thread that polls and shares its CPU: idle it then takes 15 % of one."""


class DpdkBridge(OpenVswitchBridge):
    """As `ovs`, with DPDK's datapath: a thread of its own polls the NIC and all guests."""

    name = "ovs-dpdk"

    def interface(self, site: Site) -> str:
        return f"{site.bridge}u"

    def start(self, state: MachineState, site: Site) -> tuple[Step, ...]:
        """Reserves huge pages, and starts the switch.

        Raises:
            UnsupportedError: it is not installed, or the kernel gives no huge pages.
        """
        program = state.program(self.name)
        program.enter_context(hugepages.reserved(state.host, SWITCH_BYTES))
        directory = self.make_directory(state)
        cpus, alone = polling_cpus(state.host, local=bool(site.netns))
        switch = program.enter_context(
            RunningDpdkSwitch(
                state.host,
                directory,
                self.interface(site),
                [cpus[site.number % len(cpus)]],
                bridge_settings(site),
                sleep_us=0 if alone else _SLEEP_US,
            )
        )
        state.switch_pids[self.name] = switch.pid
        program.callback(self.resume, state)  # a stopped process does not end
        return (set_up(site.netns, self.interface(site)),)

    def add_nic(self, site: Site) -> tuple[Step, ...]:
        # Captures see no frame that bypasses the queueing discipline, as is DPDK's default.
        device = {"dpdk-devargs": af_packet(0, site.nic, ",qdisc_bypass=0")}
        return (self.added(site, Port(_UPLINK, "dpdk", device, mtu_bytes=site.mtu_bytes)),)

    def added(self, site: Site, port: Port) -> Step:
        """Adds a port of DPDK's."""
        return self.configured(site, *port.arguments(self.interface(site)))

    def release_nic(self, site: Site) -> tuple[Step, ...]:
        return (self.configured(site, "del-port", self.interface(site), _UPLINK),)

    def static_entry(self, site: Site, port: str, mac: str) -> Step:
        return super().static_entry(site, _UPLINK if port == site.nic else port, mac)

    def pause(self, state: MachineState) -> None:
        """Stops its process."""
        self._signal(state, "STOP")

    def resume(self, state: MachineState) -> None:
        self._signal(state, "CONT")

    def _signal(self, state: MachineState, name: str) -> None:
        if (pid := state.switch_pids.get(self.name)) is not None:
            state.host.run(["kill", "-s", name, str(pid)])  # it may have ended

    def remarks(self, host: Host, *, local: bool) -> tuple[str, ...]:
        """How it polls; see `Plane.remarks`."""
        if polling_cpus(host, local=local)[1]:
            return ("the switch's thread polls all the time, on a CPU that guests need not share",)
        return (
            "the switch's thread shares its CPU with guests, so that it sleeps for up to "
            f"{_SLEEP_US} µs when it finds no frame",
        )


def polling_cpus(host: Host, *, local: bool) -> tuple[Sequence[int], bool]:
    """CPUs on which switches poll, one a host of the machine, and whether guests have others.

    `local`: both hosts are namespaces of this machine.
    """
    if local:
        cpus: Sequence[int] = sorted(os.sched_getaffinity(0))
    else:
        cpus = range(int(host.run(["nproc"]).check().stdout))
    hosts = len(HOSTS) if local else 1
    return [cpus[-1 - number % len(cpus)] for number in range(hosts)], len(cpus) > hosts


class VhostUserPlane(VmPlane):
    """A DPDK switch polls; no kernel of the host sees a frame between guest and switch."""

    name = "vhost-user"
    guests = ("vm", "process", "container")
    chains_only: ClassVar = {
        "container": "it shares memory with a program, and has no interface for other programs"
    }
    functions: ClassVar = {
        "process": ("testpmd",),
        "container": ("testpmd",),
        "vm": ("kernel", "testpmd", "xdp"),
    }
    rank = 75
    switch: ClassVar[DpdkBridge] = DpdkBridge()
    switch_is_program = True
    shares_memory = True
    most_mtu_bytes = 1500
    needs = ("dpdk", "huge pages")
    remedy = "install openvswitch-switch-dpdk and dpdk-dev; planewise takes huge pages by itself"
    model = "virtio"
    device = ""
    differences = (
        "a thread of the switch serves the NIC, in memory that it shares with the guest, and polls",
        "the host has no interface of the guest, so that its frames are first seen at the NIC",
        "checksum and segmentation offloads are off: the switch passes frames on as they are",
    )

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The switch's port, which connects once the virtual machine listens."""
        socket = self.socket(site, guest)
        port = vhost_port(guest.port, socket, mtu_bytes=site.mtu_bytes)
        return (self.switch.added(site, port),)

    def unplug(self, state: MachineState, placed: PlacedGuest) -> None:
        self.switch.leave(state, placed.guest.port)

    def socket(self, site: Site, guest: Guest) -> str:
        return f"{self.switch.directory(site)}/{guest.port}.sock"

    def sent(self, host: Host, site: Site, guest: Guest) -> Callable[[], tuple[int, int]]:
        """See `VmPlane.sent`: the switch's counters."""

        def read() -> tuple[int, int]:
            counted = read_ports(host, self.switch.directory(site))[guest.port]
            return counted.rx_packets, counted.rx_bytes

        return read


PLANE = VhostUserPlane()
