"""Processes and files inside a virtual machine, through its guest agent.

The agent may be pw-probe's or QEMU's own (qemu-ga): of its protocol only exec and file commands are
used, and of the guest a shell. Polling disturbs a guest, so that it is polled rarely.
"""

from __future__ import annotations

import base64
import itertools
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from planewise.errors import PlanewiseError
from planewise.testbed.guests.vms.hypervisor import (
    AgentSilentError,
    GuestGoneError,
    HypervisorGoneError,
    Libvirt,
)
from planewise.testbed.guests.vms.image import PROBE
from planewise.testbed.hosts.host import FinishedProcess, HostProcess, ProcessTimeoutError

_FIRST_POLL_S, _LAST_POLL_S = 0.02, 0.5
_PAUSES, _LONGEST_PAUSE_S = 4.0, 5.0
GRACE_S, _GRACE_ANSWERS = 30.0, 30.0
"""A process of a guest within a guest may take long to end; only one that hangs takes all of it."""
_GONE = 128 + 9
_ENDED = (GuestGoneError, HypervisorGoneError)
"""A guest ends with the libvirt that runs it, which is Planewise's own."""

# Removes output of earlier processes, then runs a program with its output in files: these can be
# read while it runs, unlike the agent's own capture.
_RUN = (
    'd=$1 old=$2 new=$3; shift 3; [ -d "$d" ] || mkdir -p "$d";'
    ' [ -z "$old" ] || { cd "$d" && rm -f $old; cd /; };'
    ' exec "$@" >"$d/$new.out" 2>"$d/$new.err"'
)
_SIGNAL = 'kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2"'


class GuestAgent:
    """The agent of one virtual machine."""

    def __init__(
        self,
        libvirt: Libvirt,
        name: str,
        directory: str,
        end_error: Callable[[], GuestGoneError],
    ) -> None:
        """`directory` of the guest has its processes' output; `end_error` says why it ended."""
        self.name = name
        self.directory = directory
        self._libvirt = libvirt
        self._end_error = end_error
        self._numbers = itertools.count()
        self._read_files: list[str] = []
        self._lock = threading.Lock()
        self._answer_s = 0.0

    def ready(self) -> bool:
        """Whether the agent answers.

        Raises:
            GuestGoneError: the virtual machine ended.
        """
        try:
            self._ask("guest-ping")
        except AgentSilentError:
            return False
        return True

    def start(
        self, argv: Sequence[str], stdin: bytes | None = None, expected_s: float = 0.0
    ) -> GuestProcess:
        """Starts a process, which is not polled before `expected_s` have passed.

        A host's pw-probe stands for the guest's own.

        Raises:
            PlanewiseError: it cannot be started, or the guest is gone.
        """
        if argv[0].endswith("/pw-probe"):
            argv = (PROBE, *argv[1:])
        name = f"process{next(self._numbers)}"
        with self._lock:
            read_files, self._read_files = " ".join(self._read_files), []
        arguments: dict[str, object] = {
            "path": "/bin/sh",
            "arg": ["-c", _RUN, "sh", self.directory, read_files, name, *argv],
        }
        if stdin is not None:
            arguments["input-data"] = base64.b64encode(stdin).decode()
        pid = int(self._ask("guest-exec", arguments)["pid"])
        return GuestProcess(self, tuple(argv), pid, name, expected_s)

    def output(self, name: str) -> tuple[str, str]:
        """What a process has written so far: stdout and stderr."""
        texts = []
        for kind in ("out", "err"):
            try:
                content = self.read(f"{self.directory}/{name}.{kind}")
            except _ENDED:
                raise
            except PlanewiseError:
                content = b""  # the shell has not made it
            texts.append(content.decode(errors="replace"))
        return texts[0], texts[1]

    def forget(self, name: str) -> None:
        """Has a process' output removed when the next one starts."""
        with self._lock:
            self._read_files += [f"{name}.out", f"{name}.err"]

    def exit_code(self, pid: int) -> int | None:
        """As a shell counts; None while the process runs."""
        status = self._ask("guest-exec-status", {"pid": pid})
        if not status["exited"]:
            return None
        return int(status["exitcode"]) if "exitcode" in status else 128 + int(status["signal"])

    def signal(self, pid: int, name: str) -> None:
        """Sends a signal to a process' group; a process that has ended is no error."""
        argv = ["-c", _SIGNAL, "sh", name, str(pid)]
        killer = int(self._ask("guest-exec", {"path": "/bin/sh", "arg": argv})["pid"])
        with suppress(PlanewiseError):
            self.exit_code(killer)

    def read(self, path: str) -> bytes:
        """A file of the guest. Only our own agent can, in one answer.

        Raises:
            PlanewiseError: it cannot be read.
        """
        content = b""
        while True:
            part = self._ask("pw-read", {"path": path, "offset": len(content)})
            content += base64.b64decode(part["buf-b64"])
            if part["eof"]:
                return content

    def set_network(self, interface: str, words: Sequence[str]) -> None:
        """Sets an interface up, as `pw-probe network` does. Only our own agent can.

        Raises:
            PlanewiseError: it cannot be set up so.
        """
        self._ask("pw-network", {"interface": interface, "words": list(words)})

    def pause(self, pause_s: float) -> None:
        """Waits between two polls: for `pause_s`, and longer where answers take long.

        A slow guest would else be busy with answers only.
        """
        time.sleep(max(pause_s, min(_PAUSES * self._answer_s, _LONGEST_PAUSE_S)))

    def grace_s(self) -> float:
        """How long a process may take to end: longer where the guest takes long to answer."""
        return GRACE_S + _GRACE_ANSWERS * self._answer_s

    def _ask(self, execute: str, arguments: dict[str, object] | None = None) -> Any:
        begun = time.monotonic()
        try:
            answer = self._libvirt.agent(self.name, execute, arguments)
            self._answer_s = time.monotonic() - begun
            return answer
        except GuestGoneError as error:
            raise self._end_error() from error


class GuestProcess(HostProcess):
    """A process in a guest."""

    def __init__(
        self,
        agent: GuestAgent,
        argv: tuple[str, ...],
        pid: int,
        name: str,
        expected_s: float,
    ) -> None:
        self.argv = argv
        self._agent = agent
        self._pid = pid
        self._name = name
        self._first_look = time.monotonic() + expected_s
        self._finished: FinishedProcess | None = None

    @property
    def pid(self) -> int:
        """Process id in the guest."""
        return self._pid

    @property
    def running(self) -> bool:
        """Whether it has not ended yet; it is not polled while it is expected to run."""
        if self._finished is None and time.monotonic() < self._first_look:
            return True
        return self._look() is None

    def wait(self, timeout_s: float | None = None) -> FinishedProcess:
        """See `HostProcess.wait`. The process of a guest that is gone has been killed."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        first = self._first_look if deadline is None else min(self._first_look, deadline)
        time.sleep(max(0.0, first - time.monotonic()))
        number = 0
        while (finished := self._look()) is None:
            if deadline is not None and time.monotonic() > deadline:
                name = self.argv[0].rpartition("/")[2]
                raise ProcessTimeoutError(f"{name} still runs after {timeout_s:g} s")
            self.pause(number)
            number += 1
        return finished

    @property
    def ended(self) -> bool:
        return self._look() is not None

    def pause(self, number: int) -> None:
        self._agent.pause(min(_FIRST_POLL_S * 2**number, _LAST_POLL_S))

    def grace_s(self) -> float:
        """See `HostProcess.grace_s`: longer where the guest takes long to answer."""
        return 2 * self._agent.grace_s()

    def stop(self) -> FinishedProcess:
        self._first_look = 0.0
        return super().stop()

    def send(self, number: signal.Signals) -> None:
        if self._finished is None:
            with suppress(*_ENDED):
                self._agent.signal(self._pid, number.name.removeprefix("SIG"))

    def printed(self) -> str:
        if self._finished is not None:
            return self._finished.stderr
        try:
            return self._agent.output(self._name)[1]
        except _ENDED:
            return ""  # `_look` handles it

    def _look(self) -> FinishedProcess | None:
        if self._finished is None:
            try:
                code = self._agent.exit_code(self._pid)
                if code is None:
                    return None
                out, err = self._agent.output(self._name)
            except _ENDED as error:
                code, out, err = _GONE, "", error.what
            self._finished = FinishedProcess(self.argv, code, out, err)
            self._agent.forget(self._name)
        return self._finished
