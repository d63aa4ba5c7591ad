"""A table of measured chains from NFVbench's results, whose names say what was measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planewise.advise.model.capacity import ChainWorkload
from planewise.advise.model.fit import Measured
from planewise.advise.model.profile import PLANES, Plane
from planewise.errors import BadInputError
from planewise.store.importers import read

NUMBERS = ("vnfs", "chains", "switch_cores", "switch_threads", "vnf_cores")
"""What a name pattern may hold besides `kind`."""
DEFAULT_NAMES = "{kind}_{chains}c{vnfs}n"
DEFAULT_KINDS: Mapping[str, tuple[Plane, str]] = {
    "csc": ("memif", "east-west"),
    "csp": ("memif", "pipeline"),
    "vsc": ("vhost-user", "east-west"),
}
"""Plane and pattern of FD.io CSIT's names: container snakes, container pipelines, VM snakes."""


def kinds_of(words: Sequence[str]) -> dict[str, tuple[Plane, str]]:
    """Kinds as `KIND=PLANE,PATTERN` or, for names without a kind, `PLANE,PATTERN`.

    Raises:
        BadInputError: one of the words has another form.
    """
    kinds = {}
    for word in words:
        found = re.fullmatch(r"(?:(\w+)=)?([\w-]+),([\w-]+)", word)
        plane = next((plane for plane in PLANES if found and plane == found[2]), None)
        if not found or plane is None:
            raise BadInputError(
                f"{word!r} does not say plane and pattern",
                where="--kind",
                remedy="KIND=PLANE,PATTERN, for example csc=memif,east-west; planes: "
                f"{', '.join(PLANES)}",
            )
        kinds[found[1] or ""] = (plane, found[3])
    return kinds or dict(DEFAULT_KINDS)


def chain_table(
    files: Sequence[Path],
    names: str = DEFAULT_NAMES,
    kinds: Mapping[str, tuple[Plane, str]] = DEFAULT_KINDS,
    hardware: Mapping[str, int] | None = None,
) -> tuple[list[Measured], list[str]]:
    """One row for each NDR of each file, and why files have none. `hardware` is what names don't
    say.

    Raises:
        BadInputError: the pattern of names is wrong, or no file has a row.
    """
    pattern = _regex(names)
    rows: list[Measured] = []
    left_out = []
    for path in files:
        try:
            rows += _rows_of(path, pattern, kinds, hardware or {})
        except BadInputError as error:
            left_out.append(str(error))
    if not rows:
        raise BadInputError(
            f"none of {len(files)} files has the NDR of a chain"
            + (f": {left_out[0]}" if left_out else ""),
            remedy="--names is the pattern of their names, --kind says plane and pattern",
        )
    return rows, left_out


def _regex(names: str) -> re.Pattern[str]:
    text = re.escape(names).replace(r"\*", "[^/]*")
    fields = re.findall(r"\\{(\w+)\\}", text)
    unknown = [name for name in fields if name not in (*NUMBERS, "kind")]
    if unknown or len(set(fields)) != len(fields):
        raise BadInputError(
            f"the pattern {names!r} has unknown or repeated fields",
            where="--names",
            remedy=f"{{kind}} and {', '.join(f'{{{name}}}' for name in NUMBERS)}, once each",
        )
    for name in fields:
        group = r"[A-Za-z]+" if name == "kind" else r"\d+"
        text = text.replace(rf"\{{{name}\}}", f"(?P<{name}>{group})")
    return re.compile(text)


def _rows_of(
    path: Path,
    names: re.Pattern[str],
    kinds: Mapping[str, tuple[Plane, str]],
    hardware: Mapping[str, int],
) -> list[Measured]:
    found = names.search(path.resolve().as_posix())
    if found is None:
        raise BadInputError("the name does not match the pattern", where=str(path))
    fields = found.groupdict()
    kind = fields.pop("kind", "")
    if kind not in kinds:
        raise BadInputError(f"the kind {kind!r} is not known", where=str(path), remedy="--kind")
    plane, pattern = kinds[kind]
    numbers: dict[str, Any] = {"vnfs": 1, **hardware}
    numbers |= {name: int(text) for name, text in fields.items()}
    rows = []
    for curve in read(path, "nfvbench"):
        ndr_pps = curve.reported.get("ndr_pps")
        size = str(curve.info.get("frame_size", ""))
        if ndr_pps and size.isdigit():
            chain = ChainWorkload(pattern, frame_bytes=int(size), **numbers)  # type: ignore[arg-type]
            rows.append(Measured(plane, chain, chain.length * ndr_pps))
    if not rows:
        raise BadInputError("no NDR of frames of one size", where=str(path))
    return rows
