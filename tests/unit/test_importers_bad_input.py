"""Whatever a file holds: an answer, or one clear error with file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planewise.errors import BadInputError
from planewise.store import importers
from planewise.store.importers import pastrami
from planewise.store.importers.fields import Fields
from planewise.store.importers.text import values
from tests.fuzz.importers import ENTRIES
from tests.unit import importer_samples as samples

HERE = Path("somewhere.txt")
SAMPLES = samples.every(samples.trials(2)) | {
    name: files[0].encode() for name, files in samples.readings().items()
}
HOSTILE = (
    b"",
    b" \n\t\n",
    b"\x00\x01\x02",
    b"\xff\xfe\x00\xd8",
    b"\xef\xbb\xbf",
    b"[" * 100_000,
    b'{"a":' * 50_000,
    b"[[1,2],[3,4,",
    b"[[" + b"9" * 5000 + b", 0], [1, 1, 0]]",
    b"[[1e999, 0], [1, 1, 0]]",
    b"[[NaN, 0], [NaN, Infinity, -Infinity]]",
    b"[[300000, 0], [1" + b"0" * 400 + b", 1, 0]]",
    b"[[300000, 0], [true, false, null]]",
    b"{}",
    b"[]",
    b"null",
    b'"text"',
    b"offered_pps,sent,received\n",
    b'offered_pps,sent,received\n"1,2,3\n',
    b"offered_pps,sent,received\nnan,nan,nan\n",
    b"#planewise {}\noffered_pps,sent,received\n1,1,1\n",
    b'#planewise {"curves": [{"curve": 5, "info": [], "reported": {"a": 1e999}}]}\na\n',
    b'{"planewise_load_trials": 1, "curves": [{"trials": {"offered_pps": [1]}}]}',
    b"PAR1" + b"\x00" * 100 + b"PAR1",
    b'{"results": {}, "config": {}}',
    b'{"total": {"opackets": -1, "ipackets": 1, "tx_pps": 1}}',
    b"MeasurementResult(intended_duration=1, intended_load=__import__('os'), offered_count=1)",
    b"MeasurementResult(intended_duration=1, intended_load=" + b"(" * 5000 + b")",
)


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_files_are_answered_with_one_sentence(name: str, data: bytes) -> None:
    ENTRIES[name](data)


@pytest.mark.parametrize("name", ENTRIES)
def test_the_valid_samples_pass_their_fuzz_entry(name: str) -> None:
    assert ENTRIES[name](SAMPLES[name])


@pytest.mark.parametrize("name", ENTRIES)
@given(data=st.binary(max_size=300))
def test_any_bytes_are_answered(name: str, data: bytes) -> None:
    ENTRIES[name](data)


WORDS = [
    "total",
    "opackets",
    "ipackets",
    "results",
    "config",
    "stats",
    "rate_pps",
    "trials",
    "intended_load",
    "offered_count",
    "loss_count",
    "curves",
    "planewise_load_trials",
    "offered_pps",
    "sent",
    "received",
    "result",
    "ndr",
    "lower",
    "rate",
    "type",
    "end",
    "intervals",
    "sum",
    "bits_per_second",
    "round_trips",
    "delay",
    "rtt",
    "tputMetric",
    "throughput",
    "metadata",
]
"""Keys that some format looks for."""

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(WORDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@pytest.mark.parametrize("name", ENTRIES)
@given(value=JSON)
def test_any_json_is_answered(name: str, value: object) -> None:
    ENTRIES[name](json.dumps(value).encode())


def mutated(data: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    for position, length, replacement in edits:
        at = position % (len(data) + 1)
        data = data[:at] + replacement + data[at + length :]
    return data


EDITS = st.lists(
    st.tuples(
        st.integers(0, 1 << 16),
        st.integers(0, 12),
        st.sampled_from(
            [b"", b"-", b"0", b"9" * 30, b"NaN", b"null", b"[", b"]", b"{", b"}", b",", b'"', b"\n",
             b"e400", b"\x00", b"\xc3", b".5", b"true", b'"a"', b"[]", b"{}", b"1e19"]
        )
        | st.binary(max_size=4),
    ),
    min_size=1,
    max_size=4,
)  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
@given(edits=EDITS)
def test_damaged_files_are_answered(name: str, edits: list[tuple[int, int, bytes]]) -> None:
    ENTRIES[name](mutated(SAMPLES[name], edits))


@pytest.mark.parametrize("name", ENTRIES)
@given(cut=st.integers(0, 1 << 16))
@example(cut=1)
def test_truncated_files_are_answered(name: str, cut: int) -> None:
    data = SAMPLES[name]
    ENTRIES[name](data[: cut % len(data)])


@pytest.mark.parametrize(
    "name", [name for name in ENTRIES if SAMPLES[name].startswith((b"{", b"["))]
)
def test_a_json_file_cut_in_half_is_an_error(name: str) -> None:
    data = SAMPLES[name].replace(b"\n", b"")  # a cut between two lines of JSON is no error

    assert ENTRIES[name](data[: len(data) // 2]) is None


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("[[0, 0], [10, 10, 0]]", "somewhere.txt:2: the offered load is 0"),
        ("[[-5, 0], [10, 10, 0]]", "somewhere.txt:2: the offered load is -5"),
        ("[[NaN, 0], [10, 10, 0]]", "somewhere.txt:2: the offered load is nan"),
        ("[[1e30, 0], [10, 10, 0]]", "somewhere.txt:2: the offered load is 1e"),
        ("[[5, 0], [-10, 10, 0]]", "somewhere.txt:2: the count of sent packets is -10"),
        ("[[5, 0], [10, NaN, 0]]", "somewhere.txt:2: the count of received packets is nan"),
        ("[[5, 0], [10, 10]]", "somewhere.txt:2: not a PASTRAMI line: run 1 is not a list of"),
        ("[[5, 0], [10, 10, 0]", "somewhere.txt:2: not valid JSON"),
        ("[[5, 0], [10, 'a', 0]]", "somewhere.txt:2: not valid JSON"),
        ('[[5, 0], [10, "a", 0]]', "somewhere.txt:2: a value of run 1 is 'a', not a number"),
        ("[]", "somewhere.txt:2: not a PASTRAMI line: a line is a list of lists"),
        ("{}", "somewhere.txt:2: not a PASTRAMI line: a line is a list of lists"),
    ],
)
def test_a_bad_line_is_named_with_its_number_and_reason(line: str, sentence: str) -> None:
    text = f"[[300, 0], [3000, 3000, 0]]\n{line}\n[[900, 0], [9000, 8000, 0]]\n"

    with pytest.raises(BadInputError) as raised:
        pastrami.parse(text, HERE)

    assert raised.value.what.startswith(sentence)
    assert raised.value.remedy


def test_a_field_that_is_missing_or_no_number_is_named_by_its_path() -> None:
    row = Fields({"tx": {"pps": "many", "whole": 10**400}}, "a row", "x:1")

    assert row.number("tx.whole") == float("inf")
    assert row.loose("tx.pps") is None
    assert row.optional("rx.pps") is None
    with pytest.raises(BadInputError, match=r"x:1: tx\.pps is 'many', not a number"):
        row.optional("tx.pps")
    with pytest.raises(BadInputError, match=r"x:1: tx\.bps is missing"):
        row.inner("tx").number("bps")
    with pytest.raises(BadInputError, match=r"x:1: a row is a list, not an object"):
        Fields([], "a row", "x:1")


def test_a_json_line_cut_short_is_named_and_not_the_next_one() -> None:
    text = '{"total": {}}\n{"total": {"opackets": 1\n{"total": {}}\n'

    with pytest.raises(BadInputError, match=r"somewhere.txt:2: not valid JSON"):
        list(values(text, HERE))


def test_trials_that_sent_nothing_are_left_out_and_named() -> None:
    (found,) = pastrami.parse("[[300, 0], [0, 0, 0], [3000, 3000, 0]]", HERE)

    assert len(found) == 1
    (note,) = found.notes
    assert note.startswith("1 of 2 trials sent nothing and are left out (first: somewhere.txt:1,")


class TestFiles:
    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(BadInputError, match="cannot be read: No such file"):
            importers.read(tmp_path / "nothing.txt")

    def test_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "empty.txt").touch()

        with pytest.raises(BadInputError, match="the file is empty"):
            importers.read(tmp_path / "empty.txt")

    def test_a_picture(self, tmp_path: Path) -> None:
        file = tmp_path / "picture.png"
        file.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 10)

        with pytest.raises(BadInputError, match="not text in UTF-8"):
            importers.read(file)

    def test_a_letter(self, tmp_path: Path) -> None:
        file = tmp_path / "letter.txt"
        file.write_text("Dear reader,\nhere are no trials.\n")

        with pytest.raises(BadInputError, match="none of the known formats") as raised:
            importers.read(file)

        assert "--from" in raised.value.remedy

    def test_the_text_that_iperf_prints_for_people(self, tmp_path: Path) -> None:
        file = tmp_path / "iperf.txt"
        file.write_text(
            "[ ID] Interval           Transfer     Bitrate         Retr  Cwnd\n"
            "[  5]   0.00-1.00   sec   131 MBytes  1.10 Gbits/sec  275    872 KBytes\n"
        )
        with pytest.raises(BadInputError, match="text that iperf prints"):
            importers.content(file)

    def test_json_that_is_damaged_has_its_line_named(self, tmp_path: Path) -> None:
        file = tmp_path / "results.json"
        file.write_text('{\n"something": [\n')

        with pytest.raises(BadInputError, match=r"results.json:3: not valid JSON"):
            importers.read(file)

    def test_a_directory_without_a_run(self, tmp_path: Path) -> None:
        with pytest.raises(BadInputError, match=r"not a run directory: it has no run\.json"):
            importers.read(tmp_path)

    def test_a_gzip_file_cut_short(self, tmp_path: Path) -> None:
        file = tmp_path / "results.txt.gz"
        file.write_bytes(gzip.compress(SAMPLES["pastrami"])[:-9])

        with pytest.raises(BadInputError, match="cut short"):
            importers.read(file)

    def test_text_in_another_encoding_has_its_line_named(self, tmp_path: Path) -> None:
        file = tmp_path / "results.csv"
        file.write_bytes("offered_pps,sent,received\n1,1,1\n# Überlast\n".encode("latin-1"))

        with pytest.raises(BadInputError, match=r"results.csv:3: not text in UTF-8"):
            importers.read(file)

    def test_what_a_windows_program_wrote_is_read(self, tmp_path: Path) -> None:
        file = tmp_path / "results.csv"
        file.write_bytes("offered_pps\tsent\treceived\r\n1\t1\t1\r\n".encode("utf-16"))

        (found,) = importers.read(file)

        assert len(found) == 1


def test_swapped_columns_are_refused_and_one_flooded_trial_is_left_out(tmp_path: Path) -> None:
    swapped = tmp_path / "swapped.csv"
    swapped.write_text("offered_pps,sent,received\n1000,900,9000\n2000,800,9000\n")
    with pytest.raises(BadInputError, match="far more than were sent"):
        importers.read(swapped)

    flooded = tmp_path / "flooded.csv"
    flooded.write_text("offered_pps,sent,received\n1,1000,999\n2,2000,9000\n3,3000,2999\n")
    (found,) = importers.read(flooded)
    assert found.sent.tolist() == [1000, 3000]
    assert "flooded.csv:3" in found.notes[0]
