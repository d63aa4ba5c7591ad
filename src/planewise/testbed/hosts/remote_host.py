"""Base class of hosts that are reached over a connection, by ssh or kubectl.

Each command on a host has a keeper, which sees the connection's end when planewise ends, however
that ends; it then ends the command, or removes copied files.
"""

from __future__ import annotations

import asyncio
import shlex
import threading
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.host import GRACE_S, Host, find_probe
from planewise.testbed.hosts.remote_process import RemoteProcess, SshProcess, supervised_command
from planewise.testbed.hosts.signals import result_of, uninterrupted

CONNECT_TIMEOUT_S = 30.0
"""An emulated host takes a second or two for a handshake, a busy one longer."""

T = TypeVar("T")

# Keeps a directory until planewise closes its stdin, or has ended.
_DIRECTORY = """
trap '' INT TERM HUP
d=$(mktemp -d /tmp/pw-XXXXXXXX) || exit 1
echo "$d"
cat >/dev/null
rm -rf "$d"
"""


class RemoteHost(Host):
    """A machine that is not this one; connected when made.

    Raises when made:
        PlanewiseError: it cannot be reached, or it does not let us in.
    """

    remedy = ""
    """The remedy when it cannot be reached any more."""

    errors: type[Exception] | tuple[type[Exception], ...] = ()
    """Exceptions of its connection, beside PlanewiseError."""

    def __init__(self, name: str, place: str) -> None:
        self._name = name
        self._place = place
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=place, daemon=True)
        self._processes: list[SshProcess] = []
        self._probe: str | None = None
        self._directory: str | None = None
        self._keeper: RemoteProcess | None = None
        with uninterrupted():
            self._thread.start()
        try:
            self.call(self._connect())
        except BaseException:
            self._end_loop()
            raise

    @property
    def name(self) -> str:
        """Its role."""
        return self._name

    @property
    def place(self) -> str:
        """Its name in messages."""
        return self._place

    @property
    def probe(self) -> str:
        """Path of pw-probe on the host: copied there at the first use, removed by `close`.

        Raises:
            UnsupportedError: there is none on this machine.
            PlanewiseError: it cannot be copied.
        """
        if self._probe is None:
            self._probe = self.program(find_probe())
        return self._probe

    def program(self, local: str) -> str:
        """A static program of this machine on the host: copied there, removed by `close`.

        Raises:
            PlanewiseError: it cannot be copied.
        """
        remote = f"{self.directory}/{Path(local).name}"
        self.put(Path(local), remote)
        return remote

    @property
    def directory(self) -> str:
        if self._directory is None:
            self._directory = self.call(self._make_directory())
        return self._directory

    def take(self, remote: str, into: Path, *, netns: str | None = None) -> Path:
        local = into / Path(remote).name
        self.fetch(remote, local)
        return local

    def start(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> SshProcess:
        started = self.call(self._start(tuple(argv), netns, stdin))
        self._processes = [process for process in self._processes if process.running]
        self._processes.append(started)
        return started

    def read_text(self, path: str, *, netns: str | None = None) -> str:
        done = self.run(["cat", "--", path], netns=netns)
        if done.exit_code != 0:
            reason = done.stderr.strip().rpartition(": ")[2] or f"exit code {done.exit_code}"
            raise PlanewiseError(f"{path} on {self.place} cannot be read: {reason}")
        return done.stdout

    def close(self) -> None:
        """See `Host.close`; removes copied files, and disconnects."""
        if self._loop.is_closed():
            return
        with suppress(PlanewiseError):
            for process in self._processes:
                process.kill()
            for process in self._processes:
                process.wait(CONNECT_TIMEOUT_S)
        self._processes.clear()
        with suppress(PlanewiseError):
            self.call(self._hang_up())
        self._end_loop()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the connection's thread.

        Raises:
            PlanewiseError: the connection failed.
        """
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return result_of(future)
        except self.errors as error:
            raise self._explain(error) from error
        except BaseException:
            with uninterrupted():
                future.cancel()
            raise

    @abstractmethod
    async def _connect(self) -> None:
        """Connects. Raises PlanewiseError, or one of `errors`, where that fails."""

    @abstractmethod
    async def _spawn(self, command: str) -> RemoteProcess:
        """Starts a shell command in a session of its own."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Ends the connection."""

    @abstractmethod
    def _explain(self, error: Exception) -> PlanewiseError:
        """Translates one of `errors`."""

    async def _start(
        self, argv: tuple[str, ...], netns: str | None, stdin: bytes | None
    ) -> SshProcess:
        command = supervised_command(argv, netns, len(stdin or b""))
        remote = await self._spawn(f"exec {command}")
        process = SshProcess(self, argv, remote)
        await process.begin(stdin)
        return process

    async def _make_directory(self) -> str:
        command = shlex.join(["sh", "-c", _DIRECTORY])
        self._keeper = await self._spawn(f"exec {command}")
        directory = (await self._keeper.stdout.readline()).decode().strip()
        if not directory:
            stderr = (await self._keeper.stderr.read(1 << 16)).decode(errors="replace")
            lines = stderr.strip().splitlines() or ["it printed nothing"]
            raise PlanewiseError(f"no temporary directory on {self.place}: {lines[-1]}")
        return directory

    async def _hang_up(self) -> None:
        if self._keeper is not None:
            self._keeper.stdin.write_eof()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._keeper.wait_closed(), GRACE_S)
        await self._disconnect()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
