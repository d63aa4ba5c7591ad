"""Where the published recordings are, for tests that need them."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from planewise.judge.curve import Curve
from planewise.judge.from_store import curve_from_trials
from planewise.store import importers

_DATA = Path(os.environ.get("PLANEWISE_SHARED", Path(__file__).parents[3] / "shared")) / "data"
FOLDER = Path(os.environ.get("PLANEWISE_PASTRAMI_DATA") or _DATA / "pastrami")

needs_published_data = pytest.mark.skipif(
    not (FOLDER / "labels.tsv").exists(),
    reason="the published data are not here: name their folder in PLANEWISE_PASTRAMI_DATA",
)


def labels() -> list[dict[str, str]]:
    """The rows of labels.tsv."""
    with (FOLDER / "labels.tsv").open(newline="") as handle:
        return list(csv.DictReader(handle, delimiter="\t"))


def recorded(name: str) -> Curve:
    """The curve of one file."""
    (trials,) = importers.read(FOLDER / name)
    return curve_from_trials(trials)


def nfv_brief() -> Path:
    """The folder of the throughput tables of Intel 335625; skips the test where it is not."""
    folder = _DATA / "nfv_brief"
    if not (folder / "throughput.csv").exists():
        pytest.skip("the published tables are not here: name their parent in PLANEWISE_SHARED")
    return folder


def cnf_testbed() -> Path:
    """The folder of cnf-testbed's NDR of chains; skips the test where it is not."""
    folder = _DATA / "cnf_testbed"
    if not (folder / "ndr_single_chains_64B.csv").exists():
        pytest.skip("cnf-testbed's results are not here: name their parent in PLANEWISE_SHARED")
    return folder
