"""Hosts reached by another program, ssh or kubectl, which runs shell commands there.

Each command on a host has a keeper, which sees the connection end when planewise ends, however that
happens; it then ends the command, or removes copied files.
"""

from __future__ import annotations

import base64
import re
import shlex
import signal
import time
from abc import abstractmethod
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts.host import (
    GRACE_S,
    FinishedProcess,
    Host,
    HostProcess,
    LocalHost,
    LocalProcess,
    ProcessTimeoutError,
    find_probe,
)

CONNECT_TIMEOUT_S = 30.0
"""An emulated host takes a second or two for a handshake, a busy one longer."""

_BEGUN, _ENDED = "pw-begun ", "pw-ended "
_NO_PROGRAM = "pw-no-program"
_NO_NETNS = "pw-no-netns"
_STOP_S = 20.0
"""Grace period of a process: a lab's host emulates guests on its one CPU."""
_END_TIMEOUT_S = 30.0
"""How long a killed process may take to end, on a busy host."""
_START_TIMEOUT_S = 60.0
_COPY_S = 300.0
_POLL_S = 0.002

# stdin comes from planewise: each line of it is a signal for the process group, its end means that
# planewise has ended, or no longer needs the process. The keeper waits for that in the background
# and then kills the process group, itself included. The shell stays to report the exit code, which
# ssh would not do for a command that a signal ended; its id is the group's, as sshd starts each
# command in a session of its own.
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
trap : INT TERM HUP
exec 4>&2 2>/dev/null # where the shell reports a command that a signal ended
(exec 3<&- 2>&4 4>&-
read -r pid rest </proc/self/stat
echo "{_BEGUN}$pid" >&2
[ -z "$netns" ] || exec ip netns exec "$netns" "$@"
exec "$@")
code=$?
echo "{_ENDED}$code" >&4
exit $code
"""

# Keeps a directory until planewise closes its stdin, or has ended. `group` in it is the process
# group of a command without a keeper.
_DIRECTORY = f"""
trap '' INT TERM HUP
d=$(mktemp -d /tmp/pw-XXXXXXXX) || exit 1
echo "{_BEGUN}$d" >&2
cat >/dev/null
[ ! -e "$d/group" ] || kill -s KILL -- "-$(cat "$d/group")"
rm -rf "$d"
"""


class RemoteHost(Host):
    """A machine that is not this one; connected when made.

    Raises when made:
        PlanewiseError: it cannot be reached, or it does not let us in.
    """

    remedy = ""
    """The remedy when it can no longer be reached."""

    def __init__(self, name: str, place: str) -> None:
        super().__init__(name, place)
        self.desk = LocalHost(place)
        """This machine, where the programs run that reach the host."""
        self._opened = ExitStack()
        self._opened.callback(self.desk.close)
        self._processes: list[RemoteProcess] = []
        self._probe: str | None = None
        try:
            self._connect(self._opened)
        except BaseException:
            self._opened.close()
            raise

    @abstractmethod
    def _connect(self, opened: ExitStack) -> None:
        """Connects; `opened` disconnects.

        Raises:
            PlanewiseError: that failed.
        """

    @abstractmethod
    def _entering(self, command: str) -> Sequence[str]:
        """The command of this machine that runs a shell command on the host, in its own session,
        with the same stdin, stdout and stderr."""

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
        client = self._run_script(_KEPT, netns or "", str(len(stdin or b"")), *argv)
        started = RemoteProcess(self, argv, client)
        started.begin(stdin)
        self._processes = [process for process in self._processes if process.running]
        self._processes.append(started)
        return started

    def _run_script(self, script: str, *arguments: str) -> LocalProcess:
        """Starts a shell script on the host, with a stdin that stays open."""
        command = f"exec {shlex.join(['sh', '-c', script, 'sh', *arguments])}"
        return self.desk.start_open(self._entering(command))

    def _read(self, path: str, netns: str | None) -> bytes:
        # A process's output is decoded as text, so that the bytes are encoded.
        done = self.run(["base64", "--", path], netns=netns, timeout_s=_COPY_S)
        if done.exit_code != 0:
            raise PlanewiseError(f"{path} on {self.place} cannot be read: {_reason(done)}")
        return base64.b64decode(done.stdout)

    def _make_directory(self) -> str:
        keeper = self._run_script(_DIRECTORY)
        if directory := begun(keeper):
            self._opened.callback(self._end_keeper, keeper)
            return directory
        raise PlanewiseError(f"no temporary directory on {self.place}: {_reason(keeper.stop())}")

    @staticmethod
    def _end_keeper(keeper: LocalProcess) -> None:
        keeper.tell(None)
        with suppress(ProcessTimeoutError):
            keeper.wait(GRACE_S)

    def put(self, local: Path, remote: str) -> None:
        """Copies a file to the host; the mode is kept.

        Raises:
            PlanewiseError: it cannot be copied.
        """
        failure = f"{local} cannot be copied to {self.place}:{remote}"
        try:
            content, mode = local.read_bytes(), local.stat().st_mode & 0o7777
        except OSError as error:
            raise PlanewiseError(f"{failure}: {error.strerror}") from error
        argv = ["sh", "-c", 'cat >"$1" && chmod "$2" "$1"', "sh", remote, f"{mode:o}"]
        done = self.run(argv, stdin=content, timeout_s=_COPY_S)
        if done.exit_code != 0:
            raise PlanewiseError(f"{failure}: {_reason(done)}")

    def close(self) -> None:
        """See `Host.close`; removes copied files, and disconnects. Idempotent."""
        with suppress(PlanewiseError):
            for process in self._processes:
                process.kill()
            for process in self._processes:
                process.wait(CONNECT_TIMEOUT_S)
        self._processes.clear()
        self._opened.close()


class RemoteProcess(HostProcess):
    """A process on a host that is not this machine; it ends with its connection."""

    def __init__(self, host: RemoteHost, argv: tuple[str, ...], client: LocalProcess) -> None:
        self.argv = argv
        self._host = host
        self._client = client
        """The program that reached the host."""
        self._pid = 0
        self._killed = False

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def running(self) -> bool:
        return self._client.running

    def printed(self) -> str:
        return own_words(self._client.printed())[0]

    def begin(self, stdin: bytes | None) -> None:
        """Gives it its stdin; waits until it runs.

        Raises:
            UnsupportedError: there is no such program.
            PlanewiseError: there is no such namespace, or the connection was lost.
        """
        if stdin:
            self._client.tell(stdin)
        if pid := begun(self._client):
            self._pid = int(pid)
            return
        name, place = Path(self.argv[0]).name, self._host.place
        self._client.kill()
        done = self._client.wait()
        words = done.stderr.split()
        if _NO_PROGRAM in words:
            raise UnsupportedError(
                f"there is no program `{self.argv[0]}` on {place}", remedy="install it there"
            )
        if _NO_NETNS in words:
            raise PlanewiseError(f"the namespace of {name} is gone on {place}")
        raise PlanewiseError(f"{name} could not be started on {place}: {done.last_line}")

    def wait(self, timeout_s: float | None = None) -> FinishedProcess:
        program = Path(self.argv[0]).name
        try:
            done = self._client.wait(timeout_s)
        except ProcessTimeoutError as error:
            raise ProcessTimeoutError(f"{program} still runs after {timeout_s or 0:g} s") from error
        words, code = own_words(done.stderr)
        if code is None and not self._killed:
            raise PlanewiseError(
                f"the connection to {self._host.place} was lost while {program} ran",
                remedy=self._host.remedy,
            )
        killed = 128 + signal.SIGKILL
        return FinishedProcess(self.argv, killed if code is None else code, done.stdout, words)

    def stop(self) -> FinishedProcess:
        if self.running:
            self.interrupt()
            with suppress(ProcessTimeoutError):
                return self.wait(_STOP_S)
            self.kill()
        return self.wait(_END_TIMEOUT_S)

    def kill(self) -> None:
        """Ends it and its group now: its keeper sees the end of stdin."""
        self._killed = True
        self._client.tell(None)

    def send(self, number: signal.Signals) -> None:
        # Not by another command, which takes an emulated host a tenth of a second.
        self._client.tell(f"{number.name[3:]}\n".encode())


def begun(client: LocalProcess) -> str:
    """What a script on a host says once it has begun; empty where it does not begin."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        ended = client.ended
        if match := re.search(rf"^{_BEGUN}(.+)\n", client.printed(), re.MULTILINE):
            return match[1]
        if ended:
            break
        time.sleep(_POLL_S)
    return ""


def own_words(stderr: str) -> tuple[str, int | None]:
    """A command's own part of the stderr of the program that ran it, and its exit code, once it has
    ended. Pure."""
    words = re.sub(rf"\A(?s:.*?)^{_BEGUN}.+\n", "", stderr, count=1, flags=re.MULTILINE)
    own, mark, rest = words.rpartition(_ENDED)
    if mark and (code := re.match(r"\d+(?=\n)", rest)):
        return own, int(code[0])
    return words, None


def _reason(done: FinishedProcess) -> str:
    return done.last_line.rpartition(": ")[2]
