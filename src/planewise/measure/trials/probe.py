"""What `pw-probe` prints, as types (docs/reference/probe-output.md); unused fields are ignored."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from planewise.judge.statistics.metrics import HISTOGRAM_SHARE
from planewise.measure.station import Place, TrialResult
from planewise.store.models import Counts, Figure, Latency, Limit, OfferedLoad, TrialRecord
from planewise.testbed.hosts import programs
from planewise.testbed.hosts.host import FinishedProcess

START_S = 240.0
"""How long a program may take to start: an emulated guest on an emulated host needs over a minute
while others send."""


class ProbePart(BaseModel):
    """A part of what the probe prints."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class ProbeOutput(ProbePart):
    """What every subcommand's output begins with."""

    command: str
    version: str
    interrupted: bool = False


class TimedOutput(ProbeOutput):
    """An output that says when it began and how long it took."""

    started_ns: int
    duration_s: float


class CpuUsage(ProbePart):
    """CPU of the host while the probe ran, as shares of all CPUs' time by mpstat mode."""

    all: dict[str, float]


class CpuOutput(ProbeOutput):
    """`pw-probe cpu`."""

    cpu: CpuUsage


class BurstOutput(ProbePart):
    """Bursts of `pw-probe ping`, as intended and as achieved."""

    packets: NonNegativeInt
    every_ns: NonNegativeInt
    intended_pps: float
    achieved_pps: float | None = None
    achieved_kernel_pps: float | None = None

    @property
    def kept_pps(self) -> float:
        """Rate within bursts, by kernel stamps where there are any; 0 where none was sent whole."""
        return self.achieved_kernel_pps or self.achieved_pps or 0.0


class PingOutput(TimedOutput):
    """`pw-probe ping`."""

    load: OfferedLoad
    burst: BurstOutput | None = None
    counts: Counts
    rtt_user: Latency | None = None
    rtt_kernel: Latency | None = None
    slip: Latency | None = None
    limits: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    cpu: CpuUsage | None = None


class Failure(ProbePart):
    """Why a trial or a capture point ended early; what stands beside it was done until then."""

    what: str
    remedy: str = ""


class TapPoint(ProbePart):
    """One capture point of `pw-probe tap`."""

    name: str
    packets: NonNegativeInt
    dropped: NonNegativeInt = 0
    error: Failure | None = None


class TapOutput(ProbeOutput):
    """`pw-probe tap`."""

    points: tuple[TapPoint, ...]


class LossOutput(ProbePart):
    """A part of a trial's loss that one counter explains."""

    where: str
    counter: str
    count: NonNegativeInt


class BackendOutput(ProbePart):
    """The generator or the sink of a trial."""

    backend: str = "af_packet"
    max_pps: float | None = None
    """Of a generator, where it is known."""


class EndOutput(ProbeOutput):
    """What an end of a load trial prints."""

    drops: tuple[LossOutput, ...] = ()
    cpu: CpuUsage | None = None
    error: Failure | None = None


class SendOutput(EndOutput, TimedOutput):
    """`pw-probe send`."""

    size_bytes: NonNegativeInt
    intended_pps: float
    achieved_pps: float
    sent: NonNegativeInt
    limits: tuple[str, ...] = ()
    generator: BackendOutput


class ReceiveOutput(EndOutput):
    """`pw-probe receive`."""

    received: NonNegativeInt
    duplicate: NonNegativeInt = 0
    reordered: NonNegativeInt = 0
    sink: BackendOutput = BackendOutput()


class TrialOutput(SendOutput, ReceiveOutput):
    """`pw-probe trial`."""

    lost: NonNegativeInt
    late: NonNegativeInt = 0
    loss: tuple[LossOutput, ...] = ()
    unexplained: int = 0
    latency: Latency | None = None


class CalibrationOutput(ProbeOutput):
    """`pw-probe trial --calibrate-only`."""

    max_pps: float


OutputT = TypeVar("OutputT", bound=ProbeOutput)


def parse(finished: FinishedProcess, model: type[OutputT]) -> OutputT:
    """The probe's JSON; PlanewiseError when it failed or speaks another format."""
    return programs.checked(finished.json(), model, "pw-probe")


def time_figure(title: str, value_ns: float) -> Figure:
    """A quantile of a histogram, as a figure. Pure."""
    fine = HISTOGRAM_SHARE * value_ns
    return Figure(title=title, unit="ns", lower_is_better=True, value=value_ns, resolution=fine)


def result_of(
    place: Place,
    output: TimedOutput,
    figures: dict[str, Figure],
    counts: Counts | None = None,
    warnings: tuple[str, ...] = (),
) -> TrialResult:
    """The result of a trial of a kind that has figures. Pure."""
    return TrialResult(
        TrialRecord(
            **place.fields,
            kind="other",
            started=datetime.fromtimestamp(output.started_ns / 1e9, UTC),
            duration_s=output.duration_s,
            counts=counts,
            figures=figures,
            limits=("sut",),
            warnings=warnings,
        )
    )


def known_limits(limits: Collection[str]) -> tuple[Limit, ...]:
    """The probe's limits that a run directory knows."""
    names: tuple[Limit, ...] = ("sut", "generator", "sink", "clock")
    return tuple(name for name in names if name in limits)
