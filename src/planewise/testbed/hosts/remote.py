"""Hosts reached by the program ssh: real servers, and those of a lab."""

from __future__ import annotations

import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from planewise import lab
from planewise.errors import BadInputError, PlanewiseError
from planewise.testbed.hosts.host import FinishedProcess, HostProcess
from planewise.testbed.hosts.kubernetes import KubernetesHost, parse_node
from planewise.testbed.hosts.remote_host import CONNECT_TIMEOUT_S, RemoteHost
from planewise.testbed.hosts.scratch import scratch

_KEEPALIVE_S = 15
_LAB_KEEPALIVE_S = 60
"""An emulated host stands still for longer on a busy machine; its QEMU's end closes the
connection."""
_LOGIN_S = 2 * CONNECT_TIMEOUT_S
_POLL_S = 0.01

# Before those of the user's configuration; ControlMaster=no, as a command must not become the
# connection of others when ours is lost.
_OPTIONS = (
    *("-T", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR"),
    *("-o", "RemoteCommand=none", "-o", "ControlMaster=no"),
)


def check_ssh(text: str) -> None:
    """Does nothing where `text` is `ssh://[user@]server[:port]`. Pure.

    Raises:
        BadInputError: it is something else.
    """
    remedy = "ssh://server, ssh://user@server:port, lab:a or lab:b, k8s://node"
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise BadInputError(f"`{text}` is not a host: {error}", remedy=remedy) from error
    if parts.scheme != "ssh" or not parts.hostname or parts.path.strip("/") or parts.password:
        raise BadInputError(f"`{text}` is not a host", remedy=remedy)


def parse_lab(text: str) -> tuple[str, lab.HostId]:
    """`lab:a`, or `lab:NAME/a`, as the lab's name and the host. Pure.

    Raises:
        BadInputError: it is none.
    """
    match = re.fullmatch(r"lab:(?:(?P<name>[a-z0-9][a-z0-9-]*)/)?(?P<host>[ab])", text)
    if match is None:
        raise BadInputError(
            f"`{text}` is not a host of a lab", remedy="lab:a and lab:b, or lab:NAME/a"
        )
    return match["name"] or "default", "a" if match["host"] == "a" else "b"


def check_host(text: str) -> None:
    """Raises BadInputError where `text` names no host (`ssh://…`, `lab:…`, `k8s://…`). Pure."""
    if text.startswith("lab:"):
        parse_lab(text)
    elif text.startswith("k8s:"):
        parse_node(text)
    else:
        check_ssh(text)


def open_host(text: str, name: str) -> RemoteHost:
    """The host that `text` names (`ssh://…`, `lab:…`, `k8s://…`), connected, in the role `name`.

    Raises:
        BadInputError: it names no host.
        PlanewiseError: it cannot be reached, or the lab is not up.
    """
    if text.startswith("lab:"):
        return LabHost(*parse_lab(text), name=name)
    if text.startswith("k8s:"):
        return KubernetesHost(name, parse_node(text))
    check_ssh(text)
    return SshHost(name, text)


class SshHost(RemoteHost):
    """A machine reached by ssh; connected when made.

    One ssh has the connection, and those of the commands share it (ControlMaster, ssh_config(5)).

    Raises when made:
        UnsupportedError: there is no ssh on this machine.
        PlanewiseError: it cannot be reached, or it does not let us in.
    """

    remedy = "check with `ssh` that the server can be reached without a prompt"
    keepalive_s = _KEEPALIVE_S

    def __init__(self, name: str, place: str, destination: Sequence[str] = ()) -> None:
        """`destination` are ssh's options and its name for the host; empty: `place` is."""
        self._destination = tuple(destination) or (place,)
        self._control = ""
        self._master: HostProcess
        self._sockets: dict[str, str] = {}
        super().__init__(name, place)

    def socket(self, path: str) -> str:
        """See `Host.socket`: forwarded over the connection, gone with it."""
        if path not in self._sockets:
            local = str(self._opened.enter_context(scratch()) / "socket")
            self.forward("-L", f"{local}:{path}")
            self._sockets[path] = local
        return self._sockets[path]

    def forward(self, option: Literal["-L", "-R"], ends: str) -> None:
        """Forwards a port or socket over the connection, as this option of ssh does.

        Raises:
            PlanewiseError: the server refuses.
        """
        words = ("-S", self._control, "-O", "forward", option, ends)
        done = self.desk.run(("ssh", *words, *self._destination))
        if done.exit_code != 0:
            raise PlanewiseError(
                f"{ends} cannot be forwarded by {self.place}: {done.last_line}",
                remedy="allow AllowTcpForwarding and AllowStreamLocalForwarding in its sshd_config",
            )

    def stream(self, command: str) -> int:
        """Runs a shell command with this program's stdin, stdout and stderr; gives its exit code.

        Ctrl-C goes to the command.

        Raises:
            PlanewiseError: the connection was lost.
        """
        # Background processes of a command that has ended stay, as with ssh. The shell reports
        # the exit code, which ssh would not do for a command that a signal ended.
        group = f"{self.directory}/group"
        kept = f"echo $$ >{group}; trap : INT TERM; ({command}); code=$?; rm -f {group}; exit $code"
        ssh = self._ssh(f"exec {shlex.join(['sh', '-c', kept])}", control="none")
        # ssh shares the terminal's Ctrl-C with this program, which passes it on.
        ignoring = ("sh", "-c", "trap '' INT; exec \"$@\"", "sh", "setpriv", "--pdeathsig", "KILL")
        process = subprocess.Popen([*ignoring, *ssh])
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:
                self.run(["sh", "-c", 'kill -s INT -- "-$(cat "$1")"', "sh", group])
        if code == 255 and self._master.ended:
            raise PlanewiseError(
                f"the connection to {self.place} was lost while the command ran",
                remedy=self.remedy,
            )
        return code

    def _ssh(self, *command: str, control: str = "") -> tuple[str, ...]:
        options = (*_OPTIONS, "-S", control or self._control)
        return ("ssh", *options, *self._destination, *command)

    def _entering(self, command: str) -> Sequence[str]:
        return self._ssh(command)

    def _connect(self, opened: ExitStack) -> None:
        self._control = str(opened.enter_context(scratch()) / "ssh")
        options = {
            "ControlMaster": "yes",
            "ControlPersist": "no",
            "ConnectTimeout": f"{CONNECT_TIMEOUT_S:.0f}",
            "ServerAliveInterval": self.keepalive_s,
            "ClearAllForwardings": "yes",
        }
        words = [word for key, value in options.items() for word in ("-o", f"{key}={value}")]
        self._master = self.desk.start((*self._ssh()[:1], *words, "-N", *self._ssh()[1:]))
        deadline = time.monotonic() + _LOGIN_S
        while not Path(self._control).exists():
            if self._master.ended:
                raise self._explain(self._master.wait())
            if time.monotonic() > deadline:
                raise PlanewiseError(
                    f"{self.place} does not answer by ssh within {_LOGIN_S:g} s", remedy=self.remedy
                )
            time.sleep(_POLL_S)

    def _explain(self, done: FinishedProcess) -> PlanewiseError:
        """Why ssh did not connect, by its last words."""
        last = done.last_line.rstrip(".")
        if "Permission denied" in last:
            return PlanewiseError(
                f"{self.place} refuses us by ssh: {last.partition(': ')[2]}",
                remedy="put your public key into the server's authorized_keys, or name the user: "
                "ssh://user@server",
            )
        if "HOST IDENTIFICATION HAS CHANGED" in done.stderr:
            return PlanewiseError(
                f"the host key of {self.place} has changed",
                remedy="`ssh` says where the old one is; remove it if the change is expected",
            )
        if "Host key verification failed" in last:
            return PlanewiseError(
                f"the host key of {self.place} is not known",
                remedy=f"log in once with `ssh {self._destination[-1]}`, which asks about it",
            )
        if last.startswith("ssh: "):
            reason = last.rpartition(": ")[2]
            return PlanewiseError(
                f"{self.place} cannot be reached by ssh: {reason}", remedy=self.remedy
            )
        return PlanewiseError(f"ssh to {self.place} failed: {last}", remedy=self.remedy)


class LabHost(SshHost):
    """A host of a lab: an ssh host whose address and key are known. Holds the lab while open.

    Raises when made:
        PlanewiseError: the lab is not up, or the host does not run.
    """

    remedy = "`planewise lab status` shows the state of the host"
    keepalive_s = _LAB_KEEPALIVE_S

    def __init__(self, lab_name: str, host: lab.HostId, *, name: str) -> None:
        with ExitStack() as lab_use:
            status = lab_use.enter_context(lab.using(lab_name))
            text = f"lab:{host}" if lab_name == "default" else f"lab:{lab_name}/{host}"
            super().__init__(name, text, ("-F", str(status.directory / "ssh_config"), host))
            self._lab_use = lab_use.pop_all()

    def program(self, local: str) -> str:
        """See `SshHost.program`: it is there, as a lab's hosts see this machine's files."""
        local_stat = Path(local).stat()
        remote_stat = self.run(["stat", "--format=%s %Y", "--", local])
        if remote_stat.stdout.split() == [str(local_stat.st_size), str(int(local_stat.st_mtime))]:
            return local
        return super().program(local)  # made after the host had looked there

    def close(self) -> None:
        """See `SshHost.close`; releases the lab."""
        super().close()
        self._lab_use.close()
