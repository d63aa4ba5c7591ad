"""A trial that misses its level is marked, shown with what it achieved, and counts nowhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planewise.advise.recommend import recommend
from planewise.errors import BadInputError
from planewise.judge.statistics.comparison import compare_levels
from planewise.judge.statistics.metrics import RunSample, by_sending, metrics_in, observe
from planewise.measure.designs.cells import Cell, cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.design_file import load_any, load_design
from planewise.measure.designs.pattern import bursts_of
from planewise.measure.designs.schedule import make_schedule
from planewise.measure.runs import stations
from planewise.measure.runs.stations import Stations
from planewise.report.data import RunData
from planewise.report.figure import PrintedNumber
from planewise.report.sections import cpu, guests
from planewise.store.cells import Sending
from planewise.store.levels import keeps_levels, marked, missed_levels
from planewise.store.models import BackgroundResult, BurstLoad, Counts, OfferedLoad, TrialRecord
from planewise.store.rundir import RunReader
from planewise.testbed.loads.background import STRESS_NG
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp, write
from tests.unit.test_run_directory import make_info
from tests.unit.vega_schema import fits_schema

DESIGNS = [
    path
    for path in sorted(Path("experiments").rglob("*.yaml"))
    if isinstance(load_any(path), Design)
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two planes at 1 kpps and 1 Mpps; only `veth` keeps 1 Mpps, in half of its blocks."""
    wanted = MadeUp(
        planes=("veth", "bridge"),
        load_types=("none",),
        frequencies_pps=(1000.0, 1e6),
        blocks=8,
        load_blocks=0,
        failed=0,
        hidden=(),
    )
    path = write(tmp_path_factory.mktemp("levels") / "run", wanted)
    lines = [short_of_its_level(one) for one in RunReader(path).trials()]
    text = "".join(one.model_dump_json(exclude_defaults=True) + "\n" for one in lines)
    (path / "trials.jsonl").write_text(text)
    return path


def short_of_its_level(trial: TrialRecord) -> TrialRecord:
    assert trial.load is not None
    if trial.cell["frequency_pps"] != 1e6 or (trial.cell["plane"] == "veth" and trial.block % 2):
        return trial
    load = trial.load.model_copy(update={"achieved_pps": 20_900.0})
    return trial.model_copy(update={"load": load})


def sample(run: Path) -> RunSample:
    reader = RunReader(run)
    return RunSample("run", reader.info, reader.trials())


def test_a_trial_that_misses_its_rate_is_told_from_one_that_keeps_it(run: Path) -> None:
    for trial in RunReader(run).trials():
        assert trial.load is not None
        missed = [one.factor for one in missed_levels(trial)]
        assert missed == (["frequency_pps"] if trial.load.achieved_pps == 20_900.0 else [])
        assert list(marked(trial).missed) == missed


def test_it_counts_in_no_metric(run: Path) -> None:
    for name in ("rtt", "rtt_p99", "jitter", "loss", "overhead", "response", "cpu:shared"):
        seen = observe([sample(run)], name).observations
        fast = [one for one in seen if one.cell["frequency_pps"] == 1e6]
        assert len(fast) == 4, name
        assert len(seen) == 20, name
        assert all(one.cell["plane"] == "veth" and one.block % 2 for one in fast), name


def test_two_frequencies_are_never_averaged_into_one_pair(run: Path) -> None:
    parts = by_sending(observe([sample(run)], "rtt"), "plane")
    assert [one.metric.sending for one in parts] == [Sending(1000.0), Sending(1e6)]
    slow, fast = (compare_levels(one, "plane") for one in parts)
    assert "at 1 kpps" in slow.metric.title
    assert slow.find("veth", "bridge") is not None
    assert fast.levels == ("veth",)
    assert fast.comparisons == ()
    (whole,) = by_sending(observe([sample(run)], "rtt"), "frequency_pps")
    assert whole.metric.sending is None
    with pytest.raises(ValueError, match="several ways of sending"):
        compare_levels(observe([sample(run)], "rtt"), "plane")


def test_it_reaches_no_recommendation(run: Path) -> None:
    reader = RunReader(run)
    trials = reader.trials()
    kept = [one for one in trials if keeps_levels(one)]
    advice, of_kept = recommend(trials, reader.info), recommend(kept, reader.info)
    assert advice.ranking == of_kept.ranking
    assert advice.headline == of_kept.headline
    assert {one.frequency_pps for one in advice.ranking} == {1000.0, 1e6}
    assert any("12 trials missed their target" in one for one in advice.reservations)


def test_the_recommendation_names_the_rate_at_which_it_holds(tmp_path: Path) -> None:
    wanted = MadeUp(
        planes=("veth", "bridge"), frequencies_pps=(1000.0, 1e4), blocks=10, load_blocks=0, failed=0
    )
    advice = RunReader(write(tmp_path / "run", wanted)).recommendation()
    assert advice is not None
    assert advice.plane == "veth"
    assert "At 1 kpps" in advice.headline
    assert "at 10 kpps" in advice.headline


def test_the_report_averages_without_it_and_shows_it_with_what_it_achieved(run: Path) -> None:
    data = RunData(RunReader(run))
    cells = {(cell.plane, dict(cell.factors)["frequency_pps"]): cell for cell in data.rtt}
    assert cells.keys() == {("veth", 1000.0), ("bridge", 1000.0), ("veth", 1e6)}
    assert len(cells["veth", 1e6].rtt.medians_ns) == 4
    missed = [one for one in data.left_out if one.why.endswith("of the rate of the probes")]
    assert sorted((one.what, one.times) for one in missed) == [
        ("RTT trials, bridge", 8),
        ("RTT trials, veth", 4),
    ]
    assert all(one.is_out for one in missed)
    assert missed[0].why.startswith("reached only 2.1 % of")


def test_metrics_are_drawn_against_the_number_of_guests_with_the_load_that_they_made(
    tmp_path: Path,
) -> None:
    wanted = MadeUp(
        planes=("veth", "bridge"),
        guests=(0, 8, 64),
        load_types=("cpu", "network"),
        blocks=8,
        load_blocks=0,
        failed=0,
    )
    path = write(tmp_path / "run", wanted)
    lines = []
    for trial in RunReader(path).trials():
        count = int(trial.cell["background_guests"])
        if count:
            each = 0.01 if trial.cell["load_type"] == "cpu" else 100.0
            done = BackgroundResult(
                unit="cpus" if trial.cell["load_type"] == "cpu" else "pps",
                window_s=1.0,
                achieved=each * count,
                resolution=0.0,
                guests={f"b{number}": each for number in range(count)},
            )
            trial = trial.model_copy(update={"background": done})
        lines.append(trial.model_dump_json(exclude_defaults=True) + "\n")
    (path / "trials.jsonl").write_text("".join(lines))
    data = RunData(RunReader(path))
    (section,) = guests.sections(data)
    drawn = {figure.name: figure for figure in section.figures}
    assert list(drawn)[:2] == ["guests-load-cpus", "guests-load-pps"]
    assert {"guests-rtt", "guests-rtt-p99", "guests-cpu-shared"} <= drawn.keys()
    rows = drawn["guests-load-pps"].table.rows
    assert [str(getattr(row[2], "text", row[2])) for row in rows] == ["800 pps"] * 2 + [
        "6.4 kpps"
    ] * 2
    for row in drawn["guests-rtt"].table.rows:
        assert row[-1] == PrintedNumber("8", 8)
    medians = {(row[0], row[1]): row[2] for row in drawn["guests-rtt"].table.rows}
    assert len(medians) == 2 * 5
    for figure in drawn.values():
        assert fits_schema(figure.whole())


def test_a_run_that_recorded_no_rate_is_taken_as_it_is() -> None:
    trial = TrialRecord.model_validate(
        {
            "trial": "rtt:veth#r0",
            "kind": "rtt",
            "cell": {"plane": "veth", "frequency_pps": 1e6},
            "block": 0,
            "replicate": 0,
            "order": 0,
            "started": "2024-01-01T00:00:00Z",
            "duration_s": 1,
        }
    )
    assert keeps_levels(trial)


def beside_load(wanted: float | None, done: float, resolution: float = 0.0) -> TrialRecord:
    return made_up_run.trial(
        "rtt:veth#r0",
        "rtt",
        {"plane": "veth"},
        background=BackgroundResult(
            unit="pps",
            window_s=1.0,
            wanted=wanted,
            achieved=done,
            resolution=resolution,
            guests={"b0": done},
        ),
    )


@given(st.floats(1, 1e6), st.floats(0, 2), st.floats(0, 1e3))
def test_a_set_load_that_was_not_had_is_missed_as_far_as_the_window_tells(
    wanted: float, share: float, resolution: float
) -> None:
    trial = beside_load(wanted, share * wanted, resolution)
    beyond = abs(share * wanted - wanted) - 0.01 * wanted - resolution
    missed = [one.factor for one in missed_levels(trial)]
    assert missed == (["background"] if beyond > 0 else []) or abs(beyond) < 1e-6


def test_cpu_shares_of_less_than_a_second_count_nowhere(tmp_path: Path) -> None:
    wanted = MadeUp(
        planes=("veth", "bridge"), load_types=("none",), blocks=8, load_blocks=0, failed=0
    )
    path = write(tmp_path / "run", wanted)
    measured = cpu.cells(RunData(RunReader(path)))
    assert {len(cell.replicates_busy) for cell in measured} == {8}
    short = [one.model_copy(update={"cpu_window_s": 0.003}) for one in RunReader(path).trials()]
    text = "".join(one.model_dump_json(exclude_defaults=True) + "\n" for one in short)
    (path / "trials.jsonl").write_text(text)
    data = RunData(RunReader(path))
    assert cpu.cells(data) == []
    assert metrics_in([sample(path)])[-1] == "loss"
    assert observe([sample(path)], "cpu:shared").observations == ()
    assert any("too short for the kernel" in one.why for one in data.left_out)


def test_short_load_trials_tell_cpu_time_only_where_they_last_a_second_together(
    tmp_path: Path,
) -> None:
    def seen(loads: int, each_s: float) -> int:
        ladder = tuple(0.3 + 0.1 * step for step in range(loads))
        wanted = MadeUp(planes=("veth",), load_types=("none",), blocks=0, ladder=ladder)
        path = write(tmp_path / f"{loads}-{each_s}", wanted)
        trials = [one.model_copy(update={"duration_s": each_s}) for one in RunReader(path).trials()]
        run = RunSample("run", RunReader(path).info, trials)
        return len(observe([run], "cpu_per_packet").observations)

    assert seen(4, 0.1) == 0
    assert seen(4, 0.25) == 5


def test_guests_that_do_as_much_as_they_can_miss_nothing() -> None:
    assert keeps_levels(beside_load(None, 123.0))


@pytest.mark.parametrize("path", DESIGNS, ids=lambda path: path.stem)
@given(share=st.floats(0.0, 2.0), had=st.floats(0.0, 2.0))
@settings(max_examples=25)
def test_every_trial_of_a_shipped_design_is_within_one_per_cent_or_marked_and_excluded(
    path: Path, share: float, had: float
) -> None:
    design = load_design(path)
    each = design.background.per_guest
    schedule = make_schedule(design.model_copy(update={"blocks": 1}), {}, {})
    for visit in schedule.visits:
        for trial in visit.trials:
            if trial.kind != "rtt":
                continue
            traffic = trial.traffic()
            label = float(traffic["frequency_pps"])
            background = None
            if visit.cell.load_type != "none":
                endless = each is not None and (
                    each.rate_pps == "max"
                    if visit.cell.load_type == "network"
                    else each.cpu_share is None
                )
                background = BackgroundResult(
                    unit="cpus" if visit.cell.load_type == "cpu" else "pps",
                    window_s=1.0,
                    wanted=None if endless else 100.0,
                    achieved=100 * had,
                    resolution=0.0,
                    guests={"b0": 100 * had},
                )
            bursts = bursts_of(str(traffic.get("pattern", "")))
            sent = OfferedLoad(intended_pps=label, achieved_pps=share * label, size_bytes=64)
            if bursts is not None:
                mean_pps = bursts.packets / bursts.every_s
                within = BurstLoad(**vars(bursts), intended_pps=label, achieved_pps=share * label)
                sent = OfferedLoad(
                    intended_pps=mean_pps, achieved_pps=mean_pps, size_bytes=64, burst=within
                )
            record = marked(
                made_up_run.trial(
                    trial.name,
                    "rtt",
                    {**visit.cell.levels(), **traffic},
                    load=sent,
                    counts=Counts(sent=1000, received=1000, lost=0),
                    background=background,
                )
            )
            off = [("frequency_pps", share)]
            if background is not None and background.wanted is not None:
                off.append(("background", had))
            for factor, achieved in off:
                if factor in record.missed:
                    assert abs(achieved - 1) >= 0.01 - 1e-9
                else:
                    assert abs(achieved - 1) <= 0.01 + 1e-9
            assert set(record.missed) <= {factor for factor, _ in off}
            kept = keeps_levels(record)
            assert kept == (record.missed == ())
            alone = RunSample("run", make_info(), [record])
            assert len(observe([alone], "loss").observations) == int(kept)


def refused_here(text: str, tmp_path: Path) -> dict[Cell, str]:
    path = tmp_path / "design.yaml"
    path.write_text(text)
    design = load_design(path)
    with pytest.MonkeyPatch.context() as patch, Stations(design) as opened:
        patch.setattr(Stations, "_lacking_programs", lambda *_: {})
        patch.setattr(Stations, "_refused", lambda *_: {})
        return dict(opened.unavailable(cells_of(design)))


def test_cpu_load_has_no_location_where_both_hosts_are_one_machine(tmp_path: Path) -> None:
    text = (
        "factors: {plane: [veth, bridge], load_type: [cpu, network], background_guests: [0, 4], "
        "load_location: [sender, responder]}\n"
    )
    refused = refused_here(text, tmp_path)
    assert {(c.plane, c.load_type, c.load_location) for c in refused} == {
        (plane, "cpu", "responder") for plane in ("veth", "bridge")
    }
    assert all("share its CPUs" in reason for reason in refused.values())
    constraint = "constraints: [{when: {load_type: cpu}, require: {load_location: responder}}]\n"
    assert refused_here(text + constraint, tmp_path) == {}


def test_a_set_load_of_more_cpus_than_there_are_is_refused_before_anything_is_built(
    tmp_path: Path,
) -> None:
    cpus = os.cpu_count() or 1
    text = (
        f"factors: {{plane: veth, load_type: cpu, background_guests: [2, {8 * cpus}]}}\n"
        "background: {per_guest: {cpu_share: 0.25}}\n"
    )
    ((cell, reason),) = refused_here(text, tmp_path).items()
    assert cell.background_guests == 8 * cpus
    assert reason.startswith(
        f"{8 * cpus} guests that burn 0.25 CPUs each need {2 * cpus}, and a host has {cpus}: "
    )
    assert refused_here(text.replace("cpu_share: 0.25", "busy_threads: 1"), tmp_path) == {}


def test_without_stress_ng_only_the_cells_that_it_would_load_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "there is no stress-ng on this machine"
    monkeypatch.setattr(
        stations, "lacking", lambda _, programs: why if STRESS_NG in programs else ""
    )
    monkeypatch.setattr(stations.Testbed, "check", lambda *_: {})
    path = tmp_path / "design.yaml"
    path.write_text(
        "factors: {plane: veth, load_type: [none, cpu, cache, memory], background_guests: 2}\n"
        "background: {per_guest: {busy_threads: 1}}\n"
    )
    design = load_design(path)
    with Stations(design) as opened:
        refused = opened.unavailable(cells_of(design))
    assert {cell.load_type for cell in refused} == {"cache", "memory"}
    assert set(refused.values()) == {why}


def test_more_memory_than_a_host_has_is_not_loaded(tmp_path: Path) -> None:
    text = (
        "factors: {plane: veth, load_type: memory, background_guests: 1024}\n"
        "background: {per_guest: {busy_threads: 64, memory_mib: 65536}}\n"
    )
    ((_, reason),) = refused_here(text, tmp_path).items()
    assert reason.startswith(f"1024 guests that load {1024 * 64 * 65536} MiB of memory together")
    small = text.replace("1024", "1").replace("65536", "4").replace("64", "1")
    assert refused_here(small, tmp_path) == {}


def test_a_virtual_machine_burns_no_more_than_its_virtual_cpus(tmp_path: Path) -> None:
    path = tmp_path / "design.yaml"
    text = (
        "factors: {plane: virtio-bridge, guest: vm, load_type: cpu, background_guests: 2}\n"
        "background: {per_guest: {cpu_share: 1.5}}\n"
    )
    path.write_text(text)
    with pytest.raises(BadInputError, match=r"1 virtual CPU cannot burn 1\.5") as refused:
        load_design(path)
    assert refused.value.where == f"{path}:2"
    path.write_text(text + "vm: {vcpus: 2}\n")
    assert load_design(path).vm.vcpus == 2


@pytest.mark.parametrize("name", ["docker-rtt", "kvm-baseline"])
def test_designs_for_this_machine_ask_for_no_void_location(name: str, tmp_path: Path) -> None:
    text = Path(f"experiments/reduced/{name}.yaml").read_text()
    assert refused_here(text, tmp_path) == {}
