"""Importers of results: one module a format, each with the same small interface.

    NAME                        name of the format
    MARKS                       what shows it in a file's first bytes: a confidence from 0 to 1,
                                and regular expressions that are all found. csv, whose header
                                has to be read, has recognise(head) instead
    parse(text, path)           what the file's text holds; `path` names it in errors.
                                BadInputError with file and line for anything else

Formats in CURVES hold load trials (store.loads.LoadTrials), the others readings of a quantity
(store.readings.Readings). The run directory is not text: it has `read(path)` instead of `parse`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from planewise.errors import BadInputError
from planewise.store.importers.text import HEAD_BYTES, decode, parse_json, read_bytes, read_text

if TYPE_CHECKING:
    from planewise.store.loads import LoadTrials
    from planewise.store.readings import Readings

CURVES = ("run", "pastrami", "mlrsearch", "trex", "nfvbench", "csv")
"""Formats whose files can be judged: they hold trials at several loads."""
READINGS = (
    "csit", "iperf3", "netperf", "sockperf", "irtt", "flent", "k8s-netperf", "testpmd", "pktgen",
    "trex-console",
)  # fmt: skip
"""Formats whose files can be compared."""
MODULES = CURVES + READINGS
"""Each format's module has its name (with _ for -), and is imported on use."""


def importer(name: str) -> ModuleType:
    """The importer of a format. BadInputError for an unknown name."""
    if name not in MODULES:
        raise BadInputError(
            f"there is no format {name!r}",
            where="--from",
            remedy=f"the formats are {', '.join(MODULES)}",
        )
    return import_module(f"{__name__}.{name.replace('-', '_')}")


def recognise(path: Path) -> str:
    """The name of the format that the file (or directory) most likely is.

    BadInputError when it cannot be read, is empty, or is of no known format.
    """
    if path.is_dir() or path.name in ("run.json", "trials.jsonl"):
        return "run"
    raw = read_bytes(path, HEAD_BYTES)
    head = raw.removeprefix(b"\xef\xbb\xbf")
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        head = raw.decode("utf-16", errors="ignore").encode()
    confidences = {name: confidence(name, head, path) for name in MODULES}
    best = max(MODULES, key=confidences.__getitem__)
    if confidences[best] > 0:
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


def confidence(name: str, head: bytes, path: Path) -> float:
    """How surely a file that begins with `head` is of the format, from 0 to 1."""
    module = importer(name)
    if name == "csv":
        named = 0.3 if path.name.endswith((".csv", ".tsv", ".csv.gz")) else 0.0
        return max(float(module.recognise(head)), named)
    marks: Sequence[tuple[float, *tuple[str, ...]]] = getattr(module, "MARKS", ())
    found = (
        sure
        for sure, *patterns in marks
        if all(re.search(pattern.encode(), head) for pattern in patterns)
    )
    return max(found, default=0.0)


def _check_is_text(head: bytes, path: Path) -> None:
    """BadInputError when the file is empty or binary; a character cut in two is neither."""
    if len(head) >= HEAD_BYTES:
        head = head[: head.rfind(b"\n", 0, HEAD_BYTES) + 1] or head[:4]
    decode(head, path)


@dataclass(frozen=True)
class Content:
    """What a file holds: curves, or readings."""

    curves: Sequence[LoadTrials] = ()
    readings: Sequence[Readings] = ()


def content(path: Path, format_name: str | None = None) -> Content:
    """What a file or run directory holds, its format recognised or given.

    BadInputError with file and line for a file that is wrong.
    """
    name = format_name or recognise(path)
    chosen = importer(name)
    if name in READINGS:
        return Content(readings=chosen.parse(read_text(path), path))
    return Content(
        chosen.read(path) if hasattr(chosen, "read") else chosen.parse(read_text(path), path)
    )


def read(path: Path, format_name: str | None = None) -> list[LoadTrials]:
    """The curves of a file or run directory. BadInputError as `content`, and for readings."""
    found = content(path, format_name)
    if found.readings:
        raise BadInputError(
            f"{found.readings[0].format} files hold no trials at several loads, so no curve",
            where=str(path),
            remedy=f"compare it with others like it: planewise compare {path} …",
        )
    return list(found.curves)
