"""One run from design to report: joins the rooms (doctor, measure, judge, advise, report).

The commands `quick` and `run` are this with different designs. Nothing here measures or decides.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from planewise import __version__
from planewise.advise.recommend import recommend
from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.judge.drift import Drift, find_drift
from planewise.judge.statistics.flips import least_blocks
from planewise.measure.designs.cells import Cell, cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.schedule import (
    TRIAL_OVERHEAD_S,
    Schedule,
    blocks_within,
    estimate_s,
    make_schedule,
)
from planewise.measure.runs.experiment import Outcome, Progress, refusals, run, schedule_for
from planewise.measure.runs.meter import Meter
from planewise.measure.runs.pause import Pauses
from planewise.measure.runs.pilots import find_ranges
from planewise.measure.runs.stations import Stations
from planewise.measure.runs.verdicts import Verdicts
from planewise.measure.station import OnSample, Station
from planewise.report import html
from planewise.store.models import Fingerprint, RunInfo, Session, SkippedCell
from planewise.store.recommendation import Recommendation
from planewise.store.rundir import RunReader, RunWriter, check_free
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.hosts.state import LocalWatch, nic_offloads
from planewise.units import duration_text, time_text

LADDERS_KEY = "ladders"
"""In run.json's design: the offered loads of each cell, as the pilots found them."""


@dataclass(frozen=True)
class FinishedRun:
    """Paths and results of a finished run."""

    directory: Path
    report: Path
    outcome: Outcome
    recommendation: Recommendation
    drift: tuple[Drift, ...] = ()
    """What changed on the machine while it was measured."""


@dataclass(frozen=True)
class QuickShape:
    """How much a block of `quick` measures."""

    packets: int
    duration_s: float
    under_load: bool
    """Whether throughput is measured under background load, too."""


QUICK_SHAPES = (
    QuickShape(500, 0.25, under_load=True),
    QuickShape(300, 0.2, under_load=True),
    QuickShape(300, 0.2, under_load=False),
    QuickShape(200, 0.1, under_load=False),
)
"""Quick takes the first with room for `QUICK_BLOCKS` blocks: many blocks tell more than long ones.
Where even the last has none, it has fewer blocks.

Of 100 packets at 1 kpps, one that leaves 1.2 ms late makes the trial miss its rate by over 1 %.
"""

QUICK_BLOCKS = 8
"""Blocks that tell a difference of 10 % apart for each load at 3 % noise
(docs/concepts/statistics.md)."""

_VERDICT_TRIALS = 24
"""A verdict needs about so many load trials besides those of the blocks, at 3 % noise."""

_MARGIN = 1.1
"""Pilots foretell a block's time within about a tenth."""


@dataclass(frozen=True)
class Quick:
    """`planewise quick`: every plane × idle, CPU load, network load, as its time allows."""

    planes: Sequence[str]
    ends_s: float
    """Deadline of the result, by `time.monotonic`."""

    def __post_init__(self) -> None:
        if not self.planes:
            raise UnsupportedError(
                "this host supports none of Planewise's planes",
                remedy="`planewise doctor` says why, plane by plane",
            )

    @property
    def left_s(self) -> float:
        """Time left for measuring."""
        return self.ends_s - time.monotonic() - _AFTERWARDS_S

    def first(self) -> Design:
        """The design for a machine whose pace is not known yet."""
        return quick_design(self.planes, QUICK_SHAPES[0])

    def fitted(self, design: Design, pace: float) -> Design:
        """The largest design whose `QUICK_BLOCKS` blocks, with the trials that verdicts need, fit
        into the time left at this pace, and as many more blocks as fit. If none does: the smallest
        design, with as many blocks as there is time for."""
        for shape in QUICK_SHAPES:
            fitting = quick_design(self.planes, shape).model_copy(update={"seed": design.seed})
            assert fitting.sweep is not None
            ladders = dict.fromkeys(cells_of(fitting), fitting.sweep.placeholders)
            schedule = schedule_for(fitting, ladders, {})
            trials = [trial for visit in schedule.visits for trial in visit.trials]
            curves = sum(trial.kind == "load" for trial in trials) / len(fitting.sweep.placeholders)
            verdicts_s = curves * _VERDICT_TRIALS * (pace * TRIAL_OVERHEAD_S + shape.duration_s)
            block_s = _MARGIN * estimate_s(schedule, pace=pace)
            blocks = int((self.left_s - verdicts_s) / block_s)
            if blocks >= QUICK_BLOCKS:
                break
        else:
            blocks = max(least_blocks(), int(self.left_s / block_s))
            blocks = min(QUICK_BLOCKS, blocks)
        return fitting.model_copy(update={"blocks": blocks})


def quick_design(planes: Sequence[str], shape: QuickShape) -> Design:
    factors = {
        "plane": list(planes),
        "load_type": ["none", "cpu", "network"],
        "load_location": ["responder"],
        "background_guests": [4],
    }
    sweep = {
        "offered_pps": "auto",
        "until_verdict": True,
        "duration_s": shape.duration_s,
    }
    if not shape.under_load:
        sweep["load_types"] = ["none"]
    return Design.model_validate(
        {
            "title": "Which data plane should the guests of this host use?",
            "factors": factors,
            "rtt": {"packets": shape.packets},
            "sweep": sweep,
            "blocks": 1,
            "seed": secrets.randbelow(2**31),
        }
    )


_AFTERWARDS_S = 6.0
"""Time that quick keeps for statistics and the report."""


@dataclass(frozen=True)
class RemoteHosts:
    """The hosts of a run that are not this machine."""

    pair: Pair
    hosts: Mapping[str, Fingerprint]
    """By role."""
    testbed: Mapping[str, str]
    """As `RunInfo.testbed`."""
    emulated: str
    """As `RunInfo.emulated`."""


def _watch(remote: RemoteHosts | None) -> LocalWatch | None:
    """Reads this machine's state around trials; None where other hosts are measured."""
    return LocalWatch(offloads=nic_offloads) if remote is None else None


def dry_run(
    design: Design, remote: RemoteHosts | None = None, *, on_later_hosts: bool = False
) -> Schedule:
    """The schedule of `design` here. Ladders that need a pilot get placeholders: 1, 2, … pps.

    `on_later_hosts`: the hosts are not up yet, as in a lab that is down, so they are not asked.
    """
    unavailable: Mapping[Cell, str] = {}
    if not on_later_hosts:
        with Stations(design, None if remote is None else remote.pair) as stations:
            unavailable = stations.unavailable(cells_of(design))
    steps = () if design.sweep is None else design.sweep.placeholders
    return make_schedule(design, dict.fromkeys(cells_of(design), steps), unavailable)


def start(
    design: Design,
    out: Path,
    host: Fingerprint,
    progress: Progress,
    remote: RemoteHosts | None = None,
    *,
    on_sample: OnSample | None = None,
    quick: Quick | None = None,
) -> FinishedRun:
    """Measures `design` into the new run directory `out`, recommends and reports.

    `host` is this machine's fingerprint. With `on_sample`, the guests' rates are read each second,
    written (kpis.jsonl) and passed to it. `quick` fits the design to its deadline.
    """
    check_free(out)
    with Stations(design, None if remote is None else remote.pair) as stations:
        unavailable = stations.unavailable(cells_of(design))
        for refusal in refusals(unavailable):
            progress.note(f"left out: {refusal}")
        ranges = find_ranges(design, stations, unavailable, progress)
        if quick is not None:
            design = quick.fitted(design, ranges.pace)
        ladders = ranges.ladders(design)
        schedule = schedule_for(design, ladders, unavailable)
        if omission := check_budget(design, schedule):
            progress.note(omission)
        verdicts = None
        if design.sweep is not None and design.sweep.until_verdict:
            verdicts = Verdicts(schedule, ranges.by_cell, design.seed)
        info = _info(design, ladders, host, schedule, remote, stations)
        with RunWriter.create(out, info) as writer:
            budget_s = design.budget_s if quick is None else quick.left_s
            watch = _watch(remote)
            return _measure(
                schedule,
                stations,
                writer,
                progress,
                watch,
                on_sample,
                budget_s,
                pace=ranges.pace,
                fill=quick is not None,
                verdicts=verdicts,
            )


def check_budget(design: Design, schedule: Schedule) -> str:
    """A sentence on the blocks that the time budget leaves out; empty when it leaves out none.

    Raises:
        BadInputError: the budget has no room for one block.
    """
    if design.budget_s is None:
        return ""
    whole_s = design.budget_s >= 1
    budget = duration_text(design.budget_s) if whole_s else time_text(design.budget_s * 1e9)
    blocks = blocks_within(schedule, design.budget_s)
    if blocks == 0:
        block_s = estimate_s(schedule) / schedule.blocks
        raise BadInputError(
            f"one block of the design takes about {duration_text(block_s)}, "
            f"and the time budget is {budget}",
            where="budget_s",
            remedy="raise it, or leave out levels of some factor",
        )
    if blocks == schedule.blocks:
        return ""
    return (
        f"the time budget of {budget} fits about {blocks} of {schedule.blocks} blocks; "
        "the rest are left out"
    )


def resume(
    out: Path,
    host: Fingerprint,
    progress: Progress,
    remote: RemoteHosts | None = None,
    *,
    on_sample: OnSample | None = None,
    blocks: int = 0,
) -> FinishedRun:
    """Continues the run in `out`: measures the trials that are missing or failed.

    With `blocks`, a finished run gets so many more. `host` is this machine's fingerprint now,
    `on_sample` as in `start`.
    """
    info = RunReader(out).info
    if blocks:
        info = extended(RunReader(out), blocks)
    design, ladders = _stored(info, out)
    skipped = _skipped(info, cells_of(design))
    with Stations(design, None if remote is None else remote.pair) as stations:
        schedule = make_schedule(design, ladders, skipped)
        with RunWriter.resume(out) as writer:
            if not blocks:
                _check_unfinished(schedule, writer, info)
            cells = list(dict.fromkeys(visit.cell for visit in schedule.visits))
            unavailable = stations.unavailable(cells)
            if unavailable:
                raise PlanewiseError(
                    f"the run cannot be continued here: {'; '.join(refusals(unavailable))}",
                    remedy="continue it on the system where it started",
                )
            changed = changed_hosts(info.hosts, _by_role(host, remote))
            for difference in changed:
                progress.note(f"changed since the run began: {difference}")
            session = Session(
                started=datetime.now(UTC), first_order=writer.next_order, changed=changed
            )
            plan = {"design": info.design, "ends": info.ends, "trials_planned": schedule.trials}
            update = {"sessions": (*info.sessions, session), **plan}
            writer.finish(writer.info.model_copy(update=update))
            watch = _watch(remote)
            budget_s = None if info.ends else design.budget_s  # it was for the blocks as planned
            return _measure(schedule, stations, writer, progress, watch, on_sample, budget_s)


def extended(run: RunReader, blocks: int) -> RunInfo:
    """The finished run's info with so many more blocks. Its end so far is remembered, as the
    comparisons of each end share the error that is accepted.

    Raises:
        BadInputError: the run is not finished.
    """
    info = run.info
    measured = 1 + max((trial.block for trial in run.trials()), default=-1)
    if info.status != "done" or not measured:
        raise BadInputError(
            f"the run in {run.path} is not finished, and only a finished one gets more blocks",
            where="--blocks",
            remedy=f"planewise run --resume {run.path}, without --blocks",
        )
    design = {**info.design, "blocks": measured + blocks}
    return info.model_copy(update={"design": design, "ends": (*info.ends, measured)})


def changed_hosts(
    before: Mapping[str, Fingerprint], now: Mapping[str, Fingerprint]
) -> tuple[str, ...]:
    """Differences of a run's hosts since `before`, by role: `responder: kernel: …`. Pure.

    One machine that is both hosts has no role in them.
    """
    return tuple(
        difference if role == "shared" else f"{role}: {difference}"
        for role, host in now.items()
        for difference in differences(before.get(role), host)
    )


def differences(before: Fingerprint | None, now: Fingerprint) -> tuple[str, ...]:
    """Changes of a host that matter to a measurement: `kernel: 6.1.0 is now 6.2.0`. Pure."""
    if before is None:
        return ()
    names = (
        ("hostname", "host"),
        ("kernel", "kernel"),
        ("cpu_model", "CPU"),
        ("cpus", "number of CPUs"),
        ("virtualisation", "virtualisation"),
        ("clocksource", "clock source"),
        ("governor", "frequency governor"),
        ("smt", "SMT"),
        ("mitigations", "mitigations"),
    )
    notes = []
    for name, word in names:
        old, new = getattr(before, name), getattr(now, name)
        if old != new:
            notes.append(
                f"{word}: {old} is now {new}" if name != "mitigations" else "mitigations of the CPU"
            )
    return tuple(notes)


def _skipped(info: RunInfo, cells: Sequence[Cell]) -> dict[Cell, str]:
    """Cells that the run left out when it began, with the reason: its order depends on them."""
    reasons = {tuple(sorted(skip.cell.items())): skip.reason for skip in info.skipped}
    keys = {cell: tuple(sorted(cell.levels().items())) for cell in cells}
    return {cell: reasons[key] for cell, key in keys.items() if key in reasons}


def _check_unfinished(schedule: Schedule, writer: RunWriter, info: RunInfo) -> None:
    names = {trial.name for visit in schedule.visits for trial in visit.trials}
    if names <= writer.finished:
        writer.finish(info)
        raise PlanewiseError(
            f"the run in {writer.path} is finished: there is nothing to resume",
            remedy=f"`planewise run --resume {writer.path} --blocks N` adds N blocks",
        )


def _measure(
    schedule: Schedule,
    stations: Stations,
    writer: RunWriter,
    progress: Progress,
    watch: LocalWatch | None,
    on_sample: OnSample | None,
    budget_s: float | None,
    *,
    pace: float = 1.0,
    fill: bool = False,
    verdicts: Verdicts | None = None,
) -> FinishedRun:
    """Runs the schedule, recommends from everything in the run directory, and reports."""
    with ExitStack() as beside:
        pauses = beside.enter_context(Pauses())
        meter = None
        if on_sample is not None:
            writer.on_sample = on_sample
            meter = beside.enter_context(Meter(writer.sample, progress.note))
        outcome = run(
            schedule,
            stations,
            writer,
            progress,
            watch=watch,
            pauses=pauses,
            budget_s=budget_s,
            meter=meter,
            pace=pace,
            least_blocks=least_blocks() if fill else 1,
            after_s=_AFTERWARDS_S if fill else 0.0,
            fill=fill,
            verdicts=verdicts,
        )
    trials = RunReader(writer.path).trials()
    advice = recommend(trials, writer.info)
    drift = find_drift(trials, writer.info)
    advice = advice.model_copy(
        update={"reservations": (*advice.reservations, *(change.sentence for change in drift))}
    )
    writer.recommend(advice)
    report = writer.path / "report.html"
    html.write(RunReader(writer.path), report)
    return FinishedRun(writer.path, report, outcome, advice, drift)


def begin(
    title: str,
    design: dict[str, object],
    seed: int,
    host: Fingerprint,
    remote: RemoteHosts | None,
    built: Stations | Station,
) -> RunInfo:
    """The RunInfo of a run that begins now."""
    now = datetime.now(UTC)
    reasons = ("" if remote is None else remote.emulated, built.emulated)
    return RunInfo(
        run=f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(3)}",
        title=title,
        planewise=__version__,
        design=design,
        seed=seed,
        hosts=_by_role(host, remote),
        testbed={} if remote is None else dict(remote.testbed),
        emulated="; ".join(dict.fromkeys(reason for reason in reasons if reason)),
        differences=dict(built.differences),
        started=now,
        sessions=(Session(started=now, first_order=0),),
    )


def _by_role(host: Fingerprint, remote: RemoteHosts | None) -> dict[str, Fingerprint]:
    """Fingerprints by role; `shared` where this machine is both hosts."""
    return {"shared": host} if remote is None else dict(remote.hosts)


def _info(
    design: Design,
    ladders: Mapping[Cell, Sequence[float]],
    host: Fingerprint,
    schedule: Schedule,
    remote: RemoteHosts | None,
    built: Stations | Station,
) -> RunInfo:
    stored = design.model_dump(mode="json")
    stored[LADDERS_KEY] = {cell.name: list(ladder) for cell, ladder in ladders.items()}
    skipped = tuple(
        SkippedCell(cell=cell.levels(), reason=why) for cell, why in schedule.skipped.items()
    )
    return begin(design.title, stored, design.seed, host, remote, built).model_copy(
        update={"trials_planned": schedule.trials, "skipped": skipped}
    )


def _stored(info: RunInfo, out: Path) -> tuple[Design, dict[Cell, tuple[float, ...]]]:
    """The design and ladders that run.json holds."""
    raw = dict(info.design)
    if "factors" not in raw:
        raise BadInputError(
            "this is a sweep or a search, which has no design to continue",
            where=str(out),
            remedy="if it was cut short, give the command that began it again: it goes on where it "
            "stopped",
        )
    ladders = raw.pop(LADDERS_KEY, {})
    if isinstance(sweep := raw.get("sweep"), dict):  # an earlier version's quick measured a part
        raw["sweep"] = {name: value for name, value in sweep.items() if name != "loads_per_block"}
    try:
        design = Design.model_validate(raw)
        if not isinstance(ladders, dict):
            raise TypeError("the ladders are not a mapping")
        ladders_by_cell = {
            cell: tuple(float(load) for load in ladders.get(cell.name, ()))
            for cell in cells_of(design)
        }
    except (ValueError, TypeError) as error:
        raise BadInputError(
            f"the design in run.json cannot be continued: {str(error).splitlines()[0]}",
            where=str(out),
            remedy="start a new run",
        ) from error
    return design, ladders_by_cell
