"""A design: which cells, how often, with what traffic. Runs nothing.

The file's reference is docs/reference/designs.md. What pydantic can see in one key is checked
here; what follows from several keys together is checked by `planewise.measure.designs.sense`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic_core import CoreSchema

from planewise.measure.designs.pattern import FORM, STEADY, checked
from planewise.store.models import Level
from planewise.testbed.model import Forwarder, GuestKind, LoadType, TrafficPath

MAX_COMBINATIONS = 200_000
"""Combinations of levels that a design may span; more is refused before anything is listed."""
MAX_TRIALS = 1_000_000
"""A design that expands to more is a mistake."""

SAME = "same"
"""Level of `background_plane`: whatever plane the main guests have."""

AS_IS: Literal["as-is"] = "as-is"
RxUsecs = Annotated[int, Field(ge=0, le=1_000_000)] | Literal["as-is"]
LoadLocation = Literal["sender", "responder"]
Protocol = Literal["icmp", "stamp", "redis"]
Policy = Literal["none", "static", "fair", "activity", "benefit", "switch"]
Randomise = Literal["cells", "testbeds"]

Pattern = Annotated[
    str, AfterValidator(checked), WithJsonSchema({"type": "string", "pattern": FORM})
]
"""How probes follow one another."""
Rate = Annotated[float, Field(gt=0, le=1e9)]
FrameBytes = Annotated[int, Field(ge=64, le=9000)]
Imix = Literal["imix"]
"""A mix of frame sizes: 7 of 64 bytes, 4 of 594, 1 of 1518."""
VnfCount = Annotated[int, Field(ge=0, le=8)]
LARGEST_CHAIN_BYTES = 1518
"""The largest frame, with FCS, that a chain carries."""
MessageBytes = Annotated[int, Field(ge=1, le=1 << 20)]
CpuNumber = Annotated[int, Field(ge=0, le=4095)]
GuestCount = Annotated[int, Field(ge=0, le=1024)]


class _OneOrMany:
    """In the JSON Schema: a list of levels, or a single level without brackets."""

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        many = handler(schema)
        return {"anyOf": [many.get("items", {}), many]}


def _listed(value: object) -> object:
    """A single level stands for a list of one."""
    return (value,) if isinstance(value, str | int | float) else _tuple_of(value)


def _tuple_of(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


T = TypeVar("T")
PartT = TypeVar("PartT", bound=BaseModel)
Levels = Annotated[tuple[T, ...], Field(min_length=1), BeforeValidator(_listed), _OneOrMany()]
LoadLadder = Literal["auto"] | Levels[Rate]
"""Offered loads [packet/s], or those around what a pilot forwards."""


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a design."""

    place: tuple[str | int, ...]
    """Where in the file."""
    what: str
    remedy: str

    @property
    def sentence(self) -> str:
        """What is wrong, and with which key."""
        name = ".".join(str(part) for part in self.place)
        return f"{name}: {self.what}" if name else self.what


class DesignModel(BaseModel):
    """A part of a design: unknown keys are errors, values are final and never converted."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, use_attribute_docstrings=True
    )


class Factors(DesignModel):
    """Levels of each factor; a cell takes one of each."""

    plane: Levels[str]
    """Plane of the main guests."""
    guest: Levels[GuestKind] = ("namespace",)
    """What a guest is."""
    background_plane: Levels[str] = (SAME,)
    """Plane of the background guests; `same`: the main guests' own."""
    background_guests: Levels[GuestCount] = (0,)
    """Background guests on each host."""
    load_type: Levels[LoadType] = ("none",)
    """What the background guests do."""
    load_location: Levels[LoadLocation] = ("responder",)
    """The host that is loaded; for `network` the host that receives the bursts."""
    path: Levels[TrafficPath] = ("north-south",)
    """`north-south`: between guests of two hosts; `east-west`: between guests of one host."""
    frequency_pps: Levels[Rate] = (1000.0,)
    """Rate of the probe packets of RTT trials, open loop; in bursts the rate within them."""
    pattern: Levels[Pattern] = (STEADY,)
    """How they follow one another: `steady`, or `bursts of 100 every 10 ms`."""
    size_bytes: Levels[FrameBytes | Imix] = (64,)
    """Ethernet frame with its 4-byte FCS; `imix`, of chains alone: 7 of 64, 4 of 594, 1 of 1518."""
    protocol: Levels[Protocol] = ("icmp",)
    """Of RTT trials, and of the allocator's: ICMP echo; STAMP (RFC 8762) against `pw-probe
    reflect`; or requests to a Redis server in the responder's guest, over one TCP connection: an
    application's response time."""
    rx_usecs: Levels[RxUsecs] = (AS_IS,)
    """Interrupt coalescing of the hosts' NICs in RTT trials: a NIC waits so many µs for more frames
    before it interrupts a CPU (`ethtool -C NIC rx-usecs N`); `as-is`: as it was found."""
    setting: Levels[str] = ("",)
    """Settings of the main guests' interfaces and of their hosts (`planewise.testbed.settings`), as
    `offload.tso=off` or `mtu=9000 + qdisc=pfifo`; `default`: as the testbed is built."""
    vnfs: Levels[VnfCount] = (0,)
    """Network functions of a chain; 0: no chain, but the main guests of two hosts."""
    message_bytes: Levels[MessageBytes] = (131_072,)
    """Of TCP trials: bytes that each call of the sender writes."""
    policy: Levels[Policy] = ("benefit",)
    """Of the allocator's trials, who gets the VFs: nobody (`none`), guests drawn at random
    (`static`), or those that planewised chooses by this policy. `switch`: the first guest is given
    one after a third of the time, and loses it after two."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        loads = set(self.load_type) - {"none"}
        if loads and max(self.background_guests) == 0:
            raise ValueError(
                f"load_type {' and '.join(sorted(loads))} needs background guests: "
                "give background_guests a level above 0"
            )
        for name, levels in self:
            if len(set(levels)) != len(levels):
                raise ValueError(f"{name} names a level twice")
        if AS_IS in self.rx_usecs and len(self.rx_usecs) > 1:
            raise ValueError(f"rx_usecs {AS_IS} cannot be combined with other levels")
        return self


TRAFFIC_FACTORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "rtt": ("frequency_pps", "size_bytes", "protocol", "pattern", "rx_usecs"),
        "sweep": ("size_bytes",),
        "chain": ("size_bytes",),
        "tcp": ("message_bytes",),
        "alloc": ("policy", "size_bytes", "protocol"),
    }
)
"""The parts of a design that measure, each with the factors of its trials alone: going from level
to level of these changes no testbed."""
MEASURES = tuple(TRAFFIC_FACTORS)
"""The parts of a design that measure something."""


class _Where(DesignModel):
    """Some factors, with some of their levels each."""

    def named(self) -> dict[str, tuple[Level, ...]]:
        """The factors that it names, with their levels."""
        return {name: levels for name, levels in self if levels is not None}


if TYPE_CHECKING:
    Where = _Where
else:
    Where = create_model(
        "Where",
        __base__=_Where,
        __doc__=_Where.__doc__,
        **{
            name: (hint | None, None)
            for name, hint in get_type_hints(Factors, include_extras=True).items()
            if name in Factors.model_fields
        },
    )


class Constraint(DesignModel):
    """Leaves combinations out. With `when`, it says something of the combinations that match."""

    when: Where | None = None
    require: Where | None = None
    """A matching combination is kept only when each factor named here has one of these levels."""
    exclude: Where | None = None
    """A matching combination is left out when each factor named here has one of these levels."""

    @model_validator(mode="after")
    def _names_a_factor(self) -> Self:
        if (self.require is None) == (self.exclude is None):
            raise ValueError("a constraint has either `require` or `exclude`")
        for name, part in self:
            if part is not None and not part.named():
                raise ValueError(f"`{name}` names no factor")
        return self

    def allows(self, levels: Mapping[str, Level]) -> bool:
        """Whether a combination stays. A factor that it does not have is never at odds with it."""
        if self.when is not None and not _matches(self.when, levels):
            return True
        if self.require is not None:
            return all(
                name not in levels or has_level(levels, name, choices)
                for name, choices in self.require.named().items()
            )
        return self.exclude is None or not _matches(self.exclude, levels)


def _matches(where: Where, levels: Mapping[str, Level]) -> bool:
    return all(has_level(levels, name, choices) for name, choices in where.named().items())


def has_level(levels: Mapping[str, Level], name: str, choices: tuple[Level, ...]) -> bool:
    """Whether a combination has one of these levels; `same` counts as the plane it stands for."""
    level = levels.get(name)
    if level in choices:
        return True
    return name == "background_plane" and level == SAME and levels.get("plane") in choices


class RttPart(DesignModel):
    """RTT trials: one a cell and block for each frequency, pattern, size and
    protocol."""

    packets: Annotated[int, Field(ge=1, le=100_000_000)] = 1000
    """Packets of a trial."""
    warmup_packets: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """Packets sent and thrown away before the first RTT trial of a cell in a block."""
    steady_s: Annotated[float, Field(ge=0, le=600)] = 0.0
    """After a trial its traffic goes on for so long, for CPU time alone: clock ticks need a second
    at least, and a trial at a high rate lasts milliseconds."""
    guest_stamps: bool = False
    """Whether packets are stamped at the guests' own interfaces, too: what their network stacks
    take is then known apart from what the hosts take. Each stamp costs about 0.25 µs."""


class FunctionPart(DesignModel):
    """What a function of a chain is, and the planes that it is measured on."""

    forwarder: Forwarder
    """What sends frames on: dpdk-testpmd, a kernel that routes, or an XDP program."""
    guest: GuestKind = "process"
    """What the function is."""
    plane: Levels[str] | None = None
    """Its planes; None: those of `factors.plane` that can have it."""


class SweepPart(DesignModel):
    """Load trials at a ladder of offered loads: one a load, cell and block."""

    offered_pps: LoadLadder = "auto"
    """`auto`: a ladder of `loads` steps around the rate that a short overload trial forwards."""
    loads: Annotated[int, Field(ge=2, le=200)] = 8
    """Steps of an automatic ladder."""
    until_verdict: bool = False
    """Whether blocks go on, within the run's time budget, at the loads that the verdict on a curve
    still needs. An automatic ladder then has two loads, both beyond PDR."""
    duration_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    """Duration of a load trial."""
    max_pps: Rate = 10_000_000.0
    """No more than this is ever offered."""
    load_types: Levels[LoadType] | None = None
    """Background loads under which the ladder is run; by default all of the design."""
    warmup_s: Annotated[float, Field(ge=0, le=600)] = 0.0
    """A load trial of this length is thrown away before the first of a cell in a block."""

    @property
    def placeholders(self) -> tuple[float, ...]:
        """The ladder, rising; 1, 2, … for an automatic one, which only pilots determine."""
        if self.offered_pps == "auto":
            return tuple(map(float, range(1, (2 if self.until_verdict else self.loads) + 1)))
        return tuple(sorted(self.offered_pps))


class CpusPart(DesignModel):
    """Which CPUs a chain's tasks run on; the tasks of a kind take turns on theirs."""

    switch: Levels[CpuNumber] | None = None
    """The switch's polling thread. By default the first CPU, alone."""
    generator: Levels[CpuNumber] | None = None
    """The generator, where it is a task of its own. By default with the functions."""
    vnf: Levels[CpuNumber] | None = None
    """The functions. By default all CPUs but the switch's."""

    def named(self) -> dict[str, tuple[int, ...]]:
        """The CPUs that are named, by kind of task."""
        return {name: cpus for name, cpus in self if cpus is not None}


class ChainPart(DesignModel):
    """Throughput trials of chains: one a frame size, cell and block, at overload."""

    duration_s: Annotated[float, Field(ge=0.5, le=3600)] = 3.0
    """Duration of a trial."""
    warmup_s: Annotated[float, Field(ge=0, le=600)] = 1.0
    """Traffic runs for so long before each trial is measured."""
    offered_pps: Rate | None = None
    """What the generator offers a chain, all in all; None: as much as it can."""
    uplink: Literal["af_packet", "af_xdp"] | None = None
    """How a DPDK switch is fed from outside: its driver of a veth pair on this machine. None: the
    generator is a device on the switch, which nothing paces."""
    cpus: CpusPart = CpusPart()
    """Pinning."""


class TcpPart(DesignModel):
    """TCP trials: one a message size, cell and block, by iperf3."""

    duration_s: Annotated[float, Field(ge=1, le=3600)] = 3.0
    """Duration of a trial."""
    warmup_s: Annotated[int, Field(ge=0, le=60)] = 1
    """Seconds before the trial that do not count."""
    streams: Annotated[int, Field(ge=1, le=64)] = 1
    """Streams at a time."""


class AllocPart(DesignModel):
    """Trials of the allocator: one a policy, cell and block. planewised runs on the responder and
    gives few VFs to the background guests there, which answer requests from the sender."""

    vfs: Annotated[int, Field(ge=1, le=256)] = 7
    """VFs that there are for them."""
    group_pps: Levels[Rate] = (10.0, 20.0, 40.0, 50.0)
    """Requests a second that a guest of each group is sent; guests are dealt out in turn."""
    duration_s: Annotated[float, Field(ge=5, le=86_400)] = 30.0
    """How long latency is measured."""
    warmup_s: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """The load runs, and VFs are given, for so long before that."""
    change_s: Annotated[float, Field(ge=0, le=3600)] = 0.0
    """Afterwards the load goes on for so long with the groups' rates the other way round, to see
    how soon VFs follow; 0: it does not."""
    interval_s: Annotated[float, Field(gt=0, le=3600)] = 1.0
    """Time between two decisions, and between two readings of the counters."""
    max_moves: Annotated[int, Field(ge=1, le=1024)] = 2
    """VFs given in that time at most."""
    min_residency_s: Annotated[float, Field(ge=0, le=86_400)] = 5.0
    """How long a guest keeps what it has before traffic may change it."""
    fair_turn_s: Annotated[float, Field(gt=0, le=86_400)] = 10.0
    """How long a turn lasts under `fair`."""
    download_mib: Annotated[int, Field(ge=1, le=1_048_576)] | None = None
    """From the end of the warm-up on, the last guest also sends so much by TCP to its client, as a
    file server does; None: nobody does."""


class PerGuestPart(DesignModel):
    """What each background guest does: their number is then the load."""

    cpu_share: Annotated[float, Field(gt=0, le=64)] | None = None
    """CPU load: CPUs that a guest burns, as 0.25, or 2 for two whole ones."""
    busy_threads: Annotated[int, Field(ge=1, le=64)] | None = None
    """CPU load in place of `cpu_share`: threads of a guest that take all that they can get. Cache
    and memory load: stress-ng's workers of a guest; 1 by default."""
    memory_mib: Annotated[int, Field(ge=4, le=65_536)] = 32
    """Memory load: what each worker writes and reads again and again."""
    rate_pps: Literal["max"] | Rate = "max"
    """Network load: datagrams that a guest sends a second; `max`: as many as it can."""
    burst_packets: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Datagrams that a guest sends back to back."""
    payload_bytes: Annotated[int, Field(ge=0, le=8000)] = 1024
    """UDP payload of a datagram."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.cpu_share is not None and self.busy_threads is not None:
            raise ValueError("give a guest either a cpu_share or busy_threads")
        return self


class BackgroundPart(DesignModel):
    """What the background guests of a loaded host do: each, or all together."""

    per_guest: PerGuestPart | None = None
    """What each does; else the rest says what all do together, however many there are."""
    cpu_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    """CPU time burnt, as a share of all CPUs of the host."""
    rate_pps: Rate = 20_000.0
    """Datagrams sent a second."""
    burst_packets: Annotated[int, Field(ge=1, le=10_000)] = 64
    """Datagrams that a guest sends back to back."""
    payload_bytes: Annotated[int, Field(ge=0, le=8000)] = 1024
    """UDP payload of a datagram."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        totals = sorted(
            name
            for name, field in type(self).model_fields.items()
            if name != "per_guest" and getattr(self, name) != field.default
        )
        if self.per_guest is not None and totals:
            raise ValueError(
                f"per_guest says what each guest does, and {' and '.join(totals)} what all do "
                "together: give one of them"
            )
        return self


Cpus = Annotated[tuple[CpuNumber, ...], BeforeValidator(_listed), _OneOrMany()]


class VmPart(DesignModel):
    """How virtual machines are built, main and background ones alike."""

    vcpus: Annotated[int, Field(ge=1, le=64)] = 1
    """Virtual CPUs of each."""
    memory_mib: Annotated[int, Field(ge=64, le=1 << 20)] | None = None
    """Memory of each; None: what its kernel needs."""
    queues: Annotated[int, Field(ge=1, le=64)] = 1
    """Queue pairs of a virtio NIC; at most one a virtual CPU."""
    vhost: bool = True
    """Serve virtio in the kernel (vhost-net) where there is that, else in QEMU."""
    offloads: bool = False
    """Let a virtio NIC hand over unfinished checksums and large segments."""
    main_cpus: Cpus = ()
    """CPUs of the host that main guests may run on; empty: all."""
    background_cpus: Cpus = ()
    """CPUs of the host that background guests may run on; empty: all."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if self.queues > self.vcpus:
            raise ValueError(
                f"queues is {self.queues} and vcpus is {self.vcpus}: a queue needs a virtual CPU"
            )
        return self


class Design(DesignModel):
    """A whole experiment, as its YAML file says it."""

    title: str = ""
    """Shown in the report."""
    factors: Factors
    constraints: Annotated[tuple[Constraint, ...], BeforeValidator(_tuple_of)] = ()
    """Combinations that are left out."""
    functions: Annotated[tuple[FunctionPart, ...], BeforeValidator(_tuple_of)] = ()
    """Functions of chains that are compared; in place of `factors.guest`."""
    rtt: RttPart | None = None
    sweep: SweepPart | None = None
    chain: ChainPart | None = None
    tcp: TcpPart | None = None
    alloc: AllocPart | None = None
    others: dict[str, dict[str, Any]] = {}
    """Parts of the kinds of trials that bring their own (`planewise.measure.trials`), by name; in a
    file they stand beside the others. `design_file` checks them."""
    background: BackgroundPart = BackgroundPart()
    vm: VmPart = VmPart()
    blocks: Annotated[int, Field(ge=1, le=100_000)] = 3
    """Replicates of every cell; each block holds every cell once, in a random order of its own."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 1
    """The order of the cells follows from it."""
    randomise: Randomise = "cells"
    """What comes in random order within a block: single cells, or testbeds with their cells
    together, where guests are slow to start."""
    budget_s: Annotated[float, Field(gt=0, le=10_000_000)] | None = None
    """Time for measuring; only whole blocks that fit in are begun. None: no limit."""

    @model_validator(mode="before")
    @classmethod
    def _measures_times_by_default(cls, raw: object) -> object:
        """A design that names no part measures round-trip times."""
        if isinstance(raw, dict) and not any(part in raw for part in (*MEASURES, "others")):
            return {**raw, "rtt": {}}
        return raw

    @model_validator(mode="before")
    @classmethod
    def _levels_of_functions(cls, raw: object) -> object:
        """`functions` gives the levels of `factors.guest`, and of `factors.plane` where all of
        them name theirs."""
        if not isinstance(raw, dict) or not isinstance(raw.get("factors"), dict):
            return raw
        functions = raw.get("functions")
        if not isinstance(functions, list | tuple) or not functions:
            return raw
        named = [function for function in functions if isinstance(function, dict)]
        guests = dict.fromkeys(function.get("guest", "process") for function in named)
        planes = [_listed(function["plane"]) for function in named if "plane" in function]
        levels: dict[str, object] = {"guest": list(guests)}
        named_all = len(planes) == len(functions)
        if named_all and all(isinstance(plane, tuple) for plane in planes):
            names = (name for listed in planes if isinstance(listed, tuple) for name in listed)
            levels["plane"] = list(dict.fromkeys(names))
        return {**raw, "factors": {**levels, **raw["factors"]}}

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        if not self.kinds():
            *most, last = (f"`{part}`" for part in MEASURES)
            raise ValueError(f"measures nothing: give it {', '.join(most)} or {last}")
        return self

    def kinds(self) -> Mapping[str, tuple[str, ...]]:
        """The kinds of trials that it asks for, each with the factors of its trials alone."""
        used = {part: of for part, of in TRAFFIC_FACTORS.items() if getattr(self, part) is not None}
        return {**used, **dict.fromkeys(self.others, ())}

    def part(self, key: str, model: type[PartT]) -> PartT:
        """The part of this name, which the design has."""
        part = self.others.get(key, getattr(self, key, None))
        return model.model_validate(part)

    def frame_sizes(self) -> tuple[int, ...]:
        """Every frame size [bytes, with FCS] that RTT and load trials send."""
        return tuple(size for size in self.factors.size_bytes if size != "imix")

    def combinations(self) -> int:
        """How many combinations of levels there are, impossible ones among them. Lists nothing."""
        return math.prod(len(levels) for _, levels in self.factors)

    def trials_upper_bound(self) -> int:
        """How many trials the design has at most, without listing them."""
        factors = self.factors
        trials = 0
        for part, of_trial in self.kinds().items():
            loads = len(self.sweep.placeholders) if part == "sweep" and self.sweep else 1
            trials += math.prod(len(getattr(factors, name)) for name in of_trial) * loads
        of_trials = {name for names in TRAFFIC_FACTORS.values() for name in names}
        cells = math.prod(len(levels) for name, levels in factors if name not in of_trials)
        return cells * trials * self.blocks
