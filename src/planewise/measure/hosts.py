"""The stage for guests on hosts: servers reached by ssh, or two namespaces that stand for servers.

One hosted testbed serves all cells: guests stay from cell to cell, loads come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Self

from planewise.errors import PlanewiseError
from planewise.measure.beside import beside, load_of
from planewise.measure.cells import Cell
from planewise.measure.chains.hosted import HostedChainStage
from planewise.measure.design import Design
from planewise.measure.load import Generator, LoadPath, measure_load
from planewise.measure.load_apart import (
    ApartPath,
    LoadEnd,
    counters_between,
    measure_load_apart,
)
from planewise.measure.meter import Visible
from planewise.measure.rtt import RttPath, measure_rtt
from planewise.measure.schedule import LoadTrial, RttTrial
from planewise.measure.stage import Place, Stage, TrialResult
from planewise.measure.vms import VmStage
from planewise.testbed.gauges import Gauge
from planewise.testbed.host import Host
from planewise.testbed.hosted import Arrangement, HostedTestbed, Setting
from planewise.testbed.hosted_load import HostedLoad
from planewise.testbed.model import HOSTS, Guest, mtu_for
from planewise.testbed.pair import Pair, local_pair
from planewise.testbed.planes.kinds import GuestKind


class HostedStage:
    """Sets cells up on a pair of hosts, which is opened when a cell first needs it.

    Entering it more than once is the same as once: it serves several kinds of guest.
    """

    def __init__(self, design: Design, pair: AbstractContextManager[Pair]) -> None:
        self._background = design.background
        self._mtu_bytes = mtu_for(design.frame_sizes())
        self._opening = pair
        self._built = ExitStack()
        self._pair: Pair | None = None
        self._testbed: HostedTestbed | None = None
        self._generator: Generator | None = None
        self._refusal: PlanewiseError | None = None
        self._entered = 0

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up on these hosts, and why."""
        lacking = self._testbed_now().expect(_setting(cell) for cell in cells)
        return {cell: lacking[_setting(cell)] for cell in cells if _setting(cell) in lacking}

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """The maximum of the sender's generator [packet/s]."""
        return self._generator_now().max_pps(size_bytes)

    @contextmanager
    def station(self, cell: Cell) -> Iterator[_Station]:
        """The cell's guests, with their background load running."""
        spec = load_of(cell, self._background)
        with ExitStack() as standing:
            arrange = self._testbed_now().arrange(_setting(cell))
            arrangement = standing.enter_context(arrange)
            load = standing.enter_context(HostedLoad(arrangement, spec))
            elsewhere = self._pair is not None and self._pair.separate
            yield _Station(arrangement, load, self._generator_now, self._separate(cell), elsewhere)

    def _separate(self, cell: Cell) -> bool:
        self._testbed_now()
        assert self._pair is not None
        return self._pair.separate and cell.path == "north-south"

    def _testbed_now(self) -> HostedTestbed:
        if self._testbed is None:
            self._pair = self._built.enter_context(self._opening)
            self._testbed = self._built.enter_context(
                HostedTestbed(self._pair.machines, self._pair.token, self._mtu_bytes)
            )
        return self._testbed

    def _generator_now(self) -> Generator:
        if self._generator is None:
            self._testbed_now()
            assert self._pair is not None
            self._generator = Generator(self._pair.machines["sender"].host)
        return self._generator

    def __enter__(self) -> Self:
        self._entered += 1
        return self

    def __exit__(self, *error: object) -> None:
        self._entered -= 1
        if self._entered == 0:
            self._testbed = self._generator = None
            self._built.__exit__(*error)  # type: ignore[arg-type]


class _Station:
    """One cell of the stage."""

    def __init__(
        self,
        arrangement: Arrangement,
        background: HostedLoad,
        generator: Callable[[], Generator],
        separate: bool,
        elsewhere: bool,
    ) -> None:
        self._arrangement = arrangement
        self._elsewhere = elsewhere
        self._rtt_path = RttPath(
            hosts=arrangement.hosts,
            sender=arrangement.main("sender"),
            responder=arrangement.main("responder"),
            capture_points=arrangement.capture_points,
            not_measurable=arrangement.not_measurable,
            separate=separate,
        )
        self._load_path = LoadPath(arrangement.trial_path(), arrangement.counter_points)
        self._background = background
        self._generator = generator

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Runs one RTT trial."""
        return beside(self._background, lambda: measure_rtt(self._rtt_path, trial, place))

    def visible(self) -> Visible:
        """See `meter.VisibleStation`: every guest's own interface."""
        standing = self._arrangement
        guests = [
            guest for host in HOSTS for guest in (standing.main(host), *standing.background(host))
        ]
        # East-west both roles live on the sender's host.
        machines: dict[str, Host] = {"sender": standing.hosts["sender"]}
        if not standing.shared:
            machines["responder"] = standing.hosts["responder"]
        gauges = [
            Gauge(
                guest.name,
                "sender" if standing.shared else guest.host,
                guest.netns,
                guest.interface,
            )
            for guest in guests
        ]
        return Visible(gauges, machines if self._elsewhere else None)

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Runs one load trial; with a process on each machine where there are two."""
        generator = self._generator()

        def measure() -> TrialResult:
            if self._rtt_path.separate:
                return measure_load_apart(self._apart_path(), trial, place, generator)
            return measure_load(self._load_path, trial, place, generator)

        return beside(self._background, measure)

    def _apart_path(self) -> ApartPath:
        standing, path = self._arrangement, self._load_path.path
        sender, responder = standing.main("sender"), standing.main("responder")
        return ApartPath(
            _end(standing.hosts["sender"], sender),
            _end(standing.hosts["responder"], responder),
            source=path.source_ipv4,
            destination=path.destination_ipv4,
            next_hop_mac=path.next_hop_mac,
            counters=counters_between(
                standing.hosts, standing.counter_points, (sender.netns, responder.netns)
            ),
        )


def _end(host: Host, guest: Guest) -> LoadEnd:
    return LoadEnd(host, guest.name, f"{guest.interface}@{guest.netns}")


def _setting(cell: Cell) -> Setting:
    return Setting(cell.guest, cell.plane, cell.background, cell.background_guests, cell.path)


def local_stage(design: Design) -> Stage:
    """Containers on this machine: its two hosts are namespaces."""
    return HostedStage(design, local_pair(mtu_for(design.frame_sizes())))


def on_pair(pair: Pair) -> Mapping[GuestKind, Callable[[Design], Stage]]:
    """Stages for the kinds of guest that can live on a pair; VMs and chains have their own."""
    made: list[HostedStage] = []

    def stage(design: Design) -> Stage:
        if not made:
            made.append(HostedStage(design, _open(pair)))
        return made[0]

    def vms(design: Design) -> Stage:
        return VmStage(design, _open(pair), alone=True)

    def chains(design: Design) -> Stage:
        return HostedChainStage(design, pair)

    return {"namespace": stage, "container": stage, "vm": vms, "process": chains}


@contextmanager
def _open(pair: Pair) -> Iterator[Pair]:
    yield pair
