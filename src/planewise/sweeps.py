"""One sweep or search of a SUT, from its plan to its report: joins the rooms, measures nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from planewise.errors import PlanewiseError
from planewise.judge.curve import Run
from planewise.measure.designs.ladders import ladder_around
from planewise.measure.designs.schedule import TRIAL_OVERHEAD_S
from planewise.measure.runs.experiment import Progress
from planewise.measure.runs.pilots import PILOT_S
from planewise.measure.runs.sut import Sut, SutMeasurer
from planewise.measure.search.goals import Goal, SearchResult, SearchTrial
from planewise.measure.search.run import Algorithm, run_search
from planewise.measure.search.sequential import SequentialPlan, SweepResult, sweep_until_verdict
from planewise.pipeline import RemoteHosts, begin, changed_hosts
from planewise.report import html
from planewise.store.cells import ALL_TRIALS, factors_of, words
from planewise.store.models import Fingerprint, RunInfo, RunStatus, Session
from planewise.store.rundir import RUN_FILE, RunReader, RunWriter, check_free
from planewise.units import count_text, rate_text

REPORT_FILE = "report.html"


@dataclass(frozen=True)
class SweepPlan:
    """Parameters of `planewise sweep`."""

    sut: Sut
    loads_pps: tuple[float, ...] | None
    """None: a ladder around what a pilot in overload forwards."""
    steps: int
    runs: int
    """Trials at each load; with `until_verdict` their limit on average."""
    duration_s: float
    size_bytes: int
    until_verdict: bool
    seed: int
    within_reach: bool = False
    """`loads_pps` are from another sweep: loads beyond the generator's rate are left out, and a
    pilot finds others where too few remain. Else such loads are refused."""

    @property
    def title(self) -> str:
        """Of the report."""
        cell = self.sut.cell
        levels = {name: level for name, level in cell.items() if name != "ip_version"}
        beyond = words(factors_of(levels))
        title = f"Load and loss of {cell['plane']}, IPv{cell['ip_version']}"
        return title if beyond == ALL_TRIALS else f"{title}, {beyond}"

    @property
    def design(self) -> dict[str, dict[str, object]]:
        """What tells one sweep from another; an automatic ladder's loads are not known before."""
        sweep: dict[str, object] = {"cell": dict(self.sut.cell)}
        if self.loads_pps is not None and not self.within_reach:
            sweep["offered_pps"] = self.loads_pps
        names = ("runs", "duration_s", "size_bytes", "until_verdict")
        return {"sweep": sweep | {name: getattr(self, name) for name in names}}

    @property
    def sequential(self) -> SequentialPlan:
        """Without `until_verdict`, `runs` at every load before the first look, and no more."""
        mean = float(self.runs)
        if self.until_verdict:
            return SequentialPlan(max_mean_runs=mean)
        return SequentialPlan(first_runs=self.runs, max_runs_per_load=self.runs, max_mean_runs=mean)


@dataclass(frozen=True)
class SearchPlan:
    """Parameters of `planewise search`."""

    sut: Sut
    goals: tuple[Goal, ...]
    algorithm: Algorithm
    budget_s: float
    """Infinite: no limit."""
    with_verdict: bool
    size_bytes: int
    seed: int

    @property
    def title(self) -> str:
        """Of the report."""
        return f"NDR and PDR of {self.sut.cell['plane']}, IPv{self.sut.cell['ip_version']}"

    @property
    def design(self) -> dict[str, dict[str, object]]:
        """What tells one search from another."""
        return {
            "search": {
                "cell": dict(self.sut.cell),
                "goals": [goal.name for goal in self.goals],
                "algorithm": self.algorithm.name,
                "budget_s": self.budget_s if math.isfinite(self.budget_s) else None,
                "with_verdict": self.with_verdict,
                "size_bytes": self.size_bytes,
            }
        }


_LEAST_LOADS = 3
"""Least number of loads of an automatic ladder."""


def sweep(
    plan: SweepPlan,
    out: Path,
    host: Fingerprint,
    progress: Progress,
    remote: RemoteHosts | None = None,
) -> SweepResult:
    """Measures one load-loss curve into the run directory `out`, judges and reports it.

    `out` is new, or holds the same sweep cut short, which goes on where it stopped.
    """
    earlier = _cut_short(plan, out)
    with SutMeasurer(_sut(plan, remote), plan.size_bytes) as measurer:
        loads = _loads(plan, measurer, earlier, progress)
        design = {"sweep": plan.design["sweep"] | {"offered_pps": list(loads)}}
        info = begin(plan.title, {**design}, plan.seed, host, remote, measurer.built)
        info = info.model_copy(update={"trials_planned": plan.runs * len(loads)})
        measured, each_s = [0], plan.duration_s + TRIAL_OVERHEAD_S
        progress.begin("sweeping", each_s * plan.runs * len(loads))

        def on_trial(load: float, _: Run) -> None:
            measured[0] += 1
            progress.step(f"offered {rate_text(load)}", each_s * measured[0])

        with _kept(out, info, earlier, measurer, progress):
            result = sweep_until_verdict(
                measurer,
                loads,
                duration_s=plan.duration_s,
                plan=plan.sequential,
                extend=plan.until_verdict and plan.loads_pps is None,
                seed=plan.seed,
                name=" ".join(str(level) for level in plan.sut.cell.values()),
                on_trial=on_trial,
            )
    html.write(RunReader(out), out / REPORT_FILE)
    if plan.until_verdict:
        return result
    return replace(result, stopped="every load measured as often as requested")


def search(
    plan: SearchPlan,
    out: Path,
    host: Fingerprint,
    progress: Progress,
    on_trial: Callable[[SearchTrial, int, float], None],
    remote: RemoteHosts | None = None,
) -> SearchResult:
    """Searches NDR and PDR into the run directory `out`, and reports the trials as a curve.

    `out` as of `sweep`. `on_trial` receives each trial, the number of trials and the seconds spent.
    """
    earlier = _cut_short(plan, out)
    with SutMeasurer(_sut(plan, remote), plan.size_bytes) as measurer:
        info = begin(plan.title, {**plan.design}, plan.seed, host, remote, measurer.built)
        with _kept(out, info, earlier, measurer, progress) as writer:
            result = run_search(
                measurer,
                plan.goals,
                plan.algorithm,
                budget_s=plan.budget_s,
                with_verdict=plan.with_verdict,
                on_trial=on_trial,
            )
            result_json = result.to_json()
            del result_json["trial_list"]
            writer.finish(writer.info.model_copy(update={"result": result_json}))
    html.write(RunReader(out), out / REPORT_FILE)
    return result


def _sut(plan: SweepPlan | SearchPlan, remote: RemoteHosts | None) -> Sut:
    return plan.sut if remote is None else plan.sut.on(remote.pair)


def _cut_short(plan: SweepPlan | SearchPlan, out: Path) -> RunReader | None:
    """The run in `out` where it is the same one, unfinished; None where `out` is free.

    BadInputError for anything else in `out`.
    """
    if (out / RUN_FILE).exists():
        run = RunReader(out)
        ((kind, parameters),) = plan.design.items()
        before = run.info.design.get(kind)
        alike = isinstance(before, dict) and all(
            before.get(name) == json.loads(json.dumps(value)) for name, value in parameters.items()
        )
        if alike and run.info.status != "done" and run.info.seed == plan.seed:
            return run
    check_free(out)
    return None


def _loads(
    plan: SweepPlan, measurer: SutMeasurer, earlier: RunReader | None, progress: Progress
) -> tuple[float, ...]:
    """The ladder of the plan or of the run that goes on, else one around what a pilot forwards."""
    loads = plan.loads_pps or ()
    if earlier is not None:
        before = earlier.info.design["sweep"]
        found = before.get("offered_pps") if isinstance(before, dict) else None
        loads = tuple(map(float, found)) if isinstance(found, list) else ()
    elif plan.within_reach:
        loads = reachable(loads, measurer.max_load_pps, progress)
        loads = loads if len(loads) >= _LEAST_LOADS else ()
    if loads:
        return loads
    max_pps = measurer.max_load_pps
    pilot = measurer.trial(max_pps, PILOT_S)
    return ladder_around(pilot.received / (pilot.duration_s or PILOT_S), plan.steps, max_pps)


def reachable(loads_pps: Sequence[float], max_pps: float, progress: Progress) -> tuple[float, ...]:
    """The loads up to the generator's maximum; notes those that are left out."""
    sendable = tuple(load for load in loads_pps if load <= max_pps)
    if len(sendable) < len(loads_pps):
        beyond = ", ".join(rate_text(load) for load in loads_pps if load > max_pps)
        progress.note(f"left out, because the generator sends {rate_text(max_pps)} now: {beyond}")
    return sendable


@contextmanager
def _kept(
    out: Path, info: RunInfo, earlier: RunReader | None, measurer: SutMeasurer, progress: Progress
) -> Iterator[RunWriter]:
    """Keeps the measurer's trials in a new run, or in the one that goes on: they answer first.

    Writes how it ended into the run, also on Ctrl-C and errors.
    """
    with RunWriter.create(out, info) if earlier is None else RunWriter.resume(out) as writer:

        def end(status: RunStatus, reason: str = "") -> None:
            update = {"status": status, "reason": reason, "finished": datetime.now(UTC)}
            writer.finish(writer.info.model_copy(update=update))

        if earlier is not None:
            trials = earlier.trials()
            measurer.replay(trials)
            progress.note(
                f"continuing the run in {out}, which has {count_text(len(trials), 'trial')}"
            )
            session = Session(
                started=datetime.now(UTC),
                first_order=writer.next_order,
                changed=changed_hosts(earlier.info.hosts, info.hosts),
            )
            sessions = (*writer.info.sessions, session)
            writer.finish(writer.info.model_copy(update={"sessions": sessions}))
        measurer.on_record = writer.append
        try:
            yield writer
        except KeyboardInterrupt:
            end("interrupted")
            progress.note(f"the results so far are in {out}: `planewise judge {out}` judges it")
            raise
        except PlanewiseError as error:
            end("failed", error.what)
            raise
        end("done")
