"""`planewise judge`: can a throughput number stand for a load-loss curve? For anybody's results."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planewise.commands import console
from planewise.commands.options import PlrOption
from planewise.errors import BadInputError, PlanewiseError, VerdictNotGoodError
from planewise.store.importers import MODULES as FORMATS
from planewise.units import count_text, percent_text

if TYPE_CHECKING:
    from planewise.judge.curve import Curve
    from planewise.judge.verdict import LoadEstimate, Rule, Verdict
    from planewise.store.loads import LoadTrials

EXAMPLE_LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.7, 2.0)
"""Offered loads of an example, in parts of its capacity."""
EXAMPLE_RUNS = 20
EXAMPLE_DURATION_S = 1.0
LISTED = 4
"""Most curves whose warnings are printed below the table; for more, only their kinds."""


@dataclass(frozen=True)
class Judged:
    """One curve with its verdict; None where the file has no trials."""

    file: str
    trials: LoadTrials
    curve: Curve | None
    verdict: Verdict | None

    @property
    def word(self) -> str:
        """GOOD, BAD or UNDECIDED."""
        return self.verdict.verdict if self.verdict else "UNDECIDED"

    @property
    def label(self) -> str:
        """The word; UNDECIDED with its kind."""
        return self.verdict.label if self.verdict else self.word

    @property
    def title(self) -> str:
        """The file's name and, where a file has several curves, the curve's."""
        name = Path(self.file).name or self.file
        return f"{name} {self.trials.curve}" if self.trials.curve else name

    @property
    def warnings(self) -> list[str]:
        """Warnings of the importer and of the verdict."""
        texts = [warning.text for warning in self.verdict.warnings] if self.verdict else []
        return [*self.trials.notes, *texts]


def judge(
    context: typer.Context,
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]…",
            help="Results of load trials, of any known format, or run directories.",
            show_default=False,
        ),
    ] = None,
    rule: Annotated[
        str,
        typer.Option(
            help="Rule of the verdict: planewise, or a published one: as-written, as-published, "
            "as-coded-intent."
        ),
    ] = "planewise",
    format_name: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="FORMAT",
            help=f"Format of the files: {', '.join(FORMATS)}. Recognised by default.",
            show_default=False,
        ),
    ] = None,
    plr: PlrOption = 0.005,
    json: Annotated[bool, typer.Option("--json", help="Print a JSON array.")] = False,
    figures: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Draw each curve there (SVG, PDF, PNG).", show_default=False
        ),
    ] = None,
    export: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the trials as CSV.", show_default=False),
    ] = None,
    example: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Judge a synthetic system whose truth is known, such as realistic, gradual, "
            "trashing, drifting or non-monotone.",
            show_default=False,
        ),
    ] = None,
    require_good: Annotated[
        bool, typer.Option("--require-good", help="Exit 3 unless every verdict is GOOD.")
    ] = False,
) -> None:
    """Judge whether PDR, a single number, can stand for a load-loss curve.

    Reads Planewise's own results, those of other tools (--from names them), and CSV.
    """
    quiet = bool(context.obj and context.obj.quiet)
    if not files and example is None:
        raise BadInputError(
            "there is nothing to judge",
            where="planewise judge",
            remedy="name files with results, or try `planewise judge --example realistic`",
        )
    chosen = checked_rule(rule, plr)
    judged: list[Judged] = []
    failed = 0
    if example is not None:
        judged.append(_judge_example(example, chosen, plr))
    for file in files or []:
        try:
            judged += judge_file(file, format_name, chosen, plr)
        except PlanewiseError as error:
            failed += 1
            console.print_error(error)
    if json:
        console.print_json([_as_json(result, chosen, plr) for result in judged])
    elif judged:
        _print(judged, chosen, plr, quiet=quiet)
    if export is not None and judged:
        from planewise.store import exporters

        exporters.write([result.trials for result in judged], export)
    if figures is not None:
        _draw(judged, figures, quiet=quiet)
    if failed:
        raise typer.Exit(BadInputError.exit_code)
    if require_good:
        _require_good(judged)


def checked_rule(rule: str, plr: float) -> Rule:
    """The rule by its name.

    Raises:
        BadInputError: there is no such rule, or `plr` is not a ratio.
    """
    from planewise.judge.verdict import RULES

    if not 0 < plr < 1:
        raise BadInputError(
            f"{plr:g} is not a loss ratio between 0 and 1", where="--plr", remedy="0.5 % is 0.005"
        )
    for name in RULES:
        if rule == name:
            return name
    raise BadInputError(
        f"there is no rule {rule!r}", where="--rule", remedy=f"the rules are {', '.join(RULES)}"
    )


def judge_file(
    file: Path, format_name: str | None, rule: Rule = "planewise", plr: float = 0.005
) -> list[Judged]:
    """Every curve of a file or run directory, with its verdict.

    Raises:
        BadInputError: the file cannot be read, or has nothing to judge.
    """
    from planewise.judge.from_store import curve_from_trials, with_few_loads
    from planewise.judge.verdict import judge as judge_curve
    from planewise.store import importers

    judged = []
    for trials in importers.read(file, format_name):
        if not len(trials):
            if not trials.reported:
                raise BadInputError(
                    f"there are no trials to judge{': ' if trials.notes else ''}"
                    + "; ".join(trials.notes),
                    where=str(file),
                    remedy="give a file that holds each trial's load, sent and received packets",
                )
            judged.append(Judged(str(file), trials, None, None))
            continue
        trials = with_few_loads(trials)
        curve = curve_from_trials(trials)
        judged.append(Judged(str(file), trials, curve, judge_curve(curve, rule, plr)))
    return judged


def _judge_example(name: str, rule: Rule, plr: float) -> Judged:
    from planewise.judge import synthetic
    from planewise.judge.from_store import trials_from_curve
    from planewise.judge.headroom import LIMIT
    from planewise.judge.verdict import judge as judge_curve

    sut = synthetic.by_name(name)
    loads = [round(part * sut.capacity_pps) for part in EXAMPLE_LOADS]
    curve = sut.start(seed=1).sweep(loads, runs=EXAMPLE_RUNS, duration_s=EXAMPLE_DURATION_S)
    time_s = EXAMPLE_RUNS * EXAMPLE_DURATION_S * len(loads)
    truth = sut.truth(plr, trial_duration_s=EXAMPLE_DURATION_S, elapsed_s=time_s / 2)
    truths = [
        f"{quantity} {_load(value)}"
        for quantity, value in (
            ("NDR", truth.ndr_pps),
            ("PDR", truth.expected_pdr_pps),
            ("saturation", truth.saturation_pps),
        )
        if value is not None
    ]
    headroom = sut.headroom(plr, elapsed_s=time_s / 2)
    if headroom is not None:
        word = "GOOD" if headroom < LIMIT else "BAD"
        truths = [f"{word}, headroom {percent_text(round(headroom, 3))}", *truths]
    note = f"synthetic: {sut.summary}. The truth: {', '.join(truths)}"
    trials = trials_from_curve(curve, format_name="synthetic", notes=(note,))
    return Judged(f"example:{name}", trials, curve, judge_curve(curve, rule, plr))


def _require_good(judged: list[Judged]) -> None:
    failing = [result for result in judged if result.word != "GOOD"]
    if failing:
        raise VerdictNotGoodError(
            f"{len(failing)} of {len(judged)} verdicts are not GOOD: "
            + ", ".join(f"{result.title} is {result.word}" for result in failing[:3])
            + (" …" if len(failing) > 3 else ""),
            remedy="the table's reasons and warnings say what would change them",
        )


def _as_json(judged: Judged, rule: Rule, plr: float) -> dict[str, object]:
    verdict = judged.verdict
    reported = judged.trials.reported
    return {
        "file": judged.file,
        "curve": judged.trials.curve,
        "format": judged.trials.format,
        "rule": rule,
        "plr": plr,
        "verdict": judged.word,
        "reason": verdict.reason if verdict else _NOTHING_TO_JUDGE,
        "probability_good": verdict.probability_good if verdict else None,
        "share_good": verdict.share_good if verdict else None,
        "share_open": verdict.share_open if verdict else None,
        "open": verdict.open if verdict else None,
        **_headroom_json(verdict),
        "pastrami": verdict.pastrami.word if verdict else None,
        "pastrami_reason": verdict.pastrami.reason if verdict else None,
        "delta_ucl95": verdict.delta_ucl95 if verdict else None,
        "disturbed_at_most": verdict.disturbed_at_most if verdict else None,
        **_interval("pdr", verdict.pdr if verdict else reported.get("pdr_pps")),
        **_interval("ndr", verdict.ndr if verdict else reported.get("ndr_pps")),
        **_interval("first_crossing", verdict.first_crossing if verdict else None),
        "saturation_pps": verdict.saturation.offered_pps
        if verdict and verdict.saturation
        else None,
        "saturation_throughput_pps": verdict.saturation.throughput_pps
        if verdict and verdict.saturation
        else None,
        "loads": judged.trials.loads,
        "runs": len(judged.trials),
        "next_loads_pps": list(verdict.next_loads) if verdict else [],
        "warnings": judged.warnings,
        "evidence": [
            {"code": warning.code, "text": warning.text, **dict(warning.evidence)}
            for warning in (verdict.warnings if verdict else ())
        ],
        "info": dict(judged.trials.info),
        "reported": dict(reported),
    }


def _headroom_json(verdict: Verdict | None) -> dict[str, float | None]:
    """Two keys; an end that the ladder does not bound is null."""
    headroom = verdict.headroom if verdict else None
    return {
        "headroom_low": headroom.low if headroom else None,
        "headroom_high": headroom.high if headroom and math.isfinite(headroom.high) else None,
    }


_NOTHING_TO_JUDGE = "the file reports numbers and keeps no trials: nothing can be judged"


def _interval(name: str, estimate: LoadEstimate | float | None) -> dict[str, float | None]:
    """Three keys. A bare number is another tool's, reported without an interval."""
    if estimate is None or isinstance(estimate, int | float):
        return {f"{name}_pps": estimate, f"{name}_low_pps": None, f"{name}_high_pps": None}
    return {
        f"{name}_pps": estimate.pps,
        f"{name}_low_pps": estimate.low_pps,
        f"{name}_high_pps": estimate.high_pps,
    }


def _print(judged: list[Judged], rule: Rule, plr: float, *, quiet: bool) -> None:
    out = console.out()
    for line in _sentence(judged, rule, plr):
        out.print(line)
    out.print()
    table = console.Rows(*_COLUMNS, right=_NUMBERS)
    for result in judged:
        table.add(*_row(result), style=_STYLES[result.word])
    table.print()
    if len(judged) <= LISTED:
        _print_warnings(judged)
    elif not quiet and any(result.warnings for result in judged):
        console.err().print("The warnings' full text: fewer files at a time, or --json.")


_APART = ("BORDERLINE", "LADDER TOO SHORT")
_STYLES = {"GOOD": "green", "BAD": "red", "UNDECIDED": "yellow"}
_COLUMNS = (
    "verdict", "P(GOOD)", "headroom", "PDR", "saturation", "loads", "runs", "format", "file",
    "warnings",
)  # fmt: skip
_NUMBERS = frozenset({"P(GOOD)", "headroom", "PDR", "saturation", "loads", "runs"})


def _row(judged: Judged) -> tuple[str, ...]:
    verdict = judged.verdict
    probability = verdict.probability_good if verdict else None
    return (
        judged.label,
        percent_text(round(probability, 2)) if probability is not None else "–",
        str(verdict.headroom) if verdict and verdict.headroom else "–",
        _pdr_cell(judged),
        _load(verdict.saturation.offered_pps) if verdict and verdict.saturation else "–",
        str(judged.trials.loads),
        str(len(judged.trials)),
        judged.trials.format,
        judged.title,
        _kinds(judged),
    )


def _print_warnings(judged: list[Judged]) -> None:
    out = console.out()
    for result in judged:
        lines = [f"warning: {text}" for text in result.warnings]
        if result.verdict and result.verdict.next_loads:
            loads = ", ".join(_load(load) for load in result.verdict.next_loads)
            lines.append(f"further trials would decide most at {loads}")
        if lines:
            out.print()
            if len(judged) > 1:
                out.print(result.title, style="bold")
            for line in lines:
                out.print(line)


def _sentence(judged: list[Judged], rule: Rule, plr: float) -> list[str]:
    """The result in plain words, a few lines."""
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
            f"{key[:3].upper()} {_load(value)}" for key, value in result.trials.reported.items()
        ]
        return [f"UNDECIDED: {_NOTHING_TO_JUDGE} (reported: {', '.join(reported)})."]
    lines = [f"{verdict.label}: {verdict.reason}."]
    pdr = pdr_text(verdict.pdr, verdict.no_pdr, _load)
    verb = " is" if pdr.startswith("not known") else ":"
    lines.append(f"PDR at {percent_text(plr)} loss{verb} {pdr}.")
    accuracy = ""
    if verdict.delta_ucl95 is not None:
        accuracy = f" Δ_UCL95 there: {percent_text(round(verdict.delta_ucl95, 3))} of the loss."
    lines.append(f"PASTRAMI's conditions: {verdict.pastrami.reason}.{accuracy}")
    return lines


def pdr_text(pdr: LoadEstimate | None, why_none: str, show: Callable[[float], str]) -> str:
    """PDR with its interval; only a bound where the loads end before PDR does."""
    if pdr is None:
        return f"not known: {why_none}"
    if pdr.bounded:
        return f"{show(pdr.pps)} (95 %: {show(pdr.low_pps)} to {show(pdr.high_pps)})"
    if pdr.low_pps > 0:
        return f"at least {show(pdr.low_pps)}; the loads end too early to say more"
    return "not known: there are too few loads and runs"


def _pdr_cell(judged: Judged) -> str:
    if judged.verdict is None:
        reported = judged.trials.reported.get("pdr_pps")
        return f"({_load(reported)})" if reported is not None else "–"
    estimate = judged.verdict.pdr
    if estimate is None:
        lowest = _load(float(judged.trials.offered_pps.min()))
        return f"< {lowest}" if judged.verdict.tested else "–"
    if estimate.bounded:
        return _load(estimate.pps)
    return f"≥ {_load(estimate.low_pps)}" if estimate.low_pps > 0 else "–"


def _kinds(judged: Judged) -> str:
    kinds = [warning.code for warning in judged.verdict.warnings] if judged.verdict else []
    if judged.trials.notes:
        kinds.insert(0, f"{len(judged.trials.notes)} of reading")
    return ", ".join(kinds) or "none"


def _load(pps: float) -> str:
    if pps >= 1e6:
        return f"{pps / 1e6:.4g} Mpps"
    return f"{pps / 1e3:.4g} kpps" if pps >= 1e3 else f"{pps:.4g} pps"


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
