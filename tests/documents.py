"""The commands that the documents show, as they would be typed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROGRAMS = ("planewise", "planewised", "pw-probe", "make", "scripts/setup")

_INLINE = re.compile(rf"`((?:{'|'.join(PROGRAMS)}) [^`\n]+)`")
_FENCE = re.compile(r"^(```|~~~)")
_SPLIT = re.compile(r"\s{3,}(?=\S)|\s+#\s")
"""Between a command and what is said of it."""


@dataclass(frozen=True)
class Shown:
    """A command that a document shows."""

    document: str
    line: int
    command: str
    step: bool
    """It stands in a block of its own, to be typed; else a sentence mentions it."""

    def __str__(self) -> str:
        return f"{self.document}:{self.line}: {self.command}"


def guides() -> list[Path]:
    """What people follow step by step."""
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))]


def lines(document: Path) -> Iterator[tuple[int, str, bool]]:
    """Each line's number, the line, and whether it is fenced; output (```text) is left out."""
    fence = ""
    for number, line in enumerate(document.read_text().splitlines(), start=1):
        if _FENCE.match(line):
            fence = "" if fence else line
        elif fence != "```text":
            yield number, line, bool(fence)


def commands(document: Path) -> Iterator[Shown]:
    """Every command of ours in a document, in code blocks and within sentences."""
    name = str(document.relative_to(ROOT))
    for number, line, fenced in lines(document):
        if fenced or line.startswith("    "):
            command = _SPLIT.split(line.strip(), maxsplit=1)[0].removeprefix("sudo ")
            if command.split()[:1] and command.split()[0] in PROGRAMS:
                yield Shown(name, number, command.removesuffix("&").strip(), step=True)
        else:
            for found in _INLINE.finditer(line):
                yield Shown(name, number, found[1], step=False)


_OTHERS = re.compile(r"(?!cannot )[a-z][a-z0-9]*( (?!=)|=\$\()")
"""How a line begins that calls another program, or takes its output; no YAML, TOML or output."""


def commands_of_others(document: Path) -> Iterator[Shown]:
    """Every line in a document's blocks that a shell gives to a program that is not ours."""
    name = str(document.relative_to(ROOT))
    for number, line, fenced in lines(document):
        if (fenced or re.match(r" {4}\S", line)) and _OTHERS.match(line.strip()):
            command = _SPLIT.split(line.strip(), maxsplit=1)[0]
            if command.split()[0] not in PROGRAMS:
                yield Shown(name, number, command, step=True)


def shown() -> list[Shown]:
    """All of them, each once; as a step where it is one anywhere."""
    seen: dict[str, Shown] = {}
    for document in guides():
        for command in commands(document):
            known = seen.get(command.command)
            if known is None or (command.step and not known.step):
                seen.pop(command.command, None)
                seen[command.command] = command
    return list(seen.values())
