"""Debian packages, unpacked into the cache: nothing is installed on the machine.

Needs no root, but apt's package lists.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from debian.debian_support import Version

from planewise.errors import PlanewiseError, StorageError, UnsupportedError

SETUP_REMEDY = (
    "run `scripts/setup lab` in the source tree (as root), "
    "or add the backports suite to apt's sources and run `apt-get update`"
)

_DOWNLOAD_TIMEOUT_S = 600


def cache_directory() -> Path:
    """The cache of packages and results: in /var/cache for root, at home for users."""
    if os.geteuid() == 0:
        return Path("/var/cache/planewise/lab")
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "planewise" / "lab"


def newest(listing: str) -> str | None:
    """The newest version in the output of `apt-cache madison PACKAGE`, or None. Pure.

    Ordered as Debian orders versions: epoch first, `6.12~rc1-1` before `6.12-1`.
    """
    versions = [line.split("|")[1].strip() for line in listing.splitlines() if line.count("|") >= 2]
    return max(versions, key=version_order, default=None)


def version_order(version: str) -> Version:
    """A sort key for Debian versions. Pure.

    Characters that Debian versions cannot have (as in names of hand-built kernels) count as `+`.
    """
    return Version(re.sub(r"[^A-Za-z0-9.+:~-]", "+", version))


def dependencies(record: str, pattern: str) -> tuple[str, ...]:
    """Names in the Depends fields of an apt record that match `pattern` entirely. Pure."""
    names: dict[str, None] = {}
    for line in record.splitlines():
        if line.startswith("Depends:"):
            for alternative in re.split("[,|]", line.removeprefix("Depends:")):
                name = alternative.split()[0] if alternative.split() else ""
                if re.fullmatch(pattern, name):
                    names[name] = None
    return tuple(names)


def show(package: str) -> str | None:
    """The apt record of a package's newest version, or None where apt knows no such package."""
    if shutil.which("apt-cache") is None:
        return None
    version = newest(_output(["apt-cache", "madison", package]))
    if version is None:
        return None
    return _output(["apt-cache", "show", f"{package}={version}"])


def fetch(
    name: str,
    packages: Sequence[str],
    cache: Path,
    *,
    needs_mib: int,
    finish: Callable[[Path], None] | None = None,
) -> Path:
    """The directory `name` of the cache with these packages' files, made where it is missing.

    `finish` completes the tree before it gets its name. Trees have the layout of merged /usr.

    Raises:
        UnsupportedError: no apt here, or it cannot get a package.
        StorageError: the cache cannot be written, or the disk has no room.
    """
    target = cache / name
    if target.is_dir():
        return target
    with _locked(cache):
        if target.is_dir():
            return target
        _check_room(cache, needs_mib)
        for broken in cache.glob(".unpack-*"):
            shutil.rmtree(broken, ignore_errors=True)
        with tempfile.TemporaryDirectory(prefix=".unpack-", dir=cache) as scratch:
            tree = Path(scratch) / "tree"
            tree.mkdir()
            tree.chmod(0o755)
            _download(packages, Path(scratch))
            for package in sorted(Path(scratch).glob("*.deb")):
                _unpack(package, tree)
                package.unlink()
            _merge_usr(tree)
            if finish is not None:
                finish(tree)
            tree.rename(target)
    return target


def _download(packages: Sequence[str], directory: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise UnsupportedError(
            f"{', '.join(packages)}: this is no Debian or Ubuntu, and packages cannot be fetched",
            remedy="install their counterparts; the machine's own kernel needs the modules "
            "igb, igbvf, vfio-pci, 9p, overlay and virtio_net, and /usr/sbin/sshd must be there",
        )
    # As root, apt downloads as its own user, who may not write into this directory.
    sandbox = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
    try:
        process = subprocess.run(
            ["apt-get", "download", "-qq", *sandbox, *packages],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_DOWNLOAD_TIMEOUT_S,
            check=False,
            env=os.environ | {"LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise UnsupportedError(
            f"apt did not download {', '.join(packages)} within {_DOWNLOAD_TIMEOUT_S} s",
            remedy="try again with a better connection",
        ) from error
    if process.returncode != 0:
        if "space" in process.stderr:
            raise StorageError(
                f"no space left to download {', '.join(packages)} into {directory.parent}",
                remedy="make room, or point XDG_CACHE_HOME elsewhere",
            )
        raise UnsupportedError(
            f"apt cannot download {', '.join(packages)}: {_last_line(process.stderr)}",
            remedy=SETUP_REMEDY,
        )


def _unpack(package: Path, tree: Path) -> None:
    process = subprocess.run(
        ["dpkg-deb", "-x", str(package), str(tree)], capture_output=True, text=True, check=False
    )
    if process.returncode != 0:
        reason = _last_line(process.stderr)
        if "No space left" in process.stderr:
            raise StorageError(
                f"no space left to unpack {package.name} into {tree.parent.parent}",
                remedy="make room, or point XDG_CACHE_HOME elsewhere",
            )
        raise PlanewiseError(f"{package.name} cannot be unpacked: {reason}")


def _merge_usr(tree: Path) -> None:
    """Moves /lib and the like below /usr: over a root where they are links, the tree must not have
    directories in their place."""
    for top in ("bin", "sbin", "lib", "lib64"):
        source = tree / top
        if source.is_dir() and not source.is_symlink():
            for file in sorted(source.rglob("*")):
                if file.is_dir() and not file.is_symlink():
                    continue
                moved = tree / "usr" / file.relative_to(tree)
                moved.parent.mkdir(parents=True, exist_ok=True)
                file.rename(moved)
            shutil.rmtree(source)


def _check_room(cache: Path, needs_mib: int) -> None:
    free_mib = shutil.disk_usage(cache).free >> 20
    if free_mib < needs_mib:
        raise StorageError(
            f"{cache} has {free_mib} MiB free, and unpacking takes {needs_mib} MiB",
            remedy="make room, or point XDG_CACHE_HOME elsewhere",
        )


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Locks the cache against other programs; the kernel drops the lock at the program's end."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(cache, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
    except OSError as error:
        raise StorageError(
            f"{cache} cannot be written: {error.strerror or error}",
            remedy="make it writable, or point XDG_CACHE_HOME elsewhere",
        ) from error


def _output(argv: list[str]) -> str:
    process = subprocess.run(
        argv, capture_output=True, text=True, check=False, env=os.environ | {"LC_ALL": "C"}
    )
    return process.stdout if process.returncode == 0 else ""


def _last_line(text: str) -> str:
    lines = [line.removeprefix("E: ") for line in text.strip().splitlines() if line.strip()]
    return lines[-1] if lines else "it printed nothing"


def remove_scratch(cache: Path) -> None:
    """Removes unfinished trees of killed programs, unless another program has the cache locked."""
    if not cache.is_dir():
        return
    descriptor = os.open(cache, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for broken in (*cache.glob(".unpack-*"), *cache.glob(".trial-*")):
            if broken.is_dir():
                shutil.rmtree(broken, ignore_errors=True)
            else:
                broken.unlink(missing_ok=True)
    except BlockingIOError:
        pass
    finally:
        os.close(descriptor)
