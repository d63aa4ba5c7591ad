"""What `pw-probe` prints, as types (docs/reference/formats.md). Runs nothing.

Fields that Planewise does not use are let pass: the probe may say more than we ask.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, NonNegativeInt

from planewise.store.models import Counts, Latency, OfferedLoad
from planewise.testbed import programs
from planewise.testbed.host import FinishedProcess


class ProbeOutput(BaseModel):
    """What every subcommand's output begins with."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    command: str
    version: str
    interrupted: bool = False


class CpuUsage(BaseModel):
    """CPU of the host while the probe ran, as shares of all CPUs' time by mpstat mode."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    all: dict[str, float]


class CpuOutput(ProbeOutput):
    """`pw-probe cpu`."""

    cpu: CpuUsage


class BurstOutput(BaseModel):
    """Bursts of `pw-probe ping`: what was wanted, and what came of it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    packets: NonNegativeInt
    every_ns: NonNegativeInt
    intended_pps: float
    achieved_pps: float | None = None
    achieved_kernel_pps: float | None = None

    @property
    def kept_pps(self) -> float:
        """Rate within bursts, by kernel stamps where there are any; 0 where none was sent whole."""
        return self.achieved_kernel_pps or self.achieved_pps or 0.0


class PingOutput(ProbeOutput):
    """`pw-probe ping`."""

    started_ns: int
    duration_s: float
    load: OfferedLoad
    burst: BurstOutput | None = None
    counts: Counts
    rtt_user: Latency | None = None
    rtt_kernel: Latency | None = None
    slip: Latency | None = None
    limits: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    cpu: CpuUsage | None = None


class Failure(BaseModel):
    """Why a trial or a capture point ended early; what stands beside it was done until then."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    what: str
    remedy: str = ""


class TapPoint(BaseModel):
    """One capture point of `pw-probe tap`."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    packets: NonNegativeInt
    dropped: NonNegativeInt = 0
    error: Failure | None = None


class TapOutput(ProbeOutput):
    """`pw-probe tap`."""

    points: tuple[TapPoint, ...]


class LossOutput(BaseModel):
    """A part of a trial's loss that one counter explains."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    where: str
    counter: str
    count: NonNegativeInt


class GeneratorOutput(BaseModel):
    """The generator of a trial."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    backend: str = "af_packet"
    max_pps: float | None = None


class SinkOutput(BaseModel):
    """The sink of a trial."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    backend: str = "af_packet"


class TrialOutput(ProbeOutput):
    """`pw-probe trial`."""

    size_bytes: NonNegativeInt
    started_ns: int
    duration_s: float
    intended_pps: float
    achieved_pps: float
    sent: NonNegativeInt
    received: NonNegativeInt
    lost: NonNegativeInt
    duplicate: NonNegativeInt = 0
    reordered: NonNegativeInt = 0
    late: NonNegativeInt = 0
    loss: tuple[LossOutput, ...] = ()
    unexplained: int = 0
    limits: tuple[str, ...] = ()
    generator: GeneratorOutput
    sink: SinkOutput = SinkOutput()
    latency: Latency | None = None
    cpu: CpuUsage | None = None
    error: Failure | None = None


class SendOutput(ProbeOutput):
    """`pw-probe send`."""

    size_bytes: NonNegativeInt
    started_ns: int
    duration_s: float
    intended_pps: float
    achieved_pps: float
    sent: NonNegativeInt
    drops: tuple[LossOutput, ...] = ()
    limits: tuple[str, ...] = ()
    generator: GeneratorOutput
    cpu: CpuUsage | None = None
    error: Failure | None = None


class ReceiveOutput(ProbeOutput):
    """`pw-probe receive`."""

    received: NonNegativeInt
    duplicate: NonNegativeInt = 0
    reordered: NonNegativeInt = 0
    drops: tuple[LossOutput, ...] = ()
    sink: SinkOutput = SinkOutput()
    cpu: CpuUsage | None = None
    error: Failure | None = None


class CalibrationOutput(ProbeOutput):
    """`pw-probe trial --calibrate-only`."""

    max_pps: float


OutputT = TypeVar("OutputT", bound=ProbeOutput)


def parse(finished: FinishedProcess, model: type[OutputT]) -> OutputT:
    """The probe's JSON; PlanewiseError when it failed or speaks another format."""
    return programs.checked(finished.json(), model, "pw-probe")
