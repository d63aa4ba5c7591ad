"""Sweeps of real systems: the namespace router (IPv6) and planes."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from planewise.store.rundir import RunReader
from planewise.testbed.hosts import ledger, netns
from tests.command import UNREPORTED, in_this_process, planewise
from tests.linux.test_runs import nothing_is_left

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


def made() -> set[str]:
    """Namespaces, notes of them and scratch directories: this process's own, too."""
    scratch = Path(tempfile.gettempdir()).glob("pw-scratch-*")
    return {*netns.names(), *map(str, ledger.STATE.glob("*")), *map(str, scratch)}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--plane", "nope"), "no plane called 'nope'"),
        ((), "give one of --plane, --router, or --tx with --rx"),
        (("--plane", "veth", "--router"), "give one of"),
        (("--tx", "a"), "--tx, --rx and --dst go together"),
        (("--router", "--ip", "5"), "'5' is not one of '4', '6'"),
        (("--router", "--loads", "10k,fast"), "`fast` is not a rate"),
        (("--router", "--loads", "10k"), "a curve needs two loads"),
        (("--router", "--duration", "0"), "--duration: 0 is out of range"),
        (("--router", "--runs", "0"), "--runs: 0 is out of range"),
        (("--router", "--size", "20"), "frame of 20 bytes is not possible"),
        (
            ("--tx", "lo", "--rx", "lo@no-such-ns", "--dst", "198.18.0.1"),
            "--rx: there is no network namespace 'no-such-ns'",
        ),
        (("--tx", "no-such-if", "--rx", "no-such-if", "--dst", "198.18.0.1"), "no-such-if"),
    ],
)
def test_bad_flags_of_a_sweep_get_one_clear_sentence(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    before = made()
    run = ("sweep", *arguments, "--out", tmp_path / "run")
    code, _, said = in_this_process(capsys, monkeypatch, *run)
    assert code == 2
    assert words in said.replace("\n", " ")
    assert "Traceback" not in said
    assert made() == before


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
        deadline = time.monotonic() + 60
        trials = out / "trials.jsonl"
        while not (trials.exists() and trials.stat().st_size):
            assert running.poll() is None, running.stderr and running.stderr.read()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        pair.delete()
        _, said = running.communicate(timeout=60)
    assert running.returncode == 2, said
    assert f"--tx: there is no interface {pair.tx} in {pair.netns}" in said.replace("\n", " ")
    assert RunReader(out).info.status == "failed"


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
    trials = out / "trials.jsonl"
    deadline = time.monotonic() + 60
    while not (trials.exists() and trials.read_bytes().count(b"\n") >= 3):
        assert running.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
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
