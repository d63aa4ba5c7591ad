"""A fuzz entry for the reader of designs: bytes in, a design that can be expanded or a clear error.

Anything else than a BadInputError is a finding. The unit tests drive it with hypothesis; with
atheris installed it runs as a coverage-guided fuzz target:

    python -m tests.fuzz.designs -max_total_time=60 [corpus directory]

experiments/ is a good corpus to begin with.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from planewise.errors import BadInputError
from planewise.measure.designs.cells import expand
from planewise.measure.designs.design import MAX_COMBINATIONS, MAX_TRIALS, Design
from planewise.measure.designs.design_file import load_design
from planewise.testbed.planes import GUESTS_OF

NAME = "fuzzed.yaml"


def read(data: bytes, directory: Path) -> Design | None:
    """Reads `data` as a design file and checks what the reader promises."""
    path = directory / NAME
    path.write_bytes(data)
    try:
        design = load_design(path)
    except BadInputError as error:
        check_error(error)
        return None
    assert design.combinations() <= MAX_COMBINATIONS
    assert design.trials_upper_bound() <= MAX_TRIALS
    cells = expand(design)
    assert cells
    for cell, traffic in cells.items():
        assert cell.guest in GUESTS_OF[cell.plane]
        assert any(traffic.values())
    # What is kept in run.json is the same design.
    assert Design.model_validate(design.model_dump(mode="json")) == design
    return design


def check_error(error: BadInputError) -> None:
    """One sentence, which names the file."""
    assert NAME in error.what, error.what
    assert "\n" not in error.what, error.what
    assert len(error.what) < 2000, error.what


def main() -> None:
    """Runs the entry under atheris, with libFuzzer's options."""
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris")
    with tempfile.TemporaryDirectory(prefix="pw-fuzz-") as directory:
        atheris.instrument_func(load_design)
        atheris.Setup(sys.argv, lambda data: read(data, Path(directory)))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
