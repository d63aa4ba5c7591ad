"""What a run directory holds, as types; for readers of other languages docs/reference/formats.md.

Units are in the names: `_pps` packets a second, `_ns` nanoseconds, `_s` seconds, `_bytes` frame
size with its 4-byte FCS (RFC 2544, section 9), shares are 0 to 1.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, model_validator

FORMAT = 1

Level = str | int | float
"""A factor's level in a cell."""

TrialKind = Literal["rtt", "load", "chain", "tcp", "alloc", "other"]
"""`other`: of a kind whose results are `figures`."""

Limit = Literal[
    "sut",
    "PMD core",
    "VNF core",
    "kernel",
    "NIC",
    "generator",
    "sink",
    "clock",
    "uplink",
    "shared core",
    "unknown",
]
"""What limited a trial: the system under test, the part of a chain that did, or of `OUTSIDE`."""

OUTSIDE: frozenset[Limit] = frozenset(
    ("generator", "sink", "clock", "uplink", "shared core", "unknown")
)
"""Limits outside the system under test: it carries at least what was measured. `uplink` brings
frames into a switch; on a `shared core` tasks that poll waited for each other."""

Share = Annotated[float, Field(ge=0, le=1)]

Metric = Literal[
    "rtt_user",
    "rtt_kernel",
    "overhead",
    "response",
    "sender_stack",
    "responder_stack",
    "one_way",
]
"""The times of a trial.

`rtt_user`   at the guest, between user-space stamps
`rtt_kernel` at the guest, between kernel stamps
`overhead`   RTT at the guest minus RTT at the sender's NIC
`response`   NIC to NIC inside the responder
`sender_stack` RTT at the guest minus RTT at its own interface: its network stack, and the probe
`responder_stack` from the interface of the responder's guest into its network stack and back
`one_way`    latency of a load trial's frames, generator to sink (one clock)
"""


class Record(BaseModel):
    """A line or file of the run directory; values are final.

    Fields that a newer version wrote are kept as they are and used by nobody (`model_extra`).
    """

    model_config = ConfigDict(extra="allow", frozen=True)


class BurstLoad(Record):
    """Packets sent in bursts, with pauses between them."""

    packets: NonNegativeInt
    """Of a burst."""
    every_s: NonNegativeFloat
    """From the first packet of a burst to that of the next."""
    intended_pps: NonNegativeFloat
    """Rate within a burst."""
    achieved_pps: NonNegativeFloat
    """The achieved rate within a burst, median over whole bursts; 0 if none was sent whole."""


class OfferedLoad(Record):
    """Offered load of a trial."""

    intended_pps: NonNegativeFloat
    """Of bursts the mean, pauses included, as `achieved_pps`."""
    achieved_pps: NonNegativeFloat
    """What the generator really sent per second."""
    size_bytes: NonNegativeInt
    """Frame size, with the 4-byte FCS."""
    burst: BurstLoad | None = None
    """Of an RTT trial in bursts."""

    @property
    def paced_pps(self) -> float:
        """The achieved rate of packets that follow one another: of bursts that within them."""
        return self.achieved_pps if self.burst is None else self.burst.achieved_pps


class Counts(Record):
    """Packets of a trial. Invariant: sent = received + lost."""

    sent: NonNegativeInt
    received: NonNegativeInt
    """Distinct packets that came back (RTT) or arrived (load), late ones included."""
    lost: NonNegativeInt
    duplicate: NonNegativeInt = 0
    reordered: NonNegativeInt = 0
    late: NonNegativeInt = 0


class LossPart(Record):
    """Lost packets that one counter explains."""

    where: str
    """Interface and host, as `responder:wire0`."""
    counter: str
    count: NonNegativeInt


class Latency(Record):
    """One metric's distribution over the packets of a trial, in nanoseconds."""

    count: NonNegativeInt
    min_ns: int
    mean_ns: float
    p50_ns: float
    p90_ns: float
    p99_ns: float
    p999_ns: float
    max_ns: int
    hdr: str | None = None
    """HdrHistogram (V2, deflate, base64), 3 significant digits; none for negative values."""


class Capture(Record):
    """What one capture point saw in a trial."""

    point: str
    host: Literal["sender", "responder"]
    packets: NonNegativeInt
    dropped: NonNegativeInt
    """Packets the capture itself missed (kernel ring overrun)."""


class HostState(Record):
    """A host around a trial: what changes from trial to trial and shifts results."""

    governor: str = "none"
    """Frequency governor; `none` without a frequency driver, all of them if they differ."""
    cpu_mhz: NonNegativeFloat | None = None
    """Mean clock of all CPUs, right after the trial."""
    temperature_c: float | None = None
    """The hottest thermal zone, right after the trial."""
    throttled: NonNegativeInt | None = None
    """Number of thermal throttlings during the trial."""
    steal: Share | None = None
    """Share of all CPUs' time that the hypervisor gave to others."""
    foreign_cpu: Share | None = None
    """Share of all CPUs' time used by processes other than Planewise's."""
    offloads: dict[str, str] = {}
    """Enabled offloads of each NIC of the host, by name."""


class VnfTotal(Record):
    """What one network function of a chain did in a trial."""

    name: str
    """`vnf1`, `vnf2`, … in the order of the chain."""
    tx_packets: NonNegativeInt
    tx_pps: NonNegativeFloat
    tx_bps: NonNegativeFloat
    """Bits of its frames without FCS, as publication N counts them."""
    dropped: NonNegativeInt = 0
    """Packets for it that found its ring or queue full."""
    busy: Share | None = None
    """Share of its core's time spent on packets, not on empty polls, if it reports that."""


class CoreUse(Record):
    """What one CPU did in a trial of a chain."""

    cpu: NonNegativeInt
    tasks: tuple[str, ...] = ()
    """What of the chain was pinned there: `switch`, `generator`, `vnf1`, …"""
    used: Share
    """Share of its time that was not idle; a polling thread never is."""
    ours: Share | None = None
    """Share of its time that these tasks got, if they have threads of their own."""
    working: Share | None = None
    """Share of its time that they spent on packets, not on empty polls, if they report that."""


class FrameAccount(Record):
    """Where the frames of a chain's trial went, warm-up included."""

    sent: NonNegativeInt
    received: NonNegativeInt
    lost: dict[str, int] = {}
    """By place: `to vnf1`, `in vnf1`, …"""
    foreign: NonNegativeInt = 0
    """Frames at the end that were copies or not the generator's; not in `received`."""

    @model_validator(mode="after")
    def _adds_up(self) -> Self:
        if self.sent != self.received + sum(self.lost.values()):
            raise ValueError("frames sent are not those received and those lost")
        return self


class ChainResult(Record):
    """Throughput of a chain in one trial."""

    offered_pps: NonNegativeFloat
    """What the generator sent."""
    delivered_pps: NonNegativeFloat
    """What returned to the generator."""
    tx_pps: NonNegativeFloat
    """What all functions sent, summed: the publication's measure."""
    tx_bps: NonNegativeFloat
    """The same in bits of frames without FCS."""
    frame_bytes: NonNegativeFloat
    """Mean size of the frames, with FCS."""
    vnfs: tuple[VnfTotal, ...]
    cores: tuple[CoreUse, ...] = ()
    limit: Limit
    why: str
    """The evidence for `limit`, one sentence."""
    frames: FrameAccount | None = None


class TcpResult(Record):
    """A TCP stream in one trial, as iperf3 reports it."""

    goodput_bps: NonNegativeFloat
    """Payload that the receiver got."""
    message_bytes: NonNegativeInt
    """Bytes that each call of the sender writes."""
    retransmits: NonNegativeInt
    cores: tuple[CoreUse, ...] = ()


class ManagedGuest(Record):
    """A guest of an allocator's trial, from the end of the warm-up on."""

    request_pps: NonNegativeFloat
    """Intended requests a second: its group."""
    sent_pps: NonNegativeFloat
    """Requests a second that were sent."""
    counts: Counts
    rtt: Latency | None = None
    """None: no answer came."""
    held_s: NonNegativeFloat
    """How long it held a VF."""
    given: NonNegativeInt = 0
    """How often it was given one."""


class GuestMove(Record):
    """A VF given to a guest of an allocator's trial, or taken from it, by the daemon's clock."""

    at_s: float
    """When it began, from the end of the warm-up on; negative: during it."""
    direction: Literal["give", "take"]
    guest: str
    vf: str
    duration_s: NonNegativeFloat | None = None
    """None: the trial ended first."""
    ending: str = ""
    """`completed`, `undone`, `stuck`, `quarantined`; empty: the trial ended first."""


class DaemonUse(Record):
    """What the allocator's daemon used, from the end of the warm-up on."""

    cpu: NonNegativeFloat
    """Share of one CPU."""
    memory_bytes: NonNegativeInt
    """Resident, at the end."""
    decision_s: NonNegativeFloat | None = None
    """Mean time of a decision; None: there was none."""
    sample_s: NonNegativeFloat | None = None
    """Mean time of reading all counters."""


class Reaction(Record):
    """How the daemon reacted when the groups' rates were reversed."""

    error_s: NonNegativeFloat
    """Error of these times: the clocks of two hosts are compared."""
    first_s: float | None = None
    """From the change until the first guest got a VF; None: none did."""
    last_s: float | None = None
    """The same for the last guest."""


SwitchPart = Literal["before", "being given", "on the VF", "being taken", "after"]


class SwitchPhase(Record):
    """A part of a trial in which one guest is given a VF and loses it again."""

    name: SwitchPart
    begin_s: float
    """From the end of the warm-up on."""
    end_s: float
    counts: Counts
    """Of the guest that gets and loses the VF."""
    rtt: Latency | None = None
    beside: Latency | None = None
    """Round-trip times of all other guests."""
    beside_lost: NonNegativeInt = 0


class DownloadInterval(Record):
    """How much of a download arrived in an interval."""

    end_s: NonNegativeFloat
    """From the start of the download; the interval begins where the one before ends."""
    bps: NonNegativeFloat
    """Payload."""


class Download(Record):
    """A large download from one guest beside the requests to all."""

    guest: str
    bytes: NonNegativeInt
    seconds: NonNegativeFloat
    """From the first byte to the last, at the client."""
    intervals: tuple[DownloadInterval, ...]


class AllocResult(Record):
    """What the allocator did in one trial, and its effect on guests."""

    vfs: NonNegativeInt
    window_s: NonNegativeFloat
    """From the warm-up's end to the steady load's, by the daemon's clock."""
    guests: dict[str, ManagedGuest]
    groups: dict[str, Latency] = {}
    """Round-trip times of each group's guests, by its requests a second."""
    moves: tuple[GuestMove, ...] = ()
    daemon: DaemonUse
    change: Reaction | None = None
    """Only if the load changed."""
    zero_ns: int | None = None
    """The sender's stamp at the end of the warm-up."""
    clock_error_s: NonNegativeFloat | None = None
    """Error of `zero_ns`."""
    switch: tuple[SwitchPhase, ...] = ()
    """Of the policy `switch`."""
    download: Download | None = None
    """If a guest downloads."""
    recording: str | None = None
    """File of the daemon's observations and decisions."""


class BackgroundResult(Record):
    """What the background guests did during a trial."""

    unit: Literal["cpus", "pps"]
    """CPUs that guests used, or datagrams a second that they sent."""
    window_s: NonNegativeFloat
    """How long a guest's work was counted, on average."""
    wanted: NonNegativeFloat | None = None
    """Target of all guests together; None: as much as they can."""
    achieved: NonNegativeFloat
    resolution: NonNegativeFloat
    """Error of the guests' windows."""
    guests: dict[str, NonNegativeFloat]
    """By guest."""
    received_pps: NonNegativeFloat | None = None
    """What arrived at the receiving guests."""


class Figure(Record):
    """One number that a trial measured."""

    title: str
    """As `median round-trip time`."""
    unit: Literal["ns", "pps", "bps", "share"]
    lower_is_better: bool
    value: NonNegativeFloat
    resolution: NonNegativeFloat
    """Smallest difference that the instrument can tell."""


class TrialRecord(Record):
    """One finished trial."""

    trial: str
    """Unique in the run: `<cell>#r<replicate>` and for load trials `@<offered pps>`."""
    kind: TrialKind
    cell: dict[str, Level]
    """Factor levels by name (`plane`, `load_type`, …)."""
    block: NonNegativeInt
    replicate: NonNegativeInt
    order: NonNegativeInt
    """Place in the run's real order, from 0."""
    started: datetime
    """By the clock of planewise's machine."""
    duration_s: NonNegativeFloat
    status: Literal["done", "failed"] = "done"
    reason: str = ""
    """Why it failed, one sentence; empty when done."""
    load: OfferedLoad | None = None
    counts: Counts | None = None
    loss: tuple[LossPart, ...] = ()
    latency: dict[Metric, Latency] = {}
    not_measurable: dict[Metric, str] = {}
    """Metrics that do not exist for this plane, with the reason."""
    cpu: dict[str, dict[str, Share]] = {}
    """By host (`sender` and `responder`, or `shared` if they are one machine) and mpstat mode:
    share of all CPUs' time. `unaccounted` is time that the kernel assigns to no mode."""
    cpu_window_s: NonNegativeFloat | None = None
    """How long `cpu` was counted, if not `duration_s`. Below a second it is too coarse to use."""
    background: BackgroundResult | None = None
    """The background load that was achieved."""
    host: dict[str, HostState] = {}
    """By host, as in `cpu`: its state around this trial."""
    schedule_slip_ns: Latency | None = None
    captures: tuple[Capture, ...] = ()
    chain: ChainResult | None = None
    """Of a trial of kind `chain`."""
    tcp: TcpResult | None = None
    """Of a trial of kind `tcp`."""
    alloc: AllocResult | None = None
    """Of a trial of kind `alloc`."""
    figures: dict[str, Figure] = {}
    """By the name of the metric, of a trial of kind `other`."""
    generator: str | None = None
    """Of a load trial, the backend of pw-probe that sent."""
    generator_max_pps: float | None = None
    """The generator's rate without a plane's limit [packet/s], measured once a session."""
    sink: str | None = None
    """Of a load trial, the backend of pw-probe that counted."""
    limits: tuple[Limit, ...] = ()
    missed: tuple[str, ...] = ()
    """Factors of the cell whose level it missed by more than 1 %: it is in no comparison or
    average at that level."""
    warnings: tuple[str, ...] = ()
    packets: str | None = None
    """Per-packet samples: path of a Parquet file, relative to the run directory."""

    @property
    def is_bound(self) -> bool:
        """Whether the system under test carries at least what was measured, and maybe more."""
        chain: tuple[Limit, ...] = () if self.chain is None else (self.chain.limit,)
        return not OUTSIDE.isdisjoint((*self.limits, *chain))

    @property
    def busy(self) -> float | None:
        """Busy share of the CPUs that forwarded: the responder's, or the shared machine's."""
        modes = self.cpu.get("responder") or self.cpu.get("shared")
        if not modes or "idle" not in modes:
            return None
        return 1 - sum(modes.get(mode, 0.0) for mode in ("idle", "iowait", "unaccounted"))

    @property
    def foreign_cpu(self) -> float | None:
        """Share of the same CPUs' time that programs other than Planewise's took."""
        state = self.host.get("responder") or self.host.get("shared")
        return None if state is None else state.foreign_cpu


class Throughput(Record):
    """What was transmitted during one interval."""

    tx_pps: NonNegativeFloat
    tx_bps: NonNegativeFloat
    """Bits of frames without FCS."""


class KpiSample(Record):
    """About a second under load."""

    at: datetime
    """End of the interval."""
    trial: str
    """The trial that is running, as in trials.jsonl."""
    cell: dict[str, Level]
    interval_s: NonNegativeFloat
    vnfs: dict[str, Throughput]
    """By function, in the order of the chain."""
    total: Throughput
    """Of all functions."""
    cpu: dict[str, Share]
    """By number of the CPU: share of its time that was not idle."""


class Disturbance(Record):
    """What would disturb a measurement on a host."""

    name: str
    value: str
    severity: Literal["info", "warning"]
    why: str
    remedy: str


class PlaneAvailability(Record):
    """Whether a plane can be built on a host, and if not, why and what would help."""

    plane: str
    available: bool
    reason: str = ""
    remedy: str = ""


class Fingerprint(Record):
    """A host: enough to tell whether two runs can be compared."""

    hostname: str
    kernel: str
    distribution: str = ""
    cpu_model: str
    cpus: NonNegativeInt
    memory_bytes: NonNegativeInt
    virtualisation: str
    """`none`, or the hypervisor's name: then treat absolute times with caution."""
    clocksource: str
    governor: str
    """Frequency governor of the CPUs; `none` without a frequency driver."""
    smt: str
    mitigations: dict[str, str] = {}
    nics: tuple[dict[str, str], ...] = ()
    """Name, driver, speed, offloads as text."""
    disturbances: tuple[Disturbance, ...] = ()
    planes: tuple[PlaneAvailability, ...] = ()

    @property
    def warnings(self) -> list[str]:
        """What would seriously disturb a measurement, a sentence each."""
        return [
            f"{disturbance.name} ({disturbance.value}): {disturbance.why}"
            for disturbance in self.disturbances
            if disturbance.severity == "warning"
        ]


class SkippedCell(Record):
    """A cell of the design that could not be run on this testbed."""

    cell: dict[str, Level]
    """Its factor levels, without those of a trial's traffic."""
    reason: str


class Session(Record):
    """One sitting of a run; `--resume` begins another."""

    started: datetime
    first_order: NonNegativeInt
    """`order` of its first trial."""
    changed: tuple[str, ...] = ()
    """Changes since the run began, as `kernel: 6.1.0 is now 6.2.0`."""


RunStatus = Literal["running", "done", "interrupted", "failed"]


class RunInfo(Record):
    """What was measured, on what, and how it ended."""

    format: Literal[1] = 1
    run: str
    """Name of the run, made from its start time and a random token."""
    title: str = ""
    planewise: str
    """Version that wrote it."""
    design: dict[str, object]
    """The design, with all defaults filled in."""
    seed: int
    hosts: dict[str, Fingerprint]
    """By role: `sender`, `responder`, `shared`."""
    testbed: dict[str, str] = {}
    """Where it was asked to run: `sender`, `responder`, `nic`, `lab`; empty: on this machine."""
    emulated: str = ""
    """Why absolute times are not those of hardware, else empty."""
    differences: dict[str, tuple[str, ...]] = {}
    """By plane, other unavoidable differences from the other planes."""
    started: datetime
    finished: datetime | None = None
    status: RunStatus = "running"
    reason: str = ""
    trials_planned: NonNegativeInt = 0
    ends: tuple[NonNegativeInt, ...] = ()
    """Blocks after which the run had ended, each time before it was extended."""
    skipped: tuple[SkippedCell, ...] = ()
    """Cells of the design that could not be run here."""
    sessions: tuple[Session, ...] = ()
    result: dict[str, object] = {}
    """A search's result, as `planewise search --json` prints it."""
