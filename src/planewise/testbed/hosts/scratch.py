"""Scratch directories that `planewise clean` finds after a kill.

A directory is locked (flock) as long as its program lives, however that ends: one without a lock is
a leftover. It gets its name once it is locked, so that it is never taken for one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "pw-scratch-"


@contextmanager
def scratch() -> Iterator[Path]:
    """Makes a scratch directory; it is removed with the end of the `with` block."""
    unlocked = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
    descriptor = os.open(unlocked, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    path = unlocked.with_name(unlocked.name.removeprefix("."))
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        unlocked.rename(path)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(unlocked, ignore_errors=True)
        os.close(descriptor)


def leftovers(*, remove: bool = False) -> tuple[Path, ...]:
    """This user's scratch directories that no living program holds; removed when asked."""
    directories = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_uid != os.geteuid():
                    continue
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                directories.append(path)
                if remove:
                    shutil.rmtree(path)
            finally:
                os.close(descriptor)
    return tuple(directories)
