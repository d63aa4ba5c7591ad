"""Open vSwitch with DPDK as a chain's switch: its ports, its flows, and a generator on it.

The generator is outside, behind an uplink. Without one it is a device of DPDK's on the switch,
polled like a NIC whose queue is never empty, without a core of its own: the null device, or for
mixes one that repeats the frames of a file, which the polling core copies.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Literal

from planewise.errors import PlanewiseError
from planewise.testbed.chains.functions import MEMORY_BYTES
from planewise.testbed.chains.generator import PORT
from planewise.testbed.chains.model import (
    FCS_BYTES,
    GENERATOR,
    IMIX,
    Chain,
    FrameSize,
)
from planewise.testbed.chains.reading import VnfCounters
from planewise.testbed.chains.routing import SOURCE, TARGET, mac_of
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.switches.dpdk_switch import (
    SWITCH_BYTES,
    Port,
    PortCounters,
    RunningDpdkSwitch,
    af_packet,
    vhost_port,
)

Driver = Literal["af_packet", "af_xdp"]

_SPARE_BYTES = 16 << 20
"""Huge pages of a function on a VF beside its buffers."""
_HOLDER = "buffers"
_SILENT = "net_null_buffers,no-rx=1"
"""A device that never has a frame."""
_CONNECT_S = 180.0
_POLL_S = 0.05


def _device(driver: Driver, number: int, interface: str) -> str:
    """DPDK's device over an interface of the kernel."""
    if driver == "af_xdp":
        return f"net_af_xdp{number},iface={interface}"
    return af_packet(number, interface, ",qdisc_bypass=1")


def memory_bytes(chain: Chain) -> int:
    """Huge pages that a chain takes; virtual machines take ordinary pages."""
    function_bytes = 0
    if chain.polls and chain.kind != "vm":
        function_bytes = MEMORY_BYTES + (_SPARE_BYTES if chain.on_vfs else 0)
    return (SWITCH_BYTES if chain.plane == "vhost-user" else 0) + chain.vnfs * function_bytes


def uplinks(driver: Driver, nics: tuple[str, str], cpus: tuple[int, ...]) -> tuple[Port, ...]:
    """The switch's uplink ports, polled by these CPUs in turn; one where both ends use one NIC."""
    return tuple(
        Port(
            f"up{side}",
            "dpdk",
            {"dpdk-devargs": _device(driver, side, interface)},
            cpus[side % len(cpus)],
        )
        for side, interface in enumerate(dict.fromkeys(nics))
    )


class DpdkSwitch(RunningDpdkSwitch):
    """The switch of a chain on vhost-user, until `close`.

    Raises:
        UnsupportedError: it is not installed, or does not start.
    """

    def __init__(
        self,
        state: MachineState,
        directory: str,
        chain: Chain,
        cpus: tuple[int, ...],
        driver: Driver | None,
        nics: tuple[str, str],
    ) -> None:
        """It polls on `cpus`.

        `driver` of the uplink on `nics`; None: without uplink, where nothing paces the generator.
        """
        self._chain = chain
        self._cpus = cpus
        self._uplinks = () if driver is None else uplinks(driver, nics, cpus)
        self._sources: dict[str, str] = {}
        self._device_count = 0
        super().__init__(state.host, directory, state.machine.bridge, cpus)

    @property
    def sending(self) -> bool:
        """Whether the generator on it was started."""
        return bool(self._sources)

    def add_functions(self) -> None:
        """Adds the ports of all functions, and the uplink's.

        A device that is never read first allocates the buffers that all ports share. The switch
        allocates them for its first port, of a vhost-user one only when a guest connects: it tries
        ever smaller numbers, each with all free memory, and a guest that connects meanwhile finds
        none, is disconnected, and may end for it.
        """
        self._change_ports([Port(_HOLDER, "dpdk", {"dpdk-devargs": _SILENT})])
        turns = cycle(self._cpus)
        functions = [
            vhost_port(name, self.socket(name), cpu=next(turns)) for name in self._chain.names
        ]
        self._change_ports([*self._uplinks, *functions])

    def _change_ports(self, add: Sequence[Port], remove: Sequence[str] = ()) -> None:
        """Removes and adds ports, at once."""
        arguments: list[str] = []
        for name in remove:
            arguments += ["--", "--if-exists", "del-port", self._bridge, name]
        for port in add:
            arguments += ["--", *port.arguments(self._bridge)]
        if arguments:
            self.configure(*arguments[1:])

    def _set_flows(self, flows: Sequence[str]) -> None:
        """Replaces all flows; other frames are dropped."""
        control = f"unix:{self._directory}/{self._bridge}.mgmt"
        command = ("ovs-ofctl", "--names", "replace-flows", control, "-")
        self._run(*command, stdin="".join(f"{flow}\n" for flow in flows).encode()).check()

    def _ports_up(self) -> bool:
        """Whether the links of all functions are up: they have connected."""
        states = [
            self.configure("--bare", "get", "interface", name, "link_state").stdout.strip()
            for name in self._chain.names
        ]
        return all(state == "up" for state in states)

    def await_functions(self) -> None:
        """Waits until all functions have connected, then sets the flows of frames from outside.

        Raises:
            PlanewiseError: they do not connect.
        """
        deadline = time.monotonic() + _CONNECT_S
        while not self._ports_up():
            if time.monotonic() > deadline:
                raise PlanewiseError(
                    f"Open vSwitch and the functions did not connect within {_CONNECT_S:g} s",
                    remedy="stop other work on the machine, and try again",
                )
            time.sleep(_POLL_S)
        self._change_ports((), [_HOLDER])  # the ports keep the buffers
        if self._uplinks:
            self._set_flows(self._flows())

    def add_sources(self, size: FrameSize) -> None:
        """Adds devices as sources of frames of `size`, blocked until `admit_sources`."""
        cpus = cycle(self._cpus)
        self._sources = {entry: f"g{number}" for number, entry in enumerate(self._chain.entries)}
        self._change_ports(
            [
                Port(name, "dpdk", {"dpdk-devargs": self._device(size)}, next(cpus))
                for name in self._sources.values()
            ]
        )

    def admit_sources(self) -> None:
        """Sets the flows of all frames, the sources' among them."""
        self._set_flows(self._flows())

    def block_sources(self) -> None:
        """Removes the flows of the sources' frames."""
        admitting = tuple(f"in_port={name}," for name in self._sources.values())
        self._set_flows([flow for flow in self._flows() if not flow.startswith(admitting)])

    def remove_sources(self) -> None:
        """Undoes `add_sources`. Idempotent."""
        sources = list(self._sources.values())
        if sources:
            self._set_flows(())
            self._sources.clear()
            self._change_ports((), sources)

    def _device(self, size: FrameSize) -> str:
        """A device of DPDK that always has frames to receive, and drops frames sent to it."""
        # A name is never used twice: the switch forgets a device with delay.
        self._device_count += 1
        if size != "imix":
            return f"net_null{self._device_count},size={size - FCS_BYTES}"
        file = f"{self._directory}/imix.pcap"
        content = pcap(mixed(IMIX))
        self._host.run(["sh", "-c", 'cat >"$1"', "sh", file], stdin=content).check()
        return f"net_pcap{self._device_count},rx_pcap={file},infinite_rx=1"

    def _flows(self) -> list[str]:
        """Flows that join the hops, in the words of ovs-ofctl(8)."""
        chain, flows = self._chain, []
        for source, target in chain.hops:
            match = ""
            if source == GENERATOR and self._uplinks:
                match = f"dl_dst={mac_of(chain.names.index(target) + 1)},"
                source = self._uplinks[0].name
            elif source == GENERATOR:
                source = self._sources[target]
            elif target == GENERATOR and self._uplinks:
                target = self._uplinks[-1].name
            elif target == GENERATOR:
                # North-south back to its source; east-west there is a single entry.
                target = self._sources.get(source, self._sources.get(chain.entries[0], ""))
            flows.append(f"in_port={source},{match}actions=output:{target}")
        return flows

    def counters(self) -> dict[str, PortCounters]:
        """Counters of every port.

        Raises:
            PlanewiseError: Open vSwitch or a function has ended, or Open vSwitch does not answer.
        """
        if not self.alive:
            raise PlanewiseError("Open vSwitch ended while a chain was measured")
        counted = super().counters()
        if ended := [name for name in self._chain.names if name not in counted]:
            # Only a connected port has counters.
            raise PlanewiseError(f"{' and '.join(ended)} ended while it was measured")
        return counted

    def sent(self, counted: Mapping[str, PortCounters]) -> dict[int, VnfCounters]:
        """What the switch received from the functions, by number."""
        ports = [counted[name] for name in self._chain.names]
        return {
            number: VnfCounters(port.rx_packets, port.rx_bytes, port.tx_dropped)
            for number, port in enumerate(ports, start=1)
        }

    def uplink_counters(self, counted: Mapping[str, PortCounters]) -> tuple[int, int] | None:
        """Frames in and out by the uplink; None where there is none."""
        if not self._uplinks:
            return None
        first, last = self._uplinks[0].name, self._uplinks[-1].name
        return counted[first].rx_packets, counted[last].tx_packets

    def source_counters(self, counted: Mapping[str, PortCounters]) -> tuple[int, int]:
        """Frames received from the sources, and sent back to them."""
        sources = [counted[name] for name in self._sources.values()]
        return sum(port.rx_packets for port in sources), sum(port.tx_packets for port in sources)

    def offered_by_sources(self, counted: Mapping[str, PortCounters]) -> int:
        """Frames of the sources that were passed to functions, or found their rings full.

        A device that is never empty is polled all the time, also for frames that no flow admits.
        """
        entries = [counted[name] for name in self._chain.entries]
        return sum(port.tx_packets + port.tx_dropped for port in entries)


_MAGIC, _ETHERNET = 0xA1B2C3D4, 1
_ADDRESSES = socket.inet_aton(SOURCE), socket.inet_aton(TARGET)
_MACS = bytes.fromhex("027077400001") + bytes.fromhex("0270774000f0")
_HEADERS_BYTES = 14 + 20 + 8


def mixed(frames: Sequence[tuple[int, int]]) -> list[int]:
    """Frame sizes [bytes, with FCS] in an order that spreads each evenly over the round."""
    places = [((number + 0.5) / count, size) for size, count in frames for number in range(count)]
    return [size for _, size in sorted(places)]


def pcap(sizes: Sequence[int]) -> bytes:
    """A file (libpcap's format, 2.4) of UDP frames of these sizes [bytes, with FCS]."""
    parts = [struct.pack("<IHHiIII", _MAGIC, 2, 4, 0, 0, 65535, _ETHERNET)]
    for size in sizes:
        content = frame(size)
        parts += [struct.pack("<IIII", 0, 0, len(content), len(content)), content]
    return b"".join(parts)


def frame(size_bytes: int) -> bytes:
    """An Ethernet frame with IPv4 and UDP, of `size_bytes` with the FCS that is not in it."""
    length = size_bytes - FCS_BYTES
    ip_length = length - 14
    header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, ip_length, 0, 0, 64, 17, 0, *_ADDRESSES)
    header = header[:10] + struct.pack(">H", _checksum(header)) + header[12:]
    # A UDP checksum of zero means none (RFC 768).
    udp = struct.pack(">HHHH", 49152, PORT, ip_length - 20, 0)
    return _MACS + b"\x08\x00" + header + udp + bytes(length - _HEADERS_BYTES)


def _checksum(header: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
