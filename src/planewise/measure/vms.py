"""The stage for guests that are virtual machines, on this machine.

A testbed stands for each pair of planes, with as many background guests as any cell asks for; those
that a cell does not ask for sleep, and so does a testbed that is not in use. Where memory does not
hold all testbeds, the one that was used longest ago gives way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Literal, Self

from planewise.errors import PlanewiseError
from planewise.measure.beside import beside, load_of
from planewise.measure.cells import Cell
from planewise.measure.design import Design
from planewise.measure.load import Generator
from planewise.measure.load_apart import (
    ApartPath,
    LoadEnd,
    counters_between,
    measure_load_apart,
)
from planewise.measure.meter import Visible
from planewise.measure.probe import CpuOutput, parse
from planewise.measure.rtt import EMULATED_PATIENCE_S, RttPath, measure_rtt
from planewise.measure.schedule import LoadTrial, RttTrial
from planewise.measure.stage import Place, StageFacts, TrialResult
from planewise.testbed.gauges import Gauge
from planewise.testbed.host import Host
from planewise.testbed.load import BackgroundLoad
from planewise.testbed.model import (
    HOSTS,
    CounterPoint,
    Guest,
    HostRole,
    TestbedSpec,
    mtu_for,
)
from planewise.testbed.vms import testbed as vms
from planewise.testbed.vms.domain import VmOptions
from planewise.testbed.vms.guests import Platform
from planewise.testbed.vms.planes import vm_plane
from planewise.testbed.vms.testbed import VmTestbed

_SPARE_BYTES = 1 << 30
"""Memory that is left to the machine."""

GUEST_RING_MIB = 4
"""Room for frames in a guest that has little memory; 30 000 of the smallest."""

_Key = tuple[str, str]


class VmStage:
    """Boots a testbed when a cell first needs it; all are gone when the stage is closed."""

    def __init__(self, design: Design) -> None:
        self._design = design
        self._options = options_of(design)
        self._mtu_bytes = mtu_for(design.frame_sizes())
        self._most: dict[_Key, int] = {}
        self._planes: dict[str, None] = {}
        self._testbeds: dict[_Key, VmTestbed] = {}
        self._generators: dict[_Key, Generator] = {}

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""
        reasons = {}
        for cell in cells:
            why = self._why_not(cell)
            if why:
                reasons[cell] = why
                continue
            key = _key(cell)
            self._most[key] = max(self._most.get(key, 0), cell.background_guests)
            self._planes |= dict.fromkeys(key)
        return reasons

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """The maximum of the generator in the sender's main guest [packet/s]."""
        testbed = self._testbed(cell)
        try:
            testbed.wake(0)
            return self._generators[_key(cell)].max_pps(size_bytes)
        finally:
            testbed.sleep()

    def facts(self) -> StageFacts:
        """Whether times are emulated, and what else than the plane differs."""
        if not self._planes:
            return StageFacts()
        return StageFacts(
            self._platform.emulated,
            {
                plane: vms.differences(plane, self._platform, self._options)
                for plane in self._planes
            },
        )

    @contextmanager
    def station(self, cell: Cell) -> Iterator[_Station]:
        """The cell's testbed, its guests awake and its background load running."""
        testbed = self._testbed(cell)
        spec = load_of(cell, self._design.background)
        try:
            replaced = testbed.wake(cell.background_guests)
            with BackgroundLoad(testbed, spec) as load:
                generator = self._generators[_key(cell)]
                yield _Station(testbed, load, replaced, generator, bool(self._platform.emulated))
        finally:
            testbed.sleep()

    @cached_property
    def _platform(self) -> Platform:
        return vms.platform()

    def _why_not(self, cell: Cell) -> str:
        if cell.path != "north-south":
            return f"virtual machines have no {cell.path} path between two guests of a host"
        try:
            for plane in _key(cell):
                vm_plane(plane)
            _ = self._platform
            vms.check()
        except PlanewiseError as error:
            return error.what
        needed, there = self._needed_bytes(_key(cell), cell.background_guests), memory_bytes()
        if needed > there:
            return (
                f"{2 + 2 * cell.background_guests} virtual machines take about "
                f"{needed >> 20} MiB of memory, and this machine has {there >> 20} MiB to give"
            )
        return ""

    def _testbed(self, cell: Cell) -> VmTestbed:
        key = _key(cell)
        testbed = self._testbeds.pop(key, None)
        if testbed is None:
            most = max(self._most.get(key, 0), cell.background_guests)
            while self._testbeds and self._needed_bytes(key, most) > _available_bytes():
                oldest = next(iter(self._testbeds))
                self._testbeds.pop(oldest).__exit__(None, None, None)
            testbed = VmTestbed(self._spec(key, most), self._platform, self._options)
            testbed.__enter__()
            sender = testbed.main("sender")
            self._generators[key] = Generator(testbed.hosts["sender"], netns=sender.netns)
        self._testbeds[key] = testbed  # the most recently used is the last
        return testbed

    def _spec(self, key: _Key, guests: int) -> TestbedSpec:
        return TestbedSpec(
            plane=key[0],
            background_plane=key[1],
            background_guests=guests,
            mtu_bytes=self._mtu_bytes,
        )

    def _needed_bytes(self, key: _Key, guests: int) -> int:
        return vms.memory_needed_bytes([self._spec(key, guests)])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        failures: list[PlanewiseError] = []
        while self._testbeds:
            try:
                self._testbeds.popitem()[1].__exit__(None, None, None)
            except PlanewiseError as error:
                failures.append(error)
        if failures:
            raise failures[0]


def options_of(design: Design) -> VmOptions:
    """What a design asks of its virtual machines. Pure."""
    return VmOptions(**dict(design.vm))


def patience_s(emulated: bool) -> float:
    """How long a guest's first answer may take. Pure."""
    return EMULATED_PATIENCE_S if emulated else 10.0


def replaced_notes(replaced: Sequence[Guest]) -> tuple[str, ...]:
    """What a trial says of guests that had ended. Pure."""
    return tuple(
        f"the virtual machine {guest.name} had ended and was started anew before this trial"
        for guest in replaced
    )


@contextmanager
def told_first(check: Callable[[], None]) -> Iterator[None]:
    """Where a trial fails because a guest ended, that is what is told: not that nobody answered.

    Raises:
        PlanewiseError: what `check` finds, else what the block raised.
    """
    try:
        yield
    except PlanewiseError:
        check()
        raise


def _key(cell: Cell) -> _Key:
    return cell.plane, cell.background if cell.background_guests else cell.plane


def _available_bytes() -> int:
    """What could be taken now."""
    return _meminfo("MemAvailable") - _SPARE_BYTES


def memory_bytes() -> int:
    """What guests could take of this machine if nobody else needed any."""
    return _meminfo("MemTotal") - _SPARE_BYTES


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    return 0


class _Station:
    """One cell of the stage."""

    def __init__(
        self,
        testbed: VmTestbed,
        background: BackgroundLoad,
        replaced: Sequence[Guest],
        generator: Generator,
        emulated: bool,
    ) -> None:
        self._testbed = testbed
        self._generator = generator
        mains = {role: testbed.main(role) for role in HOSTS}
        self._load_path = load_path_of(testbed.hosts, mains, testbed.counter_points)
        self._background = background
        self._notes = replaced_notes(replaced)
        self._path = RttPath(
            hosts=testbed.hosts,
            sender=testbed.main("sender"),
            responder=testbed.main("responder"),
            capture_points=testbed.capture_points,
            not_measurable=testbed.not_measurable,
            patience_s=patience_s(emulated),
        )

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Runs one RTT trial. Its CPU figures are the machine's, not those of a guest."""
        host = self._testbed.hosts["sender"]
        with (
            told_first(self._testbed.check),
            host.start([host.probe, "cpu", "--with-parent"]) as cpu,
        ):
            result = beside(self._background, lambda: measure_rtt(self._path, trial, place))
            usage = parse(cpu.stop(), CpuOutput)
        return self._noted(result, cpu={"shared": usage.cpu.all})

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Runs one load trial, its ends in the main guests. Starting these takes the guests as
        long as the trial: there are no CPU figures."""
        with told_first(self._testbed.check):
            result = beside(
                self._background,
                lambda: measure_load_apart(self._load_path, trial, place, self._generator),
            )
        return self._noted(result)

    def _noted(self, result: TrialResult, **update: object) -> TrialResult:
        warnings = (*self._notes, *result.record.warnings)
        self._notes = ()
        record = result.record.model_copy(update={**update, "warnings": warnings})
        return TrialResult(record, result.packets)

    def visible(self) -> Visible:
        """See `meter.VisibleStation`: the hosts' sides of the guests, which are not disturbed."""
        testbed = self._testbed
        return Visible(
            [
                gauge
                for host in HOSTS
                for gauge in gauges_of(
                    testbed.topology.sites[host].netns,
                    (testbed.main(host), *testbed.background(host)),
                )
            ]
        )


def load_path_of(
    hosts: Mapping[HostRole, Host],
    mains: Mapping[HostRole, Guest],
    points: Sequence[CounterPoint],
) -> ApartPath:
    """The way of a load trial between two main guests that are virtual machines. Pure."""
    sender, responder = mains["sender"], mains["responder"]
    ends = {
        role: LoadEnd(hosts[role], guest.name, guest.interface, guest.netns, GUEST_RING_MIB)
        for role, guest in mains.items()
    }
    return ApartPath(
        ends["sender"],
        ends["responder"],
        source=sender.ipv4,
        destination=responder.ipv4,
        next_hop_mac=responder.mac,
        counters=counters_between(hosts, points, (guest.netns for guest in mains.values())),
        # An emulated NIC has no room when what lies behind it, which is measured, is slow. A VF
        # is a real NIC, which has none at line rate.
        refused="again" if vm_plane(sender.plane, vfs=True).passed_through else "lost",
    )


def gauges_of(netns: str, guests: Iterable[Guest]) -> list[Gauge]:
    """The ports of guests in the host's `netns`.

    What a guest sends comes in at a tap, and goes out by a macvtap. A guest that drives a VF by
    itself has none.
    """
    found = []
    for guest in guests:
        plane = vm_plane(guest.plane, vfs=True)
        counts: Literal["tx", "rx"] = "rx" if plane.port == "tap" else "tx"
        if port := plane.host_interface(guest):
            found.append(Gauge(guest.name, guest.host, netns, port, counts))
    return found
