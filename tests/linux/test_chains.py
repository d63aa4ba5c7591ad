"""Service chains for real: vhost-user and the kernel, from a design to the report, and no trace."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal

import pytest

from planewise.errors import PlanewiseError
from planewise.measure.trials.applications import IPERF
from planewise.store.models import ChainResult, TrialRecord
from planewise.store.rundir import RunReader
from planewise.testbed.chains import dpdk
from planewise.testbed.chains.built import BuiltChain
from planewise.testbed.chains.forwarders import Pollers
from planewise.testbed.chains.functions import MEMORY_BYTES, Function, command
from planewise.testbed.chains.model import GENERATOR, SWITCH, Chain, assign_cpus
from planewise.testbed.hosts import hugepages, netns
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.ledger import leftovers, token_of
from planewise.testbed.model import GUEST_INTERFACE, Forwarder
from planewise.testbed.switches.openvswitch import appctl
from tests.command import planewise
from tests.kpis import kpis

from .testbeds import chain_shortage, local_chain

pytestmark = pytest.mark.linux

LIMIT_S = 400
"""Far more than any of these takes on a machine that has other work."""


def needs(plane: str, forwarder: Forwarder | Literal[""] = "") -> None:
    """Skips, with the reason, where this machine cannot build such chains."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("a chain needs two CPUs")
    chain = Chain(plane, "east-west", 2, forwarder=forwarder)
    if reason := chain_shortage(chain):
        pytest.skip(f"{plane}: {reason}")


def design(path: Path, factors: str, part: str) -> Path:
    path.write_text(f"factors: {{{factors}}}\n{part}\nblocks: 1\n")
    return path


def await_(what: Callable[[], bool], why: str) -> None:
    deadline = time.monotonic() + LIMIT_S / 2
    while not what():
        assert time.monotonic() < deadline, why
        time.sleep(0.05)


def huge_pages() -> int:
    return int(hugepages.POOL.read_text())


def results(out: Path) -> dict[tuple[object, ...], ChainResult]:
    """By path, number of functions and frame size."""
    found = {}
    for trial in RunReader(out).trials():
        assert trial.status == "done", trial.reason
        assert trial.chain is not None
        key = (trial.cell["path"], trial.cell["vnfs"], trial.cell["size_bytes"])
        found[key] = trial.chain
    return found


def check(trial: TrialRecord) -> None:
    """What holds of every trial of a chain, on whatever machine."""
    chain = trial.chain
    assert chain is not None
    assert trial.counts is not None
    assert trial.counts.sent == trial.counts.received + trial.counts.lost
    assert [one.name for one in chain.vnfs] == [
        f"vnf{number + 1}" for number in range(int(trial.cell["vnfs"]))
    ]
    assert all(one.tx_packets > 0 for one in chain.vnfs)
    assert chain.tx_pps == pytest.approx(sum(one.tx_pps for one in chain.vnfs))
    assert chain.delivered_pps > 0
    assert chain.tx_bps == pytest.approx(8 * (chain.frame_bytes - 4) * chain.tx_pps)
    assert chain.why
    frames = chain.frames
    assert frames is not None
    assert frames.sent >= trial.counts.sent
    assert frames.sent == frames.received + sum(frames.lost.values())
    tasks = {task for core in chain.cores for task in core.tasks}
    assert {one.name for one in chain.vnfs} < tasks
    if trial.cell["size_bytes"] != "imix":
        assert chain.frame_bytes == pytest.approx(float(trial.cell["size_bytes"]), abs=0.01)


def test_a_vhost_user_chain_goes_from_a_design_to_the_report_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    needs("vhost-user")
    before = huge_pages()
    path = design(
        tmp_path / "chains.yaml",
        "plane: vhost-user, guest: process, path: [north-south, east-west], vnfs: 2, "
        "size_bytes: [64, imix]",
        "chain: {duration_s: 1, warmup_s: 0.2}",
    )
    out = tmp_path / "run"
    finished = planewise("run", path, "--out", out, "--json")
    assert finished.returncode == 0, finished.stderr
    trials = RunReader(out).trials()
    assert len(results(out)) == len(trials) == 4
    for trial in trials:
        check(trial)
    # In a chain what the last function sends went through the one before.
    through = results(out)["east-west", 2, 64]
    assert through.vnfs[0].tx_packets > 0
    assert 64 < results(out)["north-south", 2, "imix"].frame_bytes < 1518
    samples = kpis(out, trials[0])
    assert samples
    assert set(samples[0].vnfs) == {"vnf1", "vnf2"}
    assert samples[0].total.tx_pps == pytest.approx(
        sum(one.tx_pps for one in samples[0].vnfs.values())
    )
    page = (out / "report.html").read_text()
    assert "Throughput of chains" in page
    assert "Frames sent, returned and lost" in page
    compared = planewise("compare", out, "--factor", "path", "--json")
    assert compared.returncode == 0, compared.stderr
    assert "transmitted" in compared.stdout
    assert huge_pages() == before
    assert not [line for line in mine() if str(tmp_path) in line]


def commands() -> dict[int, str]:
    """Command lines of all processes, by id."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, UnicodeDecodeError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                found[int(entry.name)] = line
    return found


def mine() -> list[str]:
    """Command lines of all processes."""
    return list(commands().values())


def test_a_killed_chain_dies_at_once_and_its_huge_pages_come_back(tmp_path: Path) -> None:
    needs("vhost-user")
    if not os.access(hugepages.POOL, os.W_OK):
        pytest.skip("only root takes huge pages, and there are some free here")
    path = design(
        tmp_path / "long.yaml",
        "plane: vhost-user, guest: process, vnfs: 1, size_bytes: 64",
        "chain: {duration_s: 600}",
    )
    out = tmp_path / "run"
    before = huge_pages()
    # What it makes in its scratch directories is found by the directory's name.
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "planewise", "run", str(path), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(scratch)},
    )
    try:
        await_(
            lambda: (
                process.poll() is not None or bool(kpis(out))
                if (out / "run.json").exists()
                else process.poll() is not None
            ),
            "no second was measured",
        )
        said = process.stderr.read().decode() if process.poll() is not None else ""  # type: ignore[union-attr]
        assert process.poll() is None, said
        assert huge_pages() > before
        assert len([line for line in mine() if str(scratch) in line]) >= 3
    finally:
        process.kill()
        process.wait()
    await_(
        lambda: not [line for line in mine() if str(scratch) in line],
        "a process of the chain outlived the kill",
    )
    await_(lambda: huge_pages() == before, "huge pages did not come back")
    left = [name for name in netns.names() if token_of(name)]
    cleaned = planewise("clean", "--json")
    assert cleaned.returncode == 0, cleaned.stderr
    answer = json.loads(cleaned.stdout)
    removed = {name for one in answer["leftovers"] for name in one["namespaces"]}
    assert removed & set(left)
    assert not removed & set(netns.names())


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose name leaves room for those of sockets (108 bytes, unix(7))."""
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as made:
        yield Path(made)


KILLS = pytest.mark.skipif(
    not os.environ.get("PLANEWISE_CHAIN_KILLS"),
    reason="takes minutes: PLANEWISE_CHAIN_KILLS=10 kills so many runs at random moments",
)


@KILLS
def test_a_function_that_dies_in_a_trial_fails_that_trial_and_all_others_are_kept(
    tmp_path: Path, short: Path
) -> None:
    needs("vhost-user")
    path = design(
        tmp_path / "chains.yaml",
        "path: [north-south, east-west], vnfs: 2, size_bytes: 64",
        "functions: [{forwarder: testpmd, plane: vhost-user}]\n"
        "chain: {duration_s: 4, warmup_s: 0, uplink: af_packet, offered_pps: 1000}",
    )
    out = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-m", "planewise", "run", str(path), "--out", str(out)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(short)},
    ) as process:
        await_(lambda: bool(kpis(out)) if (out / "run.json").exists() else False, "none")
        (first,) = {one.trial for one in kpis(out)}
        functions = [
            pid
            for pid, line in commands().items()
            if line.startswith("dpdk-testpmd") and str(short) in line
        ]
        os.kill(min(functions), signal.SIGKILL)
        process.wait(LIMIT_S)
    trials = {one.trial: one for one in RunReader(out).trials()}
    assert len(trials) == 2
    assert re.search(r"vnf[12].* ended while it was measured", trials.pop(first).reason or "")
    (other,) = trials.values()
    assert other.status == "done", other.reason
    check(other)
    assert not list(short.iterdir())


@KILLS
@pytest.mark.timeout(3000)
def test_runs_that_are_killed_at_random_moments_leave_nothing_that_clean_does_not_remove(
    tmp_path: Path, short: Path
) -> None:
    needs("vhost-user")
    kills = int(os.environ.get("PLANEWISE_CHAIN_KILLS", "0"))
    functions = [
        "{forwarder: testpmd, plane: vhost-user}",
        "{forwarder: testpmd, guest: container, plane: vhost-user}",
        "{forwarder: kernel, plane: bridge}",
    ]
    path = design(
        tmp_path / "chains.yaml",
        "path: [north-south, east-west], vnfs: 2, size_bytes: 64",
        f"functions: [{', '.join(functions)}]\n"
        "chain: {duration_s: 1, warmup_s: 0, uplink: af_packet, offered_pps: 1000}",
    )
    env = {**os.environ, "TMPDIR": str(short)}
    argv = [sys.executable, "-m", "planewise", "run", str(path), "--out"]
    begun = time.monotonic()
    whole = subprocess.run([*argv, tmp_path / "whole"], env=env, capture_output=True, check=False)
    assert whole.returncode == 0, whole.stderr.decode()
    takes_s, moments = time.monotonic() - begun, random.Random(20)
    pages = huge_pages()
    for number in range(kills):
        after_s = moments.uniform(0.1, 0.95) * takes_s
        with subprocess.Popen(
            [*argv, str(tmp_path / f"run{number}")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=env,
        ) as process:
            time.sleep(after_s)
            process.kill()
        said = f"killed after {after_s:.2f} s of {takes_s:.1f} s"
        await_(lambda: not [line for line in mine() if str(short) in line], said)
        cleaned = planewise("clean", "--json", TMPDIR=str(short))
        assert cleaned.returncode == 0, cleaned.stderr
        assert not leftovers(), said
        assert not list(short.iterdir()), said
    await_(lambda: huge_pages() == pages, "huge pages did not come back")


def test_four_containers_answer_while_twelve_streams_are_sent_to_them(tmp_path: Path) -> None:
    # Docker's containers together weigh as much as a single stream's generator.
    needs("vhost-user")
    if not shutil.which("dockerd"):
        pytest.skip("there is no dockerd on this machine")
    path = design(
        tmp_path / "chains.yaml",
        "path: north-south, vnfs: 4, size_bytes: imix",
        "functions: [{forwarder: testpmd, guest: container, plane: vhost-user}]\n"
        "chain: {duration_s: 1, warmup_s: 0.2, uplink: af_packet, offered_pps: 2000}",
    )
    out = tmp_path / "run"
    finished = planewise("run", path, "--out", out, report=False)
    assert finished.returncode == 0, finished.stderr
    (trial,) = RunReader(out).trials()
    assert trial.status == "done", trial.reason
    check(trial)


def test_functions_that_poll_and_that_route_are_fed_alike_in_one_run_both_ways(
    tmp_path: Path,
) -> None:
    needs("vhost-user")
    path = design(
        tmp_path / "chains.yaml",
        "path: [north-south, east-west], vnfs: 2, size_bytes: 512",
        "functions: [{forwarder: testpmd, plane: vhost-user}, {forwarder: kernel, plane: bridge}]\n"
        "chain: {duration_s: 1, warmup_s: 0.2, uplink: af_packet, offered_pps: 2000}",
    )
    out = tmp_path / "run"
    finished = planewise("run", path, "--out", out, "--json", report=False)
    assert finished.returncode == 0, finished.stderr
    trials = RunReader(out).trials()
    assert {one.cell["plane"] for one in trials} == {"vhost-user", "bridge"}
    assert len(trials) == 4
    for trial in trials:
        assert trial.status == "done", trial.reason
        check(trial)
        assert trial.chain is not None
        assert trial.chain.offered_pps == pytest.approx(2000, rel=0.2)
        sent = {one.name: one.tx_packets for one in trial.chain.vnfs}
        if trial.cell["path"] == "east-west":
            # Nothing enters the second function but what the first one sent.
            assert sent["vnf2"] <= 1.1 * sent["vnf1"]
        else:
            # The switch tells the functions' traffic apart.
            assert sent["vnf1"] == pytest.approx(sent["vnf2"], rel=0.5)


def test_the_switch_has_its_buffers_before_a_function_connects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It made them while the first connected, of all memory there was: the second was hung up on.
    needs("vhost-user")
    seen: list[str] = []
    connect = Pollers.connect

    def note_and_connect(pollers: Pollers, *arguments: Any) -> None:
        ask = appctl(pollers.directory, "netdev-dpdk/get-mempool-info")
        seen.append(pollers.state.host.run(ask).check().stdout.strip())
        connect(pollers, *arguments)
        seen.append(pollers.state.host.run(ask).check().stdout.strip())

    monkeypatch.setattr(Pollers, "connect", note_and_connect)
    chain = Chain("vhost-user", "east-west", 2)
    placement = assign_cpus((SWITCH, GENERATOR, *chain.names), os.sched_getaffinity(0), {})
    with local_chain(chain, placement, 1000.0) as testbed:
        assert testbed.read(busy=False).vnfs
    pools = {re.findall(r"^mempool <(\S+)>", one, re.MULTILINE)[0] for one in seen}
    assert len(pools) == 1, seen


def test_functions_that_never_connect_are_given_up_and_nothing_of_the_chain_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs("vhost-user")
    monkeypatch.setattr(dpdk, "_CONNECT_S", 0.5)
    monkeypatch.setattr(Pollers, "connect", lambda *_: None)
    namespaces, pages = set(netns.names()), huge_pages()
    chain = Chain("vhost-user", "north-south", 1)
    placement = assign_cpus((SWITCH, GENERATOR, *chain.names), os.sched_getaffinity(0), {})
    with (
        pytest.raises(PlanewiseError, match=r"Open vSwitch and the functions did not connect"),
        local_chain(chain, placement, 1000.0),
    ):
        pass
    assert set(netns.names()) <= namespaces
    assert huge_pages() == pages


def test_a_device_that_dpdk_has_no_driver_for_is_one_sentence(tmp_path: Path) -> None:
    needs("vhost-user")
    cpu = min(os.sched_getaffinity(0))
    with closing(LocalHost("here")) as here, hugepages.reserved(here, MEMORY_BYTES):
        chain = Chain("vf", "north-south", 1, forwarder="testpmd")
        argv = command(chain, "0000:00:00.0", cpu, "02:70:77:0f:00:01", "pw-unknown")
        function = Function(LocalHost("test"), str(tmp_path), "vnf1", argv)
        try:
            with pytest.raises(
                PlanewiseError, match=r"vnf1 \(dpdk-testpmd\) found no device: DPDK"
            ):
                function.await_prompt()
        finally:
            function.close()


def test_a_function_that_dies_is_named_and_all_of_its_chain_goes(tmp_path: Path) -> None:
    needs("vhost-user")
    pages, namespaces = huge_pages(), set(netns.names())
    chain = Chain("vhost-user", "east-west", 2)
    cpus = os.sched_getaffinity(0)
    placement = assign_cpus((SWITCH, GENERATOR, *chain.names), cpus, {})
    with local_chain(chain, placement, 1000.0, "af_packet") as testbed:
        testbed.start(64, 60.0)
        sent = testbed.read().vnfs["vnf2"].packets
        await_(lambda: testbed.read().vnfs["vnf2"].packets > sent, "no frame got through")
        frames = testbed.stop()
        assert frames is not None
        assert frames.sent > 0
        assert frames.sent == frames.received + sum(frames.lost.values())
        testbed.start(64, 60.0)
        os.kill(testbed._functions.pids[1], signal.SIGKILL)
        with pytest.raises(PlanewiseError, match=r"vnf1.* ended while it was measured"):
            await_(lambda: not testbed.read(), "a function that died was not missed")
    assert huge_pages() == pages
    assert set(netns.names()) <= namespaces


def test_functions_whose_interface_has_an_xdp_program_forward_by_it_on_either_switch(
    tmp_path: Path,
) -> None:
    needs("ovs", forwarder="xdp")
    # Each on another CPU: on the bridge the second is steered to its own.
    cpus = sorted(os.sched_getaffinity(0))[:2]
    path = design(
        tmp_path / "chains.yaml",
        "plane: [bridge, ovs], path: [north-south, east-west], vnfs: 2, size_bytes: 512",
        "functions: [{forwarder: xdp}]\nchain: {duration_s: 1, warmup_s: 0.2, offered_pps: 2000, "
        f"cpus: {{vnf: {cpus}}}}}",
    )
    out = tmp_path / "run"
    finished = planewise("run", path, "--out", out, "--json")
    assert finished.returncode == 0, finished.stderr
    trials = RunReader(out).trials()
    assert len(trials) == 4
    for trial in trials:
        assert trial.status == "done", trial.reason
        assert trial.cell["forwarder"] == "xdp"
        check(trial)


def function_of(testbed: BuiltChain, number: int) -> str:
    """The namespace of a function, beside that of an end."""
    _, end, *_ = testbed.endpoints[0]
    return f"{end[: end.rindex('-')]}-v{number}"


def test_an_xdp_program_passes_the_kernel_by_and_the_counters_have_each_of_its_frames() -> None:
    needs("bridge", forwarder="xdp")
    chain = Chain("bridge", "east-west", 2, forwarder="xdp")
    placement = assign_cpus((GENERATOR, *chain.names), os.sched_getaffinity(0), {})
    with local_chain(chain, placement, 1000.0) as testbed:
        before = testbed.read(busy=False)
        testbed.start(64, 60.0)
        await_(lambda: testbed.read(busy=False).delivered > 500, "no frame got through")
        frames = testbed.stop()
        after = testbed.read(busy=False)
        assert frames is not None
        assert frames.sent == frames.received == after.offered - before.offered
        assert (frames.lost, frames.foreign) == ({}, 0)
        for number, name in enumerate(chain.names, start=1):
            sent = after.vnfs[name].packets - before.vnfs[name].packets
            assert sent == frames.sent
            assert after.vnfs[name].bytes - before.vnfs[name].bytes == 60 * sent
            # Its kernel saw none of them (proc(5), net/snmp).
            host = LocalHost("test")
            text = host.read_text("/proc/net/snmp", netns=function_of(testbed, number))
            names, counts = (line.split() for line in text.splitlines() if line.startswith("Ip:"))
            assert dict(zip(names, counts, strict=True))["InReceives"] == "0"


def send(frame: bytes, times: int) -> None:
    """Sends a frame by this namespace's interface."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
        raw.bind((GUEST_INTERFACE, 0))
        for _ in range(times):
            raw.send(frame)


def test_a_frame_of_somebody_else_that_reaches_the_end_is_none_that_came_back() -> None:
    needs("bridge")
    chain = Chain("bridge", "east-west", 1)
    placement = assign_cpus((GENERATOR, *chain.names), os.sched_getaffinity(0), {})
    with local_chain(chain, placement, 1000.0) as testbed:
        testbed.start(64, 60.0)
        await_(lambda: testbed.read(busy=False).delivered > 100, "no frame got through")
        broadcast = bytes.fromhex("ff" * 6 + "0270770f0001" + "88b5") + bytes(46)
        thread = netns.NamespaceThread("sender")
        thread.call(function_of(testbed, 1), send, broadcast, 7)
        thread.close()
        frames = testbed.stop()
    assert frames is not None
    assert frames.foreign == 7
    assert frames.sent == frames.received + sum(frames.lost.values())
    assert all(frames.lost.values())


def test_functions_that_are_containers_route_in_their_own_networks_and_are_gone(
    tmp_path: Path, short: Path
) -> None:
    needs("ovs")
    if not shutil.which("dockerd"):
        pytest.skip("there is no dockerd on this machine (scripts/setup lab installs docker.io)")
    path = design(
        tmp_path / "chains.yaml",
        "plane: [bridge, ovs], path: east-west, vnfs: 2, size_bytes: 512",
        "functions: [{forwarder: kernel, guest: container}, {forwarder: xdp, guest: container}]\n"
        "chain: {duration_s: 1, warmup_s: 0.2}",
    )
    out = tmp_path / "run"
    # What it makes in its scratch directories is found by the directory's name.
    finished = planewise("run", path, "--out", out, report=False, TMPDIR=str(short))
    assert finished.returncode == 0, finished.stderr
    trials = RunReader(out).trials()
    assert {(trial.cell["plane"], trial.cell["forwarder"]) for trial in trials} == {
        (plane, forwarder) for plane in ("bridge", "ovs") for forwarder in ("kernel", "xdp")
    }
    for trial in trials:
        assert trial.status == "done", trial.reason
        check(trial)
    await_(lambda: not [line for line in mine() if str(short) in line], "a daemon was left")
    assert not list(short.iterdir())


def test_tcp_is_measured_between_guests_and_through_a_chain(tmp_path: Path) -> None:
    needs("ovs")
    if not shutil.which(IPERF):
        pytest.skip("there is no iperf3; install it")
    part = "tcp: {duration_s: 1, warmup_s: 0}"
    plain = design(tmp_path / "plain.yaml", "plane: bridge, message_bytes: [64, 65536]", part)
    routed = design(
        tmp_path / "routed.yaml",
        "plane: [bridge, ovs], path: east-west, vnfs: 2, message_bytes: 65536",
        f"functions: [{{forwarder: kernel}}, {{forwarder: xdp}}]\n{part}",
    )
    for path, trials in ((plain, 2), (routed, 4)):
        out = tmp_path / path.stem
        finished = planewise("run", path, "--out", out, "--json")
        assert finished.returncode == 0, finished.stderr
        found = RunReader(out).trials()
        assert len(found) == trials
        for trial in found:
            assert trial.tcp is not None
            assert trial.tcp.goodput_bps > 0
            assert trial.tcp.message_bytes == trial.cell["message_bytes"]
        assert "TCP throughput" in (out / "report.html").read_text()
    assert {name for one in kpis(tmp_path / "routed") for name in one.vnfs} == {
        "vnf1",
        "vnf2",
    }
