"""Plane `ovs-dpdk`: a veth pair whose host end Open vSwitch with DPDK polls by af_packet.

What a container on a host with DPDK's switch gets when its program uses sockets. A program that has
a virtio-user device of its own is a function of a chain (plane `vhost-user`).
"""

from __future__ import annotations

from typing import ClassVar

from planewise.testbed.hosts.host import Host
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step, set_up
from planewise.testbed.planes.ovs import OvsPlane
from planewise.testbed.planes.plane import on_link, veth_pair
from planewise.testbed.planes.vhost_user import VhostUserPlane
from planewise.testbed.switches.dpdk_switch import Port, af_packet


class OvsDpdkPlane(OvsPlane):
    """The switch of `vhost-user`; here the kernel carries each frame to its polling thread."""

    name = "ovs-dpdk"
    guests = ("namespace", "container")
    functions: ClassVar = {}
    rank = 26
    switch = VhostUserPlane.switch
    most_mtu_bytes = VhostUserPlane.most_mtu_bytes
    needs = VhostUserPlane.needs
    remedy = VhostUserPlane.remedy

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        port = self.host_interface(guest)
        device = {"dpdk-devargs": af_packet(guest.port_index, port, ",qdisc_bypass=0")}
        return (
            veth_pair(site, guest, port),
            set_up(site.netns, port),
            self.switch.added(site, Port(port, "dpdk", device, mtu_bytes=site.mtu_bytes)),
            *on_link(guest),
        )

    def remarks(self, host: Host, *, local: bool) -> tuple[str, ...]:
        offloads = "the guests' checksum and segmentation offloads are off: the switch does neither"
        return (*self.switch.remarks(host, local=local), offloads)


PLANE = OvsDpdkPlane()
