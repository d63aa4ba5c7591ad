"""A campaign: load-loss curves of a router over its configurations, each repeated. Pure.

Publication P (arXiv 2410.18644) does this; repetitions show how far two curves of one configuration
agree.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from planewise.measure.designs.design import DesignModel, FrameBytes, Levels, LoadLadder
from planewise.measure.runs.sut import Pinning, RouterUnderTest
from planewise.measure.trials.load import SMALLEST_BYTES
from planewise.store.models import Level
from planewise.testbed.model import IpVersion
from planewise.testbed.switches.router import RING_PACKETS, Forwarding, RouterPlatform
from planewise.units import count_text, duration_text

Seconds = Annotated[float, Field(ge=0.01, le=3600)]
Runs = Annotated[int, Field(ge=1, le=10_000)]
RingPackets = Annotated[int, Field(ge=1, le=65_536)]

MAX_CURVES = 10_000


class RouterFactors(DesignModel):
    """Levels of each factor; a configuration takes one of each."""

    ip_version: Levels[IpVersion] = (6,)
    """Of the frames."""
    forwarding: Levels[Forwarding] = ("kernel",)
    """What forwards: the kernel's routing, an XDP program that routes, or the kernel's bridge."""
    platform: Levels[RouterPlatform] = ("namespace",)
    """What the router is: a container is Docker's, and forwards in its network namespace; a virtual
    machine has one virtio NIC, on a bridge with both ports of the generator."""
    irq_pinning: Levels[Pinning] = ("spread",)
    """CPUs of the router's receive work: `none`, where a frame arrives; `one` for both interfaces;
    `two`, one each; `spread`, all but the generator's."""
    nic_ring: Levels[RingPackets] | None = None
    """Packets of the receive ring of a virtual machine's NIC; None: as QEMU has it."""
    size_bytes: Levels[FrameBytes] = (84,)
    """Ethernet frame with its 4-byte FCS."""
    duration_s: Levels[Seconds] = (10.0,)
    """Of a trial."""
    runs: Levels[Runs] = (50,)
    """Trials at each load."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        for name, levels in self:
            if levels is not None and len(set(levels)) != len(levels):
                raise ValueError(f"{name} names a level twice")
        least = max(SMALLEST_BYTES[version] for version in self.ip_version)
        if min(self.size_bytes) < least:
            raise ValueError(
                f"size_bytes {min(self.size_bytes)}: frames of IPv{max(self.ip_version)} that hold "
                f"the generator's stamps have {least} bytes at least"
            )
        return self


class CampaignDesign(DesignModel):
    """A campaign: one load-loss curve for each configuration and repetition."""

    sut: Literal["router"]
    """What is measured."""
    title: str = ""
    """Shown in the reports."""
    factors: RouterFactors = RouterFactors()
    offered_pps: LoadLadder = "auto"
    """`auto`: a ladder of `loads` steps around what a pilot forwards. A configuration's repetitions
    have the ladder of its first one."""
    loads: Annotated[int, Field(ge=3, le=200)] = 9
    """Steps of an automatic ladder."""
    repetitions: Annotated[int, Field(ge=1, le=1000)] = 2
    """Curves of each configuration."""
    seed: Annotated[int, Field(ge=0, lt=2**62)] = 1
    """The order of the configurations and of their loads follows from it."""

    @model_validator(mode="after")
    def _makes_sense(self) -> Self:
        curves = self.repetitions
        for _, levels in self.factors:
            curves *= len(levels or (None,))
        if curves > MAX_CURVES:
            raise ValueError(f"{curves:,} curves are more than {MAX_CURVES:,}: leave out levels")
        return self


@dataclass(frozen=True)
class PlannedCurve:
    """One configuration in one repetition."""

    sut: RouterUnderTest
    size_bytes: int
    duration_s: float
    runs: int
    repetition: int
    """From 1."""
    seed: int

    @property
    def name(self) -> str:
        """Unique in a campaign, and good for a directory."""
        levels = "-".join(f"{level:g}" if isinstance(level, float) else str(level)
                          for level in self.levels.values())  # fmt: skip
        return f"{levels}-r{self.repetition}"

    @property
    def levels(self) -> dict[str, Level]:
        """The factors of its configuration."""
        return {**self.sut.cell, "size_bytes": self.size_bytes}

    @property
    def traffic_s(self) -> float:
        """Traffic time of each of its loads."""
        return self.runs * self.duration_s


def curves_of(design: CampaignDesign) -> tuple[PlannedCurve, ...]:
    """All curves in the order in which they are measured.

    Each repetition holds every configuration once, in a random order of its own, so that drift of
    the machine hits all alike.
    """
    factors, shuffler = design.factors, random.Random(design.seed)
    configurations = tuple(
        product(
            factors.ip_version,
            factors.forwarding,
            factors.irq_pinning,
            factors.platform,
            factors.nic_ring or (None,),
            factors.size_bytes,
            factors.duration_s,
            factors.runs,
        )
    )
    curves: list[PlannedCurve] = []
    for repetition in range(1, design.repetitions + 1):
        of_repetition = []
        for ip, forwarding, pinning, platform, ring, size_bytes, seconds, runs in configurations:
            labels = (("duration_s", seconds), ("runs", runs))
            sut = RouterUnderTest(ip, forwarding, pinning, platform, ring, labels)
            seed = shuffler.randrange(2**31)
            of_repetition.append(PlannedCurve(sut, size_bytes, seconds, runs, repetition, seed))
        shuffler.shuffle(of_repetition)
        curves += of_repetition
    return tuple(curves)


def unavailable_reason(
    design: CampaignDesign,
    receivers: Sequence[int] | None,
    no_docker: str = "",
    no_machines: str = "",
) -> str:
    """Why a campaign cannot be had on this machine; empty where it can.

    `receivers` are the CPUs beside the generator's; None where receive work cannot be moved.
    `no_docker` and `no_machines` are why there can be no containers and no virtual machines; empty
    where there can.
    """
    factors = design.factors
    on_veth = [platform for platform in factors.platform if platform != "vm"]
    if factors.nic_ring is not None and on_veth:
        return (
            f"factors.nic_ring: a router in a {on_veth[0]} has veth pairs, whose ring cannot be "
            "set; use `platform: vm`"
        )
    for ring in factors.nic_ring or ():
        if ring not in RING_PACKETS:
            sizes = ", ".join(map(str, RING_PACKETS))
            return f"factors.nic_ring: QEMU's virtio NIC has a ring of {sizes}, not {ring}"
    if "vm" in factors.platform and set(factors.forwarding) != {"kernel"}:
        return (
            "factors.forwarding: a router that is a virtual machine only forwards by its kernel: "
            "it has one NIC, and no program that loads XDP"
        )
    if "vm" in factors.platform and no_machines:
        return f"factors.platform: a router that is a virtual machine: {no_machines}"
    if "container" in factors.platform and no_docker:
        return f"factors.platform: a router that is a container needs Docker: {no_docker}"
    several = [level for level in factors.irq_pinning if level != "none"]
    if several and receivers is None:
        return "factors.irq_pinning: receive work cannot be moved here, so only `none` is possible"
    if "two" in several and receivers is not None and len(receivers) < 2:
        return (
            "factors.irq_pinning: two takes three CPUs, one for the generator and one for each "
            f"interface, and there are {1 + len(receivers)}"
        )
    if receivers is not None and len(receivers) < 2 and {"one", "spread"} <= set(several):
        return "factors.irq_pinning: one and spread are the same on a machine with two CPUs"
    return ""


def estimate_text(design: CampaignDesign, around_s: float) -> str:
    """The number of curves and their time; `around_s` is a trial's time beside its traffic."""
    curves = curves_of(design)
    steps = design.loads if design.offered_pps == "auto" else len(design.offered_pps)
    seconds = sum(steps * (curve.traffic_s + curve.runs * around_s) for curve in curves)
    configurations = len(curves) // design.repetitions
    return (
        f"{count_text(configurations, 'configuration')}, "
        f"{count_text(design.repetitions, 'time')} each: {count_text(len(curves), 'curve')}, "
        f"about {duration_text(seconds)}"
    )
