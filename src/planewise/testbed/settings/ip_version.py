"""Setting `ip_version`: whether trials send IPv4, the default, or IPv6."""

from __future__ import annotations

from planewise.testbed.settings.host_setting import HostSetting

SETTING = HostSetting(
    "ip_version",
    "IP version that trials send; frames of IPv6 have 20 bytes more of header",
    levels="4, 6",
    accepts=("4", "6").__contains__,
    places=(),  # guests always have addresses of both versions
    refuses=lambda plane: (
        f"Docker's network on {plane.name} has IPv4 alone" if plane.container_network else ""
    ),
)
