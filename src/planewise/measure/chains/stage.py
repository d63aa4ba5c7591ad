"""The stage for chains on this machine, whatever their functions are."""

from __future__ import annotations

import os
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from types import MappingProxyType
from typing import Protocol, Self

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.measure.cells import Cell
from planewise.measure.chains import evaluate
from planewise.measure.chains.evaluate import Between
from planewise.measure.design import Design
from planewise.measure.schedule import ChainTrial, TcpTrial
from planewise.measure.stage import Place, StageFacts, TrialResult
from planewise.measure.tcp import PROGRAM, End, Passed, measure_tcp
from planewise.measure.vms import options_of
from planewise.store.models import ChainLimit, FrameAccount, KpiSample, Limit, Load, TrialRecord
from planewise.testbed.chains import kernel, local_guests, vhost_user
from planewise.testbed.chains.kernel import KernelChain
from planewise.testbed.chains.local_guests import ContainedChain, MachineChain
from planewise.testbed.chains.model import (
    GENERATOR,
    SWITCH,
    Chain,
    FrameSize,
    Placement,
    mean_bytes,
    place,
)
from planewise.testbed.chains.reading import ChainReading
from planewise.testbed.chains.vhost_machines import VhostMachines
from planewise.testbed.chains.vhost_user import VhostChain
from planewise.testbed.host import Host, LocalHost
from planewise.testbed.vms.platform import Platform, called, platform_of, vm_mib
from planewise.testbed.vms.resources import free_mib, memory_shortage

SAMPLE_S = 1.0
"""Time between two looks at the counters."""


_MIX_OFF = 0.1
"""How far the mean size of the frames may be off that of the mix."""

SLACK_S = 60.0
"""A trial may begin so much later than planned, and take as much longer, on a busy machine."""
_POLL_S = 0.02
_SHARE = 0.1
"""Of the time at most goes into reading counters: a slow host is read less often."""


class ChainTestbed(Protocol):
    """A chain that stands, whatever its plane."""

    @property
    def placement(self) -> Placement:
        """Which CPU does what."""

    def start(self, size: FrameSize, limit_s: float) -> None:
        """Has the generator send, as much as is taken, until `stop` or for `limit_s`."""

    def stop(self) -> FrameAccount | None:
        """Ends that, and says what became of every frame; None where nothing was sent."""

    def read(self, *, whole: bool = True) -> ChainReading:
        """The counters now."""


@dataclass(frozen=True)
class Build:
    """What making a chain does, for people."""

    tasks: Mapping[int, tuple[str, ...]]
    """By CPU; empty where that is known only once the hosts are asked."""
    steps: tuple[str, ...]


class RoutedStage(ABC):
    """What stages for chains have in common, wherever they build them.

    See `planewise.measure.stage.Stage`.
    """

    def __init__(self, design: Design) -> None:
        self._wanted = {} if design.chain is None else design.chain.cpus.named()
        self._offered_pps = None if design.chain is None else design.chain.offered_pps
        self._uplink = None if design.chain is None else design.chain.uplink
        self._tcp = design.tcp is not None
        self._options = options_of(design)
        self._with_vms = False

    @property
    @abstractmethod
    def _functions_host(self) -> Host:
        """The host that functions live on."""

    @abstractmethod
    def _unavailable_reason(self, cell: Cell) -> str:
        """Why a cell cannot be set up; empty when it can."""

    @cached_property
    def _platform(self) -> Platform:
        return platform_of(self._functions_host)

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""
        lacking = {cell: reason for cell in cells if (reason := self._unavailable_reason(cell))}
        self._with_vms |= any(cell.guest == "vm" and cell not in lacking for cell in cells)
        return lacking

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """Chains are measured at overload: there is no ladder to be bounded."""
        raise UnsupportedError("chains have no ladder of loads")

    def facts(self) -> StageFacts:
        """Whether the functions' CPUs are emulated."""
        return StageFacts(self._platform.emulated if self._with_vms else "")

    def __enter__(self) -> Self:
        return self


class ChainStage(RoutedStage):
    """Builds a chain for a visit and removes it after: what polls takes its core that long."""

    def __init__(self, design: Design) -> None:
        super().__init__(design)
        self._here = LocalHost("this machine")

    @property
    def _functions_host(self) -> Host:
        return self._here

    def builds(self, cells: Sequence[Cell]) -> dict[str, Build]:
        """By plane, what makes its longest chain among `cells`, which can all be built here."""
        found = {}
        for name, cell in longest(cells).items():
            chain = chain_of(cell)
            placement = self._place(chain)
            steps: Sequence[object]
            if chain.plane == "vhost-user":
                steps = vhost_user.plan(chain, placement, self._uplink)
            elif chain.kind == "process":
                steps = kernel.plan("0" * 8, chain, apart=self._tcp).steps
            else:
                steps = local_guests.steps(chain, placement)
            found[name] = Build(placement.tasks, tuple(map(str, steps)))
        return found

    def _unavailable_reason(self, cell: Cell) -> str:
        if cell.plane in _ELSEWHERE:
            return _ELSEWHERE[cell.plane]
        if self._tcp and cell.plane != "bridge":
            return "functions that poll have no TCP, and no kernel at their ends"
        if self._offered_pps is not None and cell.plane == "vhost-user" and not self._uplink:
            return (
                "the generator on a switch without an uplink cannot be paced: give `chain.uplink` "
                "a driver, or leave `offered_pps` out"
            )
        if self._tcp and not shutil.which(PROGRAM):
            return f"{PROGRAM} is not installed here"
        try:
            chain = chain_of(cell)
            self._place(chain)
        except PlanewiseError as error:
            return error.what
        if chain.plane == "vhost-user":
            if chain.kind == "vm" and not self._uplink:
                return "functions that route want IP from outside: give `chain.uplink` a driver"
            reason = vhost_user.unavailable_reason(chain)
            return reason or (self._vm_shortage(chain) if chain.kind == "vm" else "")
        if reason := kernel.unavailable_reason():
            return reason
        if chain.kind == "container" and not shutil.which("dockerd", path=_SBIN):
            return "there is no Docker on this machine"
        return self._vm_shortage(chain) if chain.kind == "vm" else ""

    def _vm_shortage(self, chain: Chain) -> str:
        try:
            _ = self._platform
        except PlanewiseError as error:
            return error.what
        there = free_mib(self._here)
        return memory_shortage(chain.vnfs, vm_mib(self._options), called(self._here), there)

    def _place(self, chain: Chain) -> Placement:
        # The kernel's bridge is no task: its work is done where a frame comes from.
        first = [SWITCH] if chain.plane == "vhost-user" else [GENERATOR]
        if chain.plane == "vhost-user" and self._uplink:
            first.append(GENERATOR)
        return place((*first, *chain.names), os.sched_getaffinity(0), self._wanted)

    @contextmanager
    def station(self, cell: Cell) -> Iterator[ChainStation]:
        """The cell's chain, standing."""
        chain = chain_of(cell)
        placement = self._place(chain)
        testbed: VhostChain | KernelChain
        pps = self._offered_pps
        if chain.plane == "vhost-user" and chain.kind == "vm":
            options = replace(self._options, shared_memory=True)
            testbed = VhostMachines(
                chain, placement, self._uplink or "af_packet", pps, self._platform, options
            )
        elif chain.plane == "vhost-user":
            testbed = VhostChain(chain, placement, self._uplink, pps)
        elif chain.kind == "vm":
            testbed = MachineChain(chain, placement, self._platform, self._options, offered_pps=pps)
        elif chain.kind == "container":
            testbed = ContainedChain(chain, placement, offered_pps=pps)
        else:
            testbed = KernelChain(chain, placement, apart=self._tcp, offered_pps=pps)
        with testbed:
            yield ChainStation(testbed)

    def __exit__(self, *_: object) -> None:
        self._here.close()


_ELSEWHERE = dict.fromkeys(
    ("vf", "vf-passthrough"),
    "a chain on VFs needs two hosts whose NICs are cabled: run it with --lab, or with "
    "--sender, --responder and --nic",
)
_SBIN = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def longest(cells: Sequence[Cell]) -> dict[str, Cell]:
    """By plane, and what else than a process a function of it may be, the cell with the longest
    chain. Pure."""
    found: dict[str, Cell] = {}
    for cell in cells:
        name = cell.plane if cell.guest != "container" else f"{cell.plane}, containers"
        if cell.vnfs >= found.get(name, cell).vnfs:
            found[name] = cell
    return found


def chain_of(cell: Cell) -> Chain:
    """The chain that a cell is.

    Raises:
        BadInputError: it is none that can be built.
    """
    return Chain(cell.plane, cell.path, cell.vnfs, cell.guest, cell.forwarder)


@dataclass
class ChainStation:
    """One chain, on which trials are run."""

    testbed: ChainTestbed
    slack_s: float = SLACK_S

    def chain(
        self, trial: ChainTrial, place: Place, tell: Callable[[KpiSample], None]
    ) -> TrialResult:
        """Runs one throughput trial at overload."""
        testbed = self.testbed
        testbed.start(trial.size_bytes, trial.warmup_s + trial.duration_s + 2 * self.slack_s)
        try:
            self._await_traffic()
            _wait(trial.warmup_s)
            started = datetime.now(UTC)
            began_s = time.monotonic()
            first = before = testbed.read()
            # The trial lasts from one reading to another; the clock of both may be elsewhere.
            now_s = time.monotonic()
            pause_s = max(SAMPLE_S, (now_s - began_s) / _SHARE)
            end_s = now_s + trial.duration_s
            while True:
                left_s = end_s - time.monotonic()
                _wait(min(pause_s, left_s))
                last = left_s <= pause_s
                now = testbed.read(whole=last)
                tell(
                    evaluate.kpi(
                        Between.of(before, now),
                        datetime.now(UTC),
                        place.trial,
                        place.cell,
                    )
                )
                before = now
                if last:
                    break
        finally:
            frames = testbed.stop()
        return TrialResult(_record(Between.of(first, now), trial, place, testbed, started, frames))

    def _await_traffic(self) -> None:
        """Waits until every function has transmitted: starting may take long on a busy machine."""
        before = self.testbed.read(whole=False).vnfs
        deadline = time.monotonic() + self.slack_s
        while True:
            now = self.testbed.read(whole=False).vnfs
            silent = [name for name in now if now[name].packets == before[name].packets]
            if not silent:
                return
            if time.monotonic() > deadline:
                raise PlanewiseError(
                    f"{silent[0]} transmitted nothing within {self.slack_s:g} s",
                    remedy="end other work on the machine, and try again",
                )
            time.sleep(_POLL_S)

    def tcp(self, trial: TcpTrial, place: Place, tell: Callable[[KpiSample], None]) -> TrialResult:
        """Runs one TCP trial through the chain."""
        testbed = self.testbed
        if not isinstance(testbed, KernelChain):
            raise UnsupportedError("functions that poll have no TCP")

        def sent() -> Mapping[str, Passed]:
            return {
                name: Passed(one.packets, one.bytes) for name, one in testbed.read().vnfs.items()
            }

        client, server = (End(testbed.host, *end) for end in testbed.ends)
        return measure_tcp(client, server, trial, place, tell, sent)


_LIMITS: Mapping[ChainLimit, tuple[Limit, ...]] = MappingProxyType(
    {
        "generator": ("generator",),
        "PMD core": ("sut",),
        "VNF core": ("sut",),
        "kernel": ("sut",),
        "NIC": ("sut",),
        "uplink": ("generator",),
    }
)
"""As other trials say it. A shared core is a limit of the machine, not of the chain."""


def _wait(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


def _record(
    between: Between,
    trial: ChainTrial,
    place: Place,
    testbed: ChainTestbed,
    started: datetime,
    frames: FrameAccount | None,
) -> TrialRecord:
    size = mean_bytes(trial.size_bytes)
    result = evaluate.result(between, testbed.placement, size, frames)
    if not result.tx_pps:
        raise PlanewiseError(
            "no function of the chain transmitted a packet",
            remedy="end other work on the machine, and try again",
        )
    warnings = []
    if trial.size_bytes == "imix" and abs(result.frame_bytes / size - 1) > _MIX_OFF:
        warnings.append(
            f"the frames that functions sent have a mean of {result.frame_bytes:.0f} bytes, and "
            f"the mix has {size:.0f}: its sizes did not get through alike"
        )
    return TrialRecord(
        warnings=tuple(warnings),
        trial=place.trial,
        kind="chain",
        cell=place.cell,
        block=place.block,
        replicate=place.block,
        order=place.order,
        started=started,
        duration_s=between.seconds,
        load=Load(
            intended_pps=result.offered_pps,
            achieved_pps=result.offered_pps,
            size_bytes=round(size),
        ),
        counts=evaluate.counts(between),
        chain=result,
        limits=_LIMITS.get(result.limit, ()),
    )
