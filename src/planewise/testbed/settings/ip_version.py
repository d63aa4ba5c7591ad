"""Setting `ip_version`: whether trials send IPv4, the default, or IPv6."""

from __future__ import annotations

from collections.abc import Iterator

from planewise.testbed.model import GuestKind, IpVersion
from planewise.testbed.planes import plane
from planewise.testbed.setting import Arrangement
from planewise.testbed.settings.host_setting import HostSetting, Spot


class IpVersionSetting(HostSetting):
    """Changes no interface: guests always have addresses of both versions."""

    name = "ip_version"
    description = "IP version that trials send; frames of IPv6 have 20 bytes more of header"
    levels = "4, 6"

    def accepts(self, level: str) -> bool:
        return level in ("4", "6")

    def refusal(self, name: str, kind: GuestKind) -> str:
        docker = plane(name).container_network
        only = f"{self.name}: Docker's network on {name} has IPv4 alone" if docker else ""
        return super().refusal(name, kind) or only

    def ip_version(self, level: str) -> IpVersion:
        return 6 if level == "6" else 4

    def spots(self, arrangement: Arrangement) -> Iterator[Spot]:
        """None."""
        return iter(())

    def read(self, spot: Spot) -> str:
        return ""

    def write(self, spot: Spot, level: str) -> None:
        """Changes nothing."""


SETTING = IpVersionSetting()
