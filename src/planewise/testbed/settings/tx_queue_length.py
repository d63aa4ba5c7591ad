"""Setting `tx_queue_length`: frames that an interface's queueing discipline may hold."""

from __future__ import annotations

from planewise.testbed.settings.host_setting import LINK, HostSetting, between

SETTING = HostSetting(
    "tx_queue_length",  # a veth pair has no queue, unless `qdisc` gives it one
    "transmit queue [frames] of the main guests' interfaces and of their host ends",
    rf"{LINK} | sed -n 's/.* qlen \([0-9]*\).*/\1/p' | grep . || echo 0",
    'ip link set "$1" txqueuelen "$2"',
    "1 to 100000",
    between(1, 100_000),
)
