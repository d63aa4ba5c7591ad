"""Planes ranked for a workload: what each carries, and what rules it out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from planewise.advise.demand import BRIEF, Statement, Workload, hindrances, host_cores, on_vf
from planewise.advise.measured import hold_to_latency, of_neighbours, too_much_cpu, with_evidence
from planewise.advise.model.capacity import WORDS, Prediction, floor_ns, line_ns, predict
from planewise.advise.model.profile import Plane, Profile
from planewise.advise.ranked import ALIKE, MODELLED, EvidenceBase, PlaneForecast, hold_to_rate
from planewise.units import rate_text

_POLLED_VIRTIO_PPS = 0.08e6
"""What plain virtio carried at best under a polling application (the brief, north-south)."""
_KERNEL_ORDER = ("virtio-bridge", "vf-passthrough", "vhost-user")
"""Where the guests' kernels bind: the simplest first (the brief)."""
_LATENCY_ORDER = ("vf-passthrough", "vhost-user", "virtio-bridge")
"""Lowest round-trip times first: VFs below bridges by both studies; polling lies between."""


def rank(evidence: EvidenceBase, workload: Workload) -> tuple[PlaneForecast, ...]:
    """All planes, the most suitable first."""
    ranked = [_forecast(evidence, workload, plane) for plane in evidence.planes]
    rates = [forecast.pps for forecast in ranked if forecast.possible and forecast.pps is not None]
    best_pps = max(rates, default=None)
    # A rate that may be higher has no share, and no other rate has a share of it.
    bounds = {forecast.pps for forecast in ranked if forecast.at_least}
    rated = [
        replace(forecast, share=forecast.pps / best_pps)
        if best_pps
        and best_pps not in bounds
        and forecast.pps is not None
        and not forecast.at_least
        else forecast
        for forecast in ranked
    ]
    return tuple(sorted(rated, key=lambda forecast: _merit(forecast, workload)))


def _merit(forecast: PlaneForecast, workload: Workload) -> tuple[float, ...]:
    """Smaller is better: possible, fast enough, then cheap where alike, else fast."""
    rate = forecast.pps or 0.0
    # Planes that share a core with neighbours come last, where isolation from load was asked for.
    shares = "load" in workload.isolation and not on_vf(forecast.plane)
    late = _lateness(forecast) if workload.latency_ns is not None else (0.0, 0.0)
    head = (not forecast.possible, not forecast.known, shares)
    if workload.application == "kernel":
        # The kernel's stack in the guest binds on every plane: as measured, else the simplest.
        place = math.inf if forecast.place is None else forecast.place
        return (*head, *late, place, _order(_KERNEL_ORDER, forecast.plane))
    if workload.rate_pps is not None and forecast.meets:
        return (*head, 0, *late, forecast.host_cores, -rate)
    # Classes of rates that are alike, and within one the plane that takes fewer cores.
    rank = -round(math.log1p(rate) / math.log1p(ALIKE))
    return (*head, 1, rank, *late, forecast.host_cores, -rate)


def _lateness(forecast: PlaneForecast) -> tuple[float, float]:
    """Known to keep the latency goal first; else as the publications order the planes."""
    return float(not forecast.meets_latency), float(_order(_LATENCY_ORDER, forecast.plane))


def _order(order: Sequence[str], plane: str) -> int:
    if plane in order:
        return order.index(plane)
    # Other planes on VFs rank as a VF; whatever else was measured is the kernel's.
    return order.index("vf-passthrough" if on_vf(plane) else "virtio-bridge")


def _forecast(evidence: EvidenceBase, workload: Workload, plane: str) -> PlaneForecast:
    """One plane: what it carries, then what rules it out."""
    forecast = (
        _modelled(evidence.profile, workload, plane)
        if plane in MODELLED
        else _virtio(evidence.profile, workload)
        if plane == "virtio-bridge"
        else _unpredicted(workload, plane)
    )
    if evidence.profile is not None and evidence.profile.emulated:
        forecast = replace(forecast, meets=None, floor_ns=None)
    forecast = with_evidence(forecast, evidence.of(plane), workload)
    obstacles = list(hindrances(evidence.profile, workload, plane))
    forecast, too_late = hold_to_latency(forecast, evidence, workload)
    obstacles += too_late
    obstacles += too_much_cpu(evidence.of(plane), workload)
    return replace(
        forecast,
        possible=not obstacles,
        known=evidence.profile is not None or bool(evidence.of(plane)),
        statements=(*forecast.statements, *of_neighbours(workload, plane), *obstacles),
    )


_KERNEL: dict[str, Statement] = {
    "vf-passthrough": Statement(
        "For programs on the kernel's sockets a VF carries 39 Gbit/s of TCP from messages of 512 "
        "bytes on, where virtio has 20; from 1024 bytes on both fill the line to nine tenths.",
        "literature",
        BRIEF,
    ),
    "vhost-user": Statement(
        "For programs on the kernel's sockets it carries what virtio does, or less, and takes a "
        "core of the host besides.",
        "literature",
        BRIEF,
    ),
    "memif": Statement(
        "memif has no interface for programs on the kernel's sockets.", "literature", "DPDK, memif"
    ),
}
"""What is known where the guest's kernel binds, not the plane."""


def _modelled(profile: Profile | None, workload: Workload, plane: Plane) -> PlaneForecast:
    empty = _unpredicted(workload, plane, host_cores(plane, workload.chain))
    if workload.application == "kernel":
        floor = None if profile is None else floor_ns(profile, plane, workload.chain)
        return replace(empty, statements=(_KERNEL[plane],), floor_ns=floor)
    if profile is None:
        statement = Statement(
            "Without a host profile nothing is predicted.", "model", "--profile names one"
        )
        return replace(empty, statements=(statement,))
    prediction = predict(profile, plane, workload.chain)
    if prediction is None:
        statement = Statement(
            f"Not known: the profile has no measurement of {plane}. Measure its chains, and fit "
            "them with `planewise calibrate`.",
            "model",
        )
        return replace(empty, statements=(statement,))
    low, high = prediction.interval or (None, None)
    forecast = replace(
        empty,
        pps=prediction.pps,
        low_pps=low,
        high_pps=high,
        gbps=prediction.bps / 1e9,
        bottleneck=prediction.bottleneck.name,
        floor_ns=floor_ns(profile, plane, workload.chain),
        statements=(_bound(prediction, profile),),
    )
    return forecast if profile.emulated else hold_to_rate(forecast, workload, "model")


def _bound(prediction: Prediction, profile: Profile) -> Statement:
    binds = prediction.bottleneck
    figures = (
        ""
        if profile.emulated
        else f" at {rate_text(prediction.pps)}"
        if prediction.interval is None
        else f" at {rate_text(prediction.pps)} ({rate_text(prediction.interval[0])} to "
        f"{rate_text(prediction.interval[1])})"
    )
    beyond = " and ".join(WORDS[name] for name in prediction.unmeasured)
    extrapolated = f" Extrapolated: no chain with this {beyond} was measured." if beyond else ""
    if prediction.unknown:
        missing = " and ".join(WORDS[name] for name in prediction.unknown)
        extrapolated += f" How far off is not known: measure a chain with this {missing}."
    return Statement(
        f"The bottleneck is the {binds.name}{figures}: {binds.why}.{extrapolated}",
        "model",
        f"parameters: {binds.basis}",
    )


def _virtio(profile: Profile | None, workload: Workload) -> PlaneForecast:
    floor = None if profile is None else line_ns(profile, workload.chain)
    if workload.application == "kernel":
        statement = Statement(
            "For programs on the kernel's sockets it carries 35 to 39 Gbit/s of TCP on a 40 Gbit/s "
            "line from messages of 1024 bytes on; with smaller ones a VF carries up to twice as "
            "much.",
            "literature",
            BRIEF,
        )
        empty = _unpredicted(workload, "virtio-bridge")
        return replace(empty, statements=(statement,), floor_ns=floor)
    # "At most" rules a rate out, and never in.
    rate = workload.rate_pps
    meets = False if rate is not None and rate > _POLLED_VIRTIO_PPS else None
    statement = Statement(
        f"Under a polling program plain virtio carried at most {rate_text(_POLLED_VIRTIO_PPS)}: "
        "every packet wakes the host's kernel.",
        "literature",
        BRIEF,
    )
    return PlaneForecast(
        "virtio-bridge",
        meets=meets,
        pps=_POLLED_VIRTIO_PPS,
        gbps=_POLLED_VIRTIO_PPS * 8 * (workload.chain.frame_bytes - 4) / 1e9,
        bottleneck="host's kernel",
        statements=(statement,),
        floor_ns=floor,
    )


def _unpredicted(workload: Workload, plane: str, cores: int = 0) -> PlaneForecast:
    """A plane of which no rate is predicted."""
    binds = "guest's kernel" if workload.application == "kernel" else "not known"
    return PlaneForecast(plane, bottleneck=binds, host_cores=cores)
