"""Files and examples judged: what `planewise judge` prints, as values."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from planewise.errors import BadInputError
from planewise.judge.curve import Curve
from planewise.judge.from_store import curve_from_trials, with_few_loads
from planewise.judge.headroom import LIMIT
from planewise.judge.verdict import LoadEstimate, Rule, Verdict, judge
from planewise.store import importers
from planewise.store.loads import LoadTrials
from planewise.store.readings import Collected, Readings
from planewise.units import percent_text

EXAMPLE_LOADS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.35, 1.5, 1.7, 2.0)
"""Offered loads of an example, in parts of its capacity."""
EXAMPLE_RUNS = 10
EXAMPLE_DURATION_S = 1.0


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

    @property
    def is_search(self) -> bool:
        """Whether each load was tried once, as NFVbench's and TRex's binary searches do."""
        return self.curve is not None and len(self.trials) == self.trials.loads


def load_text(pps: float) -> str:
    """A load with four digits."""
    if pps >= 1e6:
        return f"{pps / 1e6:.4g} Mpps"
    return f"{pps / 1e3:.4g} kpps" if pps >= 1e3 else f"{pps:.4g} pps"


def judge_file(
    file: Path, format_name: str | None, rule: Rule = "planewise", plr: float = 0.005
) -> list[Judged]:
    """Every curve of a file or run directory, with its verdict.

    Raises:
        BadInputError: the file cannot be read, or has nothing to judge.
    """
    return judge_curves(file, importers.read(file, format_name), rule, plr)


def judge_curves(
    file: Path, curves: Iterable[LoadTrials], rule: Rule = "planewise", plr: float = 0.005
) -> list[Judged]:
    """Each of a file's curves with its verdict. BadInputError where there is nothing to judge."""
    judged = []
    for trials in curves:
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
        judged.append(Judged(str(file), trials, curve, judge(curve, rule, plr)))
    return judged


def as_readings(judged: Judged) -> list[Readings]:
    """What a curve has to compare: PDR with its interval, the tool's own NDR and PDR, or, of a
    single load, the share lost."""
    trials, found = judged.trials, Collected(Path(judged.file), judged.trials.format)
    pdr = judged.verdict.pdr if judged.verdict else None
    if pdr is not None and pdr.bounded:
        found.add_number("PDR", "pps", pdr.pps, trials.curve, low=pdr.low_pps, high=pdr.high_pps)
    for name, value in trials.reported.items():
        found.add_number(f"{name[:3].upper()} as reported", "pps", value, trials.curve)
    if trials.loads == 1:
        lost = np.clip(1 - trials.received / trials.sent, 0, 1)
        at = f"{trials.curve} at {load_text(float(trials.offered_pps[0]))}".strip()
        found.add("loss", "share", "run", lost.tolist(), at)
    return found.finish("its loads bound no PDR from above, so there is no number to compare")


def judge_example(name: str, rule: Rule, plr: float) -> Judged:
    """A synthetic system on the example's ladder, with its truth as a note."""
    from planewise.judge import synthetic  # loads scipy.stats, which takes a second

    sut = synthetic.by_name(name)
    loads = [round(part * sut.capacity_pps) for part in EXAMPLE_LOADS]
    curve = sut.start(seed=1).sweep(loads, runs=EXAMPLE_RUNS, duration_s=EXAMPLE_DURATION_S)
    time_s = EXAMPLE_RUNS * EXAMPLE_DURATION_S * len(loads)
    truth = sut.truth(plr, trial_duration_s=EXAMPLE_DURATION_S, elapsed_s=time_s / 2)
    truths = [
        f"{quantity} {load_text(value)}"
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
    note = f"a simulated system: {sut.summary}. The truth: {', '.join(truths)}"
    table = np.concatenate([point.table for point in curve.points])
    trials = LoadTrials(
        curve.name,
        "synthetic",
        np.repeat(curve.offered_pps, curve.counts),
        table["sent"].astype(np.float64),
        table["received"].astype(np.float64),
        table["order"],
        table["duration_s"],
        notes=(note,),
    )
    return Judged(f"example:{name}", trials, curve, judge(curve, rule, plr))


def as_json(judged: Judged, rule: Rule, plr: float) -> dict[str, object]:
    """The answer of `planewise judge --json`; null where a file without trials says nothing, and
    where the ladder does not bound an end."""
    verdict, reported = judged.verdict, judged.trials.reported
    headroom, saturation = verdict and verdict.headroom, verdict and verdict.saturation
    return {
        "file": judged.file,
        "curve": judged.trials.curve,
        "format": judged.trials.format,
        "rule": rule,
        "plr": plr,
        "verdict": judged.word,
        "reason": verdict.reason if verdict else NOTHING_TO_JUDGE,
        "open": verdict and verdict.open,
        "headroom_low": headroom and headroom.low,
        "headroom_high": headroom.high if headroom and math.isfinite(headroom.high) else None,
        "pastrami": verdict and verdict.pastrami.word,
        "pastrami_reason": verdict and verdict.pastrami.reason,
        "delta_ucl95": verdict and verdict.delta_ucl95,
        "runs_that_decide": verdict and verdict.stability.runs,
        "disturbed_runs": verdict and verdict.stability.disturbed,
        "disturbed_at_most": verdict and verdict.stability.disturbed_at_most,
        **_interval("pdr", verdict.pdr if verdict else reported.get("pdr_pps")),
        **_interval("ndr", verdict.ndr if verdict else reported.get("ndr_pps")),
        **_interval("first_crossing", verdict.first_crossing if verdict else None),
        "saturation_pps": saturation and saturation.offered_pps,
        "saturation_throughput_pps": saturation and saturation.throughput_pps,
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


NOTHING_TO_JUDGE = "the file reports numbers and keeps no trials: nothing can be judged"


def _interval(name: str, estimate: LoadEstimate | float | None) -> dict[str, float | None]:
    """Three keys. A bare number is another tool's, reported without an interval."""
    if estimate is None or isinstance(estimate, int | float):
        return {f"{name}_pps": estimate, f"{name}_low_pps": None, f"{name}_high_pps": None}
    return {
        f"{name}_pps": estimate.pps,
        f"{name}_low_pps": estimate.low_pps,
        f"{name}_high_pps": estimate.high_pps,
    }
