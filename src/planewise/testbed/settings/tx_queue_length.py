"""Setting `tx_queue_length`: frames that an interface's queueing discipline may hold."""

from __future__ import annotations

import json

from planewise.testbed.settings.host_setting import HostSetting, Spot


class TxQueueLength(HostSetting):
    """A veth pair has no queueing discipline, and so no queue, unless `qdisc` gives it one."""

    name = "tx_queue_length"
    description = "transmit queue [frames] of the main guests' interfaces and of their host ends"
    levels = "1 to 100000"

    def accepts(self, level: str) -> bool:
        return level.isdigit() and 1 <= int(level) <= 100_000

    def read(self, spot: Spot) -> str:
        (link,) = json.loads(spot.run("ip", "-json", "link", "show", "dev", spot.interface))
        return str(link.get("txqlen", 0))

    def write(self, spot: Spot, level: str) -> None:
        spot.run("ip", "link", "set", spot.interface, "txqueuelen", level)


SETTING = TxQueueLength()
