"""Setting `mtu`: the largest packet of every interface between the main guests."""

from __future__ import annotations

import json
from collections.abc import Iterator

from planewise.testbed.model import HOSTS, GuestKind
from planewise.testbed.planes import plane
from planewise.testbed.planes.vxlan import VxlanPlane
from planewise.testbed.setting import Arrangement
from planewise.testbed.settings.host_setting import HostSetting, Spot, guest_ends, host_ends


class Mtu(HostSetting):
    """Set along the whole path: at the guests, their host ends, the switch and the NIC."""

    name = "mtu"
    description = "largest packet [bytes] of guests, host ends, switch and NIC"
    levels = "1280 to 9000"

    def accepts(self, level: str) -> bool:
        """See `HostSetting`; IPv6 needs 1280."""
        return level.isdigit() and 1280 <= int(level) <= 9000

    def refusal(self, name: str, kind: GuestKind) -> str:
        if isinstance(plane(name), VxlanPlane):
            return f"{self.name}: {name} needs room for its tunnel's headers"
        own = plane(name).switch_is_program
        return super().refusal(name, kind) or (
            f"{self.name}: the switch of {name} is a program, which has its own MTU" if own else ""
        )

    def spots(self, arrangement: Arrangement) -> Iterator[Spot]:
        """See `HostSetting`; what sits on the NIC cannot have more than the NIC."""
        for role in HOSTS:
            site = arrangement.sites[role]
            for interface in dict.fromkeys((site.nic, site.uplink)):
                yield Spot(arrangement.hosts[role], site.netns, interface)
        yield from host_ends(arrangement)
        yield from guest_ends(arrangement)

    def read(self, spot: Spot) -> str:
        (link,) = json.loads(spot.run("ip", "-json", "link", "show", "dev", spot.interface))
        return str(link["mtu"])

    def write(self, spot: Spot, level: str) -> None:
        spot.run("ip", "link", "set", spot.interface, "mtu", level)


SETTING = Mtu()
