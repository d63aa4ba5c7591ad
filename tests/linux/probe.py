"""Runs pw-probe on small networks of real namespaces, for the tests of the probe itself."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planewise.testbed.hosts.host import find_probe
from planewise.testbed.hosts.ledger import Ownership


def ip(*args: str) -> None:
    """Runs ip(8)."""
    subprocess.run(["ip", *args], check=True, capture_output=True, text=True)


@dataclass(frozen=True)
class End:
    """One end of a cable: a namespace with one interface."""

    netns: str
    interface: str
    ipv4: str
    ipv6: str

    @property
    def spec(self) -> str:
        """As pw-probe names it."""
        return f"{self.interface}@{self.netns}"

    def run(self, *argv: str) -> str:
        """Runs a command here; its stdout."""
        command = ["ip", "netns", "exec", self.netns, *argv]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    @property
    def mac(self) -> str:
        """Its MAC address."""
        return str(json.loads(self.run("ip", "-j", "link", "show", self.interface))[0]["address"])

    def counter(self, name: str) -> int:
        """One of the interface's counters."""
        shown = self.run("ip", "-s", "-j", "link", "show", self.interface)
        direction, field = name.split("_", 1)
        return int(json.loads(shown)[0]["stats64"][direction][field])


@dataclass(frozen=True)
class Network:
    """Two ends, and the namespace between them where there is one."""

    a: End
    b: End
    middle: str = ""


@contextmanager
def _namespaces(count: int) -> Iterator[list[str]]:
    """Named and owned as a testbed's are: after a kill -9, `planewise clean` finds them."""
    owned = Ownership.take("a network of tests or benches")
    names = [owned.name(f"n{index}") for index in range(count)]
    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
            ip("-n", name, "link", "set", "lo", "up")
        yield names
    finally:
        for name in made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        owned.release()


def _end(netns: str, number: int) -> End:
    end = End(netns, f"veth{number}", f"198.18.0.{number + 1}", f"2001:2::{number + 1}")
    ip("-n", netns, "address", "add", f"{end.ipv4}/24", "dev", end.interface)
    ip("-n", netns, "address", "add", f"{end.ipv6}/64", "dev", end.interface, "nodad")
    ip("-n", netns, "link", "set", end.interface, "up")
    return end


def _cable(one: str, one_if: str, other: str, other_if: str) -> None:
    ip(
        *("link", "add", one_if, "netns", one),
        *("type", "veth", "peer", "name", other_if, "netns", other),
    )


@contextmanager
def cable() -> Iterator[Network]:
    """Two namespaces joined by a veth pair."""
    with _namespaces(2) as (a, b):
        _cable(a, "veth0", b, "veth1")
        network = Network(_end(a, 0), _end(b, 1))
        # IPv6 hears of a new link within a second; at once where it is asked for (Linux 6.7).
        for end in (network.a, network.b):
            ip("-n", end.netns, "link", "show", "dev", end.interface)
        network.a.run("ping", "-q", "-c", "1", "-w", "20", "-i", "0.1", network.b.ipv6)
        yield network


@contextmanager
def relay() -> Iterator[Network]:
    """The same with a third namespace between, which has `left` and `right` and passes nothing on
    by itself."""
    with _namespaces(3) as (a, b, middle):
        _cable(a, "veth0", middle, "left")
        _cable(b, "veth1", middle, "right")
        for interface in ("left", "right"):
            ip("-n", middle, "link", "set", interface, "up")
        yield Network(_end(a, 0), _end(b, 1), middle)


def without_ipv6(*namespaces: str) -> None:
    """Nothing but what a test sends shall pass: IPv6 introduces itself for seconds."""
    for netns in namespaces:
        off = ("sysctl", "-q", "-w", "net.ipv6.conf.all.disable_ipv6=1")
        subprocess.run(["ip", "netns", "exec", netns, *off], check=True)


@dataclass(frozen=True)
class Outcome:
    """What pw-probe did."""

    code: int
    output: dict[str, Any]
    stderr: str


def run(*args: str | Path, netns: str = "", timeout_s: float = 60, **options: Any) -> Outcome:
    """Runs pw-probe to its end."""
    prefix = ["ip", "netns", "exec", netns] if netns else []
    done = subprocess.run(
        [*prefix, find_probe(), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        **options,
    )
    return Outcome(done.returncode, json.loads(done.stdout or "{}"), done.stderr)


class Running:
    """pw-probe in the background; leaving the `with` block kills what is left of it."""

    def __init__(self, *args: str | Path, netns: str = "") -> None:
        prefix = ["ip", "netns", "exec", netns] if netns else []
        self.process = subprocess.Popen(
            [*prefix, find_probe(), *map(str, args)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_ready(self) -> None:
        """Returns once it says `ready`."""
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line == "ready\n", line + self.process.stderr.read()

    def finish(self, timeout_s: float = 30) -> Outcome:
        """Waits for its own end."""
        stdout, stderr = self.process.communicate(timeout=timeout_s)
        return Outcome(self.process.returncode, json.loads(stdout or "{}"), stderr)

    def stop(self) -> Outcome:
        """Interrupts it (SIGTERM) and waits."""
        self.process.terminate()
        return self.finish()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def eventually(condition: Any, limit_s: float = 20) -> None:
    """Waits until `condition()` holds; fails the test when it never does."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "what was waited for never came"
        time.sleep(0.02)


_FORWARDER = r"""
import select, socket, sys
left, right = (socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) for _ in range(2))
for it, name in ((left, "left"), (right, "right")):
    it.setsockopt(socket.SOL_SOCKET, 33, 8 << 20)  # SO_RCVBUFFORCE
    it.bind((name, 0))
warmup, held = None, []
drop, twice, hold = (int(x) for x in sys.argv[1:4])
print("ready", flush=True)
while True:
    for it in select.select([left, right], [], [])[0]:
        frame, (_, _, kind, *_) = it.recvfrom(65535)
        if kind == socket.PACKET_OUTGOING:
            continue
        other = right if it is left else left
        if it is right or frame[42:44] != b"PW":
            other.send(frame)
            continue
        sequence = int.from_bytes(frame[44:52], "big")
        warmup = sequence if warmup is None else warmup
        place = (sequence - warmup - 1) % 10
        if sequence == warmup:
            other.send(frame)
        elif place == drop:
            pass
        elif place == hold:
            held.append(frame)
        else:
            other.send(frame)
            if place == twice:
                other.send(frame)
            while held:
                other.send(held.pop())
"""


@contextmanager
def passing_on(netns: str, script: str, *options: float) -> Iterator[None]:
    """Runs a script in a namespace that says `ready` and passes frames on, until this ends."""
    command = ["ip", "netns", "exec", netns, sys.executable, "-c", script, *map(str, options)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def forwarder(netns: str, *, drop: int = -1, twice: int = -1, hold: int = -1) -> Iterator[None]:
    """Passes frames on between `left` and `right`. Of every ten frames of an IPv4 trial it drops
    the one at place `drop`, sends the one at `twice` twice, and the one at `hold` after the next.
    """
    with passing_on(netns, _FORWARDER, drop, twice, hold):
        yield
