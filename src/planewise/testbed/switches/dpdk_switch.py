"""A separate Open vSwitch with DPDK's datapath.

Its bridges are interfaces of the network namespace in which it runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planewise.errors import UnsupportedError
from planewise.testbed.hosts.host import Host
from planewise.testbed.switches.openvswitch import COMMAND_S, OpenVswitch, appctl

PROGRAM = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk"
"""Distributions' path of the variant with DPDK."""
SETUP_REMEDY = "`scripts/setup nfv` as root, or: apt-get install openvswitch-switch-dpdk dpdk-dev"
SWITCH_BYTES = 256 << 20
"""Huge pages of a switch's buffers."""


@dataclass(frozen=True)
class PmdCycles:
    """CPU cycles of all polling threads of a switch."""

    idle: int
    """Spent on polls without packets."""
    busy: int
    """Spent on packets."""


@dataclass(frozen=True)
class PortCounters:
    """Counters since the port was added; `rx` are packets from the port."""

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_dropped: int
    """Packets for the port that its full ring refused."""


@dataclass(frozen=True)
class Port:
    """A port to add."""

    name: str
    kind: str
    """Type of the interface, in Open vSwitch's terms."""
    options: Mapping[str, str]
    cpu: int | None = None
    """The CPU that polls it; None leaves that to the switch."""
    mtu_bytes: int | None = None
    """None: Open vSwitch's default, 1500."""

    def arguments(self, bridge: str) -> tuple[str, ...]:
        """Arguments of `ovs-vsctl` that add it to a bridge. Pure."""
        words = [
            *("add-port", bridge, self.name, "--", "set", "interface", self.name),
            f"type={self.kind}",
            *(f'options:{key}="{value}"' for key, value in self.options.items()),
        ]
        if self.cpu is not None:
            words.append(f'other_config:pmd-rxq-affinity="0:{self.cpu}"')
        if self.mtu_bytes is not None:
            words.append(f"mtu_request={self.mtu_bytes}")
        return tuple(words)


def vhost_port(
    name: str, socket: str, *, cpu: int | None = None, mtu_bytes: int | None = None
) -> Port:
    """The port of a guest that listens on a vhost-user socket. Pure."""
    return Port(name, "dpdkvhostuserclient", {"vhost-server-path": socket}, cpu, mtu_bytes)


def af_packet(number: int, interface: str, more: str = "") -> str:
    """DPDK's device over an interface of the kernel, whose default ring holds 512. Pure."""
    return f"net_af_packet{number},iface={interface},framecnt=4096,blocksz=65536{more}"


class RunningDpdkSwitch(OpenVswitch):
    """A running switch with one bridge of DPDK's datapath, until `close`.

    Raises:
        UnsupportedError: it is not installed, or does not start.
    """

    remedy = SETUP_REMEDY

    def __init__(
        self,
        host: Host,
        directory: str,
        bridge: str,
        cpus: Sequence[int],
        bridge_settings: Sequence[str] = ("fail-mode=secure",),
        *,
        sleep_us: int = 0,
    ) -> None:
        """
        Args:
            host: where it runs.
            directory: of its files; it must exist.
            bridge: name of its bridge, for which the kernel gets an interface.
            cpus: that poll.
            bridge_settings: of the bridge's record; by default only flows forward.
            sleep_us: longest sleep of a polling thread that finds no packet [us]; 0: none.
        """
        self._bridge = bridge
        self._bridge_settings = bridge_settings
        memory_mib = str(SWITCH_BYTES >> 20)
        settings = {
            "dpdk-init": "true",
            # Writes nothing to disk, and touches no device of the machine.
            "dpdk-extra": "--no-pci --in-memory --no-telemetry",
            "dpdk-socket-mem": memory_mib,
            # By default it takes 800 MiB for the buffers of its first port.
            "dpdk-socket-limit": memory_mib,
            "pmd-cpu-mask": f"{sum(1 << cpu for cpu in set(cpus)):#x}",
        }
        if sleep_us:
            # The names in Open vSwitch 3.1 and in later ones.
            settings |= dict.fromkeys(("pmd-maxsleep", "pmd-sleep-max"), str(sleep_us))
        super().__init__(host, directory, settings, PROGRAM)

    def socket(self, port: str) -> str:
        """Path of a vhost-user port's socket."""
        return f"{self._directory}/{port}.sock"

    def _start(self, program: str, settings: Mapping[str, str]) -> None:
        super()._start(program, settings)
        self.configure(
            "add-br", self._bridge,
            "--", "set", "bridge", self._bridge, "datapath_type=netdev", *self._bridge_settings,
        )  # fmt: skip
        answer = self.configure("get", "Open_vSwitch", ".", "dpdk_initialized").stdout
        if answer.strip() != "true":
            raise UnsupportedError(
                f"Open vSwitch could not start DPDK: {self.last_words()}", remedy=SETUP_REMEDY
            )

    def counters(self) -> dict[str, PortCounters]:
        """Counters of every port."""
        return read_ports(self._host, self._directory)

    def pmd_cycles(self) -> PmdCycles:
        """Cycles of the polling threads."""
        question = appctl(self._directory, "dpif-netdev/pmd-stats-show")
        return parse_cycles(self._run(*question).check().stdout)


def read_ports(host: Host, directory: str) -> dict[str, PortCounters]:
    """Counters of every port of the switch whose files are in `directory`.

    Raises:
        PlanewiseError: it does not answer.
    """
    question = appctl(directory, "dpctl/show", "-s", "netdev@ovs-netdev")
    return parse_ports(host.run(question, timeout_s=COMMAND_S).check().stdout)


_PORT = re.compile(r"(?:^|\))  port \d+: (\S+)", re.MULTILINE)
"""After a port whose counters the switch could not read, the next begins on the same line."""


def parse_ports(text: str) -> dict[str, PortCounters]:
    """Parses `dpctl/show -s`: counters by port, of those that have any. Pure."""
    counters = {}
    _, *parts = _PORT.split(text)
    for name, part in zip(parts[::2], parts[1::2], strict=True):
        found = dict(re.findall(r"((?:RX|TX) (?:packets|bytes)):(\d+)", part))
        if not found:
            continue
        dropped = re.search(r"TX packets.*dropped:(\d+)", part)
        packets, octets, sent = (
            int(found.get(key, 0)) for key in ("RX packets", "RX bytes", "TX packets")
        )
        counters[name] = PortCounters(packets, octets, sent, int(dropped[1]) if dropped else 0)
    return counters


def parse_cycles(text: str) -> PmdCycles:
    """Parses `dpif-netdev/pmd-stats-show`, over all polling threads. Pure."""
    idle = busy = 0
    for part in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        if part.startswith("pmd thread"):
            idle += _count(part, "idle cycles")
            busy += _count(part, "processing cycles")
    return PmdCycles(idle, busy)


def _count(text: str, name: str) -> int:
    match = re.search(rf"^\s+{name}: (\d+)", text, re.MULTILINE)
    return int(match[1]) if match else 0
