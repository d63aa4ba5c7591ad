"""Warnings about a curve: each with its evidence, none without cause."""

from __future__ import annotations

import numpy as np
import pytest

from planewise.judge.curve import Curve, LoadPoint, Runs, by_column
from planewise.judge.diagnose import Caution
from planewise.judge.verdict import judge

RNG = np.random.default_rng(11)
LOADS = (100e3, 200e3, 300e3, 400e3, 500e3)
PLR = (0.0, 0.001, 0.2, 0.4, 0.52)


def table(load: float, plr: object, **columns: object) -> Runs:
    """Runs of 10 s at a load with the given loss ratios."""
    lost = np.round(load * 10 * np.asarray(plr, dtype=np.float64)).astype(np.int64)
    sent = np.full(lost.size, round(load * 10))
    return by_column(sent, sent - lost, **columns)  # type: ignore[arg-type]


def calm(runs: int = 30) -> dict[float, Runs]:
    """A curve with nothing to warn of."""
    rng = np.random.default_rng(1)
    return {
        load: table(load, np.maximum(0, plr + rng.normal(0, 0.1 * min(plr, 0.01), runs)))
        for load, plr in zip(LOADS, PLR, strict=True)
    }


def warnings(tables: dict[float, Runs]) -> dict[str, Caution]:
    curve = Curve("made up", tuple(LoadPoint(load, runs) for load, runs in tables.items()))
    return {warning.code: warning for warning in judge(curve).warnings}


def test_a_calm_curve_has_no_warning() -> None:
    assert warnings(calm()) == {}


def test_runs_not_limited_by_the_system() -> None:
    tables = calm()
    tables[500e3] = table(500e3, [0.52] * 4, limited=[True, False, False, True])
    found = warnings(tables)["not-limited-by-sut"]
    assert found.evidence["limited_runs"] == 2
    assert found.evidence["offered_pps"] == 500e3
    assert "2 of 4 runs were limited by the generator" in found.text


def test_a_load_that_was_not_achieved() -> None:
    tables = calm()
    tables[400e3] = by_column([3_800_000] * 10, [2_400_000] * 10, duration_s=[10.0] * 10)
    found = warnings(tables)["load-not-achieved"]
    assert found.evidence["difference"] == pytest.approx(-0.05)
    assert "-5 %" in found.text


def test_more_received_than_sent() -> None:
    tables = calm()
    tables[100e3] = table(100e3, [0.0] * 9 + [-0.01])
    found = warnings(tables)["more-received-than-sent"]
    assert found.evidence["excess"] == pytest.approx(0.01)
    few = calm()
    few[100e3] = table(100e3, [-3e-6] * 10)
    assert warnings(few) == {}


def test_mixed_durations() -> None:
    tables = calm()
    tables[100e3] = by_column([100_000] * 5, [100_000] * 5, duration_s=[1.0] * 5)
    tables[200e3] = by_column([2_000_000] * 5, [1_998_000] * 5, duration_s=[10.0] * 5)
    assert warnings(tables)["mixed-durations"].evidence == {"shortest_s": 1.0, "longest_s": 10.0}


def test_loss_that_drifts() -> None:
    tables = calm()
    tables[300e3] = table(300e3, 0.2 + 0.03 * np.arange(30) / 30 + RNG.normal(0, 0.003, 30))
    found = warnings(tables)["drifting"]
    assert float(found.evidence["last_third_plr"]) - float(
        found.evidence["first_third_plr"]
    ) == pytest.approx(0.02, abs=0.005)
    assert "loss rises over the runs" in found.text


def test_loss_that_falls_with_load() -> None:
    tables = calm()
    tables[200e3] = table(200e3, 0.05 + RNG.normal(0, 0.002, 30))
    tables[300e3] = table(300e3, 0.01 + RNG.normal(0, 0.002, 30))
    found = warnings(tables)["loss-not-monotone"]
    assert found.evidence["lower_load_pps"] == 200e3
    assert found.evidence["higher_load_pps"] == 300e3


def test_throughput_that_falls_with_load() -> None:
    tables = calm()
    tables[500e3] = table(500e3, 0.6 + RNG.normal(0, 0.001, 30))
    curve = Curve("made up", tuple(LoadPoint(load, runs) for load, runs in tables.items()))
    (thrashing,) = (one for one in judge(curve).warnings if one.code == "thrashing")
    assert thrashing.evidence["low_offered_pps"] == 500e3
    assert "throughput falls by" in thrashing.text


def test_loss_that_no_counter_explains() -> None:
    tables = calm()
    lost = (tables[400e3].sent - tables[400e3].received).astype(np.int64)
    tables[400e3] = by_column(tables[400e3].sent, tables[400e3].received, drops=lost // 2)
    found = warnings(tables)["loss-unexplained"]
    assert found.evidence["explained"] == int((lost // 2).sum())
    assert "50 % vanished elsewhere" in found.text
    tables[400e3] = by_column(tables[400e3].sent, tables[400e3].received, drops=lost)
    assert "loss-unexplained" not in warnings(tables)


def test_white_noise_seldom_raises_a_warning() -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(100):
        tables = {
            load: table(load, np.maximum(0, plr + rng.normal(0, 0.3 * min(plr, 0.01), 30)))
            for load, plr in zip(LOADS, PLR, strict=True)
        }
        alarms += bool(warnings(tables))
    assert alarms <= 8
