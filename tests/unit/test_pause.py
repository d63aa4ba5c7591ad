"""Pauses: between trials on request, and trials measured again that were stopped in their midst."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from planewise.measure.designs.cells import Cell
from planewise.measure.runs.experiment import run
from planewise.measure.runs.pause import Pauses
from planewise.measure.station import Place, TrialResult
from planewise.measure.trials.rtt import RttTrial
from planewise.store.rundir import RunReader, RunWriter
from tests.unit.test_experiment import FakeStations, Silent, names
from tests.unit.test_resume import check_whole, small_schedule
from tests.unit.test_run_directory import make_info

PATIENCE_S = 120.0


class MadeUpPauses(Pauses):
    """Disturbs or asks for a pause when told to; does not stop the tests."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = 0
        self.cells_open_in_pause = 0
        self.stage: FakeStations | None = None
        self.run: Path | None = None
        self.trials = 0

    def pause(self) -> None:
        self.requested = False
        self.pauses += 1
        assert self.stage is not None
        self.cells_open_in_pause += self.stage.open_cells
        if self.run is not None:  # it can be read meanwhile
            self.trials = len(RunReader(self.run).trials())

    def disturb(self) -> None:
        self._resumed += 1


class Disturbed(FakeStations):
    """During its second RTT trial somebody stops the process, or asks for a pause."""

    def __init__(self, pauses: MadeUpPauses, polite: bool) -> None:
        super().__init__()
        self.pauses = pauses
        self.polite = polite
        self.stations = 0
        self.rtts = 0
        pauses.stage = self

    @contextmanager
    def station(self, cell: Cell) -> Iterator[FakeStations]:
        self.stations += 1
        with super().station(cell) as station:
            yield station

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        self.rtts += 1
        result = super().rtt(trial, place)
        if self.rtts == 2:
            if self.polite:
                self.pauses.requested = True
            else:
                self.pauses.disturb()
        return result


def test_a_disturbed_trial_is_measured_again_with_its_load_started_anew(tmp_path: Path) -> None:
    schedule, pauses, progress = small_schedule(), MadeUpPauses(), Silent()
    stage = Disturbed(pauses, polite=False)
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        outcome = run(schedule, stage, writer, progress, pauses=pauses)
    assert (outcome.done, outcome.failed) == (8, 0)
    check_whole(tmp_path / "run", schedule)
    assert stage.ran == [*names(schedule)[:3], *names(schedule)[2:]]
    assert stage.stations == 4 + 1
    (note,) = progress.notes
    assert note.endswith(": disturbed by a pause, repeating")


def test_a_pause_comes_between_two_trials_and_the_load_ends_for_it(tmp_path: Path) -> None:
    schedule, pauses, progress = small_schedule(), MadeUpPauses(), Silent()
    stage, pauses.run = Disturbed(pauses, polite=True), tmp_path / "run"
    with RunWriter.create(pauses.run, make_info()) as writer:
        run(schedule, stage, writer, progress, pauses=pauses)
    assert stage.ran == names(schedule)
    assert (pauses.pauses, pauses.cells_open_in_pause, pauses.trials) == (1, 0, 3)
    assert stage.stations == 4 + 1
    check_whole(tmp_path / "run", schedule)


SCRIPT = textwrap.dedent(
    """
    import sys, time
    from planewise.measure.runs.pause import Pauses

    with Pauses() as pauses:
        mark = pauses.mark()
        print("ready", flush=True)
        wanted = sys.argv[1]
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            time.sleep(0.01)
            if wanted == "polite" and pauses.requested:
                assert not pauses.disturbed_since(mark)
                print("requested", flush=True)
                pauses.pause()
                break
            if wanted != "polite" and pauses.disturbed_since(mark):
                break
        print("disturbed" if pauses.disturbed_since(mark) else "never stopped", flush=True)
        print(pauses.requested, pauses.disturbed_since(pauses.mark()), flush=True)
    """
)


@contextmanager
def script(wanted: str) -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", SCRIPT, wanted]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def says(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_until_stopped(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return
        time.sleep(0.01)
    raise AssertionError("it did not stop")


def test_ctrl_z_asks_first_and_the_process_then_stops_itself() -> None:
    with script("polite") as process:
        assert says(process) == "ready"
        os.kill(process.pid, signal.SIGTSTP)
        assert says(process) == "requested"
        wait_until_stopped(process.pid)
        os.kill(process.pid, signal.SIGCONT)
        assert says(process) == "disturbed"
        assert says(process) == "False False"


def test_a_process_that_was_stopped_from_outside_notices_it() -> None:
    with script("rude") as process:
        assert says(process) == "ready"
        os.kill(process.pid, signal.SIGSTOP)
        wait_until_stopped(process.pid)
        os.kill(process.pid, signal.SIGCONT)
        assert says(process) == "disturbed"


def test_handlers_are_put_back() -> None:
    before = signal.getsignal(signal.SIGTSTP)
    with Pauses():
        assert signal.getsignal(signal.SIGTSTP) != before
    assert signal.getsignal(signal.SIGTSTP) == before
