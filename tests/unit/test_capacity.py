"""The capacity model: PCIe, limits of chains, the fit to the published throughput."""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.advise.calibration import Calibration, calibrate_rows, errors
from planewise.advise.model import (
    KERNEL_82599,
    POLLING_82599,
    ChainWorkload,
    Link,
    Pattern,
    Plane,
    load_profile,
    packet_rate_pps,
    predict,
    shipped,
)
from planewise.advise.model.ethernet import line_rate_pps
from planewise.advise.model.fit import Measured, fit
from planewise.advise.model.pcie import receive_cost, transmit_cost
from planewise.advise.throughput import read_throughput
from planewise.advise.toml_text import toml_text
from planewise.errors import BadInputError, PlanewiseError
from tests.unit.published_data import nfv_brief

GEN3_X8 = Link(3, 8, mps_bytes=256, mrrs_bytes=512)
PLANES: tuple[Plane, ...] = ("vf-passthrough", "vhost-user")
PATTERNS: tuple[Pattern, ...] = ("north-south", "east-west")
XL710 = shipped("xl710")

links = st.builds(
    Link,
    st.integers(1, 5),
    st.sampled_from((1, 2, 4, 8, 16)),
    st.sampled_from((128, 256, 512, 1024)),
    st.sampled_from((128, 256, 512, 1024, 4096)),
)
chains = st.builds(
    ChainWorkload, st.sampled_from(PATTERNS), st.integers(1, 64), st.integers(64, 9216)
)


@pytest.mark.parametrize(
    ("frame_bytes", "mpps"), [(64, 37.7), (256, 18.8), (512, 10.9), (1500, 4.0)]
)
def test_a_polled_nic_on_gen3_x8_carries_what_the_documentation_works_through(
    frame_bytes: int, mpps: float
) -> None:
    rate = packet_rate_pps(GEN3_X8, POLLING_82599, frame_bytes - 4) / 1e6
    assert rate == pytest.approx(mpps, abs=0.06)


def test_the_bytes_of_one_small_packet_are_those_of_the_specification() -> None:
    assert GEN3_X8.raw_bps == pytest.approx(8e9 * 8 * 128 / 130)
    assert GEN3_X8.tlp_bps == pytest.approx(57.88e9, rel=1e-4)
    # To the host: a 40th of two requests, the packet's request, an eighth of a write of 128 bytes.
    assert transmit_cost(GEN3_X8, POLLING_82599, 60).up == pytest.approx(48 / 40 + 24 + 152 / 8)
    # The descriptor's request, the packet, the descriptor written back.
    assert receive_cost(GEN3_X8, POLLING_82599, 60).up == pytest.approx(24 + 84 + 40)


def test_interrupts_and_head_pointers_cost_a_kernel_driver() -> None:
    for size in (60, 252, 1514):
        polled = packet_rate_pps(GEN3_X8, POLLING_82599, size)
        assert packet_rate_pps(GEN3_X8, KERNEL_82599, size) < polled


@given(links, st.integers(60, 9212))
def test_more_lanes_and_newer_generations_never_carry_less(link: Link, size: int) -> None:
    rate = packet_rate_pps(link, POLLING_82599, size)
    assert 0 < rate * 8 * size < link.raw_bps
    if link.lanes < 16:
        assert packet_rate_pps(replace(link, lanes=2 * link.lanes), POLLING_82599, size) >= rate
    if link.generation < 5:
        newer = replace(link, generation=link.generation + 1)
        assert packet_rate_pps(newer, POLLING_82599, size) >= rate


@pytest.mark.parametrize(
    ("generation", "lanes", "mps", "mrrs", "said"),
    [
        (3, 0, 256, 512, "lanes 0"),
        (0, 8, 256, 512, "generation 0"),
        (6, 8, 256, 512, "generation 6"),
        (3, 3, 256, 512, "lanes 3"),
        (3, 8, 100, 512, "mps_bytes 100"),
        (3, 8, 256, -1, "mrrs_bytes -1"),
    ],
)
def test_a_link_that_cannot_be_is_refused(
    generation: int, lanes: int, mps: int, mrrs: int, said: str
) -> None:
    with pytest.raises(BadInputError, match=said):
        Link(generation, lanes, mps, mrrs)


@pytest.mark.parametrize(("vnfs", "size"), [(0, 64), (10**6, 64), (-1, 64), (1, 63), (1, 10**5)])
def test_a_chain_that_cannot_be_is_refused(vnfs: int, size: int) -> None:
    with pytest.raises(BadInputError):
        ChainWorkload("east-west", vnfs, size)


@given(st.sampled_from(PLANES), chains)
def test_no_chain_exceeds_the_line_and_the_interval_holds_the_prediction(
    plane: Plane, chain: ChainWorkload
) -> None:
    prediction = predict(XL710, plane, chain)
    times = chain.vnfs if chain.through else 1
    assert 0 < prediction.pps <= times * line_rate_pps(40e9, chain.frame_bytes)
    assert prediction.low_pps < prediction.pps < prediction.high_pps
    assert prediction.bottleneck.pps == min(limit.pps for limit in prediction.limits)


@given(st.sampled_from(PLANES), chains)
def test_larger_frames_never_come_at_a_higher_rate(plane: Plane, chain: ChainWorkload) -> None:
    smaller = replace(chain, frame_bytes=max(64, chain.frame_bytes // 2))
    assert predict(XL710, plane, smaller).pps >= predict(XL710, plane, chain).pps


def test_without_calibration_an_interval_promises_nothing() -> None:
    profile = shipped("xl710-documents")
    prediction = predict(profile, "vhost-user", ChainWorkload("north-south", 2, 64))
    assert profile.spread is None
    assert prediction.low_pps == 0
    assert prediction.high_pps == pytest.approx(line_rate_pps(40e9, 64))


@pytest.mark.parametrize(
    ("plane", "pattern", "vnfs", "size", "binds"),
    [
        ("vf-passthrough", "north-south", 4, 64, "NIC packet rate"),
        ("vf-passthrough", "north-south", 4, 512, "line rate"),
        ("vf-passthrough", "east-west", 6, 1518, "NIC internal throughput"),
        ("vhost-user", "north-south", 1, 64, "VNF core"),
        ("vhost-user", "north-south", 4, 64, "PMD core"),
        ("vhost-user", "east-west", 8, 64, "VNF core"),
    ],
)
def test_what_binds_is_what_the_publication_names(
    plane: Plane, pattern: Pattern, vnfs: int, size: int, binds: str
) -> None:
    assert predict(XL710, plane, ChainWorkload(pattern, vnfs, size)).bottleneck.name == binds


@pytest.fixture(scope="module")
def brief() -> Calibration:
    """The publication's rows, fitted."""
    rows = read_throughput(nfv_brief() / "throughput.csv")
    return calibrate_rows(shipped("xl710-documents"), rows, source="brief")


def test_the_fit_agrees_with_the_publication_and_is_physical(brief: Calibration) -> None:
    assert brief.fitted.mean <= 0.05
    assert (brief.fitted.pairs > 80, brief.fitted.wrong) == (True, 0)
    # No NIC above its documented best, a core's nanoseconds a packet.
    assert 30 < brief.profile.nic.packets_mpps < 39
    assert 40 < brief.profile.nic.loop_gbps < 50
    assert 10 < brief.profile.cores.pmd_ns < 200


def test_intervals_hold_whole_frame_sizes_and_patterns_that_were_left_out(
    brief: Calibration,
) -> None:
    for kind in ("number of functions", "frame size", "pattern"):
        parts = [part for part in brief.left_out if part.kind == kind]
        assert {part.plane for part in parts} == set(PLANES)
        rows = sum(len(part.errors) for part in parts)
        held = sum(part.inside * len(part.errors) for part in parts)
        assert held >= 0.9 * rows, kind


def test_frame_sizes_of_another_publication_are_predicted_from_the_others() -> None:
    # One function, north-south: as `python benches/capacity.py` prints.
    start = shipped("xl710-documents")
    start = start.model_copy(update={"nic": start.nic.model_copy(update={"line_gbps": 10.0})})
    table = Path(__file__).parents[1] / "data" / "ovs_perf_pvp.csv"
    by_flows: dict[str, list[Measured]] = {}
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            chain = ChainWorkload("north-south", int(row["vnfs"]), int(row["packet_bytes"]))
            measured = Measured("vhost-user", chain, float(row["tx_mpps"]) * 1e6)
            by_flows.setdefault(row["flows"], []).append(measured)
    errors, held = [], []
    for rows in by_flows.values():
        (frames,) = (p for p in fit(start, rows, "").left_out if p.kind == "frame size")
        errors += frames.errors
        held.append(frames.inside)
    assert len(errors) == 30
    assert statistics.median(errors) <= 0.05
    assert statistics.fmean(errors) <= 0.10
    assert statistics.fmean(held) >= 0.9


def test_a_chain_unlike_those_measured_is_labelled_and_has_no_narrower_interval(
    brief: Calibration,
) -> None:
    for plane in PLANES:
        seen, unseen = (
            predict(brief.profile, plane, ChainWorkload("north-south", 3, size))
            for size in (256, 300)
        )
        assert (seen.extrapolated, unseen.extrapolated) == ((), ("frame size",))
        assert unseen.high_pps / unseen.pps >= seen.high_pps / seen.pps
    longer = predict(brief.profile, "vhost-user", ChainWorkload("east-west", 20, 64))
    assert longer.extrapolated == ("number of functions",)


def test_a_pattern_that_was_never_measured_has_no_interval() -> None:
    rows = [
        Measured("vhost-user", chain, predict(XL710, "vhost-user", chain).pps)
        for vnfs in (1, 2, 4, 7)
        for size in (64, 512, 1518)
        for chain in [ChainWorkload("north-south", vnfs, size)]
    ]
    profile = fit(shipped("xl710-documents"), rows, "made up").profile
    other = predict(profile, "vhost-user", ChainWorkload("east-west", 4, 64))
    assert (other.has_interval, other.extrapolated) == (False, ("pattern",))


@pytest.mark.parametrize("plane", PLANES)
def test_an_interval_is_as_wide_as_unseen_numbers_of_functions_lie_off(plane: Plane) -> None:
    rows = [
        # Alternately a tenth too much and too little, but for one number of functions.
        Measured(plane, chain, predict(XL710, plane, chain).pps * off)
        for pattern in PATTERNS
        for vnfs, factor in ((2, 1.0), (3, 1.1), (4, 1.0), (5, 1.1))
        for index, size in enumerate((64, 128, 256, 512, 1024, 1518))
        for chain in [ChainWorkload(pattern, vnfs, size)]
        for off in [factor if index % 2 else 1 / factor]
    ]
    found = fit(shipped("xl710-documents"), rows, "made up").profile
    assert errors(found, rows).inside >= 0.95 * len(rows)
    few = [row for row in rows if row.chain.vnfs == 3]
    alone = fit(shipped("xl710-documents"), few, "made up").profile
    assert errors(alone, few).inside >= 0.9 * len(few)


def test_what_a_profile_makes_is_what_the_fit_finds_again() -> None:
    truth = shipped("xl710")
    rows = [
        Measured(plane, chain, predict(truth, plane, chain).pps)
        for plane in PLANES
        for pattern in PATTERNS
        for vnfs in (1, 2, 4, 7)
        for size in (64, 128, 256, 512, 1024, 1518)
        for chain in [ChainWorkload(pattern, vnfs, size)]
    ]
    found = fit(shipped("xl710-documents"), rows, "made up").profile
    assert errors(found, rows).worst < 0.02


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(BadInputError, match="cannot tell"):
        fit(XL710, [Measured("vhost-user", ChainWorkload("north-south", 1, 64), 1e6)], "made up")
    with pytest.raises(BadInputError, match="nothing to fit"):
        fit(XL710, [], "made up")
    with pytest.raises(BadInputError, match="no packets"):
        fit(XL710, [Measured("vhost-user", ChainWorkload("north-south", 1, 64), 0)], "made up")


def test_a_profile_that_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    file.write_text(toml_text(XL710))
    assert load_profile(file) == XL710


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "name: field required"),
        ("name = ", "not TOML"),
        (toml_text(XL710).replace("lanes = 8", "lanes = 0"), "lanes 0"),
        (toml_text(XL710).replace("pmd_ns = ", "pmd_ns = -"), "cores.pmd_ns"),
        (toml_text(XL710) + "\n[moon]\nphase = 1\n", "moon"),
    ],
)
def test_a_file_that_is_no_profile_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    file.write_text(text)
    with pytest.raises(BadInputError, match=said) as caught:
        load_profile(file)
    assert str(file) in str(caught.value) or said == "lanes 0"


@given(st.binary(max_size=300))
def test_no_bytes_end_in_a_traceback(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x"
        file.write_bytes(content)
        for read in (load_profile, read_throughput):
            with pytest.raises(PlanewiseError):
                read(file)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b\n1,2\n", ":1: the column"),
        ("interface,pattern,vnfs,packet_bytes,tx_mpps\n", "no row"),
        ("interface,pattern,vnfs,packet_bytes,tx_mpps\nvhost,up,1,64,1\n", ":2: pattern"),
        ("interface,pattern,vnfs,packet_bytes,tx_mpps\nvhost,east-west,0,64,1\n", ":2: vnfs"),
        ("interface,pattern,vnfs,packet_bytes,tx_mpps\nvhost,east-west,1,64,nan\n", ":2: tx_mpps"),
    ],
)
def test_a_table_that_is_wrong_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(BadInputError, match=said):
        read_throughput(file)
