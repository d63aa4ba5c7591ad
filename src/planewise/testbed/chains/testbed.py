"""Lifecycle of chains of functions on a pair of hosts.

The functions are guests of the responder's host (`guests.py`), joined by the kernel's bridge, by a
DPDK switch, or, on VFs, by the NIC. The ends are on the sender's host. On one machine, where both
hosts are namespaces, each end has a veth pair of its own to the responder, without a switch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Self

from planewise.errors import PlanewiseError
from planewise.store.models import FrameAccount
from planewise.testbed.chains import account, ends
from planewise.testbed.chains.dpdk import DpdkSwitch, Driver, memory_bytes
from planewise.testbed.chains.ends import CABLES, PLACES, Ends
from planewise.testbed.chains.generator import ChainGenerator
from planewise.testbed.chains.guests import ChainParts, Pollers, Routers, move_vfs
from planewise.testbed.chains.machines import FunctionMachines
from planewise.testbed.chains.model import GENERATOR, SWITCH, Chain, FrameSize, Placement
from planewise.testbed.chains.reading import ChainReading, cpu_times, ksoftirqd
from planewise.testbed.chains.routing import SOURCE, TARGET, netns
from planewise.testbed.guests.vms.guests import remove_guests
from planewise.testbed.hosts import hugepages
from planewise.testbed.hosts.counters import HostCounters, read_host
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.machine import MachineState, remove_traces
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.hosts.signals import result_of, together
from planewise.testbed.hosts.steering import bind_interrupts, steer
from planewise.testbed.model import GUEST_INTERFACE, HOSTS, HostRole
from planewise.testbed.plan import await_up, new_namespace

FUNCTIONS: HostRole = "responder"
GENERATING: HostRole = "sender"

_REST_S = 20.0
"""Most time that frames are waited for at the end; only busy or emulated hosts take long."""


def states_on(pair: Pair, opened: ExitStack) -> dict[HostRole, MachineState]:
    """States of a pair on which nothing stands; closing `opened` restores the hosts."""
    states = {role: MachineState(pair.machines[role], role, pair.token) for role in HOSTS}
    for state in states.values():
        opened.callback(state.close)
    return states


class ChainTestbed:
    """A chain; entering its `with` block builds it, leaving removes it.

    Raises on entry:
        UnsupportedError: a program, huge pages or a privilege is missing.
        PlanewiseError: it cannot be built there.
    """

    def __init__(
        self,
        chain: Chain,
        placement: Placement,
        states: Mapping[HostRole, MachineState],
        max_pps: Callable[[], float],
        *,
        offered_pps: float | None = None,
        uplink: Driver | None = None,
        machines: FunctionMachines | None = None,
        addressed: bool = False,
    ) -> None:
        """
        Args:
            chain: what is built.
            placement: on which CPUs.
            states: of its hosts; they outlive it.
            max_pps: the generator's own maximum [packet/s], called where `offered_pps` is None.
            offered_pps: by the generator [packet/s]; None: as much as it can.
            uplink: driver of a DPDK switch's uplink; None: the generator is on the switch.
            machines: of functions that are virtual machines; outlives the chain.
            addressed: whether the ends have addresses, for programs on them.
        """
        self.chain = chain
        self.placement = placement
        self._responder, self._sender = states[FUNCTIONS], states[GENERATING]
        self._token, self._separate = self._responder.token, not self._responder.machine.netns
        self._parts = ChainParts(chain, placement, self._responder, machines)
        self._uplink = uplink
        self._external = chain.plane != "vhost-user" or uplink is not None
        self._machines = machines
        self._functions = (Pollers if chain.polls else Routers)(self._parts)
        names = [self._end(place) for place in PLACES]
        alone = None if self._separate or not self._external else placement.cpu(GENERATOR)
        self._generator = ChainGenerator(
            self._sender.host,
            (f"{GUEST_INTERFACE}@{names[0]}", f"{GUEST_INTERFACE}@{names[1]}"),
            offered_pps,
            max_pps,
            alone,
        )
        self._addressed = addressed
        self._ends = CABLES
        self._ksoftirqd: dict[int, int] = {}
        self._switch_pid: int | None = None
        """Of a switch that kernels send to, where it is a program."""
        self._start_path: account.FramePath = {}
        self._ends_reader = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        opened = self._parts.opened
        opened.callback(self._ends_reader.shutdown)
        if self._separate:  # namespaces of this machine go with the pair
            for state in (self._sender, self._responder):
                opened.callback(remove_traces, state.host, state.machine.nic, state.token)
            if self._machines is not None and not self.chain.on_vfs:
                # They end with their chain, as the next one's ports have the same names.
                opened.callback(remove_guests, self._responder.host, self._responder.token)
        try:
            self._build()
        except BaseException as error:
            if self._machines is not None and not isinstance(error, PlanewiseError):
                # Not to wait for boots of minutes.
                self._machines.close()
            opened.close()
            raise
        opened.callback(self._generator.stop)
        return self

    def __exit__(self, *_: object) -> None:
        self._parts.opened.close()

    def _end(self, place: str) -> str:
        return netns(self._token, place)

    def _build(self) -> None:
        parts, chain, host = self._parts, self.chain, self._responder.host
        if huge_pages_bytes := memory_bytes(chain):
            parts.opened.enter_context(hugepages.reserved(host, huge_pages_bytes))
        _ = parts.directory
        together([self._build_ends, self._functions.make], workers=2 if self._separate else 1)
        if chain.plane == "vhost-user":
            switch = parts.switch = DpdkSwitch(parts, self._uplink, self._ends)
            parts.opened.callback(switch.close)
            switch.add_functions()
            self._responder.host.perform(ends.accepted(parts.guests, self._ends))
        elif not chain.on_vfs:
            self._build_kernel_switch()
        self._functions.connect(self._ends)
        if parts.switch is not None:
            parts.switch.await_functions()
        if self._addressed:
            self._sender.host.perform(ends.addresses(self._token, chain, parts.guests))
        if not chain.polls:
            threads = ksoftirqd(host)
            self._ksoftirqd = {
                cpu: pid for cpu, pid in threads.items() if cpu in self.placement.tasks
            }

    def _build_ends(self) -> None:
        if not self._separate:
            self._responder.host.perform(ends.cables(self._token))
            return
        names = [self._end(place) for place in PLACES]
        self._sender.host.perform([step for name in names for step in new_namespace(name)])
        guests = [replace(self._parts.guests[1], netns=name) for name in names]
        first, last = move_vfs(self._sender, self._parts.opened, guests)
        self._sender.host.perform(await_up(name) for name in names)
        nic = self._responder.machine.nic
        self._ends = Ends((first.mac, last.mac), (nic, nic))

    def _build_kernel_switch(self) -> None:
        """The switch that kernels send to, with its ports; it ends with the chain."""
        state, chain, switch = self._responder, self.chain, ends.switch_of(self.chain)
        switch_state = MachineState(state.machine, state.role, state.token)
        self._parts.opened.callback(switch_state.close)
        queues = 1 if self._machines is None else self._machines.options.queues
        site = ends.site_of(state.machine.bridge, self._ends, queues)
        created = switch.create(switch_state, site)
        # Known only now: a switch that is no program has none.
        site = replace(site, directory=switch_state.directory)
        if self._separate:
            nics = dict.fromkeys(self._ends.nics)
            release = [step for nic in nics for step in switch.release_nic(replace(site, nic=nic))]
            self._parts.opened.callback(_ignore_errors, partial(state.host.perform, release))
        state.host.perform([*created, *ends.ports(chain, self._parts.guests, site, self._ends)])
        for name in self._functions.namespaces:
            state.host.perform(switch.disable_offloads(switch_state, name, GUEST_INTERFACE))
        if self._addressed:
            for place in PLACES:
                steps = switch.disable_offloads(switch_state, self._end(place), GUEST_INTERFACE)
                self._sender.host.perform(steps)
        if (pid := switch_state.switch_pids.get(switch.name)) is not None:
            self._switch_pid = pid
            cpu = self.placement.cpu(SWITCH)
            state.host.run(["taskset", "-acp", str(cpu), str(pid)]).check()
        cpus = [self.placement.cpu(function) for function in self.chain.names]
        entries = cpus[:1] if self.chain.through else cpus
        if self._separate:
            bind_interrupts(state.host, None, state.machine.nic, entries)
        else:
            steer(state.host, state.machine.netns, [self._ends.nics[0]], entries)

    @property
    def endpoints(self) -> tuple[tuple[Host, str, str, str], ...]:
        """Host, namespace, address and interface of both ends."""
        return tuple(
            (self._sender.host, self._end(place), address, GUEST_INTERFACE)
            for place, address in zip(PLACES, (SOURCE, TARGET), strict=True)
        )

    @property
    def remarks(self) -> tuple[str, ...]:
        """How the functions forward, where readers of results must know."""
        return self._functions.remarks

    def start(self, size: FrameSize, limit_s: float = 0.0) -> None:
        """Starts the generator with frames of `size`, at its offered or highest rate, until `stop`.

        An external one accounts for every frame of `limit_s`, and ends after that.
        """
        self.stop()
        self._functions.clear()
        if self._external:
            self._start_path = self._frame_path()
            self._generator.start(self.chain, size, limit_s, self._parts.macs)
        elif (switch := self._parts.switch) is not None:
            switch.add_sources(size)
            self._start_path = self._frame_path()
            switch.admit_sources()

    def stop(self) -> FrameAccount | None:
        """Stops the generator, and returns the account of its frames. Idempotent."""
        if self._generator.sending:
            returned = self._generator.stop()
            ended = self._end_counters()[2]
            after = account.at_rest(self._frame_path, _REST_S)
            # Frames that arrived after the probes' last look cannot be told apart.
            *_, before = self._start_path.values()
            foreign = None if returned is None else max(0, ended - before - returned)
            return account.account(self._start_path, after, foreign)
        switch = self._parts.switch
        if switch is None or not switch.sending:
            return None
        try:
            switch.block_sources()
            after = account.at_rest(self._frame_path, _REST_S)
        finally:
            switch.remove_sources()
        return account.account(self._start_path, after)

    def _frame_path(self) -> account.FramePath:
        counters = read_host(self._responder.host, {}, self._functions.namespaces)
        passed = {
            f"vnf{number}": (vnf.received or 0, vnf.packets)
            for number, vnf in self._functions.read(counters).items()
        }
        switch, uplink = self._parts.switch, None
        counted = {} if switch is None else switch.counters()
        if switch is not None and not self._external:
            sent, delivered = switch.offered_by_sources(counted), switch.source_counters(counted)[1]
            return account.frame_path(self.chain, sent, delivered, passed)
        if switch is not None:
            uplink = switch.uplink_counters(counted)
        return account.frame_path(self.chain, *self._end_counters()[1:], passed, uplink)

    def _end_counters(self) -> tuple[float, int, int]:
        """Time of the reading, frames that left the generator, and frames that came back."""
        names = [self._end(place) for place in PLACES]
        counters = read_host(self._sender.host, {}, names)
        first, last = (counters.of(name, GUEST_INTERFACE) for name in names)
        return counters.at_s, first["tx_packets"], last["rx_packets"]

    def read(self, *, busy: bool = True) -> ChainReading:
        """The counters now. Without `busy`, functions are not asked how busy they are."""
        self._functions.check()
        self._generator.check()
        ends_read = self._ends_reader.submit(self._end_counters) if self._external else None
        switch, polls = self._parts.switch, self.chain.polls
        counted = {} if switch is None else switch.counters()
        pids = self._functions.pids
        tasks = dict.fromkeys([*self._ksoftirqd.values(), *pids.values()], "")
        if switch is not None:
            tasks[switch.pid] = "pmd"
        if self._switch_pid is not None:
            tasks[self._switch_pid] = ""
        counters = read_host(self._responder.host, tasks, self._functions.namespaces)
        sent = self._functions.read(counters) if switch is None else switch.sent(counted)
        if not self.chain.on_vfs:  # a bridge between functions loses frames, not a NIC
            sent = {number: replace(vnf, received=None) for number, vnf in sent.items()}
        spent_s = {f"vnf{number}": counters.tasks_s[pid] for number, pid in pids.items()}
        reading = ChainReading(
            at_s=counters.at_s,
            vnfs={f"vnf{number}": vnf for number, vnf in sent.items()},
            cpus=cpu_times(counters.stat),
            tasks_s=spent_s if polls else {},
            busy_s=self._functions.busy_s() if busy else {},
            host=FUNCTIONS if self._separate else "",
            machines=self.chain.kind == "vm",
        )
        if switch is not None:
            offered, delivered = switch.source_counters(counted)
            reading = replace(
                reading,
                ends_at_s=counters.at_s,
                offered=offered,
                delivered=delivered,
                tasks_s={**reading.tasks_s, SWITCH: counters.tasks_s[switch.pid]},
                # A virtual machine's CPU time is work: it sleeps when idle.
                busy_s=reading.busy_s if polls else spent_s,
                uplink=switch.uplink_counters(counted),
                polling=switch.pmd_cycles(),
            )
        elif not polls:
            reading = replace(reading, kernel_s=self._kernel_s(counters, spent_s))
        if ends_read is not None:
            at_s, offered, delivered = result_of(ends_read)
            reading = replace(reading, ends_at_s=at_s, offered=offered, delivered=delivered)
        return reading

    def _kernel_s(self, counters: HostCounters, spent_s: Mapping[str, float]) -> dict[int, float]:
        """By CPU, the time in which a kernel forwarded: the host's, or that of a guest."""
        busy = {
            cpu: spent.soft_s + counters.tasks_s.get(self._ksoftirqd.get(cpu, 0), 0.0)
            for cpu, spent in cpu_times(counters.stat).items()
        }
        for name, spent in spent_s.items():
            busy[self.placement.cpu(name)] += spent
        if self._switch_pid is not None:
            busy[self.placement.cpu(SWITCH)] += counters.tasks_s[self._switch_pid]
        return busy


def _ignore_errors(work: Callable[[], None]) -> None:
    with suppress(PlanewiseError):  # the NIC may not be a port yet
        work()
