"""The publications' designs on namespaces, whole, from one command; pauses of a real run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planewise.judge.statistics.comparison import UNDECIDED
from planewise.measure.designs.cells import expand
from planewise.measure.designs.design_file import load_design
from planewise.store.models import Level, TrialRecord
from planewise.store.rundir import RunReader
from planewise.testbed.hosts import ledger, scratch
from tests import command

REDUCED = Path(__file__).parents[2] / "experiments" / "reduced"
BLOCKS = 2
PATIENCE_S = 550.0


def smaller(name: str, directory: Path) -> Path:
    """The design with two blocks; all of its cells stay."""
    text = (REDUCED / name).read_text()
    assert "\nblocks: 6\n" in text
    path = directory / name
    path.write_text(text.replace("\nblocks: 6\n", f"\nblocks: {BLOCKS}\n"))
    return path


def planewise(*argv: str | Path, report: bool = True) -> str:
    """What the command prints on its standard output."""
    finished = command.planewise(*argv, timeout_s=PATIENCE_S, report=report)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def is_at_its_level(trial: TrialRecord) -> bool:
    """Counted here by hand: the rate within 1 %, the load within 1 % and what its window tells."""
    assert trial.load is not None
    label = float(trial.cell["frequency_pps"])
    if abs(trial.load.achieved_pps - label) > 0.01 * label:
        return False
    load = trial.background
    assert (load is None) == (trial.cell["load_type"] == "none")
    if load is None or load.wanted is None:
        return True
    assert len(load.guests) == trial.cell["background_guests"]
    assert abs(sum(load.guests.values()) - load.achieved) < 1e-6 * max(1.0, load.achieved)
    return abs(load.achieved - load.wanted) <= 0.01 * load.wanted + load.resolution


def levels_of(traffic: dict[str, Level]) -> dict[str, Level]:
    """As trials name it where a design varies neither patterns nor interrupt coalescing."""
    unnamed = ("pattern", "rx_usecs")
    return {name: level for name, level in traffic.items() if name not in unnamed}


@pytest.mark.parametrize(
    "name", ["docker-rtt.yaml", pytest.param("kvm-baseline.yaml", marks=pytest.mark.long)]
)
def test_a_publications_design_is_measured_whole(name: str, tmp_path: Path) -> None:
    path, out = smaller(name, tmp_path), tmp_path / "run"
    answer = json.loads(planewise("run", path, "--out", out, "--json", report=False))
    assert (answer["status"], answer["trials_failed"]) == ("done", 0)
    wanted = {
        tuple(sorted({**cell.levels(), **levels_of(traffic)}.items())): BLOCKS
        for cell, all_traffic in expand(load_design(path)).items()
        for traffic in all_traffic["rtt"]
    }
    trials = RunReader(out).trials()
    assert Counter(tuple(sorted(trial.cell.items())) for trial in trials) == wanted
    # One block of all cells before the next, each in an order of its own.
    assert [trial.block for trial in trials] == sorted(trial.block for trial in trials)
    orders = [[t.cell for t in trials if t.block == block] for block in range(BLOCKS)]
    assert orders[0] != orders[1]
    for trial in trials:
        assert trial.counts is not None
        assert trial.counts.sent == 100
        state = trial.host["shared"]
        assert state.governor
        assert state.steal is not None
        assert state.foreign_cpu is not None
    planes = {str(trial.cell["plane"]) for trial in trials}
    counted = Counter(
        (trial.cell["plane"], trial.cell["frequency_pps"])
        for trial in trials
        if is_at_its_level(trial)
    )
    assert all(bool(trial.missed) != is_at_its_level(trial) for trial in trials)
    rates = [rate for rate in (1e3, 1e6) if all(counted[plane, rate] for plane in planes)]
    families = []
    if rates:  # which levels were kept is the machine's affair, that only they count is ours
        families = json.loads(planewise("compare", out, "--json"))["families"]
        for family in families:
            of_rate = {plane for plane, rate in counted if family["frequency_pps"] in (rate, None)}
            assert set(family["levels"]) == of_rate
            assert sum(one["replicates"] for one in family["values"]) > 0
            for one in family["comparisons"]:
                assert one["blocks"] <= BLOCKS
                # Two blocks decide nothing: any law of these numbers could be behind them.
                assert (one["low"], one["high"]) == (None, None)
                assert one["outcome"] in UNDECIDED
    page = tmp_path / "page.html"
    planewise("report", out, "-o", page)
    text = page.read_text()
    # Planes that kept their levels in no block together are compared nowhere.
    assert ("Significant differences" in text) == bool(families)
    assert all(plane in text for plane in planes)
    assert ledger.leftovers() == ()
    assert scratch.leftovers() == ()


BLOCKS_TO_PAUSE_IN = 5
DESIGN = f"""\
factors: {{plane: bridge, load_type: cpu, background_guests: 2}}
rtt: {{packets: 300}}
background: {{cpu_share: 0.1}}
blocks: {BLOCKS_TO_PAUSE_IN}
"""


def test_probes_in_bursts_leave_as_their_level_says_or_are_marked(tmp_path: Path) -> None:
    text = (REDUCED.parent / "pattern.yaml").read_text()
    assert "\nblocks: 20\n" in text
    path, out = tmp_path / "pattern.yaml", tmp_path / "run"
    path.write_text(text.replace("\nblocks: 20\n", f"\nblocks: {BLOCKS}\n"))
    answer = json.loads(planewise("run", path, "--out", out, "--json"))
    assert (answer["status"], answer["trials_failed"]) == ("done", 0)
    trials = RunReader(out).trials()
    assert Counter((t.cell["plane"], t.cell["pattern"]) for t in trials) == {
        (plane, pattern): BLOCKS
        for plane in ("veth", "bridge")
        for pattern in ("steady", "bursts of 50 every 10 ms")
    }
    for trial in trials:
        assert trial.load is not None
        assert trial.packets is not None
        assert trial.load.intended_pps == 5000
        missed = () if abs(trial.load.achieved_pps - 5000) <= 50 else ("frequency_pps",)
        if trial.load.burst is not None:
            # Counted here by hand, by the kernel's stamps of the packets.
            left_ns = pl.read_parquet(out / trial.packets)["kernel_tx_ns"].to_numpy()
            bursts = left_ns.reshape(-1, 50)
            assert np.median(np.diff(bursts[:, 0])) == pytest.approx(10e6, rel=0.02)
            within_pps = np.sort(49e9 / (bursts[:, -1] - bursts[:, 0]))[len(bursts) // 2]
            assert trial.load.burst.achieved_pps == pytest.approx(within_pps, rel=1e-6)
            dense = () if abs(within_pps - 20e3) <= 200 else ("frequency_pps",)
            missed = (*dense, *("pattern" for _ in missed))
        assert (trial.load.burst is None) == (trial.cell["pattern"] == "steady")
        assert trial.missed == missed
    page = (out / "report.html").read_text()
    assert "bursts of 50 every 10\N{NO-BREAK SPACE}ms" in page


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def lines(out: Path) -> int:
    file = out / "trials.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def children(pid: int) -> int:
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += len((task / "children").read_text().split())
    return found


def test_a_run_pauses_between_two_trials_without_load_and_goes_on(tmp_path: Path) -> None:
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(DESIGN)
    with subprocess.Popen(
        [*command.UNREPORTED, "run", design, "--out", out],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            deadline = time.monotonic() + PATIENCE_S
            while lines(out) == 0:
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            os.kill(process.pid, signal.SIGTSTP)
            while state(process.pid) != "T":
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.02)
            assert children(process.pid) == 0  # no background load burns meanwhile
            before = len(RunReader(out).trials())
            assert before < BLOCKS_TO_PAUSE_IN
            os.kill(process.pid, signal.SIGCONT)
            _, said = process.communicate(timeout=PATIENCE_S)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert "paused between two trials" in said
    trials = RunReader(out).trials()
    assert [trial.order for trial in trials] == list(range(BLOCKS_TO_PAUSE_IN))
    assert ledger.leftovers() == ()
