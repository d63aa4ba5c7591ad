"""The parts of a round trip add up to it in every packet, and lie where they were planted."""

from __future__ import annotations

import errno
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import polars as pl
import pytest

from planewise.measure.station import End, Place, Station
from planewise.measure.trials.rtt import RttTrial
from planewise.measure.trials.stamps import parts_ns
from planewise.testbed.hosts import netns
from planewise.testbed.hosts.host import FinishedProcess, LocalHost, LocalProcess
from planewise.testbed.hosts.ledger import Ownership
from planewise.testbed.hosts.netns import NamespaceThread
from planewise.testbed.model import CapturePoint, Guest, HostRole, inside
from planewise.testbed.plan import Step, add_veth, new_namespace, set_address, set_up

SENDER_DELAY_S = 0.004
RESPONDER_DELAY_S = 0.002
PACKETS = 40

ETH_P_ALL = 0x0003
PACKET_OUTGOING = 4


def plan_chain(names: dict[str, str]) -> list[Step]:
    """guest - sender host - wire - responder host - guest; the hosts forward in user space."""
    steps: list[Step] = []
    for name in names.values():
        steps += new_namespace(name)
    links = (
        ("guest_a", "eth0", "02:70:77:60:00:01", "sender", "port0", "02:70:77:60:00:02"),
        ("sender", "wire0", "02:70:77:60:00:03", "responder", "wire0", "02:70:77:60:00:04"),
        ("responder", "port0", "02:70:77:60:00:05", "guest_b", "eth0", "02:70:77:60:00:06"),
    )
    for number, (left, left_if, left_mac, right, right_if, right_mac) in enumerate(links):
        index = 20 + number  # of its own: see add_veth
        steps.append(
            add_veth(names[left], left_if, index, left_mac, names[right], right_if, right_mac, 1500)
        )
        steps += [set_up(names[left], left_if), set_up(names[right], right_if)]
    steps += [
        set_address(names["guest_a"], "eth0", "198.18.0.1/15"),
        set_address(names["guest_b"], "eth0", "198.18.0.2/15"),
    ]
    return steps


def packet_socket(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
    opened.bind((interface, ETH_P_ALL))
    return opened


def send(out: socket.socket, frame: bytes) -> None:
    """Sends; again, for a second, where the machine is too busy to take the frame."""
    for left in reversed(range(1000)):
        try:
            out.send(frame)
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS or not left:
                raise
            time.sleep(0.001)


def forward(
    towards: socket.socket, back: socket.socket, delay_s: float, stop: threading.Event
) -> None:
    """Copies frames between two interfaces; those towards the responder sleep first."""
    while not stop.is_set():
        for ready in select.select([towards, back], [], [], 0.05)[0]:
            frame, address = ready.recvfrom(2048)
            if address[2] == PACKET_OUTGOING:
                continue
            if ready is towards:
                time.sleep(delay_s)
                send(back, frame)
            else:
                send(towards, frame)


@contextmanager
def forwarder(where: str, towards: str, back: str, delay_s: float) -> Iterator[None]:
    thread = NamespaceThread("forwarder")
    opened = [thread.call(where, packet_socket, interface) for interface in (towards, back)]
    stop = threading.Event()
    worker = threading.Thread(target=forward, args=(*opened, delay_s, stop))
    worker.start()
    try:
        yield
    finally:
        stop.set()
        worker.join()
        for one in opened:
            one.close()
        thread.close()


@pytest.fixture
def station() -> Iterator[Station]:
    netns.prepare_run()
    with ExitStack() as stack:
        ownership = Ownership.take("planted delays")
        stack.callback(ownership.release)
        short = {"guest_a": "ga", "sender": "s", "responder": "r", "guest_b": "gb"}
        names = {role: ownership.name(suffix) for role, suffix in short.items()}
        for name in names.values():
            stack.callback(netns.remove, name)
        with closing(LocalHost("here")) as here:
            here.perform(plan_chain(names))
        stack.enter_context(forwarder(names["sender"], "port0", "wire0", SENDER_DELAY_S))
        stack.enter_context(forwarder(names["responder"], "wire0", "port0", RESPONDER_DELAY_S))
        hosts: dict[HostRole, LocalHost] = {
            "sender": LocalHost("sender", names["sender"]),
            "responder": LocalHost("responder", names["responder"]),
        }
        for host in hosts.values():
            stack.callback(host.close)
        guests = {
            role: Guest(
                name=role,
                host=role,
                role="main",
                index=0,
                plane="veth",
                netns=names[f"guest_{letter}"],
                interface="eth0",
                mac="",
                ipv4=f"198.18.0.{number}",
                ipv6="",
            )
            for role, letter, number in (("sender", "a", 1), ("responder", "b", 2))
        }
        ends = {
            role: End(hosts[role], guest.netns, guest.name, guest.interface, guest.ipv4)
            for role, guest in guests.items()
        }
        yield Station(
            hosts,
            ends,
            capture_points=[
                inside(guests["sender"], "sender"),
                CapturePoint("sender_nic", "sender", names["sender"], "wire0"),
                CapturePoint("responder_nic", "responder", names["responder"], "wire0"),
                inside(guests["responder"], "responder"),
            ],
        )


def test_planted_delays_are_found_where_they_were_planted_in_every_packet(station: Station) -> None:
    trial = RttTrial("planted", frequency_pps=50, size_bytes=64, packets=PACKETS, guest_stamps=True)
    place = Place("planted", {"plane": "veth"}, 0, 0)
    result = station.measure(trial, place, lambda _: None)
    packets = result.packets
    assert packets is not None
    assert packets.height == PACKETS
    parts = parts_ns(packets)
    assert {len(values) for values in parts.values()} == {PACKETS}

    rtt = (packets["user_rx_ns"] - packets["user_tx_ns"]).to_numpy()
    wire = packets.select(
        (pl.col("sender_nic_reply_ns") - pl.col("sender_nic_request_ns"))
        - (pl.col("responder_nic_reply_ns") - pl.col("responder_nic_request_ns"))
    ).to_series()
    # What was planted is a floor for every single packet, and nothing is lost or counted twice.
    assert parts["overhead"].min() >= SENDER_DELAY_S * 1e9
    assert parts["response"].min() >= RESPONDER_DELAY_S * 1e9
    assert wire.min() >= 0  # type: ignore[operator]
    assert (parts["overhead"] + wire.to_numpy() + parts["response"] == rtt).all()
    # By layer: both guests' stacks, both hosts, and the wire. The delays are the hosts' alone.
    at_sender = parts["overhead"] - parts["sender_stack"]
    at_responder = parts["response"] - parts["responder_stack"]
    assert at_sender.min() >= SENDER_DELAY_S * 1e9
    assert at_responder.min() >= RESPONDER_DELAY_S * 1e9
    assert 0 < parts["sender_stack"].min() < SENDER_DELAY_S * 1e9
    assert 0 < parts["responder_stack"].min() < RESPONDER_DELAY_S * 1e9
    layers = (parts["sender_stack"], at_sender, wire.to_numpy(), at_responder)
    assert (sum(layers) + parts["responder_stack"] == rtt).all()

    record = result.record
    assert record.latency["overhead"].p50_ns >= SENDER_DELAY_S * 1e9
    assert record.latency["response"].p50_ns >= RESPONDER_DELAY_S * 1e9
    assert {capture.point: capture.packets for capture in record.captures} == {
        "sender_nic": 2 * PACKETS,
        "responder_nic": 2 * PACKETS,
        "sender_inside": 2 * PACKETS,
        "responder_inside": 2 * PACKETS,
    }


def test_all_captures_are_asked_to_end_before_one_is_waited_for(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt, stop = LocalProcess.interrupt, LocalProcess.stop
    asked: list[int] = []
    waited_for: list[tuple[int, ...]] = []

    def note_and_interrupt(process: LocalProcess) -> None:
        asked.append(process.pid)
        interrupt(process)

    def note_and_stop(process: LocalProcess) -> FinishedProcess:
        if "tap" in process.argv:
            waited_for.append(tuple(asked))
        return stop(process)

    monkeypatch.setattr(LocalProcess, "interrupt", note_and_interrupt)
    monkeypatch.setattr(LocalProcess, "stop", note_and_stop)
    trial = RttTrial("captured", frequency_pps=50, size_bytes=64, packets=2)
    station.measure(trial, Place("captured", {"plane": "veth"}, 0, 0), lambda _: None)
    assert {len(before) for before in waited_for} == {2}  # a capture a host
