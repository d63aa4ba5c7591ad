"""One chain: builds it, sends frames into it, and reads its counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from planewise.errors import PlanewiseError
from planewise.store.models import FrameAccount
from planewise.testbed.chains import account
from planewise.testbed.chains.dpdk import DpdkSwitch, Driver, memory_bytes
from planewise.testbed.chains.ends import (
    CABLES,
    MTU_BYTES,
    PLACES,
    accepted,
    add_nics,
    addresses,
    cables,
    entries,
    kernel_switch,
    nics_of,
)
from planewise.testbed.chains.forwarders import Functions
from planewise.testbed.chains.generator import ChainGenerator
from planewise.testbed.chains.model import GENERATOR, SWITCH, FrameSize
from planewise.testbed.chains.reading import ChainReading, cpu_times, ksoftirqd
from planewise.testbed.chains.routing import SOURCE, TARGET, function_guests, netns
from planewise.testbed.hosts import hugepages
from planewise.testbed.hosts.counters import HostCounters, read_host
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.hosts.signals import result_of, together
from planewise.testbed.hosts.steering import steer
from planewise.testbed.model import GUEST_INTERFACE, HostRole, Site
from planewise.testbed.plan import await_up, new_namespace, set_up
from planewise.testbed.planes.plane import Switch
from planewise.testbed.settings import irq
from planewise.testbed.settings.host_setting import Spot

FUNCTIONS: HostRole = "responder"
"""The functions' host."""

_REST_S = 20.0
"""Most time that frames are waited for at the end; only busy or emulated hosts take long."""


@dataclass(frozen=True)
class Feed:
    """What is sent into a chain."""

    max_pps: Callable[[Host], float]
    """A host's generator's own maximum [packet/s], asked where `offered_pps` is None."""
    offered_pps: float | None = None
    """By the generator [packet/s]; None: as much as it can."""
    uplink: Driver | None = None
    """Driver of a DPDK switch's uplink; None: the generator is on the switch."""
    addressed: bool = False
    """Whether the ends have addresses, for programs on them."""


class BuiltChain:
    """A chain between two ends on the sender's host; `functions.opened` removes it."""

    def __init__(self, functions: Functions, sender: MachineState, feed: Feed) -> None:
        """`functions` are not made yet; `sender` is the host of both ends."""
        self.chain, self.placement = functions.chain, functions.placement
        self._functions = functions
        self._state, self._sender = functions.state, sender
        self._separate = not sender.machine.netns
        self._feed = feed
        self._external = self.chain.plane != "vhost-user" or feed.uplink is not None
        self._names = (netns(sender.token, PLACES[0]), netns(sender.token, PLACES[1]))
        alone = None if self._separate or not self._external else self.placement.cpu(GENERATOR)
        self._generator = ChainGenerator(
            sender.host,
            (f"{GUEST_INTERFACE}@{self._names[0]}", f"{GUEST_INTERFACE}@{self._names[1]}"),
            feed.offered_pps,
            partial(feed.max_pps, sender.host),
            alone,
        )
        self._ends = replace(CABLES, nics=nics_of(self._state.machine))
        self._switch: DpdkSwitch | None = None
        self._switch_pid: int | None = None
        """Of a switch that kernels send to, where it is a program."""
        self._ksoftirqd: dict[int, int] = {}
        self._start_path: account.FramePath = {}
        self._ends_reader = ThreadPoolExecutor(1)

    def build(self) -> None:
        """Builds it.

        Raises:
            UnsupportedError: a program, huge pages or a privilege is missing.
            PlanewiseError: it cannot be built there.
        """
        chain, host, opened = self.chain, self._state.host, self._functions.opened
        opened.callback(self._ends_reader.shutdown)
        if huge_pages_bytes := memory_bytes(chain):
            opened.enter_context(hugepages.reserved(host, huge_pages_bytes))
        together([self._make_ends, self._make_functions], workers=2 if self._separate else 1)
        functions, switch = self._functions.guests, kernel_switch(chain)
        if switch is not None:
            host.perform(entries(switch, self._site, functions, self._ends))
        elif chain.plane == "vhost-user":
            host.perform(accepted(functions, self._ends))
        self._functions.connect(self._ends.macs, self._switch)
        if self._switch is not None:
            self._switch.await_functions()
        if self._feed.addressed:
            steps = [*addresses(self._sender.token, chain, functions)]
            if switch is not None:
                for name in self._names:
                    steps += switch.disable_offloads(self._state, name, GUEST_INTERFACE)
            self._sender.host.perform(steps)
        if not chain.polls:
            threads = ksoftirqd(host)
            tasks = self.placement.tasks
            self._ksoftirqd = {cpu: pid for cpu, pid in threads.items() if cpu in tasks}
        opened.callback(self._generator.stop)

    def _make_ends(self) -> None:
        sender, names = self._sender, self._names
        if not self._separate:
            self._state.host.perform(cables(sender.token))
            return
        sender.host.perform([step for name in names for step in new_namespace(name)])
        guests = [
            replace(function_guests(sender.token, self.chain)[1], netns=name) for name in names
        ]
        moved = sender.vfs.move(guests, MTU_BYTES)
        for vf in moved.values():
            self._functions.opened.callback(sender.vfs.return_to_pool, vf.index)
        up = [set_up(name, GUEST_INTERFACE) for name in names]
        sender.host.perform([*up, *(await_up(name) for name in names)])
        macs = (moved[names[0]].config.mac, moved[names[1]].config.mac)
        self._ends = replace(self._ends, macs=macs)

    def _make_functions(self) -> None:
        """Makes the functions, and the switch that joins them."""
        functions, opened = self._functions, self._functions.opened
        if self.chain.plane == "vhost-user":
            nics, cpus = self._ends.nics, self.placement.cpus(SWITCH)
            switch = DpdkSwitch(
                self._state, functions.directory, self.chain, cpus, self._feed.uplink, nics
            )
            self._switch = switch
            opened.callback(switch.close)
            switch.add_functions()
            for one in functions.placed.values():
                one.socket = switch.socket(one.guest.name)
        elif (kernels := kernel_switch(self.chain)) is not None:
            self._make_switch(kernels)
        functions.make()

    @property
    def _site(self) -> Site:
        return self._functions.placed[1].site

    def _make_switch(self, switch: Switch) -> None:
        """The switch that kernels send to, with the NICs."""
        state, site, nics = self._state, self._site, self._ends.nics
        opened = self._functions.opened
        opened.callback(state.end_program, switch.name)
        created = switch.create(state, site)
        # Known only now: a switch that is no program has none.
        site = replace(site, directory=state.directory)
        for one in self._functions.placed.values():
            one.site = site
        if self._separate:
            opened.callback(self._release_nic, switch, site)
        state.host.perform([*created, *add_nics(switch, site, nics)])
        if (pid := state.switch_pids.get(switch.name)) is not None:
            self._switch_pid = pid
            cpu = self.placement.cpu(SWITCH)
            state.host.run(["taskset", "-acp", str(cpu), str(pid)]).check()
        cpus = [self.placement.cpu(function) for function in self.chain.names]
        first = cpus[:1] if self.chain.through else cpus
        if self._separate:
            wanted = ",".join(map(str, sorted(set(first))))
            irq.SETTING.write(Spot(state.host, "", state.machine.nic), wanted)
        else:
            steer(state.host, state.machine.netns, [nics[0]], first)

    def _release_nic(self, switch: Switch, site: Site) -> None:
        with suppress(PlanewiseError):  # it may not be a port yet
            self._state.host.perform(switch.release_nic(site))

    @property
    def hosts(self) -> Mapping[HostRole, Host]:
        """Both hosts."""
        return {"sender": self._sender.host, FUNCTIONS: self._state.host}

    @property
    def endpoints(self) -> tuple[tuple[Host, str, str, str], ...]:
        """Host, namespace, address and interface of both ends."""
        return tuple(
            (self._sender.host, end, address, GUEST_INTERFACE)
            for end, address in zip(self._names, (SOURCE, TARGET), strict=True)
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
            self._generator.start(self.chain, size, limit_s, self._functions.macs)
        elif (switch := self._switch) is not None:
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
        switch = self._switch
        if switch is None or not switch.sending:
            return None
        try:
            switch.block_sources()
            after = account.at_rest(self._frame_path, _REST_S)
        finally:
            switch.remove_sources()
        return account.account(self._start_path, after)

    def _frame_path(self) -> account.FramePath:
        counters = read_host(self._state.host, {}, self._functions.namespaces)
        passed = {
            f"vnf{number}": (vnf.received or 0, vnf.packets)
            for number, vnf in self._functions.read(counters).items()
        }
        switch, uplink = self._switch, None
        counted = {} if switch is None else switch.counters()
        if switch is not None and not self._external:
            sent, delivered = switch.offered_by_sources(counted), switch.source_counters(counted)[1]
            return account.frame_path(self.chain, sent, delivered, passed)
        if switch is not None:
            uplink = switch.uplink_counters(counted)
        return account.frame_path(self.chain, *self._end_counters()[1:], passed, uplink)

    def _end_counters(self) -> tuple[float, int, int]:
        """Time of the reading, frames that left the generator, and frames that came back."""
        counters = read_host(self._sender.host, {}, self._names)
        first, last = (counters.of(name, GUEST_INTERFACE) for name in self._names)
        return counters.at_s, first["tx_packets"], last["rx_packets"]

    def read(self, *, busy: bool = True) -> ChainReading:
        """The counters now. Without `busy`, functions are not asked how busy they are."""
        self._functions.check()
        self._generator.check()
        ends_read = self._ends_reader.submit(self._end_counters) if self._external else None
        switch, polls = self._switch, self.chain.polls
        counted = {} if switch is None else switch.counters()
        pids = self._functions.pids
        tasks = dict.fromkeys([*self._ksoftirqd.values(), *pids.values()], "")
        if switch is not None:
            tasks[switch.pid] = "pmd"
        if self._switch_pid is not None:
            tasks[self._switch_pid] = ""
        counters = read_host(self._state.host, tasks, self._functions.namespaces)
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
