"""Whether a trial kept the levels of its cell. Pure; knows records, no statistics.

Levels are the rate of the probes (of bursts the rate within them, and their mean rate), and the
strength of the background load where the design sets one. A trial that did not keep a level within
`TOLERANCE` measured another cell: it is shown with the level that it achieved, and counts in no
comparison, average or recommendation. The offered load of a load trial is no level of its cell: see
`TrialRecord.limits`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from planewise.units import rate_text

if TYPE_CHECKING:
    from planewise.store.models import TrialRecord

TOLERANCE = 0.01
"""Largest deviation from a level, or of a generator from its load, that counts as kept: a share."""


NAMES = {
    "frequency_pps": "rate of the probes",
    "pattern": "mean rate of the bursts",
    "background": "background load",
}
"""Levels in words."""


@dataclass(frozen=True)
class MissedLevel:
    """A level of its cell that a trial did not keep."""

    factor: str
    """As the cell names it."""
    wanted: float
    achieved: float
    unit: Literal["pps", "cpus"] = "pps"

    @property
    def share(self) -> float:
        """The achieved level as a share of the wanted one."""
        return self.achieved / self.wanted

    @property
    def sentence(self) -> str:
        """The achieved and the wanted level, in words."""
        name = NAMES.get(self.factor, self.factor)
        if self.unit == "pps":
            return f"{name}: {rate_text(self.achieved)} of {rate_text(self.wanted)}"
        cpus = "CPU" if self.wanted == 1 else "CPUs"
        return f"{name}: {round(self.achieved, 2):g} of {self.wanted:.3g} {cpus}"


def is_kept(intended: float, achieved: float) -> bool:
    """Whether a level was kept within the tolerance."""
    return abs(achieved - intended) <= TOLERANCE * intended


def missed_levels(trial: TrialRecord) -> tuple[MissedLevel, ...]:
    """The levels that a trial did not keep.

    A level of which nothing was recorded counts as kept, so that old runs stay comparable.
    """
    if trial.status != "done":
        return ()
    return (*_missed_rate(trial), *_missed_load(trial))


def _missed_load(trial: TrialRecord) -> Iterable[MissedLevel]:
    """A background load that missed its set strength by more than the window's resolution."""
    load = trial.background
    if load is None or not load.wanted:
        return
    if abs(load.achieved - load.wanted) > TOLERANCE * load.wanted + load.resolution:
        yield MissedLevel("background", load.wanted, load.achieved, load.unit)


def _missed_rate(trial: TrialRecord) -> Iterable[MissedLevel]:
    if trial.kind != "rtt" or trial.load is None:
        return
    label = trial.cell.get("frequency_pps")
    load = trial.load
    intended_pps = load.intended_pps if load.burst is None else load.burst.intended_pps
    intended = intended_pps if label is None or isinstance(label, str) else float(label)
    if not is_kept(intended, load.paced_pps):
        yield MissedLevel("frequency_pps", intended, load.paced_pps)
    if load.burst is not None and not is_kept(load.intended_pps, load.achieved_pps):
        yield MissedLevel("pattern", load.intended_pps, load.achieved_pps)


CPU_WINDOW_S = 0.99
"""Least window of CPU shares: 99 of the clock ticks in which the kernel counts CPU time."""


def cpu_window_s(trial: TrialRecord) -> float:
    """Window of a trial's CPU shares."""
    return trial.duration_s if trial.cpu_window_s is None else trial.cpu_window_s


def cpu_of(trial: TrialRecord) -> dict[str, dict[str, float]]:
    """A trial's CPU shares by host and mode; empty where the window was too short.

    Zero ticks in 3 ms are no share of zero. Of several load trials, see `kernel time per packet`.
    """
    return trial.cpu if cpu_window_s(trial) >= CPU_WINDOW_S else {}


def keeps_levels(trial: TrialRecord) -> bool:
    """Whether a trial has a result and kept the levels of its cell."""
    return trial.status == "done" and not missed_levels(trial)


def marked(trial: TrialRecord) -> TrialRecord:
    """The trial with `missed` set, for trials.jsonl."""
    return trial.model_copy(
        update={"missed": tuple(level.factor for level in missed_levels(trial))}
    )
