"""The lab on this machine: two hosts with SR-IOV, from up to down."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from planewise import lab
from planewise.boot import process
from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.testbed.hosts import scratch
from planewise.testbed.hosts.host import ProcessTimeoutError, find_probe
from planewise.testbed.hosts.remote import LabHost, open_host
from tests.command import PLANEWISE

from .conftest import Run, Silence, UpLab

pytestmark = pytest.mark.timeout(400)


def shell(host: LabHost, script: str, timeout_s: float = 60) -> str:
    return host.run(["sh", "-ec", script], timeout_s=timeout_s).check().stdout


def qemus(state_directory: Path) -> list[process.ProcessInfo]:
    return [
        seen
        for seen in process.processes()
        if str(state_directory) in (seen.option("-pidfile") or "")
    ]


def test_both_hosts_see_their_pfs_driven_by_igb_with_seven_vfs_each(
    hosts: dict[lab.HostId, LabHost],
) -> None:
    for host in hosts.values():
        for pf in ("pf0", "pf1"):
            device = f"/sys/class/net/{pf}/device"
            assert shell(host, f"basename $(readlink {device}/driver)").strip() == "igb"
            assert host.read_text(f"{device}/sriov_totalvfs").strip() == "7"
            assert host.read_text(f"/sys/class/net/{pf}/carrier").strip() == "1"


MAKE_VFS = """
device=$(readlink -f /sys/class/net/pf0/device)
echo 0 >$device/sriov_drivers_autoprobe
echo 2 >$device/sriov_numvfs
for i in 0 1; do
    ip link set pf0 vf $i mac 02:70:77:00:$HOST:0$i
    address=$(basename $(readlink -f $device/virtfn$i))
    echo igbvf >/sys/bus/pci/devices/$address/driver_override
    echo $address >/sys/bus/pci/drivers_probe
    name=$(ls /sys/bus/pci/devices/$address/net)
    ip netns add guest$i
    ip link set $name netns guest$i name nic0
    ip -n guest$i addr add 198.18.0.$HOST$i/24 dev nic0
    ip -n guest$i link set nic0 up
done
for i in 0 1; do
    for second in $(seq 20); do
        ip -n guest$i link show nic0 | grep -q LOWER_UP && break
        sleep 1
    done
done
"""


def test_vfs_reach_each_other_through_the_nic_and_across_the_cable(
    hosts: dict[lab.HostId, LabHost],
) -> None:
    for number, host in ((1, hosts["a"]), (2, hosts["b"])):
        shell(host, MAKE_VFS.replace("$HOST", str(number)))
    for peer in ("198.18.0.11", "198.18.0.20", "198.18.0.21"):
        answer = hosts["a"].run(
            ["ping", "-n", "-c", "5", "-i", "0.2", "-W", "5", peer], netns="guest0"
        )
        assert answer.exit_code == 0, answer.stdout
        assert " 0% packet loss" in answer.stdout


def test_a_lab_host_is_a_host_processes_files_and_namespaces(
    hosts: dict[lab.HostId, LabHost], tmp_path: Path
) -> None:
    host = hosts["b"]
    assert host.run(["sh", "-c", "echo out; echo err >&2; exit 7"]).exit_code == 7
    done = host.run(["cat"], stdin=b"\x00 bytes \xc3\xa9\n")
    assert done.stdout == "\x00 bytes é\n"
    with pytest.raises(ProcessTimeoutError, match="still runs"):
        host.run(["sleep", "60"], timeout_s=0.5)
    with pytest.raises(UnsupportedError, match="no program `pw-nothing`"):
        host.start(["pw-nothing"])
    with pytest.raises(PlanewiseError, match="namespace"):
        host.start(["true"], netns="pw-nowhere")
    with pytest.raises(PlanewiseError, match="No such file"):
        host.read_text("/proc/nothing")
    shell(host, "ip netns add lonely")
    assert "pf0" in host.read_text("/proc/net/dev")
    assert "pf0" not in host.read_text("/proc/net/dev", netns="lonely")
    sent = tmp_path / "sent"
    sent.write_bytes(bytes(range(256)) * 100)
    host.put(sent, "/tmp/there")
    assert host.read("/tmp/there") == sent.read_bytes()
    with pytest.raises(PlanewiseError, match="cannot be copied"):
        host.put(tmp_path / "nothing", "/tmp/there")


def test_a_process_is_waited_for_and_stopped_with_its_children(
    hosts: dict[lab.HostId, LabHost],
) -> None:
    host = hosts["b"]
    script = "sleep 77 & echo ready to go >&2; wait"
    with host.start(["sh", "-c", script]) as running:
        running.wait_ready("ready", 30)
        assert shell(host, f"cat /proc/{running.pid}/comm").strip() == "sh"
        with pytest.raises(ProcessTimeoutError, match="did not say"):
            running.wait_ready("never", 0.3)
    assert running.wait().exit_code in (130, 137)
    assert shell(host, "pgrep -fx 'sleep 77' || echo none").strip() == "none"
    with pytest.raises(PlanewiseError, match="exit code 3"):
        host.start(["sh", "-c", "exit 3"]).wait_ready("ready", 30)


@pytest.fixture
def home(up: UpLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory from which `ssh a` reaches the lab's host a, as any server is reached."""
    config, program = tmp_path / ".ssh" / "config", tmp_path / "bin" / "ssh"
    for file in (config, program):
        file.parent.mkdir()
    config.write_text((up.status.directory / "ssh_config").read_text())
    # ssh itself takes the home directory of the account.
    program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return tmp_path


def test_pw_probe_is_copied_over_to_a_server_and_removed_again(
    hosts: dict[lab.HostId, LabHost], home: Path
) -> None:
    server = open_host("ssh://a", "sender")
    probe = server.probe
    assert "pw-probe" in server.run([probe, "--version"]).check().stdout
    server.close()
    for _ in range(50):
        if hosts["a"].run(["test", "-e", probe]).exit_code:
            break
        time.sleep(0.2)
    assert hosts["a"].run(["test", "-e", Path(probe).parent.as_posix()]).exit_code == 1


def test_a_labs_host_uses_this_machines_pw_probe_where_it_lies(
    hosts: dict[lab.HostId, LabHost],
) -> None:
    probe = hosts["a"].probe
    assert Path(probe).samefile(find_probe())
    assert "pw-probe" in hosts["a"].run([probe, "--version"]).check().stdout


def test_a_host_forgets_what_a_killed_planewise_ran_there(
    hosts: dict[lab.HostId, LabHost], home: Path
) -> None:
    script = (
        "from planewise.testbed.hosts.remote import open_host\n"
        "host = open_host('ssh://a', 'sender')\n"
        "host.start(['sleep', '7777'])\n"
        "print(host.probe, flush=True)\n"
        "input()\n"
    )
    victim = subprocess.Popen(
        [PLANEWISE[0], "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert victim.stdout is not None
    probe = victim.stdout.readline().strip()
    assert probe
    victim.kill()
    victim.wait()
    assert scratch.leftovers(remove=True)  # `clean` finds the directory of its connection
    left = f"pgrep -fx 'sleep 7777' || [ -e {probe} ] || echo none"
    for _ in range(50):
        if shell(hosts["a"], left).strip() == "none":
            return
        time.sleep(0.2)
    pytest.fail("a process or file of the killed planewise is still there")


def test_a_server_is_reached_as_ssh_would_with_config_and_known_hosts(
    up: UpLab, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = (home / ".ssh" / "config").read_text()
    server = open_host("ssh://a", "sender")
    try:
        assert server.run(["hostname"]).check().stdout == "a\n"
        assert server.place == "ssh://a"
    finally:
        server.close()
    known = up.status.directory / "known_hosts"
    elsewhere = home / "known_hosts"
    (home / ".ssh" / "config").write_text(config.replace(str(known), str(elsewhere)))
    elsewhere.write_text("")
    with pytest.raises(PlanewiseError, match="the host key of ssh://a is not known") as caught:
        open_host("ssh://a", "sender")
    assert "`ssh ssh://a`" in caught.value.remedy
    elsewhere.write_text(known.read_text())
    no_key = config.replace(str(known), str(elsewhere)).replace("IdentityFile", "# IdentityFile")
    (home / ".ssh" / "config").write_text(no_key)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with pytest.raises(PlanewiseError, match="ssh://a refuses us by ssh"):
        open_host("ssh://a", "sender")


def test_ctrl_c_goes_to_the_command(up: UpLab) -> None:
    script = "trap 'echo caught; exit 9' INT; echo ready; while :; do sleep 0.1; done"
    argv = ["lab", "run", "--name", "t", "--", "sh", "-c", script]
    process_ = subprocess.Popen([*PLANEWISE, *argv], stdout=subprocess.PIPE, text=True)
    assert process_.stdout is not None
    assert process_.stdout.readline() == "ready\n"
    process_.send_signal(signal.SIGINT)
    rest, _ = process_.communicate(timeout=60)
    assert (rest, process_.returncode) == ("caught\n", 9)


def test_a_command_ends_with_the_planewise_that_ran_it(
    up: UpLab, hosts: dict[lab.HostId, LabHost]
) -> None:
    argv = ["lab", "run", "--name", "t", "--", "sh", "-c", "echo ready; sleep 8888; true"]
    victim = subprocess.Popen([*PLANEWISE, *argv], stdout=subprocess.PIPE, text=True)
    assert victim.stdout is not None
    assert victim.stdout.readline() == "ready\n"
    time.sleep(2)  # until its keeper stands, too
    victim.kill()
    victim.wait()
    assert scratch.leftovers(remove=True)
    for _ in range(50):
        if shell(hosts["a"], "pgrep -fx 'sleep 8888' || echo none").strip() == "none":
            return
        time.sleep(0.2)
    pytest.fail("the command still runs")


def test_run_passes_output_input_and_the_exit_code(up: UpLab, planewise: Run) -> None:
    done = planewise(
        *("lab", "run", "--name", "t", "--host", "b", "--"),
        *("sh", "-c", "cat; hostname; echo 'it''s' >&2; exit 7"),
        stdin="from the desk\n",
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "from the desk\nb\n", "its\n")
    done = planewise("lab", "run", "--name", "t", "--", "sh", "-c", "kill -9 $$")
    assert done.returncode == 137
    done = planewise("lab", "run", "--name", "t", "--", "pwd")
    assert done.stdout.strip() == str(Path.cwd())


def test_status_says_since_when_each_host_runs_and_where_it_answers(
    up: UpLab, planewise: Run
) -> None:
    (found,) = json.loads(planewise("lab", "status", "--json").stdout)["labs"]
    assert (found["name"], found["state"], found["pfs"]) == ("t", "running", 2)
    for host in found["hosts"]:
        assert host["state"] == "running"
        assert host["ssh"]["reachable"]
        assert 0 < host["age_s"] < 3600
        assert os.path.exists(host["serial_log"])  # noqa: PTH110
    assert planewise("lab", "status").stdout.startswith("t: running")


def test_up_finds_a_lab_that_is_up_and_refuses_another_shape(up: UpLab) -> None:
    again = lab.up(up.status.record.spec, Silence())
    assert [host.pid for host in again.hosts] == [host.pid for host in up.status.hosts]
    with pytest.raises(BadInputError, match="--pfs 2"):
        lab.up(lab.LabSpec("t", pfs=1, memory_mib=1024), Silence())


def test_a_lab_in_use_is_no_leftover(hosts: dict[lab.HostId, LabHost]) -> None:
    assert "t" not in [one.name for one in lab.leftovers()]
    lab.leftovers(remove=True)
    status = lab.status("t")
    assert status is not None
    assert status.state == "running"


PANIC = "(sleep 1; echo c >/proc/sysrq-trigger) >/dev/null 2>&1 &"


def test_a_host_that_hangs_and_one_that_panics_are_found_and_said(
    up: UpLab, planewise: Run
) -> None:
    b = up.status.hosts[1]
    assert b.pid is not None
    os.kill(b.pid, signal.SIGSTOP)
    try:
        found = lab.status("t")
        assert found is not None
        assert [host.finding.state for host in found.hosts] == ["running", "hung"]
    finally:
        os.kill(b.pid, signal.SIGCONT)
    planewise("lab", "run", "--name", "t", "--host", "b", "--", "sh", "-c", PANIC)
    for _ in range(100):
        found = lab.status("t")
        assert found is not None
        if found.state == "dead":
            break
        time.sleep(0.2)
    assert found.hosts[1].finding.reason.startswith("kernel panic: sysrq triggered crash")
    done = planewise("lab", "run", "--name", "t", "--host", "a", "--", "true")
    assert done.returncode == 1
    assert "host b of the lab `t` is dead: kernel panic" in done.stderr
    assert str(found.hosts[1].serial_log) in done.stderr


def test_down_leaves_no_process_socket_or_file(
    up: UpLab, state_directory: Path, planewise: Run
) -> None:
    done = planewise("lab", "down", "--name", "t")
    assert done.stdout == "The lab `t` is down.\n"
    assert qemus(state_directory) == []
    assert list(state_directory.glob("*")) == []
    assert planewise("lab", "down", "--name", "t").stdout == "No lab `t` is up.\n"
    done = planewise("lab", "run", "--name", "t", "--", "true")
    assert done.returncode == 1
    assert "hint: start it with `planewise lab up --name t`" in done.stderr


def hosts_in(where: Path) -> set[str | None]:
    return {seen.option("-name") for seen in qemus(where)}


def test_a_dry_run_prints_two_command_lines_and_starts_nothing(
    state_directory: Path, planewise: Run
) -> None:
    done = planewise("lab", "up", "--name", "dry", "--pfs", "3", "--dry-run", "--json")
    commands = json.loads(done.stdout)["commands"]
    assert [command[2] for command in commands] == ["pw-lab-dry-a", "pw-lab-dry-b"]
    assert all(sum(word.startswith("igb,") for word in command) == 3 for command in commands)
    assert qemus(state_directory) == []
    assert list(state_directory.glob("*")) == []


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "nothing is written": lambda _: True,
    "the directory is made": lambda where: where.is_dir(),
    "the first host is started": lambda where: len(hosts_in(where)) >= 1,
    "both hosts boot": lambda where: len(hosts_in(where)) == 2,
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_after_a_kill_while_it_boots_clean_leaves_nothing(
    state_directory: Path, moment: str
) -> None:
    where = state_directory / "lab-killed"
    argv = ["lab", "up", "--name", "killed", "--memory", "512"]
    victim = subprocess.Popen([*PLANEWISE, *argv], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not MOMENTS[moment](where) and victim.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert victim.poll() is None, victim.communicate()
    victim.kill()
    victim.communicate()
    swept = lab.leftovers(remove=True)
    assert qemus(state_directory) == []
    assert list(state_directory.glob("*")) == []
    if moment == "both hosts boot":
        assert [one.name for one in swept] == ["killed"]
        assert len(swept[0].processes) >= 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_boot_that_is_interrupted_leaves_nothing(
    state_directory: Path, number: signal.Signals
) -> None:
    argv = ["lab", "up", "--name", "cut", "--memory", "512"]
    victim = subprocess.Popen([*PLANEWISE, *argv], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(hosts_in(state_directory)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    victim.send_signal(number)
    _, said = victim.communicate(timeout=60)
    assert victim.returncode != 0
    assert "Traceback" not in said
    assert qemus(state_directory) == []
    assert list(state_directory.glob("*")) == []


HANGS_FIRST = """
import sys
from planewise.cli import main
from planewise.lab import lifecycle, watch
from planewise.lab.watch import HostDiagnosis
begun, start, look = [], lifecycle._start, watch.diagnose
def start_and_count(*arguments):
    begun.append(start(*arguments))
    return begun[-1]
def find_stalled_first(**seen):
    return HostDiagnosis("hung", "rcu_preempt detected stalls") if len(begun) == 1 else look(**seen)
lifecycle._start, watch.diagnose = start_and_count, find_stalled_first
try:
    main()
finally:
    print(f"begun {len(begun)} times", file=sys.stderr)
"""
"""The command line, to which the first boot seems to hang: no emulated CPU misses its timer when it
is asked to."""


def test_a_boot_that_hangs_is_begun_once_more_and_a_fresh_lab_is_gone_after_its_command(
    state_directory: Path,
) -> None:
    argv = ["lab", "run", "--fresh", "--memory", "512", "--host", "b", "--"]
    done = subprocess.run(
        [sys.executable, "-c", HANGS_FIRST, *argv, "sh", "-c", "hostname; exit 5"],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    assert (done.returncode, done.stdout) == (5, "b\n"), done.stderr
    assert done.stderr.endswith("begun 2 times\n")
    assert qemus(state_directory) == []
    assert list(state_directory.glob("*")) == []
