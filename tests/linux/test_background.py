"""pw-probe's background load: bursts, what takes them, busy CPUs; none outlives its owner."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from planewise.testbed.hosts.host import find_probe
from tests.linux.probe import Network, Running, cable, eventually, run

pytestmark = pytest.mark.linux


def test_a_sink_counts_what_a_blast_sends(netns_pair: Network) -> None:
    a, b = netns_pair.a, netns_pair.b
    with Running("sink", "--listen", "[::]:5000", netns=b.netns) as sink:
        sink.wait_ready()
        load = ("--rate", "2000", "--burst", "10", "--size", "100", "--duration", "0.5")
        to = {a.ipv4: f"{b.ipv4}:5000", a.ipv6: f"[{b.ipv6}]:5000"}
        blasts = {
            source: run("blast", "--to", address, *load, netns=a.netns).output
            for source, address in to.items()
        }
        counted = sink.stop().output
    sent = {source: blast["sent"] for source, blast in blasts.items()}
    for blast in blasts.values():
        # On a busy machine not every burst leaves in time; none is left out without a word.
        assert blast["sent"] + blast["skipped"] == 1000
        assert blast["refused"] == 0
    # The kernel loses some on the way; nothing is counted that was not sent.
    assert max(sent.values()) < counted["packets"] + counted["dropped"] <= sum(sent.values())
    assert counted["payload_bytes"] == 100 * counted["packets"]
    assert set(counted["sources"]) == {a.ipv4, a.ipv6}
    for address, source in counted["sources"].items():
        assert source["packets"] <= sent[address]
        assert source["payload_bytes"] == 100 * source["packets"]
    assert sum(one["packets"] for one in counted["sources"].values()) == counted["packets"]


def test_a_blast_says_what_it_skipped_while_it_stood_still(netns_pair: Network) -> None:
    to = f"{netns_pair.b.ipv4}:5000"
    load = ("--rate", "2000", "--burst", "10", "--size", "100", "--duration", "1")
    with Running("blast", "--to", to, *load, netns=netns_pair.a.netns) as blast:
        time.sleep(0.3)
        blast.process.send_signal(signal.SIGSTOP)
        time.sleep(0.4)
        blast.process.send_signal(signal.SIGCONT)
        output = blast.finish().output
    assert output["skipped"] >= 500
    assert output["sent"] + output["refused"] + output["skipped"] == 2000


def test_a_burn_ends_itself_and_uses_no_more_than_it_was_told(netns_pair: Network) -> None:
    output = run("burn", "--load", "0.2", "--duration", "0.5").output
    assert output["intended_load"] == 0.2
    assert 0 < output["achieved_load"] < 0.3
    assert output["interrupted"] is False


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.parametrize(
    "command",
    [
        ("burn", "--load", "0.01", "--duration", "60"),
        ("sink", "--listen", "127.0.0.1:0"),
        ("blast", "--to", "127.0.0.1:9", "--rate", "1"),
        ("cpu",),
        ("tap", "--point", "x=lo"),
    ],
    ids=lambda command: command[0],
)
def test_a_probe_started_with_its_parent_dies_with_it(
    netns_pair: Network, command: tuple[str, ...]
) -> None:
    start = (
        "import subprocess, sys\n"
        "null = subprocess.DEVNULL\n"
        "child = subprocess.Popen(sys.argv[1:], stdout=null, stderr=null)\n"
        "import time; time.sleep(0.3)\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    argv = [sys.executable, "-c", start, find_probe(), *command, "--with-parent"]
    with subprocess.Popen(
        ["ip", "netns", "exec", netns_pair.a.netns, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert alive(child)
        parent.kill()
        parent.wait()
    try:
        eventually(lambda: not alive(child))
    finally:
        if alive(child):
            os.kill(child, 9)


CPUACCT = Path("/sys/fs/cgroup/cpuacct")


def scheduled_s() -> tuple[float, float]:
    """CPU time of all tasks in user mode and in the kernel [s], as the scheduler charged control
    groups with it in nanoseconds: another account than the clock ticks of /proc/stat. Zeros where
    none count."""
    if (CPUACCT / "cpuacct.usage_user").exists():  # version 1: the root's are those of all tasks
        user, system = (
            int((CPUACCT / f"cpuacct.usage_{mode}").read_text()) / 1e9 for mode in ("user", "sys")
        )
        return user, system
    # Version 2: the root's own are copied from /proc/stat, those of its children are not.
    totals = [0.0, 0.0]
    for file in Path("/sys/fs/cgroup").glob("*/cpu.stat"):
        told = dict(line.split() for line in file.read_text().splitlines())
        totals = [
            total + int(told[f"{mode}_usec"]) / 1e6
            for total, mode in zip(totals, ("user", "system"), strict=True)
        ]
    return totals[0], totals[1]


def ran_s(processes: tuple[Running, ...]) -> float:
    """CPU time that the processes' threads had so far [s], from the scheduler's nanoseconds."""
    threads = (
        thread
        for one in processes
        for thread in Path(f"/proc/{one.process.pid}/task").glob("*/schedstat")
    )
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


@dataclass(frozen=True)
class Told:
    """What several accounts have of the same busy CPUs."""

    by_mpstat: dict[str, float] | None
    """In percent; None where there is none."""
    meanwhile: dict[str, float]
    """What the probe told of the same 4 s."""
    long: dict[str, float]
    """What it told of `WINDOW_S`."""
    charged_s: tuple[float, float]
    """To control groups meanwhile, in user mode and in the kernel."""
    others_s: float
    """CPU time of processes that are not of this test."""
    took_s: float


# A busy tick is one of a hundred a second: in 4 s on two CPUs half a load is told to 2 points or
# so, now and then not.
WINDOW_S = 10.0


@cache
def told(load: float, rate: str) -> Told:
    """Keeps the CPUs busy, and asks all at once: each of them takes its time."""
    cpus, by_mpstat = str(os.cpu_count()), None
    look = ("cpu", "--duration")
    with cable() as network:
        a, b = network.a.netns, network.b
        burn = ("burn", "--load", str(load), "--threads", cpus, "--duration", "15")
        ping = ("ping", b.ipv4, "--rate", rate, "--duration", "15")
        with Running(*burn, netns=a) as burning, Running(*ping, netns=a) as pinging:
            began, before, mine = time.monotonic(), scheduled_s(), ran_s((burning, pinging))
            with (
                Running(*look, f"{WINDOW_S:g}", netns=a) as long,
                Running(*look, "4", netns=a) as own,
            ):
                if shutil.which("mpstat") is not None:
                    argv = ["mpstat", "-o", "JSON", "4", "1"]
                    printed = subprocess.run(argv, stdout=subprocess.PIPE, timeout=60, check=True)
                    (host,) = json.loads(printed.stdout)["sysstat"]["hosts"]
                    by_mpstat = host["statistics"][0]["cpu-load"][0]
                meanwhile, ours = (one.finish().output["cpu"]["all"] for one in (own, long))
            took_s, after = time.monotonic() - began, scheduled_s()
            others_s = sum(after) - sum(before) - (ran_s((burning, pinging)) - mine)
            burning.stop()
    charged_s = (after[0] - before[0], after[1] - before[1])
    return Told(by_mpstat, meanwhile, ours, charged_s, others_s, took_s)


LOADS = pytest.mark.parametrize(
    ("load", "rate"),
    [
        *((0.1, "1M"), (0.9, "1k")),
        *(
            pytest.param(*one, marks=pytest.mark.long)
            for one in ((0.1, "1k"), (0.5, "1k"), (0.5, "1M"), (0.9, "1M"))
        ),
    ],
)


@LOADS
def test_cpu_time_by_mode_agrees_with_mpstat_within_two_points(load: float, rate: str) -> None:
    theirs = told(load, rate).by_mpstat
    if theirs is None:
        pytest.skip("mpstat is not here; `scripts/setup test` installs it (sysstat)")
    ours = dict(told(load, rate).meanwhile)
    told_of = 1 - ours.pop("unaccounted")  # mpstat's shares are of this
    for mode, share in ours.items():
        assert abs(100 * share / told_of - theirs[mode]) <= 2, (mode, ours, theirs)
    assert 1 - ours["idle"] >= load - 0.02


@LOADS
def test_cpu_time_by_mode_agrees_with_what_control_groups_were_charged_within_two_points(
    load: float, rate: str
) -> None:
    cpus, seen = os.cpu_count() or 1, told(load, rate)
    if not any(seen.charged_s):
        pytest.skip("no control groups count CPU time here")
    ours, took_s, others_s = seen.long, seen.took_s, seen.others_s
    user, system = (charged_s / cpus for charged_s in seen.charged_s)
    # The groups were charged a little longer than the probe looked: while it started and ended,
    # the CPUs may have done anything.
    beside_s, points_s = took_s - WINDOW_S, 0.02 * WINDOW_S
    ours_s = WINDOW_S * (ours["usr"] + ours["nice"])
    kernel_s = WINDOW_S * sum(ours[mode] for mode in ("sys", "irq", "soft"))
    # Time that a hypervisor took is in the account of the task that it was taken from.
    stolen_s = WINDOW_S * ours["steal"]
    agree = all(
        theirs_s - beside_s - points_s - stolen_s <= mode_s <= theirs_s + points_s
        for theirs_s, mode_s in ((user, ours_s), (system, kernel_s))
    )
    if not agree and others_s > 0.1 * took_s * cpus:
        pytest.skip(
            f"other processes had {others_s:.1f} s of CPU time meanwhile: turns in step with the"
            " clock's tick, which /proc/stat counts, and the scheduler's nanoseconds differ"
        )
    assert agree, seen
