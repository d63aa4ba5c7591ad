"""The generators on a real driver: between the emulated 82576 NICs of a lab's hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from planewise.measure.trials.probe import ReceiveOutput, SendOutput, parse
from planewise.testbed.hosts.remote import LabHost

from .conftest import UpLab

pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 120.0
"""Attaching a program to the NIC resets its link."""


@pytest.fixture(scope="module")
def hosts(up: UpLab) -> Iterator[tuple[LabHost, LabHost]]:
    """Both hosts, with the cable's ends up."""
    a, b = LabHost("t", "a", name="sender"), LabHost("t", "b", name="responder")
    states = [host.read_text("/sys/class/net/pf1/flags") for host in (a, b)]
    for host in (a, b):
        host.run(["ip", "link", "set", "pf1", "up"]).check()
    yield a, b
    for host, state in zip((a, b), states, strict=True):
        was_up = int(state, 16) & 1
        host.run(["ip", "link", "set", "pf1", "up" if was_up else "down"]).check()
        host.close()


def test_what_the_kernel_sends_by_an_igb_the_kernel_counts_at_the_other(
    hosts: tuple[LabHost, LabHost],
) -> None:
    a, b = hosts
    first, count = time.time_ns(), 2000
    numbers = ("--first", str(first), "--count", str(count))
    counting = (b.probe, "receive", "--rx", "pf1", "--sink", "xdp-native", *numbers)
    # The driver takes XDP frames only once it has a program of its own: a sink that hears nothing.
    opening = (a.probe, "receive", "--rx", "pf1", "--sink", "xdp-native", *numbers)
    mac = b.read_text("/sys/class/net/pf1/address").strip()
    send = (
        *(a.probe, "send", "--tx", "pf1", "--backend", "live", "--first", str(first)),
        *("--rate", "1000", "--duration", "2", "--max-pps", "10M"),
        *("--src", "198.18.9.1", "--dst", "198.18.9.2", "--dst-mac", mac),
    )
    with a.start(opening) as opened, b.start(counting) as listening:
        for sink in (opened, listening):
            sink.wait_ready("ready", PATIENCE_S)
        for host in hosts:
            up = "until [ $(cat /sys/class/net/pf1/carrier) = 1 ]; do sleep 0.1; done"
            host.run(["sh", "-c", up], timeout_s=PATIENCE_S).check()
        sent = parse(a.run(send, timeout_s=PATIENCE_S), SendOutput)
        time.sleep(2)  # a time that the result depends on
        listening.interrupt()
        got = parse(listening.wait(PATIENCE_S), ReceiveOutput)
        opened.interrupt()
        opened.wait(PATIENCE_S)
    print(f"{sent.sent} sent, {got.received} received by {got.sink.backend}; {sent.drops}")
    assert sent.error is None
    assert got.error is None
    assert sent.generator.backend == "live"
    assert got.sink.backend == "xdp-native"
    assert got.duplicate == 0
    # An emulated host stands still for some time, and its NIC's ring overflows then.
    assert sent.sent >= count / 2
    assert got.received >= sent.sent / 2
