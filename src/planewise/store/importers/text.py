"""Reads files as text and JSON values with their lines; every error names file and line."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

from planewise.errors import BadInputError

HEAD_BYTES = 65536
"""Bytes from which a file's format is recognised."""

MAX_BYTES = 1 << 30
"""Largest file that is read, after decompression."""

_GZIP_MAGIC = b"\x1f\x8b"
_BLANK = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def read_bytes(path: Path, limit: int | None = None) -> bytes:
    """The file's bytes, decompressed when it is a gzip file; the first `limit` of them.

    BadInputError when it cannot be read, is a damaged gzip file, or is beyond MAX_BYTES.
    """
    try:
        with path.open("rb") as handle:
            data = handle.read(MAX_BYTES + 1 if limit is None else limit)
    except OSError as error:
        raise BadInputError(
            f"cannot be read: {error.strerror or error}",
            where=str(path),
            remedy="check the name and its permissions",
        ) from error
    except ValueError as error:  # a NUL in the name
        raise BadInputError("not a file name", where=repr(str(path))) from error
    if data.startswith(_GZIP_MAGIC):
        data = _gunzip(data, path, limit)
    if limit is None and len(data) > MAX_BYTES:
        raise BadInputError(
            f"larger than {MAX_BYTES >> 20} MiB: no result of trials is",
            where=str(path),
            remedy="split it by experiment",
        )
    return data


def _gunzip(data: bytes, path: Path, limit: int | None) -> bytes:
    inflater = zlib.decompressobj(wbits=31)
    try:
        plain = inflater.decompress(data, MAX_BYTES + 1 if limit is None else limit)
    except zlib.error as error:
        raise BadInputError(
            f"a damaged gzip file: {error}", where=str(path), remedy="restore it or unpack it"
        ) from error
    if limit is None and not inflater.eof and len(plain) <= MAX_BYTES:
        raise BadInputError(
            "a gzip file that was cut short", where=str(path), remedy="copy it again"
        )
    return plain


def decode(data: bytes, path: Path) -> str:
    """The bytes as text: UTF-8, or UTF-16 with its mark. BadInputError with the line otherwise."""
    if not data.strip():
        raise BadInputError(
            "the file is empty", where=str(path), remedy="give a file with results of trials"
        )
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadInputError(
            "not text in UTF-8", where=f"{path}:{line}", remedy="save it as UTF-8 text"
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise BadInputError(
            "a binary file, not text",
            where=f"{path}:{line}",
            remedy="give the tool's text or JSON results",
        )
    return text


def read_text(path: Path) -> str:
    """`read_bytes` and `decode`."""
    return decode(read_bytes(path), path)


def parse_json(text: str, path: Path, line: int = 1) -> object:
    """One JSON value; `line` is the line of its begin in the file."""
    value, end = _decode(text, _skip(text, 0), path, line)
    if _skip(text, end) < len(text):
        raise _not_json("more follows its end", path, line + text.count("\n", 0, _skip(text, end)))
    return value


def values(text: str, path: Path) -> Iterator[tuple[int, object]]:
    """Yields each value with its line, of a file that is an array or values one after the other."""
    position = _skip(text, 0)
    within = text.startswith("[", position)
    position = _skip(text, position + within)
    line, counted = 1, 0
    while position < len(text) and not (within and text.startswith("]", position)):
        line += text.count("\n", counted, position)
        counted = position
        value, end = _decode(text, position, path)
        yield line, value
        position = _skip(text, end)
        if within and not text.startswith("]", position):
            if not text.startswith(",", position):
                short = position == len(text)
                reason = "the list is cut short" if short else "a comma is missing"
                raise _not_json(reason, path, text.count("\n", 0, position) + 1)
            position = _skip(text, position + 1)
    if within and _skip(text, position + 1) != len(text):
        raise _not_json("something follows the list's end", path, text.count("\n", 0, position) + 1)


def lines(text: str) -> Iterator[tuple[int, str]]:
    """The non-empty lines with their numbers from 1. Only line feeds end a line."""
    for number, content in enumerate(text.split("\n"), start=1):
        if content and not content.isspace():
            yield number, content


def _decode(text: str, start: int, path: Path, line: int = 1) -> tuple[object, int]:
    """The value that begins at `start`, and its end."""
    try:
        return _DECODER.raw_decode(text, start)
    except json.JSONDecodeError as error:
        # A value that was cut ends where the next one begins: its own line is the damaged one.
        begins = text[error.pos : error.pos + 1] in ("{", "[") and error.colno == 1
        raise _not_json(error.msg, path, line + error.lineno - 1 - begins) from error
    except RecursionError as error:
        raise _not_json("nested too deeply", path, line) from error
    except ValueError as error:
        raise _not_json("a number with too many digits", path, line) from error


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _not_json(reason: str, path: Path, line: int) -> BadInputError:
    return BadInputError(
        f"not valid JSON: {reason[:1].lower()}{reason[1:]}",
        where=f"{path}:{line}",
        remedy="the file may have been cut short: copy it again, or delete that line",
    )
