"""Reads files as text and JSON values with their lines; every error names file and line."""

from __future__ import annotations

import json
import math
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
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise _not_json(error.msg, path, line + error.lineno - 1) from error
    except (ValueError, RecursionError) as error:
        raise _not_json(_reason(error), path, line) from error


def values(text: str, path: Path) -> Iterator[tuple[int, object]]:
    """The values of a file that is one JSON value, an array of them, or one a line.

    Yields each with the line of its begin. JSON lines are read strictly by line, so that an error
    names the line that was cut, not the next one.
    """
    decoder = json.JSONDecoder()
    start = _skip(text, 0)
    if text.startswith("[", start):
        yield from _array(decoder, text, start, path)
        return
    value, end = _decode(decoder, text, start, path)
    if _skip(text, end) == len(text):
        yield text.count("\n", 0, start) + 1, value
        return
    if "\n" in text[start:end]:  # pretty-printed values, one after the other
        line = 1
        counted = 0
        while start < len(text):
            value, end = _decode(decoder, text, start, path)
            line += text.count("\n", counted, start)
            counted = start
            yield line, value
            start = _skip(text, end)
        return
    for line, content in lines(text):
        yield line, parse_json(content, path, line)


def lines(text: str) -> Iterator[tuple[int, str]]:
    """The non-empty lines with their numbers from 1. Only line feeds end a line."""
    for number, content in enumerate(text.split("\n"), start=1):
        if content and not content.isspace():
            yield number, content


def _array(
    decoder: json.JSONDecoder, text: str, start: int, path: Path
) -> Iterator[tuple[int, object]]:
    line = text.count("\n", 0, start) + 1
    counted = start
    position = _skip(text, start + 1)
    if not text.startswith("]", position):
        while True:
            value, end = _decode(decoder, text, position, path)
            line += text.count("\n", counted, position)
            counted = position
            yield line, value
            position = _skip(text, end)
            if text.startswith("]", position):
                break
            if not text.startswith(",", position):
                raise _not_json(
                    "the list is cut short" if position == len(text) else "a comma is missing",
                    path,
                    text.count("\n", 0, position) + 1,
                )
            position = _skip(text, position + 1)
    position = _skip(text, position + 1)
    if position != len(text):
        raise _not_json("something follows the list's end", path, text.count("\n", 0, position) + 1)


def _decode(decoder: json.JSONDecoder, text: str, start: int, path: Path) -> tuple[object, int]:
    try:
        return decoder.raw_decode(text, start)
    except json.JSONDecodeError as error:
        raise _not_json(error.msg, path, error.lineno) from error
    except (ValueError, RecursionError) as error:
        raise _not_json(_reason(error), path, text.count("\n", 0, start) + 1) from error


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return "a number with too many digits"


def _not_json(reason: str, path: Path, line: int) -> BadInputError:
    return BadInputError(
        f"not valid JSON: {reason[:1].lower()}{reason[1:]}",
        where=f"{path}:{line}",
        remedy="the file may have been cut short: copy it again, or delete that line",
    )


def number(value: object, what: str, where: str) -> float:
    """`value` as a number; BadInputError naming `what` otherwise. True and "12" are no numbers.

    Not-a-number and infinite values pass: the columns' check names them with their meaning.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadInputError(
            f"{what} is {shown(value)}, not a number",
            where=where,
            remedy="correct it, or delete that trial",
        )
    try:
        return float(value)
    except OverflowError:
        return math.inf


def mapping(value: object, what: str, where: str) -> dict[str, object]:
    """`value` as a JSON object; BadInputError naming `what` otherwise."""
    if not isinstance(value, dict):
        raise BadInputError(
            f"{what} is {shown(value)}, not an object",
            where=where,
            remedy="this file is not of that format, or damaged: try another with --from",
        )
    return value


def shown(value: object) -> str:
    """`value` as text for an error."""
    if value is None:
        return "missing"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
