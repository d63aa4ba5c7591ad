"""Sweeps of real systems: the namespace router (IPv6) and planes."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from planewise.store.rundir import RunReader
from tests.command import UNREPORTED, planewise
from tests.linux.test_runs import nothing_is_left
from tests.running import trials_in, until

WORDS = {"GOOD", "BAD", "UNDECIDED"}


def test_a_sweep_until_the_verdict_on_the_ipv6_router(tmp_path: Path) -> None:
    out = tmp_path / "run"
    finished = planewise(
        *("sweep", "--router", "--ip", "6", "--until-verdict", "--runs", "4", "--steps", "6"),
        *("--duration", "0.1", "--out", out, "--json"),
    )
    assert finished.returncode == 0, finished.stderr
    answer = json.loads(finished.stdout)
    assert answer["verdict"] in WORDS
    assert answer["reason"]
    assert 0 < answer["disturbed_at_most"] <= 1
    trials = RunReader(out).trials()
    assert len(trials) == answer["trials"]
    # The ladder may be made longer where it ends too early; each load's runs stay bounded.
    loads = {trial.load.intended_pps for trial in trials if trial.load}
    assert len(loads) >= 6
    for trial in trials:
        assert trial.cell["plane"] == "router"
        assert trial.counts is not None
        assert trial.counts.sent == trial.counts.received + trial.counts.lost
    assert "<html" in (out / "report.html").read_text()
    judged = planewise("judge", out, "--json")
    assert judged.returncode == 0, judged.stderr
    assert json.loads(judged.stdout)[0]["verdict"] == answer["verdict"]
    assert nothing_is_left()


def test_a_sweep_with_require_good_exits_3_when_it_is_not_good(tmp_path: Path) -> None:
    finished = planewise(
        *("sweep", "--plane", "veth", "--loads", "1000,2000,3000", "--runs", "2"),
        *("--duration", "0.05", "--out", tmp_path / "run", "--require-good"),
    )
    assert finished.returncode == 3, finished.stderr
    assert "UNDECIDED" in finished.stderr
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.apart
@pytest.mark.parametrize("command", ["sweep", "search"])
def test_a_named_interface_that_vanishes_meanwhile_is_bad_input(
    tmp_path: Path, command: str
) -> None:
    with Veth() as pair:
        out = tmp_path / "run"
        arguments = [
            *(command, "--tx", f"{pair.tx}@{pair.netns}", "--rx", f"{pair.rx}@{pair.netns}"),
            *("--dst", "198.18.0.2", "--dst-mac", "rx", "--out", str(out)),
        ]
        if command == "sweep":
            arguments += ["--loads", "1000,2000,3000", "--runs", "100", "--duration", "0.2"]
        running = subprocess.Popen(
            [sys.executable, "-m", "planewise", *arguments],
            stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            text=True,
        )
        until(lambda: trials_in(out), process=running)
        pair.delete()
        _, said = running.communicate(timeout=60)
    assert running.returncode == 2, said
    assert f"--tx: there is no interface {pair.tx} in {pair.netns}" in said.replace("\n", " ")
    assert RunReader(out).info.status == "failed"
    assert nothing_is_left()


@pytest.mark.parametrize(
    "command",
    [
        ("sweep", "--loads", "1000,2000,3000", "--runs", "5", "--duration", "0.2"),
        pytest.param(("search", "--goal", "pdr:0.005", "--budget", "6"), marks=pytest.mark.long),
    ],
)
def test_a_sweep_or_search_cut_short_goes_on_with_the_command_that_began_it(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    out = tmp_path / "run"
    arguments = (*command, "--plane", "veth", "--out", str(out))
    running = subprocess.Popen(
        [*UNREPORTED, *arguments],
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    until(lambda: trials_in(out) >= 3, process=running)
    running.send_signal(signal.SIGINT)
    running.wait(timeout=60)
    before = RunReader(out)
    assert before.info.status == "interrupted"
    had = [trial.trial for trial in before.trials()]

    another = planewise(*arguments[:-4], "--plane", "bridge", "--out", out)
    finished = planewise(*arguments, report=False)

    assert another.returncode == 2
    assert "is not empty" in another.stderr
    assert finished.returncode == 0, finished.stderr
    assert f"which has {len(had)} trials" in " ".join(finished.stderr.split())
    after = RunReader(out)
    assert after.info.status == "done"
    assert len(after.info.sessions) == 2
    names = [trial.trial for trial in after.trials()]
    assert names[: len(had)] == had
    assert len(set(names)) == len(names) > len(had)
    if command[0] == "sweep":  # a trial that the generator limited is made again
        assert sum(not trial.is_bound for trial in after.trials()) == 15


def test_a_path_that_passes_nothing_is_an_error_that_says_how_far_frames_came(
    tmp_path: Path,
) -> None:
    token = secrets.token_hex(3)
    sender, router, receiver = (f"pw-t{token}{end}" for end in "abc")
    steps = f"""
        netns add {sender}\nnetns add {router}\nnetns add {receiver}
        link add a0 netns {sender} type veth peer name r0 netns {router}
        link add b0 netns {receiver} type veth peer name r1 netns {router}
        -n {sender} addr add 198.18.1.1/24 dev a0\n-n {sender} link set a0 up
        -n {router} addr add 198.18.1.2/24 dev r0\n-n {router} link set r0 up
        -n {router} addr add 198.18.2.2/24 dev r1\n-n {router} link set r1 up
        -n {receiver} addr add 198.18.2.1/24 dev b0\n-n {receiver} link set b0 up
        -n {sender} route add default via 198.18.1.2
        netns exec {router} sysctl -qw net.ipv4.ip_forward=0
    """
    try:
        for step in steps.split("\n"):
            subprocess.run(["ip", *step.split()], check=bool(step.strip()), capture_output=True)
        out = tmp_path / "run"
        finished = planewise(
            *("sweep", "--tx", f"a0@{sender}", "--rx", f"b0@{receiver}", "--dst", "198.18.2.1"),
            *("--loads", "1000,2000", "--runs", "1", "--duration", "0.1", "--out", out),
        )
    finally:
        for netns_name in (sender, router, receiver):
            subprocess.run(["ip", "netns", "del", netns_name], check=False)

    assert finished.returncode == 1
    said = " ".join(finished.stderr.split())
    assert f"nothing arrived at b0@{receiver}: all of 510 frames that a0@{sender} sent" in said
    assert f"received by r0@{router}" in said
    assert f"ip netns exec {router} sysctl net.ipv4.ip_forward" in said
    assert RunReader(out).info.status == "failed"


class Veth:
    """A veth pair in a namespace of its own, both ends in it."""

    def __enter__(self) -> Veth:
        token = secrets.token_hex(3)
        self.netns, self.tx, self.rx = f"pw-t{token}", f"pwt{token}", f"pwr{token}"
        try:
            self._ip("netns", "add", self.netns)
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no namespace may be made here: {error.stderr}")
        self._ip(
            *("-n", self.netns, "link", "add", self.tx, "type", "veth", "peer", "name", self.rx)
        )
        self._ip("-n", self.netns, "address", "add", "198.18.0.1/24", "dev", self.tx)
        for end in (self.tx, self.rx):
            self._ip("-n", self.netns, "link", "set", end, "up")
        return self

    def delete(self) -> None:
        self._ip("-n", self.netns, "link", "delete", self.tx)

    def __exit__(self, *_: object) -> None:
        self._ip("netns", "delete", self.netns)

    @staticmethod
    def _ip(*arguments: str) -> None:
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
