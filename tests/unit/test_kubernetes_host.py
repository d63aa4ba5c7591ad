"""Hosts that are Kubernetes nodes; a stand-in for kubectl runs what it is given on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.fleet.plan import check_node
from planewise.testbed.hosts.kubernetes import NodeTarget, parse_node, pod
from planewise.testbed.hosts.remote import open_host
from planewise.testbed.hosts.remote_host import own_words

# Notes what it is asked. `exec` drops the way into the node and runs the rest here.
_KUBECTL = """#!/bin/sh
cd "$(dirname "$0")"
echo "$1 $2 $3 $4" >>asked
while case $1 in --*) true;; *) false;; esac; do shift; done
case $1 in
create)
  [ ! -e refuses ] || { echo "error: forbidden by PodSecurity" >&2; exit 1; }
  cat >manifest ;;
wait) [ ! -e hangs ] || { echo "error: timed out waiting for the condition" >&2; exit 1; } ;;
get) cat status ;;
delete) echo deleted >>ended ;;
exec)
  [ ! -e unreachable ] || { echo "error: dialing backend: no such host" >&2; exit 1; }
  while [ "$1" != nsenter ]; do shift; done
  while [ "$1" != -- ]; do shift; done
  shift
  echo $$ >>execs
  setsid -w "$@"
  code=$?
  [ $code -eq 0 ] || echo "command terminated with exit code $code" >&2
  exit $code ;;
esac
"""


@pytest.fixture
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in's folder: it notes there what it is asked."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "kubectl"
    program.write_text(_KUBECTL)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder


def until(look: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_node_is_named_by_a_url() -> None:
    assert parse_node("k8s://worker-1.example") == NodeTarget(
        "k8s://worker-1.example", "worker-1.example"
    )
    text = "k8s://one?namespace=measure&image=tools:1&context=lab"
    named = parse_node(text)
    assert named == NodeTarget(text, "one", "measure", "tools:1", "lab")
    assert named.kubectl == ("kubectl", "--context=lab", "--namespace=measure")
    check_node("k8s://one", "nodes.txt:1")


@pytest.mark.parametrize(
    "text",
    [
        *("k8s://", "k8s:one", "k8s://One", "k8s://one/two", "k8s://-one", "k8s://one:22"),
        *("k8s://one?image", "k8s://one?imge=x", "k8s://one?image=a&image=b", "k8s://[::1"),
        "k8s://one?namespace=--all",
    ],
)
def test_what_is_no_url_of_a_node_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="is not a host") as caught:
        parse_node(text)
    assert "k8s://node" in caught.value.remedy
    with pytest.raises(BadInputError, match="is not a host"):
        check_node(text, "nodes.txt:1")


@given(st.text())
def test_any_text_is_a_node_or_refused(text: str) -> None:
    with contextlib.suppress(BadInputError):
        assert parse_node(text).node
    with contextlib.suppress(BadInputError):
        assert parse_node(f"k8s://{text}").node


def test_the_pod_is_for_its_node_alone_and_ends_by_itself() -> None:
    spec = pod(parse_node("k8s://one"), "name")["spec"]
    assert isinstance(spec, dict)
    assert (spec["nodeName"], spec["restartPolicy"]) == ("one", "Never")
    assert spec["activeDeadlineSeconds"] > 0
    assert not spec["automountServiceAccountToken"]


@given(st.text(max_size=40), st.integers(0, 255))
def test_a_commands_words_are_told_from_those_of_the_program_that_ran_it(
    words: str, code: int
) -> None:
    said = f"Warning: no TTY\npw-begun 77\n{words}"
    lost = "error: the connection was lost\n"
    assert own_words(f"{said}pw-ended {code}\n{lost}") == (words, code)
    assert own_words(said + lost) == (words + lost, None)


def test_commands_run_on_the_node_and_nothing_is_left(kubectl: Path, tmp_path: Path) -> None:
    with closing(open_host("k8s://one?namespace=measure", "sender")) as host:
        assert (host.name, host.place) == ("sender", "k8s://one?namespace=measure")
        done = host.run(["sh", "-c", 'cat; echo "it broke" >&2; exit 3'], stdin=b"given")
        assert (done.exit_code, done.stdout, done.stderr) == (3, "given", "it broke\n")
        with pytest.raises(PlanewiseError, match=r"sh failed \(exit code 3\): it broke"):
            done.check()
        assert host.run(["true"]).exit_code == 0
        assert host.read_text("/proc/self/comm") == "base64\n"
        with pytest.raises(UnsupportedError, match="no program `nosuch` on k8s://one"):
            host.start(["nosuch"])

        tool = tmp_path / "tool"
        tool.write_bytes(bytes(range(256)) * 1000)
        tool.chmod(0o751)
        there = host.program(str(tool))
        assert there == f"{host.directory}/tool"
        assert host.read(there) == tool.read_bytes()
        assert Path(there).stat().st_mode & 0o777 == 0o751
        with pytest.raises(PlanewiseError, match=r"/nowhere/x on .* cannot be read: No such file"):
            host.read("/nowhere/x")
        with pytest.raises(UnsupportedError, match="forwards no Unix sockets"):
            host.socket("/var/run/docker.sock")

        with host.start(["sh", "-c", "echo up >&2; exec sleep 1000"]) as process:
            process.wait_ready("up", 30)
            assert Path(f"/proc/{process.pid}").exists()
            process.interrupt()
            assert process.wait(30).exit_code in (130, 2)
        left = host.start(["sleep", "1000"])
        directory = host.directory
    until(lambda: not Path(f"/proc/{left.pid}").exists())
    assert not Path(directory).exists()
    assert (kubectl / "ended").read_text() == "deleted\n"
    name = json.loads((kubectl / "manifest").read_text())["metadata"]["name"]
    asked = (kubectl / "asked").read_text().splitlines()
    assert all(line.startswith("--namespace=measure ") for line in asked)
    assert asked[-1] == f"--namespace=measure delete pod {name}"


def test_a_killed_desk_leaves_no_process_no_directory_and_no_pod(kubectl: Path) -> None:
    desk = (
        "import time\n"
        "from planewise.testbed.hosts.remote import open_host\n"
        "host = open_host('k8s://one', 'sender')\n"
        "left = host.start(['sleep', '1000'])\n"
        "print(left.pid, host.directory, flush=True)\n"
        "time.sleep(1000)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", desk], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        pid, directory = process.stdout.readline().split()
        assert Path(directory).exists()
        process.send_signal(signal.SIGKILL)
    until(lambda: not Path(f"/proc/{pid}").exists())
    until((kubectl / "ended").exists)
    assert not Path(directory).exists(), "it is removed before the pod is"


def test_a_line_that_is_lost_is_no_exit_code(kubectl: Path) -> None:
    with closing(open_host("k8s://one", "sender")) as host:
        process = host.start(["sleep", "1000"])
        exec_ = int((kubectl / "execs").read_text().split()[-1])
        os.kill(exec_, signal.SIGKILL)
        with pytest.raises(PlanewiseError, match="connection to k8s://one was lost while sleep"):
            process.wait(30)
        os.kill(process.pid, signal.SIGKILL)


def test_why_no_command_can_be_started_on_a_node_is_said(kubectl: Path) -> None:
    (kubectl / "unreachable").touch()
    with (
        closing(open_host("k8s://one", "sender")) as host,
        pytest.raises(PlanewiseError, match=r"could not be started on k8s://one: .*no such host"),
    ):
        host.run(["true"])


def test_a_pod_that_is_refused_or_does_not_start_is_said_and_removed(kubectl: Path) -> None:
    (kubectl / "refuses").touch()
    with pytest.raises(PlanewiseError, match="is refused: forbidden by PodSecurity") as caught:
        open_host("k8s://one", "sender")
    assert "enforce=privileged" in caught.value.remedy
    (kubectl / "refuses").unlink()
    (kubectl / "ended").unlink()
    (kubectl / "hangs").touch()
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    status = {"status": {"containerStatuses": [{"state": {"waiting": waiting}}]}}
    (kubectl / "status").write_text(json.dumps(status))
    with pytest.raises(PlanewiseError, match=r"does not start on k8s://one .*: ErrImagePull: not"):
        open_host("k8s://one", "sender")
    assert (kubectl / "ended").exists()


def test_a_machine_without_kubectl_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match="no program `kubectl` on this machine"):
        open_host("k8s://one", "sender")
