"""What a sweep or a search sends through: a plane, a router, or two interfaces of the user's.

Gives searches the `Measurer` that they know, and keeps every trial's record.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from planewise.errors import BadInputError, PlanewiseError
from planewise.judge.curve import Run
from planewise.measure.load import Generator, LoadPath, measure_load
from planewise.measure.schedule import LoadTrial
from planewise.measure.stage import Place
from planewise.store.models import Level, TrialRecord
from planewise.testbed.host import LocalHost
from planewise.testbed.model import IpVersion, TestbedSpec, TrialPath, mtu_for
from planewise.testbed.namespaces import NamespaceTestbed, RouterTestbed
from planewise.testbed.steering import split_cpus, steer

MIN_LOAD_PPS = 100.0
"""Below this a short trial has too few packets to tell a loss ratio."""


@dataclass(frozen=True)
class PlaneUnderTest:
    """From the sender's main guest through a plane to the responder's."""

    plane: str
    ip_version: IpVersion = 4

    @property
    def cell(self) -> dict[str, Level]:
        """As trial records name it."""
        return {"plane": self.plane, "ip_version": self.ip_version}


@dataclass(frozen=True)
class RouterUnderTest:
    """Through a host that forwards in its kernel: PASTRAMI's case."""

    ip_version: IpVersion = 6

    @property
    def cell(self) -> dict[str, Level]:
        """As trial records name it."""
        return {"plane": "router", "ip_version": self.ip_version}


@dataclass(frozen=True)
class InterfacesUnderTest:
    """Between two interfaces that the user named; whatever lies between them is the SUT."""

    path: TrialPath
    ip_version: IpVersion = 4

    @property
    def cell(self) -> dict[str, Level]:
        """As trial records name it."""
        between = f"{self.path.tx_interface}-{self.path.rx_interface}"
        return {"plane": between, "ip_version": self.ip_version}


Sut = PlaneUnderTest | RouterUnderTest | InterfacesUnderTest


class SutMeasurer:
    """Measures one SUT with frames of one size; a context manager that builds what is needed.

    It is the `Measurer` of measure/search. `on_record` is told every trial's record.
    """

    def __init__(
        self, sut: Sut, size_bytes: int, on_record: Callable[[TrialRecord], None] | None = None
    ) -> None:
        self.sut = sut
        self.size_bytes = size_bytes
        self._on_record = on_record
        self._built = ExitStack()
        self._trials = 0
        self._cpus = split_cpus()
        self._host = LocalHost("generator")
        self._generator = Generator(self._host, self._cpus.generator if self._cpus else None)
        self._path: LoadPath | None = None

    @property
    def cell(self) -> dict[str, Level]:
        """The factor levels of every trial."""
        return self.sut.cell | {"size_bytes": self.size_bytes}

    @property
    def min_load_pps(self) -> float:
        """Lowest load that may be offered."""
        return MIN_LOAD_PPS

    @property
    def max_load_pps(self) -> float:
        """The generator's own maximum."""
        return self._generator.max_pps(self.size_bytes, self.sut.ip_version)

    def trial(self, offered_pps: float, duration_s: float) -> Run:
        """Runs one trial. PlanewiseError when it could not be run."""
        if self._path is None:
            raise RuntimeError("use it in a with block")
        name = f"load:{','.join(str(level) for level in self.cell.values())}#{self._trials}"
        trial = LoadTrial(f"{name}@{offered_pps:.0f}", offered_pps, self.size_bytes, duration_s)
        place = Place(trial.name, self.cell, 0, self._trials)
        try:
            record = measure_load(self._path, trial, place, self._generator).record
        except PlanewiseError:
            self._check_interfaces()
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
            limited=any(limit != "sut" for limit in record.limits),
            busy=record.busy,
        )

    def __enter__(self) -> Self:
        try:
            self._path = self._build()
        except BaseException:
            self._tear_down()
            raise
        return self

    def _build(self) -> LoadPath:
        version = self.sut.ip_version
        if isinstance(self.sut, InterfacesUnderTest):
            self._check_interfaces()
            return LoadPath(self.sut.path, (), version)
        if isinstance(self.sut, RouterUnderTest):
            router = self._built.enter_context(RouterTestbed(version, mtu_for([self.size_bytes])))
            self._steer(router.hosts["router"], router.router_netns, router.entrances)
            return LoadPath(router.trial_path(), router.counter_points, version)
        spec = TestbedSpec(self.sut.plane, mtu_bytes=mtu_for([self.size_bytes]))
        testbed = self._built.enter_context(NamespaceTestbed(spec))
        for role, interfaces in testbed.entrances.items():
            self._steer(testbed.hosts[role], testbed.topology.sites[role].netns, interfaces)
        return LoadPath(testbed.trial_path(), testbed.counter_points, version)

    def _check_interfaces(self) -> None:
        """BadInputError when an interface that the user named is not there (any more)."""
        if not isinstance(self.sut, InterfacesUnderTest):
            return
        path = self.sut.path
        for flag, netns, interface in (
            ("--tx", path.tx_netns, path.tx_interface),
            ("--rx", path.rx_netns, path.rx_interface),
        ):
            try:
                found = self._host.has_interface(interface, netns=netns or None)
            except PlanewiseError as error:
                raise BadInputError(error.what, where=flag, remedy=error.remedy) from error
            if not found:
                raise BadInputError(
                    f"there is no interface {interface}{f' in {netns}' if netns else ''}",
                    where=flag,
                    remedy="`ip link` lists the interfaces; IF@NETNS names one in a namespace",
                )

    def _steer(self, host: LocalHost, netns: str, interfaces: tuple[str, ...]) -> None:
        if self._cpus is not None:
            steer(host, netns, interfaces, self._cpus.receivers)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tear_down()

    def _tear_down(self) -> None:
        self._path = None
        try:
            self._built.close()
        finally:
            self._host.close()
