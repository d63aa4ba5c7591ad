"""A campaign of load-loss curves, one run directory each: joins the rooms, measures nothing."""

from __future__ import annotations

from pathlib import Path

from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.measure.designs.campaign import (
    CampaignDesign,
    PlannedCurve,
    curves_of,
    estimate_text,
    unavailable_reason,
)
from planewise.measure.designs.schedule import TRIAL_OVERHEAD_S
from planewise.measure.runs.experiment import FAILURES_IN_A_ROW, Progress
from planewise.store.files import write_file
from planewise.store.models import Fingerprint
from planewise.store.rundir import CAMPAIGN_FILE, RUN_FILE, RunReader, check_free
from planewise.sweeps import SweepPlan, sweep
from planewise.testbed.availability import why_no_vms
from planewise.testbed.guests.docker import why_no_docker
from planewise.testbed.hosts.steering import split_cpus


def check(design: CampaignDesign) -> None:
    """UnsupportedError when this machine lacks a level of the design's factors."""
    cpus = split_cpus()
    vms_error = why_no_vms() if "vm" in design.factors.platform else None
    reason = unavailable_reason(
        design,
        cpus.receivers if cpus else None,
        why_no_docker(),
        "" if vms_error is None else vms_error.what,
    )
    if reason:
        raise UnsupportedError(
            reason, remedy="leave the level out; docs/reference/designs.md lists what is needed"
        )


def run_campaign(
    design: CampaignDesign, out: Path, host: Fingerprint, progress: Progress
) -> tuple[Path, ...]:
    """Measures each curve that `out` does not hold in full.

    A curve that fails is noted, and the campaign continues. Returns the run directories of all
    curves that are measured, in the order of the schedule.

    Raises:
        PlanewiseError: FAILURES_IN_A_ROW curves failed one after the other.
        UnsupportedError: as `check`.
        BadInputError: `out` holds another campaign or other files.
    """
    check(design)
    _claim(design, out)
    progress.note(estimate_text(design, TRIAL_OVERHEAD_S))
    curves = curves_of(design)
    runs: list[Path] = []
    failures = 0
    ladders: dict[tuple[object, ...], tuple[float, ...]] = {}
    for place, curve in enumerate(curves, start=1):
        directory = out / curve.name
        key = tuple(curve.levels.items())
        if not (directory / RUN_FILE).exists() or RunReader(directory).info.status != "done":
            progress.note(f"curve {place} of {len(curves)}: {curve.name}")
            try:
                sweep(_plan(design, curve, ladders.get(key)), _set_aside(directory), host, progress)
            except PlanewiseError as error:
                progress.note(f"{curve.name} failed: {error.what}")
                _set_aside(directory)
                failures += 1
                if failures == FAILURES_IN_A_ROW:
                    raise
                continue
            failures = 0
        ladders.setdefault(key, _ladder(directory))
        runs.append(directory)
    return tuple(runs)


def _claim(design: CampaignDesign, out: Path) -> None:
    """Writes the design into `out`, or checks that `out` holds this design."""
    note = out / CAMPAIGN_FILE
    text = design.model_dump_json(indent=2)
    if note.exists() and note.read_text() != text:
        raise BadInputError(
            "the folder has another campaign's curves",
            where=str(out),
            remedy="name another folder by --out",
        )
    if not note.exists():
        check_free(out)
        out.mkdir(parents=True, exist_ok=True)
        write_file(note, text.encode())


def _set_aside(directory: Path) -> Path:
    """Renames an unfinished curve's directory: a curve is one sweep, from first trial to last.

    To a hidden name, which `planewise campaign FOLDER/*` does not match.
    """
    if not directory.exists():
        return directory
    number = 1
    while (aside := directory.with_name(f".{directory.name}.cut-short-{number}")).exists():
        number += 1
    directory.rename(aside)
    return directory


def _ladder(directory: Path) -> tuple[float, ...]:
    """The loads that a finished curve was offered."""
    trials = RunReader(directory).trials()
    return tuple(sorted({trial.load.intended_pps for trial in trials if trial.load}))


def _plan(
    design: CampaignDesign, curve: PlannedCurve, loads: tuple[float, ...] | None
) -> SweepPlan:
    if loads is None and design.offered_pps != "auto":
        loads = tuple(sorted(design.offered_pps))
    return SweepPlan(
        sut=curve.sut,
        loads_pps=loads,
        steps=design.loads,
        runs=curve.runs,
        duration_s=curve.duration_s,
        size_bytes=curve.size_bytes,
        until_verdict=False,
        seed=curve.seed,
        within_reach=design.offered_pps == "auto",
    )
