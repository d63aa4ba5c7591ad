"""Setting `rps`: receive packet steering at the main guests' interfaces, to all CPUs or to none."""

from __future__ import annotations

import os

from planewise.testbed.hosts.steering import OWN_SYS, cpu_mask
from planewise.testbed.settings.host_setting import HostSetting

_RPS = f'unshare --mount sh -ec \'{OWN_SYS} file=/sys/class/net/"$1"/queues/rx-0/rps_cpus; '

SETTING = HostSetting(
    "rps",  # the hosts' own interfaces are steered in load trials already (`hosts.steering`)
    "receive work of the main guests' interfaces spread over all CPUs",
    f'{_RPS} mask=$(cat "$file"); case $mask in *[1-9a-f]*) echo on;; *) echo off;; esac\' sh "$1"',
    f'{_RPS} echo "$2" >"$file"\' sh "$1" '
    f"$([ $2 = on ] && echo {cpu_mask(range(os.cpu_count() or 1))} || echo 0)",
    places=("guest",),
)
