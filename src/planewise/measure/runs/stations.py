"""The stations of a run: sets up the cells of a design, on this machine or on two servers.

Guests stay from cell to cell; only the loads come and go. Two servers have one testbed. On this
machine hosts cost nothing: each switch that a NIC can be a port of has a pair of its own, so that
going from cell to cell builds nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Literal, Self

from planewise import procfs
from planewise.errors import UnsupportedError
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import AS_IS, AllocPart, BackgroundPart, Design
from planewise.measure.runs.chains import Chains
from planewise.measure.station import FIRST_ANSWER_S, Counters, End, Station, lost_guest_first
from planewise.measure.trials import programs_of, vm_options
from planewise.measure.trials.alloc import ALLOC_PLANES
from planewise.measure.trials.applications import lacking
from planewise.measure.trials.load_one_process import Generator
from planewise.testbed import settings
from planewise.testbed.guests.vms import platform as vms
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.managed import managed_guests, managed_machines
from planewise.testbed.guests.vms.platform import VmPlatform, platform_of, vm_mib
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.coalescing import read_rx_usecs
from planewise.testbed.hosts.gauges import Gauge
from planewise.testbed.hosts.host import Host, LocalHost
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.hosts.pair import Pair, local_pair
from planewise.testbed.hosts.steering import split_cpus
from planewise.testbed.loads.background import STRESS_NG, STRESSORS, BackgroundLoad, LoadSpec
from planewise.testbed.loads.crew import ProcessCrew, ShellCrew
from planewise.testbed.model import HOSTS, CounterPoint, Guest, HostRole, IpVersion, mtu_for
from planewise.testbed.planes import plane, refusal, vm_plane
from planewise.testbed.refusals import SPARE_MIB, memory_shortage, no_iommu
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.testbed import Testbed
from planewise.testbed.vfs.allocator import Allocator, bonding_shortage, shortage
from planewise.testbed.vfs.nic import Tool


class Allocators:
    """Allocators for the cells of a design on two servers."""

    def __init__(self, part: AllocPart, options: VmOptions, pair: Pair) -> None:
        self._part = part
        self._options = options
        self._pair = pair
        self._machine = pair.machines["responder"]
        self.platform: VmPlatform | None = None
        """Of the responder's virtual machines, once a cell needs it."""

    @staticmethod
    def setting(cell: Cell) -> Setting:
        """What the testbed builds for a cell."""
        if cell.guest != "vm":
            return cell.testbed
        bridge = ALLOC_PLANES["namespace"]
        return replace(cell.testbed, kind="namespace", plane=bridge, background_plane=bridge)

    def shortage(self, testbed: Testbed, cell: Cell) -> str:
        """Why VFs cannot be given to a cell's guests; empty where they can."""
        resources, host = testbed.resources("responder"), self._machine.host
        pf = Tool.on(host).pf(self._machine.nic) if resources.vfs else None
        machines = cell.guest == "vm"
        # Beside virtual machines stand as many idle namespaces.
        at_nic = cell.background_guests * (2 if machines else 1)
        if reason := shortage(resources, pf, self._part.vfs, at_nic):
            return reason
        if not machines:
            return bonding_shortage(host)
        if pf is not None and pf.iommu_group is None:
            return no_iommu(resources.place)
        needs = cell.background_guests, vm_mib(self._options)
        if reason := memory_shortage(*needs, resources.place, resources.free_mib):
            return reason
        try:
            self.platform = platform_of(host, self._options.programs)
        except UnsupportedError as error:
            return error.what
        return ""

    def make(self, cell: Cell, arrangement: Arrangement, vfs: int) -> Allocator:
        """The allocator of a cell's setting; entering it starts the virtual machines, if any."""
        host, nic, token = arrangement.hosts["responder"], self._machine.nic, self._pair.token
        guests = arrangement.background("responder")
        if cell.guest != "vm":
            return Allocator(host, nic, token, vfs, guests)
        assert self.platform is not None
        guests, site = managed_guests(token, len(guests)), arrangement.sites["responder"]
        state = MachineState(self._machine, "responder", token)
        machines = managed_machines(state, site, guests, self.platform, self._options)
        return Allocator(host, nic, token, vfs, guests, machines)


ONE_PLACE = (
    "both hosts are this machine and share its CPUs, so CPU load at the sender and at the "
    "responder is the same: it is measured once; on two servers it would be measured at both"
)


def repeated_cells(cells: Sequence[Cell]) -> frozenset[Cell]:
    """Of cells that differ only in the location of their CPU load, all but the first."""
    firsts: set[Cell] = set()
    repeated = set()
    for cell in cells:
        if cell.load_type == "cpu":
            alike = replace(cell, load_location="responder")
            if alike in firsts:
                repeated.add(cell)
            firsts.add(alike)
    return frozenset(repeated)


SECOND_WIRE = "wire1"
"""Second wire of hosts on this machine: virtual machines on the bridge and on the NIC have one
each."""

SERVERS_PATIENCE_S = 10.0
"""Wait for the very first answer between servers, or virtual machines: a busy lab stands still for
seconds."""
EMULATED_PATIENCE_S = 60.0
"""The same between guests whose CPUs are emulated, perhaps by an emulated CPU."""

_LOAD_LIMIT_S = 86_400.0
"""Longer than any visit; the load ends with planewise in any case."""

ALLOCATOR_NEEDS = "the allocator needs SR-IOV: run it with --lab, or with --sender and --responder"


class Stations:
    """Stations for the cells of a design; what they stand on is removed when this is closed.

    `pair` are two servers; None: both hosts are this machine.
    """

    def __init__(self, design: Design, pair: Pair | None = None, ip_version: IpVersion = 4) -> None:
        self._design = design
        self._pair = pair
        self._ip_version: IpVersion = ip_version
        self._mtu_bytes = mtu_for(design.frame_sizes())
        self._options = vm_options(design)
        self._allocators: Allocators | None = None
        if design.alloc is not None and pair is not None:
            self._allocators = Allocators(design.alloc, self._options, pair)
        self._testbeds: dict[object, tuple[Testbed, Pair]] = {}
        self._possible: dict[Setting, None] = {}
        """Settings that can be built."""
        self._with_vfs = False
        self._vm_generators: dict[str, Generator] = {}
        self._chains_or_none: Chains | None = None
        self._block = ExitStack()
        """What `new_block` removes."""
        self._run = ExitStack()

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""
        reasons: dict[Cell, str] = {}
        repeated = repeated_cells(cells) if self._pair is None else frozenset()
        for cell in cells:
            if reason := self._refusal(cell) or (ONE_PLACE if cell in repeated else ""):
                reasons[cell] = reason
        chains = [cell for cell in cells if cell not in reasons and cell.vnfs]
        if chains:
            reasons |= self._chains.unavailable(chains)
        guests = [cell for cell in cells if cell not in reasons and not cell.vnfs]
        if self._design.alloc is not None and self._allocators is None:
            return reasons | dict.fromkeys(guests, ALLOCATOR_NEEDS)
        reasons |= self._lacking_programs(guests)
        return reasons | self._refused([cell for cell in guests if cell not in reasons])

    def _refusal(self, cell: Cell) -> str:
        """Why a cell cannot be measured; empty where it can, as far as this is known here."""
        return (
            self._impossible_guests(cell)
            or self._too_few_cpus(cell)
            or self._too_little_memory(cell)
            or settings.refusal(cell.setting, cell.plane, cell.guest)
            or self._no_coalescing(cell)
        )

    def _impossible_guests(self, cell: Cell) -> str:
        if cell.vnfs:
            return ""
        names = [cell.plane, cell.background] if cell.background_guests else [cell.plane]
        received = cell.load_type == "network" and cell.load_location == "sender"
        if received and names[1:] and plane(cell.background).outward_only:
            return (
                "network load at the sender is sent to guests, and nobody can reach those on "
                f"{cell.background}"
            )
        reasons = (refusal(name, cell.guest, local=self._pair is None) for name in names)
        return next(filter(None, reasons), "")

    def _too_few_cpus(self, cell: Cell) -> str:
        """A set CPU load for every guest that is more than the host has."""
        per_guest = self._design.background.per_guest
        share = None if per_guest is None else per_guest.cpu_share
        if cell.load_type != "cpu" or share is None:
            return ""
        cpus = procfs.count_cpus(self._text(cell, "/proc/cpuinfo"))
        needed = cell.background_guests * share
        if needed <= cpus:
            return ""
        return (
            f"{cell.background_guests} guests that burn {share:g} CPUs each need {needed:g}, and a "
            f"host has {cpus}: use busy_threads to take whatever is available"
        )

    def _too_little_memory(self, cell: Cell) -> str:
        """Memory load that the host has no room for; virtual machines load their own memory."""
        per_guest = self._design.background.per_guest
        if cell.load_type != "memory" or per_guest is None or cell.guest == "vm":
            return ""
        free_mib = procfs.memory(self._text(cell, "/proc/meminfo"))["MemAvailable"] >> 20
        needed_mib = cell.background_guests * (per_guest.busy_threads or 1) * per_guest.memory_mib
        if needed_mib + SPARE_MIB["namespace"] <= free_mib:
            return ""
        return (
            f"{cell.background_guests} guests that load {needed_mib} MiB of memory together need a "
            f"host with more: {free_mib} MiB are free"
        )

    def _text(self, cell: Cell, path: str) -> str:
        """A file of the loaded host."""
        if self._pair is None:
            return Path(path).read_text()
        return self._pair.machines[cell.load_location].host.read_text(path)

    def _no_coalescing(self, cell: Cell) -> str:
        """A factor rx_usecs where no NIC has interrupts that could be varied."""
        if self._design.factors.rx_usecs == (AS_IS,):
            return ""
        if self._pair is None:
            return "rx_usecs: a veth pair, which is the hosts' NIC here, has no interrupts"
        if plane(cell.plane).vfs:
            return f"rx_usecs is a setting of the NICs, but frames of {cell.plane} go through VFs"
        if cell.path == "east-west":
            return "rx_usecs: within one host no frame reaches a NIC"
        return self._fixed_interrupts

    @cached_property
    def _fixed_interrupts(self) -> str:
        assert self._pair is not None
        for machine in self._pair.machines.values():
            if read_rx_usecs(machine.host, machine.nic) is None:
                return (
                    f"rx_usecs: {machine.nic} on {machine.host.place} does not report interrupt "
                    "coalescing (`ethtool -c`)"
                )
        return ""

    def _lacking_programs(self, cells: Iterable[Cell]) -> dict[Cell, str]:
        """Cells whose trials or load need a program that is missing; virtual machines get theirs
        from this machine."""
        cells = [cell for cell in cells if self._setting(cell).kind != "vm"]
        if not cells:
            return {}
        hosts = self._hosts
        for_all = [name for name in programs_of(self._design) if name != STRESS_NG]
        if reason := lacking(hosts, for_all):
            return dict.fromkeys(cells, reason)
        reasons = {
            cell: reason
            for cell in cells
            if (reason := lacking(hosts, settings.programs_of(cell.setting)))
        }
        stressed = [cell for cell in cells if cell.load_type in STRESSORS]
        reason = lacking(hosts, [STRESS_NG]) if stressed else ""
        return reasons | (dict.fromkeys(stressed, reason) if reason else {})

    def _refused(self, cells: Sequence[Cell]) -> dict[Cell, str]:
        """Cells that their testbed cannot build."""
        settings = {cell: self._setting(cell) for cell in cells}
        by_testbed: dict[object, list[Setting]] = {}
        for setting in dict.fromkeys(settings.values()):
            by_testbed.setdefault(self._key(setting), []).append(setting)
        refused: dict[Setting, str] = {}
        for of_testbed in by_testbed.values():
            self._with_vfs |= any(setting.vfs_a_host() for setting in of_testbed)
            refused |= self._testbed(of_testbed[0])[0].check(of_testbed)
        reasons = {cell: refused.get(setting, "") for cell, setting in settings.items()}
        if self._allocators is not None:
            for cell, setting in settings.items():
                testbed = self._testbed(setting)[0]
                if not reasons[cell]:
                    reasons[cell] = self._allocators.shortage(testbed, cell)
        self._possible |= dict.fromkeys(s for cell, s in settings.items() if not reasons[cell])
        return {cell: reason for cell, reason in reasons.items() if reason}

    def _setting(self, cell: Cell) -> Setting:
        """The setting that a cell is measured on."""
        return cell.testbed if self._allocators is None else self._allocators.setting(cell)

    def _key(self, setting: Setting) -> object:
        """Settings with the same key share a testbed."""
        if self._pair is not None:
            return "servers"
        # A host with guests that another program makes has that program, too (Docker's daemon).
        return setting.switches if setting.kind == "namespace" else setting.kind

    def _testbed(self, setting: Setting) -> tuple[Testbed, Pair]:
        """The testbed of a setting, opened when first needed, and its hosts."""
        key = self._key(setting)
        if key not in self._testbeds:
            machines = setting.kind == "vm"
            built = self._run if machines or self._pair is not None else self._block
            pair = self._pair
            if pair is None:
                wire = SECOND_WIRE if machines else ""
                pair = built.enter_context(local_pair(self._mtu_bytes, wire))
            testbed = Testbed(pair, self._mtu_bytes, self._options)
            built.callback(testbed.close)
            self._testbeds[key] = testbed, pair
        return self._testbeds[key]

    def new_block(self) -> None:
        """Ends the testbeds of this machine, so that a block is a build of its own: chance effects
        of building then differ from block to block, as noise does.

        Not virtual machines, other hosts, or a NIC that has been given VFs: that takes too long.
        """
        if self._pair is None and not self._with_vfs:
            self._testbeds = {key: kept for key, kept in self._testbeds.items() if key == "vm"}
            self._block.close()

    @property
    def emulated(self) -> str:
        """Why absolute times are not those of hardware; empty when they are."""
        reasons = [] if self._chains_or_none is None else [self._chains_or_none.emulated]
        if self._allocators is not None and self._allocators.platform is not None:
            reasons.append(self._allocators.platform.emulated)
        if (setting := next((s for s in self._possible if s.kind == "vm"), None)) is not None:
            reasons += [self._testbed(setting)[0].platform(role).emulated for role in HOSTS]
        return "; ".join(dict.fromkeys(filter(None, reasons)))

    @property
    def differences(self) -> Mapping[str, tuple[str, ...]]:
        """By plane, what differs from other planes besides the plane; known after `unavailable`."""
        found: dict[str, tuple[str, ...]] = {}
        for setting in self._possible:
            testbed, pair = self._testbed(setting)
            host = pair.machines["sender"].host
            for name in sorted(setting.planes - found.keys()):
                words = plane(name).remarks(host, local=self._pair is None)
                if setting.kind == "vm":
                    platform = testbed.platform("sender")
                    words = (*vms.differences(name, platform, self._options), *words)
                if words:
                    found[name] = words
        return found

    @property
    def _chains(self) -> Chains:
        if self._chains_or_none is None:
            self._chains_or_none = self._run.enter_context(Chains(self._design, self._pair))
        return self._chains_or_none

    @cached_property
    def _hosts(self) -> Sequence[Host]:
        """The machines that the hosts are, or are namespaces of."""
        if self._pair is not None:
            return [machine.host for machine in self._pair.machines.values()]
        host = LocalHost("generator")
        self._run.callback(host.close)
        return [host]

    @cached_property
    def _generator(self) -> Generator:
        """The generator of namespaces and containers."""
        return Generator(self._hosts[0], None if self._pair is not None else split_cpus())

    def station(self, cell: Cell) -> AbstractContextManager[Station]:
        """Sets `cell` up and starts its background load."""
        return self._chains.station(cell) if cell.vnfs else self._guests(cell)

    @contextmanager
    def _guests(self, cell: Cell) -> Iterator[Station]:
        setting = self._setting(cell)
        testbed, pair = self._testbed(setting)
        machines = setting.kind == "vm"
        check = partial(testbed.check_alive, setting)
        crew = ShellCrew if pair.separate and not machines else ProcessCrew
        spec = load_spec(cell, self._design.background)
        with (
            testbed.arrange(setting) as arrangement,
            settings.applied(cell.setting, arrangement),
            lost_guest_first(check),
            BackgroundLoad(arrangement, spec, crew) as load,
            self._station(cell, arrangement, testbed, pair, load, check) as station,
        ):
            yield station

    def _station(
        self,
        cell: Cell,
        arrangement: Arrangement,
        testbed: Testbed,
        pair: Pair,
        load: BackgroundLoad,
        check: Callable[[], None],
    ) -> Station:
        hosts, mains = arrangement.hosts, arrangement.mains
        version = settings.ip_version(cell.setting) or self._ip_version
        shared, vm = arrangement.shared, arrangement.own_kernels
        patience_s = SERVERS_PATIENCE_S if vm or pair.separate else FIRST_ANSWER_S
        if vm and any(testbed.platform(r).emulated for r in HOSTS):
            patience_s = EMULATED_PATIENCE_S
        gauges = [
            gauge
            for role in HOSTS
            for guest in (mains[role], *arrangement.background(role))
            if (gauge := gauge_of(guest, "sender" if shared else role, pair, vm)) is not None
        ]
        loaded_roles = HOSTS[:1] if shared else HOSTS
        generator = self._vm_generator(arrangement) if vm else self._generator
        cpus = generator.cpus
        refused: Literal["lost", "again"] | None = None
        if vm:
            # An emulated NIC has no room when the plane, which is measured, is slow. A VF is a
            # real NIC, which has none at line rate.
            refused = "again" if vm_plane(mains["sender"].plane).passed_through else "lost"
        return Station(
            hosts,
            {
                role: End(
                    *(hosts[role], main.netns, main.name, main.interface),
                    main.address(settings.ip_version(cell.setting) or 4),
                    vm,
                )
                for role, main in mains.items()
            },
            separate=pair.separate and not shared,
            ip_version=version,
            path=arrangement.trial_path(),
            generator=generator,
            capture_points=arrangement.capture_points,
            counter_points=arrangement.counter_points,
            not_measurable=arrangement.not_measurable,
            refused=refused,
            patience_s=patience_s,
            sent=_sent(arrangement, pair, vm),
            gauges=gauges,
            gauge_hosts={str(r): hosts[r] for r in loaded_roles} if pair.separate else None,
            background=load,
            check=check,
            entrances=[
                (hosts[role], arrangement.sites[role].netns, interfaces)
                for role, interfaces in arrangement.entrances.items()
                if interfaces
            ],
            receivers=() if cpus is None else cpus.receivers,
            clients=arrangement.background("sender"),
            make_allocator=None
            if self._allocators is None
            else partial(self._allocators.make, cell, arrangement),
            notes=tuple(
                f"the virtual machine {guest.name} had ended and was restarted before this trial"
                for guest in getattr(arrangement, "replaced", ())
            ),
        )

    def _vm_generator(self, arrangement: Arrangement) -> Generator:
        """The generator in the sender's main guest; a new one once that guest was replaced."""
        netns = arrangement.main("sender").netns
        generator = Generator(arrangement.hosts["sender"], netns=netns)
        return self._vm_generators.setdefault(netns, generator)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._testbeds.clear()
        with self._run:
            self._block.close()


def load_spec(cell: Cell, background: BackgroundPart) -> LoadSpec:
    """The load of a cell: its type and place by the cell, its strength by the design. Pure."""
    each = background.per_guest
    strength = background if each is None else each
    return LoadSpec(
        type=cell.load_type,
        location=cell.load_location,
        by_guest=each is not None,
        cpu_share=strength.cpu_share,
        busy_threads=1 if each is None else each.busy_threads or 1,
        rate_pps=None if strength.rate_pps == "max" else strength.rate_pps,
        burst=strength.burst_packets,
        payload_bytes=strength.payload_bytes,
        memory_mib=32 if each is None else each.memory_mib,
        limit_s=_LOAD_LIMIT_S,
    )


def gauge_of(guest: Guest, host: HostRole, pair: Pair, vm: bool) -> Gauge | None:
    """Counts what a guest sends: at its own interface, or at the host's port of a virtual machine.

    A virtual machine's frames come in at a tap, and go out by a macvtap. None: it drives a VF.
    """
    if not vm:
        return Gauge(guest.name, host, guest.netns, guest.interface)
    of_plane = vm_plane(guest.plane)
    port = of_plane.host_interface(guest)
    counts: Literal["tx", "rx"] = "rx" if of_plane.device == "tap" else "tx"
    return Gauge(guest.name, host, pair.machines[host].netns, port, counts) if port else None


def _sent(arrangement: Arrangement, pair: Pair, vm: bool) -> Counters | None:
    """Reads what the sender's main guest has sent; None where nothing outside counts that."""
    host, guest = arrangement.hosts["sender"], arrangement.main("sender")
    if vm:
        read = vm_plane(guest.plane).sent(host, arrangement.sites["sender"], guest)
        if read is not None:
            return lambda: {"": read()}
    gauge = gauge_of(guest, "sender", pair, vm)
    if gauge is None:
        return None
    point, way = CounterPoint("sender", gauge.netns, gauge.interface), gauge.counts

    def count() -> Mapping[str, tuple[int, int]]:
        values = counters.read(host, point).counters
        return {"": (values[f"{way}_packets"], values[f"{way}_bytes"])}

    return count
