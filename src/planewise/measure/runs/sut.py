"""What a sweep or a search sends through: a plane, a router, or two interfaces of the user's.

Gives searches their `Measurer`, and keeps every trial's record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Literal, Self

from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.judge.curve import Run
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design
from planewise.measure.runs.stations import Stations
from planewise.measure.station import Place, Station
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.load_one_process import Generator
from planewise.store.models import Level, TrialRecord
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.hosts.state import LocalWatch
from planewise.testbed.hosts.steering import CpuSplit, split_cpus, steer
from planewise.testbed.model import GuestKind, IpVersion, TrafficPath, TrialPath, mtu_for
from planewise.testbed.switches.router import Forwarding, RouterPlatform, router_testbed

Pinning = Literal["none", "one", "two", "spread"]
"""CPUs of a router's receive work (`campaign.RouterFactors`)."""
MIN_LOAD_PPS = 100.0
"""Below this a short trial has too few packets for a loss ratio."""


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
        """The factor levels in its trial records. As in older runs, `guest` and `path` are left out
        where they are the default."""
        beyond: dict[str, Level] = {}
        if self.guest != "namespace":
            beyond["guest"] = self.guest
        if self.path != "north-south":
            beyond["path"] = self.path
        return {"plane": self.plane, **beyond, "ip_version": self.ip_version}

    def on(self, pair: Pair) -> Sut:
        """The same on two servers."""
        return replace(self, pair=pair)

    def build(self, size_bytes: int, built: ExitStack) -> Station:
        """Builds it; closing `built` removes it. UnsupportedError: it cannot be built here."""
        cell = Cell(plane=self.plane, guest=self.guest, path=self.path)
        levels = {"plane": self.plane, "guest": self.guest, "path": self.path}
        design = Design.model_validate({"factors": {**levels, "size_bytes": size_bytes},
                                        "sweep": {}})  # fmt: skip
        stations = built.enter_context(Stations(design, self.pair, self.ip_version))
        if reason := stations.unavailable([cell]).get(cell):
            raise UnsupportedError(
                reason,
                remedy="`planewise doctor --matrix` lists what can be measured, and where",
            )
        station = built.enter_context(stations.station(cell))
        station.emulated, station.differences = stations.emulated, stations.differences
        return station


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
        """The factor levels. As in older runs, only a campaign's cells name the default ones."""
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
        raise UnsupportedError(
            "the router under test needs two ports, and two servers share one cable",
            remedy="measure a chain of one function there: `planewise run` with `factors.vnfs: 1`",
        )

    def build(self, size_bytes: int, built: ExitStack) -> Station:
        cpus = split_cpus()
        receivers = () if cpus is None else cpus.receivers
        router = built.enter_context(
            router_testbed(
                mtu_for([size_bytes]),
                self.forwarding,
                self.platform,
                cpus=receivers,
                ring_packets=self.nic_ring,
            )
        )
        if cpus is not None and self.pinning != "none":
            for port, entrance in enumerate(router.entrances):
                pinned = receivers
                if self.pinning != "spread":
                    pinned = receivers[port : port + 1] if self.pinning == "two" else receivers[:1]
                steer(router.hosts["router"], router.netns, [entrance], pinned)
        station = _station(router.trial_path(), self.ip_version, cpus, built)
        station.counter_points, station.emulated = router.counter_points, router.emulated
        return station


@dataclass(frozen=True)
class InterfacesUnderTest:
    """Between two interfaces that the user named; whatever lies between them is the SUT."""

    path: TrialPath
    ip_version: IpVersion = 4

    @property
    def cell(self) -> dict[str, Level]:
        plane = f"{self.path.tx_interface}-{self.path.rx_interface}"
        return {"plane": plane, "ip_version": self.ip_version}

    def on(self, pair: Pair) -> Sut:
        raise UnsupportedError("--tx and --rx name interfaces of this machine")

    def build(self, size_bytes: int, built: ExitStack) -> Station:
        self.check()
        return _station(self.path, self.ip_version, split_cpus(), built)

    def check(self) -> None:
        """BadInputError when an interface does not exist (any more)."""
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


Sut = PlaneUnderTest | RouterUnderTest | InterfacesUnderTest
"""A system under test, before it is built."""


def _station(
    path: TrialPath, ip_version: IpVersion, cpus: CpuSplit | None, built: ExitStack
) -> Station:
    """Two interfaces of this machine."""
    host = LocalHost("generator")
    built.callback(host.close)
    return Station({}, {}, ip_version=ip_version, path=path, generator=Generator(host, cpus))


class SutMeasurer:
    """Measures one SUT with frames of one size; a context manager that builds what is needed.

    It is the `Measurer` of measure/search. `on_record` receives every trial's record.
    """

    def __init__(
        self,
        sut: Sut,
        size_bytes: int,
        on_record: Callable[[TrialRecord], None] = lambda _: None,
    ) -> None:
        self.sut = sut
        self.size_bytes = size_bytes
        self.on_record = on_record
        self._opened = ExitStack()
        self._trials = 0
        self._earlier: list[TrialRecord] = []
        self._built: Station | None = None

    @property
    def cell(self) -> dict[str, Level]:
        """The factor levels of every trial."""
        return self.sut.cell | {"size_bytes": self.size_bytes}

    @property
    def built(self) -> Station:
        """The SUT; only in the `with` block."""
        assert self._built is not None
        return self._built

    @property
    def min_load_pps(self) -> float:
        """Lowest load that may be offered."""
        return MIN_LOAD_PPS

    @property
    def max_load_pps(self) -> float:
        """The generator's own maximum."""
        return self.built.max_pps(self.size_bytes)

    def trial(self, offered_pps: float, duration_s: float) -> Run:
        """Runs one trial. PlanewiseError when it could not be run."""
        for earlier in self._earlier:
            load = earlier.load
            if load and (load.intended_pps, earlier.duration_s) == (offered_pps, duration_s):
                self._earlier.remove(earlier)
                return run_of(earlier)
        record = self._measure(offered_pps, duration_s)
        self._trials += 1
        self.on_record(record)
        if record.counts is None or not record.counts.sent:
            raise BadInputError(
                f"a trial of {duration_s:g} s at {offered_pps:.0f} pps has no packet",
                remedy="give it a longer duration or a higher load",
            )
        return run_of(record)

    def _measure(self, offered_pps: float, duration_s: float) -> TrialRecord:
        name = f"load:{','.join(str(level) for level in self.cell.values())}#{self._trials}"
        trial = LoadTrial(f"{name}@{offered_pps:.0f}", offered_pps, self.size_bytes, duration_s)
        place = Place(trial.name, self.cell, 0, self._trials)
        watch = LocalWatch()
        watch.start()
        try:
            record = self.built.measure(trial, place, lambda _: None).record
        except PlanewiseError:
            if isinstance(self.sut, InterfacesUnderTest):
                self.sut.check()
            raise
        host = watch.stop() if "shared" in record.cpu else {}  # else other hosts are measured
        return record.model_copy(update={"host": host})

    def replay(self, earlier: Sequence[TrialRecord]) -> None:
        """Lets trials that a run measured before it was cut short answer instead of new ones."""
        self._earlier = [trial for trial in earlier if trial.counts and trial.counts.sent]
        self._trials = max((trial.order + 1 for trial in earlier), default=0)

    def __enter__(self) -> Self:
        try:
            self._built = self.sut.build(self.size_bytes, self._opened)
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._built = None
        self._opened.__exit__(*error)  # type: ignore[arg-type]


def run_of(record: TrialRecord) -> Run:
    """The run that a load trial is to the judge."""
    assert record.counts is not None
    return Run(
        sent=record.counts.sent,
        received=record.counts.received,
        duration_s=record.duration_s,
        order=record.order,
        drops=sum(part.count for part in record.loss),
        limited=record.is_bound,
        busy=record.busy,
        foreign=record.foreign_cpu,
    )
