"""Writes cpio archives ("newc"), the format of an initramfs. Pure."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A file of an archive; parents must come first."""

    path: str
    """Without a leading slash."""
    mode: int
    """Type and permissions, as in stat(2)."""
    content: bytes = b""
    """Content of a file, target of a link."""


def directory(path: str, permissions: int = 0o755) -> Entry:
    """A directory."""
    return Entry(path, stat.S_IFDIR | permissions)


def file(path: str, content: bytes, permissions: int = 0o644) -> Entry:
    """A regular file."""
    return Entry(path, stat.S_IFREG | permissions, content)


def link(path: str, target: str) -> Entry:
    """A symbolic link."""
    return Entry(path, stat.S_IFLNK | 0o777, target.encode())


def archive(entries: Iterable[Entry]) -> bytes:
    """One archive, owned by root, without times. Archives may be joined end to end.

    Format: the kernel's Documentation/driver-api/early-userspace/buffer-format.rst.
    """
    parts = [
        _record(number, entry.path, entry.mode, entry.content)
        for number, entry in enumerate(entries, start=1)
    ]
    parts.append(_record(0, "TRAILER!!!", 0, b""))
    return b"".join(parts)


def _record(inode: int, path: str, mode: int, content: bytes) -> bytes:
    name = path.encode() + b"\0"
    # magic, inode, mode, uid, gid, links, mtime, size, device (2), special device (2), name, check
    fields = (inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name), 0)
    header = b"070701" + b"".join(b"%08X" % value for value in fields)
    return _padded(header + name) + _padded(content)


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)
