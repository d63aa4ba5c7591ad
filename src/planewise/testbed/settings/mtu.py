"""Setting `mtu`: the largest packet of every interface between the main guests."""

from __future__ import annotations

from planewise.testbed.planes import Plane
from planewise.testbed.planes.vxlan import VxlanPlane
from planewise.testbed.settings.host_setting import LINK, HostSetting, between


def _refusal(plane: Plane) -> str:
    if isinstance(plane, VxlanPlane):
        return f"{plane.name} needs room for its tunnel's headers"
    own = plane.switch_is_program
    return f"the switch of {plane.name} is a program, which has its own MTU" if own else ""


SETTING = HostSetting(
    "mtu",
    "largest packet [bytes] of guests, host ends, switch and NIC",
    rf"{LINK} | sed 's/.* mtu \([0-9]*\) .*/\1/'",
    'ip link set "$1" mtu "$2"',
    "1280 to 9000",
    between(1280, 9000),  # IPv6 needs 1280
    ("uplink", "port", "guest"),
    refuses=_refusal,
)
