"""What is exported reads back the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planewise.errors import BadInputError, PlanewiseError
from planewise.store import importers, loads
from planewise.store.files import write_file
from planewise.store.importers import csv as csv_format
from planewise.store.loads import LoadTrials, Trial
from tests.unit import importer_samples as samples

COLUMNS = ("offered_pps", "sent", "received", "duration_s", "drops", "cpu", "limited", "order")

unknown = st.just(float("nan"))
text = st.text(
    st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=12
).map(str.strip)
rows = st.lists(
    st.tuples(
        st.floats(1e-3, 1e12),
        st.integers(1, 2**53),
        st.floats(0, 1),
        st.floats(1e-6, 1e6) | unknown,
        st.integers(0, 2**40).map(float) | unknown,
        st.floats(0, 1) | unknown,
        st.booleans(),
    ),
    min_size=1,
    max_size=20,
)


@st.composite
def load_trials(draw: st.DrawFn) -> LoadTrials:
    trials = [
        Trial(1, offered, sent, float(int(sent * share)), *more)
        for offered, sent, share, *more in draw(rows)
    ]
    return loads.load_trials(
        Path("made.txt"),
        trials,
        format_name=draw(st.sampled_from(importers.MODULES)),
        curve=draw(text | st.just("")),
        order=draw(st.permutations(range(len(trials)))),
        info=draw(st.dictionaries(text, text | st.integers(-(2**50), 2**50), max_size=3)),
        notes=draw(st.lists(text, max_size=2)),
        reported=draw(
            st.dictionaries(st.sampled_from(["ndr_pps", "pdr_pps"]), st.floats(0, 1e9), max_size=2)
        ),
    )


def assert_equal(found: LoadTrials, expected: LoadTrials) -> None:
    for name in COLUMNS:
        one, other = getattr(found, name), getattr(expected, name)
        if one is None or other is None:
            assert one is other, name
        else:
            assert np.array_equal(one, other, equal_nan=one.dtype.kind == "f"), name
    assert found.name == expected.name
    assert found.format == expected.format
    assert found.info == expected.info
    assert found.notes == expected.notes
    assert found.reported == expected.reported


def assert_comes_back(curves: list[LoadTrials], file: Path) -> None:
    csv_format.write(curves, file)
    found = importers.read(file)

    assert len({one.curve for one in found}) == len(curves)
    for one, other in zip(found, curves, strict=True):
        assert_equal(one, other)
    if len(curves) == 1:
        assert found[0].curve == curves[0].curve


several = st.lists(load_trials(), min_size=1, max_size=4)
sharing = [HealthCheck.function_scoped_fixture]


@settings(suppress_health_check=sharing)
@given(curves=several)
def test_curves_come_back_as_they_were(curves: list[LoadTrials], tmp_path: Path) -> None:
    assert_comes_back(curves, tmp_path / "trials.csv")


def test_reported_numbers_without_trials_come_back(tmp_path: Path) -> None:
    source = tmp_path / "old.json"
    source.write_text(samples.nfvbench_without_iterations())
    file = tmp_path / "trials.csv"

    csv_format.write(importers.read(source), file)
    (found,) = importers.read(file)

    assert len(found) == 0
    assert found.reported == {"ndr_pps": 800_000, "pdr_pps": 804_000}


def test_another_ending_names_the_one_there_is(tmp_path: Path) -> None:
    with pytest.raises(BadInputError) as raised:
        csv_format.write([], tmp_path / "trials.xlsx")

    assert ".csv" in raised.value.remedy


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    source = tmp_path / "source.csv"
    source.write_text(samples.csv_rows(samples.trials()))
    (tmp_path / "nowhere").write_text("a file")

    with pytest.raises(PlanewiseError, match=r"cannot write .*nowhere"):
        csv_format.write(importers.read(source), tmp_path / "nowhere" / "trials.csv")


def test_a_device_is_written_to_and_a_link_kept(tmp_path: Path) -> None:
    # It put a file in the place of /dev/full, for the whole machine where root ran it.
    pipe, link, target = (tmp_path / name for name in ("pipe", "link", "target"))
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_file(pipe, b"read")
        assert pipe.is_fifo()
        assert os.read(reader, 10) == b"read"
        assert not list(tmp_path.glob(".*"))
    finally:
        os.close(reader)
    target.write_bytes(b"before")
    link.symlink_to(target)
    write_file(link, b"after")
    assert link.is_symlink()
    assert target.read_bytes() == b"after"
    if Path("/dev/full").is_char_device():
        link.unlink()
        link.symlink_to("/dev/full")
        with pytest.raises(PlanewiseError, match="no space left to write"):
            write_file(link, b"lost")


def test_a_folder_that_may_not_be_entered_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, *_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setattr(Path, "unlink", refused)
    with pytest.raises(PlanewiseError, match=r"cannot write .*x\.csv: Permission denied"):
        write_file(tmp_path / "x.csv", b"lost")
