"""Plane `slirp4netns`: as `pasta`, with the TCP/IP of libslirp (rootless Docker, older Podman)."""

from __future__ import annotations

from planewise.testbed.model import Guest, Site
from planewise.testbed.planes.pasta import PastaPlane


class Slirp4netnsPlane(PastaPlane):
    """libslirp ends each connection of the guest, and opens another from the host."""

    name = "slirp4netns"
    rank = 18
    package = "slirp4netns"
    remedy = "apt-get install slirp4netns"

    def program(self, site: Site, guest: Guest) -> str:
        # Its own addresses are in there, where no guest has any.
        network = f"198.{18 + site.number}.255.128/25"
        options = f"--netns-type=path -6 --mtu={site.mtu_bytes} --cidr={network}"
        unused = "--disable-dns --disable-host-loopback"
        return f"slirp4netns {options} {unused} /run/netns/{guest.netns} {guest.interface}"


PLANE = Slirp4netnsPlane()
