"""The stage for chains whose functions are processes of this machine."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Protocol, Self

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.measure.cells import Cell
from planewise.measure.chains import evaluate
from planewise.measure.chains.evaluate import Between
from planewise.measure.chains.tcp import PROGRAM, End, Passed, measure_tcp
from planewise.measure.design import Design
from planewise.measure.experiment import Place, StageFacts, TrialResult
from planewise.measure.schedule import ChainTrial, LoadTrial, RttTrial, TcpTrial
from planewise.store.models import ChainLimit, KpiSample, Limit, Load, TrialRecord
from planewise.testbed.chains import kernel, vhost_user
from planewise.testbed.chains.kernel import KernelChain
from planewise.testbed.chains.model import (
    GENERATOR,
    SWITCH,
    Chain,
    FrameSize,
    Placement,
    mean_bytes,
    place,
)
from planewise.testbed.chains.reading import Reading
from planewise.testbed.chains.vhost_user import VhostChain

SAMPLE_S = 1.0
"""Time between two looks at the counters."""


_MIX_OFF = 0.1
"""How far the mean size of the frames may be off that of the mix."""

_SLACK_S = 60.0
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

    def stop(self) -> None:
        """Ends that."""

    def read(self, *, whole: bool = True) -> Reading:
        """The counters now."""


@dataclass(frozen=True)
class Build:
    """What making a chain does, for people."""

    tasks: Mapping[int, tuple[str, ...]]
    """By CPU; empty where that is known only once the hosts are asked."""
    steps: tuple[str, ...]


class ChainStage:
    """Builds a chain for a visit and removes it after: what polls takes its core as long as it is.

    See `planewise.measure.experiment.Stage`.
    """

    def __init__(self, design: Design) -> None:
        self._wanted = {} if design.chain is None else design.chain.cpus.named()
        self._offered_pps = None if design.chain is None else design.chain.offered_pps
        self._tcp = design.tcp is not None

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""
        return {cell: reason for cell in cells if (reason := self._why_not(cell))}

    def builds(self, cells: Sequence[Cell]) -> dict[str, Build]:
        """By plane, what makes its longest chain among `cells`, which can all be built here."""
        found = {}
        for plane, cell in longest(cells).items():
            chain = chain_of(cell)
            placement = self._place(chain)
            steps: Sequence[object]
            if plane == "bridge":
                steps = kernel.plan("0" * 8, chain, apart=self._tcp).steps
            else:
                steps = vhost_user.plan(chain, placement)
            found[plane] = Build(placement.tasks, tuple(map(str, steps)))
        return found

    def _why_not(self, cell: Cell) -> str:
        if cell.plane in _ELSEWHERE:
            return _ELSEWHERE[cell.plane]
        if self._tcp and cell.plane != "bridge":
            return "functions that poll have no TCP, and no kernel at their ends"
        if self._offered_pps is not None and cell.plane == "vhost-user":
            return "the generator of chains on vhost-user cannot be paced: leave `offered_pps` out"
        if self._tcp and not shutil.which(PROGRAM):
            return f"{PROGRAM} is not installed here"
        try:
            chain = chain_of(cell)
            self._place(chain)
        except PlanewiseError as error:
            return error.what
        return kernel.why_not() if chain.plane == "bridge" else vhost_user.why_not(chain)

    def _place(self, chain: Chain) -> Placement:
        # The kernel's bridge is no task: its work is done where a frame comes from.
        first = GENERATOR if chain.plane == "bridge" else SWITCH
        return place((first, *chain.names), os.sched_getaffinity(0), self._wanted)

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """Chains are measured at overload: there is no ladder to be bounded."""
        raise UnsupportedError("chains have no ladder of loads")

    @contextmanager
    def station(self, cell: Cell) -> Iterator[ChainStation]:
        """The cell's chain, standing."""
        chain = chain_of(cell)
        placement = self._place(chain)
        testbed: VhostChain | KernelChain
        if chain.plane == "bridge":
            testbed = KernelChain(chain, placement, apart=self._tcp, offered_pps=self._offered_pps)
        else:
            testbed = VhostChain(chain, placement)
        with testbed:
            yield ChainStation(testbed)

    def facts(self) -> StageFacts:
        """What a reader must know."""
        return StageFacts()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


IN_MACHINES = (
    "functions in virtual machines are not built: what a function carries on a VF of its own is "
    "measured on the plane vf, and `planewise advise` predicts vf-passthrough"
)

_ELSEWHERE = {
    "vf": "a chain on VFs needs two hosts whose NICs are cabled: run it with --lab, or with "
    "--sender, --responder and --nic",
    "vf-passthrough": IN_MACHINES,
}


def longest(cells: Sequence[Cell]) -> dict[str, Cell]:
    """By plane, the cell with the longest chain. Pure."""
    found: dict[str, Cell] = {}
    for cell in cells:
        if cell.vnfs >= found.get(cell.plane, cell).vnfs:
            found[cell.plane] = cell
    return found


def chain_of(cell: Cell) -> Chain:
    """The chain that a cell is.

    Raises:
        BadInputError: it is none that can be built.
    """
    return Chain(cell.plane, cell.path, cell.vnfs)


@dataclass
class ChainStation:
    """One chain, on which trials are run."""

    testbed: ChainTestbed

    def rtt(self, trial: RttTrial, place: Place) -> TrialResult:
        """Not of a chain."""
        raise UnsupportedError("round-trip times are not measured through chains")

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Not of a chain."""
        raise UnsupportedError("loads are not measured through chains")

    def chain(
        self, trial: ChainTrial, place: Place, tell: Callable[[KpiSample], None]
    ) -> TrialResult:
        """Runs one throughput trial at overload."""
        testbed = self.testbed
        testbed.start(trial.size_bytes, trial.warmup_s + trial.duration_s + 2 * _SLACK_S)
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
            testbed.stop()
        return TrialResult(_record(Between.of(first, now), trial, place, testbed, started))

    def _await_traffic(self) -> None:
        """Waits until every function has transmitted: starting may take long on a busy machine."""
        before = self.testbed.read(whole=False).vnfs
        deadline = time.monotonic() + _SLACK_S
        while True:
            now = self.testbed.read(whole=False).vnfs
            silent = [name for name in now if now[name].packets == before[name].packets]
            if not silent:
                return
            if time.monotonic() > deadline:
                raise PlanewiseError(
                    f"{silent[0]} transmitted nothing within {_SLACK_S:g} s",
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
    }
)
"""As other trials say it. A shared core is a limit of the machine, not of the chain."""


def _wait(seconds: float) -> None:
    if seconds > 0:
        time.sleep(seconds)


def _record(
    between: Between, trial: ChainTrial, place: Place, testbed: ChainTestbed, started: datetime
) -> TrialRecord:
    size = mean_bytes(trial.size_bytes)
    result = evaluate.result(between, testbed.placement, size)
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
