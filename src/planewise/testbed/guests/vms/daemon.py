"""A separate libvirt on a host, independent of the host's own.

It runs in process and mount namespaces of its own, and in the network namespace of a host that is
one. The kernel ends it and its virtual machines with the program that started it, however that
ends.
"""

from __future__ import annotations

import time
from contextlib import suppress

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.guests.vms.hypervisor import SETUP_REMEDY, Hypervisor, HypervisorGoneError
from planewise.testbed.hosts.host import Host, HostProcess, ProcessTimeoutError

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


class Libvirt:
    """The libvirt of one host; leaving its `with` block ends it and its virtual machines.

    Raises on entry:
        UnsupportedError: the host has no libvirt, or it does not start.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._process: HostProcess | None = None
        self._hypervisor: Hypervisor | None = None

    @property
    def directory(self) -> str:
        """Directory of its files on the host."""
        return f"{self._host.directory}/libvirt"

    @property
    def socket(self) -> str:
        """Path of its socket on the host."""
        return f"{self.directory}/sock/libvirt-sock"

    @property
    def hypervisor(self) -> Hypervisor:
        """The connection to it; only inside the `with` block."""
        if self._hypervisor is None:
            raise RuntimeError("libvirt is not started: use it in a with block")
        return self._hypervisor

    @property
    def alive(self) -> bool:
        """Whether it still runs and answers."""
        return (
            self._process is not None
            and self._process.running
            and self._hypervisor is not None
            and self._hypervisor.alive
        )

    def __enter__(self) -> Libvirt:
        try:
            self._start()
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
        if self._hypervisor is not None:
            self._hypervisor.close()
            self._hypervisor = None
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

    def _start(self) -> None:
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
                    f"libvirt on {self._host.place} does not start within {START_LIMIT_S:g} s",
                    remedy="stop other work on the machine, and try again",
                ) from error
            message = self._process.wait().stderr
            if "pw-missing" in message:
                raise UnsupportedError(
                    f"there is no libvirtd on {self._host.place}, and virtual machines need it",
                    remedy=f"{SETUP_REMEDY}, or install libvirt's daemon and its QEMU driver there",
                ) from error
            words = message.strip().splitlines()
            raise UnsupportedError(
                f"libvirt on {self._host.place} does not start: "
                f"{words[-1] if words else 'it printed nothing'}",
                remedy=SETUP_REMEDY,
            ) from error
        socket = self._host.socket(self.socket)
        deadline = time.monotonic() + START_LIMIT_S
        while self._hypervisor is None:
            try:
                self._hypervisor = Hypervisor(socket, self._host.place)
            except HypervisorGoneError:
                # The socket exists a moment before libvirt listens.
                if time.monotonic() > deadline or not self._process.running:
                    raise
                time.sleep(_POLL_S)
