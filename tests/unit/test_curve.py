"""Load-loss curves and their statistics."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from planewise.errors import BadInputError
from planewise.judge.curve import Curve, LoadPoint, Run, by_column
from planewise.judge.files import judge_file
from planewise.judge.from_store import curves_from_trials
from planewise.store.models import Counts, LossPart, OfferedLoad, TrialRecord


def point(*received: int, offered_pps: float = 1000.0, sent: int = 1000) -> LoadPoint:
    return LoadPoint(offered_pps, tuple(Run(sent, count) for count in received))


def test_a_load_has_students_interval_with_one_degree_of_freedom_less_than_runs() -> None:
    # Worked by hand: PLR 1, 2, 3 %; mean 2 %, deviation 1 %, t(0.975; 2) = 4.30265.
    three = point(990, 980, 970)
    assert three.plr == pytest.approx(0.02)
    assert three.deviation == pytest.approx(0.01)
    assert three.half_width95 == pytest.approx(4.30265 * 0.01 / math.sqrt(3), rel=1e-5)
    assert three.interval95 == pytest.approx((0.0, 0.044841), abs=1e-6)
    assert three.delta_ucl95 == pytest.approx(0.024841 / 0.02, rel=1e-4)
    assert three.dr == pytest.approx(0.98)
    assert three.forwarded_pps == pytest.approx(980.0)


def test_a_single_run_has_no_deviation_and_no_interval() -> None:
    one = point(990)
    assert one.plr == pytest.approx(0.01)
    assert one.deviation is None
    assert one.interval95 is None
    assert one.delta_ucl95 is None


def test_a_few_packets_more_than_sent_are_no_loss_and_no_gain() -> None:
    stray = point(1003, 1002)
    assert stray.plr == 0.0
    assert stray.plr_counted == pytest.approx(-0.0025)
    assert stray.forwarded_pps == 1000.0
    assert stray.delta_ucl95 is None


def test_throughput_increase_ratio_is_the_rise_of_throughput_by_that_of_load() -> None:
    curve = Curve(
        "c",
        (
            point(1000, offered_pps=1000),
            point(1000, offered_pps=2000),
            point(750, offered_pps=3000),
        ),
    )
    assert curve.forwarded_pps.tolist() == [1000, 2000, 2250]
    assert curve.tir.tolist() == [1.0, 0.25]
    assert curve.first_over(0.005) == 2
    assert curve.first_over(0.25) is None


def test_points_are_sorted_by_load_and_equal_loads_become_one() -> None:
    curve = Curve(
        "c", (point(900, offered_pps=20), point(1000, offered_pps=10), point(800, offered_pps=20))
    )
    assert curve.offered_pps.tolist() == [10, 20]
    assert curve.counts.tolist() == [1, 2]
    assert curve.points[1].plr == pytest.approx(0.15)


def test_runs_come_in_their_real_order_where_it_is_known() -> None:
    runs = (Run(10, 9, order=2), Run(10, 8, order=0), Run(10, 7, order=1))
    assert LoadPoint(1.0, runs).plr_per_run == pytest.approx([0.2, 0.3, 0.1])
    without = (Run(10, 9), Run(10, 8, order=0))
    assert LoadPoint(1.0, without).plr_per_run == pytest.approx([0.1, 0.2])


def test_runs_that_the_generator_limited_are_left_out_unless_there_are_no_others() -> None:
    some = LoadPoint(1.0, (Run(10, 10), Run(10, 0, limited=True)))
    assert some.count == 1
    assert some.plr == 0
    assert some.limited == 1
    every = LoadPoint(1.0, (Run(10, 0, limited=True),))
    assert every.plr == 1
    assert every.limited == 1


def test_drop_counters_are_summed_only_when_every_run_has_one() -> None:
    assert LoadPoint(1.0, (Run(10, 8, drops=1), Run(10, 9, drops=1))).drops == 2
    assert LoadPoint(1.0, (Run(10, 8, drops=1), Run(10, 9))).drops is None
    assert LoadPoint(1.0, (Run(10, 8), Run(10, 11))).lost == 2


def test_what_was_really_sent_is_known_when_durations_are() -> None:
    timed = LoadPoint(100.0, (Run(99, 99, duration_s=1.0), Run(198, 198, duration_s=2.0)))
    assert timed.achieved_pps == pytest.approx(99.0)
    assert LoadPoint(100.0, (Run(99, 99, duration_s=1.0), Run(198, 198))).achieved_pps is None


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Run(0, 0), "0 packets sent"),
        (lambda: Run(-5, 0), "-5 packets sent"),
        (lambda: Run(10, -1), "-1 packets received"),
        (lambda: Run(10, 1, duration_s=0.0), "duration of 0.0 s"),
        (lambda: Run(10, 1, duration_s=math.inf), "duration of inf s"),
        (lambda: LoadPoint(0.0, (Run(1, 1),)), "is not a load"),
        (lambda: LoadPoint(-1.0, (Run(1, 1),)), "is not a load"),
        (lambda: LoadPoint(math.nan, (Run(1, 1),)), "is not a load"),
        (lambda: LoadPoint(math.inf, (Run(1, 1),)), "is not a load"),
        (lambda: LoadPoint(5.0, ()), "no run at the offered load 5"),
        (lambda: Curve("empty", ()), "the curve empty has no load"),
    ],
)
def test_what_no_trial_can_have_is_named(make: object, says: str) -> None:
    with pytest.raises(BadInputError, match=says):
        make()  # type: ignore[operator]


def test_runs_by_column_are_the_same_runs() -> None:
    runs = LoadPoint(1.0, (Run(10, 9, 1.5, 3, 1, True), Run(20, 20))).runs
    assert runs[0].item()[:6] == (10, 9, 1.5, 3, 1, True)
    assert (runs[1].sent, runs[1].order, runs[1].drops, runs[1].limited) == (20, -1, -1, False)
    assert np.isnan([*runs.busy, *runs.foreign, runs[1].duration_s]).all()
    assert LoadPoint(1.0, runs).runs is runs


def test_a_million_runs_are_kept_by_column() -> None:
    sent = np.full(1_000_000, 1000)
    received = np.tile([990, 980], 500_000)
    load = LoadPoint(1000.0, by_column(sent, received))
    assert load.count == 1_000_000
    assert load.plr == pytest.approx(0.015)
    assert load.deviation == pytest.approx(0.005, rel=1e-5)


def test_a_trial_of_less_than_one_packet_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "slow.csv"
    file.write_text("offered_pps,received_pps\n0.3,0.3\n2,2\n")
    with pytest.raises(BadInputError, match="less than one packet"):
        judge_file(file, None)


def trial(order: int, load_pps: float, received: int, **other: object) -> TrialRecord:
    return TrialRecord.model_validate(
        {
            "trial": f"t{order}",
            "kind": "load",
            "cell": {"plane": "veth", "load_type": "idle"},
            "block": 0,
            "replicate": 0,
            "order": order,
            "started": datetime(2026, 1, 1, tzinfo=UTC),
            "duration_s": 1.0,
            "load": OfferedLoad(intended_pps=load_pps, achieved_pps=load_pps, size_bytes=64),
            "counts": Counts(sent=1000, received=received, lost=1000 - received),
            **other,
        }
    )


def test_load_trials_of_a_run_become_a_curve_a_cell() -> None:
    drop = LossPart(where="responder:wire0", counter="rx_dropped", count=7)
    curves = curves_from_trials(
        [
            trial(0, 2000, 990, loss=(drop,)),
            trial(1, 1000, 1000),
            trial(2, 2000, 980, limits=("generator",)),
            trial(3, 2000, 970, cell={"plane": "bridge", "load_type": "idle"}, limits=("sut",)),
            trial(4, 2000, 0, status="failed", reason="the interface vanished"),
            trial(5, 2000, 0, kind="rtt"),
        ]
    )
    assert [cell["plane"] for cell, _ in curves] == ["veth", "bridge"]
    veth = curves[0][1]
    assert veth.offered_pps.tolist() == [1000, 2000]
    assert [run.item()[:6] for run in veth.points[1].runs] == [
        (1000, 990, 1.0, 0, 7, False),
        (1000, 980, 1.0, 2, -1, True),
    ]
    assert curves[1][1].points[0].limited == 0
