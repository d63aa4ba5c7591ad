"""One sweep or search of a SUT, from its plan to its report: joins the rooms, measures nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from planewise.errors import PlanewiseError
from planewise.judge.curve import Curve, Run
from planewise.judge.verdict import Verdict
from planewise.measure.designs.ladders import ladder_around
from planewise.measure.designs.schedule import TRIAL_OVERHEAD_S
from planewise.measure.runs.experiment import Progress
from planewise.measure.runs.pilots import PILOT_S
from planewise.measure.runs.sut import Built, Sut, SutMeasurer
from planewise.measure.search.goals import Goal, SearchResult, SearchTrial
from planewise.measure.search.run import Algorithm, run_search
from planewise.measure.search.sequential import SequentialPlan, sweep_until_verdict
from planewise.pipeline import RemoteHosts, begin, changed_hosts
from planewise.report import html
from planewise.store.cells import ALL_TRIALS, factors_of, words
from planewise.store.models import Fingerprint, RunInfo, RunStatus, Session, TrialRecord
from planewise.store.rundir import RUN_FILE, RunReader, RunWriter, check_free
from planewise.units import count_text, rate_text


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


@dataclass(frozen=True)
class SweepRun:
    """Paths and results of a sweep."""

    directory: Path
    report: Path
    curve: Curve
    verdict: Verdict
    trials: int
    traffic_s: float
    stopped: str

    def as_json(self) -> dict[str, object]:
        """Paths, verdict and rates, as `planewise sweep --json` prints them."""
        verdict = self.verdict
        pdr = verdict.pdr
        return {
            "run": str(self.directory),
            "report": str(self.report),
            "verdict": verdict.verdict,
            "reason": verdict.reason,
            "open": verdict.open,
            "headroom_low": verdict.headroom and verdict.headroom.low,
            "disturbed_at_most": verdict.stability.disturbed_at_most,
            "pdr_pps": pdr and pdr.pps,
            "pdr_low_pps": pdr and pdr.low_pps,
            "pdr_high_pps": pdr and pdr.high_pps,
            "ndr_pps": verdict.ndr and verdict.ndr.pps,
            "saturation_pps": verdict.saturation and verdict.saturation.offered_pps,
            "trials": self.trials,
            "traffic_s": self.traffic_s,
            "stopped": self.stopped,
            "warnings": [warning.text for warning in verdict.warnings],
        }


def sweep(
    plan: SweepPlan,
    out: Path,
    host: Fingerprint,
    progress: Progress,
    remote: RemoteHosts | None = None,
) -> SweepRun:
    """Measures one load-loss curve into the run directory `out`, judges and reports it.

    `out` is new, or holds the same sweep cut short, which goes on where it stopped.
    """
    earlier = _cut_short(out, "sweep", _sweep_parameters(plan), plan.seed)
    records: list[TrialRecord] = []
    sut = plan.sut if remote is None else plan.sut.on(remote.pair)
    with SutMeasurer(sut, plan.size_bytes, records.append) as measurer:
        loads = plan.loads_pps or ()
        if earlier is not None:
            loads = _loads_of(earlier)
        elif plan.within_reach:
            loads = reachable(loads, measurer.max_load_pps, progress)
        if not loads or (plan.within_reach and len(loads) < _LEAST_LOADS and earlier is None):
            max_pps = measurer.max_load_pps
            pilot = measurer.trial(max_pps, PILOT_S)
            forwarded_pps = pilot.received / (pilot.duration_s or PILOT_S)
            loads = ladder_around(forwarded_pps, plan.steps, max_pps)
        records.clear()
        measured = [0]
        info = _sweep_info(plan, loads, host, remote, measurer.built)
        each_s = plan.duration_s + TRIAL_OVERHEAD_S
        progress.begin("sweeping", each_s * plan.runs * len(loads))
        with _writer(out, info, earlier, measurer, progress) as writer:
            info = writer.info

            def keep(load: float, _: Run) -> None:
                while records:
                    writer.append(records.pop(0))
                measured[0] += 1
                progress.step(f"offered {rate_text(load)}", each_s * measured[0])

            with _ended_early(writer, info, progress):
                result = sweep_until_verdict(
                    measurer,
                    loads,
                    duration_s=plan.duration_s,
                    plan=_sequential(plan),
                    extend=plan.until_verdict and plan.loads_pps is None,
                    seed=plan.seed,
                    name=" ".join(str(level) for level in plan.sut.cell.values()),
                    on_trial=keep,
                )
            _end(writer, info, "done")
    report = out / "report.html"
    html.write(RunReader(out), report)
    return SweepRun(
        out,
        report,
        result.curve,
        result.verdict,
        result.trials,
        result.traffic_s,
        result.stopped if plan.until_verdict else "every load measured as often as requested",
    )


def _cut_short(
    out: Path, kind: str, parameters: Mapping[str, object], seed: int
) -> RunReader | None:
    """The run in `out` where it is the same one, unfinished; None where `out` is free.

    BadInputError for anything else in `out`.
    """
    if (out / RUN_FILE).exists():
        run = RunReader(out)
        before = run.info.design.get(kind)
        alike = isinstance(before, dict) and all(
            before.get(name) == json.loads(json.dumps(value)) for name, value in parameters.items()
        )
        if alike and run.info.status != "done" and run.info.seed == seed:
            return run
    check_free(out)
    return None


def _loads_of(run: RunReader) -> tuple[float, ...]:
    sweep = run.info.design["sweep"]
    loads = sweep.get("offered_pps") if isinstance(sweep, dict) else None
    return tuple(map(float, loads)) if isinstance(loads, list) else ()


def _writer(
    out: Path,
    info: RunInfo,
    earlier: RunReader | None,
    measurer: SutMeasurer,
    progress: Progress,
) -> RunWriter:
    """Of a new run, or of the one that goes on: its trials then answer first."""
    if earlier is None:
        return RunWriter.create(out, info)
    writer = RunWriter.resume(out)
    trials = earlier.trials()
    measurer.replay(trials)
    progress.note(f"continuing the run in {out}, which has {count_text(len(trials), 'trial')}")
    session = Session(
        started=datetime.now(UTC),
        first_order=writer.next_order,
        changed=changed_hosts(earlier.info.hosts, info.hosts),
    )
    sessions = (*writer.info.sessions, session)
    writer.finish(writer.info.model_copy(update={"sessions": sessions}))
    return writer


@contextmanager
def _ended_early(writer: RunWriter, info: RunInfo, progress: Progress) -> Iterator[None]:
    """On Ctrl-C or an error, writes status and reason into the run and raises again."""
    try:
        yield
    except KeyboardInterrupt:
        _end(writer, info, "interrupted")
        out = writer.path
        progress.note(f"the results so far are in {out}: `planewise judge {out}` judges it")
        raise
    except PlanewiseError as error:
        _end(writer, info, "failed", error.what)
        raise


def _end(writer: RunWriter, info: RunInfo, status: RunStatus, reason: str = "") -> None:
    end = {"status": status, "reason": reason, "finished": datetime.now(UTC)}
    writer.finish(info.model_copy(update=end))


def _sequential(plan: SweepPlan) -> SequentialPlan:
    """Without `until_verdict`, `runs` at every load before the first look, and no more."""
    if plan.until_verdict:
        return SequentialPlan(max_mean_runs=float(plan.runs))
    return SequentialPlan(
        first_runs=plan.runs, max_runs_per_load=plan.runs, max_mean_runs=float(plan.runs)
    )


_LEAST_LOADS = 3
"""Least number of loads of an automatic ladder."""


def reachable(loads_pps: Sequence[float], max_pps: float, progress: Progress) -> tuple[float, ...]:
    """The loads up to the generator's maximum; notes those that are left out."""
    sendable = tuple(load for load in loads_pps if load <= max_pps)
    if len(sendable) < len(loads_pps):
        beyond = ", ".join(rate_text(load) for load in loads_pps if load > max_pps)
        progress.note(f"left out, because the generator sends {rate_text(max_pps)} now: {beyond}")
    return sendable


def _sweep_info(
    plan: SweepPlan,
    loads: Sequence[float],
    host: Fingerprint,
    remote: RemoteHosts | None,
    built: Built,
) -> RunInfo:
    cell = plan.sut.cell
    parameters = _sweep_parameters(plan) | {"offered_pps": list(loads)}
    levels = {name: level for name, level in cell.items() if name != "ip_version"}
    beyond = words(factors_of(levels))
    title = f"Load and loss of {cell['plane']}, IPv{cell['ip_version']}"
    if beyond != ALL_TRIALS:
        title = f"{title}, {beyond}"
    info = begin(title, {"sweep": parameters}, plan.seed, host, remote, built)
    return info.model_copy(update={"trials_planned": plan.runs * len(loads)})


def _sweep_parameters(plan: SweepPlan) -> dict[str, object]:
    """What tells one sweep from another; an automatic ladder's loads are not known before."""
    loads = {} if plan.loads_pps is None or plan.within_reach else {"offered_pps": plan.loads_pps}
    return {
        "cell": dict(plan.sut.cell),
        **loads,
        "runs": plan.runs,
        "duration_s": plan.duration_s,
        "size_bytes": plan.size_bytes,
        "until_verdict": plan.until_verdict,
    }


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


@dataclass(frozen=True)
class SearchRun:
    """Paths and results of a search."""

    directory: Path
    report: Path
    result: SearchResult


def search(
    plan: SearchPlan,
    out: Path,
    host: Fingerprint,
    progress: Progress,
    on_trial: Callable[[SearchTrial, int, float], None],
    remote: RemoteHosts | None = None,
) -> SearchRun:
    """Searches NDR and PDR into the run directory `out`, and reports the trials as a curve.

    `out` as of `sweep`. `on_trial` receives each trial, the number of trials and the seconds spent.
    """
    earlier = _cut_short(out, "search", _search_parameters(plan), plan.seed)
    records: list[TrialRecord] = []
    sut = plan.sut if remote is None else plan.sut.on(remote.pair)
    with SutMeasurer(sut, plan.size_bytes, records.append) as measurer:
        info = _search_info(plan, host, remote, measurer.built)
        with _writer(out, info, earlier, measurer, progress) as writer:
            info = writer.info

            def keep(trial: SearchTrial, count: int, spent_s: float) -> None:
                while records:
                    writer.append(records.pop(0))
                on_trial(trial, count, spent_s)

            with _ended_early(writer, info, progress):
                result = run_search(
                    measurer,
                    plan.goals,
                    plan.algorithm,
                    budget_s=plan.budget_s,
                    with_verdict=plan.with_verdict,
                    on_trial=keep,
                )
            result_json = result.to_json()
            del result_json["trial_list"]
            _end(writer, info.model_copy(update={"result": result_json}), "done")
    report = out / "report.html"
    html.write(RunReader(out), report)
    return SearchRun(out, report, result)


def _search_info(
    plan: SearchPlan, host: Fingerprint, remote: RemoteHosts | None, built: Built
) -> RunInfo:
    cell = plan.sut.cell
    title = f"NDR and PDR of {cell['plane']}, IPv{cell['ip_version']}"
    design: dict[str, object] = {"search": _search_parameters(plan)}
    return begin(title, design, plan.seed, host, remote, built)


def _search_parameters(plan: SearchPlan) -> dict[str, object]:
    return {
        "cell": dict(plan.sut.cell),
        "goals": [goal.name for goal in plan.goals],
        "algorithm": plan.algorithm.name,
        "budget_s": plan.budget_s if math.isfinite(plan.budget_s) else None,
        "with_verdict": plan.with_verdict,
        "size_bytes": plan.size_bytes,
    }
