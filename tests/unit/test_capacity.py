"""The capacity model: stations and their visits, the fit to published and made-up chains."""

from __future__ import annotations

import csv
import json
import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.advise.calibration import errors, predicted
from planewise.advise.chain_rows import csv_text, read_table
from planewise.advise.chain_table import chain_table, kinds_of
from planewise.advise.model.capacity import ChainWorkload, Pattern, Prediction, line_ns, predict
from planewise.advise.model.fit import Fit, Measured, fit
from planewise.advise.model.profile import Plane, Profile, load_profile, shipped
from planewise.advise.toml_text import toml_text
from planewise.errors import BadInputError, PlanewiseError
from tests.unit.published_data import cnf_testbed, nfv_brief

PLANES: tuple[Plane, ...] = ("vf-passthrough", "vhost-user")
PATTERNS: tuple[Pattern, ...] = ("north-south", "east-west")
XL710 = shipped("xl710")
NOTHING = shipped("no-nic")

chains = st.builds(
    ChainWorkload,
    st.sampled_from((*PATTERNS, "pipeline")),
    st.integers(1, 64),
    st.integers(64, 9216),
    st.integers(1, 4),
    st.integers(1, 4),
)


def foreseen(profile: Profile, plane: Plane, chain: ChainWorkload) -> Prediction:
    """The prediction of a plane that the profile knows."""
    prediction = predict(profile, plane, chain)
    assert prediction is not None
    return prediction


@pytest.mark.parametrize(
    ("vnfs", "size", "more"),
    [(0, 64, {}), (10**6, 64, {}), (-1, 64, {}), (1, 63, {}), (1, 10**5, {})]
    + [(1, 64, {name: 0}) for name in ("chains", "switch_cores", "vnf_cores")],
)
def test_a_chain_that_cannot_be_is_refused(vnfs: int, size: int, more: dict[str, int]) -> None:
    with pytest.raises(BadInputError):
        ChainWorkload("east-west", vnfs, size, **more)


@given(st.sampled_from(PLANES), chains)
def test_no_chain_exceeds_the_line_and_the_interval_holds_the_prediction(
    plane: Plane, chain: ChainWorkload
) -> None:
    prediction = foreseen(XL710, plane, chain)
    line_pps = chain.length * 1e9 / line_ns(XL710, chain)
    assert 0 < prediction.pps <= line_pps * 1.0001
    assert prediction.bottleneck.pps == min(limit.pps for limit in prediction.limits)
    if prediction.interval is None:
        assert prediction.unknown
    else:
        assert prediction.interval[0] < prediction.pps < prediction.interval[1]


@given(st.sampled_from(PLANES), chains)
def test_larger_frames_never_come_at_a_higher_rate(plane: Plane, chain: ChainWorkload) -> None:
    smaller = replace(chain, frame_bytes=max(64, chain.frame_bytes // 2))
    assert foreseen(XL710, plane, smaller).pps >= foreseen(XL710, plane, chain).pps


def test_line_rate_is_that_of_ethernet() -> None:
    # 40 Gbit/s carry 59.5 million frames of 64 bytes a second, 3.25 million of 1518.
    for size, mpps in ((64, 59.52), (1518, 3.25)):
        chain = ChainWorkload("north-south", 1, size)
        assert 1e3 / line_ns(XL710, chain) == pytest.approx(mpps, abs=0.01)


def test_without_calibration_there_is_no_interval() -> None:
    profile = shipped("xl710-documents")
    prediction = foreseen(profile, "vhost-user", ChainWorkload("north-south", 2, 64))
    assert prediction.interval is None
    assert predict(NOTHING, "vhost-user", ChainWorkload("north-south", 2, 64)) is None
    assert predict(XL710, "memif", ChainWorkload("north-south", 2, 64)) is None


@pytest.mark.parametrize(
    ("plane", "pattern", "vnfs", "size", "binds"),
    [
        ("vf-passthrough", "north-south", 4, 64, "NIC packet rate"),
        ("vf-passthrough", "north-south", 4, 512, "line rate"),
        ("vf-passthrough", "east-west", 6, 1518, "NIC internal throughput"),
        ("vhost-user", "north-south", 1, 64, "VNF core"),
        ("vhost-user", "north-south", 4, 64, "switch core"),
        ("vhost-user", "east-west", 8, 64, "VNF core"),
    ],
)
def test_the_bottleneck_is_what_the_publication_names(
    plane: Plane, pattern: Pattern, vnfs: int, size: int, binds: str
) -> None:
    assert foreseen(XL710, plane, ChainWorkload(pattern, vnfs, size)).bottleneck.name == binds


@pytest.fixture(scope="module")
def brief() -> Fit:
    """The publication's rows, fitted."""
    rows = read_table(nfv_brief() / "throughput.csv")
    return fit(shipped("xl710-documents"), rows, "brief")


def test_the_fit_agrees_with_the_publication_and_is_physical(brief: Fit) -> None:
    rows = read_table(nfv_brief() / "throughput.csv")
    fitted = errors(predicted(brief.profile, rows, rows))
    assert fitted.mean <= 0.03
    assert (fitted.pairs, fitted.wrong) == (81, 0)
    # No NIC above its documented best, a core's nanoseconds a packet.
    times = {(one.plane, one.name): one for one in brief.profile.stations}
    assert 1e3 / 39 < times["vf-passthrough", "NIC packet rate"].packet_ns < 1e3 / 30
    assert 8 / 50 < times["vf-passthrough", "NIC internal throughput"].byte_ns < 8 / 40
    assert 10 < times["vhost-user", "switch core"].packet_ns < 200


def test_what_was_left_out_of_the_publication_is_predicted(brief: Fit) -> None:
    most = {"vnfs": 0.02, "frame_bytes": 0.045, "pattern": 0.036}
    for part in brief.left_out:
        off = [abs(math.expm1(error)) for error in part.errors]
        assert statistics.median(off) <= most[part.dimension], part.dimension
    assert len(brief.left_out) == 6


def test_the_publication_is_described_without_a_start_and_the_line_is_found() -> None:
    rows = read_table(nfv_brief() / "throughput.csv")
    found = fit(NOTHING, rows, "brief")
    fitted = errors(predicted(found.profile, rows, rows))
    assert fitted.mean <= 0.03
    assert (fitted.pairs, fitted.wrong) == (81, 0)
    (line,) = (one for one in found.profile.stations_of("vf-passthrough") if "line" in one.name)
    assert 8 / line.byte_ns == pytest.approx(40, rel=0.01)


def test_an_interval_is_no_wider_than_twice_the_largest_error_seen(brief: Fit) -> None:
    for plane in PLANES:
        fitted = brief.profile.fitted_to(plane)
        assert fitted is not None
        for chain, dimension in (
            (ChainWorkload("north-south", 3, 300), "frame_bytes"),
            (ChainWorkload("east-west", 10, 64), "vnfs"),
        ):
            prediction = foreseen(brief.profile, plane, chain)
            assert prediction.unmeasured == (dimension,)
            assert prediction.interval is not None
            low, high = prediction.interval
            assert math.log(high / low) == pytest.approx(2 * fitted.errors[dimension])


def test_what_no_row_tells_is_not_known_and_named(brief: Fit) -> None:
    for chain, dimension in (
        (ChainWorkload("east-west", 20, 64), "vnfs"),  # far beyond the longest chain
        (ChainWorkload("east-west", 4, 64, chains=2), "chains"),
        (ChainWorkload("east-west", 4, 64, switch_cores=2), "switch_cores"),
        (ChainWorkload("pipeline", 4, 64), "pattern"),
    ):
        prediction = foreseen(brief.profile, "vhost-user", chain)
        known = prediction.interval is not None
        assert known == (dimension == "pattern")
        assert known or prediction.unknown == (dimension,)
    assert any("number of switch cores" in line for line in brief.open)


def test_frame_sizes_of_another_publication_are_predicted_from_the_others() -> None:
    # One function, north-south: as `python benches/capacity.py` prints.
    start = NOTHING.model_copy(update={"line_gbps": 10.0})
    table = Path(__file__).parents[1] / "data" / "ovs_perf_pvp.csv"
    by_flows: dict[str, list[Measured]] = {}
    with table.open(newline="") as file:
        for row in csv.DictReader(file):
            chain = ChainWorkload("north-south", int(row["vnfs"]), int(row["packet_bytes"]))
            measured = Measured("vhost-user", chain, float(row["tx_mpps"]) * 1e6)
            by_flows.setdefault(row["flows"], []).append(measured)
    off = [
        abs(math.expm1(error))
        for rows in by_flows.values()
        for part in fit(start, rows, "").left_out
        for error in part.errors
    ]
    assert len(off) == 30
    assert statistics.median(off) <= 0.027
    assert max(off) <= 0.116


def chains_of(kind: str, switch_cores: int) -> list[Measured]:
    """The rows of cnf-testbed of a kind."""
    named = {"2t1c": 1, "4t2c": 2}
    with (cnf_testbed() / "ndr_single_chains_64B.csv").open(newline="") as file:
        return [
            Measured(
                "vhost-user" if kind == "vsc" else "memif",
                ChainWorkload(
                    "pipeline" if kind == "csp" else "east-west",
                    vnfs := int(row["functions_a_chain"]),
                    64,
                    switch_cores=switch_cores,
                    switch_threads=2 * switch_cores,
                ),
                vnfs * float(row["ndr_pps"]),
            )
            for row in csv.DictReader(file)
            if row["kind"] == kind and named[row["switch_threads_cores"]] == switch_cores
        ]


def left_out(found: Fit) -> list[float]:
    """Relative errors of each number of functions left out."""
    (part,) = (part for part in found.left_out if part.dimension == "vnfs")
    return [abs(math.expm1(error)) for error in part.errors]


def test_six_chains_of_cnf_testbed_show_the_switchs_core_and_predict_two_cores() -> None:
    rows = chains_of("csc", 1)
    found = fit(NOTHING, rows, "cnf-testbed")
    off = left_out(found)
    assert statistics.median(off) <= 0.03
    assert max(off) <= 0.08
    chains = predicted(found.profile, rows, rows)
    limits = {chain.prediction.bottleneck.name for chain in chains if chain.prediction}
    assert limits == {"switch core"}
    # The switch's core spends two times a packet, and nothing else limits a row.
    [switch] = found.profile.stations
    assert switch.model_dump(include={"byte_ns", "hop_byte_ns", "port_ns"}) == {
        "byte_ns": 0, "hop_byte_ns": 0, "port_ns": 0,
    }  # fmt: skip
    two = predicted(found.profile, chains_of("csc", 2), rows)
    assert statistics.median(abs(chain.off) for chain in two) <= 0.10
    assert {chain.prediction.unknown for chain in two if chain.prediction} == {("switch_cores",)}
    assert any("VNF core" in line for line in found.open)


def test_pipelines_of_cnf_testbed_are_flat_and_virtual_machines_are_predicted() -> None:
    pipelines = fit(NOTHING, chains_of("csp", 1), "cnf-testbed")
    rates = [
        foreseen(pipelines.profile, "memif", ChainWorkload("pipeline", vnfs, 64)).pps / vnfs
        for vnfs in range(1, 11)
    ]
    assert max(rates) == pytest.approx(min(rates))
    for cores in (1, 2):
        machines = fit(NOTHING, chains_of("vsc", cores), "cnf-testbed")
        # One length in each lies 23 % off.
        assert statistics.median(left_out(machines)) <= 0.10


def test_a_start_gives_what_the_rows_do_not_tell() -> None:
    rows = [
        Measured("vhost-user", chain, foreseen(XL710, "vhost-user", chain).pps)
        for vnfs in (1, 2, 4, 7)
        for size in (64, 512, 1518)
        for chain in [ChainWorkload("north-south", vnfs, size)]
    ]
    profile = fit(shipped("xl710-documents"), rows, "made up").profile
    other = foreseen(profile, "vhost-user", ChainWorkload("east-west", 4, 64))
    assert (other.interval, other.unknown) == (None, ("pattern",))
    assert profile.stations_of("vf-passthrough") == shipped("xl710-documents").stations_of(
        "vf-passthrough"
    )


def test_rows_of_one_frame_size_show_no_time_for_each_byte_of_a_station() -> None:
    # Long frames are slow for another reason than bytes: each takes a second buffer.
    rows = [
        Measured("vhost-user", ChainWorkload("east-west", vnfs, size), vnfs * 1e9 / ns)
        for vnfs in range(2, 9)
        for size, ns in ((64, 200.0), (512, 245.0), (1024, 296.0), (1518, 400.0))
    ]
    found = fit(NOTHING, rows, "").profile.stations_of("vhost-user")
    assert [one.name for one in found if one.name == "switch throughput"] == []


def test_what_a_profile_makes_is_what_the_fit_finds_again() -> None:
    rows = [
        Measured(plane, chain, foreseen(XL710, plane, chain).pps)
        for plane in PLANES
        for pattern in PATTERNS
        for vnfs in (1, 2, 4, 7)
        for size in (64, 256, 1518)
        for chain in [ChainWorkload(pattern, vnfs, size)]
    ]
    found = fit(shipped("xl710-documents"), rows, "made up").profile
    for row in rows:
        assert foreseen(found, row.plane, row.chain).pps == pytest.approx(row.pps, rel=0.03)


def test_a_row_without_packets_and_no_rows_are_refused() -> None:
    with pytest.raises(BadInputError, match="nothing to fit"):
        fit(XL710, [], "made up")
    with pytest.raises(BadInputError, match="no packets"):
        fit(XL710, [Measured("vhost-user", ChainWorkload("north-south", 1, 64), 0)], "made up")
    one = [Measured("vhost-user", ChainWorkload("north-south", 1, 64), 1e6)]
    alone = fit(NOTHING, one, "made up").profile
    assert foreseen(alone, "vhost-user", one[0].chain).pps == pytest.approx(1e6)
    assert foreseen(alone, "vhost-user", one[0].chain).interval is None


def test_a_profile_that_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    file.write_text(toml_text(XL710))
    assert load_profile(file) == XL710


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "name: field required"),
        ("name = ", "not TOML"),
        (toml_text(XL710).replace("packet_ns = ", "packet_ns = -"), "packet_ns"),
        (toml_text(XL710) + "\n[moon]\nphase = 1\n", "moon"),
        (toml_text(NOTHING) + "\n[nic]\nline_gbps = 10\n", "nic"),
    ],
)
def test_a_file_that_is_no_profile_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "host.toml"
    file.write_text(text)
    with pytest.raises(BadInputError, match=said) as caught:
        load_profile(file)
    assert str(file) in str(caught.value)


@given(st.binary(max_size=300))
def test_no_bytes_end_in_a_traceback(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "x"
        file.write_bytes(content)
        for read in (load_profile, read_table):
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
        (
            "interface,pattern,vnfs,packet_bytes,tx_mpps,switch_cores\nvhost,east-west,1,64,1,0\n",
            ":2: switch_cores",
        ),
    ],
)
def test_a_table_that_is_wrong_is_named_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "t.csv"
    file.write_text(text)
    with pytest.raises(BadInputError, match=said):
        read_table(file)


def nfvbench(path: Path, ndr_pps: float) -> Path:
    """A result of NFVbench's NDR search."""
    analysis = {
        "ndr": {"rate_pps": ndr_pps, "duration_sec": 10},
        "iteration_stats": {"ndr_pdr": [{"tx_pps": ndr_pps, "tx_pkts": 100, "rx_pkts": 100}]},
    }
    chain = {"result": {"result": {"64": analysis}, "service_chain_count": 1}}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        json.dumps(
            {
                "benchmarks": {"network": {"service_chain": {"EXT": chain}}},
                "nfvbench_version": "3.2",
            }
        )
    )
    return path


def test_nfvbench_results_become_a_table_by_their_names(tmp_path: Path) -> None:
    files = [
        nfvbench(tmp_path / "4t2c" / "csc_1c2n_ndr-1.json", 7e6),
        nfvbench(tmp_path / "2t1c" / "csp_3c4n_ndr-1.json", 6e6),
        nfvbench(tmp_path / "2t1c" / "readme.json", 1e6),
    ]
    names = "{switch_threads}t{switch_cores}c/{kind}_{chains}c{vnfs}n"
    rows, left = chain_table(files, names)
    snake, pipeline = rows
    assert (snake.plane, snake.chain.pattern, snake.chain.vnfs, snake.pps) == (
        "memif", "east-west", 2, 14e6,
    )  # fmt: skip
    assert (snake.chain.switch_cores, snake.chain.switch_threads) == (2, 4)
    assert (pipeline.chain.pattern, pipeline.chain.chains, pipeline.pps) == ("pipeline", 3, 24e6)
    assert "readme.json" in left[0]
    file = tmp_path / "chains.csv"
    file.write_text(csv_text(rows))
    assert read_table(file) == rows
    [other], _ = chain_table(files[:1], "_{vnfs}c", kinds_of(["vhost-user,north-south"]))
    assert (other.plane, other.chain.vnfs, other.pps) == ("vhost-user", 1, 7e6)
    for pattern, kinds in (
        ("{moon}", []), ("{vnfs}{vnfs}", []), ("{vnfs}", ["memif"]), ("{vnfs}", ["moon,pipeline"]),
    ):  # fmt: skip
        with pytest.raises(BadInputError):
            chain_table(files, pattern, kinds_of(kinds))
    with pytest.raises(BadInputError, match="none of 1 files"):
        chain_table(files[2:], names)
