"""A station: what trials need of one cell, whatever its guests are.

`runs.stations` sets stations up, and every kind of trial (`trials/`) measures on one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from planewise.errors import PlanewiseError
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design, DesignModel, Problem
from planewise.store.models import KpiSample, Level, Metric, TrialKind, TrialRecord
from planewise.testbed.hosts.steering import steer

if TYPE_CHECKING:
    import polars as pl

    from planewise.measure.trials.load_one_process import Generator
    from planewise.testbed.chains.built import BuiltChain
    from planewise.testbed.hosts.gauges import Gauge
    from planewise.testbed.hosts.host import Host
    from planewise.testbed.loads.background import BackgroundLoad
    from planewise.testbed.model import (
        CapturePoint,
        CounterPoint,
        Guest,
        HostRole,
        IpVersion,
        TrialPath,
    )
    from planewise.testbed.vfs.allocator import Allocator

OnSample = Callable[[KpiSample], None]
"""Receives a sample about once a second while a trial runs."""

Counters = Callable[[], Mapping[str, tuple[int, int]]]
"""Returns packets and bytes sent so far: by function of a chain, or under an empty name."""

FIRST_ANSWER_S = 3.5
"""Wait for the very first answer on one machine."""


@dataclass(frozen=True)
class TrialResult:
    """Measurements of a trial."""

    record: TrialRecord
    packets: pl.DataFrame | None = None
    recording: bytes | None = None
    """What an allocator's daemon recorded."""


@dataclass(frozen=True)
class Place:
    """Position of a trial in its run."""

    trial: str
    cell: dict[str, Level]
    block: int
    order: int

    @property
    def fields(self) -> dict[str, Any]:
        """Its part of a `TrialRecord`."""
        return {**vars(self), "replicate": self.block}


@dataclass(frozen=True)
class Request:
    """A design's request to a kind of trial in one cell and block."""

    design: Design
    cell: Cell
    block: int
    traffic: Sequence[Mapping[str, Level]]
    """Levels of the factors of the kind's own (`Design.kinds`), one set a trial."""
    ladder: Sequence[float]
    """The cell's offered loads [packet/s]; empty without a sweep."""


@dataclass(frozen=True)
class Trial(ABC):
    """One measurement to be made on a station. Each class in `trials/` is a kind of trial."""

    name: str
    """Unique in its run."""
    kind: ClassVar[TrialKind] = "other"
    rank: ClassVar[int]
    """Position of its kind in a visit; unique."""
    key: ClassVar[str]
    """The part of a design that asks for its kind."""
    own_part: ClassVar[type[DesignModel] | None] = None
    """Model of that part, where `Design` has no field for it: it is in `Design.others`."""
    samples: ClassVar[bool] = False
    """Whether it reports to `on_sample` itself, so that no meter needs to read the guests."""

    @classmethod
    @abstractmethod
    def requested(cls, request: Request) -> list[Trial]:
        """The trials of a cell in a block, for a design that asks for this kind."""

    @classmethod
    def warmup(cls, design: Design, trials: Sequence[Trial]) -> Trial | None:
        """A trial to be discarded before `trials`, all of a visit's trials of this kind."""
        return None

    @classmethod
    def programs(cls, design: Design) -> Sequence[str]:
        """Other programs that its trials start in guests."""
        return ()

    @classmethod
    def problems(cls, design: Design) -> Iterable[Problem]:
        """What is impossible in a design, beyond what holds for all kinds."""
        return ()

    @classmethod
    @abstractmethod
    def offered(cls, design: Design) -> Iterator[tuple[str, float | str]]:
        """What its trials offer: the design's key, with the packets a second, or why there is no
        bound."""

    @property
    @abstractmethod
    def expected_s(self) -> float:
        """How long its traffic lasts [s], without starting and stopping the probes."""

    def traffic(self) -> dict[str, Level]:
        """Its own factor levels, beside those of its cell."""
        return {}

    @abstractmethod
    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        """Measures; called by `Station.measure`. PlanewiseError when it fails."""


@dataclass(frozen=True)
class End:
    """One end of a trial: a main guest, or one end of a chain."""

    host: Host
    netns: str
    """Namespace, container or virtual machine; programs are started in it through `host`."""
    name: str
    """Name in results: `sender-main`."""
    interface: str
    address: str
    """IPv4, unless a setting of the cell is IPv6."""
    machine: bool = False
    """Whether it is a virtual machine: only programs inside see its interface."""

    def at(self, port: int) -> str:
        """A port of it, as programs take it."""
        return f"[{self.address}]:{port}" if ":" in self.address else f"{self.address}:{port}"

    @property
    def netns_of_probe(self) -> str | None:
        """Where pw-probe is started: in the virtual machine, else on the host."""
        return self.netns if self.machine else None

    @property
    def port(self) -> str:
        """The interface as pw-probe there names it: `eth0`, or `eth0@netns`."""
        inside = self.machine or not self.netns
        return self.interface if inside else f"{self.interface}@{self.netns}"


@dataclass
class Station:
    """A cell that is set up, with its background load running."""

    hosts: Mapping[HostRole, Host]
    ends: Mapping[HostRole, End]
    separate: bool = False
    """Whether the ends are on two machines, each with CPUs of its own."""
    ip_version: IpVersion = 4
    """Of load trials."""
    path: TrialPath | None = None
    """Path of the frames of load trials; None: there are none."""
    generator: Generator | None = None
    capture_points: Sequence[CapturePoint] = ()
    counter_points: Sequence[CounterPoint] = ()
    not_measurable: Mapping[Metric, str] = field(default_factory=dict)
    """Metrics that do not exist here, with the reason."""
    refused: Literal["lost", "again"] | None = None
    """What happens to frames that a virtual machine's NIC has no room for; None: by its kind."""
    patience_s: float = FIRST_ANSWER_S
    """How long the very first answer may take."""
    sent: Counters | None = None
    """Reads what has been sent; None where nothing outside the guests counts that."""
    gauges: Sequence[Gauge] = ()
    """Counters of all guests, for a live view."""
    gauge_hosts: Mapping[str, Host] | None = None
    """Hosts of the gauges by role; None: this machine."""
    background: BackgroundLoad | None = None
    check: Callable[[], None] = lambda: None
    """Raises PlanewiseError when a guest has ended."""
    entrances: Sequence[tuple[Host, str, Sequence[str]]] = ()
    """Host, namespace and interfaces where frames enter the hosts."""
    receivers: Sequence[int] = ()
    """CPUs that receive in load trials; empty: receive work is not moved."""
    clients: Sequence[Guest] = ()
    """Background guests of the sender, which send requests in trials of the allocator."""
    make_allocator: Callable[[int], Allocator] | None = None
    """Makes the allocator of so many VFs to the responder's guests."""
    chain: BuiltChain | None = None
    slack_s: float = 60.0
    """How much later than planned a chain's traffic may begin."""
    notes: tuple[str, ...] = ()
    """Warnings for the next trial's record."""
    emulated: str = ""
    """Of a system under test: as `RunInfo.emulated`."""
    differences: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """As `RunInfo.differences`."""
    _opened: ExitStack = field(default_factory=ExitStack, init=False)
    _allocator: Allocator | None = field(default=None, init=False)
    _is_spread: bool = field(default=False, init=False)

    def measure(self, trial: Trial, place: Place, on_sample: OnSample) -> TrialResult:
        """Runs a trial beside the background load, whose work becomes part of its record.

        In load trials the hosts' receive work has its own CPUs; else each frame is received by the
        CPU where it arrives.

        Raises:
            PlanewiseError: the trial failed, or a guest or a part of the load ended.
        """
        self._spread(trial.kind == "load")
        load = self.background
        before = None if load is None else load.work()
        with (
            lost_guest_first(self.check),
            lost_guest_first(load.check if load is not None else self.check),
        ):
            result = trial.measure_on(self, place, on_sample)
            if load is not None:
                load.check()
        update: dict[str, object] = {"warnings": (*self.notes, *result.record.warnings)}
        self.notes = ()
        if load is not None and before is not None:
            update["background"] = load.achieved(before)
        record = result.record.model_copy(update=update)
        return TrialResult(record, result.packets, result.recording)

    def max_pps(self, size_bytes: int) -> float:
        """The generator's own maximum [packet/s]: nothing above it is worth offering."""
        assert self.generator is not None
        return self.generator.max_pps(size_bytes, self.ip_version)

    def allocator(self, vfs: int) -> Allocator:
        """The allocator, which starts at the first use."""
        assert self.make_allocator is not None
        if self._allocator is None:
            self._allocator = self._opened.enter_context(self.make_allocator(vfs))
        return self._allocator

    def _spread(self, spread: bool) -> None:
        if not self.receivers or spread == self._is_spread:
            return
        for host, netns, interfaces in self.entrances:
            steer(host, netns, interfaces, self.receivers if spread else ())
        self._is_spread = spread

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._spread(False)
        self._opened.close()


@contextmanager
def lost_guest_first(check: Callable[[], None]) -> Iterator[None]:
    """Raises what `check` raises, where that is why the block failed, instead of its own error."""
    try:
        yield
    except PlanewiseError:
        check()
        raise
