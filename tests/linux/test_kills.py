"""What a testbed leaves when it is killed, and what `planewise clean` makes of it."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from planewise.errors import PlanewiseError
from planewise.testbed.hosts import netns, scratch
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.ledger import STATE, leftovers, sweep, token_of
from planewise.testbed.plan import new_namespace
from tests.linux.testbeds import PLANES

pytestmark = pytest.mark.linux


def ours(token: str) -> list[str]:
    return [name for name in netns.names() if token_of(name) == token]


BUILD_AND_WAIT = """
import sys, time
from planewise.testbed.setting import Setting
from planewise.testbed.testbed import local_testbed
print("building", flush=True)
plane = sys.argv[2] if len(sys.argv) > 2 else "bridge"
setting = Setting("namespace", plane, plane, int(sys.argv[1]), "north-south")
with local_testbed(setting) as testbed:
    testbed.hosts["sender"].start(["sleep", "600"], netns=testbed.main("sender").netns)
    print(testbed.main("sender").netns, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def run() -> Iterator[subprocess.Popen[str]]:
    argv = [sys.executable, "-c", BUILD_AND_WAIT, "8"]
    # Whoever ignores SIGHUP (nohup) hands that down, and planewise keeps to it.
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    with process:
        yield process
        process.kill()
    sweep()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_polite_kill_tears_down(run: subprocess.Popen[str], number: signal.Signals) -> None:
    assert line_of(run) == "building"
    token = token_of(line_of(run))
    assert token
    run.send_signal(number)
    assert run.wait(20) != 0
    assert ours(token) == []
    assert not (STATE / f"{token}.json").exists()


def test_clean_leaves_a_live_run_alone_and_removes_a_killed_one(
    run: subprocess.Popen[str],
) -> None:
    assert line_of(run) == "building"
    token = token_of(line_of(run))
    assert token
    sweep()
    assert len(ours(token)) == 20
    run.kill()
    run.wait()
    (found,) = [one for one in leftovers() if one.token == token]
    assert len(found.namespaces) == 20
    assert "bridge" in found.what
    assert token in [one.token for one in sweep()]
    assert ours(token) == []
    assert token not in [one.token for one in leftovers()]


def test_clean_removes_what_a_kill_at_any_moment_left() -> None:
    generator = random.Random(9)
    for _ in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", BUILD_AND_WAIT, "8"], stdout=subprocess.PIPE, text=True
        ) as process:
            assert line_of(process) == "building"
            time.sleep(generator.uniform(0, 0.4))
            process.kill()
        sweep()
        left = [one for one in leftovers() if f'"pid": {process.pid},' in str(one)]
        assert left == []
    assert [one for one in leftovers() if one.what.startswith("testbed bridge, 8")] == []


@pytest.mark.skipif("ovs" not in PLANES, reason="this machine has no Open vSwitch")
def test_open_vswitch_ends_with_a_run_that_is_killed_and_clean_removes_its_files() -> None:
    argv = [sys.executable, "-c", BUILD_AND_WAIT, "1", "ovs"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert line_of(process) == "building"
        token = token_of(line_of(process))
        daemons = daemons_of(f"pw-{token}-s") | daemons_of(f"pw-{token}-r")
        process.kill()
    assert len(daemons) == 4  # a database and a switch a host
    deadline = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in daemons):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    sweep()
    assert ours(token or "") == []
    scratch.leftovers(remove=True)
    assert not any(directory.exists() for directory in daemons.values())


def daemons_of(name: str) -> dict[int, Path]:
    """Open vSwitch's processes in a namespace, with the directory that each works in."""
    found = {}
    for pid in netns.processes_in([name]):
        for word in Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0"):
            if word.startswith("--unixctl="):
                found[pid] = Path(word.removeprefix("--unixctl=")).parent
    return found


def test_clean_ends_a_process_that_outlived_its_run(run: subprocess.Popen[str]) -> None:
    assert line_of(run) == "building"
    name = line_of(run)
    # Not started by the run, so not tied to its life.
    host = LocalHost("stray")
    stray = host.start(["sleep", "600"], netns=name)
    run.kill()
    run.wait()
    time.sleep(0.05)
    ended = [pid for one in sweep() for pid in one.processes]
    assert stray.pid in ended
    assert stray.wait(5).exit_code == 128 + signal.SIGKILL


def test_clean_never_touches_a_name_that_is_not_ours() -> None:
    netns.prepare_run()
    name = f"pw-test{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        assert name not in [other for one in leftovers() for other in one.namespaces]
        sweep()
        assert name in netns.names()
    finally:
        netns.remove(name)


def test_clean_removes_a_namespace_whose_file_is_gone() -> None:
    netns.prepare_run()
    subprocess.run(["ip", "netns", "add", "pw-00000000-s"], check=True)
    (found,) = [one for one in sweep() if one.token == "00000000"]
    assert found.namespaces == ("pw-00000000-s",)
    assert "pw-00000000-s" not in netns.names()


def test_a_taken_name_is_said_and_left_alone() -> None:
    netns.prepare_run()
    name = f"pw-test{os.getpid()}"
    steps = new_namespace(name)
    with closing(LocalHost("here")) as host:
        host.perform(steps)
        try:
            with pytest.raises(PlanewiseError, match=f"taken already: `ip netns add {name}`"):
                host.perform(steps)
            assert name in netns.names()
        finally:
            netns.remove(name)


# A plain user.

PLAIN = """
import os, sys
from planewise.testbed.hosts import privilege
privilege.ensure()
from planewise.testbed.setting import Setting
from planewise.testbed.testbed import local_testbed
from planewise.testbed.hosts import netns
print("ready", flush=True)
with local_testbed(Setting("namespace", "macvlan", "macvlan", 2, "north-south")) as testbed:
    host = testbed.hosts["sender"]
    print(len(netns.names()), host.run(["id", "-u"]).stdout.strip(), flush=True)
    print(testbed.main("sender").netns, flush=True)
    if sys.argv[1:]:
        host.start(["sleep", "321"], netns=testbed.main("sender").netns)
        sys.stdin.readline()
print(netns.names())
sys.exit(5)
"""


@pytest.fixture
def plain() -> list[str]:
    """A command line that runs Python as a user without any privilege."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or os.getpid() == 1 or not setpriv:
        pytest.skip("only root can become a plain user")
    packages = [path for path in sys.path if path.endswith(("site-packages", "src"))]
    # The interpreter of the virtual environment may live where only root may look.
    python = "/usr/bin/python3"
    command = [
        setpriv, "--reuid=65534", "--regid=65534", "--clear-groups",
        "env", f"PYTHONPATH={':'.join(packages)}", python,
    ]  # fmt: skip
    script = "import planewise.testbed.hosts.pair, sys; sys.exit(sys.version_info < (3, 11))"
    tried = subprocess.run([*command, "-c", script], capture_output=True, text=True, cwd="/")
    if tried.returncode != 0:
        pytest.skip(f"a plain user cannot run this Python: {tried.stderr.strip()[-200:]}")
    script = "from planewise.testbed.hosts import privilege; privilege.ensure()"
    tried = subprocess.run([*command, "-c", script], capture_output=True, text=True, cwd="/")
    if "UnsupportedError" in tried.stderr:
        pytest.skip(tried.stderr.strip().splitlines()[-1])
    return command


def test_a_plain_user_builds_a_testbed_and_the_exit_code_comes_out(plain: list[str]) -> None:
    ran = subprocess.run([*plain, "-c", PLAIN], capture_output=True, text=True, timeout=60, cwd="/")
    ready, built, name, left = ran.stdout.splitlines()
    assert (ready, built, left) == ("ready", "8 0", "()"), ran.stderr
    assert ran.returncode == 5
    assert name not in netns.names()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_nothing_survives_a_plain_users_run_that_is_killed(
    plain: list[str], number: signal.Signals
) -> None:
    with subprocess.Popen(
        [*plain, "-c", PLAIN, "wait"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd="/",
    ) as run:
        assert line_of(run) == "ready"
        assert line_of(run) == "8 0"
        inside = children_of(run.pid)
        assert inside
        run.send_signal(number)
        assert run.wait(20) != 0
        deadline = time.monotonic() + 10
        while any(Path(f"/proc/{pid}").exists() for pid in inside):
            assert time.monotonic() < deadline, "processes survived"
            time.sleep(0.02)


def children_of(pid: int) -> list[int]:
    """All descendants of a process."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in path.read_text().split():
            found += [int(child), *children_of(int(child))]
    return found
