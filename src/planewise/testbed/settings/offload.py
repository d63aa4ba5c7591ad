"""Settings `offload.*`: features of the interfaces between guest and host, by ethtool."""

from __future__ import annotations

import re

from planewise.errors import PlanewiseError
from planewise.testbed.model import GuestKind
from planewise.testbed.planes import Plane, plane
from planewise.testbed.settings.host_setting import HostSetting, Spot


class Offload(HostSetting):
    """One feature, as `ethtool -k` lists it and `ethtool -K` names it."""

    programs = ("ethtool",)

    def __init__(self, name: str, feature: str, short: str) -> None:
        self._feature, self._short = feature, short
        self.name = f"offload.{name}"  # type: ignore[misc]
        self.description = f"{feature} of the main guests' interfaces and of their host ends"  # type: ignore[misc]

    def refusal(self, name: str, kind: GuestKind) -> str:
        inherited = type(plane(name)).host_interface is Plane.host_interface
        return super().refusal(name, kind) or (
            f"{self.name}: an interface of {name} has the NIC's offloads" if inherited else ""
        )

    def read(self, spot: Spot) -> str:
        text = spot.run("ethtool", "-k", spot.interface)
        found = re.search(rf"^{self._feature}: (on|off)", text, re.MULTILINE)
        if found is None:
            raise PlanewiseError(f"`ethtool -k` does not report {self._feature} of {spot}")
        return found[1]

    def write(self, spot: Spot, level: str) -> None:
        spot.run("ethtool", "-K", spot.interface, self._short, level)


SETTINGS = (
    Offload("tso", "tcp-segmentation-offload", "tso"),
    Offload("gso", "generic-segmentation-offload", "gso"),
    Offload("gro", "generic-receive-offload", "gro"),
    Offload("tx-checksum", "tx-checksumming", "tx"),
    Offload("rx-checksum", "rx-checksumming", "rx"),
)
