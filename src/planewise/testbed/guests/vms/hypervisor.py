"""A separate libvirt on a host, with Planewise's errors.

It is independent of the host's own, runs in process and mount namespaces of its own, and in the
network namespace of a host that is one. The kernel ends it and its virtual machines with the
program that started it, however that ends. libvirt-python is imported at the first use: users
without virtual machines do not need it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts.host import Host, HostProcess, ProcessTimeoutError

SETUP_REMEDY = "run `scripts/setup vms` in the source tree (as root)"

State = Literal["running", "paused"]

AGENT_TIMEOUT_S = 240
"""An emulated guest on a busy machine answers late, one that is emulated twice very late."""

START_LIMIT_S = 120.0
"""It starts in a fraction of a second; on an emulated or overloaded host in many."""

END_LIMIT_S = 30.0

_LISTENS = "pw-listens"
_POLL_S = 0.02

# libvirt finds QEMU's capabilities by starting it, and caches them between runs.
_CACHE = "/var/cache/planewise/libvirt"

# QEMU may run as root: its guests boot Planewise's own kernel and initramfs.
_QEMU_CONF = """\
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
"""

_LIBVIRTD_CONF = """\
unix_sock_dir = "DIRECTORY/sock"
auth_unix_rw = "none"
unix_sock_rw_perms = "0700"
log_outputs = "3:stderr"
"""

_OUTSIDE = """
set -e
export PATH="$PATH:/usr/sbin:/sbin"
command -v libvirtd >/dev/null || { echo "pw-missing libvirtd" >&2; exit 1; }
rm -rf "$1/sock" "$1/run"
mkdir -p "$1/sock" "$1/run" "$1/lib" "$1/log" "$1/etc" CACHE
printf '%s' "$3" >"$1/etc/qemu.conf"
printf '%s' "$4" >"$1/etc/libvirtd.conf"
exec unshare --pid --fork --mount --kill-child sh -c "$2" sh "$1"
"""

_INSIDE = """
set -e
mount -t proc proc /proc
# In a network namespace of its own it needs the sysfs of that; elsewhere the kernel refuses to
# mount a second time what is there.
mount -t sysfs sys /sys 2>/dev/null || [ -d /sys/class/net ]
# What is bound over must be there; that is all that is left of it on the host.
mkdir -p /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt /etc/libvirt
for mount in run:/run/libvirt lib:/var/lib/libvirt log:/var/log/libvirt etc:/etc/libvirt; do
    mount --bind "$1/${mount%%:*}" "${mount#*:}"
done
mount --bind CACHE /var/cache/libvirt
(until [ -S "$1/sock/libvirt-sock" ]; do sleep 0.02; done; echo LISTENS >&2) &
libvirtd --config "$1/etc/libvirtd.conf" --pid-file "$1/run/libvirtd.pid" &
# The shell is this process namespace's first process: it reaps every QEMU that ends, which libvirt
# waits for, and its end is that of all others.
trap 'exit 0' INT TERM
wait $!
"""


class GuestGoneError(PlanewiseError):
    """A virtual machine ended, or its agent no longer answers."""


class HypervisorGoneError(PlanewiseError):
    """libvirt no longer answers."""


class AgentSilentError(PlanewiseError):
    """The agent of a virtual machine does not answer (yet)."""


class Libvirt:
    """The libvirt of one host; leaving its `with` block ends it and its virtual machines.

    All its calls may come from any thread.

    Raises on entry:
        UnsupportedError: the host has no libvirt, this machine has no libvirt-python, or libvirt
            does not start.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._place = host.place
        self._process: HostProcess | None = None
        self._connection: Any = None

    @property
    def directory(self) -> str:
        """Directory of its files on the host."""
        return f"{self._host.directory}/libvirt"

    @property
    def socket(self) -> str:
        """Path of its socket on the host."""
        return f"{self.directory}/sock/libvirt-sock"

    @property
    def alive(self) -> bool:
        """Whether it still runs and answers."""
        if self._process is None or not self._process.running or self._connection is None:
            return False
        try:
            with self._sentences(""):
                self._connection.getLibVersion()
        except PlanewiseError:
            return False
        return True

    def __enter__(self) -> Libvirt:
        self._libvirt, self._qemu = libraries()
        try:
            self._start_daemon()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def restart(self) -> None:
        """Starts it again after it ended, with its virtual machines."""
        self.close()
        self.__enter__()

    def close(self) -> None:
        """Ends it. Idempotent."""
        if self._connection is not None:
            with suppress(self._libvirt.libvirtError):
                self._connection.close()
            self._connection = None
        if self._process is not None:
            # When its first process ends, the kernel ends all of a process namespace, and `unshare`
            # sees that end only when all are gone.
            self._process.interrupt()
            try:
                self._process.wait(END_LIMIT_S)
            except ProcessTimeoutError:
                self._process.kill()
                with suppress(ProcessTimeoutError):
                    self._process.wait(END_LIMIT_S)
            self._process = None

    def _start_daemon(self) -> None:
        inside = _INSIDE.replace("CACHE", _CACHE).replace("LISTENS", _LISTENS)
        conf = _LIBVIRTD_CONF.replace("DIRECTORY", self.directory)
        self._process = self._host.start(
            [
                *("sh", "-c", _OUTSIDE.replace("CACHE", _CACHE)),
                *("sh", self.directory, inside, _QEMU_CONF, conf),
            ]
        )
        try:
            self._process.wait_ready(_LISTENS, START_LIMIT_S)
        except PlanewiseError as error:
            if isinstance(error, ProcessTimeoutError):
                raise UnsupportedError(
                    f"libvirt on {self._place} does not start within {START_LIMIT_S:g} s",
                    remedy="stop other work on the machine, and try again",
                ) from error
            done = self._process.wait()
            if "pw-missing" in done.stderr:
                raise UnsupportedError(
                    f"there is no libvirtd on {self._place}, and virtual machines need it",
                    remedy=f"{SETUP_REMEDY}, or install libvirt's daemon and its QEMU driver there",
                ) from error
            raise UnsupportedError(
                f"libvirt on {self._place} does not start: {done.last_line}", remedy=SETUP_REMEDY
            ) from error
        address = f"qemu+unix:///system?socket={self._host.socket(self.socket)}"
        deadline = time.monotonic() + START_LIMIT_S
        while self._connection is None:
            try:
                with self._sentences(""):
                    self._connection = self._libvirt.open(address)
            except HypervisorGoneError:
                # The socket exists a moment before libvirt listens.
                if time.monotonic() > deadline or not self._process.running:
                    raise
                time.sleep(_POLL_S)

    def start(self, xml: str, name: str) -> None:
        """Starts a transient domain.

        Raises:
            PlanewiseError: libvirt refuses it, or QEMU does not start.
        """
        with self._sentences(name):
            self._connection.createXML(xml, 0)

    def save(self, name: str, path: str) -> None:
        """Saves a domain to a file of the host, which ends it.

        Raises:
            PlanewiseError: there is no room, or a device of it cannot be saved.
        """
        with self._sentences(name):
            self._domain(name).save(path)

    def restore(self, path: str, name: str) -> None:
        """Restores the domain `name` from a file of the host.

        Raises:
            PlanewiseError: libvirt or QEMU refuses it.
        """
        with self._sentences(name):
            self._connection.restore(path)

    def attach(self, name: str, xml: str) -> None:
        """Attaches a device to a running domain.

        Raises:
            PlanewiseError: libvirt or QEMU refuses it.
        """
        with self._sentences(name):
            self._domain(name).attachDevice(xml)

    def destroy(self, name: str) -> None:
        """Ends a domain at once; one that has ended is no error."""
        with suppress(GuestGoneError), self._sentences(name):
            self._domain(name).destroy()

    def suspend(self, name: str) -> None:
        """Stops a domain's CPUs; its memory and its NIC stay."""
        with self._sentences(name):
            self._domain(name).suspend()

    def resume(self, name: str) -> None:
        """Starts a suspended domain's CPUs."""
        with self._sentences(name):
            self._domain(name).resume()

    def states(self) -> Mapping[str, State]:
        """States of all active domains."""
        with self._sentences(""):
            state_of: dict[str, State] = {}
            for domain in self._connection.listAllDomains(
                self._libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
            ):
                with suppress(self._libvirt.libvirtError):  # it may have ended meanwhile
                    paused = domain.state()[0] == self._libvirt.VIR_DOMAIN_PAUSED
                    state_of[domain.name()] = "paused" if paused else "running"
            return state_of

    def agent(self, name: str, execute: str, arguments: Mapping[str, object] | None = None) -> Any:
        """The answer of the domain's guest agent to a command (qemu-ga-ref(7)).

        Raises:
            GuestGoneError: the domain ended.
            AgentSilentError: the agent does not answer, or is not there yet.
            PlanewiseError: the agent refuses the command.
        """
        command = json.dumps({"execute": execute, "arguments": dict(arguments or {})})
        with self._sentences(name):
            domain = self._domain(name)
            try:
                answer = self._qemu.qemuAgentCommand(domain, command, AGENT_TIMEOUT_S, 0)
            except self._libvirt.libvirtError as error:
                # Where the guest ends meanwhile, libvirt has no error code but these two: internal,
                # or that of the socket that QEMU closed.
                codes = (self._libvirt.VIR_ERR_INTERNAL_ERROR, self._libvirt.VIR_ERR_SYSTEM_ERROR)
                if error.get_error_code() in codes:
                    raise self._gone_error(name) from error
                raise
            return json.loads(answer)["return"]

    def _gone_error(self, name: str) -> GuestGoneError:
        return GuestGoneError(
            f"the virtual machine {name} on {self._place} ended",
            remedy="its console, or the kernel's log (`dmesg`), may say why",
        )

    def _domain(self, name: str) -> Any:
        return self._connection.lookupByName(name)

    @contextmanager
    def _sentences(self, name: str) -> Iterator[None]:
        """Translates libvirt's errors to Planewise's."""
        try:
            yield
        except self._libvirt.libvirtError as error:
            raise self._explain(error, name) from error

    def _explain(self, error: Any, name: str) -> PlanewiseError:
        codes, code = self._libvirt, error.get_error_code()
        message = str(error.get_error_message() or error).strip().rstrip(".")
        if (
            code in (codes.VIR_ERR_RPC, codes.VIR_ERR_NO_CONNECT, codes.VIR_ERR_INVALID_CONN)
            or error.get_error_domain() == codes.VIR_FROM_RPC
        ):
            return HypervisorGoneError(
                f"libvirt on {self._place} does not answer: {message}",
                remedy="was it ended? `planewise run --resume` continues the run",
            )
        not_running = code == codes.VIR_ERR_OPERATION_INVALID and "not running" in message
        if code == codes.VIR_ERR_NO_DOMAIN or not_running:
            return self._gone_error(name)
        if code in (
            codes.VIR_ERR_AGENT_UNRESPONSIVE,
            codes.VIR_ERR_AGENT_UNSYNCED,
            codes.VIR_ERR_AGENT_COMMAND_TIMEOUT,
        ):
            return AgentSilentError(
                f"the agent of the virtual machine {name} does not answer",
                remedy="is the machine overloaded? use fewer guests",
            )
        if code == codes.VIR_ERR_NO_SUPPORT or "KVM" in message:
            return UnsupportedError(f"libvirt on {self._place} cannot do it: {message}")
        return PlanewiseError(
            f"libvirt on {self._place} refuses {name or 'to answer'}: {message}",
            remedy="is there enough memory? `free -m` shows it",
        )


def libraries() -> tuple[Any, Any]:
    """The modules `libvirt` and `libvirt_qemu`.

    Raises:
        UnsupportedError: libvirt-python is not installed.
    """
    try:
        import libvirt
        import libvirt_qemu
    except ImportError as error:
        raise UnsupportedError(
            "the Python package libvirt-python is not installed, and virtual machines need it",
            remedy=SETUP_REMEDY,
        ) from error
    # Without this it writes every error on stderr, too.
    libvirt.registerErrorHandler(lambda *_: None, None)
    return libvirt, libvirt_qemu
