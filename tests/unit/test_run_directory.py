"""The run directory keeps what was finished, whatever happens to the writer."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planewise.errors import BadInputError, NewerVersionWarning, PlanewiseError
from planewise.store.models import Counts, Fingerprint, OfferedLoad, RunInfo, TrialRecord
from planewise.store.rundir import RunReader, RunWriter
from tests.unit import made_up_run

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def make_info() -> RunInfo:
    host = Fingerprint(
        hostname="h",
        kernel="6.1",
        cpu_model="c",
        cpus=2,
        memory_bytes=1,
        virtualisation="kvm",
        clocksource="tsc",
        governor="none",
        smt="off",
    )
    return RunInfo(
        run="r1", planewise="0.1.0", design={}, seed=7, hosts={"shared": host}, started=START
    )


def make_trial(name: str) -> TrialRecord:
    return made_up_run.trial(
        name,
        "load",
        {"plane": "bridge"},
        started=START,
        duration_s=0.5,
        load=OfferedLoad(intended_pps=1000, achieved_pps=999.5, size_bytes=64),
        counts=Counts(sent=500, received=499, lost=1),
    )


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    packets = pl.DataFrame({"seq": [0, 1], "user_tx_ns": [10, 20]})
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        writer.append(make_trial("a"))
        writer.append(make_trial("b@1000"), packets)
    reader = RunReader(tmp_path / "run")
    assert reader.info == make_info()
    first, second = reader.trials()
    assert first == make_trial("a")
    assert second.trial == "b@1000"
    table = reader.packets(second)
    assert table is not None
    assert table.equals(packets)


def test_a_line_cut_by_a_kill_is_dropped_on_resume_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunWriter.create(path, make_info()) as writer:
        writer.append(make_trial("a"))
        writer.append(make_trial("b"))
    file = path / "trials.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-7])
    assert RunReader(path).is_cut()
    assert [t.trial for t in RunReader(path).trials()] == ["a"]
    with RunWriter.resume(path) as writer:
        assert writer.finished == {"a"}
        writer.append(make_trial("b"))
    assert file.read_bytes() == whole


@settings(max_examples=30)
@given(cut=st.integers(min_value=0))
def test_a_cut_anywhere_loses_at_most_the_trial_in_flight(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    path = tmp_path_factory.mktemp("run")
    names = ["a", "b", "c"]
    with RunWriter.create(path, make_info()) as writer:
        for name in names:
            writer.append(make_trial(name))
    file = path / "trials.jsonl"
    whole = file.read_bytes()
    cut %= len(whole) + 1
    file.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    assert [t.trial for t in RunReader(path).trials()] == names[:kept]


def test_a_failed_trial_is_tried_again_on_resume(tmp_path: Path) -> None:
    failed = make_trial("a").model_copy(update={"status": "failed", "reason": "guest died"})
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        writer.append(failed)
    with RunWriter.resume(tmp_path / "run") as writer:
        assert writer.finished == frozenset()
        writer.append(make_trial("a"))
    assert [t.status for t in RunReader(tmp_path / "run").trials()] == ["done"]


def test_a_damaged_line_is_an_error_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunWriter.create(path, make_info()) as writer:
        writer.append(make_trial("a"))
    with (path / "trials.jsonl").open("a") as handle:
        handle.write('{"trial": 3}\n')
    with pytest.raises(BadInputError, match=r"trials\.jsonl:2: not a trial record"):
        RunReader(path).trials()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "damaged"),
        ("[]", "format None"),
        ('{"format": 99}', "format 99"),
        ('{"format": 1}', "damaged"),
        ("\x00\x01", "damaged"),
    ],
)
def test_a_bad_run_json_is_an_error_that_says_what_is_wrong(
    tmp_path: Path, content: str, words: str
) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(BadInputError, match=words):
        RunReader(tmp_path)


def test_a_directory_without_run_json_is_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="not a run directory"):
        RunReader(tmp_path / "nothing")


def test_an_output_directory_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(BadInputError, match="not empty"):
        RunWriter.create(tmp_path, make_info())
    assert (tmp_path / "precious").read_text() == "x"


def test_two_writers_of_one_run_directory_are_refused(tmp_path: Path) -> None:
    with (
        RunWriter.create(tmp_path / "run", make_info()),
        pytest.raises(PlanewiseError, match="another planewise"),
    ):
        RunWriter.resume(tmp_path / "run")


def test_a_disk_without_room_for_a_line_has_no_part_of_it_when_the_run_ends(tmp_path: Path) -> None:
    """By the kernel's limit of a file's size, which ends a line in its middle as a disk does."""
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        writer.append(make_trial("a"))
        file = tmp_path / "run" / "trials.jsonl"
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 50, before[1]))
        try:
            with pytest.raises(PlanewiseError, match="cannot write the run directory"):
                writer.append(make_trial("b"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    reader = RunReader(tmp_path / "run")
    assert [trial.trial for trial in reader.trials()] == ["a"]
    assert not reader.is_cut()


def test_a_full_disk_keeps_what_was_finished_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    with RunWriter.create(path, make_info()) as writer:
        writer.append(make_trial("a"))

        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(PlanewiseError, match="no space left") as caught:
            writer.append(make_trial("b"))
        assert "--resume" in caught.value.remedy
        monkeypatch.undo()
        writer.append(make_trial("c"))
    assert [t.trial for t in RunReader(path).trials()] == ["a", "c"]


def test_a_trial_line_is_plain_json_with_units_in_its_names(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        writer.append(make_trial("a"))
    line = json.loads((tmp_path / "run" / "trials.jsonl").read_text())
    assert line["load"] == {"intended_pps": 1000.0, "achieved_pps": 999.5, "size_bytes": 64}


def test_missing_packet_samples_are_an_error_that_names_the_file(tmp_path: Path) -> None:
    with RunWriter.create(tmp_path / "run", make_info()) as writer:
        writer.append(make_trial("a"), pl.DataFrame({"seq": [1]}))
    reader = RunReader(tmp_path / "run")
    (trial,) = reader.trials()
    (tmp_path / "run" / "packets" / "a.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(BadInputError, match=r"a\.parquet"):
        reader.packets(trial)


def test_fields_of_a_newer_version_are_ignored_and_named_once(tmp_path: Path) -> None:
    path = made_up_run.write(tmp_path / "run", made_up_run.MadeUp(blocks=1, packets=10))
    for name in ("run.json", "trials.jsonl"):
        file = path / name
        file.write_text(re.sub(r"^\{", '{"later": {"n": 1}, ', file.read_text(), flags=re.M))
    with pytest.warns(NewerVersionWarning, match="newer planewise .* are ignored: later$") as told:
        assert RunReader(path).trials()
    assert len({str(one.message) for one in told}) == 1


def test_the_documented_fields_are_those_of_the_models() -> None:
    script = Path(__file__).parents[2] / "packaging" / "formats.py"
    done = subprocess.run([sys.executable, str(script), "--check"], check=False)
    assert done.returncode == 0, "run `python packaging/formats.py`"
