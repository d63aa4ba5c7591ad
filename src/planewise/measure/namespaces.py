"""The stage for guests that are namespaces of this machine: testbeds side by side, kept up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Self

from planewise.errors import UnsupportedError
from planewise.measure.beside import beside, load_of
from planewise.measure.cells import Cell
from planewise.measure.chains.tcp import End, Passed, measure_tcp
from planewise.measure.design import Design
from planewise.measure.load import Generator, LoadPath, measure_load
from planewise.measure.meter import Visible
from planewise.measure.rtt import RttPath, measure_rtt
from planewise.measure.schedule import LoadTrial, RttTrial, TcpTrial
from planewise.measure.stage import Place, TrialResult
from planewise.store.models import KpiSample
from planewise.testbed import counters
from planewise.testbed.availability import try_plane
from planewise.testbed.gauges import Gauge
from planewise.testbed.host import LocalHost
from planewise.testbed.load import BackgroundLoad
from planewise.testbed.model import HOSTS, TestbedSpec, mtu_for
from planewise.testbed.namespaces import NamespaceTestbed
from planewise.testbed.planes import namespace_plane
from planewise.testbed.steering import CpuSplit, split_cpus, steer

_A_DAY_S = 86_400.0
"""A visit may last long; that its load dies with planewise is seen to elsewhere."""


class NamespaceStage:
    """Builds a testbed for every plane and number of guests when it is first needed.

    All stand until the stage is closed, so that going from cell to cell builds nothing; a testbed
    without load costs nothing.
    """

    def __init__(self, design: Design) -> None:
        self._background = design.background
        self._mtu_bytes = mtu_for(design.frame_sizes())
        self._host = LocalHost("generator")
        self._cpus = split_cpus()
        self._generator = Generator(
            self._host, None if self._cpus is None else self._cpus.generator
        )
        self._testbeds: dict[tuple[str, str, int], NamespaceTestbed] = {}
        self._built = ExitStack()

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""
        planes: dict[str, str] = {}
        reasons = {}
        for cell in cells:
            if cell.path != "north-south":
                reasons[cell] = f"namespaces have no {cell.path} path between two guests of a host"
                continue
            wanted = [cell.plane, cell.background] if cell.background_guests else [cell.plane]
            for plane in wanted:
                if plane not in planes:
                    planes[plane] = _why_not(plane)
                if planes[plane]:
                    reasons[cell] = planes[plane]
                    break
        return reasons

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """The generator's own maximum on this machine [packet/s]."""
        return self._generator.max_pps(size_bytes)

    @contextmanager
    def station(self, cell: Cell) -> Iterator[_Station]:
        """The cell's testbed, with its background load running."""
        testbed = self._testbed(cell)
        spec = replace(load_of(cell, self._background), limit_s=_A_DAY_S)
        with BackgroundLoad(testbed, spec) as load:
            station = _Station(testbed, load, self._generator, self._cpus)
            yield station
            station.close()

    def _testbed(self, cell: Cell) -> NamespaceTestbed:
        key = (cell.plane, cell.background, cell.background_guests)
        if key not in self._testbeds:
            spec = TestbedSpec(
                plane=cell.plane,
                background_plane=cell.background,
                background_guests=cell.background_guests,
                mtu_bytes=self._mtu_bytes,
            )
            self._testbeds[key] = self._built.enter_context(NamespaceTestbed(spec))
        return self._testbeds[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._testbeds.clear()
        try:
            self._built.close()
        finally:
            self._host.close()


def _why_not(plane: str) -> str:
    """Why this machine cannot build a plane for namespaces; empty when it can."""
    try:
        tried = try_plane(namespace_plane(plane))
    except UnsupportedError as error:
        return error.what
    return "" if tried.available else tried.reason


class _Station:
    """One cell of the stage."""

    def __init__(
        self,
        testbed: NamespaceTestbed,
        background: BackgroundLoad,
        generator: Generator,
        cpus: CpuSplit | None,
    ) -> None:
        self._testbed = testbed
        self._cpus = cpus
        self._steered = False
        self._rtt_path = RttPath(
            hosts=testbed.hosts,
            sender=testbed.main("sender"),
            responder=testbed.main("responder"),
            capture_points=testbed.capture_points,
            not_measurable=testbed.not_measurable,
        )
        self._load_path = LoadPath(testbed.trial_path(), testbed.counter_points)
        self._background = background
        self._generator = generator

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Runs one RTT trial, with each frame received by the CPU where it arrives."""
        self._steer(False)
        return beside(self._background, lambda: measure_rtt(self._rtt_path, trial, place))

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Runs one load trial, with the hosts' receive work on CPUs of their own."""
        self._steer(True)
        return beside(
            self._background,
            lambda: measure_load(self._load_path, trial, place, self._generator),
        )

    def visible(self) -> Visible:
        """See `meter.VisibleStation`: every guest's own interface."""
        guests = [
            guest
            for host in HOSTS
            for guest in (self._testbed.main(host), *self._testbed.background(host))
        ]
        return Visible(
            [Gauge(guest.name, guest.host, guest.netns, guest.interface) for guest in guests]
        )

    def tcp(self, trial: TcpTrial, place: Place, tell: Callable[[KpiSample], None]) -> TrialResult:
        """Runs one TCP trial between the main guests."""
        self._steer(False)
        ends = {
            role: End(self._testbed.hosts[role], guest.netns, guest.ipv4, guest.interface)
            for role in HOSTS
            for guest in [self._testbed.main(role)]
        }
        client = ends["sender"]

        def sent() -> Mapping[str, Passed]:
            text = client.host.read_text("/proc/net/dev", netns=client.netns)
            own = counters.parse(text)[client.interface]
            return {"": Passed(own["tx_packets"], own["tx_bytes"])}

        return beside(
            self._background,
            lambda: measure_tcp(client, ends["responder"], trial, place, tell, sent),
        )

    def _steer(self, wanted: bool) -> None:
        if self._cpus is None or wanted == self._steered:
            return
        for role, interfaces in self._testbed.entrances.items():
            host = self._testbed.hosts[role]
            netns = self._testbed.topology.sites[role].netns
            steer(host, netns, interfaces, self._cpus.receivers if wanted else ())
        self._steered = wanted

    def close(self) -> None:
        """Leaves the testbed as it was found."""
        self._steer(False)
