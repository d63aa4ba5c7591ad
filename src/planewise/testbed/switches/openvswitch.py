"""A separate Open vSwitch on a host: a database and a daemon, without bridges.

Both use one scratch directory, end with planewise however that ends, and are independent of the
machine's own Open vSwitch.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Self

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts.host import FinishedProcess, Host, HostProcess

SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"

_START_S = 120.0
"""It starts in two seconds; on an overloaded machine in many."""
COMMAND_S = 60.0
_POLL_S = 0.02
_DATAPATH = "ovs-netdev"
"""Interface of a datapath in user space. All Open vSwitches of a network namespace share it, and it
outlives one that is killed."""

REMOVE_DATAPATH = (
    "code=0; pgrep '^ovs-vswitchd' >/dev/null || code=$?; [ $code -ne 1 ] || "
    f"! [ -e /sys/class/net/{_DATAPATH} ] || ip link delete {_DATAPATH}"
)
"""Shell: removes the interface of a datapath in user space, unless an Open vSwitch runs."""
_FOLDERS = ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR", "RUNTIME_DIRECTORY")


def has_datapath(host: Host) -> bool:
    """Whether there is the interface of a datapath in user space."""
    return not host.run(["test", "-e", f"/sys/class/net/{_DATAPATH}"]).exit_code


def vsctl(directory: str, *arguments: str) -> tuple[str, ...]:
    """The command that changes the database in `directory`, and waits for the daemon. Pure."""
    return ("ovs-vsctl", f"--db=unix:{directory}/db.sock", "--timeout=60", *arguments)


def appctl(directory: str, *arguments: str) -> tuple[str, ...]:
    """The command that asks the daemon of `directory`. Pure."""
    return ("ovs-appctl", f"--target={directory}/switch.ctl", *arguments)


class OpenVswitch:
    """A running switch without bridges; `close` ends it.

    Raises:
        UnsupportedError: it is not installed, or does not start.
    """

    remedy = "install openvswitch-switch"

    def __init__(
        self,
        host: Host,
        directory: str,
        settings: Mapping[str, str] | None = None,
        program: str = "ovs-vswitchd",
    ) -> None:
        """`directory` must exist; `settings` are other_config of the whole switch."""
        self._host = host
        self._directory = directory
        self._processes: list[HostProcess] = []
        # An existing one belongs to another switch.
        self._had_datapath = has_datapath(host)
        try:
            self._start(program, settings or {})
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the daemon."""
        return self._processes[-1].pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return bool(self._processes) and all(process.running for process in self._processes)

    def _start(self, program: str, settings: Mapping[str, str]) -> None:
        directory = self._directory
        self._run("ovsdb-tool", "create", f"{directory}/conf.db", SCHEMA).check()
        self._daemon(
            "Open vSwitch's database",
            f"{directory}/db.sock",
            "ovsdb-server",
            f"{directory}/conf.db",
            f"--remote=punix:{directory}/db.sock",
            f"--unixctl={directory}/db.ctl",
            f"--log-file={directory}/db.log",
        )
        options = [f'other_config:{key}="{value}"' for key, value in settings.items()]
        change = ("--", "set", "Open_vSwitch", ".", *options) if options else ()
        self.configure("--no-wait", "init", *change)
        self._daemon(
            "Open vSwitch",
            f"{directory}/switch.ctl",
            program,
            f"unix:{directory}/db.sock",
            f"--unixctl={directory}/switch.ctl",
            f"--log-file={directory}/switch.log",
        )

    def configure(self, *arguments: str) -> FinishedProcess:
        """Runs ovs-vsctl on its database, and waits until the switch has followed.

        Raises:
            PlanewiseError: it failed.
        """
        finished = self._run(*vsctl(self._directory, *arguments)).check()
        if "Error detected" in finished.stderr:
            raise PlanewiseError(
                f"Open vSwitch could not perform a command: {self.last_words()}",
                remedy="is there enough free memory, and are there enough huge pages?",
            )
        return finished

    def last_words(self) -> str:
        """The last error in its log."""
        lines: list[str] = []
        with suppress(PlanewiseError):
            lines = self._host.read_text(f"{self._directory}/switch.log").splitlines()
        errors = [line.split("|", 4)[-1] for line in lines if "|ERR|" in line or "|EMER|" in line]
        return errors[-1] if errors else "it printed nothing"

    def _run(self, *argv: str, stdin: bytes | None = None) -> FinishedProcess:
        return self._host.run(self._environment(*argv), timeout_s=COMMAND_S, stdin=stdin)

    def _environment(self, *argv: str) -> list[str]:
        folders = [f"{name}={self._directory}" for name in _FOLDERS]
        return ["env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", *folders, *argv]

    def _daemon(self, name: str, socket: str, *argv: str) -> None:
        """Starts a daemon, and returns once its socket exists."""
        process = self._host.start(self._environment(*argv))
        self._processes.append(process)
        deadline = time.monotonic() + _START_S
        while self._host.run(["test", "-e", socket]).exit_code:
            if not process.running:
                raise UnsupportedError(
                    f"{name} ended as soon as it was started: {self.last_words()}",
                    remedy=self.remedy,
                )
            if time.monotonic() > deadline:
                raise UnsupportedError(
                    f"{name} does not start within {_START_S:g} s",
                    remedy="stop other work on the machine, and try again",
                )
            time.sleep(_POLL_S)

    def close(self) -> None:
        """Ends it. Idempotent."""
        if self.alive:
            # Interfaces of a datapath in user space are persistent: only --cleanup removes them.
            with suppress(PlanewiseError):
                self._run(*appctl(self._directory, "exit", "--cleanup"))
            if not self._had_datapath:
                self._run("ip", "link", "delete", _DATAPATH)
        for process in reversed(self._processes):
            process.interrupt()
        for process in reversed(self._processes):
            process.stop()
        self._processes.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
