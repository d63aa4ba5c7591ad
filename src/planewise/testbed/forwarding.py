"""A host that hands everything on to another, for hosts that reach into guests of some kind."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planewise.testbed.host import Host, HostProcess
from planewise.testbed.plan import Plan


class ForwardingHost(Host):
    """A `testbed.host.Host` that behaves as `inner`; subclasses say where it does not."""

    def __init__(self, inner: Host) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        """See `Host.name`."""
        return self.inner.name

    @property
    def place(self) -> str:
        """See `Host.place`."""
        return self.inner.place

    @property
    def probe(self) -> str:
        """See `Host.probe`."""
        return self.inner.probe

    @property
    def directory(self) -> str:
        """See `Host.directory`."""
        return self.inner.directory

    def program(self, local: str) -> str:
        """See `Host.program`."""
        return self.inner.program(local)

    def socket(self, path: str) -> str:
        """See `Host.socket`."""
        return self.inner.socket(path)

    def start(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> HostProcess:
        """See `Host.start`."""
        return self.inner.start(argv, netns=netns, stdin=stdin, expected_s=expected_s)

    def entering(self, argv: Sequence[str], netns: str) -> Sequence[str]:
        """See `Host.entering`."""
        return self.inner.entering(argv, netns)

    def read_text(self, path: str, *, netns: str | None = None) -> str:
        """See `Host.read_text`."""
        return self.inner.read_text(path, netns=netns)

    def take(self, remote: str, into: Path, *, netns: str | None = None) -> Path:
        """See `Host.take`."""
        return self.inner.take(remote, into, netns=netns)

    def put(self, local: Path, remote: str) -> None:
        """See `Host.put`."""
        self.inner.put(local, remote)

    def fetch(self, remote: str, local: Path) -> None:
        """See `Host.fetch`."""
        self.inner.fetch(remote, local)

    def perform(self, plan: Plan) -> None:
        """See `Host.perform`."""
        self.inner.perform(plan)

    def close(self) -> None:
        """See `Host.close`."""
        self.inner.close()
