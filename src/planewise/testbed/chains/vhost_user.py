"""Chains on vhost-user: Open vSwitch with DPDK between dpdk-testpmd processes. No NIC is needed.

The generator is outside, behind an uplink of the switch (`uplink.py`). Without one it is a device
of DPDK's on the switch, polled like a NIC whose queue is never empty, at no core of its own: the
null device, or for mixes one that repeats a file of frames, which the polling core copies. Knows no
measurement.
"""

from __future__ import annotations

import shlex
import time
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Self

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.store.models import FrameAccount
from planewise.testbed import counters as interfaces
from planewise.testbed.chains import account, frames, functions, hugepages, switch, uplink
from planewise.testbed.chains.functions import Function
from planewise.testbed.chains.generator import LocalGenerator
from planewise.testbed.chains.model import (
    FCS_BYTES,
    GENERATOR,
    IMIX,
    SWITCH,
    Chain,
    FrameSize,
    Placement,
)
from planewise.testbed.chains.reading import ChainReading, Sent, cpu_times, now_s, task_s
from planewise.testbed.chains.switch import Flow, Port, Switch
from planewise.testbed.host import LocalHost
from planewise.testbed.namespaces import _Testbed
from planewise.testbed.plan import Plan, new_namespace
from planewise.testbed.planes.kinds import GuestKind
from planewise.testbed.scratch import scratch
from planewise.testbed.steering import may_steer

SWITCH_BYTES = 256 << 20
"""Huge pages that the switch's buffers are made of."""
RING = 1024
"""Packets that a ring between switch and function holds."""

_FIRST_SOURCE = 100
REST_S = 5.0
_CONNECT_S = 180.0
_POLL_S = 0.05


def memory_bytes(chain: Chain) -> int:
    """Huge pages that a chain takes: those of virtual machines are ordinary ones."""
    each = 0 if chain.kind == "vm" else functions.MEMORY_BYTES
    return SWITCH_BYTES + chain.vnfs * each


def unavailable_reason(chain: Chain) -> str:
    """Why this machine cannot build the chain; empty when it can. Changes nothing."""
    missing = [
        name
        for name, found in (
            ("Open vSwitch with DPDK", switch.find_program()),
            ("dpdk-testpmd", chain.kind == "vm" or functions.find_program()),
        )
        if not found
    ]
    if missing:
        return f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not installed here"
    if not may_steer(Path("/proc/self/uid_map").read_text()):
        return "only root of the machine may give huge pages to a switch and its functions"
    return hugepages.unavailable_reason(memory_bytes(chain))


@dataclass(frozen=True)
class TakeHugePages:
    """Memory for the buffers of switch and functions; given back at the end."""

    size_bytes: int

    def __str__(self) -> str:
        return f"take {self.size_bytes >> 20} MiB of huge pages from the kernel"


@dataclass(frozen=True)
class StartSwitch:
    """An Open vSwitch of our own that polls on these CPUs."""

    cpus: tuple[int, ...]
    memory_bytes: int

    def __str__(self) -> str:
        return (
            f"start ovs-vswitchd-dpdk with {self.memory_bytes >> 20} MiB, polling on "
            f"CPU{'s' if len(self.cpus) > 1 else ''} {', '.join(map(str, self.cpus))}"
        )


@dataclass(frozen=True)
class StartFunction:
    """A function behind a vhost-user port."""

    name: str
    cpu: int
    kind: GuestKind = "process"

    def command(self, socket: Path) -> tuple[str, ...]:
        """Its command line, where the switch meets it at `socket`."""
        return tuple(functions.command(socket, self.cpu, RING, uplink.BACK_MAC, self.name))

    def __str__(self) -> str:
        if self.kind == "vm":
            return (
                f"start the virtual machine {self.name} on CPU {self.cpu}, with shared memory and "
                f"a vhost-user NIC at {self.name}.sock"
            )
        return shlex.join(self.command(Path(f"{self.name}.sock")))


@dataclass(frozen=True)
class AddPorts:
    """The switch's ports to the functions, each polled by one CPU; waits until all are up."""

    ports: tuple[tuple[str, int], ...]
    """Name and CPU."""
    uplink: tuple[Port, ...] = ()

    def __str__(self) -> str:
        said = ", ".join(f"{name} (polled by CPU {cpu})" for name, cpu in self.ports)
        up = "".join(f", and {one.name}: {one.options['dpdk-devargs']}" for one in self.uplink)
        return f"add the vhost-user ports {said} to a bridge with datapath_type=netdev{up}"


@dataclass(frozen=True)
class Forward:
    """Which way packets go while a trial runs."""

    hops: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        return "forward " + ", ".join(f"{here} to {there}" for here, there in self.hops)


Step = TakeHugePages | StartSwitch | StartFunction | AddPorts | Forward


def plan(
    chain: Chain, placement: Placement, driver: uplink.Driver | None = None
) -> tuple[Step, ...]:
    """What makes `chain`, in order; `driver` is that of its uplink, if it has one. Pure."""
    polling = placement.cpus(SWITCH)
    turns = cycle(polling)
    return (
        TakeHugePages(memory_bytes(chain)),
        StartSwitch(polling, SWITCH_BYTES),
        *(StartFunction(name, placement.cpu(name), chain.kind) for name in chain.names),
        AddPorts(
            tuple((name, next(turns)) for name in chain.names),
            uplink.ports(driver, polling) if driver else (),
        ),
        Forward(chain.hops),
    )


class VhostChain(_Testbed):
    """A chain that stands; leaving its `with` block removes all of it.

    Raises on entry:
        UnsupportedError: a program, huge pages or a privilege is missing.
    """

    def __init__(
        self,
        chain: Chain,
        placement: Placement,
        driver: uplink.Driver | None = None,
        offered_pps: float | None = None,
    ) -> None:
        """`driver` is that of the uplink; None: it has none, and nothing paces the generator."""
        super().__init__(f"chain of {chain.vnfs} on vhost-user, {chain.pattern}")
        self.chain = chain
        self.placement = placement
        self._driver = driver
        self._offered_pps = offered_pps
        self._generator: LocalGenerator | None = None
        self._token = ""
        self._host: LocalHost | None = None
        self._switch: Switch | None = None
        self._functions: dict[str, Function] = {}
        self._sources: dict[str, str] = {}
        self._hops: tuple[tuple[str, str], ...] = ()
        self._made = 0
        self._before: account.Way = ()
        self._directory = Path()
        self._stack = ExitStack()

    def _plan(self, token: str) -> Plan:
        self._token, own = token, f"pw-{token}-s"
        self._host = LocalHost("chain", own)
        outside = uplink.plan(token, own).steps if self._driver else ()
        return Plan((*new_namespace(own), *outside))

    def _hosts(self) -> list[LocalHost]:
        self._functions.clear()
        self._switch = self._generator = None
        try:
            # Ends functions and switch, then gives their memory back.
            self._stack.close()
        finally:
            host, self._host = self._host, None
        return [] if host is None else [host]

    def __enter__(self) -> Self:
        if reason := unavailable_reason(self.chain):
            raise UnsupportedError(f"vhost-user: {reason}", remedy=switch.SETUP_REMEDY)
        super().__enter__()
        try:
            self._build()
        except BaseException:
            self._tear_down()
            raise
        return self

    def _build(self) -> None:
        assert self._host is not None
        self._directory = self._stack.enter_context(scratch())
        for step in plan(self.chain, self.placement, self._driver):
            self._perform(step, self._host)
        for function in self._functions.values():
            function.say("start")

    def _perform(self, step: Step, host: LocalHost) -> None:
        match step:
            case TakeHugePages():
                self._stack.enter_context(hugepages.taken(step.size_bytes))
                # Given back when all that used them has ended.
                self._stack.callback(host.close)
            case StartSwitch():
                self._switch = Switch(host, self._directory, step.memory_bytes, step.cpus)
                self._stack.callback(self._switch.close)
            case StartFunction():
                self._start_function(step, host)
            case AddPorts():
                self._add_ports(step.ports, step.uplink)
            case Forward():
                self._hops = step.hops

    def _start_function(self, step: StartFunction, host: LocalHost) -> None:
        command = step.command(self.switch.socket(step.name))
        function = Function(host, str(self._directory), step.name, command)
        self._stack.callback(function.close)
        self._functions[step.name] = function

    def _await_functions(self) -> None:
        """Once the switch has their ports."""
        for function in self._functions.values():
            function.await_prompt()

    def _passed(self) -> dict[str, tuple[int, int]]:
        """Frames that reached and left each function."""
        counted = {name: function.forwarded() for name, function in self._functions.items()}
        return {name: (one.rx_packets, one.tx_packets) for name, one in counted.items()}

    def _spent(self, whole: bool) -> tuple[dict[str, float], dict[str, float]]:
        """CPU time of functions that poll, and the time that functions spent on packets [s]."""
        tasks = {name: task_s(function.pid) for name, function in self._functions.items()}
        if not whole:
            return tasks, {}
        return tasks, {name: one.forwarded().busy_s for name, one in self._functions.items()}

    def _add_ports(self, ports: tuple[tuple[str, int], ...], more: tuple[Port, ...]) -> None:
        self.switch.change_ports(
            [
                *more,
                *(
                    Port(
                        name,
                        number,
                        "dpdkvhostuserclient",
                        {"vhost-server-path": str(self.switch.socket(name))},
                        cpu,
                    )
                    for number, (name, cpu) in enumerate(ports, start=1)
                ),
            ]
        )
        self._await_functions()
        deadline = time.monotonic() + _CONNECT_S
        while not self.switch.ports_up([name for name, _ in ports]):
            if time.monotonic() > deadline:
                raise PlanewiseError(
                    f"Open vSwitch and the functions did not connect within {_CONNECT_S:g} s",
                    remedy="end other work on the machine, and try again",
                )
            time.sleep(_POLL_S)

    @property
    def switch(self) -> Switch:
        """The running switch; only inside the `with` block."""
        if self._switch is None:
            raise RuntimeError("the chain is not built: use it in a with block")
        return self._switch

    @property
    def pids(self) -> dict[str, int]:
        """Processes that are functions, by name."""
        return {name: function.pid for name, function in self._functions.items()}

    def start(self, size: FrameSize, limit_s: float = 0.0) -> None:
        """Has the generator send frames of `size`, as many as are taken, until `stop`.

        One behind an uplink keeps account of every frame of `limit_s`, and ends after that.
        """
        self.stop()
        for function in self._functions.values():
            function.clear()
        if self._driver is not None:
            self._start_outside(size, limit_s)
            return
        cpus = cycle(self.placement.cpus(SWITCH))
        ports: list[Port] = []
        for number, entry in enumerate(self.chain.entries, start=_FIRST_SOURCE):
            options = {"dpdk-devargs": self._source(size)}
            ports.append(Port(f"g{number}", number, "dpdk", options, next(cpus)))
            self._sources[entry] = f"g{number}"
        self.switch.change_ports(ports)
        self._before = self._way()
        self.switch.set_flows(self._flows())

    def _start_outside(self, size: FrameSize, limit_s: float) -> None:
        assert self._host is not None
        self.switch.set_flows(self._flows())
        self._before = self._way()
        if self._generator is None:
            cpu, ends = self.placement.cpu(GENERATOR), uplink.ends_of(self._token)
            there = f"{uplink.TX}@{ends}", f"{uplink.RX}@{ends}"
            self._generator = LocalGenerator(self._host, cpu, there, self._offered_pps)
        macs = {number: uplink.mac_of(number) for number in range(1, self.chain.vnfs + 1)}
        self._generator.start(self.chain, size, limit_s, macs)

    def _source(self, size: FrameSize) -> str:
        """A device of DPDK that always has frames to be received, and drops what is sent to it."""
        # A name is never used twice: the switch forgets a device a moment late.
        self._made += 1
        if size != "imix":
            return f"net_null{self._made},size={size - FCS_BYTES}"
        file = self._directory / "imix.pcap"
        if not file.exists():
            file.write_bytes(frames.pcap(frames.mixed(IMIX)))
        return f"net_pcap{self._made},rx_pcap={file},infinite_rx=1"

    def _flows(self) -> list[Flow]:
        flows = []
        for here, there in self._hops:
            if here == GENERATOR and self._driver:
                flows.append(uplink.entry(self.chain.names.index(there) + 1, there))
            elif here == GENERATOR:
                flows.append(Flow(self._sources[there], there))
            elif there == GENERATOR and self._driver:
                flows.append(Flow(here, uplink.OUT))
            elif there == GENERATOR:
                # Where it came from, north-south; there is one entry alone, east-west.
                back = self._sources.get(here, self._sources.get(self.chain.entries[0], ""))
                flows.append(Flow(here, back))
            else:
                flows.append(Flow(here, there))
        return flows

    def stop(self) -> FrameAccount | None:
        """Ends the generator's traffic, and says what became of it. Idempotent."""
        if self._generator is not None and self._generator.streams:
            self._generator.streams.stop()
            return account.account(self._before, account.at_rest(self._way, REST_S))
        if not self._sources:
            return None
        sources = list(self._sources.values())
        try:
            self.switch.set_flows([flow for flow in self._flows() if flow.here not in sources])
            after = account.at_rest(self._way, REST_S)
            self.switch.set_flows(())
        finally:
            self._sources.clear()
            self.switch.change_ports((), sources)
        return account.account(self._before, after)

    def _way(self) -> account.Way:
        counters = self.switch.counters()
        functions_passed = self._passed()
        if self._driver:
            switch = counters[uplink.IN].rx_packets, counters[uplink.OUT].tx_packets
            return account.way(self.chain, *self._ends(), functions_passed, switch)
        # A device that is never empty goes on being polled: what it sent is what was passed on.
        entries = [counters[name] for name in self.chain.entries]
        return account.way(
            self.chain,
            sum(one.tx_packets + one.tx_dropped for one in entries),
            sum(counters[name].tx_packets for name in self._sources.values()),
            functions_passed,
        )

    def _ends(self) -> tuple[int, int]:
        """Frames that left the generator outside, and that came back to it."""
        assert self._host is not None
        text = self._host.read_text("/proc/net/dev", netns=uplink.ends_of(self._token))
        ends = interfaces.parse(text)
        return ends[uplink.TX]["tx_packets"], ends[uplink.RX]["rx_packets"]

    def read(self, *, whole: bool = True) -> ChainReading:
        """The counters now. Without `whole`, functions are not asked how busy they are."""
        self.check()
        counters = self.switch.counters()
        at_s = now_s()
        sources = [counters[name] for name in self._sources.values()]
        offered = sum(one.rx_packets for one in sources)
        delivered = sum(one.tx_packets for one in sources)
        passed = None
        if self._generator is not None:
            self._generator.streams.check()
            offered, delivered = self._ends()
            passed = counters[uplink.IN].rx_packets, counters[uplink.OUT].tx_packets
        tasks, busy = self._spent(whole)
        tasks[SWITCH] = task_s(self.switch.pid, "pmd")
        return ChainReading(
            at_s=at_s,
            vnfs={
                name: Sent(
                    counters[name].rx_packets,
                    counters[name].rx_bytes,
                    counters[name].tx_dropped,
                )
                for name in self.chain.names
            },
            uplink=passed,
            offered=offered,
            delivered=delivered,
            cpus=cpu_times(),
            tasks_s=tasks,
            busy_s=busy,
            polling=self.switch.pmd_cycles(),
        )

    def check(self) -> None:
        """Raises PlanewiseError when something of the chain has ended by itself."""
        if not self.switch.alive:
            raise PlanewiseError("Open vSwitch ended while a chain was measured")
        for name, function in self._functions.items():
            if not function.alive:
                raise PlanewiseError(f"{name} ended while it was measured")
