"""Whole runs on namespaces: to a report, through kills and Ctrl-C, and with things that break."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from planewise.errors import PlanewiseError
from planewise.measure.station import Place, Station
from planewise.measure.trials.applications import REDIS
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.load_one_process import Generator
from planewise.store.rundir import RunReader
from planewise.testbed.hosts import ledger, scratch
from planewise.testbed.hosts.host import LocalHost, find_probe
from tests.command import UNREPORTED, in_this_process, planewise
from tests.linux.testbeds import here

DESIGN = """\
title: tiny
factors: {plane: [veth, bridge], load_type: [none, network], background_guests: 2}
rtt: {packets: 50}
sweep: {offered_pps: [5000, 10000], duration_s: 0.1}
blocks: 2
"""
TRIALS = 2 * 2 * 3 * 2


@pytest.fixture
def design(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(DESIGN)
    return path


def nothing_is_left() -> bool:
    left = (*ledger.leftovers(), *scratch.leftovers())
    print("left behind:", left)
    return not left


def test_a_design_runs_to_a_recommendation_and_a_report(design: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    finished = planewise("run", design, "--out", out, "--json")
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert (answer["status"], answer["trials_done"], answer["trials_failed"]) == ("done", TRIALS, 0)
    assert "<html" in (out / "report.html").read_text()
    assert (out / "recommendation.json").exists()
    trials = RunReader(out).trials()
    assert len(trials) == TRIALS
    for trial in trials:
        assert trial.counts is not None
        assert trial.counts.sent == trial.counts.received + trial.counts.lost
        assert abs(sum(trial.cpu["shared"].values()) - 1) < 0.02
        if trial.kind == "rtt":
            assert {"rtt_user", "rtt_kernel", "overhead", "response"} <= set(trial.latency)
            packets = RunReader(out).packets(trial)
            assert packets is not None
            assert packets.height == 50
    assert nothing_is_left()


def test_quick_compares_the_planes_of_this_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planewise.testbed.planes.planes_of", lambda _: ["veth", "bridge"])
    monkeypatch.setattr("planewise.pipeline.QUICK_BLOCKS", 2)
    out = tmp_path / "run"
    options = ("--minutes", "30s", "--out", out, "--json")
    code, told, said = in_this_process(capsys, monkeypatch, "quick", *options)
    assert code == 0, said
    answer = json.loads(told)
    assert (answer["status"], answer["trials_failed"]) == ("done", 0)
    trials = RunReader(out).trials()
    assert {str(trial.cell["plane"]) for trial in trials} == {"veth", "bridge"}
    assert {str(trial.cell["load_type"]) for trial in trials} == {"none", "cpu", "network"}
    assert "<html" in (out / "report.html").read_text()
    assert nothing_is_left()


@pytest.mark.parametrize(
    "measured",
    [
        "rtt: {packets: 20}",
        "sweep: {offered_pps: [5000], duration_s: 0.1}",
        "sweep: {loads: 4}",
    ],
)
def test_a_plane_that_passes_nothing_ends_a_run_with_where_the_frames_were_last_counted(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    measured: str,
) -> None:
    design, out, routers = tmp_path / "broken.yaml", tmp_path / "run", set[str]()
    design.write_text(f"factors: {{plane: routed}}\n{measured}\nblocks: 1\n")

    def broken(station: Station) -> Station:
        ends = {end.netns for end in station.ends.values()}
        points = {p.netns for p in station.counter_points if p.host == "responder"}
        (router,) = points - ends
        sysctl = ("sysctl", "-qw", "net.ipv4.ip_forward=0")
        subprocess.run(["ip", "netns", "exec", router, *sysctl], check=True)
        routers.add(router)
        return station

    monkeypatch.setattr(Station, "__enter__", broken)
    code, _, said = in_this_process(capsys, monkeypatch, "run", design, "--out", out)

    said = " ".join(said.split())
    (router,) = routers
    assert code == 1
    assert re.search(r"error: (pilot on routed|routed idle, block 1): nothing arrived at", said)
    assert f"@{router}" in said
    assert f"`ip netns exec {router} ip route get" in said
    assert not out.exists() or RunReader(out).info.status == "failed"
    assert nothing_is_left()


def test_an_applications_response_is_measured_beside_its_networks(tmp_path: Path) -> None:
    if shutil.which(REDIS) is None:
        pytest.skip(f"there is no {REDIS} here; `scripts/setup test` lends one")
    design = tmp_path / "redis.yaml"
    design.write_text(
        "factors: {plane: [veth, macvlan], size_bytes: 128, protocol: [icmp, redis]}\n"
        "rtt: {packets: 300}\n"
        "blocks: 3\n"
    )
    out = tmp_path / "run"
    finished = planewise("run", design, "--out", out, "--json", report=False)
    assert finished.returncode == 0, finished.stderr
    trials = RunReader(out).trials()
    assert len(trials) == 12
    for trial in trials:
        asked = trial.cell["protocol"] == "redis"
        assert trial.counts is not None
        assert trial.counts.received == 300
        assert ("rtt_kernel" in trial.latency) is not asked
        assert {"rtt_kernel", "overhead", "response"} <= set(trial.not_measurable) or not asked
    compared = planewise("compare", out)
    assert "at 1 kpps, answered by Redis" in compared.stdout
    assert nothing_is_left()


def test_connections_are_timed_beside_load_and_compared(tmp_path: Path) -> None:
    path, out = tmp_path / "connections.yaml", tmp_path / "run"
    path.write_text(
        "factors: {plane: [veth, bridge], load_type: [none, network], background_guests: 2}\n"
        "connect: {count: 50, per_s: 500}\nblocks: 2\n"
    )
    finished = planewise("run", path, "--out", out, "--json")
    assert finished.returncode == 0, finished.stderr
    trials = RunReader(out).trials()
    assert [trial.kind for trial in trials] == ["other"] * 8
    for trial in trials:
        figures = {name: figure.value for name, figure in trial.figures.items()}
        assert 0 < figures["connect"] <= figures["connect_p99"]
        assert figures["connect_failed"] == 0
        assert (trial.background is None) == (trial.cell["load_type"] == "none")
    assert "Other measurements" in (out / "report.html").read_text()
    compared = planewise("compare", out, "--metric", "connect", "--json")
    (family,) = json.loads(compared.stdout)["families"]
    assert family["metric"] == "connect"
    assert nothing_is_left()


def test_connections_that_nobody_takes_are_counted_and_said() -> None:
    argv = [find_probe(), "connect", "127.0.0.1:9", "--count", "3", "--rate", "1000"]
    said = json.loads(subprocess.run(argv, capture_output=True, check=True, timeout=20).stdout)
    assert (said["made"], said["failed"], said["time"]) == (0, 3, None)
    assert "refused" in said["why"]
    taken = subprocess.run(
        [find_probe(), "accept", "--listen", "198.18.255.1:7000"], capture_output=True, text=True,
        timeout=20, check=False,
    )  # fmt: skip
    assert taken.returncode != 0
    assert "none of this machine's" in taken.stderr


def test_stamp_round_trips_are_taken_apart_at_frames_of_any_size(tmp_path: Path) -> None:
    design = tmp_path / "stamp.yaml"
    design.write_text(
        "factors: {plane: [bridge], size_bytes: [128, 9000], protocol: stamp}\n"
        "rtt: {packets: 20}\n"
        "blocks: 1\n"
    )
    finished = planewise("run", design, "--out", tmp_path / "run", report=False)
    assert finished.returncode == 0, finished.stderr
    trials = RunReader(tmp_path / "run").trials()
    assert sorted(trial.cell["size_bytes"] for trial in trials) == [128, 9000]
    for trial in trials:
        assert trial.counts is not None
        assert trial.counts.received > 0
        assert trial.latency["overhead"].count == trial.counts.received
        assert trial.latency["response"].count == trial.counts.received


def test_a_dry_run_prints_the_plan_and_makes_nothing(design: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    finished = planewise("run", design, "--out", out, "--dry-run", "--json")
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout)["trials"] == TRIALS
    assert not out.exists()


def test_a_run_killed_at_a_random_moment_is_cleaned_up_and_resumed_whole(
    design: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        [*UNREPORTED, "run", design, "--out", out],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 100
        enough = random.Random(os.getpid()).randrange(1, TRIALS - 2)
        while time.monotonic() < deadline and _lines(out) < enough:
            assert process.poll() is None, process.stderr.read() if process.stderr else ""
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
        if process.stderr:
            process.stderr.close()
    before = _lines(out)
    assert 0 < before < TRIALS
    assert planewise("clean").returncode == 0
    assert nothing_is_left()
    finished = planewise("run", "--resume", out, "--json", report=False)
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert answer["trials_done"] == TRIALS - before
    trials = RunReader(out).trials()
    assert len(trials) == TRIALS
    assert len({trial.trial for trial in trials}) == TRIALS
    assert nothing_is_left()


def _lines(out: Path) -> int:
    file = out / "trials.jsonl"
    return file.read_bytes().count(b"\n") if file.exists() else 0


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(design: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = subprocess.Popen(
        [*UNREPORTED, "run", design, "--out", out],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and _lines(out) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    said, complained = process.communicate(timeout=60)
    assert "Traceback" not in complained
    assert f"--resume {out}" in said.replace("\n", " ")
    assert process.returncode == 1
    info = RunReader(out).info
    assert info.status == "interrupted"
    assert len(RunReader(out).trials()) >= 3
    assert nothing_is_left()


def test_an_unknown_plane_is_refused_with_a_suggestion(design: Path, tmp_path: Path) -> None:
    design.write_text(DESIGN.replace("bridge", "brigde"))
    finished = planewise("run", design, "--out", tmp_path / "run")
    assert finished.returncode == 2
    assert "brigde" in finished.stderr
    assert "did you mean bridge" in finished.stderr
    assert "Traceback" not in finished.stderr
    assert not (tmp_path / "run").exists()


def test_a_disk_that_fills_up_stops_the_run_and_keeps_the_finished_trials(tmp_path: Path) -> None:
    """On a real, tiny file system: a tmpfs of 100 KiB, in a mount namespace of its own."""
    design = tmp_path / "tiny.yaml"
    design.write_text(DESIGN.replace("packets: 50", "packets: 700"))
    small = tmp_path / "small"
    small.mkdir()
    script = (
        f"mount -t tmpfs -o size=100k tmpfs {small} && "
        f"{sys.executable} -m planewise run {design} --out {small}/run; code=$?; "
        f"cat {small}/run/trials.jsonl > {tmp_path}/kept; exit $code"
    )
    finished = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert finished.returncode == 1, finished.stderr
    assert "no space left" in finished.stderr
    assert "--resume" in finished.stderr
    assert "Traceback" not in finished.stderr
    kept = (tmp_path / "kept").read_text().splitlines()
    assert kept
    assert all(json.loads(line)["trial"] for line in kept)
    assert nothing_is_left()


def test_an_interface_that_vanishes_during_a_trial_is_named() -> None:
    with here("veth") as testbed:
        host = LocalHost("generator")
        try:
            generator = Generator(host)
            station = Station(
                testbed.hosts,
                {},
                path=testbed.trial_path(),
                counter_points=testbed.counter_points,
                generator=generator,
            )
            trial = LoadTrial("vanishing", 5000, 64, 2.0)
            generator.max_pps(64)
            guest = testbed.main("responder")
            remove = ["ip", "link", "delete", guest.interface]
            timer = threading.Timer(0.7, lambda: host.run(remove, netns=guest.netns))
            timer.start()
            with pytest.raises(PlanewiseError, match=guest.interface):
                station.measure(trial, Place("vanishing", {}, 0, 0), lambda _: None)
            timer.join()
        finally:
            host.close()
    assert nothing_is_left()
