"""Processes on hosts reached by ssh, which end with their connection."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import asyncssh

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts.host import (
    GRACE_S,
    FinishedProcess,
    HostProcess,
    ProcessTimeoutError,
)

_GRACE_S = 20.0
"""Grace period of a process: a lab's host emulates guests on its one CPU."""
_END_TIMEOUT_S = 30.0
"""How long a killed process may take to end, on a busy host."""

_START_TIMEOUT_S = 60.0
_BEGUN = "pw-begun "
_NO_PROGRAM = "pw-no-program"
_NO_NETNS = "pw-no-netns"

T = TypeVar("T")

# stdin comes from planewise: each line of it is a signal for the process group, its end means that
# planewise has ended, or needs the process no more. The keeper waits for that in the background and
# then kills the rest of the process group, itself included. `exec` keeps the process id, which is
# the group's, too, as sshd starts each command in a session.
_KEPT = (
    """
netns=$1 length=$2; shift 2
[ -z "$netns" ] || [ -e "/run/netns/$netns" ] || { echo "NO_NETNS" >&2; exit 1; }
command -v "$1" >/dev/null 2>&1 || { echo "NO_PROGRAM" >&2; exit 1; }
exec 3<&0 </dev/null
if [ "$length" -gt 0 ]; then
    file=$(mktemp) && head -c "$length" <&3 >"$file" && exec <"$file" && rm -f "$file" || exit 1
fi
(trap '' INT TERM HUP
while read -r name <&3; do kill -s "$name" -- -$$; done
kill -s KILL -- -$$) >/dev/null 2>&1 &
echo "BEGUN$$" >&2
if [ -n "$netns" ]; then exec ip netns exec "$netns" "$@" 3<&-; fi
exec "$@" 3<&-
""".replace("NO_NETNS", _NO_NETNS)
    .replace("NO_PROGRAM", _NO_PROGRAM)
    .replace("BEGUN", _BEGUN)
)

_STDIN, _STDOUT, _STDERR = 0, 1, 2


class Connection(Protocol):
    """The connection to a process's host."""

    @property
    def place(self) -> str:
        """The host's name in messages."""

    @property
    def remedy(self) -> str:
        """The remedy when the connection was lost."""

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs a coroutine on the connection's event loop, and waits for it."""


class Sink(Protocol):
    """Stdin of a process on a host."""

    def write(self, data: bytes, /) -> None:
        """Queues bytes."""

    def write_eof(self) -> None:
        """Ends the stream."""

    def close(self) -> None:
        """As `write_eof`."""


class Stream(Protocol):
    """Stdout or stderr of a process on a host."""

    async def read(self, n: int = -1, /) -> bytes:
        """Up to `n` bytes; none at the end."""

    async def readline(self) -> bytes:
        """A line with its end; none at the end."""


class RemoteProcess(Protocol):
    """A command on a host, as its connection has it."""

    @property
    def stdin(self) -> Sink:
        """Its stdin."""

    @property
    def stdout(self) -> Stream:
        """Its stdout."""

    @property
    def stderr(self) -> Stream:
        """Its stderr."""

    async def wait_closed(self) -> None:
        """Waits for its end."""

    @property
    def exit_status(self) -> int | None:
        """Its exit code; None or negative: it runs, or the connection was lost."""

    @property
    def exit_signal(self) -> tuple[str, bool, str, str] | None:
        """The signal that ended it, first its name without SIG."""


def supervised_command(argv: Sequence[str], netns: str | None, stdin_bytes: int) -> str:
    """The shell command that runs `argv` as long as the connection stands. Pure."""
    return shlex.join(["sh", "-c", _KEPT, "sh", netns or "", str(stdin_bytes), *argv])


class SshProcess(HostProcess):
    """A process on a host that is not this machine."""

    def __init__(self, host: Connection, argv: tuple[str, ...], remote: RemoteProcess) -> None:
        self.argv = argv
        self._host = host
        self._remote = remote
        self._out = bytearray()
        self._err = bytearray()
        self._started = asyncio.Event()
        self._changed = asyncio.Event()
        self._pid = 0
        self._refusal = ""
        self._has_ended = False
        self._reader = asyncio.ensure_future(self._read())

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._has_ended

    def wait(self, timeout_s: float | None = None) -> FinishedProcess:
        self._await_end(timeout_s, f"{self._program} still runs after {timeout_s or 0:g} s")
        return self._finished()

    def wait_ready(self, line: str, timeout_s: float) -> None:
        try:
            printed = self._host.call(asyncio.wait_for(self._printed(line.encode()), timeout_s))
        except TimeoutError as error:
            raise ProcessTimeoutError(
                f"{self._program} did not say `{line}` within {timeout_s:g} s"
            ) from error
        if not printed:
            self._finished().check()
            raise PlanewiseError(f"{self._program} ended before it printed `{line}`")

    def stop(self) -> FinishedProcess:
        if self.running:
            self.interrupt()
            with suppress(ProcessTimeoutError):
                return self.wait(_GRACE_S)
            self.kill()
        return self.wait(_END_TIMEOUT_S)

    def kill(self) -> None:
        """Ends it and its group now: its keeper sees the end of stdin."""

        async def hang_up() -> None:
            self._remote.stdin.close()

        if self.running:
            self._host.call(hang_up())

    async def begin(self, stdin: bytes | None) -> None:
        """Waits until it runs; gives it its stdin.

        Raises:
            UnsupportedError: there is no such program.
            PlanewiseError: there is no such namespace, or the connection was lost.
        """
        if stdin:
            self._remote.stdin.write(stdin)
        await asyncio.wait_for(self._started.wait(), _START_TIMEOUT_S)
        if self._refusal == _NO_PROGRAM:
            raise UnsupportedError(
                f"there is no program `{self.argv[0]}` on {self._host.place}",
                remedy="install it there",
            )
        if self._refusal == _NO_NETNS:
            raise PlanewiseError(f"the namespace of {self._program} is gone on {self._host.place}")
        if not self._pid:
            await self._reader
            printed = f"{self._refusal}\n{bytes(self._err).decode(errors='replace')}"
            lines = printed.strip().splitlines() or ["the connection was lost"]
            raise PlanewiseError(
                f"{self._program} could not be started on {self._host.place}: {lines[-1]}"
            )

    @property
    def _program(self) -> str:
        return Path(self.argv[0]).name

    def send(self, number: signal.Signals) -> None:
        if self.running:
            # Not by ssh's signal request, which not every server honours, and not by a command,
            # which takes an emulated host a tenth of a second.
            async def say() -> None:
                with suppress(OSError, asyncssh.Error):
                    self._remote.stdin.write(f"{number.name[3:]}\n".encode())

            self._host.call(say())

    async def _read(self) -> None:
        try:
            await asyncio.gather(self._pump(self._remote.stdout, self._out), self._pump_err())
            await self._remote.wait_closed()
        finally:
            self._has_ended = True
            self._started.set()
            self._changed.set()

    async def _pump_err(self) -> None:
        first = await self._remote.stderr.readline()
        line, newline, _ = first.decode(errors="replace").partition("\n")
        if newline and line.startswith(_BEGUN):
            self._pid = int(line.removeprefix(_BEGUN))
        else:
            self._refusal = line
        self._started.set()
        await self._pump(self._remote.stderr, self._err)

    async def _pump(self, source: Stream, into: bytearray) -> None:
        while chunk := await source.read(1 << 16):
            into += chunk
            self._changed.set()

    async def _printed(self, prefix: bytes) -> bool:
        while True:
            self._changed.clear()
            if any(line.startswith(prefix) for line in bytes(self._err).splitlines()):
                return True
            if self._has_ended:
                return False
            await self._changed.wait()

    def _await_end(self, timeout_s: float | None, message: str) -> None:
        async def ended() -> None:
            await asyncio.wait_for(asyncio.shield(self._reader), timeout_s)

        try:
            self._host.call(ended())
        except TimeoutError as error:
            raise ProcessTimeoutError(message) from error

    def _finished(self) -> FinishedProcess:
        return FinishedProcess(
            self.argv,
            _exit_code(self._remote, self._host.place, self._host.remedy, self._program),
            bytes(self._out).decode(errors="replace"),
            bytes(self._err).decode(errors="replace"),
        )


class TerminalProcess:
    """A command that has this program's stdin, stdout and stderr."""

    def __init__(self, place: str, remedy: str) -> None:
        self.pid = 0
        """Its process group on the host, once it runs."""
        self._place = place
        self._remedy = remedy

    async def run(self, connection: asyncssh.SSHClientConnection, command: str) -> int:
        """Runs it to its end; gives its exit code.

        Raises:
            PlanewiseError: the connection was lost.
        """
        shell = shlex.join(["sh", "-c", f'echo "{_BEGUN}$$" >&2; {command}'])
        remote = await connection.create_process(f"exec {shell}", encoding=None)
        first = await remote.stderr.readline()
        self.pid = int(first.decode().removeprefix(_BEGUN) or 0)
        # The command has the stdin, so that the keeper watches a channel of its own.
        watch = f"trap '' INT TERM HUP; read -r done || kill -s KILL -- -{self.pid}"
        keeper = await connection.create_process(f"exec {shlex.join(['sh', '-c', watch])}")
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._feed, args=(remote, loop), name="stdin", daemon=True).start()
        await asyncio.gather(
            self._pump(remote.stdout, _STDOUT, loop), self._pump(remote.stderr, _STDERR, loop)
        )
        await remote.wait_closed()
        # Background processes of the command stay, as with ssh: the keeper must read this line.
        keeper.stdin.write("done\n")
        with suppress(TimeoutError):
            await asyncio.wait_for(keeper.wait_closed(), GRACE_S)
        return _exit_code(remote, self._place, self._remedy, "the command")

    @staticmethod
    async def _pump(
        source: asyncssh.SSHReader[bytes], into: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        while part := await source.read(1 << 16):
            await loop.run_in_executor(None, _write_all, into, part)

    def _feed(
        self, remote: asyncssh.SSHClientProcess[bytes], loop: asyncio.AbstractEventLoop
    ) -> None:
        # In a thread of its own: whatever stdin is (terminal, pipe, file), reading it blocks.
        with suppress(OSError, RuntimeError):
            while part := os.read(_STDIN, 1 << 16):
                asyncio.run_coroutine_threadsafe(self._write(remote, part), loop).result()
            loop.call_soon_threadsafe(remote.stdin.write_eof)

    @staticmethod
    async def _write(remote: asyncssh.SSHClientProcess[bytes], part: bytes) -> None:
        with suppress(OSError, asyncssh.Error):
            remote.stdin.write(part)
            await remote.stdin.drain()


def _exit_code(remote: RemoteProcess, place: str, remedy: str, program: str) -> int:
    """A process's exit code, as a shell counts.

    Raises:
        PlanewiseError: the connection was lost.
    """
    if remote.exit_signal:
        return 128 + int(getattr(signal, f"SIG{remote.exit_signal[0]}", signal.SIGKILL))
    if remote.exit_status is None or remote.exit_status < 0:
        raise PlanewiseError(
            f"the connection to {place} was lost while {program} ran", remedy=remedy
        )
    return remote.exit_status


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
