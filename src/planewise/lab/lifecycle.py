"""Brings labs up and down, and finds abandoned ones. Only this file starts and ends hosts."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Protocol

from planewise.boot import accelerator, kernel, packages, process, tools
from planewise.boot import qemu as boot_qemu
from planewise.boot.process import ProcessInfo
from planewise.errors import BadInputError, PlanewiseError, StorageError, UnsupportedError
from planewise.lab import checks, initramfs, qemu, state
from planewise.lab.model import HOSTS, PREFIX, LabPaths, LabPlatform, LabSpec, process_name
from planewise.lab.state import HostRecord, LabRecord
from planewise.lab.watch import HostStatus, LabStatus, processes_of, read_host, read_lab, refusal

BOOT_LIMIT_S = 120.0
"""Longest boot; under TCG on two cores a boot takes a tenth of it."""

_POLL_S = 0.1
_SLOW_S = 60.0
_PATIENCE_S = 30.0
"""Longest wait for sshd. On a slow host it works for seconds on each connection: shorter waits
would repeat connections faster than it can answer."""

_FORK_S = 0.3
_ROUNDS = 5
_BOOT_S = 20.0
"""Of two emulated hosts on two idle CPUs."""
_FETCH_S = 60.0
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BootProgress(Protocol):
    """Receives the progress of a boot."""

    def begin(self, what: str, total_s: float) -> None:
        """Begins a part that takes about `total_s`."""

    def step(self, what: str, done_s: float) -> None:
        """Begins the step `what`; `done_s` of the estimate are done."""


@dataclass(frozen=True)
class AbandonedLab:
    """A lab that nobody uses."""

    name: str
    processes: tuple[int, ...]
    """Ids of its QEMU processes."""
    directory: str
    """Its state directory; empty where that was removed."""
    what: str
    started: str


def prepare(progress: BootProgress) -> LabPlatform:
    """QEMU, kernel and programs of this machine for a lab; fetches missing ones into the cache.

    Raises:
        UnsupportedError: something is missing and cannot be fetched.
        StorageError: the cache has no room.
    """
    program, version = boot_qemu.find()
    cache = packages.cache_directory()
    with _storage_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        if kernel.needs_download(cache):
            progress.begin("fetching a kernel, once", _FETCH_S)
        found, programs = kernel.find(cache), tools.find(cache)
        accelerated = accelerator.find(program, version, found, programs.busybox, cache)
        base = cache / initramfs.base_name(found, programs.busybox)
        if not base.is_file():
            for old in cache.glob("base-*.initrd"):
                old.unlink(missing_ok=True)
            scratch = cache / f".unpack-{os.getpid()}.initrd"
            scratch.write_bytes(initramfs.base(found, programs.busybox))
            scratch.rename(base)
    kernel_layers = (found.image.parent.parent.name,) if found.origin == "package" else ()
    layers = (*programs.layers, *kernel_layers)
    return LabPlatform(program, version, found, accelerated, cache, base, layers, kernel_layers)


def plan(spec: LabSpec) -> tuple[tuple[str, ...], ...]:
    """The command lines that `up` would run; fetches and changes nothing.

    Raises:
        UnsupportedError: QEMU is missing, or too old, or there is no kernel.
    """
    program, version = boot_qemu.find()
    cache = packages.cache_directory()
    lab_kernel = kernel.expected(cache)
    accelerated = accelerator.recall(program, version, lab_kernel, cache)
    platform = LabPlatform(program, version, lab_kernel, accelerated, cache, cache / "base.initrd")
    paths = state.paths(spec.name)
    return tuple(
        tuple(qemu.command_line(platform, spec, paths, host, port))
        for host, port in zip(HOSTS, _free_ports(len(HOSTS)), strict=True)
    )


def up(spec: LabSpec, progress: BootProgress, boot_limit_s: float = BOOT_LIMIT_S) -> LabStatus:
    """The running lab of this name, started where it is not up.

    A lab with a dead or hung host is restarted; a lab that hangs while it boots is restarted once.

    Raises:
        BadInputError: a lab of this name is up with other values.
        UnsupportedError: this machine cannot have a lab.
        PlanewiseError: a host did not come up; the error has the end of its log.
    """
    paths = state.paths(spec.name)
    running = _running_lab(spec, paths, boot_limit_s)
    if running is not None:
        return running
    checks.memory(spec)
    checks.root(spec)
    platform = prepare(progress)
    checks.modules(spec, platform)
    state.make_directory(paths)
    with _signals_as_exceptions(), state.lock(paths, exclusive=True, wait_s=2.0) as locked:
        if not locked:
            raise PlanewiseError(
                f"the lab `{spec.name}` is being used or started by another planewise",
                remedy="wait for that, or choose another --name",
            )
        try:
            try:
                record = _boot(spec, paths, platform, boot_limit_s, progress)
            except _HangError:
                # On a busy machine an emulated CPU may lose its timer; a second boot rarely does.
                record = _boot(spec, paths, platform, boot_limit_s, progress)
        except BaseException:
            _end_hosts(spec.name, paths)
            _remove(paths)
            raise
        return read_lab(state.read(paths) or record, paths)


def status(name: str) -> LabStatus | None:
    """Status of the lab of this name, or None where there is none."""
    paths = state.paths(name)
    record = state.read(paths)
    return read_lab(record, paths) if record is not None else None


def statuses() -> tuple[LabStatus, ...]:
    """Status of all labs of this user."""
    labs = [status(name) for name in state.names()]
    return tuple(lab_status for lab_status in labs if lab_status is not None)


def down(name: str) -> bool:
    """Takes a lab down, also a used one; returns whether there was one.

    Raises:
        PlanewiseError: another planewise is starting it, or something cannot be removed.
    """
    paths = state.paths(name)
    with state.lock(paths, exclusive=False, wait_s=1.0) as locked:
        if not locked and paths.directory.is_dir():
            raise PlanewiseError(
                f"the lab `{name}` is being started or taken down by another planewise",
                remedy="wait for that, or stop it",
            )
        ended = _end_hosts(name, paths)
        exists = paths.directory.is_dir()
        _remove(paths)
    return bool(ended) or exists


@contextmanager
def using(name: str) -> Iterator[LabStatus]:
    """Locks a lab for the block, so that `planewise clean` leaves it alone.

    Raises:
        PlanewiseError: the lab is not up, or a host does not run.
    """
    paths = state.paths(name)
    with state.lock(paths, exclusive=False, wait_s=BOOT_LIMIT_S) as locked:
        lab = status(name) if locked else None
        if lab is None:
            flag = "" if name == "default" else f" --name {name}"
            raise PlanewiseError(
                f"there is no lab `{name}`",
                remedy=f"start it with `planewise lab up{flag}`",
            )
        for host in lab.hosts:
            if host.finding.state in ("dead", "hung"):
                raise _host_error(name, host)
        yield lab


def leftovers(*, remove: bool = False) -> tuple[AbandonedLab, ...]:
    """Labs that no planewise process uses, and QEMU processes of labs without a directory; removed
    when asked.

    Raises:
        PlanewiseError: something cannot be removed.
    """
    abandoned = []
    for name in state.names():
        paths = state.paths(name)
        # The child of a program that was killed while it started a host holds the lock briefly.
        with state.lock(paths, exclusive=True, wait_s=_FORK_S) as locked:
            if locked:
                abandoned.append(_leftover(name, paths))
                if remove:
                    _end_hosts(name, paths)
                    _remove(paths)
    orphans = _orphans()
    if remove:
        for orphan in orphans:
            _end_hosts(orphan.name, state.paths(orphan.name))
        packages.remove_scratch(packages.cache_directory())
    return (*abandoned, *orphans)


def _running_lab(spec: LabSpec, paths: LabPaths, boot_limit_s: float) -> LabStatus | None:
    if not paths.directory.is_dir():
        return None
    # Another planewise may be starting it: the lab is up when the lock is free.
    with state.lock(paths, exclusive=False, wait_s=boot_limit_s) as locked:
        lab_status = status(spec.name) if locked else None
    if lab_status is None or lab_status.state != "running":
        return None
    if lab_status.record.spec != spec:
        record = lab_status.record
        raise BadInputError(
            f"the lab `{spec.name}` is up with --pfs {record.pfs} --memory {record.memory_mib} "
            f"--cpus {record.cpus} --root {record.root}",
            where="planewise lab up",
            remedy="take it down first (`planewise lab down`), or choose another --name",
        )
    return lab_status


def _write_files(
    spec: LabSpec, paths: LabPaths, platform: LabPlatform, boot_limit_s: float
) -> LabRecord:
    user_key = _key_pair(f"{PREFIX}{spec.name}")
    host_keys = {host: _key_pair(host) for host in HOSTS}
    ports = dict(zip(HOSTS, _free_ports(len(HOSTS)), strict=True))
    record = LabRecord(
        name=spec.name,
        pfs=spec.pfs,
        memory_mib=spec.memory_mib,
        cpus=spec.cpus,
        root=spec.root,
        accelerator=platform.accelerator.name,
        accelerator_reason=platform.accelerator.reason,
        kernel=platform.kernel.version,
        qemu=".".join(map(str, platform.qemu_version)),
        created_s=time.time(),
        boot_limit_s=boot_limit_s,
        hosts={
            host: HostRecord(port=ports[host], host_key=host_keys[host][1].decode().rstrip())
            for host in HOSTS
        },
    )
    with _storage_errors(paths.directory):
        base = platform.base_initrd.read_bytes()
        paths.key.touch(mode=0o600)
        paths.key.write_bytes(user_key[0])
        for host in HOSTS:
            personal = initramfs.personal(
                host,
                platform.layers if spec.root == "/" else platform.kernel_layers,
                host_keys[host][0],
                user_key[1],
                path_inside() if spec.root == "/" else _SYSTEM_PATH,
                Path("/etc/passwd").read_text(),
                Path("/etc/group").read_text(),
                systemd=spec.root != "/",
            )
            file = paths.host(host).initrd
            file.touch(mode=0o600)
            file.write_bytes(base + personal)
        _write_ssh_files(record, paths)
    state.write(paths, record)
    return record


def _write_ssh_files(record: LabRecord, paths: LabPaths) -> None:
    known_hosts, config = [], []
    for host, host_record in record.hosts.items():
        alias = process_name(record.name, host)
        known_hosts.append(f"{alias} {host_record.host_key}\n")
        config.append(
            f"Host {host} {alias}\n"
            f"    HostName 127.0.0.1\n    Port {host_record.port}\n    User root\n"
            f"    HostKeyAlias {alias}\n    IdentityFile {paths.key}\n    IdentitiesOnly yes\n"
            f"    UserKnownHostsFile {paths.known_hosts}\n    StrictHostKeyChecking yes\n"
        )
    paths.known_hosts.write_text("".join(known_hosts))
    paths.ssh_config.write_text("".join(config))


def path_inside() -> str:
    """PATH of commands on the hosts: the system's, and the directory of planewise and pw-probe."""
    return f"{Path(sys.executable).parent}:{_SYSTEM_PATH}"


class _HangError(PlanewiseError):
    """A host hung while it booted."""


def _boot(
    spec: LabSpec,
    paths: LabPaths,
    platform: LabPlatform,
    boot_limit_s: float,
    progress: BootProgress,
) -> LabRecord:
    """Ends remaining processes of the lab, starts its hosts and waits until they run."""
    _end_hosts(spec.name, paths)
    _empty(paths)
    record = _write_files(spec, paths, platform, boot_limit_s)
    _start(record, paths, platform)
    _wait_until_running(record, paths, progress)
    return record


def _start(record: LabRecord, paths: LabPaths, platform: LabPlatform) -> None:
    for host in HOSTS:
        port = record.hosts[host].port
        if message := _launch(qemu.command_line(platform, record.spec, paths, host, port)):
            raise refusal(message, record.spec, port)


def _launch(argv: Sequence[str]) -> str:
    """Starts a host; returns QEMU's error output, empty when the host runs."""
    result = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if result.returncode == 0:
        return ""
    return result.stderr.strip() or f"exit code {result.returncode}"


def _wait_until_running(record: LabRecord, paths: LabPaths, progress: BootProgress) -> None:
    begun = time.monotonic()
    progress.begin("booting hosts a and b", _BOOT_S)
    waiting = set(HOSTS)
    patience_s = 1.0
    while waiting:
        for host in sorted(waiting):
            health = read_host(record, paths, host, timeout_s=patience_s)
            if health.finding.state == "running":
                waiting.discard(host)
                hosts = record.hosts | {
                    host: record.hosts[host].model_copy(update={"ready_s": time.time()})
                }
                record = record.model_copy(update={"hosts": hosts})
                state.write(paths, record)
            elif health.finding.state != "booting":
                raise _host_error(record.name, _with_saved_log(record.name, health))
        elapsed_s = time.monotonic() - begun
        pending = " and ".join(sorted(waiting)) or "none"
        progress.step(f"booting: waiting for {pending}", min(elapsed_s, 0.95 * _BOOT_S))
        time.sleep(_POLL_S if waiting else 0)
        if elapsed_s > _SLOW_S:
            patience_s = min(2 * patience_s, _PATIENCE_S)


def _host_error(name: str, host: HostStatus) -> PlanewiseError:
    console_end = "".join(f"\n    {line}" for line in host.last_lines) or " nothing"
    dead = host.finding.state == "dead"
    verb = "is dead" if dead else "hangs"
    return (PlanewiseError if dead else _HangError)(
        f"host {host.host} of the lab `{name}` {verb}: {host.finding.reason}; "
        f"the end of its log {host.serial_log}:{console_end}",
        remedy="`planewise lab down`, then `planewise lab up`; the log says more",
    )


def _with_saved_log(name: str, host: HostStatus) -> HostStatus:
    """Copies the serial log of a host that failed to boot into the cache, one for each host."""
    saved = packages.cache_directory() / f"failed-{name}-{host.host}.log"
    try:
        shutil.copyfile(host.serial_log, saved)
    except OSError:
        return host
    return replace(host, serial_log=saved)


def _orphans() -> tuple[AbandonedLab, ...]:
    """Labs without a directory whose processes live."""
    root = state.state_root()
    labs: dict[str, list[ProcessInfo]] = {}
    for info in process.processes():
        pidfile = info.option("-pidfile")
        if not pidfile or not (info.option("-name") or "").startswith(PREFIX):
            continue
        directory = Path(pidfile).parent
        if directory.parent == root and not directory.is_dir() and process.shares_mounts(info):
            labs.setdefault(directory.name.removeprefix("lab-"), []).append(info)
    return tuple(
        AbandonedLab(name, tuple(info.pid for info in infos), "", "lab without a directory", "")
        for name, infos in sorted(labs.items())
    )


def _leftover(name: str, paths: LabPaths) -> AbandonedLab:
    record = state.read(paths)
    pids = tuple(info.pid for info in processes_of(name, paths))
    if record is None:
        return AbandonedLab(name, pids, str(paths.directory), "lab without a record", "")
    started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(record.created_s))
    return AbandonedLab(
        name, pids, str(paths.directory), f"lab with {record.pfs} PFs a host", started
    )


def _end_hosts(name: str, paths: LabPaths) -> tuple[ProcessInfo, ...]:
    ended: tuple[ProcessInfo, ...] = ()
    # More than once: a process that is being started forks into the background.
    for _ in range(_ROUNDS):
        processes = processes_of(name, paths)
        if not processes:
            return ended
        _end(processes)
        ended += processes
    raise PlanewiseError(
        f"process {ended[-1].pid} of the lab `{name}` does not end",
        remedy="the kernel holds it; look at it with `ps`, and run this again later",
    )


def _end(processes: tuple[ProcessInfo, ...]) -> None:
    try:
        process.end(processes)
    except PermissionError as error:
        raise PlanewiseError(
            f"process {processes[0].pid} belongs to another user",
            remedy="run it as that user, or root",
        ) from error


def _empty(paths: LabPaths) -> None:
    for entry in paths.directory.iterdir():
        entry.unlink()


def _remove(paths: LabPaths) -> None:
    try:
        shutil.rmtree(paths.directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise PlanewiseError(
            f"{paths.directory} cannot be removed: {error.strerror}", remedy="remove it by hand"
        ) from error
    if paths.directory.parent != Path("/run/planewise"):  # which testbeds use, too
        with suppress(OSError):
            paths.directory.parent.rmdir()


@contextmanager
def _storage_errors(place: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{error.filename or place} cannot be used: {error.strerror or error}",
            remedy="make room, and make sure that you may write there",
        ) from error


def _free_ports(count: int) -> tuple[int, ...]:
    """Free ports of 127.0.0.1."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for listener in sockets:
            listener.bind(("127.0.0.1", 0))
        return tuple(int(listener.getsockname()[1]) for listener in sockets)
    finally:
        for listener in sockets:
            listener.close()


def _key_pair(comment: str) -> tuple[bytes, bytes]:
    """The private and the public file of a new key for ssh.

    Raises:
        UnsupportedError: there is no ssh-keygen.
    """
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "key"
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(file)]
        try:
            subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)
        except FileNotFoundError as error:
            raise UnsupportedError(
                "there is no program `ssh-keygen` on this machine", remedy="install openssh-client"
            ) from error
        return file.read_bytes(), file.with_suffix(".pub").read_bytes()


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """Turns SIGTERM and SIGHUP into SystemExit, so that a kill, too, takes the lab down."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            handlers[number] = signal.signal(number, _exit_on_signal)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _exit_on_signal(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
