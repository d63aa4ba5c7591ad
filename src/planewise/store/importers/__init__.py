"""Importers of results: one module a format, each with the same small interface.

    NAME                        name of the format
    recognise(head, path)       confidence 0 to 1 from the file's first bytes (decompressed)
    parse(text, path)           the curves in a file's text, as store.loads.LoadTrials; `path` names
                                it in errors. BadInputError with file and line for anything else

The run directory is not text: it has `read(path)` instead of `parse`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from planewise.errors import BadInputError
from planewise.store.importers.text import HEAD_BYTES, decode, parse_json, read_bytes, read_text

if TYPE_CHECKING:
    from planewise.store.loads import LoadTrials

MODULES = ("run", "pastrami", "mlrsearch", "trex", "nfvbench", "csit", "csv")
"""Each format's module has its name, and is imported on use."""


def importer(name: str) -> ModuleType:
    """The importer of a format. BadInputError for an unknown name."""
    if name not in MODULES:
        raise BadInputError(
            f"there is no format {name!r}",
            where="--from",
            remedy=f"the formats are {', '.join(MODULES)}",
        )
    return import_module(f"{__name__}.{name}")


def recognise(path: Path) -> str:
    """The name of the format that the file (or directory) most likely is.

    BadInputError when it cannot be read, is empty, or is of no known format.
    """
    raw = b"" if path.is_dir() else read_bytes(path, HEAD_BYTES)
    head = _as_utf8(raw)
    best, confidence = "", 0.0
    for name in MODULES:
        likelihood = importer(name).recognise(head, path)
        if likelihood > confidence:
            best, confidence = name, likelihood
    if best:
        return best
    _check_is_text(raw, path)
    if head.lstrip()[:1] in (b"{", b"["):
        text = read_text(path)
        parse_json(text, path)  # damaged JSON gets its own sentence, with the line
    raise BadInputError(
        "none of the known formats",
        where=str(path),
        remedy=f"name its format with --from ({', '.join(MODULES)}), or bring it into the "
        "documented CSV (docs/reference/formats.md)",
    )


def _as_utf8(head: bytes) -> bytes:
    """The head without its byte order mark, UTF-16 as UTF-8."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return head.decode("utf-16", errors="ignore").encode()
    return head.removeprefix(b"\xef\xbb\xbf")


def _check_is_text(head: bytes, path: Path) -> None:
    """BadInputError when the file is empty or binary; a character cut in two is neither."""
    if len(head) >= HEAD_BYTES:
        head = head[: head.rfind(b"\n", 0, HEAD_BYTES) + 1] or head[:4]
    decode(head, path)


def read(path: Path, format_name: str | None = None) -> list[LoadTrials]:
    """The curves of a file or run directory, its format recognised or given.

    BadInputError with file and line for a file that is wrong.
    """
    chosen = importer(format_name or recognise(path))
    curves: list[LoadTrials] = (
        chosen.read(path) if hasattr(chosen, "read") else chosen.parse(read_text(path), path)
    )
    return curves
