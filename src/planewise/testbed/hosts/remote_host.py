"""Hosts that are reached over a connection, by ssh or kubectl, and the processes on them.

Each command on a host has a keeper, which sees the connection's end when planewise ends, however
that ends; it then ends the command, or removes copied files.
"""

from __future__ import annotations

import asyncio
import shlex
import signal
import threading
from abc import abstractmethod
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import asyncssh

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts.host import (
    GRACE_S,
    FinishedProcess,
    Host,
    HostProcess,
    ProcessTimeoutError,
    find_probe,
)
from planewise.testbed.hosts.signals import result_of, uninterrupted

CONNECT_TIMEOUT_S = 30.0
"""An emulated host takes a second or two for a handshake, a busy one longer."""

BEGUN = "pw-begun "
_NO_PROGRAM = "pw-no-program"
_NO_NETNS = "pw-no-netns"
_STOP_S = 20.0
"""Grace period of a process: a lab's host emulates guests on its one CPU."""
_END_TIMEOUT_S = 30.0
"""How long a killed process may take to end, on a busy host."""
_START_TIMEOUT_S = 60.0

T = TypeVar("T")
Command = asyncio.subprocess.Process | asyncssh.SSHClientProcess[bytes]
"""A command on a host, by kubectl or ssh."""

# stdin comes from planewise: each line of it is a signal for the process group, its end means that
# planewise has ended, or needs the process no more. The keeper waits for that in the background and
# then kills the rest of the process group, itself included. `exec` keeps the process id, which is
# the group's, too, as sshd starts each command in a session.
_KEPT = f"""
netns=$1 length=$2; shift 2
[ -z "$netns" ] || [ -e "/run/netns/$netns" ] || {{ echo "{_NO_NETNS}" >&2; exit 1; }}
command -v "$1" >/dev/null 2>&1 || {{ echo "{_NO_PROGRAM}" >&2; exit 1; }}
exec 3<&0 </dev/null
if [ "$length" -gt 0 ]; then
    file=$(mktemp) && head -c "$length" <&3 >"$file" && exec <"$file" && rm -f "$file" || exit 1
fi
(trap '' INT TERM HUP
while read -r name <&3; do kill -s "$name" -- -$$; done
kill -s KILL -- -$$) >/dev/null 2>&1 &
echo "{BEGUN}$$" >&2
if [ -n "$netns" ]; then exec ip netns exec "$netns" "$@" 3<&-; fi
exec "$@" 3<&-
"""

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
        super().__init__(name, place)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=place, daemon=True)
        self._processes: list[RemoteProcess] = []
        self._probe: str | None = None
        self._keeper: Command | None = None
        with uninterrupted():
            self._thread.start()
        try:
            self.call(self._connect())
        except BaseException:
            self._end_loop()
            raise

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
        remote = f"{self.directory}/{Path(local).name}"
        self.put(Path(local), remote)
        return remote

    def _start(
        self, argv: tuple[str, ...], netns: str | None, stdin: bytes | None
    ) -> RemoteProcess:
        started = self.call(self._begin(argv, netns, stdin))
        self._processes = [process for process in self._processes if process.running]
        self._processes.append(started)
        return started

    def _read_text(self, path: str, netns: str | None) -> str:
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
    async def _spawn(self, command: str) -> Command:
        """Starts a shell command in a session of its own."""

    @abstractmethod
    async def _disconnect(self) -> None:
        """Ends the connection."""

    @abstractmethod
    def _explain(self, error: Exception) -> PlanewiseError:
        """Translates one of `errors`."""

    def outcome(self, command: Command, stderr: bytes) -> tuple[int | None, bytes]:
        """An ended command's exit code, negative for a signal, and its own stderr.

        The code is None where the connection was lost.
        """
        return command.returncode, stderr

    def exit_code(self, code: int | None, program: str) -> int:
        """The exit code as a shell counts.

        Raises:
            PlanewiseError: the connection was lost.
        """
        if code is None:
            raise PlanewiseError(
                f"the connection to {self.place} was lost while {program} ran", remedy=self.remedy
            )
        return 128 - code if code < 0 else code

    async def _begin(
        self, argv: tuple[str, ...], netns: str | None, stdin: bytes | None
    ) -> RemoteProcess:
        kept = shlex.join(["sh", "-c", _KEPT, "sh", netns or "", str(len(stdin or b"")), *argv])
        process = RemoteProcess(self, argv, await self._spawn(f"exec {kept}"))
        await process.begin(stdin)
        return process

    def _make_directory(self) -> str:
        async def make() -> str:
            self._keeper = await self._spawn(f"exec {shlex.join(['sh', '-c', _DIRECTORY])}")
            assert self._keeper.stdout is not None
            assert self._keeper.stderr is not None
            if directory := (await self._keeper.stdout.readline()).decode().strip():
                return directory
            stderr = (await self._keeper.stderr.read(1 << 16)).decode(errors="replace")
            lines = stderr.strip().splitlines() or ["it printed nothing"]
            raise PlanewiseError(f"no temporary directory on {self.place}: {lines[-1]}")

        return self.call(make())

    async def _hang_up(self) -> None:
        if self._keeper is not None and self._keeper.stdin is not None:
            self._keeper.stdin.write_eof()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._keeper.wait(), GRACE_S)
        await self._disconnect()

    def _end_loop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class RemoteProcess(HostProcess):
    """A process on a host that is not this machine; it ends with its connection."""

    def __init__(self, host: RemoteHost, argv: tuple[str, ...], command: Command) -> None:
        self.argv = argv
        self._host = host
        self._command = command
        self._out = bytearray()
        self._err = bytearray()
        self._started = asyncio.Event()
        self._pid = 0
        self._refusal = ""
        self._has_ended = False
        self._reader = asyncio.ensure_future(self._read())

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def running(self) -> bool:
        return not self._has_ended

    def printed(self) -> str:
        return bytes(self._err).decode(errors="replace")

    def wait(self, timeout_s: float | None = None) -> FinishedProcess:
        program = Path(self.argv[0]).name

        async def ended() -> None:
            await asyncio.wait_for(asyncio.shield(self._reader), timeout_s)

        try:
            self._host.call(ended())
        except TimeoutError as error:
            raise ProcessTimeoutError(f"{program} still runs after {timeout_s or 0:g} s") from error
        code, stderr = self._host.outcome(self._command, bytes(self._err))
        return FinishedProcess(
            self.argv,
            self._host.exit_code(code, program),
            bytes(self._out).decode(errors="replace"),
            stderr.decode(errors="replace"),
        )

    def stop(self) -> FinishedProcess:
        if self.running:
            self.interrupt()
            with suppress(ProcessTimeoutError):
                return self.wait(_STOP_S)
            self.kill()
        return self.wait(_END_TIMEOUT_S)

    def kill(self) -> None:
        """Ends it and its group now: its keeper sees the end of stdin."""
        self._to_keeper(None)

    def send(self, number: signal.Signals) -> None:
        # Not by ssh's signal request, which not every server honours, and not by a command, which
        # takes an emulated host a tenth of a second.
        self._to_keeper(f"{number.name[3:]}\n".encode())

    def _to_keeper(self, line: bytes | None) -> None:
        async def write() -> None:
            assert self._command.stdin is not None
            if line is None:
                self._command.stdin.close()
                return
            with suppress(OSError, asyncssh.Error):
                self._command.stdin.write(line)

        if self.running:
            self._host.call(write())

    async def begin(self, stdin: bytes | None) -> None:
        """Waits until it runs; gives it its stdin.

        Raises:
            UnsupportedError: there is no such program.
            PlanewiseError: there is no such namespace, or the connection was lost.
        """
        name, place = Path(self.argv[0]).name, self._host.place
        if stdin and self._command.stdin is not None:
            self._command.stdin.write(stdin)
        await asyncio.wait_for(self._started.wait(), _START_TIMEOUT_S)
        if self._refusal == _NO_PROGRAM:
            raise UnsupportedError(
                f"there is no program `{self.argv[0]}` on {place}", remedy="install it there"
            )
        if self._refusal == _NO_NETNS:
            raise PlanewiseError(f"the namespace of {name} is gone on {place}")
        if not self._pid:
            await self._reader
            lines = f"{self._refusal}\n{self.printed()}".strip().splitlines()
            reason = lines[-1] if lines else "the connection was lost"
            raise PlanewiseError(f"{name} could not be started on {place}: {reason}")

    async def _read(self) -> None:
        try:
            await asyncio.gather(self._read_out(), self._read_err())
            await self._command.wait()
        finally:
            self._has_ended = True
            self._started.set()

    async def _read_out(self) -> None:
        assert self._command.stdout is not None
        while chunk := await self._command.stdout.read(1 << 16):
            self._out += chunk

    async def _read_err(self) -> None:
        assert self._command.stderr is not None
        first = await self._command.stderr.readline()
        line, newline, _ = first.decode(errors="replace").partition("\n")
        if newline and line.startswith(BEGUN):
            self._pid = int(line.removeprefix(BEGUN))
        else:
            self._refusal = line
        self._started.set()
        while chunk := await self._command.stderr.read(1 << 16):
            self._err += chunk
