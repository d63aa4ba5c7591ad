"""A kind of trial that brings its part of a design and figures of its own: connections."""

from __future__ import annotations

from pathlib import Path

import pytest
from hdrh.histogram import HdrHistogram

from planewise.advise.recommend import recommend
from planewise.errors import BadInputError
from planewise.fleet.budget import within
from planewise.fleet.plan import Budget
from planewise.judge.statistics.metrics import RunSample, metrics_in, observe
from planewise.measure.designs.design import Design
from planewise.measure.designs.design_file import load_design
from planewise.measure.designs.schedule import make_schedule
from planewise.measure.trials import KINDS, loaded, rr
from planewise.measure.trials.connect import ConnectTrial, figures
from planewise.measure.trials.probe import PingOutput
from planewise.report import html
from planewise.store.models import Figure, Latency, TrialRecord
from planewise.store.rundir import RunReader
from tests.command import in_this_process
from tests.unit import made_up_run
from tests.unit.made_up_chains import write


def read(tmp_path: Path, text: str) -> Design:
    path = tmp_path / "design.yaml"
    path.write_text(text)
    return load_design(path)


def test_a_kinds_own_part_stands_beside_the_others_and_is_kept_with_the_run(tmp_path: Path) -> None:
    text = "factors: {plane: [veth, bridge]}\nrtt: {packets: 10}\nconnect: {per_s: 50}\nblocks: 2\n"
    design = read(tmp_path, text)
    assert design.others == {"connect": {"count": 200, "per_s": 50.0}}
    assert Design.model_validate(design.model_dump(mode="json")) == design
    schedule = make_schedule(design, {}, {})
    trials = [trial for visit in schedule.visits for trial in visit.trials]
    assert [trial.kind for trial in trials] == ["rtt", "other"] * 4
    assert isinstance(trials[1], ConnectTrial)
    assert (trials[1].count, trials[1].expected_s) == (200, 4.0)
    alone = read(tmp_path, "factors: {plane: veth}\nconnect: {}\n")
    assert alone.rtt is None
    assert alone.trials_upper_bound() == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("connect: {cuont: 3}", ":2: connect: unknown key `cuont`"),
        ("connect: {count: 3}", ":2: connect.count: "),
        ("connect: {count: many}", "the text `many` is not a whole number"),
        ("connect:", "measures nothing"),
        ("others: {connect: {}}", "unknown key `others`"),
        ("conect: {}", "did you mean `connect`?"),
    ],
)
def test_what_is_wrong_in_a_kinds_own_part_is_said_as_in_any(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(BadInputError) as error:
        read(tmp_path, f"factors: {{plane: veth}}\n{text}\n")
    assert said in f"{error.value} {error.value.remedy}"


def test_no_two_kinds_share_a_place_in_a_visit_or_a_key() -> None:
    for taken in ([kind.rank for kind in KINDS], [kind.key for kind in KINDS]):
        assert len(set(taken)) == len(KINDS)


def test_a_run_with_a_kind_of_another_version_is_refused() -> None:
    design = Design.model_validate({"factors": {"plane": "veth"}, "others": {"teleport": {}}})
    with pytest.raises(BadInputError, match="no trials called teleport"):
        make_schedule(design, {}, {})


def test_it_goes_through_no_chain_and_keeps_to_a_fleets_budget(tmp_path: Path) -> None:
    for other, said in (
        ("chain: {}", "not in one design with `chain`"),
        ("", "only `chain` and `tcp` measure chains"),
    ):
        with pytest.raises(BadInputError, match=said):
            read(
                tmp_path,
                "factors: {plane: bridge, guest: process, vnfs: 2}\nconnect: {}\n" + other,
            )
    design = read(tmp_path, "factors: {plane: veth}\nconnect: {per_s: 50}\n")
    assert within(design, Budget(pps=200)) == design
    with pytest.raises(BadInputError, match=r"connect\.per_s offers 200 pps"):
        within(design, Budget(pps=199))


def test_connections_that_fail_are_infinitely_late() -> None:
    times = HdrHistogram(1, 3_600_000_000_000, 3)
    for microseconds in range(1, 101):
        times.record_value(1000 * microseconds)
    latency = Latency(
        count=100,
        min_ns=1000,
        mean_ns=50_500.0,
        p50_ns=50_000.0,
        p90_ns=90_000.0,
        p99_ns=99_000.0,
        p999_ns=100_000.0,
        max_ns=100_000,
        hdr=times.encode().decode(),
    )
    whole = figures(latency, made=100, failed=0)
    assert whole["connect"].value == pytest.approx(50_000, rel=2e-3)
    assert whole["connect_p99"].value == pytest.approx(99_000, rel=2e-3)
    assert whole["connect_failed"].value == 0
    # Half of all is 75 of those that were made; of the last hundredth none was.
    half = figures(latency, made=100, failed=50)
    assert half["connect"].value == pytest.approx(75_000, rel=2e-3)
    assert "connect_p99" not in half
    assert half["connect_failed"].value == pytest.approx(1 / 3)


def trial(plane: str, block: int, value: float) -> TrialRecord:
    figure = Figure(
        title="median time to connect",
        unit="ns",
        lower_is_better=True,
        value=value,
        resolution=1.0,
    )
    failed = Figure(
        title="connections that were not made",
        unit="share",
        lower_is_better=True,
        value=0.0 if plane == "veth" else 0.25,
        resolution=0.01,
    )
    return made_up_run.trial(
        f"connect:{plane}#r{block}",
        "other",
        {"plane": plane, "load_type": "none"},
        block,
        order=block,
        duration_s=2.0,
        figures={"connect": figure, "connect_failed": failed},
    )


def test_figures_are_compared_and_reported_by_what_they_say_of_themselves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = [
        trial(plane, block, value * (1 + block / 100))
        for block in range(8)
        for plane, value in (("veth", 50_000.0), ("bridge", 80_000.0))
    ]
    write(tmp_path / "run", trials)
    run = RunReader(tmp_path / "run")
    samples = [RunSample("run", run.info, run.trials())]
    assert metrics_in(samples) == ("connect", "connect_failed")
    metric = observe(samples, "connect").metric
    assert (metric.title, metric.unit, metric.lower_is_better) == (
        "median time to connect",
        "ns",
        True,
    )
    page = html.render(run)
    assert "Other measurements" in page
    assert "Median time to connect" in page
    assert "Significant differences" in page
    assert "veth is better than bridge" in page
    assert "veth is better than bridge (-25 points)" in page, "a share, and no time"
    advice = recommend(run.trials(), run.info)
    assert advice.plane is None
    assert "There is no recommendation" in advice.headline
    _, said, _ = in_this_process(capsys, monkeypatch, "compare", tmp_path / "run")
    assert "veth is better than bridge" in said
    assert "median time to connect" in said
    with pytest.raises(BadInputError, match="there is no metric 'conect'") as error:
        observe(samples, "conect")
    assert "connect, connect_failed" in error.value.remedy


def ping(p50_ns: float) -> PingOutput:
    """Ten answered probes in a second, beside one of four busy CPUs."""
    times = {"count": 10, "min_ns": 1, "mean_ns": p50_ns, "p50_ns": p50_ns, "p90_ns": p50_ns}
    return PingOutput.model_validate(
        {
            "command": "ping",
            "version": "0",
            "started_ns": 0,
            "duration_s": 1,
            "cpu": {"all": {"idle": 0.75, "sys": 0.25}},
            "load": {"intended_pps": 10, "achieved_pps": 10, "size_bytes": 128},
            "counts": {"sent": 10, "received": 10, "lost": 0},
            "rtt_user": {**times, "p99_ns": 3e6, "p999_ns": 3e6, "max_ns": 3_000_000},
        }
    )


def test_latency_under_load_is_told_beside_that_without() -> None:
    found = loaded.figures(ping(20_000), ping(1_000_000), 9e9)
    values = {name: figure.value for name, figure in found.items()}
    assert values == {
        "loaded_rtt": 1_000_000, "loaded_rtt_p99": 3e6, "loaded_increase": 50,
        "loaded_goodput": 9e9,
    }  # fmt: skip


def test_requests_have_a_rate_quantiles_and_cpu_time_where_cpus_are_known() -> None:
    values = {name: one.value for name, one in rr.figures(ping(5000), "udp", 4).items()}
    expected = {"rr_udp": 5000, "rr_udp_p99": 3e6, "rr_udp_rate": 10, "rr_udp_cpu": 1e8}
    assert values == expected
    assert "rr_tcp_cpu" not in rr.figures(ping(5000), "tcp", 0)


def test_a_design_may_ask_for_requests_by_several_transports(tmp_path: Path) -> None:
    text = "factors: {plane: veth}\nrr: {transports: [udp, tcp]}\ncrr: {count: 20}\nblocks: 1\n"
    (visit,) = make_schedule(read(tmp_path, text), {}, {}).visits
    names = [trial.name.split(":")[0] for trial in visit.trials]
    assert sorted(names) == ["crr", "rr-tcp", "rr-udp"]
