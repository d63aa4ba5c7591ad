"""One fuzz entry a format of `planewise.store.importers`: bytes in, curves or a clear error out.

Each entry parses what it is given and checks what every importer promises. Anything else than a
BadInputError is a finding. The unit tests drive the entries with hypothesis; with atheris
installed (`pip install atheris`) they run as coverage-guided fuzz targets:

    python -m tests.fuzz.importers trex -max_total_time=60 [corpus directory]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType

import numpy as np

from planewise.errors import BadInputError
from planewise.judge import readings as judged
from planewise.store.importers import MODULES, confidence, importer
from planewise.store.importers.text import decode
from planewise.store.loads import LoadTrials
from planewise.store.readings import Readings

NAME = Path("fuzzed_raw_50_exp_t_10_k6.8.txt")


def _text(
    data: bytes,
    name: str,
    parse: Callable[[str, Path], list[LoadTrials] | list[Readings]],
) -> Sequence[LoadTrials | Readings] | None:
    assert 0 <= confidence(name, data[:65536], NAME) <= 1
    try:
        curves = parse(decode(data, NAME), NAME)
    except BadInputError as error:
        check_error(error)
        return None
    check_curves([curve for curve in curves if isinstance(curve, LoadTrials)])
    check_readings([curve for curve in curves if isinstance(curve, Readings)])
    assert curves
    return curves


def check_error(error: BadInputError) -> None:
    """One sentence, which names the file."""
    assert NAME.name in error.what, error.what
    assert "\n" not in error.what, error.what
    assert len(error.what) < 500, error.what


def check_curves(curves: list[LoadTrials]) -> None:
    """What every importer promises of its curves."""
    for trials in curves:
        size = len(trials)
        assert size == len(trials.sent) == len(trials.received) == len(trials.order)
        assert sorted(trials.order) == list(range(size))
        for required in (trials.offered_pps, trials.sent):
            assert np.all(np.isfinite(required))
            assert np.all(required > 0)
        assert np.all(np.isfinite(trials.received))
        assert np.all(trials.received >= 0)
        for optional in (trials.duration_s, trials.drops, trials.cpu, trials.limited):
            assert optional is None or len(optional) == size
        assert trials.name
        assert trials.format


def check_readings(found: list[Readings]) -> None:
    """What every importer promises of its readings: they can be estimated and compared."""
    for one in found:
        assert len(one.values)
        assert np.all(np.isfinite(one.values))
        assert np.all(one.values >= 0)
        assert one.quantity
        estimate = judged.estimate(one)
        assert estimate.low is None or estimate.high is None or estimate.low <= estimate.high
    judged.can_tell(found)
    judged.compare([*found, *(replace(one, file=Path("another")) for one in found)], 0.05)


def _entry(name: str) -> Callable[[bytes], Sequence[LoadTrials | Readings] | None]:
    return partial(_text, name=name, parse=importer(name).parse)


ENTRIES: dict[str, Callable[[bytes], Sequence[LoadTrials | Readings] | None]] = {
    name: _entry(name) for name in MODULES if name != "run"
}
"""Every format that is a file, by its name."""


def _ours() -> list[FunctionType]:
    """The importers' own functions: instrumenting numpy and polars takes minutes."""
    modules = [module for name, module in sys.modules.items() if name.startswith("planewise.store")]
    places = [vars(module) for module in modules]
    places += [
        vars(value)
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    ]
    return [
        value
        for place in places
        for value in place.values()
        if isinstance(value, FunctionType) and value.__module__.startswith("planewise.store")
    ]


def main() -> None:
    """Runs one entry under atheris, libFuzzer's options following its name."""
    if len(sys.argv) < 2 or sys.argv[1] not in ENTRIES:
        sys.exit(f"usage: python -m tests.fuzz.importers ({'|'.join(ENTRIES)}) [libFuzzer options]")
    try:
        import atheris
    except ImportError:
        sys.exit("atheris is not installed: pip install atheris")
    entry = ENTRIES[sys.argv[1]]
    for function in _ours():
        atheris.instrument_func(function)
    atheris.Setup([sys.argv[0], *sys.argv[2:]], entry)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
