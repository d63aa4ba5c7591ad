"""Plane `pasta`: user-mode networking of rootless containers, by pasta of passt (Podman's default).

A process of the host reads a guest's frames from a tap, and opens a socket of the host for each of
its connections. Nobody outside can open one to the guest, so that the responder's is on `veth`.
"""

from __future__ import annotations

import shlex
from typing import ClassVar

from planewise.testbed.hosts.host import Host
from planewise.testbed.model import Guest, Site
from planewise.testbed.plan import Step, ip, set_sysctl
from planewise.testbed.planes.veth import VethPlane

_START = """\
command -v {name} >/dev/null || {name}; (({run} & pid=$!
while [ -e /run/netns/{guest.netns} ] && kill -0 $pid; do sleep 2; done; kill $pid
) </dev/null >/dev/null 2>&1 &); n=0
until ip -n {guest.netns} link show {guest.interface} >/dev/null 2>&1 || [ $n = 500 ]; do
sleep 0.02; n=$((n + 1)); done
[ $n -lt 500 ] || {{ echo {name}: Permission denied >&2; false; }}"""
"""Waits for the interface; then the process ends once the namespace's name has gone."""


class PastaPlane(VethPlane):
    """The process ends soon after the name of the guest's namespace goes, whoever removes that."""

    name = "pasta"
    rank = 17
    quick = False
    outward_only = True
    package: ClassVar[str] = "passt"
    remedy = "apt-get install passt"

    def remarks(self, host: Host, *, local: bool) -> tuple[str, ...]:
        """What the responder has; see `Plane.remarks`."""
        return (f"only the sender's guests have {self.name}: the responder's are on veth",)

    def program(self, site: Site, guest: Guest) -> str:
        """The command line of the process, which stays in the foreground."""
        forwards = [word for way in "tuTU" for word in (f"-{way}", "none")]
        return shlex.join(
            [
                *("pasta", "-f", "--runas", "0", "--netns", f"/run/netns/{guest.netns}"),
                *("-I", guest.interface, "-i", site.uplink, "-m", str(site.mtu_bytes)),
                *("-a", guest.ipv4, "-n", "32", "-g", site.gateway_ipv4, "-a", guest.ipv6),
                *("-g", "fe80::1", "-M", site.port_mac(guest), "--no-map-gw", *forwards),
                *("--no-dhcp", "--no-dhcpv6", "--no-ra"),
            ]
        )

    def attach(self, site: Site, guest: Guest) -> tuple[Step, ...]:
        """The process and its tap, with addresses and routes as on `veth`."""
        steps = super().attach(site, guest)
        if guest.host == "responder":
            return steps
        run = self.program(site, guest)
        words = _START.format(name=self.name, run=run, guest=guest)
        # Its echo requests need ping sockets. A server's own setting is none of ours.
        ping = (set_sysctl(site.netns, "net/ipv4/ping_group_range", "0 0"),) if site.netns else ()
        return (
            *ping,
            Step(site.netns, "shell", words, f"{run} &", guest.netns, package=self.package),
            ip(guest.netns, f"link set {guest.interface} address {guest.mac} mtu {site.mtu_bytes}"),
            *(step for step in steps if step.netns == guest.netns),
        )

    def host_interface(self, guest: Guest) -> str:
        """None for the sender's guests."""
        return guest.port if guest.host == "responder" else ""


PLANE = PastaPlane()
