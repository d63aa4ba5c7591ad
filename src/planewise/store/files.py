"""Writes a file as a whole or not at all."""

from __future__ import annotations

import errno
from pathlib import Path

from planewise.errors import PlanewiseError


def write_file(file: Path, content: bytes) -> None:
    """Replaces `file` as a whole: a full disk never leaves half a file in its place."""
    part = file.with_name(f".{file.name}.part")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(file)
    except OSError as error:
        if part.parent.is_dir():
            part.unlink(missing_ok=True)
        what = f"cannot write {file}: {error.strerror or error}"
        remedy = "check the path and its permissions"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what, remedy = f"no space left to write {file}", "free some space"
        raise PlanewiseError(what, remedy=f"{remedy}, or name a file elsewhere with -o") from error
