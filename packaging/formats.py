"""Writes the tables of docs/reference/formats.md from the models' and importers' docstrings.

    python packaging/formats.py [--check]

One table for each file of the run directory, one row for each field; a record within a record has a
table of its own. --check fails if the page is not what the models say.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference" / "formats.md"
SOURCES = [
    ROOT / "src" / "planewise" / "store" / name for name in ("models.py", "recommendation.py")
]
FILES = {
    "RunInfo": "run.json",
    "TrialRecord": "trials.jsonl",
    "KpiSample": "kpis.jsonl",
    "Recommendation": "recommendation.json",
}
BEGIN, END = "<!-- from the models: packaging/formats.py -->\n", "<!-- end -->\n"
BEGIN_IMPORTERS = "<!-- from the importers: packaging/formats.py -->\n"
IMPORTERS = ROOT / "src" / "planewise" / "store" / "importers"


def classes() -> dict[str, ast.ClassDef]:
    """The models by name."""
    bodies = (ast.parse(source.read_text()).body for source in SOURCES)
    return {node.name: node for body in bodies for node in body if isinstance(node, ast.ClassDef)}


def fields(model: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    """Name, type and docstring of each field."""
    for index, node in enumerate(model.body):
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        after = model.body[index + 1] if index + 1 < len(model.body) else None
        text = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            text = " ".join(str(after.value.value).split())
        yield node.target.id, ast.unparse(node.annotation), text


def table(name: str, models: dict[str, ast.ClassDef], shown: set[str]) -> Iterator[str]:
    """The fields of a model, then those of the models within it that were not shown yet."""
    shown.add(name)
    summary = (ast.get_docstring(models[name]) or "").split("\n\n")[0].replace("\n", " ")
    yield f"### {FILES.get(name) or _title(name)}\n\n{summary}\n\n"
    within, plain = [], []
    for field, kind, text in fields(models[name]):
        inner = [one for one in re.findall(r"\w+", kind) if one in models]
        within += inner
        choices = re.findall(r"'([^']*)'", kind) if kind.startswith("Literal") else []
        words = [" ".join(f"`{choice}`" for choice in choices)] if choices else []
        words += [text] if text else []
        words += [f"*{_title(one)}*" for one in inner]
        if words:
            yield f"- `{field}`: {'. '.join(word.rstrip('.') for word in words)}.\n"
        else:
            plain.append(f"`{field}`")
    if plain:
        yield f"- {' '.join(plain)}\n"
    yield "\n"
    for one in within:
        if one not in shown:
            yield from table(one, models, shown)


def importers() -> Iterator[str]:
    """A table row for each importer: its name, its docstring's first sentence, what it is for."""
    yield "| format | what it reads | for |\n| --- | --- | --- |\n"
    for node in ast.parse((IMPORTERS / "__init__.py").read_text()).body:
        match node:
            case ast.Assign(targets=[ast.Name(id="CURVES" | "READINGS" as kind)], value=value):
                for name in ast.literal_eval(value):
                    text = (IMPORTERS / f"{name.replace('-', '_')}.py").read_text()
                    about = ast.get_docstring(ast.parse(text)) or ""
                    summary = " ".join(re.split(r"\.\s|\.$", about)[0].split())
                    purpose = "judge" if kind == "CURVES" else "compare"
                    yield f"| `{name}` | {summary} | {purpose} |\n"


def _title(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).capitalize()


def main() -> None:
    """Writes or checks the page."""
    models, shown = classes(), set[str]()
    text = "".join(part for name in FILES for part in table(name, models, shown))
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    after = rest.split(END, 1)[1]
    made = f"{before}{BEGIN}\n{text}{END}{after}"
    before, rest = made.split(BEGIN_IMPORTERS)
    made = f"{before}{BEGIN_IMPORTERS}\n{''.join(importers())}\n{END}{rest.split(END, 1)[1]}"
    if "--check" in sys.argv[1:]:
        if made != page:
            sys.exit(f"{PAGE} is not what the models say: run `python {sys.argv[0]}`")
    else:
        PAGE.write_text(made)


if __name__ == "__main__":
    main()
