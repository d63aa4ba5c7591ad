"""Testbeds made of network namespaces that stand apart from hosts: a router. Knows no measurement.

A plan is pure; a testbed applies it and removes it again: on success, on error, on Ctrl-C and on
SIGTERM. After a kill -9 the names are leftovers that `planewise clean` finds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from planewise.errors import PlanewiseError
from planewise.testbed import netns, signals
from planewise.testbed.apply import apply
from planewise.testbed.containers import Docker, name_networks
from planewise.testbed.host import LocalHost
from planewise.testbed.ledger import Ownership, token_of
from planewise.testbed.model import (
    BRIDGE,
    WIRE_INDEX,
    CounterPoint,
    IpVersion,
    TrialPath,
)
from planewise.testbed.netns import NamespaceThread
from planewise.testbed.plan import (
    AddBridge,
    AddForwarding,
    AddNeighbour,
    AddVeth,
    AwaitUp,
    Plan,
    RunProgram,
    SetAddress,
    SetMaster,
    SetSysctl,
    SetUp,
    Step,
    new_namespace,
)


class _Testbed(ABC):
    """Builds a plan under a token of its own and removes it, whatever happens in between."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._ownership: Ownership | None = None
        self._signals: tuple[int, ...] = ()

    @abstractmethod
    def _plan(self, token: str) -> Plan:
        """What is to be made, with names under this token."""

    def _begin(self) -> None:  # noqa: B027 - most need nothing
        """Starts what the plan takes for given."""

    @abstractmethod
    def _hosts(self) -> list[LocalHost]:
        """Hosts that were used, to be closed; it is not built afterwards."""

    def __enter__(self) -> Self:
        netns.prepare_run()
        self._signals = signals.raise_on_signals()
        try:
            self._ownership = Ownership.take(self._what)
            plan = self._plan(self._ownership.token)
            self._begin()
            thread = NamespaceThread("apply")
            try:
                apply(plan, thread)
            finally:
                thread.close()
        except BaseException:
            self._tear_down()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._tear_down()

    def _tear_down(self) -> None:
        try:
            with signals.uninterrupted():
                for host in self._hosts():
                    host.close()
                if self._ownership is not None:
                    remove_owned(self._ownership)
                    self._ownership = None
        finally:
            signals.restore(self._signals)
            self._signals = ()


def remove_owned(ownership: Ownership) -> None:
    """Ends what runs in the namespaces under a token and removes them, then gives the token back.

    Raises:
        PlanewiseError: one could not be removed; `planewise clean` will find it.
    """
    names = [name for name in netns.names() if token_of(name) == ownership.token]
    netns.end_processes_in(names)
    stuck = []
    for name in names:
        try:
            netns.remove(name)
        except OSError as error:
            stuck.append(f"{name} ({error.strerror})")
    if stuck:
        ownership.abandon()
        raise PlanewiseError(
            f"these namespaces could not be removed: {', '.join(stuck)}",
            remedy="`planewise clean` as root tries again",
        )
    ownership.release()


_GENERATOR_MACS = ("02:70:77:40:00:00", "02:70:77:40:00:01")
_ROUTER_MACS = ("02:70:77:50:00:00", "02:70:77:50:00:01")
_TX, _RX = "tg0", "tg1"
_ROUTER = ("rt0", "rt1")


Forwarding = Literal["kernel", "xdp", "bridge"]
"""What forwards in a router under test."""
RouterPlatform = Literal["namespace", "container"]
"""What a router under test is."""
XDP_ROUTER = Path(__file__).parent / "bpf" / "router.bpf.o"


def plan_router(
    token: str,
    mtu_bytes: int = 1500,
    forwarding: Forwarding = "kernel",
    platform: RouterPlatform = "namespace",
) -> Plan:
    """A generator with two ports and a host between them that forwards IPv4 and IPv6. Pure.

    A router that is a container has its namespace from Docker, before this plan.

    The generator has no addresses: its kernel neither answers nor forwards what the router sends.
    An XDP program routes by the same addresses and neighbours as the kernel; a bridge has none.
    """
    generator, router = f"pw-{token}-g", f"pw-{token}-f"
    steps: list[Step] = [*new_namespace(generator)]
    if platform == "namespace":
        steps += new_namespace(router)
    if forwarding == "bridge":
        steps += [AddBridge(router, BRIDGE, _ROUTER_MACS[0], mtu_bytes), SetUp(router, BRIDGE)]
    else:
        steps += [
            SetSysctl(router, "net/ipv4/ip_forward", "1"),
            SetSysctl(router, "net/ipv6/conf/all/forwarding", "1"),
        ]
    for side, port in enumerate((_TX, _RX)):
        inside = _ROUTER[side]
        steps += [
            AddVeth(
                generator,
                port,
                WIRE_INDEX + side,
                _GENERATOR_MACS[side],
                router,
                inside,
                _ROUTER_MACS[side],
                mtu_bytes,
            ),
            SetUp(generator, port),
            SetUp(router, inside),
        ]
        if forwarding == "bridge":
            steps += [
                SetMaster(router, inside, BRIDGE),
                AddForwarding(router, inside, _GENERATOR_MACS[side]),
            ]
            continue
        steps += [
            SetAddress(router, inside, f"198.{18 + side}.0.1/16"),
            SetAddress(router, inside, f"2001:2:0:{1 + side}::1/64"),
            AddNeighbour(router, inside, f"198.{18 + side}.0.2", _GENERATOR_MACS[side]),
            AddNeighbour(router, inside, f"2001:2:0:{1 + side}::2", _GENERATOR_MACS[side]),
        ]
        if forwarding == "xdp":
            attach = ("ip", "link", "set", "dev", inside, "xdpdrv")
            steps.append(RunProgram(router, (*attach, "obj", str(XDP_ROUTER), "sec", "xdp")))
    steps += [AwaitUp(generator), AwaitUp(router)]
    return Plan(tuple(steps))


class RouterTestbed(_Testbed):
    """A generator and a forwarding host (the case of PASTRAMI), as a context manager.

    Raises on entry:
        UnsupportedError: no privilege, or this kernel has not what it needs.
    """

    def __init__(
        self,
        ip_version: IpVersion,
        mtu_bytes: int = 1500,
        forwarding: Forwarding = "kernel",
        platform: RouterPlatform = "namespace",
    ) -> None:
        super().__init__(f"IPv{ip_version} router")
        self.forwarding: Forwarding = forwarding
        self.platform: RouterPlatform = platform
        self._docker = ExitStack()
        self.ip_version = ip_version
        self.mtu_bytes = mtu_bytes
        self._token = ""

    @property
    def token(self) -> str:
        """Its names start with `pw-<token>-`; only inside the `with` block."""
        if not self._token:
            raise RuntimeError("the testbed is not built: use it in a with block")
        return self._token

    @cached_property
    def hosts(self) -> Mapping[str, LocalHost]:
        """`generator` and `router`."""
        return {
            "generator": LocalHost("generator", f"pw-{self.token}-g"),
            "router": LocalHost("router", f"pw-{self.token}-f"),
        }

    @property
    def router_netns(self) -> str:
        """The router's namespace."""
        return f"pw-{self.token}-f"

    @property
    def entrances(self) -> tuple[str, ...]:
        """The router's interfaces, where frames enter it."""
        return _ROUTER

    @property
    def plan(self) -> Plan:
        """The steps that made it."""
        return plan_router(self.token, self.mtu_bytes, self.forwarding, self.platform)

    def trial_path(self) -> TrialPath:
        """From one port of the generator through the router to the other."""
        generator = f"pw-{self.token}-g"
        return TrialPath(
            tx_netns=generator,
            tx_interface=_TX,
            rx_netns=generator,
            rx_interface=_RX,
            source_mac=_GENERATOR_MACS[0],
            next_hop_mac=(_GENERATOR_MACS[1] if self.forwarding == "bridge" else _ROUTER_MACS[0]),
            source_ipv4="198.18.0.2",
            destination_ipv4="198.19.0.2",
            source_ipv6="2001:2:0:1::2",
            destination_ipv6="2001:2:0:2::2",
        )

    @property
    def counter_points(self) -> tuple[CounterPoint, ...]:
        """Every interface on the way of the frames."""
        generator, router = f"pw-{self.token}-g", f"pw-{self.token}-f"
        return (
            CounterPoint("generator", generator, _TX),
            CounterPoint("router", router, _ROUTER[0]),
            CounterPoint("router", router, _ROUTER[1]),
            CounterPoint("generator", generator, _RX),
        )

    def _plan(self, token: str) -> Plan:
        self._token = token
        return self.plan

    def _begin(self) -> None:
        if self.platform == "container":
            host = LocalHost("docker")
            self._docker.callback(host.close)
            docker = self._docker.enter_context(Docker(host, self.token))
            docker.run(self.router_netns)
            name_networks(host, docker, [self.router_netns])

    def _hosts(self) -> list[LocalHost]:
        self._docker.close()
        hosts = list(self.__dict__.pop("hosts", {}).values())
        self._token = ""
        return hosts
