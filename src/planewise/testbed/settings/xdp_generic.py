"""Setting `xdp_generic`: a program in generic mode that passes every frame."""

from __future__ import annotations

from importlib.resources import files

from planewise.testbed.settings.host_setting import HostSetting

SETTING = HostSetting(
    "xdp_generic",
    "an XDP program in generic mode that passes frames, at the guests' host ends",
    'link=$(ip link show dev "$1"); case $link in *xdp*) echo on;; *) echo off;; esac',
    'if [ "$2" = on ]; then ip link set "$1" xdpgeneric object "$3" section xdp\n'
    'else ip link set "$1" xdpgeneric off; fi',
    places=("port",),
    file=str(files("planewise.testbed") / "bpf" / "pass.bpf.o"),
    refuses=lambda plane: (
        ""
        if plane.name in ("veth", "routed", "bridge")
        else f"{plane.name} has no veth end on the host"
    ),
)
