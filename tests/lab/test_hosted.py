"""Containers and VFs on the lab's hosts: a design run there, and what a kill leaves behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle, product
from pathlib import Path

import pytest

from planewise.commands.clean import clean
from planewise.store.rundir import RunReader
from planewise.testbed.hosts import ledger
from planewise.testbed.hosts.coalescing import read_rx_usecs
from planewise.testbed.hosts.remote import LabHost
from tests.command import PLANEWISE
from tests.lengths import either

from .conftest import Run, UpLab

pytestmark = pytest.mark.timeout(900)

HOSTS = ("--sender", "lab:t/a", "--responder", "lab:t/b")

DESIGN = """
title: containers in the lab
factors:
  guest: container
  plane: [bridge, vf]
  background_plane: vf
  background_guests: [0, 2, 8]
  load_type: network
  path: [north-south, east-west]
constraints:
  - when: {path: north-south}
    require: {background_guests: [2, 8]}
  - when: {path: east-west}
    require: {background_guests: 0}
rtt: {packets: 50}
sweep: {offered_pps: [500], duration_s: 0.3}
background: {rate_pps: 500, burst_packets: 4, payload_bytes: 64}
blocks: 1
"""

# Across the cable on VFs, on one NIC by bridges.
BRIEFLY = DESIGN.replace(
    "rtt:",
    "  - {when: {plane: bridge, background_guests: 2}, require: {path: east-west}}\n"
    "  - {when: {plane: vf}, require: {path: north-south}}\nrtt:",
)
TWO_WAYS = {("bridge", "east-west"), ("vf", "north-south")}
EVERY_WAY = set(product(("bridge", "vf"), ("north-south", "east-west")))

# What a run may change and must bring back. Whether a cable carries a signal is not among it:
# an igb port takes seconds to find its peer, at boot as after a change of its VFs.
STATE = """
ip -o link | sed 's/^[0-9]*: //; s/ qlen.*//; s/ state [A-Z]* / /
    s/NO-CARRIER,//; s/,LOWER_UP//' | sort
ip netns list
ls /sys/fs/cgroup | grep pw-
pgrep -a dockerd
pgrep -a containerd
bridge fdb show | grep -v 33:33 | sort
ip -d link show pf0 | grep vf
for pf in /sys/class/net/pf*/device; do
    cat $pf/sriov_numvfs $pf/sriov_drivers_autoprobe
    for vf in $pf/virtfn*; do
        [ -e $vf ] || continue
        echo $(basename $(readlink -f $vf)) $(basename $(readlink -f $vf/driver)) $(ls $vf/net)
        cat $vf/net/*/address
    done
done
ethtool -c pf0 | grep usecs:
for irq in $(ls -v /sys/class/net/pf0/device/msi_irqs); do
    cat /proc/irq/$irq/smp_affinity 2>/dev/null || cat /proc/irq/default_smp_affinity
done
pgrep -a pw-probe
true
"""


def states(hosts: dict[str, LabHost]) -> dict[str, str]:
    def state(host: LabHost) -> str:
        return host.run(["sh", "-c", STATE], timeout_s=60).stdout

    with ThreadPoolExecutor(len(hosts)) as pool:
        return dict(zip(hosts, pool.map(state, hosts.values()), strict=True))


def come_back(hosts: dict[str, LabHost], before: dict[str, str], told: str = "") -> None:
    """Asserts that the hosts are as they were: soon, as sshd sees late that its client is gone."""
    deadline = time.monotonic() + 300
    while (now := states(hosts)) != before and time.monotonic() < deadline:
        time.sleep(0.2)
    assert now == before, told


@either("text ways", (BRIEFLY, TWO_WAYS), (DESIGN, EVERY_WAY))
def test_containers_on_bridges_and_vfs_reach_each_other_on_one_nic_and_across_the_cable(
    hosts: dict[str, LabHost],
    planewise: Run,
    tmp_path: Path,
    text: str,
    ways: set[tuple[str, str]],
) -> None:
    before = states(hosts)
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(text)
    done = planewise("run", str(design), *HOSTS, "--out", str(out), timeout_s=600, report=False)
    assert done.returncode == 0, done.stderr
    trials = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    assert {trial.get("reason", "") for trial in trials} == {""}
    seen = {(one["kind"], one["cell"]["plane"], one["cell"]["path"]) for one in trials}
    assert seen == {(kind, *way) for kind in ("rtt", "load") for way in ways}
    for trial in trials:
        counts = trial["counts"]
        assert counts["sent"] == counts["received"] + counts["lost"]
        assert counts["received"] > 0
        machines = 2 if trial["cell"]["path"] == "north-south" else 1
        assert len(trial["cpu"]) == machines
    info = json.loads((out / "run.json").read_text())
    assert {one["reason"] for one in info["skipped"]} == {
        "needs 8 VFs on lab:t/a, and pf0 has 7",
        "needs 9 VFs on lab:t/a, and pf0 has 7",
    }
    assert info["testbed"] == {"sender": "lab:t/a", "responder": "lab:t/b", "nic": "pf0"}
    assert "QEMU" in info["emulated"]
    assert "Emulated times" in done.stdout
    assert states(hosts) == before


KILLED = """
title: killed
factors:
  guest: GUEST
  plane: vf
  background_plane: bridge
  background_guests: 1
  load_type: network
rtt: {packets: 50}
background: {rate_pps: 500, burst_packets: 4, payload_bytes: 64}
blocks: 1
"""
"""A run with everything in it that a kill may leave: VFs, containers, a bridge, filters, a load."""

COMMANDS = {"container": 50, "namespace": 35}
"""What such a run starts on its hosts, nearly: its last commands are not counted, as there may be
one or two more or less."""

VICTIM = """
import os, sys, threading
from planewise.cli import main
from planewise.testbed.hosts.remote import SshHost
number, after_s = int(sys.argv.pop(1)), float(sys.argv.pop(1))
start = SshHost.start
left = [number]
def counted(*arguments, **named):
    left[0] -= 1
    if left[0] == 0:
        threading.Timer(after_s, os.kill, (os.getpid(), 9)).start()
    return start(*arguments, **named)
SshHost.start = counted
main()
"""
"""The command line, which kills itself so long after it begins the command of that number: a moment
means the same on a slow machine and a fast one."""


KILLS = int(os.environ.get("PLANEWISE_KILLS", "2"))
"""A kill and what follows take half a minute; a release is tested with 20 of them."""


@pytest.mark.timeout(600 * KILLS)
def test_after_kills_at_random_moments_clean_brings_everything_back(
    hosts: dict[str, LabHost], tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    moments = random.Random(seed)
    before = states(hosts)
    design = tmp_path / "design.yaml"
    # Spread over a run, from its beginning until it has removed nearly everything.
    kinds = moments.sample(list(COMMANDS), len(COMMANDS))
    for part, guest in zip(range(KILLS), cycle(kinds), strict=False):
        first, last = (COMMANDS[guest] * at // KILLS for at in (part, part + 1))
        number, after_s = moments.randint(first + 1, last), moments.uniform(0, 0.3)
        design.write_text(KILLED.replace("GUEST", guest))
        argv = ["run", str(design), *HOSTS, "--out", str(tmp_path / f"{guest}{part}")]
        victim = subprocess.run(
            [sys.executable, "-c", VICTIM, str(number), str(after_s), *argv],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        told = f"seed {seed}, {guest}: kill {after_s:.2f} s after command {number}: {victim.stderr}"
        assert victim.returncode == -signal.SIGKILL, told
        clean(dry_run=False, json_=False)
        come_back(hosts, before, told)
        assert not [one for one in ledger.leftovers() if one.hosts], told


COALESCED = """
factors: {plane: bridge, frequency_pps: 100, rx_usecs: [0, 500]}
rtt: {packets: PACKETS}
blocks: 1
"""


@pytest.mark.skipif(
    "PLANEWISE_INTERRUPTS" not in os.environ,
    reason="two runs between the lab's hosts take minutes: PLANEWISE_INTERRUPTS=1 runs them",
)
def test_interrupts_are_coalesced_as_asked_and_come_back_also_after_a_kill(
    hosts: dict[str, LabHost], tmp_path: Path
) -> None:
    before = states(hosts)
    design, out = tmp_path / "design.yaml", tmp_path / "run"
    design.write_text(COALESCED.replace("PACKETS", "100"))
    argv = [*PLANEWISE, "run", str(design), *HOSTS, "--out"]
    done = subprocess.run([*argv, str(out)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    medians = {
        trial.cell["rx_usecs"]: trial.latency["rtt_user"].p50_ns
        for trial in RunReader(out).trials()
    }
    print(f"median RTT [ns] by rx-usecs, emulated: {medians}")
    assert set(medians) == {0, 500}
    come_back(hosts, before, done.stderr)

    design.write_text(COALESCED.replace("PACKETS", "6000"))
    with subprocess.Popen([*argv, str(tmp_path / "killed")], stderr=subprocess.DEVNULL) as victim:
        deadline = time.monotonic() + 300
        while {read_rx_usecs(host, "pf0") for host in hosts.values()} & {0, 500} == set():
            assert time.monotonic() < deadline
            assert victim.poll() is None
            time.sleep(0.2)
        victim.kill()
    assert states(hosts) != before
    clean(dry_run=False, json_=False)
    come_back(hosts, before)


def test_igb_counters_of_vfs_are_called_unsupported(
    hosts: dict[str, LabHost], planewise: Run
) -> None:
    from planewise.testbed.vfs.nic import Tool

    tool = Tool.on(hosts["a"])
    tool.run("setup", "pf1", "--count", "1", "--owner", "pw-test")
    try:
        assert "unsupported" in tool.run("list", "pf1").stdout
        (pf,) = tool.run("list", "pf1", "--json").json()["pfs"]
        counters = pf["vfs"][0]["counters"]
        assert counters["status"] == "unsupported"
        assert "rx_packets" not in counters
    finally:
        tool.run("restore", "--owner", "pw-test")


def test_a_container_that_ends_while_its_vf_is_inside_is_said_and_its_vf_comes_home(
    hosts: dict[str, LabHost],
) -> None:
    from planewise.errors import PlanewiseError
    from planewise.testbed.hosts.pair import Targets, remote_pair
    from planewise.testbed.setting import Setting
    from planewise.testbed.testbed import Testbed

    before = states(hosts)
    setting = Setting("container", "vf", "vf", 0, "north-south")
    with (
        remote_pair(Targets("lab:t/a", "lab:t/b")) as pair,
        Testbed(pair, 1500) as testbed,
    ):
        assert testbed.check([setting]) == {}
        victim = ""

        def measure_and_kill() -> None:
            nonlocal victim
            with testbed.arrange(setting) as standing:
                victim = standing.main("sender").netns
                host = pair.machines["sender"].host
                inside = f"cat /sys/fs/cgroup/pw-{pair.token}/*/cgroup.procs"
                # A process that was killed ends when it is its turn to run.
                gone = f'until [ -z "$({inside} 2>/dev/null)" ]; do sleep 0.1; done'
                host.run(["timeout", "60", "sh", "-c", f"kill -9 $({inside}); {gone}"]).check()

        with pytest.raises(PlanewiseError, match="ended while it was needed"):
            measure_and_kill()
        with testbed.arrange(setting) as standing:
            assert standing.main("sender").netns != victim
            peer = standing.main("responder").ipv4
            probe = standing.hosts["sender"].probe
            argv = [probe, "ping", peer, "--count", "10"]
            ping = standing.hosts["sender"].run(argv, netns=standing.main("sender").netns)
            assert ping.json()["counts"]["received"] > 0
    come_back(hosts, before)


DOCKERD = """
mkdir -p /run/test-docker
mount -t tmpfs test-docker /run/test-docker
trap 'umount -l /run/test-docker; rmdir /run/test-docker; rm -f /run/docker.sock' EXIT
(until [ -S /run/docker.sock ]; do sleep 0.1; done; echo up >&2) &
dockerd --data-root /run/test-docker/data --exec-root /run/test-docker/exec \\
    --pidfile /run/test-docker/pid --host unix:///run/docker.sock --bridge none --iptables=false \\
    --exec-opt native.cgroupdriver=cgroupfs
"""
"""A daemon as an administrator has it: not Planewise's, and at the usual place."""


@pytest.mark.long  # test_allocator.py has a VF move into a container of such a Docker
def test_a_docker_that_runs_is_left_alone_and_a_vf_moves_into_its_container_by_name(
    hosts: dict[str, LabHost],
) -> None:
    import docker

    from planewise.testbed.guests.docker import Docker, image
    from planewise.testbed.hosts.host import find_probe
    from planewise.testbed.vfs.nic import Tool

    host = hosts["a"]
    tool = Tool.on(host)
    daemon = host.start(["sh", "-c", DOCKERD])
    try:
        daemon.wait_ready("up", 120)
        theirs = docker.DockerClient(f"unix://{host.socket('/run/docker.sock')}", timeout=120)
        with Docker(host, "test") as ours:
            ours.run("pw-test-guest")
            assert ours.ended(["pw-test-guest"]) == {}
            assert theirs.containers.list(all=True) == []
        api = theirs.api
        api.import_image_from_data(image(Path(find_probe())), repository="guest")
        made = api.create_container(
            "guest",
            entrypoint=["/pw-probe"],
            command=["cpu"],
            name="guest",
            stop_signal="SIGKILL",
            host_config=api.create_host_config(network_mode="none"),
        )
        api.start(made)
        pid = api.inspect_container(made)["State"]["Pid"]
        tool.run("setup", "pf1", "--count", "1", "--owner", "pw-test")
        into = ["--to", "container:guest", "--name", "vf0"]
        tool.run("move", "pf1/0", *into, "--owner", "pw-test")
        links = ["nsenter", "-t", str(pid), "-n", "ip", "-o", "link"]
        assert " vf0: " in host.run(links).check().stdout
        done = host.run([tool.path, "vf", "move", "pf1/0", "--to", "container:nobody"])
        assert done.exit_code != 0
        assert "there is no container nobody" in done.stderr
        api.remove_container(made, force=True)
        # The container is gone, and with it the namespace that the VF was in.
        tool.run("restore", "--owner", "pw-test")
        (pf,) = tool.run("list", "pf1", "--json").json()["pfs"]
        assert pf["num_vfs"] == 0
    finally:
        daemon.stop()


def test_what_is_wrong_with_the_hosts_is_one_sentence(
    up: UpLab, hosts: dict[str, LabHost], planewise: Run, tmp_path: Path
) -> None:
    design = tmp_path / "design.yaml"
    design.write_text(DESIGN)

    def refused(*argv: str) -> str:
        done = planewise("run", str(design), "--out", str(tmp_path / "never"), *argv)
        assert done.returncode in (1, 2)
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "never").exists()
        return done.stderr

    assert "there is no interface nothing0" in refused(*HOSTS, "--nic", "nothing0")
    assert "is in use: it has the address" in refused(*HOSTS, "--nic", "mgmt0")
    assert "--responder is missing" in refused("--sender", "lab:t/a")
    assert "both lab:t/a" in refused("--sender", "lab:t/a", "--responder", "lab:t/a")
    assert "may be used is not given" in refused(
        "--sender", "ssh://one", "--responder", "ssh://two"
    )
    assert "there is no lab `none`" in refused(
        "--sender", "lab:none/a", "--responder", "lab:none/b"
    )
    port = up.status.record.hosts["a"].port
    here = f"ssh://127.0.0.1:{port}"
    assert "host key" in refused("--sender", here, "--responder", "lab:t/b", "--nic", "pf0")
