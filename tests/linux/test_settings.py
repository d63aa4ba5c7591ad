"""Every setting on every plane: it takes effect and is restored, or it refuses with a sentence."""

from __future__ import annotations

import platform
import random
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from planewise.errors import UnsupportedError
from planewise.judge.effects import Effect, effects
from planewise.judge.statistics.metrics import RunSample
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design
from planewise.measure.runs.stations import Stations
from planewise.measure.station import Place
from planewise.measure.trials.rtt import RttTrial
from planewise.measure.trials.tcp import TcpTrial
from planewise.store.levels import keeps_levels
from planewise.store.models import TrialRecord
from planewise.testbed import settings
from planewise.testbed.planes import planes_of
from planewise.testbed.setting import Arrangement
from planewise.testbed.testbed import local_testbed
from tests.unit.made_up_run import info

pytestmark = pytest.mark.linux

LEVELS = {
    "mtu": "2000",
    "tx_queue_length": "10",
    "qdisc": "pfifo limit 100",
    "ip_version": "6",
}
"""A level of each setting that differs from what the testbed has; of others, the opposite."""
PLANES = [name for name in planes_of("namespace") if name != "vf"]


def state(plane: str, arrangement: Arrangement) -> Iterator[tuple[str, str]]:
    """All that settings read, and all features of their interfaces."""
    for setting in settings.SETTINGS.values():
        if setting.refusal(plane, "namespace"):
            continue
        for spot in setting.spots(arrangement):
            yield f"{setting.name} of {spot}", setting.read(spot)
            features = spot.host.run(["ethtool", "-k", spot.interface], netns=spot.netns or None)
            yield f"features of {spot}", features.check().stdout


@pytest.mark.apart
@pytest.mark.parametrize("plane", PLANES)
def test_every_setting_takes_effect_and_is_restored_or_refuses(plane: str) -> None:
    refused = []
    try:
        with local_testbed(Cell(plane).testbed) as arrangement:
            before = dict(state(plane, arrangement))
            for name, setting in settings.SETTINGS.items():
                if reason := setting.refusal(plane, "namespace"):
                    assert reason.startswith(name)
                    refused.append(name)
                    continue
                spots = list(setting.spots(arrangement))
                on = spots and setting.read(spots[-1]) == "on"
                level = LEVELS.get(name, "off" if on else "on")
                with settings.applied(f"{name}={level}", arrangement):
                    if name != "qdisc":
                        assert {setting.read(spot) for spot in spots} <= {level}
                    else:
                        assert {setting.read(spot) for spot in spots} == {"pfifo"}
                assert dict(state(plane, arrangement)) == before, name
    except UnsupportedError as error:
        pytest.skip(error.what)
    assert len(refused) < len(settings.SETTINGS)


DELAY_C = """
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
SEC("tc") int delay(struct __sk_buff *frame)
{
	__u64 begin = bpf_ktime_get_ns();
	for (int i = 0; i < 5000; i++)
		if (bpf_ktime_get_ns() - begin > 20000)
			break;
	return 0;
}
char LICENSE[] SEC("license") = "GPL";
"""


DELAY = """
[ "$2" != default ] || exec tc qdisc delete dev "$1" clsact
tc qdisc add dev "$1" clsact
tc filter add dev "$1" egress bpf direct-action object-file "$3" section tc
"""
"""A queueing discipline that holds each of a guest's frames for 20 µs."""


def measured(levels: list[str], slow: str, blocks: range) -> list[TrialRecord]:
    """Trials of RTT, but where the setting is `slow`, and of TCP, but where it delays frames."""
    trials = (RttTrial("rtt", 200, 128, 60), TcpTrial("tcp", 131_072, 1.0, 0, 1))
    records: list[TrialRecord] = []
    design = Design.model_validate(
        {"factors": {"plane": "veth", "setting": levels}, "rtt": {}, "tcp": {}}
    )
    with Stations(design) as stations:
        for block in blocks:
            stations.new_block()
            for level in random.Random(block).sample(levels, len(levels)):
                cell = Cell("veth", setting=level)
                if block == blocks[0]:
                    assert not stations.unavailable([cell])
                with stations.station(cell) as station:
                    for trial in trials[level == slow : 2 - (level == "delay=on")]:
                        place = Place(f"{trial.name}{len(records)}", cell.levels(), block, 0)
                        for _ in range(5):  # a busy machine does not always keep a rate
                            record = station.measure(trial, place, lambda _: None).record
                            if keeps_levels(record):
                                break
                        records.append(record)
    return records


def is_found(setting: str, found: Sequence[Effect]) -> bool:
    of_setting = (one for one in found if one.setting == setting)
    outcomes = {
        one.comparison.outcome for one in of_setting if one.metric.name in ("rtt", "goodput")
    }
    return not outcomes.isdisjoint({"better", "worse"})


@pytest.mark.skipif(shutil.which("clang") is None, reason="there is no clang here")
def test_planted_effects_are_found_and_a_placebo_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 µs for each frame, and half of the throughput; switching on what is on does nothing."""
    (tmp_path / "delay.c").write_text(DELAY_C)
    include = f"-I/usr/include/{platform.machine()}-linux-gnu"
    program = str(tmp_path / "delay.o")
    clang = ["clang", "-O2", "-target", "bpf", include, "-c", "delay.c", "-o", program]
    subprocess.run(clang, check=True, cwd=tmp_path)
    delay = replace(settings.SETTINGS["qdisc"], name="delay", writes=DELAY, file=program)
    monkeypatch.setattr(settings, "SETTINGS", {**settings.SETTINGS, "delay": delay})
    tbf = "qdisc=tbf rate 500mbit burst 256kb latency 20ms"
    levels = ["default", "offload.tso=on", "delay=on", tbf]
    records = measured(levels, tbf, range(7))
    found = effects(RunSample("run", info("planted"), records))
    outcomes = {(one.setting, one.metric.name): one for one in found}
    delayed, halved = outcomes["delay=on", "rtt"], outcomes[tbf, "goodput"]
    assert (delayed.comparison.outcome, halved.comparison.outcome) == ("worse", "worse")
    assert halved.comparison.change < -0.5
    if is_found("offload.tso=on", found):
        # One interval in twenty misses the truth; two in a row are a fault.
        again = measured(levels[:2], tbf, range(7, 14))
        assert not is_found("offload.tso=on", effects(RunSample("run", info("again"), again)))
    known = [one for one in found if one.comparison.decided and one.metric.name == "rtt"]
    assert known[0].setting == "delay=on"  # the largest effect comes first
