"""A day of 100 000 guests on 2000 hosts, simulated in two shards: CPU time and memory.

    python benches/simulate_fleet.py [--hosts N] [--seconds S] [--policy NAME] [--shards N]

Each host has 8 VFs and 50 guests: steady ones, bursts, bursts of which few are very long, and rates
that rise and fall over the day. The shards run at the same time, as `planewise alloc simulate
--shard I/N`; their output is then merged. CPU time is user and system time of each shard and of all
that it started (getrusage(2)), so it says little of what else runs; memory is the largest resident
set of any of these processes. Figures only: nothing passes or fails.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from resource import struct_rusage

HOST = """
vfs = 8
duration_s = {seconds}
seed = 1
hosts = {hosts}
[[groups]]
name = "steady"
guests = 10
traffic.constant = 5_000
[[groups]]
name = "bursts"
guests = 20
traffic.bursts = {{ low_pps = 500, high_pps = 50_000, apart_s = 120, burst_s = 20 }}
[[groups]]
name = "heavy-tail"
guests = 10
traffic.heavy-tail = {{ low_pps = 500, high_pps = 50_000, apart_s = 120, least_s = 5, shape = 1.3 }}
[[groups]]
name = "diurnal"
guests = 10
traffic.diurnal = {{ low_pps = 500, high_pps = 50_000, period_s = 86_400 }}
"""
GUESTS = 50


def main() -> None:
    """Prints a line for each shard and for all, and the merged table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hosts", type=int, default=2000)
    parser.add_argument("--seconds", type=int, default=86_400)
    parser.add_argument("--policy", default="benefit")
    parser.add_argument("--shards", type=int, default=2)
    options = parser.parse_args()
    print(f"{options.hosts * GUESTS} guests on {options.hosts} hosts for {options.seconds} s")
    with tempfile.TemporaryDirectory() as name:
        scenario = Path(name, "fleet.toml")
        scenario.write_text(HOST.format(seconds=options.seconds, hosts=options.hosts))
        simulate = ["planewise", "alloc", "simulate"]
        play = [*simulate, "--file", str(scenario), "--policy", options.policy]
        shards = range(1, options.shards + 1)
        outputs = [Path(name, f"{shard}.json") for shard in shards]
        commands = [[*play, "--shard", f"{shard}/{options.shards}"] for shard in shards]
        played = run(commands, outputs)
        merge = [*simulate, *(word for output in outputs for word in ("--merge", str(output)))]
        table = Path(name, "table")
        (merged,) = run([merge], [table])
        text = table.read_text()
    for shard, used in zip(shards, played, strict=True):
        print(f"shard {shard}: {cpu_s(used):.0f} s of CPU time, {mib(used):.0f} MiB")
    print(f"merge: {cpu_s(merged):.1f} s of CPU time, {mib(merged):.0f} MiB")
    total_s = sum(map(cpu_s, played))
    intervals = options.hosts * GUESTS * options.seconds
    print(
        f"all: {total_s + cpu_s(merged):.0f} s of CPU time, "
        f"{intervals / total_s / 1e6:.1f} million guest-intervals a second of the shards'; "
        f"a CPU for each shard: {(max(map(cpu_s, played)) + cpu_s(merged)) / 60:.1f} min; "
        f"shards together {sum(map(mib, played)):.0f} MiB"
    )
    print(text, end="")


def run(commands: Sequence[Sequence[str]], outputs: Sequence[Path]) -> list[struct_rusage]:
    """Runs commands at the same time, each into its file: what each used."""
    pids = []
    for argv, output in zip(commands, outputs, strict=True):
        to_file = [(os.POSIX_SPAWN_OPEN, 1, str(output), os.O_WRONLY | os.O_CREAT, 0o600)]
        pids.append(os.posix_spawnp(argv[0], list(argv), os.environ, file_actions=to_file))
    waited = [os.wait4(pid, 0) for pid in pids]
    if any(status for _, status, _ in waited):
        raise SystemExit(1)
    return [used for *_, used in waited]


def cpu_s(used: struct_rusage) -> float:
    """User and system time."""
    return used.ru_utime + used.ru_stime


def mib(used: struct_rusage) -> float:
    """Largest resident set."""
    return used.ru_maxrss / 1024


if __name__ == "__main__":
    main()
