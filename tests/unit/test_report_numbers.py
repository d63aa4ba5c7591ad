"""The report's numbers are those that anyone can compute from the run directory."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planewise.advise.recommend import recommend
from planewise.judge.bounded import at_least, exact
from planewise.judge.drift import find_drift
from planewise.judge.statistics.comparison import compare_levels
from planewise.judge.statistics.metrics import RunSample, observe
from planewise.judge.verdict import LoadEstimate, judge
from planewise.report import html
from planewise.report.data import RunData
from planewise.report.figure import Missing, PrintedNumber, Table
from planewise.report.sections import cpu, rtt, schedule
from planewise.report.sections import load as load_section
from planewise.report.sections.guests import Curves, Point
from planewise.store.cells import common_factors, factors_of, plane_of, words
from planewise.store.rundir import RunReader
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """The default made-up run."""
    return RunData(RunReader(made_up_run.write(tmp_path_factory.mktemp("run") / "run")))


def packets_of(data: RunData, plane: str, load: str) -> pl.DataFrame:
    """All packets of a cell, read as a reader of the run directory would."""
    trials = [
        trial
        for trial in data.run.trials()
        if trial.kind == "rtt"
        and trial.status == "done"
        and (trial.cell["plane"], trial.cell["load_type"]) == (plane, load)
    ]
    assert trials
    return pl.concat([pl.read_parquet(data.run.path / str(trial.packets)) for trial in trials])


def row_of(table: Table, load: str, plane: str) -> dict[str, object]:
    """A table's row by column name."""
    row = next(row for row in table.rows if row[:2] == (load, plane))
    return dict(zip(table.columns, row, strict=True))


def raw(entry: object) -> float:
    assert isinstance(entry, PrintedNumber)
    return entry.raw


CELLS = [
    ("veth", "none", "no load"),
    ("bridge", "cpu", "CPU load"),
    ("macvlan", "network", "network load"),
]


@pytest.mark.parametrize(("plane", "load", "label"), CELLS)
def test_the_box_of_the_rtt_is_that_of_all_packets_of_the_cell(
    data: RunData, plane: str, load: str, label: str
) -> None:
    packets = packets_of(data, plane, load).drop_nulls(["user_rx_ns"])
    rtts = (packets["user_rx_ns"] - packets["user_tx_ns"]).to_numpy()
    row = row_of(rtt.rtt_table(data.rtt), label, plane)
    for column, quantile in (("5 %", 5), ("25 %", 25), ("75 %", 75), ("95 %", 95)):
        assert raw(row[column]) == pytest.approx(np.percentile(rtts, quantile))
    assert raw(row["Packets"]) == len(rtts)


@pytest.mark.parametrize(("plane", "load", "label"), CELLS)
def test_tables_comparisons_and_rankings_have_one_value_of_a_quantity(
    data: RunData, plane: str, load: str, label: str
) -> None:
    row = row_of(rtt.rtt_table(data.rtt), label, plane)
    tail = row_of(rtt.tail_table(data.rtt), label, plane)
    sample = RunSample("run", data.info, data.trials)
    ranking = recommend(data.trials, data.info).ranking
    for metric, shown, place in (
        ("rtt", [row["Median"], tail["p50"]], "rtt_p50"),
        ("rtt_p90", [tail["p90"]], ""),
        ("rtt_p99", [tail["p99"]], "rtt_p99"),
        ("rtt_p999", [tail["p99.9"]], ""),
    ):
        family = compare_levels(observe([sample], metric), "plane", by="load_type")
        value = family.value(plane, "idle" if load == "none" else load)
        assert value is not None
        numbers = [raw(entry) for entry in shown]
        numbers += [
            one.value
            for one in ranking
            if (one.plane, one.load_type, one.metric) == (plane, load, place)
        ]
        assert numbers == pytest.approx([value.value] * (len(shown) + bool(place)))


def test_the_busy_share_of_a_cpu_is_that_of_comparisons(data: RunData) -> None:
    sample = RunSample("run", data.info, data.trials)
    found = cpu.cells(data)
    assert found
    for cell in found:
        family = compare_levels(observe([sample], f"cpu:{cell.host}"), "plane", by="load_type")
        load = str(dict(cell.factors).get("load_type", "none"))
        value = family.value(cell.plane, "idle" if load == "none" else load)
        assert value is not None
        assert cell.busy == pytest.approx(value.value)


@pytest.mark.parametrize(("plane", "load", "label"), CELLS[:2])
def test_the_parts_of_the_time_are_means_over_the_middle_half_and_add_up(
    data: RunData, plane: str, load: str, label: str
) -> None:
    p = packets_of(data, plane, load).drop_nulls()
    total = (p["user_rx_ns"] - p["user_tx_ns"]).to_numpy()
    kernel = (p["kernel_rx_ns"] - p["kernel_tx_ns"]).to_numpy()
    nic = (p["sender_nic_reply_ns"] - p["sender_nic_request_ns"]).to_numpy()
    response = (p["responder_nic_reply_ns"] - p["responder_nic_request_ns"]).to_numpy()
    low, high = np.percentile(total, [25, 75])
    middle = (total >= low) & (total <= high)
    row = row_of(rtt.parts_table(data.rtt), label, plane)
    assert raw(row["Sum"]) == pytest.approx(total[middle].mean())
    assert raw(row["Sender overhead"]) == pytest.approx((total - nic)[middle].mean())
    assert raw(row["Sender host"]) == pytest.approx((kernel - nic)[middle].mean())
    assert raw(row["Wire"]) == pytest.approx((nic - response)[middle].mean())
    assert raw(row["Responder host"]) == pytest.approx(response[middle].mean())
    assert raw(row["The probe itself"]) == pytest.approx((total - kernel)[middle].mean())
    names = ("Sender host", "Wire", "Responder host", "The probe itself")
    assert sum(raw(row[name]) for name in names) == pytest.approx(raw(row["Sum"]))


def test_a_plane_whose_frames_the_host_does_not_see_has_no_parts(data: RunData) -> None:
    table = rtt.parts_table(data.rtt)
    rows = [row for row in table.rows if row[1] == "macvlan"]
    assert len(rows) == 3
    for row in rows:
        assert all(isinstance(entry, Missing) for entry in row[2:-1])


def test_time_in_the_guests_stacks_is_told_apart_and_all_adds_up(tmp_path: Path) -> None:
    wanted = MadeUp(inside=True, load_types=("none",), load_blocks=0, failed=0)
    data = RunData(RunReader(made_up_run.write(tmp_path / "run", wanted)))
    table = rtt.parts_table(data.rtt)
    names = table.columns[4:-1]
    rows = {str(row[1]): dict(zip(table.columns, row, strict=True)) for row in table.rows}
    seen = [one for one in names if one not in ("The probe itself", "Hosts and wire")]
    for plane in ("veth", "bridge"):
        row = rows[plane]
        assert sum(raw(row[name]) for name in seen) == pytest.approx(raw(row["Sum"]))
        assert raw(row["Sender overhead"]) == pytest.approx(
            raw(row["Sender's guest"]) + raw(row["Sender host"])
        )
        assert isinstance(row["Hosts and wire"], Missing)
    # The host sees nothing of these; the guests do.
    hidden = rows["macvlan"]
    told = ("Sender's guest", "Hosts and wire", "Responder's guest")
    assert sum(raw(hidden[name]) for name in told) == pytest.approx(raw(hidden["Sum"]))
    for name in ("Sender overhead", "Sender host", "Wire", "Responder host"):
        entry = hidden[name]
        assert isinstance(entry, Missing)
        assert made_up_run.HIDDEN_REASON in entry.why


def test_loss_and_throughput_are_those_of_the_trials(data: RunData) -> None:
    bridge = next(item for item in data.curves if item.plane == "bridge")
    table = load_section.curve_table(bridge.curve)
    loads: dict[float, list[float]] = {}
    for trial in data.run.trials():
        if trial.kind == "load" and trial.cell["plane"] == "bridge":
            assert trial.load is not None
            assert trial.counts is not None
            plr = 1 - trial.counts.received / trial.counts.sent
            loads.setdefault(trial.load.intended_pps, []).append(plr)
    assert len(table.rows) == len(loads) == 9
    for row, (load, plrs) in zip(table.rows, sorted(loads.items()), strict=True):
        entries = dict(zip(table.columns, row, strict=True))
        assert raw(entries["Offered"]) == load
        assert raw(entries["Runs"]) == len(plrs) == 5
        assert raw(entries["PLR"]) == pytest.approx(np.mean(plrs))
        assert raw(entries["DR"]) == pytest.approx(1 - np.mean(plrs))
        assert raw(entries["Forwarded"]) == pytest.approx(load * (1 - np.mean(plrs)))


def test_the_verdicts_are_the_judges(data: RunData) -> None:
    table = load_section.verdict_table(data.curves, ())
    for item, row in zip(data.curves, table.rows, strict=True):
        verdict = judge(item.curve)
        entries = dict(zip(table.columns, row, strict=True))
        assert entries["Verdict"] == verdict.verdict
        assert verdict.pdr is not None
        assert raw(entries["PDR"]) == verdict.pdr.pps
        assert (
            raw(entries["Runs that agree"]) == verdict.stability.runs - verdict.stability.disturbed
        )


def test_the_line_of_a_curve_meets_the_limit_where_pdr_lies_or_a_little_below(
    data: RunData,
) -> None:
    item = next(item for item in data.curves if item.plane == "bridge")
    drawn = load_section.line(item.plane, item.curve)
    loads = [float(row["x"]) for row in drawn]
    plrs = [float(row["value"]) for row in drawn]
    assert loads == sorted(loads)
    assert item.verdict.pdr is not None
    # A plateau beyond it says that PDR lies further up than the straight line says.
    assert 0.0049 <= np.interp(item.verdict.pdr.pps, loads, plrs) <= 0.0055


def test_cpu_shares_are_those_of_the_replicate_of_median_busy_share(data: RunData) -> None:
    trials = [
        trial
        for trial in data.done
        if trial.kind == "rtt"
        and (trial.cell["plane"], trial.cell["load_type"]) == ("veth", "network")
    ]
    shares = sorted(
        (1 - of["idle"] - of.get("iowait", 0), of["soft"] + of.get("irq", 0))
        for of in (trial.cpu["shared"] for trial in trials)
    )
    cell = next(
        cell
        for cell in cpu.cells(data)
        if cell.plane == "veth" and dict(cell.factors)["load_type"] == "network"
    )
    assert len(cell.replicates_busy) == len(trials) == 3
    assert cell.shares["interrupts"] == pytest.approx(shares[1][1])
    assert cell.busy == pytest.approx(shares[1][0])


def test_the_page_prints_the_tables_numbers_and_keeps_them_whole(data: RunData) -> None:
    page = html.render(data.run)
    for row in rtt.tail_table(data.rtt).rows:
        for entry in row[2:]:
            assert isinstance(entry, PrintedNumber)
            said = re.sub(r"(?<=\d) (?=\D)", "\u00a0", entry.text)
            assert f'<data value="{entry.raw}">{said}</data>' in page


def test_a_quantile_that_too_few_packets_stand_behind_is_missing(tmp_path: Path) -> None:
    wanted = MadeUp(planes=("veth",), blocks=1, packets=150, load_blocks=0, failed=0)
    data = RunData(RunReader(made_up_run.write(tmp_path / "run", wanted)))
    row = row_of(rtt.tail_table(data.rtt), "no load", "veth")
    assert raw(row["p99"]) > raw(row["p90"])
    assert row["p99.9"] == Missing("needs 1000 packets")


def test_all_trials_appear_in_the_schedule_in_their_order(data: RunData) -> None:
    visits = schedule.visits(data)
    assert [visit.order for visit in visits] == list(range(len(data.trials)))
    relative = [visit.relative for visit in visits if visit.relative is not None]
    assert len(relative) == 26  # 27 RTT trials, one failed
    assert 0.8 < min(relative) <= 1 <= max(relative) < 1.25


def test_drift_that_was_planted_is_found(tmp_path: Path) -> None:
    wanted = MadeUp(load_blocks=0, blocks=12, packets=200, drift=0.5, load_types=("none",))
    run = RunReader(made_up_run.write(tmp_path / "run", wanted))
    drift = next(one for one in find_drift(run.trials(), run.info) if one.code == "results")
    assert 0.3 < float(drift.evidence["change"]) < 0.6
    data = RunData(run)
    assert drift.sentence in schedule.figure(schedule.visits(data), data).lead


def test_contexts_are_said_in_plain_words_and_shared_levels_once() -> None:
    cell = {
        "plane": "veth",
        "load_type": "cpu",
        "load_location": "sender",
        "background_guests": 1,
        "size_bytes": 64,
        "frequency_pps": 1000.0,
        "ring": 512,
    }
    assert plane_of(cell) == "veth"
    factors = factors_of(cell)
    assert words(factors) == (
        "CPU load at the sender, 1 background guest, 64-byte frames, at 1 kpps, ring 512"
    )
    other = factors_of(cell | {"background_guests": 8})
    common = common_factors([factors, other])
    assert words(other, common) == "CPU load, 8 background guests"


def test_without_load_its_location_is_not_a_condition() -> None:
    cell = {"plane": "veth", "load_type": "none", "load_location": "sender"}
    assert factors_of(cell) == (("load_type", "none"),)


def test_a_load_beyond_the_ladder_is_bounded_by_its_interval_and_not_by_the_last_load() -> None:
    above = load_section._estimate(LoadEstimate(160e3, 146e3, math.inf), "unused")
    assert isinstance(above, PrintedNumber)
    assert above.text == "at least 146 kpps"
    assert isinstance(load_section._estimate(LoadEstimate(127e3, 0.0, math.inf), "unused"), Missing)


def test_a_point_whose_blocks_are_mostly_bounds_is_shown_as_one() -> None:
    said = Curves("throughput", "forwarding rate at the best load", "rate", ()).shown
    assert said(Point.of([exact(1e6), at_least(2e6), at_least(3e6)])) == "at least 2 Mpps"
    assert said(Point.of([exact(1e6), exact(2e6), at_least(3e6)])) == "2 Mpps"
