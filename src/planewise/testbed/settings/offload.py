"""Settings `offload.*`: features of the interfaces between guest and host, by ethtool."""

from __future__ import annotations

from planewise.testbed.planes import Plane
from planewise.testbed.settings.host_setting import HostSetting


def _offload(name: str, feature: str, short: str) -> HostSetting:
    """A feature, as `ethtool -k` lists it and `ethtool -K` names it."""

    def refuses(plane: Plane) -> str:
        inherited = type(plane).host_interface is Plane.host_interface
        if plane.outward_only:
            return f"a program reads frames of {plane.name} from a tap, as they are"
        return f"an interface of {plane.name} has the NIC's offloads" if inherited else ""

    return HostSetting(
        f"offload.{name}",
        f"{feature} of the main guests' interfaces and of their host ends",
        rf'ethtool -k "$1" | sed -n "s/^{feature}: \(on\|off\).*/\1/p"',
        f'ethtool -K "$1" {short} "$2"',
        programs=("ethtool",),
        refuses=refuses,
    )


SETTINGS = (
    _offload("tso", "tcp-segmentation-offload", "tso"),
    _offload("gso", "generic-segmentation-offload", "gso"),
    _offload("gro", "generic-receive-offload", "gro"),
    _offload("tx-checksum", "tx-checksumming", "tx"),
    _offload("rx-checksum", "rx-checksumming", "rx"),
)
