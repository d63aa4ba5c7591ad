"""A host with virtual machines: what is started in one goes through its agent. Knows no testbed.

A virtual machine is addressed as a namespace is: by the name that a guest has as `Guest.netns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from planewise.errors import PlanewiseError
from planewise.testbed.host import Finished, Host, HostProcess
from planewise.testbed.plan import Plan
from planewise.testbed.vms import image
from planewise.testbed.vms.agent import GuestAgent


class VmHost:
    """A `testbed.host.Host` that reaches into the virtual machines that run on it."""

    def __init__(self, host: Host, agents: Mapping[str, GuestAgent]) -> None:
        self._host = host
        self._agents = agents

    @property
    def name(self) -> str:
        """See `Host.name`."""
        return self._host.name

    @property
    def place(self) -> str:
        """See `Host.place`."""
        return self._host.place

    @property
    def probe(self) -> str:
        """See `Host.probe`; in a guest it stands for the guest's own."""
        return self._host.probe

    def program(self, local: str) -> str:
        """See `Host.program`."""
        return self._host.program(local)

    @property
    def directory(self) -> str:
        """See `Host.directory`; a guest has one of the same name."""
        return self._host.directory

    def socket(self, path: str) -> str:
        """See `Host.socket`."""
        return self._host.socket(path)

    def start(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> HostProcess:
        """See `Host.start`; `netns` may be a virtual machine's name."""
        agent = self._agents.get(netns or "")
        if agent is None:
            return self._host.start(argv, netns=netns, stdin=stdin)
        if argv[0] == self._host.probe:
            argv = (image.PROBE, *argv[1:])
        return agent.start(argv, stdin, expected_s)

    def run(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> Finished:
        """See `Host.run`."""
        with self.start(argv, netns=netns, stdin=stdin, expected_s=expected_s) as process:
            return process.wait(timeout_s)

    def read_text(self, path: str, *, netns: str | None = None) -> str:
        """See `Host.read_text`."""
        agent = self._agents.get(netns or "")
        if agent is None:
            return self._host.read_text(path, netns=netns)
        return agent.read(path).decode(errors="replace")

    def take(self, remote: str, into: Path, *, netns: str | None = None) -> Path:
        """See `Host.take`."""
        agent = self._agents.get(netns or "")
        if agent is None:
            return self._host.take(remote, into, netns=netns)
        local = into / Path(remote).name
        try:
            local.write_bytes(agent.read(remote))
        except OSError as error:
            raise PlanewiseError(f"{local} cannot be written: {error.strerror}") from error
        return local

    def put(self, local: Path, remote: str) -> None:
        """See `Host.put`."""
        self._host.put(local, remote)

    def fetch(self, remote: str, local: Path) -> None:
        """See `Host.fetch`."""
        self._host.fetch(remote, local)

    def entering(self, argv: Sequence[str], netns: str) -> Sequence[str]:
        """See `Host.entering`."""
        return self._host.entering(argv, netns)

    def perform(self, plan: Plan) -> None:
        """See `Host.perform`."""
        self._host.perform(plan)

    def close(self) -> None:
        """See `Host.close`."""
        self._host.close()
