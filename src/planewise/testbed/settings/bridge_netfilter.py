"""Setting `bridge_netfilter`: whether bridged packets pass iptables and nftables, too."""

from __future__ import annotations

from planewise.testbed.settings.host_setting import HostSetting

_KEYS = tuple(f"net/bridge/bridge-nf-call-{family}" for family in ("iptables", "ip6tables"))
_FILES = " ".join(f"/proc/sys/{key}" for key in _KEYS)

SETTING = HostSetting(
    "bridge_netfilter",
    "iptables and nftables see bridged packets (net.bridge.bridge-nf-call-iptables)",
    f"values=$(cat {_FILES}); case $values in *1*) echo on;; *) echo off;; esac",
    f"for file in {_FILES}; do\n[ $2 = on ] && echo 1 >$file || echo 0 >$file; done",
    places=("bridge",),
    machine_wide=_KEYS,
    refuses=lambda plane: (
        ""
        if plane.switch is not None and plane.switch.name == "bridge"
        else f"frames of {plane.name} pass no Linux bridge"
    ),
)
