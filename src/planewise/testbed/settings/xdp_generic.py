"""Setting `xdp_generic`: an XDP program that passes every frame, run without the driver's help."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files

from planewise.testbed.model import GuestKind
from planewise.testbed.setting import Arrangement
from planewise.testbed.settings.host_setting import HostSetting, Spot, host_ends

_PROGRAM = str(files("planewise.testbed") / "bpf" / "pass.bpf.o")
_PORTS = ("veth", "routed", "bridge")


class XdpGeneric(HostSetting):
    """What generic XDP itself costs, on frames that enter the host from the main guests."""

    name = "xdp_generic"
    description = "an XDP program in generic mode that passes frames, at the guests' host ends"

    def refusal(self, name: str, kind: GuestKind) -> str:
        none = "" if name in _PORTS else f"{self.name}: {name} has no veth end on the host"
        return super().refusal(name, kind) or none

    def spots(self, arrangement: Arrangement) -> Iterator[Spot]:
        yield from host_ends(arrangement)

    def read(self, spot: Spot) -> str:
        (link,) = json.loads(spot.run("ip", "-json", "link", "show", "dev", spot.interface))
        return "on" if link.get("xdp") else "off"

    def write(self, spot: Spot, level: str) -> None:
        what = ("object", spot.host.program(_PROGRAM), "section", "xdp")
        spot.run(
            "ip",
            "link",
            "set",
            spot.interface,
            "xdpgeneric",
            *(what if level == "on" else ("off",)),
        )


SETTING = XdpGeneric()
