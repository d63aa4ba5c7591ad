"""Setting `rps`: receive packet steering at the main guests' interfaces, to all CPUs or to none."""

from __future__ import annotations

import os
from collections.abc import Iterator

from planewise.testbed.hosts.steering import rps_mask, steer
from planewise.testbed.setting import Arrangement
from planewise.testbed.settings.host_setting import HostSetting, Spot, guest_ends


class Rps(HostSetting):
    """The hosts' own interfaces are steered in load trials already (`testbed.hosts.steering`)."""

    name = "rps"
    description = "receive work of the main guests' interfaces spread over all CPUs"

    def spots(self, arrangement: Arrangement) -> Iterator[Spot]:
        yield from guest_ends(arrangement)

    def read(self, spot: Spot) -> str:
        return "on" if rps_mask(spot.host, spot.netns, spot.interface) else "off"

    def write(self, spot: Spot, level: str) -> None:
        cpus = range(os.cpu_count() or 1) if level == "on" else ()
        steer(spot.host, spot.netns, [spot.interface], cpus)


SETTING = Rps()
