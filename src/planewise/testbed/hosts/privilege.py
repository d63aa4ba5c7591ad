"""The privilege to make namespaces: root has it, a plain user gets it inside a user namespace.

`ensure` returns only with the privilege. For a plain user it forks: the child continues, as root of
its own namespaces (user, mount, network, process ids) with an empty /run; the parent forwards
signals to it, and its exit code. No process or mount inside survives the child.

`python -m planewise.testbed.hosts.privilege COMMAND…` runs any command that way.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.testbed.hosts.netns import (
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    MS_BIND,
    MS_PRIVATE,
    MS_REC,
    die_with_parent,
    mount,
    unshare,
)
from planewise.testbed.hosts.signals import raise_on_signals

_CAP_NET_ADMIN, _CAP_NET_RAW, _CAP_SYS_ADMIN = 12, 13, 21
_NEEDED = 1 << _CAP_NET_ADMIN | 1 << _CAP_NET_RAW | 1 << _CAP_SYS_ADMIN
_PASSED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGTSTP,
    signal.SIGCONT,
)
_SI_KERNEL = 0x80
_NS_GET_USERNS = 0xB701
"""ioctl_ns(2)."""

_WITHOUT_PROC = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWNET
_ALL_FLAGS = _WITHOUT_PROC | CLONE_NEWPID
"""With process ids of its own, the kernel ends everything inside when the first process ends."""


def has_privilege() -> bool:
    """Whether this process may make network namespaces and name them below /run."""
    status = Path("/proc/self/status").read_text()
    return capable(status) and _may_mount() and os.access("/run", os.W_OK)


def capable(status: str) -> bool:
    """Whether a /proc/PID/status has the capabilities that a testbed needs. Pure."""
    for line in status.splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16) & _NEEDED == _NEEDED
    return False


def ensure() -> None:
    """Returns with the privilege to make namespaces, if need be inside a user namespace.

    To be called before threads start (numpy and polars start some): else the command line is
    executed once more.

    Raises:
        UnsupportedError: neither root nor allowed to make user namespaces.
    """
    if os.getpid() == 1:
        # The first process of a namespace ignores signals that it does not handle.
        raise_on_signals()
    if has_privilege():
        return
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208 - only how many
        os.execv(sys.executable, [sys.executable, "-m", __spec__.name, *sys.orig_argv])
    flags = _possible_flags()
    if flags == 0:
        raise explain_refusal(Path("/"))
    _enter(flags)


def explain_refusal(root: Path) -> UnsupportedError:
    """Why user namespaces are refused, from the settings below `root`/proc/sys."""

    def setting(key: str) -> str:
        try:
            return (root / "proc/sys" / key).read_text().strip()
        except OSError:
            return ""

    needs = "a testbed needs the rights of root (CAP_SYS_ADMIN) or a user namespace, and"
    if setting("user/max_user_namespaces") == "0":
        return UnsupportedError(
            f"{needs} this machine allows none (user.max_user_namespaces is 0)",
            remedy="run with sudo, or: sudo sysctl -w user.max_user_namespaces=10000",
        )
    if setting("kernel/unprivileged_userns_clone") == "0":
        return UnsupportedError(
            f"{needs} this machine keeps them for root (kernel.unprivileged_userns_clone is 0)",
            remedy="run with sudo, or: sudo sysctl -w kernel.unprivileged_userns_clone=1",
        )
    if setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return UnsupportedError(
            f"{needs} AppArmor takes its privileges away here, as Ubuntu does since 24.04 "
            "(kernel.apparmor_restrict_unprivileged_userns is 1)",
            remedy="run with sudo, or: "
            "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        )
    return UnsupportedError(
        f"{needs} both are refused here, as in a container",
        remedy="start the container with --privileged; elsewhere run as root",
    )


def _may_mount() -> bool:
    """Whether this user namespace owns the mount namespace: `unshare -Ur` alone gives capabilities,
    but none over mounts from before."""
    namespaces = Path("/proc/self/ns")
    with (
        (namespaces / "mnt").open("rb") as mounts,
        (namespaces / "user").open("rb") as user_namespace,
    ):
        try:
            owner = fcntl.ioctl(mounts.fileno(), _NS_GET_USERNS)
        except OSError:
            return False  # the owner is a namespace above this one
        try:
            return os.path.sameopenfile(owner, user_namespace.fileno())
        finally:
            os.close(owner)


def _possible_flags() -> int:
    """The largest set of namespaces that this machine gives, by trial in a child; 0: none."""
    for flags in (_ALL_FLAGS, _WITHOUT_PROC):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                _become_root(flags)
                # Mounting /proc needs a process inside the new process ids.
                inner = os.fork()
                if inner == 0:
                    _set_up_mounts(flags, os.getuid())
                    code = 0
                else:
                    code = os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1])
            finally:
                os._exit(code)  # whatever was raised: a forked child must not return
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            return flags
    return 0


def _enter(flags: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    user = os.getuid()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED, signal.SIGCHLD})
    try:
        _become_root(flags)
        alive, keep = os.pipe()
        child = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise UnsupportedError(
            f"a user namespace could not be made: {error.strerror}", remedy="run as root"
        ) from error
    if child:
        _supervise(child)
    os.close(keep)
    os.set_blocking(alive, False)
    die_with_parent()
    with suppress(BlockingIOError):
        if os.read(alive, 1) == b"":  # the parent died before `die_with_parent`
            os._exit(1)
    os.close(alive)
    _set_up_mounts(flags, user)
    raise_on_signals()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _become_root(flags: int) -> None:
    user, group = os.getuid(), os.getgid()
    unshare(flags)
    with suppress(FileNotFoundError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")


def _set_up_mounts(flags: int, user: int) -> None:
    mount("", "/", "none", MS_REC | MS_PRIVATE)
    if flags & CLONE_NEWPID:
        mount("proc", "/proc", "proc", 0)
    # The user's own runtime directory stays: results may go there.
    directory = Path(f"/run/user/{user}")
    descriptor = -1
    with suppress(OSError):
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    mount("planewise", "/run", "tmpfs", 0, "mode=755")
    if descriptor >= 0:
        with suppress(OSError):
            directory.mkdir(parents=True)
            mount(f"/proc/self/fd/{descriptor}", str(directory), "none", MS_BIND | MS_REC)
        os.close(descriptor)


def _supervise(child: int) -> NoReturn:
    """Forwards signals to `child`, and ends with its exit code."""
    while True:
        info = signal.sigwaitinfo({*_PASSED, signal.SIGCHLD})
        if info.si_signo != signal.SIGCHLD:
            # What the terminal sends (Ctrl-C) has reached the child already.
            if info.si_code != _SI_KERNEL:
                with suppress(ProcessLookupError):
                    os.kill(child, info.si_signo)
            if info.si_signo == signal.SIGTSTP:
                # The shell wants its terminal back; the child pauses when it can.
                os.kill(os.getpid(), signal.SIGSTOP)
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def main() -> None:
    """Runs the command line's command with the privilege to make namespaces."""
    argv = sys.argv[1:]
    try:
        if not argv:
            raise BadInputError(
                "no command", remedy="python -m planewise.testbed.hosts.privilege ls -l"
            )
        ensure()
        try:
            os.execvp(argv[0], argv)
        except OSError as error:
            raise BadInputError(f"{argv[0]} cannot be run: {error.strerror}") from error
    except PlanewiseError as error:
        print(f"error: {error.what}", file=sys.stderr)
        if error.remedy:
            print(f"hint: {error.remedy}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
