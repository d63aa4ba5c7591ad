"""The stage for guests that are virtual machines, on a pair of hosts.

One testbed serves all cells: guests sleep from cell to cell, loads come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Literal, Self

from planewise.errors import PlanewiseError
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design
from planewise.measure.runs.beside import beside, load_of
from planewise.measure.runs.meter import Visible
from planewise.measure.runs.stage import Place, StageFacts, TrialResult
from planewise.measure.trials import programs_of
from planewise.measure.trials.ends import Counters, End, ends_of, sent_through
from planewise.measure.trials.frames import HostGenerator
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.load_two_ended import (
    ApartPath,
    LoadEnd,
    counters_between,
    measure_load_apart,
)
from planewise.measure.trials.probe import CpuOutput, parse
from planewise.measure.trials.round_trips import EMULATED_PATIENCE_S, RttPath, measure_rtt
from planewise.measure.trials.rtt import RttTrial
from planewise.testbed.guests.vms import platform as vms
from planewise.testbed.guests.vms.arrangement import VmArrangement
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.testbed import VmTestbed
from planewise.testbed.hosts.gauges import Gauge
from planewise.testbed.hosts.machine import Machine
from planewise.testbed.hosts.pair import Pair, local_pair
from planewise.testbed.loads.background import BackgroundLoad
from planewise.testbed.model import HOSTS, Guest, HostRole, IpVersion, mtu_for
from planewise.testbed.planes import PLANES, vm_plane
from planewise.testbed.setting import Arrangement

SECOND_WIRE = "wire1"
"""Second wire of hosts on this machine: guests on the bridge and on the NIC have one each."""

GUEST_RING_MIB = 4
"""Room for frames in a guest that has little memory; 30 000 of the smallest."""


class VmStage:
    """Starts guests when a cell first needs them; all are gone when the stage is closed.

    The pair of hosts is opened when a cell is first looked at.
    """

    def __init__(
        self,
        design: Design,
        pair: AbstractContextManager[Pair],
        ip_version: IpVersion = 4,
    ) -> None:
        self._background = design.background
        self._options = options_of(design)
        self._ip_version: IpVersion = ip_version
        self._mtu_bytes = mtu_for(design.frame_sizes())
        self._generators: dict[str, HostGenerator] = {}
        self._planes: dict[str, None] = {}
        self._opening = pair
        self._built = ExitStack()
        self._pair: Pair | None = None
        self._testbed: VmTestbed | None = None

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up on these hosts, and why."""
        try:
            lacking = self._open_testbed().expect(cell.testbed for cell in cells)
        except PlanewiseError as error:
            return dict.fromkeys(cells, error.what)
        reasons = {}
        for cell in cells:
            if reason := lacking.get(cell.testbed):
                reasons[cell] = reason
            else:
                self._planes |= dict.fromkeys(cell.testbed.planes)
        return reasons

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """The maximum of the generator in the sender's main guest [packet/s]."""
        alone = replace(cell.testbed, background_guests=0)
        with self._open_testbed().arrange(alone) as arrangement:
            return self._generator(arrangement).max_pps(size_bytes, self._ip_version)

    def facts(self) -> StageFacts:
        """Whether the guests' CPUs are emulated, and what else than the plane differs."""
        if not self._planes:
            return StageFacts()
        platforms = [self._open_testbed().platform(role) for role in HOSTS]
        return StageFacts(
            "; ".join(dict.fromkeys(p.emulated for p in platforms if p.emulated)),
            {
                plane: (
                    *vms.differences(plane, platforms[0], self._options),
                    *vm_plane(plane).remarks(self._sender.host, local=bool(self._sender.netns)),
                )
                for plane in sorted(self._planes)
            },
        )

    @contextmanager
    def station(self, cell: Cell) -> Iterator[VmStation]:
        """The cell's guests, awake, with their background load running."""
        testbed, setting = self._open_testbed(), cell.testbed
        check = partial(testbed.check, setting)
        with (
            testbed.arrange(setting) as arrangement,
            lost_guest_first(check),
            BackgroundLoad(arrangement, load_of(cell, self._background)) as load,
        ):
            assert self._pair is not None
            emulated = any(testbed.platform(role).emulated for role in HOSTS)
            generator = self._generator(arrangement)
            yield VmStation(
                arrangement, self._pair, load, check, generator, self._ip_version, emulated=emulated
            )

    def clear(self) -> None:
        """Removes the guests and what they stand on; see `stage.ClearableStage`."""
        self._generators.clear()
        if self._testbed is not None:
            self._testbed.close()

    @property
    def _sender(self) -> Machine:
        assert self._pair is not None
        return self._pair.machines["sender"]

    def _open_testbed(self) -> VmTestbed:
        if self._testbed is None:
            self._pair = self._built.enter_context(self._opening)
            testbed = VmTestbed(self._pair, self._mtu_bytes, self._options)
            self._testbed = self._built.enter_context(testbed)
        return self._testbed

    def _generator(self, arrangement: VmArrangement) -> HostGenerator:
        """The generator in the sender's main guest; a new one once that guest was replaced."""
        host, guest = arrangement.hosts["sender"], arrangement.main("sender")
        generator = HostGenerator(host, netns=guest.netns)
        return self._generators.setdefault(guest.netns, generator)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._testbed = None
        self._built.__exit__(*error)  # type: ignore[arg-type]


def local_vms(design: Design, ip_version: IpVersion = 4) -> VmStage:
    """Virtual machines on this machine: its two hosts are namespaces."""
    pair = local_pair(mtu_for(design.frame_sizes()), SECOND_WIRE)
    return VmStage(design, pair, ip_version)


def options_of(design: Design) -> VmOptions:
    """What a design asks of its virtual machines. Pure."""
    names = {*design.factors.plane, *design.factors.background_plane}
    # All guests are alike, also those of other planes.
    shared = any(plane.shares_memory for plane in PLANES if plane.name in names)
    return VmOptions(**dict(design.vm), programs=programs_of(design), shared_memory=shared)


@contextmanager
def lost_guest_first(check: Callable[[], None]) -> Iterator[None]:
    """Raises that a guest ended, where that is why a trial failed, not that nobody answered.

    Raises:
        PlanewiseError: what `check` raises, else what the block raised.
    """
    try:
        yield
    except PlanewiseError:
        check()
        raise


class VmStation:
    """One cell of the stage."""

    def __init__(
        self,
        arrangement: VmArrangement,
        pair: Pair,
        background: BackgroundLoad,
        check: Callable[[], None],
        generator: HostGenerator,
        ip_version: IpVersion = 4,
        *,
        emulated: bool,
    ) -> None:
        self._arrangement = arrangement
        self._pair = pair
        self._check = check
        self._background = background
        self._generator = generator
        self._load_path = load_path_of(arrangement, ip_version)
        self._notes = tuple(
            f"the virtual machine {guest.name} had ended and was started anew before this trial"
            for guest in arrangement.replaced
        )
        self._path = RttPath(
            hosts=arrangement.hosts,
            sender=arrangement.main("sender"),
            responder=arrangement.main("responder"),
            capture_points=arrangement.capture_points,
            not_measurable=arrangement.not_measurable,
            separate=pair.separate and not arrangement.shared,
            patience_s=EMULATED_PATIENCE_S if emulated else 10.0,
            most_steady_packets=20_000,
            check=check,
        )

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Runs one RTT trial. Its CPU figures are the hosts', not those of a guest."""
        host = self._path.hosts["sender"]
        # Planewise's own CPU time counts where it runs.
        argv = [host.probe, "cpu", *(() if self._pair.separate else ("--with-parent",))]
        with lost_guest_first(self._check), host.start(argv) as cpu:
            result = beside(self._background, lambda: measure_rtt(self._path, trial, place))
            usage = parse(cpu.stop(), CpuOutput).cpu.all
        if self._path.separate:
            return self._with_notes(result, cpu={**result.record.cpu, "sender": usage})
        return self._with_notes(result, cpu={"shared": usage})

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Runs one load trial, its ends in the main guests. Starting these takes the guests as
        long as the trial: there are no CPU figures."""
        return self.beside_load(
            lambda: measure_load_apart(self._load_path, trial, place, self._generator)
        )

    def ends(self) -> Mapping[HostRole, End]:
        """See `ends.PairStation`."""
        return ends_of(self._arrangement.hosts, self._arrangement.mains)

    def sent(self) -> Counters | None:
        """See `ends.PairStation`: the host's port of the guest counts it, or its switch."""
        sender = self._arrangement.main("sender")
        plane, host = vm_plane(sender.plane), self._arrangement.hosts["sender"]
        read = plane.sent(host, self._arrangement.sites["sender"], sender)
        if read is not None:
            return lambda: {"": read()}
        gauges = gauges_of(self._pair.machines["sender"].netns, [sender])
        return sent_through(host, gauges[0]) if gauges else None

    def beside_load(self, measure: Callable[[], TrialResult]) -> TrialResult:
        """See `ends.PairStation`."""
        with lost_guest_first(self._check):
            result = beside(self._background, measure)
        return self._with_notes(result)

    def _with_notes(self, result: TrialResult, **update: object) -> TrialResult:
        warnings = (*self._notes, *result.record.warnings)
        self._notes = ()
        record = result.record.model_copy(update={**update, "warnings": warnings})
        return TrialResult(record, result.packets)

    def visible(self) -> Visible:
        """See `meter.VisibleStation`: the hosts' sides of the guests, which are not disturbed."""
        arrangement, machines = self._arrangement, self._pair.machines
        gauges = []
        for role in HOSTS:
            lives_on: HostRole = "sender" if arrangement.shared else role
            guests = (arrangement.main(role), *arrangement.background(role))
            gauges += gauges_of(machines[lives_on].netns, guests, lives_on)
        if not self._pair.separate:
            return Visible(gauges)
        return Visible(gauges, {str(role): arrangement.hosts[role] for role in HOSTS})


def load_path_of(arrangement: Arrangement, ip_version: IpVersion = 4) -> ApartPath:
    """The way of a load trial between two main guests that are virtual machines. Pure."""
    hosts, mains = arrangement.hosts, arrangement.mains
    sender, responder = mains["sender"], mains["responder"]
    ends = {
        role: LoadEnd(hosts[role], guest.name, guest.interface, guest.netns, GUEST_RING_MIB)
        for role, guest in mains.items()
    }
    return ApartPath(
        ends["sender"],
        ends["responder"],
        source=sender.address(ip_version),
        destination=responder.address(ip_version),
        next_hop_mac=arrangement.next_hop_mac(),
        counters=counters_between(
            hosts, arrangement.counter_points, (guest.netns for guest in mains.values())
        ),
        # An emulated NIC has no room when what lies behind it, which is measured, is slow. A VF
        # is a real NIC, which has none at line rate.
        refused="again" if vm_plane(sender.plane).passed_through else "lost",
    )


def gauges_of(netns: str, guests: Iterable[Guest], host: HostRole | None = None) -> list[Gauge]:
    """The ports of guests in the host's `netns`; `host` is where they live (None: their role's).

    What a guest sends comes in at a tap, and goes out by a macvtap. A guest that drives a VF by
    itself has none.
    """
    gauges = []
    for guest in guests:
        plane = vm_plane(guest.plane)
        counts: Literal["tx", "rx"] = "rx" if plane.device == "tap" else "tx"
        if port := plane.host_interface(guest):
            gauges.append(Gauge(guest.name, host or guest.host, netns, port, counts))
    return gauges
