"""Testbeds on hosts that only record what they are asked to perform."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from planewise.testbed.hosts.host import FinishedProcess, LocalHost
from planewise.testbed.hosts.machine import Machine
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.model import HOSTS
from planewise.testbed.plan import Step
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.testbed import Testbed

TOKEN = "0badcafe"
SURVEY = "0\nnone\n99999999 kB\nno\nno\nno\nno\n[{}]\n"
"""What a survey prints of a machine that has nothing but memory."""


class RecordingHost(LocalHost):
    """Performs nothing."""

    def __init__(self, name: str, steps: list[Step]) -> None:
        super().__init__(name)
        self._steps = steps

    def perform(self, steps: Iterable[Step]) -> None:
        self._steps += steps

    def read_text(self, path: str, *, netns: str | None = None) -> str:
        return ""

    def run(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> FinishedProcess:
        return FinishedProcess(tuple(argv), 0, SURVEY, "")


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
