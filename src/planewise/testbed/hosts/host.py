"""A host: where processes start and files are read.

`LocalHost` is this machine, or a namespace of it; `remote_host.py` has those of a network.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed import script
from planewise.testbed.hosts import programs
from planewise.testbed.hosts.netns import NamespaceThread
from planewise.testbed.hosts.scratch import scratch
from planewise.testbed.plan import Step

if TYPE_CHECKING:
    from planewise.testbed.guests.vms.agent import GuestAgent

GRACE_S = 3.0
"""How long a process that was asked to stop may take before it is killed."""

_POLL_S = 0.002


class ProcessTimeoutError(PlanewiseError):
    """A process did not end, or did not print a line, in time."""


@dataclass(frozen=True)
class FinishedProcess:
    """A process that has ended."""

    argv: tuple[str, ...]
    exit_code: int
    """As a shell counts: 128 + signal for a process ended by a signal."""
    stdout: str
    stderr: str

    @property
    def ending(self) -> str:
        """How it ended, in words."""
        if self.exit_code > 128:
            with suppress(ValueError):
                return f"ended by {signal.Signals(self.exit_code - 128).name}"
        return f"exit code {self.exit_code}"

    @property
    def last_line(self) -> str:
        """The last line of stderr; how it ended where it printed nothing there."""
        return (self.stderr.strip().splitlines() or [self.ending])[-1]

    def check(self) -> FinishedProcess:
        """Itself, when it succeeded.

        Raises:
            PlanewiseError: the exit code is not 0; the sentence has the last line of stderr.
        """
        if self.exit_code != 0:
            name = Path(self.argv[0]).name
            # pw-probe prints `pw-probe: the error`, and its remedy on an indented line.
            lines = self.stderr.rstrip().splitlines()
            remedy = lines.pop().strip() if len(lines) > 1 and lines[-1].startswith("  ") else ""
            if lines and (match := re.match(r"(pw-probe|planewised): ", lines[-1])):
                name = match[1]  # a shell may have started it
            message = lines[-1].removeprefix(f"{name}: ") if lines else "it printed nothing"
            raise PlanewiseError(f"{name} failed ({self.ending}): {message}", remedy=remedy)
        return self

    def json(self) -> Any:
        """The JSON document on stdout.

        Raises:
            PlanewiseError: the process failed, or its output is not JSON.
        """
        self.check()
        try:
            return json.loads(self.stdout)
        except ValueError as error:
            raise PlanewiseError(
                f"{' '.join(self.argv[:2])} did not print JSON: {error}",
                remedy="are planewise and pw-probe of the same version?",
            ) from error


class HostProcess(ABC):
    """A process on a host. Leaving its `with` block stops it."""

    argv: tuple[str, ...]

    @property
    @abstractmethod
    def pid(self) -> int:
        """Process id on its host."""

    @abstractmethod
    def wait(self, timeout_s: float | None = None) -> FinishedProcess:
        """Waits for the end.

        Raises:
            ProcessTimeoutError: it still runs; it is left running.
        """

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it has not ended yet."""

    @property
    def ended(self) -> bool:
        """As not `running`, but asked at once."""
        return not self.running

    @abstractmethod
    def printed(self) -> str:
        """What it has written to stderr so far."""

    @abstractmethod
    def send(self, number: signal.Signals) -> None:
        """Sends a signal to its group; a process that has ended is no error."""

    def pause(self, number: int) -> None:
        """Waits between two looks at it, the `number`th time."""
        time.sleep(_POLL_S)

    def wait_ready(self, line: str, timeout_s: float) -> None:
        """Waits for a line on stderr that is or starts with `line`.

        Raises:
            ProcessTimeoutError: the line did not come in time; the process is left running.
            PlanewiseError: the process ended before.
        """
        deadline = time.monotonic() + timeout_s
        name = Path(self.argv[0]).name
        for number in itertools.count():
            ended = self.ended
            if any(printed.startswith(line) for printed in self.printed().splitlines()):
                return
            if ended:
                self.wait().check()
                raise PlanewiseError(f"{name} ended before it printed `{line}`")
            if time.monotonic() > deadline:
                raise ProcessTimeoutError(f"{name} did not say `{line}` within {timeout_s:g} s")
            self.pause(number)

    def interrupt(self) -> None:
        """Asks it to end, without waiting."""
        self.send(signal.SIGINT)

    def kill(self) -> None:
        """Ends it and its group now, without waiting."""
        self.send(signal.SIGKILL)

    def grace_s(self) -> float:
        """How long it may take to end once it was asked to [s]."""
        return GRACE_S

    def stop(self) -> FinishedProcess:
        """Asks it to end, kills it after a grace period, returns its outcome. Idempotent.

        It is asked by SIGINT, then by SIGTERM: background jobs of a shell, and their children,
        ignore SIGINT.
        """
        for number in (signal.SIGINT, signal.SIGTERM):
            self.send(number)
            with suppress(ProcessTimeoutError):
                return self.wait(self.grace_s() / 2)
        self.kill()
        return self.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Host(ABC):
    """A machine, or what stands in for one."""

    def __init__(self, name: str, place: str) -> None:
        self.name = name
        """Its role: `sender` or `responder`."""
        self.place = place
        """Its name in messages."""
        self.agents: dict[str, GuestAgent] = {}
        """Guests with kernels of their own; `netns` may be the name of one."""
        self.joining: dict[str, Callable[[Sequence[str]], list[str]]] = {}
        """By namespace of a container, the command that runs another inside it."""
        self._directory: str | None = None

    @property
    @abstractmethod
    def probe(self) -> str:
        """Path of pw-probe on this host.

        Raises:
            UnsupportedError: there is none.
        """

    def start(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> HostProcess:
        """Starts a process in a namespace or guest of the host (None: the host's own).

        It runs for `expected_s` at least: where polling disturbs it, nobody polls before.

        Raises:
            UnsupportedError: there is no such program.
            PlanewiseError: there is no such namespace.
        """
        if agent := self.agents.get(netns or ""):
            return agent.start(argv, stdin, expected_s)
        if join := self.joining.get(netns or ""):
            argv, netns = join(argv), None
        return self._start(tuple(argv), netns, stdin)

    @abstractmethod
    def _start(
        self, argv: tuple[str, ...], netns: str | None, stdin: bytes | None
    ) -> HostProcess: ...

    def run(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> FinishedProcess:
        """As `start`; waits for the end, and kills the process after `timeout_s`.

        Raises:
            ProcessTimeoutError: it took too long.
        """
        with self.start(argv, netns=netns, stdin=stdin, expected_s=expected_s) as process:
            return process.wait(timeout_s)

    def entering(self, argv: Sequence[str], netns: str) -> Sequence[str]:
        """The command that enters a namespace of the host (empty: its own) and executes `argv`.
        Pure."""
        if join := self.joining.get(netns):
            return join(argv)
        if not netns:
            return argv
        return ["nsenter", f"--net=/run/netns/{netns}", "--", *argv]

    def read(self, path: str, *, netns: str | None = None) -> bytes:
        """A file of the host, or of a guest that has its own; below /proc/net and /proc/sys/net,
        that of the namespace.

        (Not below /sys: what it shows depends on who mounted it, not on who reads it.)

        Raises:
            PlanewiseError: it cannot be read.
        """
        if agent := self.agents.get(netns or ""):
            return agent.read(path)
        return self._read(path, netns)

    @abstractmethod
    def _read(self, path: str, netns: str | None) -> bytes: ...

    def read_text(self, path: str, *, netns: str | None = None) -> str:
        """As `read`, the file's text."""
        return self.read(path, netns=netns).decode(errors="replace")

    @abstractmethod
    def program(self, local: str) -> str:
        """Path on the host of a static program of this machine: copied there, removed by `close`.

        Raises:
            PlanewiseError: it cannot be copied.
        """

    @property
    def directory(self) -> str:
        """A scratch directory on the host, made at the first use, removed by `close`.

        Raises:
            PlanewiseError: it cannot be made.
        """
        if self._directory is None:
            self._directory = self._make_directory()
        return self._directory

    @abstractmethod
    def _make_directory(self) -> str: ...

    @abstractmethod
    def socket(self, path: str) -> str:
        """A Unix socket of this machine that is connected to the host's socket `path`.

        Raises:
            PlanewiseError: the host refuses that.
        """

    def perform(self, steps: Iterable[Step]) -> None:
        """Performs steps in their order; an empty namespace is the host's own.

        Raises:
            UnsupportedError: no privilege, or the kernel lacks a feature that a step needs.
            PlanewiseError: a step failed.
        """
        script.perform(steps, self)

    @abstractmethod
    def close(self) -> None:
        """Ends every process that still runs on it."""


class LocalProcess(HostProcess):
    """A process of this machine, in its own process group, that dies with planewise.

    Its output goes to memory files, so that a silent reader can never block it.
    """

    def __init__(
        self, argv: tuple[str, ...], process: subprocess.Popen[bytes], out: int, err: int
    ) -> None:
        self.argv = argv
        self._process = process
        self._out = out
        self._err = err
        self._finished: FinishedProcess | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._finished is None and self._process.poll() is None

    def wait(self, timeout_s: float | None = None) -> FinishedProcess:
        if self._finished is None:
            if timeout_s is not None and not _ends_within(self._process, timeout_s):
                raise ProcessTimeoutError(
                    f"{Path(self.argv[0]).name} still runs after {timeout_s:g} s"
                )
            code = self._process.wait()
            self._finished = FinishedProcess(
                self.argv,
                128 - code if code < 0 else code,
                _text(self._out),
                _text(self._err),
            )
            os.close(self._out)
            os.close(self._err)
            self.tell(None)
        return self._finished

    def printed(self) -> str:
        return self._finished.stderr if self._finished else _text(self._err)

    def tell(self, words: bytes | None) -> None:
        """Writes to its stdin, where that was left open; None closes it."""
        with suppress(OSError, ValueError):  # it has ended, or the stdin was closed
            if self._process.stdin is not None and words is None:
                self._process.stdin.close()
            elif self._process.stdin is not None and words is not None:
                self._process.stdin.write(words)
                self._process.stdin.flush()

    def send(self, number: signal.Signals) -> None:
        if self.running:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)


def _ends_within(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Whether it ends in time. A pidfd tells at once; `Popen.wait` polls every 50 ms."""
    if process.poll() is not None:
        return True
    pidfd = os.pidfd_open(process.pid)
    try:
        end = select.poll()
        end.register(pidfd, select.POLLIN)
        return bool(end.poll(1000 * max(timeout_s, 0.0)))
    finally:
        os.close(pidfd)


class LocalHost(Host):
    """This machine; or, with `home` set, a namespace of it that stands in for a machine."""

    def __init__(self, name: str, home: str | None = None) -> None:
        super().__init__(name, home or "this machine")
        self._home = home
        self._thread: NamespaceThread | None = None
        self._processes: list[LocalProcess] = []
        self._scratch = ExitStack()

    @property
    def _in_namespaces(self) -> NamespaceThread:
        if self._thread is None:
            self._thread = NamespaceThread(f"host {self.name}")
        return self._thread

    def _make_directory(self) -> str:
        return str(self._scratch.enter_context(scratch()))

    def program(self, local: str) -> str:
        """See `Host.program`: nothing is copied."""
        return local

    def socket(self, path: str) -> str:
        """See `Host.socket`: the path itself."""
        return path

    @property
    def probe(self) -> str:
        return find_probe()

    def start_open(self, argv: Sequence[str]) -> LocalProcess:
        """As `start`, with a stdin for `LocalProcess.tell`, which ends with planewise.

        Raises:
            UnsupportedError: there is no such program.
        """
        return self._spawn(tuple(argv), None, subprocess.PIPE)

    def _start(self, argv: tuple[str, ...], netns: str | None, stdin: bytes | None) -> LocalProcess:
        if stdin is None:
            return self._spawn(argv, netns, subprocess.DEVNULL)
        source = os.memfd_create("stdin")
        try:
            os.write(source, stdin)
            os.lseek(source, 0, os.SEEK_SET)
            return self._spawn(argv, netns, source)
        finally:
            os.close(source)

    def _spawn(self, argv: tuple[str, ...], netns: str | None, stdin: int) -> LocalProcess:
        started = self._in_namespaces.call(netns or self._home, _spawn, argv, stdin)
        self._processes = [process for process in self._processes if process.running]
        self._processes.append(started)
        return started

    def _read(self, path: str, netns: str | None) -> bytes:
        # /proc/net is that of the process's first thread, which never changes its namespace.
        in_thread = path.replace("/proc/net/", "/proc/thread-self/net/", 1)
        try:
            return self._in_namespaces.call(netns or self._home, Path(in_thread).read_bytes)
        except OSError as error:
            raise PlanewiseError(
                f"{path} on {self.name} cannot be read: {error.strerror}"
            ) from error

    def has_interface(self, name: str, *, netns: str | None = None) -> bool:
        """Whether there is an interface of that name, or alternative name, in the namespace.

        `netns` may also be a path, or `pid:N`, as pw-probe takes them.

        Raises:
            PlanewiseError: there is no such namespace.
        """
        if netns is not None and netns.startswith("pid:"):
            netns = f"/proc/{netns.removeprefix('pid:')}/ns/net"
        try:
            self._in_namespaces.call(netns or self._home, socket.if_nametoindex, name)
        except OSError:
            return False
        return True

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
        self._processes.clear()
        self._scratch.close()
        self._directory = None
        if self._thread is not None:
            self._thread.close()
            self._thread = None


def find_probe() -> str:
    """Path of pw-probe on this machine: beside the Python that runs, else on PATH.

    Raises:
        UnsupportedError: there is none.
    """
    return programs.find("pw-probe")


def _spawn(argv: tuple[str, ...], stdin: int) -> LocalProcess:
    # setpriv ties the process to the thread that starts it, without a fork in between and
    # without a Python hook, which would cost a copy of this process's page tables.
    setpriv = shutil.which("setpriv")
    program = shutil.which(argv[0])
    if not setpriv or not program:
        raise UnsupportedError(
            f"there is no program `{'setpriv' if program else argv[0]}` on this machine",
            remedy="install util-linux" if program else "install it",
        )
    out = os.memfd_create("stdout")
    err = os.memfd_create("stderr")
    for kept in (out, err):  # else processes that share it write over each other
        fcntl.fcntl(kept, fcntl.F_SETFL, os.O_APPEND)
    try:
        process = subprocess.Popen(
            [setpriv, "--pdeathsig", "KILL", "--", program, *argv[1:]],
            stdin=stdin,
            stdout=out,
            stderr=err,
            process_group=0,
        )
    except BaseException:
        os.close(out)
        os.close(err)
        raise
    return LocalProcess(argv, process, out, err)


def _text(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, size, 0).decode(errors="replace")
