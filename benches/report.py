"""`planewise report` and `compare` of a large run: time, memory, size. Never passes or fails.

    python benches/report.py                 # 510 cells, 5100 trials, 10 million packets
    python benches/report.py --keep DIR      # makes the run in DIR, or takes the one there

The run is made up (tests/unit/made_up_run.py): five planes in a factorial design.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.unit import made_up_run


def cost(*arguments: str | Path) -> None:
    """Runs the command once, alone, and prints what it cost."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "planewise", "--quiet", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit(f"{arguments[0]} failed")
    told = " ".join(str(one) for one in (arguments[0], *arguments[2:]))
    print(
        f"  {told}: {wall_s:.1f} s ({usage.ru_utime:.1f} s of CPU in user mode, "
        f"{usage.ru_stime:.1f} s in the kernel), {usage.ru_maxrss / 1e6:.2f} GB at most"
    )


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def main() -> None:
    """Makes the run, then reports twice and compares: files are in the page cache either way."""
    parser = argparse.ArgumentParser(description="cost of the report of a large run")
    parser.add_argument("--keep", type=Path, help="directory for the run and the page")
    with _folder(parser.parse_args().keep) as folder:
        run = folder / "run"
        if not (run / "run.json").exists():
            started = time.perf_counter()
            made_up_run.write(run, made_up_run.HUGE)
            print(f"made the run in {time.perf_counter() - started:.0f} s")
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
        page = folder / "report.html"
        for _ in range(2):
            cost("report", run, "-o", page)
        print(f"  the page has {page.stat().st_size / 1e6:.1f} MB")
        cost("compare", run)
        cost("compare", run, "--metric", "all")
        cost("compare", run, "--tails", "--as-published")


if __name__ == "__main__":
    main()
