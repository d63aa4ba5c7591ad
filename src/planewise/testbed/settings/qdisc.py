"""Setting `qdisc`: the queueing discipline by which the main guests send."""

from __future__ import annotations

import json
from collections.abc import Iterator

from planewise.testbed.setting import Arrangement
from planewise.testbed.settings.host_setting import HostSetting, Spot, guest_ends

_DEFAULT = "default"


class Qdisc(HostSetting):
    """A root discipline as tc takes it. Frames that the kernel's generator sends pass none."""

    name = "qdisc"
    description = "queueing discipline by which the main guests send; load trials bypass it"
    levels = "words of tc, such as `tbf rate 1gbit burst 64kb latency 10ms`"
    programs = ("tc",)

    def accepts(self, level: str) -> bool:
        return level.split(" ", 1)[0].isidentifier()

    def spots(self, arrangement: Arrangement) -> Iterator[Spot]:
        yield from guest_ends(arrangement)

    def read(self, spot: Spot) -> str:
        """See `HostSetting`; the kind of the discipline alone."""
        found = json.loads(spot.run("tc", "-json", "qdisc", "show", "dev", spot.interface) or "[]")
        kinds = [entry["kind"] for entry in found if entry.get("root")]
        return kinds[0] if kinds and kinds[0] != "noqueue" else _DEFAULT

    def write(self, spot: Spot, level: str) -> None:
        if level != _DEFAULT:
            spot.run("tc", "qdisc", "replace", "dev", spot.interface, "root", *level.split())
        elif self.read(spot) != _DEFAULT:
            spot.run("tc", "qdisc", "delete", "dev", spot.interface, "root")

    def change(self, spot: Spot, level: str) -> None:
        """See `HostSetting`; tc itself says what the kernel does not take."""
        self.write(spot, level)


SETTING = Qdisc()
