"""A host with virtual machines, whose processes start through their agents. Knows no testbed.

A virtual machine is addressed as a namespace is: by `Guest.netns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from planewise.errors import PlanewiseError
from planewise.testbed.guests.vms import image
from planewise.testbed.guests.vms.agent import GuestAgent
from planewise.testbed.hosts.forwarding import ForwardingHost
from planewise.testbed.hosts.host import Host, HostProcess


class VmHost(ForwardingHost):
    """A `testbed.host.Host` that reaches into the virtual machines that run on it.

    `probe` stands for the guest's own pw-probe in a guest, and `directory` for one of that name.
    """

    def __init__(self, host: Host, agents: Mapping[str, GuestAgent]) -> None:
        super().__init__(host)
        self._agents = agents

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
            return super().start(argv, netns=netns, stdin=stdin, expected_s=expected_s)
        if argv[0] == self.probe:
            argv = (image.PROBE, *argv[1:])
        return agent.start(argv, stdin, expected_s)

    def read_text(self, path: str, *, netns: str | None = None) -> str:
        agent = self._agents.get(netns or "")
        if agent is None:
            return super().read_text(path, netns=netns)
        return agent.read(path).decode(errors="replace")

    def take(self, remote: str, into: Path, *, netns: str | None = None) -> Path:
        agent = self._agents.get(netns or "")
        if agent is None:
            return super().take(remote, into, netns=netns)
        local = into / Path(remote).name
        try:
            local.write_bytes(agent.read(remote))
        except OSError as error:
            raise PlanewiseError(f"{local} cannot be written: {error.strerror}") from error
        return local
