"""The allocating daemon on a lab's host: what its tests do to it, and see of it."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from planewise.testbed.hosts.remote import LabHost
from planewise.testbed.hosts.remote_host import RemoteProcess

PATIENCE_S = 240.0
"""Nothing of this takes a tenth of it on a quiet machine; a loaded one may take its time."""

PPS = 500
"""Requests a second: with the answers, 1000 packets a second pass the guest's interface."""

BESIDE_PPS = 50
"""The same of the guest beside it."""

DIRECTORY = "/run/pw-alloc"

SETTINGS = f"""
socket = "{DIRECTORY}/socket"
state_directory = "{DIRECTORY}/state"
sample_s = {{sample_s}}
[pool]
pfs = ["pf1"]
[alloc]
policy = "activity"
interval_s = {{interval_s}}
min_residency_s = 0.0
idle_pps = 100.0
signal = {{{{ smoothing = {{{{ window = 2.0 }}}} }}}}
"""

FIRST = "class = 1"
"""In the table of a guest: it holds the VF while it is not idle, however busy the others are.

An emulated host may have too little CPU left beside 1000 packets a second to send more."""

STEPS = (
    "give/reserve/before",
    "inside/attach",
    "give/attach/after",
    "give/await-path/after",
    "inside/prefer-vf",
    "give/prefer/after",
    "give/direct/after",
    "give/verify/after",
    "take/verify/after",
    "inside/prefer-veth",
    "take/prefer/after",
    "take/direct/after",
    "inside/detach",
    "take/detach/after",
    "take/clear-mac/after",
    "take/reset/after",
    "take/release/after",
)
"""Every step of a move of a container; `inside` is between the changes that a step makes."""


def shell(host: LabHost, script: str, timeout_s: float = PATIENCE_S) -> str:
    return host.run(["sh", "-ec", script], timeout_s=timeout_s).check().stdout


def until(host: LabHost, condition: str) -> None:
    """Waits on the host for a condition; where it does not come, what the daemon says is told."""
    end = f"[ $(date +%s) -ge $(( begun + {PATIENCE_S * 3 / 4:.0f} )) ]"
    script = f"begun=$(date +%s); until {condition}; do if {end}; then exit 1; fi; sleep 0.1; done"
    if host.run(["sh", "-c", script], timeout_s=PATIENCE_S).exit_code:
        there = host.run(["test", "-S", f"{DIRECTORY}/socket"]).exit_code == 0
        pytest.fail(f"not so: {condition}; the daemon: {ask(host, '/status') if there else None}")


def configure(host: LabHost, text: str, name: str = "config.toml") -> str:
    path = f"{DIRECTORY}/{name}"
    host.run(["tee", path], stdin=text.encode()).check()
    return path


def running(host: LabHost, config: str, program: str = "/tmp/pw-planewised") -> RemoteProcess:
    daemon = host.start([program, "daemon", "--config", config])
    until(host, f"[ -S {DIRECTORY}/socket ]")
    return daemon


def ask(host: LabHost, path: str, method: str = "GET", body: Any = None) -> Any:
    """What the daemon's socket answers."""
    connection = http.client.HTTPConnection("planewise", timeout=PATIENCE_S)
    connection.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.sock.settimeout(PATIENCE_S)
    connection.sock.connect(host.socket(f"{DIRECTORY}/socket"))
    connection.request(method, path, None if body is None else json.dumps(body))
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    return json.loads(answer.read())


def holder(host: LabHost) -> str | None:
    """Who has the one VF; none also while the daemon has not looked yet."""
    held = [vf["holder"] for vf in ask(host, "/status")["vfs"] if vf["holder"]]
    assert len(held) <= 1
    return str(held[0]) if held else None


@dataclass(frozen=True)
class Round:
    """A stream to a guest that the VF is taken from and given to, and one to a guest beside it."""

    moved: dict[str, Any]
    beside: dict[str, Any]
    """To a guest of that host whom the daemon does not know. Both as `pw-probe ping` says it."""
    ways: list[str]
    followed_s: list[float]
    """From each change of load to the VF being where it belongs; of the emulated hosts' time."""

    @property
    def lost(self) -> int:
        """Packets that the moved guest lost."""
        return int(self.moved["counts"]["lost"])

    @property
    def whole(self) -> bool:
        """The VF came and went under traffic, and no packet was lost."""
        return self.lost == 0 and {"take", "give"} <= set(self.ways)

    @property
    def quiet(self) -> bool:
        """The emulated hosts did not stand still for long enough for a ring to overflow."""
        stall_s = self.beside["rtt_user"]["max_ns"] / 1e9
        dropped = self.moved["receive_dropped"] + self.beside["receive_dropped"]
        return bool(self.beside["counts"]["lost"] + dropped == 0 and stall_s < 0.2)

    @property
    def lossy(self) -> bool:
        """It lost packets, and no stall explains it: that overflows NICs' rings on any path."""
        return self.quiet and self.lost > 0

    def __str__(self) -> str:
        moved, beside = self.moved["counts"], self.beside["counts"]
        still = "" if self.quiet else ", the hosts stood still"
        return (
            f"{moved['lost']} of {moved['sent']} in {len(self.ways)} moves, {moved['duplicate']} "
            f"came twice (unmoved: {beside['lost']} of {beside['sent']}{still}; the VF follows "
            f"after {', '.join(f'{one:.1f}' for one in self.followed_s)} s)"
        )


@dataclass(frozen=True)
class Guest:
    """Who may hold the VF, in a network namespace of host a."""

    id: str
    netns: str
    address: str


NAMESPACES = tuple(Guest(f"pwg{i}", f"pwg{i}", f"198.18.7.1{i}") for i in range(3))


def blast(a: LabHost) -> list[str]:
    """Sends to nobody."""
    rate = ["--rate", str(PPS), "--burst", "5", "--size", "64"]
    return [a.probe, "blast", "--to", "198.18.7.99:9", *rate]


def shifted(
    a: LabHost,
    b: LabHost,
    duration_s: int,
    guests: Sequence[Guest] = NAMESPACES,
    reflecting: bool = False,
) -> Round | None:
    """Traffic to guest 0 throughout, and for a while of guest 1: the VF goes and comes back.

    None where a stream did not come about. `reflecting`: the guests answer by themselves. Echo
    requests will not do: of those that come at once after a pause, a guest's kernel leaves all but
    some 170 unanswered (its socket for ICMP has no more room until the NIC has sent the answers),
    on whichever path they came.
    """
    before = len(ask(a, "/status")["moves"])

    def moved() -> list[dict[str, Any]]:
        return [move for move in ask(a, "/status")["moves"][before:] if move["ending"]]

    first, second, beside = guests
    with ExitStack() as stack:
        for guest in () if reflecting else (first, beside):
            reflect = [a.probe, "reflect", "--poll-us", "0", "--with-parent"]
            reflector = stack.enter_context(a.start(reflect, netns=guest.netns))
            reflector.wait_ready("ready", PATIENCE_S)
        streams = []
        for guest, pps in ((first, PPS), (beside, BESIDE_PPS)):
            ping = [b.probe, "ping", guest.address, "--proto", "stamp", "--no-watch"]
            ping += ["--timeout", "5", "--rate", str(pps), "--duration", str(duration_s)]
            streams.append(stack.enter_context(b.start(ping)))
        # Moves that end when a stream has ended did not go through it.
        moves: list[dict[str, Any]] = []
        followed_s = []
        for busy in (first, second, first):
            begun = time.monotonic()
            with a.start(blast(a) if busy is second else ["true"], netns=second.netns):
                while holder(a) != busy.id and all(stream.running for stream in streams):
                    time.sleep(0.1)
            if all(stream.running for stream in streams):
                moves = moved()
                followed_s.append(time.monotonic() - begun)
        ended = [stream.wait(PATIENCE_S) for stream in streams]
    if any(done.exit_code for done in ended):
        return None
    told = [json.loads(done.stdout) for done in ended]
    return Round(told[0], told[1], [move["direction"] for move in moves], followed_s[1:])


def followed(
    a: LabHost,
    b: LabHost,
    what: str,
    guests: Sequence[Guest],
    said: list[str],
    reflecting: bool = False,
) -> list[Round]:
    """Has the VF follow the first two guests' traffic, until a round was whole or many were not."""
    first, second, _ = guests
    for guest in (first, second):
        until(b, f"ping -c 1 -W 1 {guest.address} >/dev/null")
    # Nobody's address, by the other host: what guest 1 sends there is dropped there.
    peer = b.read_text("/sys/class/net/pf1/address").strip()
    nobody = f"neighbour replace 198.18.7.99 lladdr {peer} dev eth0 nud permanent"
    shell(a, f"ip -n {second.netns} {nobody}")
    with a.start(blast(a), netns=second.netns):
        begun = time.monotonic()
        while holder(a) != second.id:
            assert time.monotonic() - begun < PATIENCE_S, ask(a, "/status")
            time.sleep(0.1)
    rounds: list[Round] = []
    duration_s, begun = 10, time.monotonic()
    while time.monotonic() - begun < PATIENCE_S / 2 and sum(one.lossy for one in rounds) < 3:
        one = shifted(a, b, duration_s, guests, reflecting)
        rounds += [one] if one else []
        if one and one.whole:
            break
        duration_s = min(2 * duration_s, 40)
    status = ask(a, "/status")
    moves = [move for move in status["moves"] if move["ending"]]
    assert all(move["ending"]["how"] == "completed" for move in moves)
    assert status["errors"] == [], status["errors"]
    took = {
        way: [move["duration_ms"] for move in moves if move["direction"] == way]
        for way in ("give", "take")
    }
    switches = [
        step["duration_ms"]
        for move in moves
        for step in move["steps"]
        if " send by " in step["step"]
    ]
    said.append(
        f"{what}, lost under {2 * PPS} packets/s: "
        + "; ".join(str(one) for one in rounds)
        + f"; give {min(took['give']):.0f} to {max(took['give']):.0f} ms, take "
        f"{min(took['take'], default=0):.0f} to {max(took['take'], default=0):.0f} ms, of "
        f"which the switch {min(switches):.0f} to {max(switches):.0f} ms"
    )
    return rounds


def judge(rounds: Sequence[Round], told: str) -> None:
    """Fails where quiet rounds lost packets or moved nothing; skips where no round was quiet."""
    assert sum(one.lossy for one in rounds) < 3, told
    # On hosts that stand still a move takes half a minute; otherwise a VF that stays is a fault.
    quiet = [one for one in rounds if one.quiet]
    assert len(quiet) < 2 or any({"take", "give"} <= set(one.ways) for one in quiet), told
    if not rounds or not rounds[-1].whole:
        pytest.skip(f"no round had the VF go and come back without a stall: {told}")


def assert_whole_after_kills(
    a: LabHost, daemon: str, guests: Sequence[Guest], steps: Sequence[str] = STEPS
) -> None:
    """Kills the daemon at these steps; its configuration for each guest is NETNS.toml."""
    script = (Path(__file__).parent / "kills.sh").read_text()
    addresses = ["198.18.7.1", *(guest.address for guest in guests)]
    known = {
        "DIRECTORY": DIRECTORY,
        "MOMENTS": " ".join(steps),
        "DAEMON": daemon,
        "GUESTS": " ".join(guest.netns for guest in guests),
        "ADDRESSES": " ".join(addresses),
    }
    lines = "".join(f'{name}="{value}"\n' for name, value in known.items())
    told = shell(a, lines + script, timeout_s=850)
    whole = ["whole after the start", *(f"whole after {moment}" for moment in steps)]
    assert told.splitlines() == whole, told
