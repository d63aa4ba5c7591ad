"""Brings labs up, looks at them, takes them down. The only file here that starts and ends hosts."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
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
from planewise.boot.model import Accelerator, Kernel
from planewise.boot.process import Seen
from planewise.errors import BadInputError, PlanewiseError, StorageError
from planewise.lab import checks, initramfs, qemu, state
from planewise.lab.diagnose import PORT_ATTEMPTS, refusal
from planewise.lab.model import (
    HOSTS,
    PREFIX,
    LabPaths,
    LabPlatform,
    LabSpec,
    process_name,
)
from planewise.lab.state import HostRecord, LabRecord
from planewise.lab.watch import (
    HostStatus,
    LabStatus,
    look,
    look_at,
    processes_of,
)

BOOT_LIMIT_S = 120.0
"""A boot that takes longer hangs. Under TCG on two cores it takes a tenth of it."""

_POLL_S = 0.1
_SLOW_S = 60.0
_PATIENCE_S = 30.0
"""A host that boots this slowly has its sshd work for seconds at each greeting: who goes away
before it, and comes again, keeps it from ever getting done."""

_FORK_S = 0.3
_ROUNDS = 5
_FIRST_GUESS_S = 20.0
_FETCH_S = 60.0
_TRIAL_S = 3.0
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BootProgress(Protocol):
    """Who is told how far the work is."""

    def begin(self, what: str, total_s: float) -> None:
        """A part starts that will take about `total_s`."""

    def step(self, what: str, done_s: float) -> None:
        """So much of the estimate is worked off."""


@dataclass(frozen=True)
class AbandonedLab:
    """A lab that nobody uses."""

    name: str
    processes: tuple[int, ...]
    """Ids of its QEMU processes."""
    directory: str
    """Its state directory; empty where that is gone."""
    what: str
    started: str


def prepare(progress: BootProgress) -> LabPlatform:
    """What this machine lends to a lab; fetches what is missing into the cache.

    Raises:
        UnsupportedError: something is missing and cannot be fetched.
        StorageError: the cache has no room.
    """
    program, version = boot_qemu.find()
    cache = packages.cache_directory()
    with _storage_errors(cache):
        cache.mkdir(parents=True, exist_ok=True)
        return _gather(program, version, cache, progress)


def _gather(
    program: Path, version: tuple[int, int], cache: Path, progress: BootProgress
) -> LabPlatform:
    if kernel.needs_download(cache):
        progress.begin("fetching a kernel, once", _FETCH_S)
    newest = kernel.find(cache)
    programs = tools.find(cache)
    if not accelerator.is_known(program, version, newest, cache):
        progress.begin("trying KVM", _TRIAL_S)
    accelerated = accelerator.find(program, version, newest, programs.busybox, cache)
    return _platform(program, version, newest, programs, accelerated, cache)


def plan(spec: LabSpec) -> tuple[tuple[str, ...], ...]:
    """The command lines that `up` would run; fetches and changes nothing.

    Raises:
        UnsupportedError: QEMU is missing, or too old, or there is no kernel.
    """
    program, version = boot_qemu.find()
    cache = packages.cache_directory()
    found = kernel.foreseen(cache)
    known = accelerator.recall(program, version, found, cache)
    platform = LabPlatform(program, version, found, known, cache, cache / "base.initrd")
    where = state.paths(spec.name)
    return tuple(
        tuple(qemu.command_line(platform, spec, where, host, port))
        for host, port in zip(HOSTS, _free_ports(len(HOSTS)), strict=True)
    )


def up(spec: LabSpec, progress: BootProgress, boot_limit_s: float = BOOT_LIMIT_S) -> LabStatus:
    """The lab of this name, running: found so, or started.

    A lab with a dead or hung host is taken down and started anew; so is, once, one that hangs while
    it boots.

    Raises:
        BadInputError: a lab of this name is up with other values.
        UnsupportedError: this machine cannot have a lab.
        PlanewiseError: a host did not come up; the sentence has the end of its log.
    """
    where = state.paths(spec.name)
    running = _running_lab(spec, where, boot_limit_s)
    if running is not None:
        return running
    checks.memory(spec)
    checks.root(spec)
    platform = prepare(progress)
    checks.modules(spec, platform)
    state.make_directory(where)
    with _signals_as_exceptions(), state.lock(where, exclusive=True, wait_s=2.0) as mine:
        if not mine:
            raise PlanewiseError(
                f"the lab `{spec.name}` is being used or started by another planewise",
                remedy="wait for that, or choose another --name",
            )
        try:
            try:
                record = _boot(spec, where, platform, boot_limit_s, progress)
            except _HangError:
                # On a busy machine an emulated CPU may miss its timer for good; the next does not.
                record = _boot(spec, where, platform, boot_limit_s, progress)
        except BaseException:
            _end_hosts(spec.name, where)
            _remove(where)
            raise
        return look(state.read(where) or record, where)


def status(name: str) -> LabStatus | None:
    """How the lab of this name fares, or None where there is none."""
    where = state.paths(name)
    record = state.read(where)
    return look(record, where) if record is not None else None


def statuses() -> tuple[LabStatus, ...]:
    """How all labs of this user fare."""
    labs = [status(name) for name in state.names()]
    return tuple(one for one in labs if one is not None)


def down(name: str) -> bool:
    """Takes a lab down, used or not; gives whether there was anything.

    Raises:
        PlanewiseError: another planewise is starting it, or something cannot be removed.
    """
    where = state.paths(name)
    with state.lock(where, exclusive=False, wait_s=1.0) as mine:
        if not mine and where.directory.is_dir():
            raise PlanewiseError(
                f"the lab `{name}` is being started or taken down by another planewise",
                remedy="wait for that, or stop it",
            )
        ended = _end_hosts(name, where)
        exists = where.directory.is_dir()
        _remove(where)
    return bool(ended) or exists


@contextmanager
def using(name: str) -> Iterator[LabStatus]:
    """Holds a lab: as long as the block runs, `planewise clean` leaves it alone.

    Raises:
        PlanewiseError: it is not up, or a host of it does not run.
    """
    where = state.paths(name)
    with state.lock(where, exclusive=False, wait_s=BOOT_LIMIT_S) as mine:
        lab = status(name) if mine else None
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


def leftovers() -> tuple[AbandonedLab, ...]:
    """Labs that no living planewise uses, up or half started; and QEMU processes without a lab."""
    abandoned = []
    for name in state.names():
        where = state.paths(name)
        with state.lock(where, exclusive=True, wait_s=_FORK_S) as mine:
            if mine:
                abandoned.append(_leftover(name, where))
    return (*abandoned, *_orphans())


def sweep() -> tuple[AbandonedLab, ...]:
    """Removes what `leftovers` finds, and says what it was.

    Raises:
        PlanewiseError: something cannot be removed.
    """
    done = []
    for name in state.names():
        where = state.paths(name)
        # A program that was killed while it started a host has a child for a moment, which holds
        # its lock.
        with state.lock(where, exclusive=True, wait_s=_FORK_S) as mine:
            if mine:
                found = _leftover(name, where)
                _end_hosts(name, where)
                _remove(where)
                done.append(found)
    for orphan in _orphans():
        _end_hosts(orphan.name, state.paths(orphan.name))
        done.append(orphan)
    packages.remove_scratch(packages.cache_directory())
    return tuple(done)


def _platform(
    program: Path,
    version: tuple[int, int],
    found: Kernel,
    programs: tools.Tools,
    accelerated: Accelerator,
    cache: Path,
) -> LabPlatform:
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


def _running_lab(spec: LabSpec, where: LabPaths, boot_limit_s: float) -> LabStatus | None:
    if not where.directory.is_dir():
        return None
    # Somebody else may be starting it: then it is up when they let go.
    with state.lock(where, exclusive=False, wait_s=boot_limit_s) as mine:
        lab_status = status(spec.name) if mine else None
    if lab_status is None or lab_status.state != "running":
        return None
    if lab_status.record.spec != spec:
        other = lab_status.record
        raise BadInputError(
            f"the lab `{spec.name}` is up with --pfs {other.pfs} --memory {other.memory_mib} "
            f"--cpus {other.cpus} --root {other.root}",
            where="planewise lab up",
            remedy="take it down first (`planewise lab down`), or choose another --name",
        )
    return lab_status


def _write_files(
    spec: LabSpec, where: LabPaths, platform: LabPlatform, boot_limit_s: float
) -> LabRecord:
    import asyncssh

    user_key = asyncssh.generate_private_key("ssh-ed25519", comment=f"{PREFIX}{spec.name}")
    host_keys = {host: asyncssh.generate_private_key("ssh-ed25519") for host in HOSTS}
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
            host: HostRecord(port=ports[host], host_key=_line(host_keys[host].export_public_key()))
            for host in HOSTS
        },
    )
    with _storage_errors(where.directory):
        base = platform.base_initrd.read_bytes()
        where.key.touch(mode=0o600)
        where.key.write_bytes(user_key.export_private_key())
        for host in HOSTS:
            personal = initramfs.personal(
                host,
                platform.layers if spec.root == "/" else platform.kernel_layers,
                host_keys[host].export_private_key(),
                user_key.export_public_key(),
                path_inside() if spec.root == "/" else _SYSTEM_PATH,
                Path("/etc/passwd").read_text(),
                Path("/etc/group").read_text(),
                systemd=spec.root != "/",
            )
            file = where.host(host).initrd
            file.touch(mode=0o600)
            file.write_bytes(base + personal)
        _write_ssh_files(record, where)
    state.write(where, record)
    return record


def _write_ssh_files(record: LabRecord, where: LabPaths) -> None:
    known, config = [], []
    for host, one in record.hosts.items():
        alias = process_name(record.name, host)
        known.append(f"{alias} {one.host_key}\n")
        config.append(
            f"Host {host} {alias}\n"
            f"    HostName 127.0.0.1\n    Port {one.port}\n    User root\n"
            f"    HostKeyAlias {alias}\n    IdentityFile {where.key}\n    IdentitiesOnly yes\n"
            f"    UserKnownHostsFile {where.known_hosts}\n    StrictHostKeyChecking yes\n"
        )
    where.known_hosts.write_text("".join(known))
    where.ssh_config.write_text("".join(config))


def path_inside() -> str:
    """PATH of commands on the hosts: the system's, and where this planewise and pw-probe are."""
    return f"{Path(sys.executable).parent}:{_SYSTEM_PATH}"


class _HangError(PlanewiseError):
    """A host hung while it booted."""


def _boot(
    spec: LabSpec,
    where: LabPaths,
    platform: LabPlatform,
    boot_limit_s: float,
    progress: BootProgress,
) -> LabRecord:
    """Ends what is left of the lab, starts its hosts and waits until they are up."""
    _end_hosts(spec.name, where)
    _empty(where)
    record = _write_files(spec, where, platform, boot_limit_s)
    record = _start(record, where, platform)
    _wait_until_running(record, where, progress)
    return record


def _start(record: LabRecord, where: LabPaths, platform: LabPlatform) -> LabRecord:
    for attempt in range(1, PORT_ATTEMPTS + 1):
        for host in HOSTS:
            port = record.hosts[host].port
            message = _launch(qemu.command_line(platform, record.spec, where, host, port))
            if not message:
                continue
            if "host forwarding rule" not in message or attempt == PORT_ATTEMPTS:
                raise refusal(message, record.spec, port)
            # Somebody took the port between our look and QEMU's: other ports, once more.
            _end_hosts(record.name, where)
            ports = dict(zip(HOSTS, _free_ports(len(HOSTS)), strict=True))
            hosts = {
                one: known.model_copy(update={"port": ports[one]})
                for one, known in record.hosts.items()
            }
            record = record.model_copy(update={"hosts": hosts})
            _write_ssh_files(record, where)
            state.write(where, record)
            break
        else:
            return record
    raise AssertionError("the last attempt raises")


def _launch(argv: Sequence[str]) -> str:
    """Starts a host; gives what QEMU complained of, or nothing when it runs."""
    done = subprocess.run(
        argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return ""
    return done.stderr.strip() or f"exit code {done.returncode}"


def _wait_until_running(record: LabRecord, where: LabPaths, progress: BootProgress) -> None:
    guess_s = _usual_boot_s()
    begun = time.monotonic()
    progress.begin("booting hosts a and b", guess_s)
    waiting = set(HOSTS)
    patience_s = 1.0
    while waiting:
        for host in sorted(waiting):
            health = look_at(record, where, host, timeout_s=patience_s)
            if health.finding.state == "running":
                waiting.discard(host)
                hosts = record.hosts | {
                    host: record.hosts[host].model_copy(update={"ready_s": time.time()})
                }
                record = record.model_copy(update={"hosts": hosts})
                state.write(where, record)
            elif health.finding.state != "booting":
                raise _host_error(record.name, _with_saved_log(record.name, health))
        elapsed_s = time.monotonic() - begun
        left = " and ".join(sorted(waiting)) or "none"
        progress.step(f"booting: waiting for {left}", min(elapsed_s, 0.95 * guess_s))
        time.sleep(_POLL_S if waiting else 0)
        if elapsed_s > _SLOW_S:
            patience_s = min(2 * patience_s, _PATIENCE_S)
    _remember_boot_s(time.monotonic() - begun)


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
    """The log outlives the lab that failed to come up: in the cache, the last one of each host."""
    kept = packages.cache_directory() / f"failed-{name}-{host.host}.log"
    try:
        shutil.copyfile(host.serial_log, kept)
    except OSError:
        return host
    return replace(host, serial_log=kept)


def _orphans() -> tuple[AbandonedLab, ...]:
    """Labs whose directory is gone while a process of them lives."""
    root = state.state_root()
    labs: dict[str, list[Seen]] = {}
    for seen in process.processes():
        pidfile = (
            seen.option("-pidfile") if (seen.option("-name") or "").startswith(PREFIX) else None
        )
        directory = Path(pidfile).parent if pidfile else None
        if directory is None or directory.parent != root or directory.is_dir():
            continue
        if not process.shares_mounts(seen):
            continue
        labs.setdefault(directory.name.removeprefix("lab-"), []).append(seen)
    return tuple(
        AbandonedLab(name, tuple(one.pid for one in seen), "", "lab without a directory", "")
        for name, seen in sorted(labs.items())
    )


def _leftover(name: str, where: LabPaths) -> AbandonedLab:
    record = state.read(where)
    pids = tuple(seen.pid for seen in processes_of(name, where))
    if record is None:
        return AbandonedLab(name, pids, str(where.directory), "lab that was not written down", "")
    started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime(record.created_s))
    return AbandonedLab(
        name, pids, str(where.directory), f"lab with {record.pfs} PFs a host", started
    )


def _end_hosts(name: str, where: LabPaths) -> tuple[Seen, ...]:
    ended: tuple[Seen, ...] = ()
    # More than once: one that is just being started forks into the background.
    for _ in range(_ROUNDS):
        processes = processes_of(name, where)
        if not processes:
            return ended
        _end(processes)
        ended += processes
    raise PlanewiseError(
        f"process {ended[-1].pid} of the lab `{name}` does not end",
        remedy="the kernel holds it; look at it with `ps`, and run this again later",
    )


def _end(found: tuple[Seen, ...]) -> None:
    try:
        process.end(found)
    except PermissionError as error:
        raise PlanewiseError(
            f"process {found[0].pid} belongs to another user", remedy="run it as that user, or root"
        ) from error


def _empty(where: LabPaths) -> None:
    for entry in where.directory.iterdir():
        entry.unlink()


def _remove(where: LabPaths) -> None:
    try:
        shutil.rmtree(where.directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise PlanewiseError(
            f"{where.directory} cannot be removed: {error.strerror}", remedy="remove it by hand"
        ) from error
    if where.directory.parent != Path("/run/planewise"):  # which testbeds use, too
        with suppress(OSError):
            where.directory.parent.rmdir()


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
    """Ports of 127.0.0.1 that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return tuple(int(one.getsockname()[1]) for one in sockets)
    finally:
        for one in sockets:
            one.close()


def _usual_boot_s() -> float:
    try:
        content = json.loads((packages.cache_directory() / "boot.json").read_text())
        return float(content["last_boot_s"])
    except (OSError, ValueError, KeyError, TypeError):
        return _FIRST_GUESS_S


def _remember_boot_s(seconds: float) -> None:
    with suppress(OSError):
        (packages.cache_directory() / "boot.json").write_text(json.dumps({"last_boot_s": seconds}))


def _line(public_key: bytes) -> str:
    return " ".join(public_key.decode().split()[:2])


@contextmanager
def _signals_as_exceptions() -> Iterator[None]:
    """A polite kill becomes an exception, so that it, too, takes down what was begun."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            before[number] = signal.signal(number, _exit_on_signal)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _exit_on_signal(number: int, _: FrameType | None) -> None:
    sys.exit(128 + number)
