"""Every tool's results become the same trials."""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from planewise.errors import BadInputError
from planewise.store import importers
from planewise.store.importers import csv, mlrsearch, nfvbench, pastrami, trex
from planewise.store.loads import LoadTrials
from tests.unit import importer_samples as samples

HERE = Path("somewhere.txt")
TRIALS = samples.trials()
WITH_TRIALS = list(samples.every(TRIALS))


def assert_same(found: LoadTrials, expected: list[samples.Trial] = TRIALS) -> None:
    assert found.offered_pps.tolist() == [trial.offered_pps for trial in expected]
    assert found.sent.tolist() == [trial.sent for trial in expected]
    assert found.received.tolist() == [trial.received for trial in expected]
    assert found.order.tolist() == list(range(len(expected)))


@pytest.mark.parametrize("name", WITH_TRIALS)
def test_the_same_trials_come_out_of_every_format(name: str, tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.write_bytes(samples.every(TRIALS)[name])

    (found,) = importers.read(file)

    assert_same(found)
    assert found.duration_s is not None
    assert found.duration_s.tolist() == [10.0] * len(TRIALS)


@pytest.mark.parametrize("name", samples.every(TRIALS))
def test_every_format_is_recognised_by_its_content_and_not_its_name(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "results"
    file.write_bytes(samples.every(TRIALS)[name])

    assert importers.recognise(file) == name


@pytest.mark.parametrize("name", list(samples.every(TRIALS)))
def test_a_gzip_file_is_read_like_the_file_in_it(name: str, tmp_path: Path) -> None:
    file = tmp_path / "results.gz"
    file.write_bytes(gzip.compress(samples.every(TRIALS)[name]))

    assert importers.recognise(file) == name
    assert importers.read(file)


def test_a_forced_format_is_not_guessed_at(tmp_path: Path) -> None:
    file = tmp_path / "results"
    file.write_text(samples.csv_rows(TRIALS))

    with pytest.raises(BadInputError, match=r"results:1: not valid JSON"):
        importers.read(file, "pastrami")


def test_an_unknown_format_names_those_there_are() -> None:
    with pytest.raises(BadInputError) as raised:
        importers.importer("ixia")

    assert "pastrami" in raised.value.remedy


class TestPastrami:
    def test_the_lines_may_stand_in_any_order(self) -> None:
        lines = samples.pastrami(TRIALS).splitlines()
        (found,) = pastrami.parse("\n".join(reversed(lines)), HERE)

        assert sorted(set(found.offered_pps)) == [400e3, 600e3, 800e3, 1e6, 1.2e6]
        assert found.offered_pps[0] == 1.2e6
        assert found.order[0] == 0

    def test_drops_are_differences_of_the_running_counter(self) -> None:
        (found,) = pastrami.parse(
            "[[1000, 50], [10000, 9000, 1050], [10000, 10000, 1050], [10000, 9990, 1060]]", HERE
        )

        assert found.drops is not None
        assert found.drops.tolist() == [1000, 0, 10]

    def test_a_counter_that_was_reset_says_nothing_of_that_run(self) -> None:
        (found,) = pastrami.parse("[[1000, 50], [10000, 9000, 7], [10000, 9000, 1007]]", HERE)

        assert found.drops is not None
        assert np.isnan(found.drops[0])
        assert found.drops[1] == 1000

    def test_a_fourth_value_is_the_cpu_load(self) -> None:
        (found,) = pastrami.parse(samples.pastrami(TRIALS, cpu=True), HERE)

        assert found.cpu is not None
        assert set(found.cpu) == {0.37}

    def test_more_received_than_sent_by_a_few_is_kept_as_it_is(self) -> None:
        (found,) = pastrami.parse("[[300000, 0], [2999998, 3000003, 0]]", HERE)

        assert (found.sent[0], found.received[0]) == (2999998, 3000003)

    def test_the_file_name_tells_what_the_experiment_was(self) -> None:
        name = "clab_tb1_class_ebpf_raw_30_exp_t_10_k5.15_intel_bare-metal_nic_buf_4096"
        info = pastrami.info_from_name(Path(f"{name}_irq_pf0-4_pf1-6.txt"))

        assert info == {
            "duration_s": 10,
            "runs": 30,
            "class": "ebpf",
            "kernel": "5.15",
            "platform": "bare-metal",
            "testbed": "clab_tb1",
            "nic_ring": 4096,
            "irq_pinning": "pf0-4_pf1-6",
        }

    def test_a_duration_that_the_name_lacks_comes_from_the_counts(self) -> None:
        (found,) = pastrami.parse("[[300000, 0], [5999815, 5999810, 0]]", Path("raw_50_k6.8.txt"))

        assert found.duration_s is not None
        assert found.duration_s.tolist() == [20.0]

    def test_a_duration_that_the_counts_contradict_is_not_believed(self) -> None:
        (found,) = pastrami.parse("[[1000, 0], [20000, 20000, 0]]", Path("x_exp_t_10_k6.8.txt"))

        assert found.duration_s is not None
        assert found.duration_s.tolist() == [20.0]

    def test_a_load_on_two_lines_is_one_load_and_said_so(self) -> None:
        (found,) = pastrami.parse("[[1000, 0], [9, 9, 0]]\n\n[[1000, 0], [9, 8, 0]]\n", HERE)

        assert found.loads == 1
        assert len(found) == 2
        assert found.notes == (
            "1 loads appear on more than one line (the first, 1000 pps, on lines 1 and 3): "
            "their runs are merged",
        )


class TestTrex:
    def test_one_object_of_get_stats_is_one_trial(self) -> None:
        (found,) = trex.parse(json.dumps(samples.trex_statistics(TRIALS[0]), indent=2), HERE)

        assert found.offered_pps.tolist() == [400_800]
        assert found.sent.tolist() == [4_000_000]
        assert "measured rates" in found.notes[0]

    def test_measured_rates_near_each_other_are_one_load(self) -> None:
        stats = [samples.trex_statistics(trial) for trial in TRIALS]
        for place, one in enumerate(stats):
            one["total"]["tx_pps"] *= 1 + 0.0005 * (place % 3)
        (found,) = trex.parse(json.dumps(stats), HERE)

        assert found.loads == 5
        assert len(found) == len(TRIALS)

    def test_the_rate_may_be_a_multiplier_in_pps(self) -> None:
        text = json.dumps({"mult": "1.5mpps", "stats": samples.trex_statistics(TRIALS[0])})
        (found,) = trex.parse(text, HERE)

        assert found.offered_pps.tolist() == [1.5e6]
        assert found.notes == ()

    def test_a_full_queue_marks_the_trial_as_limited_by_the_generator(self) -> None:
        stats = samples.trex_statistics(TRIALS[0])
        stats["global"]["queue_full"] = TRIALS[0].sent
        (found,) = trex.parse(json.dumps([stats, samples.trex_statistics(TRIALS[3])]), HERE)

        assert found.limited is not None
        assert found.limited.tolist() == [True, False]

    def test_the_benchmark_is_one_trial_of_half_the_doubled_duration(self) -> None:
        (found,) = trex.parse(json.dumps(samples.trex_benchmark()), HERE)

        assert found.offered_pps.tolist() == [812_345.6]
        assert found.duration_s is not None
        assert found.duration_s.tolist() == [20.0]
        assert found.sent.tolist() == [16_246_912]
        assert found.received[0] / found.sent[0] == pytest.approx(0.9975)
        assert found.reported == {"pdr_pps": 812_345.6}


class TestNfvbench:
    def test_ndr_and_pdr_are_kept_as_reported(self) -> None:
        (found,) = nfvbench.parse(samples.nfvbench(TRIALS), HERE)

        assert found.reported == {"ndr_pps": 800_000, "pdr_pps": 804_000}
        assert found.info["frame_size"] == "64"
        assert found.curve == "PVP 64"

    def test_every_frame_size_is_a_curve(self) -> None:
        result = json.loads(samples.nfvbench(TRIALS))
        sizes = result["benchmarks"]["network"]["service_chain"]["PVP"]["result"]["result"]
        sizes["IMIX"] = sizes["64"]

        found = nfvbench.parse(json.dumps(result), HERE)

        assert [trials.curve for trials in found] == ["PVP 64", "PVP IMIX"]

    @pytest.mark.parametrize(
        "wrapped",
        [
            lambda result: {"status": "OK", "result": result},
            lambda result: {"results": [{"details": {"throughput": [{"output": result}]}}]},
        ],
        ids=["REST API", "OPNFV's database"],
    )
    def test_a_result_is_found_in_what_wraps_it(
        self, wrapped: Callable[[object], object], tmp_path: Path
    ) -> None:
        file = tmp_path / "answer.json"
        file.write_text(json.dumps(wrapped(json.loads(samples.nfvbench(TRIALS)))))

        (found,) = importers.read(file)

        assert found.reported == {"ndr_pps": 800_000, "pdr_pps": 804_000}

    def test_several_wrapped_results_are_told_apart(self) -> None:
        result = json.loads(samples.nfvbench(TRIALS))

        found = nfvbench.parse(json.dumps({"results": [result, result]}), HERE)

        assert [trials.curve for trials in found] == ["result 1: PVP 64", "result 2: PVP 64"]

    def test_a_trial_that_received_more_than_it_sent_is_left_out_by_name(self) -> None:
        result = json.loads(samples.nfvbench(TRIALS))
        sizes = result["benchmarks"]["network"]["service_chain"]["PVP"]["result"]["result"]
        iterations = sizes["64"]["iteration_stats"]["ndr_pdr"]
        iterations[1]["rx_pkts"] = 2 * iterations[1]["tx_pkts"]

        (found,) = nfvbench.parse(json.dumps(result), HERE)

        assert len(found) == len(iterations) - 1
        assert "trial 2" in found.notes[0]
        assert f"received of {iterations[1]['tx_pkts']}" in found.notes[0]

    def test_a_fixed_rate_is_one_trial(self) -> None:
        result = json.loads(samples.nfvbench(TRIALS))
        sizes = result["benchmarks"]["network"]["service_chain"]["PVP"]["result"]["result"]
        sizes["64"] = {
            "stats": {
                "overall": {
                    "tx": {"total_pkts": 5000},
                    "rx": {"total_pkts": 4900, "dropped_pkts": 100},
                }
            },
            "run_config": {"direction-total": {"orig": {"rate_pps": 500.0}}},
        }
        (found,) = nfvbench.parse(json.dumps(result), HERE)

        assert (found.offered_pps[0], found.sent[0], found.received[0]) == (500, 5000, 4900)

    def test_an_old_result_without_iterations_has_its_numbers_and_no_trials(self) -> None:
        result = json.loads(samples.nfvbench(TRIALS))
        sizes = result["benchmarks"]["network"]["service_chain"]["PVP"]["result"]["result"]
        del sizes["64"]["iteration_stats"]
        (found,) = nfvbench.parse(json.dumps(result), HERE)

        assert len(found) == 0
        assert found.reported["pdr_pps"] == 804_000


class TestMlrsearch:
    def test_a_log_with_representations_has_the_same_trials(self) -> None:
        (found,) = mlrsearch.parse(samples.mlrsearch_log(TRIALS), HERE)

        assert_same(found)

    def test_the_librarys_own_class_survives_the_way_through_json(self) -> None:
        library = pytest.importorskip("MLRsearch")
        from dataclasses import asdict

        result = library.MeasurementResult(
            intended_duration=1, intended_load=9001.0, offered_count=9001, loss_count=3
        )
        as_json = json.dumps([asdict(result)])

        for text in (as_json, f"12:00 {result!r}"):
            (found,) = mlrsearch.parse(text, HERE)
            assert (found.offered_pps[0], found.sent[0], found.received[0]) == (9001, 9001, 8998)

    def test_two_of_the_three_counts_are_enough(self) -> None:
        text = json.dumps(
            [
                {
                    "intended_load": 10.0,
                    "intended_duration": 1,
                    "loss_count": 2,
                    "forwarding_count": 8,
                }
            ]
        )
        (found,) = mlrsearch.parse(text, HERE)

        assert (found.sent[0], found.received[0]) == (10, 8)

    def test_one_count_is_not_enough(self) -> None:
        text = '[\n{"intended_load": 10.0, "intended_duration": 1, "loss_count": 2}]'

        with pytest.raises(BadInputError, match=r"somewhere.txt:2: a trial needs two of"):
            mlrsearch.parse(text, HERE)

    def test_unsent_packets_are_not_lost_packets_and_said_so(self) -> None:
        text = json.dumps(
            [
                {
                    "intended_load": 10.0,
                    "intended_duration": 1,
                    "offered_count": 8,
                    "loss_count": 0,
                    "intended_count": 10,
                }
            ]
        )
        (found,) = mlrsearch.parse(text, HERE)

        assert (found.sent[0], found.received[0]) == (8, 8)
        assert "fewer packets than intended" in found.notes[0]


class TestCsv:
    def test_units_stand_in_the_names_of_the_columns(self) -> None:
        (found,) = csv.parse("Rate [Mpps];TX;RX;duration_ms;cpu_percent\n1.5;15;14;10;50\n", HERE)

        assert found.offered_pps.tolist() == [1.5e6]
        assert found.duration_s is not None
        assert found.duration_s.tolist() == pytest.approx([0.01])
        assert found.cpu is not None
        assert found.cpu.tolist() == [0.5]

    def test_lost_stands_in_for_received(self) -> None:
        (found,) = csv.parse("lost\tsent\toffered_pps\n3\t10\t5\n", HERE)

        assert found.received.tolist() == [7]

    def test_rates_stand_in_for_counts(self) -> None:
        (found,) = csv.parse("offered_mpps,throughput_mpps,duration_s\n1,0.9,10\n", HERE)

        assert found.sent.tolist() == pytest.approx([10e6])
        assert found.received.tolist() == pytest.approx([9e6])
        assert found.notes == ()

    def test_rates_without_durations_are_trials_of_a_second_and_said_so(self) -> None:
        (found,) = csv.parse("offered_pps,rx_pps\n1000,900\n", HERE)

        assert (found.sent[0], found.received[0]) == (1000, 900)
        assert "taken to last one second" in found.notes[0]

    def test_a_loss_ratio_stands_in_for_counts(self) -> None:
        for header, value in (("plr", "0.1"), ("loss_percent", "10"), ("Loss [%]", "10")):
            (found,) = csv.parse(f"offered_pps,tx,{header}\n1000,500,{value}\n", HERE)
            assert (found.sent[0], found.received[0]) == (500, pytest.approx(450))

    def test_a_column_of_identifiers_is_not_taken_for_curves(self) -> None:
        rows = "".join(f"{i},1,1,1\n" for i in range(2000))

        with pytest.raises(BadInputError, match=r":1002: the column experiment has more than 1000"):
            csv.parse("experiment,offered_pps,sent,received\n" + rows, HERE)

    def test_a_column_parts_the_curves(self) -> None:
        found = csv.parse(
            "curve,offered_pps,sent,received\na,1,1,1\nb,1,2,2\n'a b',1,3,3\na,2,4,4\n", HERE
        )

        assert [(trials.curve, len(trials)) for trials in found] == [
            ("a", 2),
            ("b", 1),
            ("'a b'", 1),
        ]

    def test_comments_and_empty_lines_are_left_out(self) -> None:
        (found,) = csv.parse("# by hand\noffered_pps,sent,received\n\n# more\n1,2,2\n", HERE)

        assert len(found) == 1

    def test_an_unknown_optional_value_may_be_empty(self) -> None:
        (found,) = csv.parse("offered_pps,sent,received,drops\n1,2,2,\n1,2,2,0\n", HERE)

        assert found.drops is not None
        assert np.isnan(found.drops[0])

    def test_order_may_be_told_by_a_column(self) -> None:
        (found,) = csv.parse("offered_pps,sent,received,order\n1,2,2,7\n2,2,2,3\n", HERE)

        assert found.order.tolist() == [1, 0]

    def test_a_decimal_comma_is_an_error_with_its_line(self) -> None:
        with pytest.raises(BadInputError, match=r"somewhere.txt:3: sent is '2,5'"):
            csv.parse("offered_pps;sent;received\n1;2;2\n1;2,5;2\n", HERE)

    def test_a_header_without_a_load_names_the_columns(self) -> None:
        with pytest.raises(BadInputError, match="names no offered load") as raised:
            csv.parse("sent,received\n1,1\n", HERE)

        assert "offered_pps" in raised.value.remedy


def test_a_million_lines_are_read_in_seconds_and_not_minutes(tmp_path: Path) -> None:
    file = tmp_path / "large.csv"
    row = "300000,3000000,2999000\n900000,9000000,8000000\n"
    file.write_text("offered_pps,sent,received\n" + row * 500_000)

    begin = time.monotonic()
    (found,) = importers.read(file)

    assert len(found) == 1_000_000
    assert found.loads == 2
    print(f"a million lines: {time.monotonic() - begin:.1f} s")
