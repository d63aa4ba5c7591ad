"""A host that delegates to another: base class of hosts that reach into guests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from planewise.testbed.hosts.host import Host, HostProcess
from planewise.testbed.plan import Plan


class ForwardingHost(Host):
    """A `testbed.host.Host` that delegates to `inner`; subclasses override some methods."""

    def __init__(self, inner: Host) -> None:
        self.inner = inner

    @property
    def name(self) -> str:
        return self.inner.name

    @property
    def place(self) -> str:
        return self.inner.place

    @property
    def probe(self) -> str:
        return self.inner.probe

    @property
    def directory(self) -> str:
        return self.inner.directory

    def program(self, local: str) -> str:
        return self.inner.program(local)

    def socket(self, path: str) -> str:
        return self.inner.socket(path)

    def start(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> HostProcess:
        return self.inner.start(argv, netns=netns, stdin=stdin, expected_s=expected_s)

    def entering(self, argv: Sequence[str], netns: str) -> Sequence[str]:
        return self.inner.entering(argv, netns)

    def read_text(self, path: str, *, netns: str | None = None) -> str:
        return self.inner.read_text(path, netns=netns)

    def take(self, remote: str, into: Path, *, netns: str | None = None) -> Path:
        return self.inner.take(remote, into, netns=netns)

    def put(self, local: Path, remote: str) -> None:
        self.inner.put(local, remote)

    def fetch(self, remote: str, local: Path) -> None:
        self.inner.fetch(remote, local)

    def perform(self, plan: Plan) -> None:
        self.inner.perform(plan)

    def close(self) -> None:
        self.inner.close()
