"""The state of a host around a trial, from the texts of /proc and /sys."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from planewise.measure.runs.sut import PlaneUnderTest, SutMeasurer
from planewise.measure.station import Station
from planewise.procfs import mean_mhz
from planewise.store.models import TrialRecord
from planewise.testbed.hosts.state import (
    LocalWatch,
    cpu_use,
    process_ticks,
    shares,
)
from tests.unit.test_importers_run import record


def put(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_shares_are_of_all_cpus_time_and_leave_out_what_is_ours() -> None:
    before = cpu_use("cpu  100 0 50 1000 0 0 0 10 0 0\n", own_ticks=40)
    after = cpu_use("cpu  160 0 70 1100 0 0 0 30 0 0\n", own_ticks=90)
    assert before is not None
    assert after is not None
    steal, foreign = shares(before, after)
    assert (steal, foreign) == (0.1, 0.15)  # of 200 ticks: 20 stolen, 80 used, 50 of them ours


def test_more_of_our_own_than_there_was_is_no_negative_share() -> None:
    before = cpu_use("cpu 0 0 0 0", own_ticks=0)
    after = cpu_use("cpu 10 0 0 90", own_ticks=12)
    assert before is not None
    assert after is not None
    assert shares(before, after) == (0.0, 0.0)
    assert shares(before, before) == (None, None)


def test_texts_that_say_nothing_are_unknown() -> None:
    assert cpu_use("", 0) is None
    assert mean_mhz("processor : 0\n") is None
    assert mean_mhz("cpu MHz\t\t: 1000.0\ncpu MHz\t\t: 3000.0\n") == 2000.0


def test_a_process_name_may_hold_brackets_and_spaces() -> None:
    stat = "7 (a) b (c) S " + " ".join(str(n) for n in range(4, 53))
    assert process_ticks(stat) == 14 + 15 + 16 + 17


def test_a_host_is_read_whole(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu"
    for number, (governor, khz) in enumerate((("powersave", 1_000_000), ("powersave", 3_000_000))):
        put(tmp_path, f"{cpu}/cpu{number}/cpufreq/scaling_governor", f"{governor}\n")
        put(tmp_path, f"{cpu}/cpu{number}/cpufreq/scaling_cur_freq", f"{khz}\n")
        put(tmp_path, f"{cpu}/cpu{number}/thermal_throttle/core_throttle_count", "4\n")
    put(tmp_path, "sys/class/thermal/thermal_zone0/temp", "41500\n")
    put(tmp_path, "sys/class/thermal/thermal_zone1/temp", "63000\n")
    put(tmp_path, "proc/stat", "cpu 0 0 0 0 0 0 0 0\n")
    watch = LocalWatch(root=tmp_path, offloads=lambda: {"eth0": "rx-gro"})
    watch.start()
    put(tmp_path, "proc/stat", "cpu 30 0 0 60 0 0 0 10\n")
    put(tmp_path, f"{cpu}/cpu0/thermal_throttle/core_throttle_count", "6\n")
    state = watch.stop()["shared"]
    assert (state.governor, state.cpu_mhz, state.temperature_c) == ("powersave", 2000.0, 63.0)
    assert (state.throttled, state.steal, state.foreign_cpu) == (2, 0.1, 0.3)
    assert state.offloads == {"eth0": "rx-gro"}


def test_a_bare_machine_tells_little_and_nothing_wrong(tmp_path: Path) -> None:
    watch = LocalWatch(root=tmp_path)
    watch.start()
    state = watch.stop()["shared"]
    assert state.model_dump(exclude_defaults=True) == {}


def test_the_cpu_time_of_children_is_ours_while_they_live_and_after() -> None:
    watch = LocalWatch()
    burn = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    own = watch._use
    before = own()
    assert before is not None
    waits = burn + "print('done', flush=True)\nimport sys; sys.stdin.read()\n"
    with subprocess.Popen(
        [sys.executable, "-c", waits], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        alive = own()
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    ended = own()
    assert alive is not None
    assert ended is not None
    ticks = 0.25 * os.sysconf("SC_CLK_TCK")
    assert alive.own_ticks - before.own_ticks >= ticks
    assert ended.own_ticks >= alive.own_ticks


@pytest.mark.parametrize(("host", "known"), [("shared", True), ("responder", False)])
def test_a_trial_of_one_system_keeps_what_other_programs_took_of_this_machine(
    host: str, known: bool
) -> None:
    measured = record(0, 1000, 1000, cpu={host: {"usr": 0.25, "idle": 0.75}})

    def measure(*_: object) -> SimpleNamespace:
        time.sleep(0.1)  # some ticks of the kernel's clock
        return SimpleNamespace(record=measured)

    station = SimpleNamespace(measure=measure)

    class Made(PlaneUnderTest):
        def build(self, size_bytes: int, built: ExitStack) -> Station:
            return station  # type: ignore[return-value]

    kept: list[TrialRecord] = []
    with SutMeasurer(Made("veth"), 64, kept.append) as measurer:
        run = measurer.trial(1000, 1)
    assert (kept[0].foreign_cpu is not None) == (run.foreign is not None) == known
