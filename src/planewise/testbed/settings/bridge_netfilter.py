"""Setting `bridge_netfilter`: whether bridged packets pass iptables and nftables, too."""

from __future__ import annotations

from collections.abc import Iterator

from planewise.testbed.model import HOSTS, GuestKind
from planewise.testbed.plan import Plan, set_sysctl
from planewise.testbed.planes import plane
from planewise.testbed.setting import Arrangement
from planewise.testbed.settings.host_setting import HostSetting, Spot

_KEYS = tuple(f"net/bridge/bridge-nf-call-{family}" for family in ("iptables", "ip6tables"))


class BridgeNetfilter(HostSetting):
    """The sysctls `net.bridge.bridge-nf-call-*` of the hosts; Linux sets them on by default."""

    name = "bridge_netfilter"
    description = "iptables and nftables see bridged packets (net.bridge.bridge-nf-call-iptables)"
    machine_wide = _KEYS

    def refusal(self, name: str, kind: GuestKind) -> str:
        switch = plane(name).switch
        bridged = switch is not None and switch.name == "bridge"
        return super().refusal(name, kind) or (
            "" if bridged else f"{self.name}: frames of {name} pass no Linux bridge"
        )

    def spots(self, arrangement: Arrangement) -> Iterator[Spot]:
        for role in HOSTS:
            site = arrangement.sites[role]
            yield Spot(arrangement.hosts[role], site.netns, site.bridge)

    def read(self, spot: Spot) -> str:
        values = {
            spot.host.read_text(f"/proc/sys/{key}", netns=spot.netns or None) for key in _KEYS
        }
        return "off" if {value.strip() for value in values} == {"0"} else "on"

    def write(self, spot: Spot, level: str) -> None:
        value = "1" if level == "on" else "0"
        spot.host.perform(Plan(tuple(set_sysctl(spot.netns, key, value) for key in _KEYS)))


SETTING = BridgeNetfilter()
