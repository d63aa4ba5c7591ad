"""Files of tools that measure no load-loss curve: recognised by content, compared, not judged."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from planewise.errors import BadInputError, VerdictNotGoodError
from planewise.judge.readings import Compared, can_tell, compare, estimate
from planewise.store import importers
from planewise.store.readings import Readings
from tests.command import invoked
from tests.unit import importer_samples as samples

FILES = [(name, text) for name, files in samples.readings().items() for text in files]


def read(tmp_path: Path, text: str, name: str = "results.txt") -> dict[str, Readings]:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return {one.quantity: one for one in importers.content(file).readings}


@pytest.mark.parametrize(("name", "text"), FILES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_is_recognised_by_its_content(
    tmp_path: Path, name: str, text: str, packed: bool
) -> None:
    file = tmp_path / "results.csv"
    file.write_bytes(gzip.compress(text.encode()) if packed else text.encode())

    assert importers.recognise(file) == name
    assert importers.content(file).readings


class TestImporters:
    def test_iperf3s_intervals_are_samples_without_the_omitted_one(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.iperf3((9.41e9, 9.38e9, 9.40e9)))

        (one,) = found.values()
        assert (one.quantity, one.unit, one.of) == ("TCP throughput", "bit/s", "interval")
        assert one.values.tolist() == [9.41e9, 9.38e9, 9.40e9]

    def test_of_udp_a_senders_intervals_are_not_what_arrived(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.iperf3((1e9, 1e9), udp=True))

        assert found["UDP received rate"].values == pytest.approx([0.99e9])
        assert found["UDP loss"].values == pytest.approx([0.01])
        assert found["UDP jitter"].values == pytest.approx([20_000])

    def test_a_run_of_iperf3_that_failed_says_why(self, tmp_path: Path) -> None:
        run = {"start": {"version": "iperf 3.12"}, "intervals": [], "end": {},
               "error": "error - unable to connect to server: Connection refused"}  # fmt: skip

        with pytest.raises(BadInputError, match="measured nothing: error - unable to connect"):
            read(tmp_path, json.dumps(run))

    def test_several_runs_of_iperf3_in_a_file(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.iperf3((1e9, 2e9)) + "\n" + samples.iperf3((3e9, 4e9)))

        assert found["TCP throughput"].values.tolist() == [1e9, 2e9, 3e9, 4e9]

    def test_netperfs_tests_are_told_apart(self, tmp_path: Path) -> None:
        file = tmp_path / "netperf.log"
        file.write_text(samples.NETPERF * 3)
        found = {one.condition: one for one in importers.content(file).readings}

        assert found["TCP Stream"].values.tolist() == [9412.57e6] * 3
        assert found["UDP Stream"].values.tolist() == [948.10e6] * 3
        assert found["TCP Request/Response"].values.tolist() == [58764.13] * 3
        assert {one.of for one in found.values()} == {"run"}

    def test_netperfs_selected_fields(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.NETPERF_CSV)

        assert found["transactions"].values.tolist() == [21004.10]
        assert found["mean of latency"].values == pytest.approx([47_200])
        assert found["99th percentile of latency"].values == pytest.approx([66_000])
        keys = read(tmp_path, samples.NETPERF_KEYS)
        assert keys["throughput"].values == pytest.approx([3180.24e6])
        assert keys["99th percentile of latency"].values == pytest.approx([123_000])

    @pytest.mark.parametrize("old", [False, True])
    def test_sockperfs_log_has_round_trips(self, tmp_path: Path, old: bool) -> None:
        found = read(tmp_path, samples.sockperf_log([100, 102, 104], old=old))

        assert found["RTT"].values == pytest.approx([100_000, 102_000, 104_000])

    def test_sockperfs_summary_is_half_a_round_trip(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.SOCKPERF)
        whole = read(tmp_path, samples.SOCKPERF.replace("avg-latency", "avg-rtt"))

        assert found["RTT, median"].values == pytest.approx([2 * 19_867])
        assert whole["RTT, 99th percentile"].values == pytest.approx([51_281])

    def test_irtts_lost_packets_have_no_time(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.irtt([100, 0, 102, 104]))

        assert found["RTT"].values == pytest.approx([100_000, 102_000, 104_000])
        assert found["loss"].values == pytest.approx([0.25])

    def test_flents_series_have_their_units(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.flent())

        assert found["Ping (ms) ICMP"].unit == "ns"
        assert found["Ping (ms) ICMP"].values == pytest.approx([110_000, 120_000, 130_000])
        assert found["TCP up"].values == pytest.approx([940.1e6, 939.8e6, 941e6])

    def test_flents_counters_beside_the_test_are_left_out(self, tmp_path: Path) -> None:
        file = json.loads(samples.flent())
        file["metadata"]["SERIES_META"] = {}
        file["results"]["qdisc_stats_a::drop_next"] = [-203658, 4]
        file["results"]["VoIP::jitter"] = [0.1, 0.2]

        found = read(tmp_path, json.dumps(file))

        assert sorted(found) == ["Ping (ms) ICMP", "TCP up"]

    def test_k8s_netperfs_table_of_losses_is_read_and_that_of_pods_refused(
        self, tmp_path: Path
    ) -> None:
        means = "Profile,# of Samples,Message Size,"
        lost = f"Type,{means}Value\nUDP Percent Loss,UDP_STREAM,3,1024,0.25\n"
        assert read(tmp_path, lost)["UDP loss"].values.tolist() == [0.0025]
        with pytest.raises(BadInputError, match="no throughput, no latency and no loss"):
            read(tmp_path, f"Role,{means}Utilization\nServer,UDP_STREAM,3,1024,35.6\n")

    def test_k8s_netperfs_means_keep_their_interval(self, tmp_path: Path) -> None:
        one = read(tmp_path, samples.k8s_netperf_csv(900, 9))["throughput"]

        assert one.condition == "TCP_STREAM 1024 B, netperf, pod network"
        assert (one.runs, one.low, one.high) == (3, 891e6, 909e6)

    def test_testpmds_ports_are_added_up(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.show_port_stats((10, 20)))

        assert found["received rate"].values.tolist() == [20, 40]
        assert found["dropped"].values == pytest.approx([0.01])
        assert found["missed by the NICs"].values.tolist() == [0]
        idle = samples.show_port_stats((0,)).replace("RX-missed: 0  ", "RX-missed: 250")
        assert read(tmp_path, idle)["missed by the NICs"].values == pytest.approx([0.2])

    def test_pktgens_pages_are_intervals(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.pktgen((148_042, 148_044)))

        assert found["received rate"].values.tolist() == [148_042, 148_044]
        assert found["transmitted rate"].values.tolist() == [148_044, 148_046]
        assert found["loss"].values == pytest.approx([0.01])

    def test_trexs_console(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.trex_console())

        assert found["received rate"].values == pytest.approx([581_800])
        assert found["loss"].values == pytest.approx([0.005])

    def test_trexs_stateful_table_has_no_total(self, tmp_path: Path) -> None:
        table = """-Per port stats table
      ports |               0 |               1
   opackets |            1000 |            1000
     obytes |           64000 |           64000
   ipackets |             900 |             800
"""
        assert read(tmp_path, table)["loss"].values == pytest.approx([0.15])

    def test_a_stream_of_iperf3_cut_short_has_its_intervals(self, tmp_path: Path) -> None:
        text = samples.iperf3_stream((1e9, 2e9)).split('{"event": "end"')[0]

        assert read(tmp_path, text)["TCP throughput"].values.tolist() == [1e9, 2e9]

    def test_csits_bounds_and_rates(self, tmp_path: Path) -> None:
        found = read(tmp_path, samples.csit(1e6, 1.2e6))
        assert (found["NDR"].low, found["PDR"].high) == (1e6, 1.2e6 * 1.005)
        (rate,) = read(tmp_path, samples.mrr((9e6, 9.1e6))).values()
        assert (rate.values.tolist(), rate.of) == ([9e6, 9.1e6], "run")

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            (
                samples.show_port_stats((0,)).split("testpmd> stop")[0].replace("1000", "0"),
                "no packet passed",
            ),
            (samples.SOCKPERF.split("sockperf: --->")[0], "received no answer"),
            (samples.irtt([1, 2])[:-30], "not valid JSON"),
            (samples.csit().replace('"pps"', '"cps"'), "not in pps"),
            (samples.flent().replace("0.12", "-0.12"), "must be a possible number"),
        ],
    )
    def test_a_file_without_an_answer_gets_a_sentence(
        self, tmp_path: Path, text: str, sentence: str
    ) -> None:
        with pytest.raises(BadInputError, match=sentence) as raised:
            read(tmp_path, text)

        assert "results.txt" in raised.value.what


def runs_of(tmp_path: Path, name: str, rates: Sequence[float]) -> Path:
    """A folder with a file of one test each."""
    folder = tmp_path / name
    folder.mkdir()
    for place, rate in enumerate(rates):
        text = samples.NETPERF_CSV.replace("21004.10", str(rate))
        (folder / f"{place}.csv").write_text(text)
    return folder


def compared(*folders: Path) -> Compared:
    files = [file for folder in folders for file in sorted(folder.iterdir())]
    found = [one for file in files for one in importers.content(file).readings]
    return next(one for one in compare(found, 0.05) if one.quantity == "transactions")


class TestComparisons:
    def test_files_in_folders_are_runs_of_their_folder(self, tmp_path: Path) -> None:
        a = runs_of(tmp_path, "calico", (20_000, 20_100, 20_200))
        b = runs_of(tmp_path, "cilium", (22_000, 22_100, 22_200))

        found = compared(a, b)

        (pair,) = found.pairs
        assert (pair.a, pair.b, pair.outcome) == ("calico", "cilium", "worse")
        assert pair.change == pytest.approx(20_100 / 22_100 - 1)
        assert pair.low is not None
        assert pair.high is not None
        assert pair.low < pair.change < pair.high < 0

    def test_runs_that_differ_less_than_they_vary_are_not_told_apart(self, tmp_path: Path) -> None:
        a = runs_of(tmp_path, "a", (20_000, 24_000, 22_000))
        b = runs_of(tmp_path, "b", (21_000, 25_000, 23_000))

        assert compared(a, b).pairs[0].outcome == "not distinguishable"

    def test_single_numbers_are_compared_without_an_interval(self, tmp_path: Path) -> None:
        pair = compared(runs_of(tmp_path, "a", (20_000,)), runs_of(tmp_path, "b", (25_000,))).pairs

        assert [(one.outcome, one.low, round(one.change, 6)) for one in pair] == [
            ("not known", None, -0.2)
        ]

    def test_few_false_differences_between_runs_of_the_same(self, tmp_path: Path) -> None:
        """Three runs each of one system: at most 5 % of comparisons may claim a difference."""
        rng = np.random.default_rng(1)

        def level(name: str) -> Readings:
            values = rng.normal(1e9, 3e7, 3)
            return Readings(Path(name), "iperf3", "rate", "bit/s", values, "run")

        wrong = sum(
            compare([level("a"), level("b")], 0.0)[0].pairs[0].outcome in ("better", "worse")
            for _ in range(400)
        )
        assert wrong / 400 < 0.05 + 3 * (0.05 * 0.95 / 400) ** 0.5

    def test_neighbouring_intervals_that_are_alike_count_less(self) -> None:
        steps = np.repeat(np.random.default_rng(2).normal(1e9, 1e8, 8), 5)

        def error(values: np.ndarray) -> float:  # type: ignore[type-arg]
            return estimate(
                Readings(Path("a"), "iperf3", "rate", "bit/s", values, "interval")
            ).error

        assert error(steps) > 1.5 * error(np.random.default_rng(3).permutation(steps))

    def test_three_runs_say_which_differences_they_cannot_tell(self, tmp_path: Path) -> None:
        one = read(tmp_path, samples.k8s_netperf_csv(900, 9))["throughput"]

        # half the interval is 4.303 errors: the error is 2.0917e6, 2.7764 of it apart by chance
        (sentence,) = can_tell([one])
        assert sentence == "a mean of 3 runs: differences below 0.9 % can't be told"


class TestCommands:
    def test_judge_says_what_a_file_can_answer(self, tmp_path: Path) -> None:
        file = tmp_path / "iperf.json"
        file.write_text(samples.iperf3())

        result = invoked("judge", str(file))

        assert result.exit_code == 0
        assert "3 intervals of one run: differences below" in result.stdout
        assert "nor how much runs differ" in result.stdout
        assert "No verdict" in result.stdout

    def test_judges_json_has_no_verdict_and_require_good_fails(self, tmp_path: Path) -> None:
        file = tmp_path / "iperf.json"
        file.write_text(samples.iperf3())

        (found,) = json.loads(invoked("judge", str(file), "--json").stdout)
        assert (found["verdict"], found["quantity"]) == (None, "TCP throughput")
        with pytest.raises(VerdictNotGoodError, match=r"iperf\.json has no verdict"):
            invoked("judge", str(file), "--require-good", raising=True)

    def test_compare_reads_files(self, tmp_path: Path) -> None:
        for name, rate in (("a", 9.4e9), ("b", 8.1e9)):
            text = samples.iperf3((rate, rate * 1.001, rate * 0.999))
            (tmp_path / f"{name}.json").write_text(text)

        files = [str(tmp_path / "a.json"), str(tmp_path / "b.json")]
        result = invoked("compare", *files)

        assert result.exit_code == 0, result.output
        assert "better" in result.stdout
        assert "may be between these runs" in result.stdout
        (found,) = json.loads(invoked("compare", *files, "--json").stdout)
        assert found["comparisons"][0]["outcome"] == "better"

    def test_runs_too_few_to_tell_say_what_they_could(self, tmp_path: Path) -> None:
        a = runs_of(tmp_path, "a", (20_000, 24_000, 22_000))
        b = runs_of(tmp_path, "b", (21_000, 25_000, 23_000))

        result = invoked("compare", *a.iterdir(), *b.iterdir())

        assert "With 3 runs each, differences below 19" in result.stdout

    def test_one_file_compares_its_scenarios(self, tmp_path: Path) -> None:
        file = tmp_path / "k8s.json"
        file.write_text(samples.k8s_netperf())

        result = invoked("compare", str(file))

        assert "pod network – host network" in result.stdout

    def test_files_with_nothing_in_common_are_named(self, tmp_path: Path) -> None:
        (tmp_path / "a.json").write_text(samples.iperf3())
        (tmp_path / "b.txt").write_text(samples.SOCKPERF)

        with pytest.raises(BadInputError, match=r"a\.json: TCP throughput, b\.txt: RTT, median"):
            invoked("compare", tmp_path / "a.json", tmp_path / "b.txt", raising=True)

    def test_searches_are_compared_by_their_pdr(self, tmp_path: Path) -> None:
        for name, pdr in (("a", 1.0e6), ("b", 2.0e6)):
            (tmp_path / f"{name}.info.json").write_text(samples.csit(0.9e6, pdr))

        files = [str(tmp_path / "a.info.json"), str(tmp_path / "b.info.json")]
        result = invoked("compare", *files)

        assert "worse" in result.stdout


def test_values_that_vary_little_are_not_called_equal() -> None:
    def said(values: Sequence[float]) -> str:
        one = Readings(Path("log"), "sockperf", "RTT", "ns", np.array(values), "packet")
        return can_tell([one])[0].partition(": ")[2]

    alike = [20_000.0, 21_000.0, 22_000.0] * 167
    assert said(alike) == "the medians of all parts are equal, so how much they vary is unknown"
    drifting = [value + 0.001 * place for place, value in enumerate(alike)]
    assert said(drifting) == "differences below 0.1 % can't be told, nor how much runs differ"
