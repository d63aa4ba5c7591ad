"""A whole fleet with made-up measurements: killed half way, resumed, and judged from its directory.

Each pair's run directory is written as a measurement's would be, with times to which a node's own
spread (1.5 %) and three planted slow nodes (30 %) add. The coordinator is the real one; it is ended
by kill -9 and started again.

    python -m benches.fleet_whole DIRECTORY [--nodes 1000] [--meetings 4] [--seed 1]
"""

from __future__ import annotations

import argparse
import math
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
from tests.unit import made_up_run
from tests.unit.test_fleet import DESIGN, MINIMAL

from planewise.fleet import run as fleet_run
from planewise.fleet.analysis import find
from planewise.fleet.plan import Fleet, FleetPlan, draw_pairs
from planewise.fleet.tournament import Match
from planewise.store.rundir import RUN_FILE

SLOW = (7, 101, 250)
_SPREAD = 0.015
_SLOWER = 0.3


def _plan(nodes: int, meetings: int, seed: int) -> FleetPlan:
    return FleetPlan.model_validate(
        {
            "nodes": tuple(f"local:n{number}" for number in range(nodes)),
            "pairs": draw_pairs(nodes, nodes * meetings // 2, seed),
            "seed": seed,
            "design": DESIGN.model_dump(mode="json"),
        }
    )


def coordinate(directory: Path) -> None:
    """Measures what is not measured yet, by drawing it."""
    fleet = Fleet.open(directory)
    rng = np.random.default_rng(fleet.plan.seed)
    adds = _SPREAD * rng.standard_normal(len(fleet.plan.nodes))
    adds[list(SLOW)] += math.log(1 + _SLOWER)

    def measure(fleet: Fleet, match: Match, stop: threading.Event) -> str:
        slower = math.exp(adds[match.sender] + adds[match.responder])
        # What a kill cut short: a measurement would go on with it, this is drawn anew.
        shutil.rmtree(fleet.directory(match), ignore_errors=True)
        made_up_run.write(fleet.directory(match), replace(MINIMAL, seed=match.index, slower=slower))
        return ""

    fleet_run.run(fleet, measure, lambda text: None)


def main() -> None:
    """Prints what was found, and what the kill cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--meetings", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--coordinate", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    directory: Path = options.directory
    if options.coordinate:
        coordinate(directory)
        return
    fleet = Fleet.create(directory, _plan(options.nodes, options.meetings, options.seed))
    worker = [sys.executable, "-m", "benches.fleet_whole", str(directory), "--coordinate"]
    begun = time.monotonic()
    with subprocess.Popen(worker) as process:
        half = fleet.directory(fleet.matches[len(fleet.matches) // 2])
        while not half.exists():
            if process.poll() is not None:
                raise SystemExit("the coordinator ended before half of the pairs were measured")
            time.sleep(0.01)
        process.kill()
    states = {match: fleet.state(match) for match in fleet.matches}
    done = [match for match, state in states.items() if state == "done"]
    before = {match: (fleet.directory(match) / RUN_FILE).stat().st_mtime_ns for match in done}
    subprocess.run(worker, check=True)
    again = [
        match
        for match, moment in before.items()
        if (fleet.directory(match) / RUN_FILE).stat().st_mtime_ns != moment
    ]
    left = [match for match in fleet.matches if fleet.state(match) != "done"]
    print(
        f"{options.nodes} nodes, {len(fleet.matches)} pairs: killed with {len(done)} done; "
        f"resumed: {len(again)} of them measured again, {len(left)} left; "
        f"{time.monotonic() - begun:.0f} s"
    )
    begun = time.monotonic()
    named = {outlier.node for outlier in find(fleet).outliers}
    planted = {f"local:n{number}" for number in SLOW}
    print(
        f"report in {time.monotonic() - begun:.0f} s: {len(planted & named)} of {len(planted)} "
        f"planted slow nodes named, {len(named - planted)} others"
    )


if __name__ == "__main__":
    main()
