"""The stage for guests that are virtual machines on given hosts: servers, or a lab's.

One testbed serves all cells: guests sleep from cell to cell, loads come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Self

from planewise.measure.beside import beside, load_of
from planewise.measure.cells import Cell
from planewise.measure.design import Design
from planewise.measure.load import Generator
from planewise.measure.load_apart import measure_load_apart
from planewise.measure.meter import Visible
from planewise.measure.probe import CpuOutput, parse
from planewise.measure.rtt import RttPath, measure_rtt
from planewise.measure.schedule import LoadTrial, RttTrial
from planewise.measure.stage import Place, StageFacts, TrialResult
from planewise.measure.vms import (
    gauges_of,
    load_path_of,
    options_of,
    patience_s,
    replaced_notes,
    told_first,
)
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
        self._generators: dict[str, Generator] = {}
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
        """The maximum of the generator in the sender's main guest [packet/s]."""
        alone = replace(_setting(cell), background_guests=0)
        with self._testbed.arrange(alone) as arrangement:
            return self._generator(arrangement).max_pps(size_bytes)

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
            check = partial(self._testbed.check, _setting(cell))
            emulated = any(self._testbed.platform(role).emulated for role in HOSTS)
            yield _Station(arrangement, load, check, self._generator(arrangement), emulated)

    def _generator(self, arrangement: VmArrangement) -> Generator:
        """That of the sender's main guest, which is another once it was replaced."""
        host, guest = arrangement.hosts["sender"], arrangement.main("sender")
        made = Generator(host, netns=guest.netns)
        return self._generators.setdefault(guest.netns, made)

    def _why_none(self) -> str:
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
        self,
        arrangement: VmArrangement,
        background: BackgroundLoad,
        check: Callable[[], None],
        generator: Generator,
        emulated: bool,
    ) -> None:
        self._arrangement = arrangement
        self._check = check
        self._background = background
        self._generator = generator
        self._load_path = load_path_of(
            arrangement.hosts, arrangement.mains, arrangement.counter_points
        )
        self._notes = replaced_notes(arrangement.replaced)
        self._path = RttPath(
            hosts=arrangement.hosts,
            sender=arrangement.main("sender"),
            responder=arrangement.main("responder"),
            capture_points=arrangement.capture_points,
            not_measurable=arrangement.not_measurable,
            separate=True,
            patience_s=patience_s(emulated),
        )

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Runs one RTT trial. Its CPU figures are the hosts', not those of a guest."""
        host = self._path.hosts["sender"]
        with told_first(self._check), host.start([host.probe, "cpu"]) as cpu:
            result = beside(self._background, lambda: measure_rtt(self._path, trial, place))
            usage = parse(cpu.stop(), CpuOutput)
        return self._noted(result, cpu={**result.record.cpu, "sender": usage.cpu.all})

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Runs one load trial, its ends in the main guests. Starting these takes the guests as
        long as the trial: there are no CPU figures."""
        with told_first(self._check):
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
        """See `meter.VisibleStation`: the hosts' sides of the guests, where there are any."""
        standing = self._arrangement
        gauges = [
            gauge
            for host in HOSTS
            for gauge in gauges_of("", (standing.main(host), *standing.background(host)))
        ]
        return Visible(gauges, {str(host): standing.hosts[host] for host in HOSTS})


def _setting(cell: Cell) -> Setting:
    return Setting(cell.guest, cell.plane, cell.background, cell.background_guests, cell.path)
