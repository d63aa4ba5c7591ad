"""How long `planewise judge` takes for a folder of results, start of Python included, on one core.

    python benches/judge_files.py DIR [--repeat 5]

Prints figures and never fails on time. docs/SPECIFICATION.md has the promise.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path


def measure(files: list[Path]) -> tuple[float, float, int]:
    """Wall time [s], CPU time [s] and number of curves of one `planewise judge --json`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "planewise", "judge", "--json", *map(str, files)],
        stdout=subprocess.PIPE,
        check=True,
    )
    wall_s = time.monotonic() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall_s, cpu_s, len(json.loads(done.stdout))


def main() -> None:
    """Measures and prints a line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    files = sorted(options.directory.glob("*.txt"))
    if not files:
        sys.exit(f"no .txt files in {options.directory}")
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    runs = [measure(files) for _ in range(options.repeat)]
    wall_s, cpu_s, curves = (statistics.median(values) for values in zip(*runs, strict=True))
    print(
        f"{curves:.0f} curves of {len(files)} files on one core: {wall_s:.2f} s wall, "
        f"{cpu_s:.2f} s CPU (median of {options.repeat}; start of Python included)"
    )


if __name__ == "__main__":
    main()
