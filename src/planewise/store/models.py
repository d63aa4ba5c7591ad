"""What a run directory holds, as types. docs/formats.md is the same for readers of other languages.

Units are in the names: `_pps` packets a second, `_ns` nanoseconds, `_s` seconds, `_bytes` frame
size with its 4-byte FCS (RFC 2544, section 9), shares are 0 to 1.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt

FORMAT = 1

Level = str | int | float
"""A factor's level in a cell."""

Limit = Literal["sut", "generator", "sink", "clock"]
"""What limited a trial. Only `sut` is a statement about the system under test."""

Share = Annotated[float, Field(ge=0, le=1)]

Metric = Literal["rtt_user", "rtt_kernel", "overhead", "response", "one_way"]
"""The times of a trial.

`rtt_user`   at the guest, between user-space stamps
`rtt_kernel` at the guest, between kernel stamps
`overhead`   RTT at the guest minus RTT at the sender's NIC
`response`   NIC to NIC inside the responder
`one_way`    latency of a load trial's frames, generator to sink (one clock)
"""


class Record(BaseModel):
    """A line or file of the run directory: unknown fields are an error, values are final."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Load(Record):
    """Offered load of a trial."""

    intended_pps: NonNegativeFloat
    achieved_pps: NonNegativeFloat
    """What the generator really sent per second; differs from `intended_pps` when it slipped."""
    size_bytes: NonNegativeInt
    """Frame size, with the 4-byte FCS."""


class Counts(Record):
    """Packets of a trial. Invariant: sent = received + lost."""

    sent: NonNegativeInt
    received: NonNegativeInt
    """Distinct packets that came back (RTT) or arrived (load); late ones are among them."""
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
    """HdrHistogram (V2, deflate, base64), 3 significant digits; None for negative values."""


class Capture(Record):
    """What one capture point saw in a trial."""

    point: str
    host: Literal["sender", "responder"]
    packets: NonNegativeInt
    dropped: NonNegativeInt
    """Packets the capture itself missed (kernel ring overrun)."""


class TrialRecord(Record):
    """One finished trial: one line of trials.jsonl."""

    trial: str
    """Unique in the run: `<cell>#r<replicate>` and for load trials `@<offered pps>`."""
    kind: Literal["rtt", "load"]
    cell: dict[str, Level]
    """The factor levels that this trial has, by factor name (`plane`, `load_type`, …)."""
    block: NonNegativeInt
    replicate: NonNegativeInt
    order: NonNegativeInt
    """Place in the run's real order, from 0."""
    started: datetime
    duration_s: NonNegativeFloat
    status: Literal["done", "failed"] = "done"
    reason: str = ""
    """Why it failed, one sentence; empty when done."""
    load: Load | None = None
    counts: Counts | None = None
    loss: tuple[LossPart, ...] = ()
    latency: dict[Metric, Latency] = {}
    not_measurable: dict[Metric, str] = {}
    """Metrics that do not exist for this plane, with the reason. Never a zero instead."""
    cpu: dict[str, dict[str, Share]] = {}
    """By host (`sender`, `responder`, or `shared` when both are one machine) and mpstat mode
    (`usr nice sys iowait irq soft steal guest gnice idle`): share of all CPUs' time."""
    schedule_slip_ns: Latency | None = None
    captures: tuple[Capture, ...] = ()
    limits: tuple[Limit, ...] = ()
    warnings: tuple[str, ...] = ()
    packets: str | None = None
    """Per-packet samples: path of a Parquet file, relative to the run directory."""

    @property
    def busy(self) -> float | None:
        """Busy share of the CPUs that forwarded: the responder's, or the shared machine's."""
        modes = self.cpu.get("responder") or self.cpu.get("shared")
        if not modes or "idle" not in modes:
            return None
        return 1 - modes["idle"] - modes.get("iowait", 0.0)


class Disturbance(Record):
    """Something on a host that would disturb a measurement."""

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
    """What a host is: enough to tell whether two runs can be compared."""

    hostname: str
    kernel: str
    distribution: str = ""
    cpu_model: str
    cpus: NonNegativeInt
    memory_bytes: NonNegativeInt
    virtualisation: str
    """`none`, or the hypervisor's name; then all times here are virtualised times."""
    clocksource: str
    governor: str
    """Frequency governor of the CPUs; `none` where there is no frequency driver."""
    smt: str
    mitigations: dict[str, str] = {}
    nics: tuple[dict[str, str], ...] = ()
    """Name, driver, speed, offloads as text."""
    disturbances: tuple[Disturbance, ...] = ()
    planes: tuple[PlaneAvailability, ...] = ()


class SkippedCell(Record):
    """A cell of the design that could not be run on this testbed."""

    cell: dict[str, Level]
    """Its factor levels, without those of a trial's traffic."""
    reason: str


RunStatus = Literal["running", "done", "interrupted", "failed"]


class RunInfo(Record):
    """run.json."""

    format: Literal[1] = 1
    run: str
    """Name of the run, made from its start time and a random token."""
    title: str = ""
    planewise: str
    """Version that wrote it."""
    design: dict[str, object]
    """The design, resolved: nothing left to defaults."""
    seed: int
    hosts: dict[str, Fingerprint]
    """By role, as in `TrialRecord.cpu`."""
    emulated: str = ""
    """Why absolute times of this run are not those of hardware; empty when they are."""
    started: datetime
    finished: datetime | None = None
    status: RunStatus = "running"
    reason: str = ""
    trials_planned: NonNegativeInt = 0
    skipped: tuple[SkippedCell, ...] = ()
    """Cells of the design that could not be run here."""
    result: dict[str, object] = {}
    """What a search found, as `planewise search --json` prints it, without the list of trials."""


class Ranked(Record):
    """One plane's place in one ranking, with what it rests on."""

    plane: str
    load_type: str
    """Under which load (`none`, `cpu`, `network`, `all`)."""
    metric: Literal["rtt_p50", "rtt_p99", "forwarded", "cpu"]
    """`rtt_p50` and `rtt_p99` of RTT trials in ns; `forwarded` the highest forwarding rate of a
    block's load trials in packet/s; `cpu` kernel CPU time per forwarded packet in ns."""
    value: float
    low: float | None = None
    """95 % interval, over replicates; None where there are too few."""
    high: float | None = None
    effect: float | None = None
    """Relative difference to the best plane of this ranking: 0.25 is 25 % worse. None: it is
    the best one."""
    note: str = ""
    """What a reader should know of this place, one sentence: a tie, a limit, a verdict."""
    at_least: bool = False
    """The generator, not the plane, was the limit: the plane does `value` or more."""


class Recommendation(Record):
    """recommendation.json: what the run advises, in words, with what it rests on."""

    plane: str | None
    """None when the data do not tell the planes apart."""
    headline: str
    """The answer in one sentence."""
    reasons: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()
    ranking: tuple[Ranked, ...] = ()
    """Best first within each `metric` and `load_type`."""
