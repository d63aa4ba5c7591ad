"""Chains on two hosts: functions on the responder's NIC, the generator across the cable.

The functions are namespaces or containers that route, each with a VF of its own (`vf`; frames
between two of them go through the NIC's embedded switch) or behind the host's bridge, which has the
NIC as a port (`bridge`); or virtual machines that route, each with a VF whole (`vf-passthrough`).
Both ends of the chain are VFs of the sender's NIC. Knows no measurement.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Self

from planewise.errors import PlanewiseError
from planewise.store.models import FrameAccount
from planewise.testbed import counters, script
from planewise.testbed.chains import account
from planewise.testbed.chains.functions import vf_command
from planewise.testbed.chains.generator import MIXED, commands
from planewise.testbed.chains.local_guests import contain
from planewise.testbed.chains.machines import FunctionMachines, PassedThrough, told
from planewise.testbed.chains.model import Chain, FrameSize, Placement, frames_of
from planewise.testbed.chains.pollers import Pollers
from planewise.testbed.chains.reading import ChainReading, cpu_times, ksoftirqd, sent_by, ticks_s
from planewise.testbed.chains.routing import new_function, router_settings, routing
from planewise.testbed.chains.streams import Streams
from planewise.testbed.containers import Docker
from planewise.testbed.host import Host
from planewise.testbed.machine import Machine, Resources, remove_traces
from planewise.testbed.model import GUEST_INTERFACE, HOSTS, Guest, HostRole
from planewise.testbed.plan import (
    AcceptAddress,
    AddBridge,
    AddForwarding,
    AddVeth,
    AwaitUp,
    Plan,
    ReleaseMaster,
    SetMaster,
    SetUp,
    Step,
    new_namespace,
)
from planewise.testbed.steering import bind_interrupts, steer
from planewise.testbed.vfs import VfPool

PLANES = ("vf", "bridge", "vf-passthrough")
"""Planes that chains on hosts can have."""

ENDS = 2
"""VFs that the generator has: it sends by one and receives by the other."""

FUNCTIONS: HostRole = "responder"
GENERATING: HostRole = "sender"

_MTU_BYTES = 1500
_OVERLOAD = 1.5
"""The generator is asked for so many times what it can send: as much as it can."""
_BRIDGE_MAC = "02:70:77:0f:00:ff"
_INDEX = 24_000
_REST_S = 20.0
_LOOK_S = 180.0
"""An emulated host that is flooded answers late."""

_MARK = "== "
# All counters of a host by one command: each costs an emulated host a tenth of a second.
_LOOK = f"""
cat /proc/uptime /proc/stat
for pid in $1; do echo "{_MARK}task $pid"; cat "/proc/$pid/stat"; done
shift
for name; do
    echo "{_MARK}$name"
    nsenter --net="/run/netns/$name" cat /proc/net/dev
done
"""


@dataclass(frozen=True)
class Look:
    """What one host said."""

    up_s: float
    """Since it started, by its own clock; to 10 ms."""
    stat: str
    tasks_s: Mapping[int, float]
    """CPU time by process id."""
    interfaces: Mapping[str, Mapping[str, Mapping[str, int]]]
    """By namespace and name."""


def parse_look(text: str) -> Look:
    """What `_LOOK` prints. Pure."""
    first, *parts = text.split(f"\n{_MARK}")
    uptime, _, stat = first.partition("\n")
    spent: dict[int, float] = {}
    interfaces: dict[str, Mapping[str, Mapping[str, int]]] = {}
    for part in parts:
        name, _, content = part.partition("\n")
        if name.startswith("task "):
            spent[int(name.split()[1])] = ticks_s(content)
        else:
            interfaces[name] = counters.parse(content)
    return Look(float(uptime.split()[0]), stat, spent, interfaces)


def shortage(chain: Chain, found: Mapping[HostRole, Resources]) -> str:
    """What the hosts lack for a chain, as a sentence; empty when they suffice. Pure."""
    needs = {GENERATING: ENDS, FUNCTIONS: chain.vnfs if chain.on_vfs else 0}
    for role, needed in needs.items():
        nic, place = found[role].nic, found[role].place
        if needed and not found[role].vfs:
            return f"{nic} of {place} has no SR-IOV"
        if needed > found[role].vfs:
            return f"needs {needed} VFs on {place}, and {nic} has {found[role].vfs}"
    if chain.kind == "container" and not found[FUNCTIONS].dockerd:
        return f"there is no Docker on {found[FUNCTIONS].place}"
    return ""


def netns(token: str, place: str) -> str:
    """A namespace of a chain: `c` and `d` the ends, `v1`, `v2`, … the functions."""
    return f"pw-{token}-{place}"


def _mac(number: int) -> str:
    """Of a function behind a bridge: one of those that `remove_traces` takes off a NIC."""
    return f"02:70:77:0f:00:{number:02x}"


def plan_ends(token: str) -> Plan:
    """The namespaces of the chain's two ends, before they have their VFs. Pure."""
    return Plan((*new_namespace(netns(token, "c")), *new_namespace(netns(token, "d"))))


def plan_functions(token: str, chain: Chain) -> Plan:
    """The functions' namespaces, before they have interfaces; containers have theirs. Pure."""
    steps: list[Step] = []
    for number in range(1, chain.vnfs + 1):
        own = netns(token, f"v{number}")
        steps += router_settings(own) if chain.kind == "container" else new_function(own)
    return Plan(tuple(steps))


def plan_bridge(token: str, chain: Chain, bridge: str, nic: str, ends: Sequence[str]) -> Plan:
    """The host's bridge with the NIC and all functions as ports; no frame is ever flooded. Pure.

    `ends` are the MACs of the chain's ends, which are behind the NIC.
    """
    steps: list[Step] = [
        AddBridge("", bridge, _BRIDGE_MAC, _MTU_BYTES),
        SetUp("", bridge),
        SetMaster("", nic, bridge),
        *(AddForwarding("", nic, mac) for mac in ends),
    ]
    for number in range(1, chain.vnfs + 1):
        inside, port, mac = netns(token, f"v{number}"), f"pw{token}f{number}", _mac(number)
        steps += [
            AddVeth(
                "",
                port,
                _INDEX + number,
                mac.replace(":0f:", ":1f:"),
                inside,
                GUEST_INTERFACE,
                mac,
                _MTU_BYTES,
            ),
            SetMaster("", port, bridge),
            SetUp("", port),
            SetUp(inside, GUEST_INTERFACE),
            AddForwarding("", port, mac),
            # A NIC with VFs gives the host what it is told to take, and no more.
            AcceptAddress("", nic, mac),
        ]
    return Plan(tuple(steps))


def plan_routing(token: str, chain: Chain, macs: Mapping[int, str], ends: Sequence[str]) -> Plan:
    """Addresses and routes of the functions, whose interfaces are up. Pure."""
    steps = routing(chain, lambda number: netns(token, f"v{number}"), macs, ends)
    waits = [AwaitUp(netns(token, f"v{number}")) for number in macs]
    return Plan((*steps, *waits))


def plan_machines(
    token: str, chain: Chain, macs: Mapping[int, str], ends: Sequence[str]
) -> dict[int, tuple[str, ...]]:
    """By number, what functions that are virtual machines are told. Pure."""
    steps = routing(chain, lambda number: netns(token, f"v{number}"), macs, ends)
    return {number: told(steps, netns(token, f"v{number}")) for number in macs}


def peers(chain: Chain, macs: Mapping[int, str], end: str) -> dict[int, str]:
    """By number, the MAC that each function that polls sends to; `end` is behind the last. Pure."""
    last = chain.vnfs
    through = chain.pattern == "east-west"
    return {number: macs[number + 1] if through and number < last else end for number in macs}


def steps(chain: Chain, nic: str) -> tuple[str, ...]:
    """What makes a chain, for people, before any VF has been given: MACs stand as names. Pure."""
    token = "0" * 8
    ends = ("<MAC of the sending end>", "<MAC of the receiving end>")
    names = {number: netns(token, f"v{number}") for number in range(1, chain.vnfs + 1)}
    macs = {number: f"<MAC of vnf{number}>" for number in names}
    here: list[object] = []
    if chain.kind == "vm":
        for number, lines in plan_machines(token, chain, macs, ends).items():
            here += [
                f"planewised vf bind <VF of {nic}> vfio-pci",
                f"start the virtual machine {names[number]}, and give it that VF",
                *(f"in {names[number]}: {line}" for line in lines),
            ]
    elif chain.forwards == "testpmd":
        there_macs = peers(chain, macs, ends[1])
        for number in names:
            command = vf_command(f"<address of vnf{number}'s VF>", 0, there_macs[number], "vnf")
            here += [
                "take huge pages from the kernel",
                f"planewised vf bind <VF of {nic}> vfio-pci",
                shlex.join(command),
            ]
    else:
        if chain.kind == "container":
            for name in names.values():
                here += [
                    f"docker run --network none --name {name}",
                    f"ip netns attach {name} <its process>",
                ]
        here += plan_functions(token, chain).steps
        if chain.plane == "vf":
            here += [
                f"planewised vf move <VF of {nic}> --to {name} "
                f"--name {GUEST_INTERFACE} --mtu {_MTU_BYTES}"
                for name in names.values()
            ]
        else:
            macs = {number: _mac(number) for number in names}
            here += plan_bridge(token, chain, f"pw-{token}-b", nic, ends).steps
        here += plan_routing(token, chain, macs, ends).steps
    there = [
        *plan_ends(token).steps,
        *(
            f"planewised vf move <VF of {nic}> --to {netns(token, place)} "
            f"--name {GUEST_INTERFACE} --mtu {_MTU_BYTES}"
            for place in ("c", "d")
        ),
    ]
    return (
        *(f"{GENERATING}: {one}" for one in there),
        *(f"{FUNCTIONS}: {one}" for one in here),
    )


class HostedChain:
    """A chain that stands on two hosts; leaving its `with` block removes all of it.

    `pools` are the VFs of both hosts' NICs, which outlive it; `cpus` the functions' host's.

    Raises on entry:
        PlanewiseError: it cannot be built there.
    """

    def __init__(
        self,
        chain: Chain,
        placement: Placement,
        machines: Mapping[HostRole, Machine],
        pools: Mapping[HostRole, VfPool],
        token: str,
        generator_pps: float,
        offered_pps: float | None = None,
        *,
        docker: Docker | None = None,
        machines_on: PassedThrough | None = None,
        pollers: Pollers | None = None,
    ) -> None:
        """`docker` is the functions' host's, where they are containers; `machines_on` has them
        where they are virtual machines. Both outlive the chain. `pollers` has those that poll."""
        self.chain = chain
        self.placement = placement
        self._machines = machines
        self._pools = pools
        self._token = token
        self._generator_pps = generator_pps
        self._offered_pps = offered_pps
        self._docker = docker
        self._passed = machines_on
        self._pollers = pollers
        self._held: dict[HostRole, list[int]] = {role: [] for role in HOSTS}
        self._streams = Streams()
        self._before: account.Way = ()
        self._ends: tuple[str, str] = ("", "")
        self._macs: dict[int, str] = {}
        self._standing = ExitStack()
        self._both = ThreadPoolExecutor(len(HOSTS))

    def __enter__(self) -> Self:
        self._standing.callback(self._both.shutdown)
        for role in HOSTS:
            self._standing.callback(self._remove, role)
        self._standing.callback(self.stop)
        try:
            self._build()
        except PlanewiseError:
            self._standing.close()
            raise
        except BaseException:
            if self._passed is not None:
                # A boot that takes minutes is no reason to let somebody wait.
                self._passed.machines.close()
            self._standing.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._standing.close()

    @property
    def _functions(self) -> Machine:
        return self._machines[FUNCTIONS]

    @property
    def _source(self) -> Host:
        return self._machines[GENERATING].host

    def netns(self, place: str) -> str:
        """A namespace of it: `c` and `d` the ends, `v1`, `v2`, … the functions."""
        return netns(self._token, place)

    def _build(self) -> None:
        host = self._functions.host
        ends = self._both.submit(self._build_ends)
        functions = self._both.submit(self._build_functions)
        self._ends, self._macs = ends.result(), functions.result()
        if self._passed is not None:
            told = plan_machines(self._token, self.chain, self._macs, self._ends)
            self._passed.machines.tell(told)
        elif self._pollers is not None:
            cpus = {number: self.placement.cpu(f"vnf{number}") for number in self._macs}
            self._pollers.start(peers(self.chain, self._macs, self._ends[1]), cpus)
            return
        else:
            if self.chain.plane == "bridge":
                bridge, nic = self._functions.bridge, self._functions.nic
                script.perform(plan_bridge(self._token, self.chain, bridge, nic, self._ends), host)
            script.perform(plan_routing(self._token, self.chain, self._macs, self._ends), host)
        self._steer()

    def _build_ends(self) -> tuple[str, str]:
        """Their MACs."""
        script.perform(plan_ends(self._token), self._source)
        ends = self._move(GENERATING, ("c", "d"))
        script.perform(Plan(tuple(AwaitUp(self.netns(one)) for one in ends)), self._source)
        return ends["c"], ends["d"]

    def _build_functions(self) -> dict[int, str]:
        """Their MACs, by number."""
        numbers = range(1, self.chain.vnfs + 1)
        if self._passed is not None:
            self._standing.callback(self._passed.machines.sleep)
            return dict(self._passed.stand(numbers))
        if self._pollers is not None:
            self._standing.callback(self._pollers.close)
            return dict(self._pollers.take(numbers))
        if self._docker is not None:
            names = [self.netns(f"v{number}") for number in numbers]
            for name in names:
                self._standing.callback(self._docker.remove, name)
            contain(self._docker, self._functions.host, names)
        script.perform(plan_functions(self._token, self.chain), self._functions.host)
        if self.chain.plane == "bridge":
            return {number: _mac(number) for number in numbers}
        given = self._move(FUNCTIONS, [f"v{number}" for number in numbers])
        return {number: given[f"v{number}"] for number in numbers}

    def _move(self, role: HostRole, places: Sequence[str]) -> dict[str, str]:
        """Gives each namespace a VF; their MACs, by place."""
        guests = [_holder(role, index, self.netns(place)) for index, place in enumerate(places)]
        moved = self._pools[role].move(guests, _MTU_BYTES)
        self._held[role] += [vf.index for vf in moved.values()]
        ups = tuple(SetUp(guest.netns, guest.interface) for guest in guests)
        script.perform(Plan(ups), self._machines[role].host)
        return {place: moved[self.netns(place)].config.mac for place in places}

    def _steer(self) -> None:
        """Each function's receive work goes to its CPU, as far as the host lets us."""
        host = self._functions.host
        cpus = [self.placement.cpu(name) for name in self.chain.names]
        if self._passed is not None:
            self._passed.machines.pin(dict(enumerate(cpus, start=1)))
            return
        for number, cpu in enumerate(cpus, start=1):
            if self.chain.plane == "vf":
                bind_interrupts(host, self.netns(f"v{number}"), GUEST_INTERFACE, [cpu])
            else:
                steer(host, self.netns(f"v{number}"), [GUEST_INTERFACE], [cpu])
        if self.chain.plane == "bridge":
            entries = cpus if self.chain.pattern == "north-south" else cpus[:1]
            bind_interrupts(host, None, self._functions.nic, entries)

    def start(self, size: FrameSize, limit_s: float) -> None:
        """See `KernelChain.start`."""
        self.stop()
        if self._pollers is not None:
            self._pollers.clear()
        # Programs of one CPU share it by time, not by frames: a mix must be paced.
        share = _OVERLOAD if len(frames_of(size)) == 1 else MIXED
        pps = self._offered_pps or self._generator_pps * share
        self._before = self._way()
        ends = tuple(f"{GUEST_INTERFACE}@{self.netns(place)}" for place in ("c", "d"))
        for arguments in commands(
            self.chain, size, limit_s, pps, ends=(ends[0], ends[1]), macs=self._macs
        ):
            self._streams.add(self._source.start((self._source.probe, *arguments)))

    def stop(self) -> FrameAccount | None:
        """Ends the generator's traffic, and says what became of it. Idempotent."""
        if not self._streams:
            return None
        self._streams.stop()
        return account.account(self._before, account.at_rest(self._way, _REST_S))

    def _way(self) -> account.Way:
        ends = self._look(self._source, (), [self.netns("c"), self.netns("d")]).interfaces
        counting = self._counting
        if counting is not None:
            read = counting.read()
            passed = [(one.received or 0, one.packets) for one in read.values()]
        else:
            names = [self.netns(f"v{number}") for number in range(1, self.chain.vnfs + 1)]
            seen = self._look(self._functions.host, (), names).interfaces
            counted = [seen[name][GUEST_INTERFACE] for name in names]
            passed = [(one["rx_packets"], one["tx_packets"]) for one in counted]
        return account.way(
            self.chain,
            ends[self.netns("c")][GUEST_INTERFACE]["tx_packets"],
            ends[self.netns("d")][GUEST_INTERFACE]["rx_packets"],
            dict(zip(self.chain.names, passed, strict=True)),
        )

    def read(self, *, whole: bool = True) -> ChainReading:
        """The counters now."""
        self._streams.check()
        numbers = range(1, self.chain.vnfs + 1)
        counting = self._counting
        pids = {} if counting is None else counting.pids
        names = () if counting is not None else [self.netns(f"v{number}") for number in numbers]
        here = self._both.submit(
            self._look, self._functions.host, (*self._ksoftirqd.values(), *pids.values()), names
        )
        there = self._both.submit(self._look, self._source, (), [self.netns("c"), self.netns("d")])
        counted = {} if counting is None else counting.read()
        busy = self._pollers.busy_s() if self._pollers is not None and whole else {}
        functions, ends = here.result(), there.result()
        for number, name in zip(numbers, names, strict=False):
            own = functions.interfaces[name][GUEST_INTERFACE]
            counted[number] = sent_by(own, own["rx_packets"] if self.chain.on_vfs else None)
        cpus = cpu_times(functions.stat)
        spent_s = {f"vnf{number}": functions.tasks_s.get(pid, 0.0) for number, pid in pids.items()}
        kernel_s = {
            cpu: spent.soft_s + functions.tasks_s.get(self._ksoftirqd.get(cpu, 0), 0.0)
            for cpu, spent in cpus.items()
        }
        for number, pid in pids.items():
            if number in counted:
                kernel_s[self.placement.cpu(f"vnf{number}")] += functions.tasks_s.get(pid, 0.0)
        return ChainReading(
            at_s=functions.up_s,
            ends_at_s=ends.up_s,
            vnfs={name: counted[number] for number, name in enumerate(self.chain.names, start=1)},
            offered=ends.interfaces[self.netns("c")][GUEST_INTERFACE]["tx_packets"],
            delivered=ends.interfaces[self.netns("d")][GUEST_INTERFACE]["rx_packets"],
            cpus=cpus,
            kernel_s=None if self._pollers is not None else kernel_s,
            tasks_s=spent_s if self._pollers is not None else {},
            busy_s=busy,
            host=FUNCTIONS,
            machines=self._passed is not None,
        )

    @property
    def _counting(self) -> Pollers | FunctionMachines | None:
        """What counts for functions whose interfaces no kernel of the host has."""
        if self._passed is not None:
            return self._passed.machines
        return self._pollers

    @staticmethod
    def _look(host: Host, pids: Sequence[int], names: Sequence[str]) -> Look:
        words = " ".join(map(str, pids))
        done = host.run(["sh", "-c", _LOOK, "sh", words, *names], timeout_s=_LOOK_S)
        return parse_look(done.check().stdout)

    @cached_property
    def _ksoftirqd(self) -> dict[int, int]:
        """By CPU, the kernel thread that forwards where interrupts alone do not get done."""
        threads = ksoftirqd(self._functions.host)
        return {cpu: pid for cpu, pid in threads.items() if cpu in self.placement.tasks}

    def _remove(self, role: HostRole) -> None:
        """Brings VFs home, then removes namespaces, bridge and addresses."""
        machine = self._machines[role]
        held, self._held[role] = self._held[role], []
        with ExitStack() as last:
            last.callback(remove_traces, machine.host, machine.nic, self._token)
            if role == FUNCTIONS and self.chain.plane == "bridge":
                last.callback(self._release_nic)
            for index in held:
                last.callback(self._pools[role].return_to_pool, index)

    def _release_nic(self) -> None:
        with suppress(PlanewiseError):  # it is no port of it yet
            release = ReleaseMaster("", self._functions.nic)
            script.perform(Plan((release,)), self._functions.host)


def _holder(role: HostRole, index: int, where: str) -> Guest:
    """A guest as far as a VF's move asks for one."""
    return Guest(
        name=where,
        host=role,
        role="main",
        index=index,
        plane="vf",
        netns=where,
        interface=GUEST_INTERFACE,
        mac="",
        ipv4="",
        ipv6="",
    )


def cpus_of(host: Host) -> tuple[int, ...]:
    """The CPUs of a host.

    Raises:
        PlanewiseError: it cannot be asked.
    """
    count = int(host.run(["nproc"]).check().stdout)
    return tuple(range(count))
