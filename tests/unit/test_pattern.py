"""How probes follow one another is a factor, and a level that is kept or marked."""

from __future__ import annotations

from pathlib import Path

import pytest

from planewise.advise.recommend import recommend
from planewise.errors import BadInputError
from planewise.judge.statistics.comparison import compare_levels
from planewise.judge.statistics.metrics import RunSample, by_sending, observe
from planewise.measure.designs.design_file import load_design
from planewise.measure.designs.pattern import Bursts, bursts_of
from planewise.measure.designs.schedule import make_schedule
from planewise.measure.trials.probe import BurstOutput
from planewise.measure.trials.rtt import RttTrial
from planewise.report.data import RunData
from planewise.store.cells import Sending
from planewise.store.levels import missed_levels
from planewise.store.models import BurstLoad, OfferedLoad, TrialRecord
from planewise.store.rundir import RunReader
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp, write

BURSTS = "bursts of 100 every 10 ms"


def design(tmp_path: Path, factors: str, packets: int = 1000) -> Path:
    path = tmp_path / "design.yaml"
    path.write_text(f"factors: {{plane: veth, {factors}}}\nrtt: {{packets: {packets}}}\n")
    return path


def trials_of(path: Path) -> list[RttTrial]:
    visits = make_schedule(load_design(path).model_copy(update={"blocks": 1}), {}, {}).visits
    return [trial for visit in visits for trial in visit.trials if isinstance(trial, RttTrial)]


def test_a_pattern_is_text_that_stands_for_itself() -> None:
    assert bursts_of("steady") is None
    assert bursts_of(BURSTS) == Bursts(100, 0.01)
    assert bursts_of("bursts of 5 every 250 us") == Bursts(5, 250e-6)
    assert Bursts(100, 0.01).mean_pps == 10_000
    assert Bursts(100, 0.01).duration_s(1000) == pytest.approx(0.1)


def test_each_pattern_is_a_trial_with_its_name_and_its_length(tmp_path: Path) -> None:
    found = trials_of(design(tmp_path, f"frequency_pps: 50000, pattern: [steady, {BURSTS}]"))
    by_pattern = {str(trial.traffic()["pattern"]): trial for trial in found}
    assert by_pattern.keys() == {"steady", BURSTS}
    assert len({trial.name for trial in found}) == 2
    assert by_pattern["steady"].expected_s == pytest.approx(0.02)
    assert by_pattern[BURSTS].expected_s == pytest.approx(0.1)
    assert by_pattern[BURSTS].mean_pps == 10_000


def test_cells_of_a_design_without_bursts_are_those_of_runs_from_before_them(
    tmp_path: Path,
) -> None:
    (trial,) = trials_of(design(tmp_path, "frequency_pps: 1000"))
    assert trial.traffic() == {"size_bytes": 64, "frequency_pps": 1000.0, "protocol": "icmp"}
    assert "steady" not in trial.name


@pytest.mark.parametrize(
    ("factors", "packets", "said"),
    [
        ("pattern: in waves", 1000, "`in waves` is not a pattern: write `steady`, or `bursts of"),
        ("pattern: bursts of 0 every 1 ms", 1000, "is not a pattern"),
        ("pattern: bursts of 10 every 0 ms", 1000, "not all at once"),
        ("pattern: bursts of 10 every 61 s", 1000, "every 60 s at most"),
        (f"pattern: {BURSTS}, frequency_pps: 1000", 1000, "100 packets at 1 kpps take 100 ms"),
        (f"pattern: {BURSTS}, frequency_pps: 1e6", 150, "holds no whole number of bursts"),
    ],
)
def test_a_burst_that_cannot_be_is_refused_before_anything_is_built(
    factors: str, packets: int, said: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError) as refused:
        load_design(design(tmp_path, factors, packets))
    assert said in refused.value.what
    assert refused.value.remedy


def in_bursts(within_pps: float, mean_pps: float) -> TrialRecord:
    return made_up_run.trial(
        "rtt:veth#r0",
        "rtt",
        {"plane": "veth", "frequency_pps": 1e6, "pattern": BURSTS},
        load=OfferedLoad(
            intended_pps=10_000,
            achieved_pps=mean_pps,
            size_bytes=64,
            burst=BurstLoad(packets=100, every_s=0.01, intended_pps=1e6, achieved_pps=within_pps),
        ),
    )


@pytest.mark.parametrize(
    ("within_pps", "mean_pps", "missed"),
    [
        (1e6, 10_000, []),
        (0.991e6, 10_050, []),
        (0.98e6, 10_000, ["frequency_pps"]),
        (1.02e6, 10_000, ["frequency_pps"]),
        (1e6, 9_800, ["pattern"]),
        (0.0, 0.0, ["frequency_pps", "pattern"]),
    ],
)
def test_bursts_are_kept_by_the_rate_within_them_and_by_how_often_they_come(
    within_pps: float, mean_pps: float, missed: list[str]
) -> None:
    assert [one.factor for one in missed_levels(in_bursts(within_pps, mean_pps))] == missed


def test_the_rate_within_bursts_is_that_of_the_kernels_stamps() -> None:
    told = BurstOutput(
        packets=10,
        every_ns=10**7,
        intended_pps=1e4,
        achieved_pps=1.1e4,
        achieved_kernel_pps=1.001e4,
    )
    assert told.kept_pps == 1.001e4
    assert told.model_copy(update={"achieved_kernel_pps": None}).kept_pps == 1.1e4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two planes, half of the blocks of each cell steady, half in bursts that take longer."""
    wanted = MadeUp(
        planes=("veth", "bridge"), load_types=("none",), blocks=16, load_blocks=0, failed=0
    )
    path = write(tmp_path_factory.mktemp("pattern") / "run", wanted)
    lines = [patterned(one) for one in RunReader(path).trials()]
    text = "".join(one.model_dump_json(exclude_defaults=True) + "\n" for one in lines)
    (path / "trials.jsonl").write_text(text)
    return path


def patterned(trial: TrialRecord) -> TrialRecord:
    pattern, block = (BURSTS, "steady")[trial.block % 2], trial.block // 2
    return trial.model_copy(
        update={"cell": {**trial.cell, "pattern": pattern}, "block": block, "replicate": block}
    )


def test_steady_probes_and_bursts_are_never_averaged_into_one_pair(run: Path) -> None:
    reader = RunReader(run)
    observed = observe([RunSample("run", reader.info, reader.trials())], "rtt")
    parts = by_sending(observed, "plane")
    assert [one.metric.sending for one in parts] == [
        Sending(1000.0, BURSTS),
        Sending(1000.0, "steady"),
    ]
    assert "at 1 kpps in bursts of 100 every 10 ms" in parts[0].metric.title
    assert [len(one.observations) for one in parts] == [16, 16]
    with pytest.raises(ValueError, match="several ways of sending"):
        compare_levels(observed, "plane")
    (whole,) = by_sending(observed, "pattern")
    assert compare_levels(whole, "pattern").levels == (BURSTS, "steady")


def test_an_applications_answers_and_a_kernels_are_never_averaged_into_one_pair(run: Path) -> None:
    reader = RunReader(run)
    protocols = {BURSTS: "redis", "steady": "icmp"}
    trials = []
    for one in reader.trials():
        cell = {name: level for name, level in one.cell.items() if name != "pattern"}
        cell["protocol"] = protocols[str(one.cell["pattern"])]
        trials.append(one.model_copy(update={"cell": cell}))
    observed = observe([RunSample("run", reader.info, trials)], "rtt")
    parts = by_sending(observed, "plane")
    assert [one.metric.sending for one in parts] == [
        Sending(1000.0),
        Sending(1000.0, application="Redis"),
    ]
    assert "at 1 kpps, answered by Redis" in parts[1].metric.title
    (whole,) = by_sending(observed, "protocol")
    assert compare_levels(whole, "protocol").levels == ("icmp", "redis")
    advice = recommend(trials, reader.info)
    assert "at 1 kpps, answered by Redis: Use" in advice.headline
    assert {one.application for one in advice.ranking} == {"", "Redis"}


def test_the_recommendation_and_the_report_tell_them_apart(run: Path) -> None:
    reader = RunReader(run)
    advice = recommend(reader.trials(), reader.info)
    assert {one.pattern for one in advice.ranking} == {BURSTS, "steady"}
    assert "At 1 kpps in bursts of 100 every 10 ms" in advice.headline
    patterns = {(cell.plane, dict(cell.factors)["pattern"]) for cell in RunData(reader).rtt}
    assert patterns == {(p, s) for p in ("veth", "bridge") for s in (BURSTS, "steady")}
