"""Programs of others that trials start in guests; virtual machines get them from this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from planewise.errors import PlanewiseError
from planewise.measure.trials.probe import START_S
from planewise.testbed.hosts.host import Host, HostProcess

IPERF = "iperf3"
IPERF_PORT = 5201
REDIS = "redis-server"
REDIS_PORT = 6379

_LISTEN, _ESTABLISHED = "0A", "01"
"""States of a socket in /proc/net/tcp."""
_FIRST_POLL_S, _LAST_POLL_S = 0.02, 0.5


def lacking(hosts: Iterable[Host], programs: Sequence[str]) -> str:
    """Which of these hosts lacks a program, and how to install it; empty where all are there."""
    for host in hosts:
        for program in programs:
            if host.run(["sh", "-c", f"command -v {program}"]).exit_code:
                return f"there is no {program} on {host.place} (`apt-get install {program}`)"
    return ""


def _await_socket(
    host: Host, netns: str, address: str, port: int, state: str, process: HostProcess
) -> bool:
    """Whether a TCP port of a guest came into this state before the process ended, and in time."""
    deadline = time.monotonic() + START_S
    pause_s = _FIRST_POLL_S
    while process.running and time.monotonic() < deadline:
        text = host.read_text(f"/proc/net/tcp{'6' * (':' in address)}", netns=netns)
        rows = [line.split() for line in text.splitlines()[1:]]
        if any(row[1].endswith(f":{port:04X}") and row[3] == state for row in rows):
            return True
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LAST_POLL_S)
    return False


def _await_listening(
    host: Host, netns: str, program: str, address: str, port: int, process: HostProcess
) -> None:
    """Returns once a server's program in a guest has opened its TCP port.

    Raises:
        PlanewiseError: the process ended, or does not listen in time.
    """
    if _await_socket(host, netns, address, port, _LISTEN, process):
        return
    if not process.running:
        finished = process.wait().check()
        raise PlanewiseError(
            f"{program} ended before it listened: {finished.stdout[-200:].strip()}"
        )
    raise PlanewiseError(
        f"{program} does not listen within {START_S:g} s",
        remedy="stop other work on the machine, and try again",
    )


def iperf_connects(host: Host, netns: str, address: str, client: HostProcess) -> bool:
    """Waits until a client has a connection to iperf's server in a guest; whether it came."""
    return _await_socket(host, netns, address, IPERF_PORT, _ESTABLISHED, client)


@contextmanager
def iperf_server(host: Host, netns: str, address: str) -> Iterator[HostProcess]:
    """A server in a guest that listens, for one client. Errors as `_await_listening`."""
    argv = [IPERF, "-s", "-1", "-B", address, "-p", str(IPERF_PORT), "--json"]
    with host.start(argv, netns=netns) as server:
        _await_listening(host, netns, IPERF, address, IPERF_PORT, server)
        yield server


def start_answering(
    protocol: str, host: Host, guests: Iterable[tuple[str, str]], stack: ExitStack
) -> None:
    """Starts what answers probes of a protocol in each guest (namespace and address) while `stack`
    is open, where the kernel does not; returns once all listen."""
    if protocol == "stamp":
        for netns, _ in guests:
            reflector = stack.enter_context(host.start([host.probe, "reflect"], netns=netns))
            reflector.wait_ready("ready", START_S)
    if protocol != "redis":
        return
    servers = [
        (netns, address, stack.enter_context(host.start(redis_command(address), netns=netns)))
        for netns, address in guests
    ]
    for netns, address, server in servers:
        _await_listening(host, netns, REDIS, address, REDIS_PORT, server)


def redis_command(address: str) -> list[str]:
    """A Redis server for one guest that keeps nothing: what it answers is in its memory alone.

    It asks for no password: only the testbed's guests reach that address.
    """
    return [
        *(REDIS, "--bind", address, "--port", str(REDIS_PORT), "--protected-mode", "no"),
        *("--save", "", "--appendonly", "no", "--loglevel", "warning"),
    ]


def redis_frame_bytes(message_bytes: int) -> int:
    """Ethernet frame with FCS of a request that travels alone over IPv4. Pure.

    TCP has its timestamps; the request is `ECHO` of the message in RESP 2 (redis.io).
    """
    around = len(b"*2\r\n$4\r\nECHO\r\n$\r\n\r\n") + len(str(message_bytes))
    return 14 + 20 + 32 + around + message_bytes + 4


REDIS_LEAST_BYTES = redis_frame_bytes(16)
"""The smallest frame of a request: 16 digits tell requests apart."""


def is_redis_frame(size_bytes: int) -> bool:
    """Whether a request makes a frame of just this size: one more digit of its length skips one."""
    longest = 16 + size_bytes - REDIS_LEAST_BYTES
    return any(redis_frame_bytes(n) == size_bytes for n in range(max(16, longest - 4), longest + 1))
