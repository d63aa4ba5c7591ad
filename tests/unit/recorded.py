"""Testbeds on hosts that only record what they are asked to perform."""

from __future__ import annotations

from collections.abc import Iterable

from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.machine import Machine
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.model import HOSTS
from planewise.testbed.plan import Step
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.testbed import Testbed

TOKEN = "0badcafe"


class RecordingHost(LocalHost):
    """Performs nothing."""

    def __init__(self, name: str, steps: list[Step]) -> None:
        super().__init__(name)
        self._steps = steps

    def perform(self, steps: Iterable[Step]) -> None:
        self._steps += steps

    def read_text(self, path: str, *, netns: str | None = None) -> str:
        return "MemAvailable: 99999999 kB"


def build(wanted: Setting, times: int = 1) -> tuple[Arrangement, list[Step]]:
    """The setting as it would stand, and all steps that make it."""
    steps: dict[str, list[Step]] = {role: [] for role in HOSTS}
    machines = {
        role: Machine(
            RecordingHost(role, steps[role]),
            "wire0",
            "br0",
            "docker0",
            netns=f"pw-{TOKEN}-{role[0]}",
        )
        for role in HOSTS
    }
    testbed = Testbed(Pair(machines, TOKEN, separate=False), 1500)
    for _ in range(times):
        with testbed.arrange(wanted) as standing:
            pass
    return standing, [*steps["sender"], *steps["responder"]]
