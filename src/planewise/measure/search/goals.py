"""Goals, trials and results of a search.

A goal is MLRsearch's search goal with exceed ratio 0.5 (FD.io CSIT's): the largest load up to
which at least half of all trials lose no more than the goal's share. `ndr` is the share 0.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from planewise.errors import BadInputError
from planewise.judge.curve import Curve, Run

GoalStatus = Literal["found", "above-range", "below-range", "undecided"]
"""How a goal's search ended.

`found`        estimate and interval stand
`above-range`  even the highest load meets the goal: `pps` is that load, `high_pps` is None
`below-range`  even the lowest load misses it: `pps` is None, `high_pps` is that load
`undecided`    the trials do not tell; the reason is in `note`
"""

StopReason = Literal["precise", "trials", "budget", "range"]
"""Why a search stopped: interval narrow enough, trial limit, budget spent, end of the range."""


@dataclass(frozen=True)
class Goal:
    """One search goal."""

    loss_ratio: float
    """A trial is good when it loses at most this share, 0 ≤ share < 1."""

    def __post_init__(self) -> None:
        """BadInputError when the share is not a share."""
        if not (math.isfinite(self.loss_ratio) and 0 <= self.loss_ratio < 1):
            raise BadInputError(
                f"a goal's loss ratio must lie between 0 and 1, not {self.loss_ratio}",
                remedy="write ndr for no loss, pdr:0.005 for half a per cent",
            )

    @property
    def name(self) -> str:
        """`ndr` or `pdr:<share>`, as it is parsed."""
        return "ndr" if self.loss_ratio == 0 else f"pdr:{self.loss_ratio:g}"

    @property
    def loss_exponent(self) -> float:
        """−ln(1 − share): the same threshold for z = ln(sent/received)."""
        return -math.log1p(-self.loss_ratio)

    @classmethod
    def parse(cls, text: str) -> Goal:
        """`ndr`, `pdr` (0.5 %), `pdr:0.005`, `pdr:0.5%`. BadInputError for anything else."""
        word, _, share = text.strip().lower().partition(":")
        if word == "ndr" and not share:
            return cls(0.0)
        if word == "pdr":
            try:
                scale = 100.0 if share.endswith("%") else 1.0
                value = float(share.rstrip("%")) / scale if share else 0.005
            except ValueError:
                value = math.nan
            if 0 < value < 1:
                return cls(value)
        raise BadInputError(
            f"'{text}' is not a search goal", remedy="write ndr, or pdr:0.005 for half a per cent"
        )


@dataclass(frozen=True)
class SearchTrial:
    """A trial of the search, in the order of the search."""

    offered_pps: float
    """As intended."""
    duration_s: float
    run: Run

    @property
    def achieved_pps(self) -> float:
        """The load as sent [packet/s]."""
        return self.run.sent / (self.run.duration_s or self.duration_s)

    @property
    def loss_ratio(self) -> float:
        """Share lost, not below 0 where more arrived than was sent."""
        return max(0.0, self.run.plr)


@dataclass(frozen=True)
class ViolatedAssumption:
    """A violated assumption, with its evidence."""

    code: str
    """`not-monotone`, `thrashing` or `generator`."""
    message: str
    """One sentence with the numbers that show it."""


@dataclass(frozen=True)
class GoalResult:
    """Result of one goal."""

    goal: Goal
    status: GoalStatus
    pps: float | None
    low_pps: float | None = None
    high_pps: float | None = None
    interval: str = "95%"
    """The confidence, or `bracket` where the algorithm promises none."""
    note: str = ""

    @property
    def relative_half_width(self) -> float:
        """Half of the interval's width over the estimate; infinite where an end is missing."""
        if not self.pps or self.low_pps is None or self.high_pps is None:
            return math.inf
        return (self.high_pps - self.low_pps) / (2 * self.pps)

    def to_json(self) -> dict[str, Any]:
        """A JSON object; keys are the field names, `goal` is its name."""
        return asdict(self) | {"goal": self.goal.name}


@dataclass(frozen=True)
class SearchVerdict:
    """Whether PDR can stand for the curve, from the search's own trials."""

    label: str
    """GOOD, BAD or UNDECIDED."""
    reason: str
    stability: str = ""
    """How many runs agree."""


@dataclass(frozen=True)
class SearchResult:
    """A finished search."""

    algorithm: str
    goals: tuple[GoalResult, ...]
    trials: tuple[SearchTrial, ...]
    stopped: StopReason
    overhead_s: float
    """Pause counted for each trial, beyond its traffic."""
    verdict: SearchVerdict | None = None
    verdict_trials: int = 0
    """How many of the last trials served the verdict only."""
    findings: tuple[ViolatedAssumption, ...] = field(default=())
    final_duration_s: float = 1.0
    """Duration of the trials that NDR and PDR are about. Other durations have other NDR and PDR: a
    queue's length, or a processor's turbo, weighs more the shorter trials are."""

    @property
    def trial_seconds_s(self) -> float:
        """Traffic time of all trials."""
        return math.fsum(trial.duration_s for trial in self.trials)

    @property
    def total_seconds_s(self) -> float:
        """Traffic time and the pauses between trials."""
        return self.trial_seconds_s + self.overhead_s * len(self.trials)

    def goal(self, name: str) -> GoalResult:
        """The result for the goal of this name."""
        for result in self.goals:
            if result.goal.name == name:
                return result
        raise BadInputError(f"this search had no goal '{name}'")

    def curve(self, name: str = "search") -> Curve | None:
        """The search's trials as a load-loss curve; None when there were none."""
        runs: dict[float, list[Run]] = {}
        for trial in self.trials:
            runs.setdefault(trial.offered_pps, []).append(trial.run)
        return Curve.from_runs(name, runs, {"search": self.algorithm}) if runs else None

    def to_json(self) -> dict[str, Any]:
        """A JSON object: goals, verdict, costs, findings, and every trial."""
        verdict = self.verdict
        return {
            "algorithm": self.algorithm,
            "stopped": self.stopped,
            "goals": [result.to_json() for result in self.goals],
            "verdict": verdict.label if verdict else None,
            "verdict_reason": verdict.reason if verdict else "",
            "stability": verdict.stability if verdict else "",
            "trials": len(self.trials),
            "verdict_trials": self.verdict_trials,
            "trial_seconds_s": self.trial_seconds_s,
            "total_seconds_s": self.total_seconds_s,
            "overhead_s": self.overhead_s,
            "final_duration_s": self.final_duration_s,
            "warnings": [asdict(finding) for finding in self.findings],
            "trial_list": [
                {
                    "offered_pps": trial.offered_pps,
                    "duration_s": trial.duration_s,
                    "sent": trial.run.sent,
                    "received": trial.run.received,
                }
                for trial in self.trials
            ],
        }
