"""What a sweep or a search sends through: a plane, a router, or two interfaces of the user's.

Gives searches the `Measurer` that they know, and keeps every trial's record. A plane is measured on
the station of a cell, as a design's is: whatever kind its guests are, here or on two servers.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol, Self

from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.judge.curve import Run
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design
from planewise.measure.runs.stage import Place, StageFacts, TrialResult
from planewise.measure.runs.stages import Stages
from planewise.measure.trials.frames import HostGenerator, LoadPath, measure_load
from planewise.measure.trials.load import LoadStation, LoadTrial
from planewise.store.models import Level, TrialRecord
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.hosts.steering import split_cpus, steer
from planewise.testbed.model import IpVersion, TrafficPath, TrialPath, mtu_for
from planewise.testbed.planes.kinds import GuestKind
from planewise.testbed.switches.router import Forwarding, RouterPlatform, RouterTestbed

Pinning = Literal["none", "one", "two", "spread"]
"""CPUs of a router's receive work (`campaign.RouterFactors`)."""
MIN_LOAD_PPS = 100.0
"""Below this a short trial has too few packets to tell a loss ratio."""


class BuiltSut(Protocol):
    """A SUT that has been built."""

    @property
    def facts(self) -> StageFacts:
        """What a reader of its figures must know."""

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """Runs one load trial."""

    def max_pps(self, size_bytes: int) -> float:
        """The generator's own maximum [packet/s]."""


class Sut(Protocol):
    """A system under test, before it is built."""

    @property
    def cell(self) -> dict[str, Level]:
        """The factor levels in its trial records."""

    def on(self, pair: Pair) -> Sut:
        """The same on two servers.

        Raises:
            UnsupportedError: it cannot be there.
        """

    def build(self, size_bytes: int, built: ExitStack) -> BuiltSut:
        """Builds it; closing `built` removes it.

        Raises:
            UnsupportedError: it cannot stand here.
            PlanewiseError: it could not be built.
        """

    def check(self) -> None:
        """BadInputError when something that the user named is not there (any more)."""


@dataclass(frozen=True)
class PlaneUnderTest:
    """From the sender's main guest through a plane to the responder's."""

    plane: str
    ip_version: IpVersion = 4
    guest: GuestKind = "namespace"
    path: TrafficPath = "north-south"
    pair: Pair | None = field(default=None, compare=False)
    """The two servers to use; None: this machine."""

    @property
    def cell(self) -> dict[str, Level]:
        """See `Sut.cell`. As in older runs, `guest` and `path` are named unless the default."""
        beyond: dict[str, Level] = {}
        if self.guest != "namespace":
            beyond["guest"] = self.guest
        if self.path != "north-south":
            beyond["path"] = self.path
        return {"plane": self.plane, **beyond, "ip_version": self.ip_version}

    def on(self, pair: Pair) -> Sut:
        """See `Sut.on`."""
        return replace(self, pair=pair)

    def build(self, size_bytes: int, built: ExitStack) -> BuiltSut:
        """See `Sut.build`."""
        cell = Cell(plane=self.plane, guest=self.guest, path=self.path)
        design = Design.model_validate(
            {
                "factors": {
                    "plane": self.plane,
                    "guest": self.guest,
                    "path": self.path,
                    "size_bytes": size_bytes,
                },
                "sweep": {},
            }
        )
        stages = built.enter_context(Stages(design, self.pair, ip_version=self.ip_version))
        if reason := stages.unavailable([cell]).get(cell):
            raise UnsupportedError(
                reason,
                remedy="`planewise doctor --matrix` lists what can be measured, and where",
            )
        max_pps = stages.max_pps(cell, size_bytes)
        station = built.enter_context(stages.station(cell))
        if not isinstance(station, LoadStation):
            raise UnsupportedError(f"no load trial can be run on the plane {self.plane}")
        return _StationTarget(station, max_pps, stages.facts())

    def check(self) -> None:
        """See `Sut.check`: nothing of it is the user's."""


@dataclass(frozen=True)
class RouterUnderTest:
    """Through a host that forwards in its kernel: PASTRAMI's case."""

    ip_version: IpVersion = 6
    forwarding: Forwarding = "kernel"
    pinning: Pinning = "spread"
    platform: RouterPlatform = "namespace"
    nic_ring: int | None = None
    """Packets of a virtual machine's receive ring; None: as QEMU has it."""
    labels: tuple[tuple[str, Level], ...] = ()
    """Further factors of a campaign, whose cells name all of them."""

    @property
    def cell(self) -> dict[str, Level]:
        """See `Sut.cell`. As in older runs, only a campaign's cells name the default levels."""
        beyond: dict[str, Level] = {}
        if self.labels or self.forwarding != "kernel":
            beyond["forwarding"] = self.forwarding
        if self.labels or self.pinning != "spread":
            beyond["irq_pinning"] = self.pinning
        if self.labels or self.platform != "namespace":
            beyond["platform"] = self.platform
        if self.nic_ring is not None:
            beyond["nic_ring"] = self.nic_ring
        return {"plane": "router", "ip_version": self.ip_version, **beyond, **dict(self.labels)}

    def on(self, pair: Pair) -> Sut:
        """See `Sut.on`."""
        raise UnsupportedError(
            "the router under test has two ports of its own, and two servers share one cable",
            remedy="measure a chain of one function there: `planewise run` with `factors.vnfs: 1`",
        )

    def build(self, size_bytes: int, built: ExitStack) -> BuiltSut:
        """See `Sut.build`."""
        target = _PathTarget(built, self.ip_version)
        mtu_bytes = mtu_for([size_bytes])
        router = built.enter_context(
            RouterTestbed(
                self.ip_version,
                mtu_bytes,
                self.forwarding,
                self.platform,
                cpus=() if target.cpus is None else target.cpus.receivers,
                nic_ring=self.nic_ring,
            )
        )
        target.facts = StageFacts(emulated=router.emulated)
        if target.cpus is not None and self.pinning != "none":
            for port, entrance in enumerate(router.entrances):
                receivers = target.cpus.receivers
                if self.pinning != "spread":
                    receivers = (
                        receivers[port : port + 1] if self.pinning == "two" else receivers[:1]
                    )
                steer(router.hosts["router"], router.router_netns, [entrance], receivers)
        target.path = LoadPath(router.trial_path(), router.counter_points, self.ip_version)
        return target

    def check(self) -> None:
        """See `Sut.check`: nothing of it is the user's."""


@dataclass(frozen=True)
class InterfacesUnderTest:
    """Between two interfaces that the user named; whatever lies between them is the SUT."""

    path: TrialPath
    ip_version: IpVersion = 4

    @property
    def cell(self) -> dict[str, Level]:
        """See `Sut.cell`."""
        plane = f"{self.path.tx_interface}-{self.path.rx_interface}"
        return {"plane": plane, "ip_version": self.ip_version}

    def on(self, pair: Pair) -> Sut:
        """See `Sut.on`."""
        raise UnsupportedError("--tx and --rx name interfaces of this machine")

    def build(self, size_bytes: int, built: ExitStack) -> BuiltSut:
        """See `Sut.build`."""
        self.check()
        target = _PathTarget(built, self.ip_version)
        target.path = LoadPath(self.path, (), self.ip_version)
        return target

    def check(self) -> None:
        """See `Sut.check`."""
        path = self.path
        host = LocalHost("generator")
        try:
            for flag, netns, interface in (
                ("--tx", path.tx_netns, path.tx_interface),
                ("--rx", path.rx_netns, path.rx_interface),
            ):
                try:
                    exists = host.has_interface(interface, netns=netns or None)
                except PlanewiseError as error:
                    raise BadInputError(error.what, where=flag, remedy=error.remedy) from error
                if not exists:
                    raise BadInputError(
                        f"there is no interface {interface}{f' in {netns}' if netns else ''}",
                        where=flag,
                        remedy="`ip link` lists the interfaces; IF@NETNS names one in a namespace",
                    )
        finally:
            host.close()


class _StationTarget:
    """See `BuiltSut`: the station of a cell."""

    def __init__(self, station: LoadStation, max_pps: float, facts: StageFacts) -> None:
        self.facts = facts
        self._station = station
        self._max_pps = max_pps

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """See `BuiltSut.load`."""
        return self._station.load(trial, place)

    def max_pps(self, size_bytes: int) -> float:
        """See `BuiltSut.max_pps`."""
        return self._max_pps


class _PathTarget:
    """See `BuiltSut`: two interfaces of this machine."""

    path: LoadPath
    facts = StageFacts()

    def __init__(self, built: ExitStack, ip_version: IpVersion) -> None:
        self.cpus = split_cpus()
        host = LocalHost("generator")
        built.callback(host.close)
        self._generator = HostGenerator(host, self.cpus)
        self._ip_version: IpVersion = ip_version

    def load(self, trial: LoadTrial, place: Place) -> TrialResult:
        """See `BuiltSut.load`."""
        return measure_load(self.path, trial, place, self._generator)

    def max_pps(self, size_bytes: int) -> float:
        """See `BuiltSut.max_pps`."""
        return self._generator.max_pps(size_bytes, self._ip_version)


class SutMeasurer:
    """Measures one SUT with frames of one size; a context manager that builds what is needed.

    It is the `Measurer` of measure/search. `on_record` receives every trial's record.
    """

    def __init__(
        self, sut: Sut, size_bytes: int, on_record: Callable[[TrialRecord], None] | None = None
    ) -> None:
        self.sut = sut
        self.size_bytes = size_bytes
        self._on_record = on_record
        self._built = ExitStack()
        self._trials = 0
        self._target: BuiltSut | None = None

    @property
    def cell(self) -> dict[str, Level]:
        """The factor levels of every trial."""
        return self.sut.cell | {"size_bytes": self.size_bytes}

    @property
    def facts(self) -> StageFacts:
        """What a reader of its figures must know."""
        return self._built_target.facts

    @property
    def min_load_pps(self) -> float:
        """Lowest load that may be offered."""
        return MIN_LOAD_PPS

    @property
    def max_load_pps(self) -> float:
        """The generator's own maximum."""
        return self._built_target.max_pps(self.size_bytes)

    def trial(self, offered_pps: float, duration_s: float) -> Run:
        """Runs one trial. PlanewiseError when it could not be run."""
        name = f"load:{','.join(str(level) for level in self.cell.values())}#{self._trials}"
        trial = LoadTrial(f"{name}@{offered_pps:.0f}", offered_pps, self.size_bytes, duration_s)
        place = Place(trial.name, self.cell, 0, self._trials)
        try:
            record = self._built_target.load(trial, place).record
        except PlanewiseError:
            self.sut.check()
            raise
        self._trials += 1
        if self._on_record is not None:
            self._on_record(record)
        counts = record.counts
        if counts is None or not counts.sent:
            raise BadInputError(
                f"a trial of {duration_s:g} s at {offered_pps:.0f} pps has no packet",
                remedy="give it a longer duration or a higher load",
            )
        return Run(
            sent=counts.sent,
            received=counts.received,
            duration_s=record.duration_s,
            order=record.order,
            drops=sum(part.count for part in record.loss),
            limited=record.is_bound,
            busy=record.busy,
        )

    @property
    def _built_target(self) -> BuiltSut:
        if self._target is None:
            raise RuntimeError("use it in a with block")
        return self._target

    def __enter__(self) -> Self:
        try:
            self._target = self.sut.build(self.size_bytes, self._built)
        except BaseException:
            self._built.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._target = None
        self._built.__exit__(*error)  # type: ignore[arg-type]
