"""Chains that the kernel forwards: a bridge, and functions that are namespaces which route.

Functions that are containers or virtual machines are `local_guests.py`'s.

Each function has one interface, rewrites both MAC addresses as any router does, and sends the frame
back to the bridge. Its receive work is moved to its CPU (`testbed.steering`), and the bridge's work
after it is done there as well. Knows no measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from planewise.store.models import FrameAccount
from planewise.testbed import counters
from planewise.testbed.chains import account
from planewise.testbed.chains.generator import LocalGenerator
from planewise.testbed.chains.model import (
    GENERATOR,
    Chain,
    FrameSize,
    Placement,
)
from planewise.testbed.chains.reading import (
    ChainReading,
    CpuTime,
    Sent,
    cpu_times,
    ksoftirqd,
    now_s,
    sent_by,
    task_s,
)
from planewise.testbed.chains.routing import (
    SOURCE,
    SOURCES,
    TARGET,
    TARGETS,
    address,
    new_function,
    router_settings,
    routing,
)
from planewise.testbed.host import LocalHost
from planewise.testbed.model import BRIDGE, GUEST_INTERFACE
from planewise.testbed.namespaces import _Testbed
from planewise.testbed.plan import (
    AddBridge,
    AddForwarding,
    AddNeighbour,
    AddRoute,
    AddTap,
    AddVeth,
    AwaitUp,
    Plan,
    SetAddress,
    SetMaster,
    SetUp,
    Step,
    new_namespace,
)
from planewise.testbed.steering import may_steer, steer

REST_S = 5.0
"""Frames that were sent are at their ends long before; a busy machine may take a second."""
_MTU_BYTES = 1500
_TX, _RX = "tx0", "rx0"


def unavailable_reason() -> str:
    """Why this machine cannot build such a chain; empty when it can."""
    if not may_steer(Path("/proc/self/uid_map").read_text()):
        return "only root may move the functions' receive work to CPUs of their own"
    return ""


def _netns(token: str, place: str) -> str:
    return f"pw-{token}-{place}"


def _mac(number: int) -> str:
    return f"02:70:77:40:00:{number:02x}"


_ENDS = (_mac(0xF0), _mac(0xF1))
_BRIDGE_MAC = _mac(0xFF)


def plan(token: str, chain: Chain, *, apart: bool = False) -> Plan:
    """Every step that makes the chain. Pure.

    Its two ends, each on a port of the bridge, are in one namespace without addresses (frames are
    made and counted there by a probe); `apart`, in two with addresses, for programs that talk.

    Containers and virtual machines are started in between: see `plan_switch`, `plan_functions` and
    `plan_links`, which this is together.
    """
    return Plan(
        (
            *plan_switch(token, apart=apart).steps,
            *plan_functions(token, chain).steps,
            *plan_links(token, chain, apart=apart).steps,
        )
    )


def _ends(token: str, apart: bool) -> tuple[str, str]:
    """The namespaces of both."""
    return (_netns(token, "c"), _netns(token, "d")) if apart else (_netns(token, "g"),) * 2


def plan_switch(token: str, *, apart: bool = False) -> Plan:
    """The bridge and the chain's two ends. Pure."""
    switch, ends = _netns(token, "s"), _ends(token, apart)
    steps: list[Step] = [*new_namespace(switch)]
    for name in dict.fromkeys(ends):
        steps += new_namespace(name)
    steps += [AddBridge(switch, BRIDGE, _BRIDGE_MAC, _MTU_BYTES), SetUp(switch, BRIDGE)]
    for side, (netns, interface, mac) in enumerate(zip(ends, (_TX, _RX), _ENDS, strict=True)):
        steps += _attach(switch, f"e{side}", 900 + side, netns, interface, mac)
    return Plan(tuple(steps))


def plan_functions(token: str, chain: Chain, queues: int = 1) -> Plan:
    """The functions' ports, and the functions where they are namespaces. Pure.

    Containers have their namespaces, by the names that those of processes get, when this is done;
    virtual machines open the taps that this makes, with `queues` each.
    """
    switch = _netns(token, "s")
    steps: list[Step] = []
    for number, mac in _macs(chain).items():
        netns, port = _netns(token, f"v{number}"), port_of(number)
        if chain.kind == "vm":
            steps += [
                AddTap(switch, port, _port_mac(mac), _MTU_BYTES, queues),
                SetMaster(switch, port, BRIDGE),
                SetUp(switch, port),
            ]
            continue
        steps += router_settings(netns) if chain.kind == "container" else new_function(netns)
        steps += _attach(switch, port, 800 + number, netns, GUEST_INTERFACE, mac)
    return Plan(tuple(steps))


def plan_links(token: str, chain: Chain, *, apart: bool = False) -> Plan:
    """Who is where and whose way leads where, once all ports are in use. Pure.

    Virtual machines are told their ways by themselves.
    """
    switch, ends, macs = _netns(token, "s"), _ends(token, apart), _macs(chain)
    steps: list[Step] = []
    if chain.kind == "vm":
        steps += [AddForwarding(switch, port_of(number), mac) for number, mac in macs.items()]
    else:
        steps += routes(chain, lambda number: _netns(token, f"v{number}"))
    if apart:
        first, last = 1, chain.vnfs if chain.pattern == "east-west" else 1
        for netns, interface, own, there, number in (
            (ends[0], _TX, SOURCE, TARGETS, first),
            (ends[1], _RX, TARGET, SOURCES, last),
        ):
            steps += [
                SetAddress(netns, interface, f"{own}/32"),
                AddNeighbour(netns, interface, address(number), _mac(number)),
                AddRoute(netns, there, interface, address(number)),
            ]
    steps.append(AwaitUp(switch))
    return Plan(tuple(steps))


def port_of(number: int) -> str:
    """The bridge's port of the `number`th function."""
    return f"p{number}"


def mac_of(number: int) -> str:
    """Of the `number`th function on this bridge."""
    return _mac(number)


def _macs(chain: Chain) -> dict[int, str]:
    return {number: _mac(number) for number in range(1, chain.vnfs + 1)}


def routes(chain: Chain, netns: Callable[[int], str]) -> tuple[Step, ...]:
    """As `routing`, with the MACs of this bridge. Pure."""
    return routing(chain, netns, _macs(chain), _ENDS)


def _port_mac(mac: str) -> str:
    return mac.replace("40:00", "41:00")


def _attach(
    switch: str, port: str, index: int, netns: str, interface: str, mac: str
) -> tuple[Step, ...]:
    """An interface in `netns` whose other end is a port of the bridge, which knows its MAC."""
    return (
        AddVeth(switch, port, index, _port_mac(mac), netns, interface, mac, _MTU_BYTES),
        SetMaster(switch, port, BRIDGE),
        SetUp(switch, port),
        SetUp(netns, interface),
        AddForwarding(switch, port, mac),
    )


class KernelChain(_Testbed):
    """A chain that stands; leaving its `with` block removes all of it.

    Raises on entry:
        UnsupportedError: no privilege, or this kernel has not what it needs.
    """

    def __init__(
        self,
        chain: Chain,
        placement: Placement,
        *,
        apart: bool = False,
        offered_pps: float | None = None,
    ) -> None:
        super().__init__(f"chain of {chain.vnfs} on the kernel's bridge, {chain.pattern}")
        self.chain = chain
        self.placement = placement
        self._apart = apart
        self._offered_pps = offered_pps
        self._token = ""
        self._generator: LocalGenerator | None = None
        self._before: account.Way = ()
        self._ksoftirqd: dict[int, int] = {}

    def _plan(self, token: str) -> Plan:
        self._token = token
        return plan(token, self.chain, apart=self._apart)

    def _hosts(self) -> list[LocalHost]:
        self._generator = None  # closing a host ends what it started
        self._token = ""
        host = self.__dict__.pop("host", None)
        return [] if host is None else [host]

    @cached_property
    def host(self) -> LocalHost:
        """Where its processes run."""
        return LocalHost("chain")

    def __enter__(self) -> KernelChain:
        super().__enter__()
        try:
            self._populate()
            self._steer()
            self._ksoftirqd = ksoftirqd(self.host)
        except BaseException:
            self._tear_down()
            raise
        return self

    def _populate(self) -> None:
        """Starts what is no namespace, for functions that are."""

    def netns(self, place: str) -> str:
        """A namespace of it: `s` the bridge, `g` the ends, or `c` and `d`; `v1`, `v2`, …."""
        return _netns(self._token, place)

    @property
    def ends(self) -> tuple[tuple[str, str, str], tuple[str, str, str]]:
        """Namespace, address and interface of both, where they are `apart`."""
        return (self.netns("c"), SOURCE, _TX), (self.netns("d"), TARGET, _RX)

    def _steer(self) -> None:
        """Each function's receive work goes to its CPU, and the bridge's to that of the first."""
        cpus = [self.placement.cpu(name) for name in self.chain.names]
        self._place(dict(enumerate(cpus, start=1)))
        entries = cpus if self.chain.pattern == "north-south" else cpus[:1]
        steer(self.host, self.netns("s"), ["e0"], entries)

    def _place(self, cpus: Mapping[int, int]) -> None:
        """Each function, by number, does its work on its CPU."""
        for number, cpu in cpus.items():
            steer(self.host, self.netns(f"v{number}"), [GUEST_INTERFACE], [cpu])

    def start(self, size: FrameSize, limit_s: float) -> None:
        """Has the generator send frames of `size`, as many as it is to or can, until `stop`.

        It keeps account of every frame of `limit_s`, and ends by itself after that.
        """
        self.stop()
        self._before = self._way()
        if self._generator is None:
            cpu, netns = self.placement.cpu(GENERATOR), self.netns("g")
            ends = f"{_TX}@{netns}", f"{_RX}@{netns}"
            self._generator = LocalGenerator(self.host, cpu, ends, self._offered_pps)
        self._generator.start(self.chain, size, limit_s, _macs(self.chain))

    def stop(self) -> FrameAccount | None:
        """Ends the generator's traffic, and says what became of it. Idempotent."""
        if self._generator is None or not self._generator.streams:
            return None
        self._generator.streams.stop()
        return account.account(self._before, account.at_rest(self._way, REST_S))

    def _way(self) -> account.Way:
        offered, delivered = self._passed_ends()
        functions = dict(zip(self.chain.names, self._passed(), strict=True))
        return account.way(self.chain, offered, delivered, functions)

    def _passed_ends(self) -> tuple[int, int]:
        """Frames that left the generator, and that came back."""
        if self._apart:
            sent, received = self._counters("c"), self._counters("d")
        else:
            sent = received = self._counters("g")
        return sent[_TX]["tx_packets"], received[_RX]["rx_packets"]

    def read(self, *, whole: bool = True) -> ChainReading:
        """The counters now."""
        if self._generator is not None:
            self._generator.streams.check()
        sent = self._sent()
        offered, delivered = self._passed_ends()
        cpus = cpu_times()
        return ChainReading(
            at_s=now_s(),
            vnfs=dict(zip(self.chain.names, sent, strict=True)),
            offered=offered,
            delivered=delivered,
            cpus=cpus,
            kernel_s={cpu: self._kernel_s(cpu, spent) for cpu, spent in cpus.items()},
            machines=self.chain.kind == "vm",
        )

    def _sent(self) -> Sequence[Sent]:
        """What the functions have sent, in order."""
        return [sent_by(interface) for interface in self._interfaces()]

    def _passed(self) -> Sequence[tuple[int, int]]:
        """Frames that reached each function and that left it, in order."""
        return [(one["rx_packets"], one["tx_packets"]) for one in self._interfaces()]

    def _interfaces(self) -> Sequence[Mapping[str, int]]:
        return [
            self._counters(f"v{number}")[GUEST_INTERFACE]
            for number in range(1, self.chain.vnfs + 1)
        ]

    def _counters(self, place: str) -> dict[str, dict[str, int]]:
        return counters.parse(self.host.read_text("/proc/net/dev", netns=self.netns(place)))

    def _kernel_s(self, cpu: int, spent: CpuTime) -> float:
        own = self._ksoftirqd.get(cpu)
        return spent.soft_s + (task_s(own) if own is not None else 0.0)
