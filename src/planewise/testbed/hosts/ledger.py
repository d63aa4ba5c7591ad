"""Owners of namespaces: one locked file a testbed, which tells leftovers from live runs.

A testbed has a random token; all its names start with `pw-<token>-`. Its file in /run/planewise is
locked (flock) as long as its program lives, however that ends: testbeds without a lock are
leftovers. `sweep` removes leftovers and touches nothing else.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts import netns

STATE = Path("/run/planewise")

_NAME = re.compile(r"pw-([0-9a-f]{8})-[a-z][a-z0-9]*")
"""Names of Planewise's namespaces; other programs may use the prefix `pw-`, too."""


def token_of(name: str) -> str | None:
    """The token in a namespace's name, or None where the name is not one of ours."""
    match = _NAME.fullmatch(name)
    return match[1] if match else None


@dataclass(frozen=True)
class HostNote:
    """A host beyond this machine, and how its previous state is restored."""

    host: str
    """As the user names it: `ssh://server`, `lab:a`."""
    nic: str
    restore: tuple[str, ...] = ()
    """Lines of shell that restore its NIC, and kernel settings that a run may change."""
    labs: str = ""
    """Directory of the lab, for a host of a lab."""


class Ownership:
    """The right to use names with this token, held until `release` or the end of the program."""

    def __init__(self, token: str, path: Path, descriptor: int) -> None:
        self.token = token
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def take(cls, what: str, state: Path = STATE, hosts: Sequence[HostNote] = ()) -> Ownership:
        """Takes an unused token.

        `hosts` are those beyond this machine whose resources will carry the token.

        Raises:
            UnsupportedError: the state directory cannot be written.
        """
        try:
            state.mkdir(mode=0o755, parents=True, exist_ok=True)
            while True:
                token = secrets.token_hex(4)
                path = state / f"{token}.json"
                with suppress(FileExistsError):
                    return cls._make(what, token, path, hosts)
        except OSError as error:
            raise UnsupportedError(
                f"{state} cannot be written: {error.strerror}",
                remedy="run as root, or as a plain user on a kernel that allows user namespaces",
            ) from error

    @classmethod
    def _make(cls, what: str, token: str, path: Path, hosts: Sequence[HostNote]) -> Ownership:
        # Locked before it has a name, so that no sweep takes it for a leftover.
        descriptor = os.open(path.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = {
                "what": what,
                "pid": os.getpid(),
                "command": sys.argv,
                "started": datetime.now(UTC).isoformat(),
                "hosts": [asdict(host) for host in hosts],
            }
            os.write(descriptor, json.dumps(content).encode())
            os.link(
                f"/proc/self/fd/{descriptor}", path, src_dir_fd=0, follow_symlinks=True
            )  # src_dir_fd makes Python call linkat(AT_SYMLINK_FOLLOW)
        except BaseException:
            os.close(descriptor)
            raise
        return cls(token, path, descriptor)

    def name(self, suffix: str) -> str:
        """A namespace's name under this token."""
        return f"pw-{self.token}-{suffix}"

    def remove(self) -> None:
        """Removes the token's namespaces with their processes, and releases the token.

        Raises:
            PlanewiseError: one could not be removed; `planewise clean` will find it.
        """
        names = [name for name in netns.names() if token_of(name) == self.token]
        netns.end_processes_in(names)
        failures = []
        for name in names:
            try:
                netns.remove(name)
            except OSError as error:
                failures.append(f"{name} ({error.strerror})")
        if failures:
            self.abandon()
            raise PlanewiseError(
                f"these namespaces could not be removed: {', '.join(failures)}",
                remedy="`planewise clean` as root tries again",
            )
        self.release()

    def release(self) -> None:
        """Releases the token; all that carries it must have been removed."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def abandon(self) -> None:
        """Leaves the token, and all that carries it, to a sweep."""
        os.close(self._descriptor)


@dataclass(frozen=True)
class DeadRun:
    """The leftovers of a dead run."""

    token: str
    namespaces: tuple[str, ...]
    processes: tuple[int, ...]
    what: str = ""
    """What the run was; empty when its file is gone."""
    started: str = ""
    hosts: tuple[HostNote, ...] = ()
    """Hosts beyond this machine whose resources may carry the token."""


def leftovers(state: Path = STATE, *, namespaces: bool = True) -> tuple[DeadRun, ...]:
    """Dead runs; live ones, and names of other programs, are left out.

    Without `namespaces`, only runs with a file in `state`.
    """
    return tuple(run for run, _ in _dead(state, namespaces))


def sweep(
    state: Path = STATE,
    elsewhere: Callable[[DeadRun], None] | None = None,
    *,
    namespaces: bool = True,
) -> tuple[DeadRun, ...]:
    """Removes the leftovers of dead runs, and returns these runs.

    `elsewhere` first removes a run's leftovers beside namespaces, here and on other hosts. Where it
    fails, the run stays noted and the others are still cleaned up.

    Raises:
        PlanewiseError: something could not be removed.
    """
    removed = []
    failure: PlanewiseError | None = None
    for run, path in _dead(state, namespaces):
        if elsewhere is not None:
            try:
                elsewhere(run)
            except PlanewiseError as error:
                failure = error
                continue
        ended = netns.end_processes_in(run.namespaces)
        for name in run.namespaces:
            try:
                netns.remove(name)
            except OSError as error:
                raise PlanewiseError(
                    f"the namespace {name} could not be removed: {error.strerror}",
                    remedy="run `planewise clean` as root",
                ) from error
        path.unlink(missing_ok=True)
        removed.append(replace(run, processes=ended))
    if failure is not None:
        raise failure
    return tuple(removed)


def _dead(state: Path, namespaces: bool) -> Iterator[tuple[DeadRun, Path]]:
    # Names first, files second: a run that starts in between has a file before it has a name.
    by_token: dict[str, list[str]] = {}
    for name in netns.names() if namespaces else ():
        if token := token_of(name):
            by_token.setdefault(token, []).append(name)
    with suppress(OSError):
        for path in state.glob("*.json"):
            if re.fullmatch("[0-9a-f]{8}", path.stem):
                by_token.setdefault(path.stem, [])
    for token, names in sorted(by_token.items()):
        path = state / f"{token}.json"
        content, descriptor = {}, -1
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = _read(descriptor)
        except BlockingIOError:
            os.close(descriptor)
            continue
        except FileNotFoundError:
            # No file: an orphan, or a live run that ended since the names were read.
            names = [name for name in names if (netns.RUN / name).exists()]
            if not names:
                continue
        except OSError as error:
            raise PlanewiseError(
                f"{path} cannot be read: {error.strerror}",
                remedy="run `planewise clean` as the user that made the testbed",
            ) from error
        try:
            processes = tuple(sorted(netns.processes_in(names)))
            yield (
                DeadRun(
                    token,
                    tuple(names),
                    processes,
                    str(content.get("what", "")),
                    str(content.get("started", "")),
                    _hosts(content.get("hosts")),
                ),
                path,
            )
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _read(descriptor: int) -> dict[str, object]:
    try:
        content = json.loads(os.read(descriptor, 1 << 20))
    except ValueError:
        return {}
    return content if isinstance(content, dict) else {}


def _hosts(content: object) -> tuple[HostNote, ...]:
    notes = content if isinstance(content, list) else []
    return tuple(
        HostNote(note["host"], note["nic"], tuple(note.get("restore", ())), note.get("labs", ""))
        for note in notes
    )
