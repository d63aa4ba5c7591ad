"""The recommendation: what the data tell apart it says, what they do not it does not."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from planewise.advise.recommend import recommend
from planewise.judge.statistics.comparison import compare_levels
from planewise.judge.statistics.metrics import RunSample, observe
from planewise.store.models import (
    Counts,
    Disturbance,
    Latency,
    OfferedLoad,
    PlaneAvailability,
    RunInfo,
    TrialRecord,
)
from tests.unit import made_up_run
from tests.unit.test_run_directory import START, make_info

BASE = (10.0, 14.0, 9.0, 12.0, 11.0, 13.0, 9.5, 10.5, 12.5)
"""Medians [µs] of nine blocks on a host that is not always alike."""


def info_with_host() -> RunInfo:
    info = make_info()
    host = info.hosts["shared"].model_copy(
        update={
            "planes": (PlaneAvailability(plane="vf", available=False, reason="no SR-IOV NIC"),),
            "disturbances": (
                Disturbance(
                    name="steal",
                    value="4 %",
                    severity="warning",
                    why="the hypervisor takes time away",
                    remedy="use a quieter machine",
                ),
            ),
        }
    )
    return info.model_copy(update={"hosts": {"shared": host}})


def rtt(plane: str, load: str, block: int, p50_us: float, lost: int = 0) -> TrialRecord:
    ns = p50_us * 1000
    return made_up_run.trial(
        f"rtt:{plane},{load}#{block}",
        "rtt",
        {"plane": plane, "load_type": load},
        block,
        counts=Counts(sent=100, received=100 - lost, lost=lost),
        latency={
            "rtt_user": Latency(
                count=100 - lost,
                min_ns=int(ns / 2),
                mean_ns=ns,
                p50_ns=ns,
                p90_ns=ns * 1.5,
                p99_ns=ns * 2,
                p999_ns=ns * 3,
                max_ns=int(ns * 4),
            )
        },
    )


def load(
    plane: str, block: int, offered: float, capacity: float, limits: tuple[str, ...] = ()
) -> TrialRecord:
    sent = int(offered)
    received = min(sent, int(capacity))
    return TrialRecord.model_validate(
        {
            "trial": f"load:{plane}#{block}@{offered}",
            "kind": "load",
            "cell": {"plane": plane, "load_type": "none"},
            "block": block,
            "replicate": block,
            "order": 0,
            "started": START,
            "duration_s": 1,
            "load": OfferedLoad(intended_pps=offered, achieved_pps=offered, size_bytes=64),
            "counts": Counts(sent=sent, received=received, lost=sent - received),
            "cpu": {"shared": {"usr": 0.5, "sys": 0.25, "soft": 0.25}},
            "limits": limits,
        }
    )


def rtts(medians_us: Mapping[str, tuple[float, ...]]) -> list[TrialRecord]:
    return [
        rtt(plane, kind, block, value * (1 if kind == "none" else 3))
        for plane, values in medians_us.items()
        for block, value in enumerate(values)
        for kind in ("none", "cpu")
    ]


def test_a_plane_that_is_clearly_faster_is_recommended_with_its_figures() -> None:
    veth = (10, 11, 10.5, 10.2, 10.4, 10.1, 10.9, 10.3)
    trials = rtts({"veth": veth, "bridge": tuple(2.01 * value for value in veth[::-1])})
    advice = recommend(trials, info_with_host())
    assert advice.plane == "veth"
    assert advice.headline.startswith("For namespaces and containers: use veth. Over all")
    assert "50 % below (95 %: 4" in advice.headline
    assert "that of bridge" in advice.headline
    second = next(
        place
        for place in advice.ranking
        if place.metric == "rtt_p50" and place.load_type == "all" and place.plane == "bridge"
    )
    assert second.effect == pytest.approx(1.0, rel=0.05)
    assert second.low is not None
    assert second.high is not None
    assert second.low < second.value < second.high


def test_planes_that_differ_by_nothing_that_matters_are_called_the_same() -> None:
    trials = rtts({"veth": BASE, "bridge": tuple(value * 1.01 for value in BASE)})
    advice = recommend(trials, info_with_host())
    assert advice.plane is None
    assert "practically the same" in advice.headline


def test_noise_is_not_turned_into_a_recommendation() -> None:
    advice = recommend(rtts({"veth": (10, 30), "bridge": (20, 20)}), info_with_host())
    assert advice.plane is None
    assert "not distinguishable by this run" in advice.headline


def test_of_planes_alike_in_time_the_one_that_forwards_more_is_taken() -> None:
    trials = rtts({"veth": BASE, "bridge": BASE})
    for block in range(9):
        for offered in (500, 1000, 2000):
            trials.append(load("veth", block, offered, 800 + block))
            trials.append(load("bridge", block, offered, 1600 + block))
    advice = recommend(trials, info_with_host())
    assert advice.plane == "bridge"
    assert "forwards most" in advice.headline


def test_a_generators_limit_is_a_reservation_and_not_the_planes() -> None:
    trials = [
        *rtts({"veth": (10, 11, 10)}),
        load("veth", 0, 1000, 1000, limits=("generator",)),
    ]
    advice = recommend(trials, info_with_host())
    assert any("generator, not the plane" in text for text in advice.reservations)


def test_a_rate_that_the_generator_limited_is_a_lower_bound() -> None:
    trials = rtts({"veth": BASE, "bridge": BASE})
    for block in range(9):
        trials.append(load("veth", block, 900, 800 + block))
        trials.append(load("bridge", block, 2000, 1600 + block))
        trials.append(load("bridge", block, 3000, 3000, limits=("generator",)))
    advice = recommend(trials, info_with_host())
    places = {p.plane: p for p in advice.ranking if p.metric == "forwarded"}
    assert (places["veth"].bound, places["bridge"].bound) == ("exact", "at least")
    assert "bridge forwards most, at least 3 kpps" in advice.headline
    assert places["bridge"].high is None
    assert any("idle: bridge at least 3 kpps (veth" in text for text in advice.reasons)


def test_a_lower_bound_below_the_best_does_not_tell_the_planes_apart() -> None:
    trials = rtts({"veth": BASE, "bridge": BASE})
    for block in range(9):
        trials.append(load("veth", block, 700, 700, limits=("generator",)))
        trials.append(load("bridge", block, 2000, 1600 + block))
    advice = recommend(trials, info_with_host())
    (place,) = [
        p
        for p in advice.ranking
        if p.metric == "forwarded" and p.plane == "veth" and p.load_type == "none"
    ]
    assert place.note == "not distinguishable from bridge: only a bound is known"
    assert advice.plane is None


def test_reservations_name_few_replicates_disturbances_loss_and_planes_not_tried() -> None:
    trials = [rtt("veth", "none", 0, 10, lost=2)]
    text = " | ".join(recommend(trials, info_with_host()).reservations)
    assert "rests on 1 block, and 6 are needed" in text
    assert "steal (4 %)" in text
    assert "probe packets were lost on veth (2 %); a lost one counts as infinitely late" in text
    assert "not supported on this host: vf" in text


def test_without_round_trip_times_there_is_no_recommendation() -> None:
    advice = recommend([], info_with_host())
    assert advice.plane is None
    assert "no round-trip time was measured" in advice.headline


def test_kernel_time_per_packet_counts_every_cpu_of_the_host() -> None:
    trials = [*rtts({"veth": (10, 11, 10)}), load("veth", 0, 1000, 1000)]
    (place,) = [
        place
        for place in recommend(trials, info_with_host()).ranking
        if place.metric == "cpu" and place.load_type == "none"
    ]
    # half of two CPUs for one second, over 1000 packets
    assert place.value == pytest.approx(0.5 * 2 / 1000 * 1e9)


def test_a_plane_that_loses_most_of_its_probes_is_not_recommended_and_the_loss_is_said() -> None:
    trials = [
        *rtts({"bridge": BASE, "veth": tuple(1.4 * value for value in BASE)}),
        *(
            rtt("macvlan", kind, block, value / 2, lost=60)
            for block, value in enumerate(BASE)
            for kind in ("none", "cpu")
        ),
    ]
    advice = recommend(trials, info_with_host())
    assert advice.plane == "bridge"
    assert "macvlan 60 %" in advice.headline
    assert any("macvlan (60 %)" in text for text in advice.reservations)
    (place,) = [
        p
        for p in advice.ranking
        if (p.metric, p.load_type, p.plane) == ("rtt_p50", "all", "macvlan")
    ]
    assert place.bound == "at least"


def test_where_all_planes_lose_probes_none_is_recommended() -> None:
    trials = [rtt(plane, "none", block, 10, lost=30) for plane in ("a", "b") for block in range(8)]
    advice = recommend(trials, info_with_host())
    assert advice.plane is None
    assert advice.headline.startswith("No plane is recommended")


def test_the_recommendation_is_that_of_compare_where_stalls_occur() -> None:
    # Two stalls in 27 blocks make the mean of the better plane the greater one.
    stalls = tuple(value * (40 if block in (2, 6) else 1) for block, value in enumerate(BASE * 3))
    trials = rtts({"veth": stalls, "bridge": tuple(1.3 * value for value in BASE * 3)})
    info = info_with_host()
    family = compare_levels(observe([RunSample("run", info, trials)], "rtt"), "plane")
    comparison = family.find("veth", "bridge")
    assert comparison is not None
    assert comparison.outcome == "better"
    assert recommend(trials, info).plane == "veth"


def test_a_ladder_that_ends_before_any_loss_tells_no_two_planes_apart() -> None:
    trials = rtts({"veth": BASE, "bridge": BASE})
    for block in range(10):
        for plane, capacity in (("veth", 1200), ("bridge", 3000)):
            trials += [load(plane, block, offered, capacity) for offered in (500, 800, 1000)]
    info = info_with_host()
    for metric in ("throughput", "ndr", "pdr"):
        family = compare_levels(observe([RunSample("run", info, trials)], metric), "plane")
        (comparison,) = family.comparisons
        assert comparison.outcome == "not known"
        assert {value.bound for value in family.values} == {"at least"}
        assert all(value.high is None for value in family.values)


def test_blocks_below_the_ladder_are_bounds_and_not_left_out() -> None:
    trials = []
    for block in range(10):
        for plane, capacity in (("veth", 900 if block % 5 < 2 else 90), ("bridge", 500)):
            trials += [load(plane, block, offered, capacity) for offered in (100, 500, 900, 1300)]
    family = compare_levels(observe([RunSample("run", make_info(), trials)], "ndr"), "plane")
    (comparison,) = family.comparisons
    assert comparison.blocks == 10
    assert comparison.outcome == "not known"
    value = family.value("veth")
    assert value is not None
    assert value.bound == "at most"
    assert value.value == pytest.approx(100)
