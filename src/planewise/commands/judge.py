"""`planewise judge`: can a throughput number stand for a load-loss curve? For anybody's results."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from planewise.commands import console, readings
from planewise.commands.options import PlrOption, WideOption
from planewise.errors import BadInputError, PlanewiseError, VerdictNotGoodError
from planewise.store.importers import MODULES as FORMATS
from planewise.units import count_text, percent_text

if TYPE_CHECKING:
    from planewise.judge.files import Judged
    from planewise.judge.verdict import LoadEstimate, Rule, Stability
    from planewise.store.readings import Readings

LISTED = 4
"""Most curves whose warnings are printed below the table; for more, only their kinds."""


def judge(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        Argument(
            metavar="FILE", help="Results of load trials, of any known format, or run directories."
        ),
    ] = None,
    rule: Annotated[
        str,
        Option(
            help="Rule of the verdict: planewise, or a published one: as-written, as-published, "
            "as-coded-intent."
        ),
    ] = "planewise",
    format_name: Annotated[
        str | None,
        Option(
            "--from",
            metavar="FORMAT",
            help=f"Format of the files: {', '.join(FORMATS)}. Recognised by default.",
        ),
    ] = None,
    plr: PlrOption = 0.005,
    wide: WideOption = False,
    json: Annotated[bool, Option("--json", help="Print a JSON array.")] = False,
    figures: Annotated[
        Path | None, Option(metavar="DIR", help="Draw each curve there (SVG, PDF, PNG).")
    ] = None,
    export: Annotated[Path | None, Option(metavar="FILE", help="Write the trials as CSV.")] = None,
    example: Annotated[
        str | None,
        Option(
            metavar="NAME",
            help="Judge a synthetic system whose truth is known, such as realistic, gradual, "
            "thrashing, drifting or non-monotone.",
        ),
    ] = None,
    require_good: Annotated[
        bool, Option("--require-good", help="Exit 3 unless every verdict is GOOD.")
    ] = False,
) -> None:
    """Judge whether one number (PDR) represents a load-loss curve.

    Reads Planewise's own results, those of other tools (--from lists them), and CSV.
    """
    quiet = bool(context.obj and context.obj.quiet)
    if not files and example is None:
        raise BadInputError(
            "there is nothing to judge",
            where="planewise judge",
            remedy="name files with results, or try `planewise judge --example realistic`",
        )
    from planewise.judge.files import as_json, judge_curves, judge_example
    from planewise.judge.verdict import checked_rule
    from planewise.store import importers

    chosen = checked_rule(rule, plr)
    judged: list[Judged] = []
    compared: list[Readings] = []
    failed = 0
    if example is not None:
        judged.append(judge_example(example, chosen, plr))
    for file in files or []:
        try:
            content = importers.content(file, format_name)
            compared += content.readings
            judged += judge_curves(file, content.curves, chosen, plr)
        except PlanewiseError as error:
            failed += 1
            console.print_error(error)
    if json:
        curves = [as_json(result, chosen, plr) for result in judged]
        console.print_json([*curves, *(readings.as_json(one) for one in compared)])
    else:
        if judged:
            _print(judged, chosen, plr, quiet=quiet, wide=wide)
        readings.print_each(compared)
    if export is not None and judged:
        from planewise.store.importers import csv

        csv.write([result.trials for result in judged], export)
    if figures is not None:
        _draw(judged, figures, quiet=quiet)
    if failed:
        raise typer.Exit(BadInputError.exit_code)
    if require_good:
        _require_good(judged, compared)


def _require_good(judged: list[Judged], compared: list[Readings]) -> None:
    failing = [f"{result.title} is {result.word}" for result in judged if result.word != "GOOD"]
    failing += dict.fromkeys(f"{one.file.name} has no verdict" for one in compared)
    if failing:
        raise VerdictNotGoodError(
            f"{len(failing)} of {len(judged) + len({one.file for one in compared})} verdicts are "
            "not GOOD: " + ", ".join(failing[:3]) + (" …" if len(failing) > 3 else ""),
            remedy="the table's reasons and warnings say what would change them",
        )


def _print(judged: list[Judged], rule: Rule, plr: float, *, quiet: bool, wide: bool) -> None:
    out = console.out()
    rows = map(_row, judged)
    styles = {result.label: _STYLES[result.word] for result in judged}
    console.print_rows(_COLUMNS, rows, right=_NUMBERS, less=_LESS, wide=wide, styles=styles)
    if len(judged) <= LISTED:
        _print_warnings(judged)
    elif not quiet and any(result.warnings for result in judged):
        console.err().print("The warnings' full text: fewer files at a time, or --json.")
    out.print()
    for line in _sentence(judged, rule, plr):
        out.print(line)


_APART = ("FEW RUNS", "LADDER TOO SHORT")
_STYLES = {"GOOD": "green", "BAD": "red", "UNDECIDED": "yellow"}
_COLUMNS = (
    "verdict", "PASTRAMI", "headroom", "runs agree", "PDR", "saturation", "loads", "runs",
    "format", "file", "warnings",
)  # fmt: skip
_LESS = ("saturation", "PASTRAMI", "headroom", "runs agree", "runs", "loads", "format", "warnings")
"""Columns that a narrow terminal leaves out, the last first."""
_NUMBERS = frozenset({"headroom", "runs agree", "PDR", "saturation", "loads", "runs"})


def _row(judged: Judged) -> tuple[str, ...]:
    from planewise.judge.files import load_text

    verdict = judged.verdict
    return (
        judged.label,
        verdict.pastrami.word if verdict else "–",
        str(verdict.headroom) if verdict and verdict.headroom else "–",
        _agree(verdict.stability) if verdict else "–",
        _pdr_cell(judged),
        load_text(verdict.saturation.offered_pps) if verdict and verdict.saturation else "–",
        str(judged.trials.loads),
        str(len(judged.trials)),
        judged.trials.format,
        judged.title,
        _kinds(judged),
    )


def _agree(stability: Stability) -> str:
    return f"{stability.runs - stability.disturbed} of {stability.runs}"


def _print_warnings(judged: list[Judged]) -> None:
    from planewise.judge.files import load_text

    out = console.out()
    for result in judged:
        lines = [f"warning: {text}" for text in result.warnings]
        if result.verdict and result.verdict.next_loads:
            loads = ", ".join(load_text(load) for load in result.verdict.next_loads)
            lines.append(f"trials at {loads} would help most")
        if lines:
            out.print()
            if len(judged) > 1:
                out.print(result.title, style="bold")
            for line in lines:
                out.print(line)


def _sentence(judged: list[Judged], rule: Rule, plr: float) -> list[str]:
    """The result in plain words, a few lines."""
    from planewise.judge.files import NOTHING_TO_JUDGE, load_text
    from planewise.judge.headroom import LIMIT

    if len(judged) > 1:
        words = [result.word for result in judged]
        counts = ", ".join(f"{words.count(word)} {word}" for word in _STYLES if word in words)
        kinds = Counter(result.verdict.open.upper() for result in judged if result.verdict)
        if apart := [f"{kinds[kind]} {kind}" for kind in _APART if kinds[kind]]:
            counts += f" (of these {', '.join(apart)})"
        return [f"{len(judged)} curves, judged by the rule {rule}: {counts}."]
    result = judged[0]
    verdict = result.verdict
    if verdict is None:
        reported = [
            f"{key[:3].upper()} {load_text(value)}" for key, value in result.trials.reported.items()
        ]
        return [f"UNDECIDED: {NOTHING_TO_JUDGE} (reported: {', '.join(reported)})."]
    pdr = pdr_text(verdict.pdr, verdict.no_pdr, load_text)
    verb = " is" if pdr.startswith("not known") else ":"
    figures = [f"PDR at {percent_text(plr)} loss{verb} {pdr}."]
    answer = [f"{verdict.label}: {verdict.reason}."]
    if result.is_search:
        # What a binary search does show comes first.
        ndr = verdict.no_ndr or load_text(verdict.ndr.pps if verdict.ndr else 0.0)
        limited = int(result.trials.limited.sum()) if result.trials.limited is not None else 0
        figures += [
            f"NDR: {ndr}.",
            f"Headroom: {verdict.headroom or 'not known'} (limit {percent_text(LIMIT)}).",
            f"The generator limited {limited} of {len(result.trials)} trials.",
        ]
        lines = [*figures, *answer]
    else:
        lines = [*answer, f"Stability: {verdict.stability}.", *figures]
    paper = f"PASTRAMI's rule says {verdict.pastrami.word}: {verdict.pastrami.reason}"
    if verdict.delta_ucl95 is not None:
        paper += f" (Δ_UCL95 there: {percent_text(round(verdict.delta_ucl95, 3))} of the loss)"
    return [*lines, f"{paper}."]


def pdr_text(pdr: LoadEstimate | None, why_none: str, show: Callable[[float], str]) -> str:
    """PDR with its interval; only a bound where the loads end before PDR does."""
    if pdr is None:
        return f"not known: {why_none}"
    if pdr.bounded:
        return f"{show(pdr.pps)} (95 %: {pdr.interval_text(show)})"
    if pdr.low_pps > 0:
        return f"at least {show(pdr.low_pps)}; the loads end too early to say more"
    return "not known: there are too few loads and runs"


def _pdr_cell(judged: Judged) -> str:
    from planewise.judge.files import load_text

    if judged.verdict is None:
        reported = judged.trials.reported.get("pdr_pps")
        return f"({load_text(reported)})" if reported is not None else "–"
    estimate = judged.verdict.pdr
    if estimate is None:
        lowest = load_text(float(judged.trials.offered_pps.min()))
        return f"< {lowest}" if judged.verdict.tested else "–"
    if estimate.bounded:
        return load_text(estimate.pps)
    return f"≥ {load_text(estimate.low_pps)}" if estimate.low_pps > 0 else "–"


def _kinds(judged: Judged) -> str:
    kinds = [warning.code for warning in judged.verdict.warnings] if judged.verdict else []
    if judged.trials.notes:
        kinds.insert(0, f"{len(judged.trials.notes)} of reading")
    return ", ".join(kinds) or "none"


def _draw(judged: list[Judged], directory: Path, *, quiet: bool) -> None:
    from planewise.report.figure import save
    from planewise.report.sections.load import curve_figure

    used: set[str] = set()
    for result in judged:
        if result.curve is None or result.verdict is None:
            continue
        stem = plain = _file_stem(result.title)
        place = 2
        while stem in used:
            stem = f"{plain}-{place}"
            place += 1
        used.add(stem)
        figure = curve_figure(result.curve, result.verdict, title=result.curve.name, name=stem)
        save(figure.whole(), directory / stem)
    if not quiet:
        figures = count_text(len(used), "figure")
        console.err().print(f"{figures} in {directory}", soft_wrap=True)


def _file_stem(title: str) -> str:
    for ending in (".gz", ".txt", ".csv", ".json", ".jsonl", ".parquet", ".log"):
        title = title.removesuffix(ending)
    return re.sub(r"[^A-Za-z0-9._-]+", "_", title)[:150] or "curve"
