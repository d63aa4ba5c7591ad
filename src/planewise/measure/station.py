"""The stage and station of guests: namespaces and containers, here or on two servers.

One testbed serves all cells of a pair of hosts: guests stay from cell to cell, loads come and go.
On this machine the hosts of namespaces cost nothing, so that each switch that a NIC can be a port
of has a pair of its own, and going from cell to cell builds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Self

from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import AllocPart, Design
from planewise.measure.runs.beside import beside, load_of
from planewise.measure.runs.meter import Visible
from planewise.measure.runs.stage import Place, StageFacts, TrialResult
from planewise.measure.trials import programs_of
from planewise.measure.trials.alloc import AllocTrial
from planewise.measure.trials.allocation import AllocPath, measure_allocation
from planewise.measure.trials.applications import lacking
from planewise.measure.trials.ends import Counters, End, ends_of, sent_through
from planewise.measure.trials.frames import HostGenerator, LoadPath, measure_load
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.load_two_ended import (
    ApartPath,
    LoadEnd,
    counters_between,
    measure_load_apart,
)
from planewise.measure.trials.round_trips import (
    FIRST_ANSWER_S,
    SERVERS_PATIENCE_S,
    RttPath,
    measure_rtt,
)
from planewise.measure.trials.rtt import RttTrial
from planewise.testbed.guests.makers import MAKERS
from planewise.testbed.hosts.gauges import Gauge
from planewise.testbed.hosts.host import Host, LocalHost
from planewise.testbed.hosts.machine import Resources
from planewise.testbed.hosts.pair import Pair, local_pair
from planewise.testbed.hosts.steering import CpuSplit, split_cpus, steer
from planewise.testbed.loads.background import STRESS_NG, STRESSORS, BackgroundLoad
from planewise.testbed.loads.crew import ProcessCrew, ShellCrew
from planewise.testbed.model import HOSTS, Guest, HostRole, IpVersion, mtu_for
from planewise.testbed.planes import plane
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.testbed import Testbed
from planewise.testbed.vfs.allocator import Allocator, bonding_shortage
from planewise.testbed.vfs.allocator import shortage as allocator_shortage
from planewise.testbed.vfs.nic import Pf, read_pf

_LOAD_LIMIT_S = 86_400.0
"""Longer than any visit; the load ends with planewise in any case."""


class Testbeds:
    """The testbeds of a run, each made when a setting first needs it, and their generators.

    `pair` are the two servers to use; None: this machine.
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    def __init__(self, mtu_bytes: int, pair: Pair | None = None) -> None:
        self._mtu_bytes = mtu_bytes
        self._pair = pair
        self._built = ExitStack()
        self._testbeds: dict[tuple[str, ...], Testbed] = {}
        self._generator: HostGenerator | None = None
        self._local = LocalHost("generator")
        self._with_vfs = False
        self.cpus: CpuSplit | None = None if pair is not None else split_cpus()
        """Which CPUs generate and receive, where both hosts are this machine."""

    def of(self, setting: Setting) -> Testbed:
        """The testbed that a setting stands on."""
        # A host with guests that another program makes has that program, too (Docker's daemon).
        cheap = self._pair is None and not MAKERS[setting.kind].waits
        key = setting.switches if cheap else (setting.kind,) if self._pair is None else ()
        if key not in self._testbeds:
            pair = self._pair
            if pair is None:
                pair = self._built.enter_context(local_pair(self._mtu_bytes))
            self._testbeds[key] = self._built.enter_context(Testbed(pair, self._mtu_bytes))
        return self._testbeds[key]

    def expect(self, settings: Sequence[Setting]) -> dict[Setting, str]:
        """See `Testbed.expect`."""
        self._with_vfs = any(setting.vfs_a_host() for setting in settings)
        by_testbed: dict[int, tuple[Testbed, list[Setting]]] = {}
        for setting in settings:
            testbed = self.of(setting)
            by_testbed.setdefault(id(testbed), (testbed, []))[1].append(setting)
        return {
            setting: reason
            for testbed, group in by_testbed.values()
            for setting, reason in testbed.expect(group).items()
        }

    def new_block(self) -> None:
        """Ends what stands on this machine, so that a block is a build of its own.

        Not on other hosts, and not where a NIC has been given VFs: that takes too long.
        """
        if self._pair is None and not self._with_vfs:
            self._testbeds.clear()
            self._built.close()

    def clear(self) -> None:
        """Removes what stands on the servers; the next setting builds anew."""
        for testbed in self._testbeds.values():
            testbed.close()

    @property
    def local(self) -> bool:
        """Whether both hosts are namespaces of this machine."""
        return self._pair is None

    @property
    def machines(self) -> Sequence[Host]:
        """The machines that the hosts are, or are namespaces of."""
        if self._pair is None:
            return (self._local,)
        return [machine.host for machine in self._pair.machines.values()]

    @property
    def generator(self) -> HostGenerator:
        """What generates frames: this machine, or the sender's host."""
        if self._generator is None:
            host: Host = self._local if self._pair is None else self._pair.machines["sender"].host
            self._generator = HostGenerator(host, self.cpus)
        return self._generator

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._testbeds.clear()
        try:
            self._built.close()
        finally:
            self._local.close()


class GuestStage:
    """Sets cells up on the testbeds of a run. See `planewise.measure.runs.stage.Stage`."""

    def __init__(self, design: Design, pair: Pair | None = None, ip_version: IpVersion = 4) -> None:
        self._background = design.background
        self._ip_version: IpVersion = ip_version
        self._programs = programs_of(design)
        self._alloc = design.alloc
        self._planes: set[str] = set()
        self._testbeds = Testbeds(mtu_for(design.frame_sizes()), pair)

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""
        if self._alloc is not None and self._testbeds.local:
            # Before all else: what this machine lacks says nothing of the hosts that are needed.
            return dict.fromkeys(
                cells,
                "the allocator gives VFs: run it with --lab, or with --sender and --responder",
            )
        settings = {cell: self._setting(cell) for cell in cells}
        for_all = [program for program in self._programs if program != STRESS_NG]
        if reason := lacking(self._testbeds.machines, for_all):
            return dict.fromkeys(cells, reason)
        reasons: dict[Cell, str] = {}
        if STRESS_NG in self._programs and (
            reason := lacking(self._testbeds.machines, [STRESS_NG])
        ):
            reasons = {cell: reason for cell in cells if cell.load_type in STRESSORS}
            settings = {cell: setting for cell, setting in settings.items() if cell not in reasons}
        refused = self._testbeds.expect(list(dict.fromkeys(settings.values())))
        if self._alloc is not None:
            for setting in settings.values():
                if setting not in refused and (reason := self._no_allocator(setting, self._alloc)):
                    refused[setting] = reason
        for setting in settings.values():
            self._planes |= set() if setting in refused else setting.planes
        return reasons | {
            cell: refused[setting] for cell, setting in settings.items() if setting in refused
        }

    def _setting(self, cell: Cell) -> Setting:
        """The setting that a cell is measured on."""
        return cell.testbed

    def _no_allocator(self, setting: Setting, part: AllocPart) -> str:
        """Why VFs cannot be given to a setting's guests; empty where they can."""
        pair = self._testbeds.of(setting).pair
        machine = pair.machines["responder"]
        resources = self._testbeds.of(setting).resources("responder")
        pf = read_pf(machine.host, machine.nic) if resources.vfs else None
        return allocator_shortage(
            resources, pf, part.vfs, self._guests_at_nic(setting)
        ) or self._cannot_join(machine.host, resources, pf, setting)

    def _guests_at_nic(self, setting: Setting) -> int:
        """Guests of the responder, its main one apart, whose addresses its NIC receives for."""
        return setting.background_guests

    def _cannot_join(
        self, host: Host, resources: Resources, pf: Pf | None, setting: Setting
    ) -> str:
        """Why the responder's guests cannot have a VF beside what they have; empty where they
        can."""
        return bonding_shortage(host)

    def _allocator(self, arrangement: Arrangement, pair: Pair, vfs: int) -> Allocator:
        """The allocator of VFs to the responder's background guests."""
        host, nic = arrangement.hosts["responder"], pair.machines["responder"].nic
        return Allocator(host, nic, pair.token, vfs, arrangement.background("responder"))

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """The generator's own maximum [packet/s]."""
        return self._testbeds.generator.max_pps(size_bytes, self._ip_version)

    def new_block(self) -> None:
        """See `Testbeds.new_block`."""
        self._testbeds.new_block()

    def clear(self) -> None:
        """See `stage.ClearableStage`."""
        self._testbeds.clear()

    def facts(self) -> StageFacts:
        """How planes are built on these hosts, where that decides what is measured."""
        host, local = self._testbeds.machines[0], self._testbeds.local
        remarks = {name: plane(name).remarks(host, local=local) for name in sorted(self._planes)}
        return StageFacts(differences={name: words for name, words in remarks.items() if words})

    @contextmanager
    def station(self, cell: Cell) -> Iterator[GuestStation]:
        """The cell's guests, with their background load running."""
        setting = self._setting(cell)
        testbed = self._testbeds.of(setting)
        spec = replace(load_of(cell, self._background), limit_s=_LOAD_LIMIT_S)
        crew = ShellCrew if testbed.pair.separate else ProcessCrew
        with (
            testbed.arrange(setting) as arrangement,
            BackgroundLoad(arrangement, spec, crew) as load,
            GuestStation(
                arrangement,
                self._testbeds,
                testbed.pair,
                load,
                partial(self._allocator, arrangement, testbed.pair),
                self._ip_version,
            ) as station,
        ):
            yield station

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._testbeds.__exit__(*error)


class GuestStation:
    """One setting, set up: measures between its main guests.

    `load` runs beside every trial. `make_allocator` takes the number of VFs.
    """

    def __init__(
        self,
        arrangement: Arrangement,
        testbeds: Testbeds,
        pair: Pair,
        load: BackgroundLoad,
        make_allocator: Callable[[int], Allocator],
        ip_version: IpVersion = 4,
    ) -> None:
        self._arrangement = arrangement
        self._testbeds = testbeds
        self._make_allocator = make_allocator
        self._two_hosts = pair.separate
        self._separate = pair.separate and not arrangement.shared
        self._background = load
        self._ip_version: IpVersion = ip_version
        self._steered = False
        self._opened = ExitStack()
        self._allocator: Allocator | None = None

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Runs one RTT trial, with each frame received by the CPU where it arrives."""
        self._steer(False)
        arrangement = self._arrangement
        path = RttPath(
            hosts=arrangement.hosts,
            sender=arrangement.main("sender"),
            responder=arrangement.main("responder"),
            capture_points=arrangement.capture_points,
            not_measurable=arrangement.not_measurable,
            separate=self._separate,
            patience_s=SERVERS_PATIENCE_S if self._two_hosts else FIRST_ANSWER_S,
        )
        return beside(self._background, lambda: measure_rtt(path, trial, place))

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Runs one load trial; with a process on each machine where there are two, else with the
        hosts' receive work on CPUs of its own."""
        self._steer(True)
        generator = self._testbeds.generator
        if self._separate:
            apart_path = self._apart_path()
            return beside(
                self._background, lambda: measure_load_apart(apart_path, trial, place, generator)
            )
        arrangement = self._arrangement
        path = LoadPath(arrangement.trial_path(), arrangement.counter_points, self._ip_version)
        return beside(self._background, lambda: measure_load(path, trial, place, generator))

    def ends(self) -> Mapping[HostRole, End]:
        """See `ends.PairStation`."""
        return ends_of(self._arrangement.hosts, self._arrangement.mains)

    def sent(self) -> Counters:
        """See `ends.PairStation`: the guest's own interface counts it."""
        arrangement = self._arrangement
        gauge = self._gauge("sender", arrangement.main("sender"))
        return sent_through(arrangement.hosts["sender"], gauge)

    def beside_load(self, measure: Callable[[], TrialResult]) -> TrialResult:
        """See `ends.PairStation`; each frame is received by the CPU where it arrives."""
        self._steer(False)
        return beside(self._background, measure)

    def alloc(self, trial: AllocTrial, place: Place) -> TrialResult:
        """Runs one trial of the allocator, on the background guests."""
        self._steer(False)
        arrangement = self._arrangement
        if self._allocator is None:
            self._allocator = self._opened.enter_context(self._make_allocator(trial.part.vfs))
        clients = arrangement.background("sender")
        path = AllocPath(arrangement.hosts["sender"], clients, self._allocator)
        return beside(self._background, lambda: measure_allocation(path, trial, place))

    def visible(self) -> Visible:
        """See `meter.VisibleStation`: every guest's own interface."""
        arrangement = self._arrangement
        gauges = [
            self._gauge(self._role_of(guest), guest)
            for role in HOSTS
            for guest in (arrangement.main(role), *arrangement.background(role))
        ]
        if not self._two_hosts:
            return Visible(gauges)
        roles: Sequence[HostRole] = ("sender",) if arrangement.shared else HOSTS
        return Visible(gauges, {role: arrangement.hosts[role] for role in roles})

    def _gauge(self, lives_on: HostRole, guest: Guest) -> Gauge:
        """What a guest sends is counted at its own interface."""
        return Gauge(guest.name, lives_on, guest.netns, guest.interface)

    def _role_of(self, guest: Guest) -> HostRole:
        """The host that a guest lives on: within one host it is the sender's."""
        return "sender" if self._two_hosts and self._arrangement.shared else guest.host

    def _apart_path(self) -> ApartPath:
        arrangement = self._arrangement
        path = arrangement.trial_path()
        sender, responder = arrangement.main("sender"), arrangement.main("responder")
        return ApartPath(
            LoadEnd(arrangement.hosts["sender"], sender.name, f"{sender.interface}@{sender.netns}"),
            LoadEnd(
                arrangement.hosts["responder"],
                responder.name,
                f"{responder.interface}@{responder.netns}",
            ),
            source=path.source(self._ip_version),
            destination=path.destination(self._ip_version),
            next_hop_mac=path.next_hop_mac,
            counters=counters_between(
                arrangement.hosts, arrangement.counter_points, (sender.netns, responder.netns)
            ),
        )

    def _steer(self, split: bool) -> None:
        cpus = self._testbeds.cpus
        if cpus is None or split == self._steered:
            return
        for role, interfaces in self._arrangement.entrances.items():
            netns = self._arrangement.sites[role].netns
            if interfaces:
                steer(
                    self._arrangement.hosts[role],
                    netns,
                    interfaces,
                    cpus.receivers if split else (),
                )
        self._steered = split

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._steer(False)
        self._allocator = None
        self._opened.close()
