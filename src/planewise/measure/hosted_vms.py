"""The stage for guests that are virtual machines on given hosts: servers, or a lab's.

One testbed serves all cells: guests sleep from cell to cell, loads come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Self

from planewise.errors import UnsupportedError
from planewise.measure.beside import beside, load_of
from planewise.measure.cells import Cell
from planewise.measure.design import Design
from planewise.measure.experiment import Place, StageFacts, TrialResult
from planewise.measure.meter import Visible
from planewise.measure.probe import CpuOutput, parse
from planewise.measure.rtt import RttPath, measure_rtt
from planewise.measure.schedule import LoadTrial, RttTrial
from planewise.measure.vms import NO_SWEEP, gauges_of, options_of, replaced_notes, told_first
from planewise.testbed.hosted import Setting
from planewise.testbed.load import BackgroundLoad
from planewise.testbed.model import HOSTS, mtu_for
from planewise.testbed.pair import Pair
from planewise.testbed.vms import testbed as vms
from planewise.testbed.vms.hosted import HostedVmTestbed, VmArrangement


class HostedVmStage:
    """Starts guests when a cell first needs them; all are gone when the stage is closed."""

    def __init__(self, design: Design, pair: Pair) -> None:
        self._background = design.background
        self._swept = design.sweep is not None
        self._others = sorted(set(design.factors.guest) - {"vm"})
        self._options = options_of(design)
        self._planes: dict[str, None] = {}
        self._testbed = HostedVmTestbed(
            pair.machines, pair.token, mtu_for(design.frame_sizes()), self._options
        )

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up on these hosts, and why."""
        why = self._why_none()
        if why:
            return dict.fromkeys(cells, why)
        lacking = self._testbed.expect(_setting(cell) for cell in cells)
        reasons = {}
        for cell in cells:
            if reason := lacking.get(_setting(cell)):
                reasons[cell] = reason
            else:
                self._planes |= dict.fromkeys(_setting(cell).planes)
        return reasons

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """There are no load trials."""
        raise UnsupportedError(NO_SWEEP, remedy="leave `sweep` out of the design")

    def facts(self) -> StageFacts:
        """Whether the guests' CPUs are emulated, and what else than the plane differs."""
        if not self._planes:
            return StageFacts()
        platforms = [self._testbed.platform(role) for role in HOSTS]
        return StageFacts(
            "; ".join(dict.fromkeys(one.emulated for one in platforms if one.emulated)),
            {
                plane: vms.differences(plane, platforms[0], self._options)
                for plane in sorted(self._planes)
            },
        )

    @contextmanager
    def station(self, cell: Cell) -> Iterator[_Station]:
        """The cell's guests, awake, with their background load running."""
        spec = load_of(cell, self._background)
        with (
            self._testbed.arrange(_setting(cell)) as arrangement,
            told_first(partial(self._testbed.check, _setting(cell))),
            BackgroundLoad(arrangement, spec) as load,
        ):
            yield _Station(arrangement, load, partial(self._testbed.check, _setting(cell)))

    def _why_none(self) -> str:
        if self._swept:
            return NO_SWEEP
        if self._others:
            return (
                f"virtual machines and guests that are {self._others[0]}s would want the same NIC "
                "at the same time: give each kind a design of its own"
            )
        return ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._testbed.close()


class _Station:
    """One cell of the stage."""

    def __init__(
        self, arrangement: VmArrangement, background: BackgroundLoad, check: Callable[[], None]
    ) -> None:
        self._arrangement = arrangement
        self._check = check
        self._background = background
        self._notes = replaced_notes(arrangement.replaced)
        self._path = RttPath(
            hosts=arrangement.hosts,
            sender=arrangement.main("sender"),
            responder=arrangement.main("responder"),
            capture_points=arrangement.capture_points,
            not_measurable=arrangement.not_measurable,
            separate=True,
        )

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Runs one RTT trial. Its CPU figures are the hosts', not those of a guest."""
        host = self._path.hosts["sender"]
        with told_first(self._check), host.start([host.probe, "cpu"]) as cpu:
            result = beside(self._background, lambda: measure_rtt(self._path, trial, place))
            usage = parse(cpu.stop(), CpuOutput)
        record = result.record.model_copy(
            update={
                "cpu": {**result.record.cpu, "sender": usage.cpu.all},
                "warnings": (*self._notes, *result.record.warnings),
            }
        )
        self._notes = ()
        return TrialResult(record, result.packets)

    def visible(self) -> Visible:
        """See `meter.VisibleStation`: the hosts' sides of the guests, where there are any."""
        standing = self._arrangement
        gauges = [
            gauge
            for host in HOSTS
            for gauge in gauges_of("", (standing.main(host), *standing.background(host)))
        ]
        return Visible(gauges, {str(host): standing.hosts[host] for host in HOSTS})

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """There are no load trials."""
        raise UnsupportedError(NO_SWEEP, remedy="leave `sweep` out of the design")


def _setting(cell: Cell) -> Setting:
    return Setting(cell.guest, cell.plane, cell.background, cell.background_guests, cell.path)
