"""Writes a file as a whole or not at all, and reads YAML."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from planewise.errors import BadInputError, PlanewiseError


def write_file(file: Path, content: bytes) -> None:
    """Replaces `file` as a whole: a full disk never leaves half a file in its place.

    A device or pipe is written to, and what a symbolic link names is replaced.
    """
    try:
        if file.exists() and not file.is_file():
            file.write_bytes(content)
        else:
            real = Path(os.path.realpath(file))
            real.parent.mkdir(parents=True, exist_ok=True)
            replace_file(real, content)
    except OSError as error:
        what = f"cannot write {file}: {error.strerror or error}"
        remedy = "check the path and its permissions"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what, remedy = f"no space left to write {file}", "free some space"
        raise PlanewiseError(what, remedy=f"{remedy}, or name a file elsewhere with -o") from error


def replace_file(file: Path, content: bytes, *, synced: bool = False) -> None:
    """Writes a file as a whole or not at all; OSError where it cannot.

    If `synced` with its name: a power cut must not keep only a line elsewhere that names it.
    """
    new = file.with_name(f".{file.name}.new")
    try:
        new.write_bytes(content)
        if synced:
            _sync(new)
        new.replace(file)
        if synced:
            _sync(file.parent)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_yaml(
    path: Path, what: str, key: str, remedy: str, most_bytes: int = 1 << 24
) -> Mapping[str, object]:
    """The mapping in a YAML file, with its line numbers.

    `what` says in a word what the file is, `key` is one that it must have.

    Raises:
        BadInputError: it cannot be read, or holds something else; file and line.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.comments import CommentedMap
    from ruamel.yaml.error import MarkedYAMLError
    from ruamel.yaml.reader import ReaderError

    try:
        with path.open("rb") as file:
            content = file.read(most_bytes + 1)
        if len(content) > most_bytes:
            raise BadInputError(f"this is too long for a {what}", where=str(path), remedy=remedy)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        sentence = f"the {what} cannot be read: {reason}"
        raise BadInputError(sentence, where=str(path), remedy=remedy) from error
    line = 0
    cause: Exception | None = None
    try:
        raw = YAML(typ="rt").load(text)
        if isinstance(raw, CommentedMap):
            return raw
        line, sentence = 1, f"a {what} is a mapping with at least `{key}`"
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        sentence, cause = f"not YAML: {error.problem or error}", error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        sentence, cause = f"not YAML: the character {error.character!r} is not allowed", error
        remedy = "remove it, or write it as an escape in double quotes"
    except Exception as error:  # the parser raises many kinds on what is no YAML
        message = (str(error).splitlines() or [type(error).__name__])[0]
        sentence, cause = f"not YAML: {message[:200]}", error
    where = f"{path}:{line}" if line else str(path)
    raise BadInputError(sentence, where=where, remedy=remedy) from cause
