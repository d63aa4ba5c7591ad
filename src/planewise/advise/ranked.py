"""A plane's forecast for a workload, and what an answer rests on. Weighs nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from planewise.advise.demand import Statement, Workload
from planewise.advise.evidence import Evidence
from planewise.advise.model.profile import PLANES, Plane, Profile
from planewise.judge.bounded import Bound
from planewise.units import rate_text

MODELLED: tuple[Plane, ...] = PLANES
"""Planes that the capacity model knows."""
ALIKE = 0.10
"""Predictions closer than this are not told apart: some of the fitted rows lie as far off."""


_WORDS = {
    "vf-passthrough": "a VF passed through (SR-IOV)",
    "vhost-user": "vhost-user on a polling switch (OVS-DPDK)",
    "memif": "memif on a polling switch (VPP)",
    "virtio-bridge": "virtio by the kernel",
}


@dataclass(frozen=True)
class PlaneForecast:
    """One plane for the workload."""

    plane: str
    possible: bool = True
    meets: bool | None = None
    """Whether it carries the rate that was asked for; None where that is not known."""
    pps: float | None = None
    """What all functions send a second; None where it is not known."""
    low_pps: float | None = None
    high_pps: float | None = None
    gbps: float | None = None
    """Of frames without FCS."""
    share: float | None = None
    """Of the best plane's rate."""
    bottleneck: str = "not known"
    host_cores: int = 0
    """Cores that it takes from the host beside the guests' own."""
    statements: tuple[Statement, ...] = ()
    measured: bool = False
    """Whether the rate was measured for this very chain, not predicted."""
    at_least: bool = False
    """Something else than the plane was the limit of that measurement."""
    meets_latency: bool | None = None
    """Whether it keeps the latency goal; None where that is not known, or none was asked for."""
    rtt_p99_ns: float | None = None
    """99th percentile of round-trip times measured under the worst load; None: not measured."""
    rtt_p99_bound: Bound = "exact"
    floor_ns: float | None = None
    """No packet is faster, by the model; None where there is none."""
    known: bool = True
    """Whether the profile or a run tells of it; else only demands and literature do."""
    place: int | None = None
    """Among what one run measured, by TCP's goodput or by round-trip time; 1 is the best."""


@dataclass(frozen=True)
class EvidenceBase:
    """All that an answer rests on."""

    profile: Profile | None
    evidence: tuple[Evidence, ...]

    def of(self, plane: str) -> tuple[Evidence, ...]:
        """What runs tell of a plane; figures before orders."""
        items = (item for item in self.evidence if item.plane == plane)
        return tuple(sorted(items, key=lambda item: bool(item.order_only)))

    @property
    def planes(self) -> tuple[str, ...]:
        """The planes that are weighed: those of the publications, and what was measured."""
        measured = (item.plane for item in self.evidence)
        published = ("vf-passthrough", "vhost-user", "virtio-bridge")
        fitted = () if self.profile is None else (part.plane for part in self.profile.stations)
        return tuple(dict.fromkeys((*published, *fitted, *measured)))


def words_of(plane: str) -> str:
    """What a plane is called in a sentence."""
    return _WORDS.get(plane, plane)


def hold_to_rate(
    forecast: PlaneForecast,
    workload: Workload,
    basis: Literal["model", "measurement"],
    source: str = "",
) -> PlaneForecast:
    """The forecast with a sentence on whether it carries the rate asked for, where both are known.

    A rate without an interval is not taken as exact: a measured bound from below is its lower end;
    else it is not known on which side of the demand the rate lies.
    """
    if workload.rate_pps is None or forecast.pps is None:
        return forecast
    low, high = forecast.low_pps, forecast.high_pps
    if low is None and forecast.at_least:
        low = forecast.pps
    if low is None:
        origin = "measurement" if forecast.measured else "prediction"
        statement = Statement(
            f"Whether it carries the {rate_text(workload.rate_pps)} that are asked for is not "
            f"known: the {origin} has no interval.",
            basis,
            source,
        )
        return replace(forecast, meets=None, statements=(*forecast.statements, statement))
    high = math.inf if high is None else high
    meets = True if low >= workload.rate_pps else False if high < workload.rate_pps else None
    word = {True: "carries", False: "does not carry", None: "may or may not carry"}[meets]
    statement = Statement(
        f"It {word} the {rate_text(workload.rate_pps)} that are asked for.", basis, source
    )
    return replace(forecast, meets=meets, statements=(*forecast.statements, statement))
