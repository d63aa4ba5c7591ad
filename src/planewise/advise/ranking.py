"""Planes ranked for a workload: what each carries, and what rules it out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from planewise.advise.demand import (
    BRIEF,
    Statement,
    Workload,
    hindrances,
    host_cores,
    on_vf,
)
from planewise.advise.measured import hold_to_latency, of_neighbours, too_much_cpu, with_evidence
from planewise.advise.model.capacity import Plane, Prediction, predict
from planewise.advise.model.latency import floor_ns, line_ns
from planewise.advise.model.profile import Profile
from planewise.advise.ranked import ALIKE, MODELLED, EvidenceBase, PlaneForecast, hold_to_rate
from planewise.units import rate_text

_POLLED_VIRTIO_PPS = 0.08e6
"""What plain virtio carried at best under a polling application (the brief, north-south)."""
_KERNEL_ORDER = ("virtio-bridge", "vf-passthrough", "vhost-user")
"""Where the guests' kernels bind: the simplest first (the brief)."""
_LATENCY_ORDER = ("vf-passthrough", "vhost-user", "virtio-bridge")
"""Lowest round-trip times first: VFs below bridges by both studies; polling lies between."""


def rank(known: EvidenceBase, workload: Workload) -> tuple[PlaneForecast, ...]:
    """All planes, the most suitable first."""
    ranked = [_forecast(known, workload, plane) for plane in known.planes]
    most = max((one.pps for one in ranked if one.possible and one.pps is not None), default=None)
    # Of a rate that may be higher no share can be told, nor of another one by it.
    known_most = most and not any(one.at_least and one.pps == most for one in ranked)
    rated = [
        replace(one, share=one.pps / most)
        if most and known_most and one.pps is not None and not one.at_least
        else one
        for one in ranked
    ]
    return tuple(sorted(rated, key=lambda one: _merit(one, workload)))


def _merit(one: PlaneForecast, workload: Workload) -> tuple[float, ...]:
    """Smaller is better: possible, fast enough, then cheap where alike, else fast."""
    rate = one.pps or 0.0
    # What shares a core with its neighbours comes after what does not, where that was asked for.
    shares = "load" in workload.isolation and not on_vf(one.plane)
    late = _lateness(one) if workload.latency_ns is not None else (0.0, 0.0)
    head = (not one.possible, not one.known, shares)
    if workload.application == "kernel":
        # The kernel's stack in the guest binds on every plane: as measured, else the simplest.
        place = math.inf if one.place is None else one.place
        return (*head, *late, place, _order(_KERNEL_ORDER, one.plane))
    if workload.rate_pps is not None and one.meets:
        return (*head, 0, *late, one.host_cores, -rate)
    # Classes of rates that are alike, and within one the plane that takes fewer cores.
    rank = -round(math.log1p(rate) / math.log1p(ALIKE))
    return (*head, 1, rank, *late, one.host_cores, -rate)


def _lateness(one: PlaneForecast) -> tuple[float, float]:
    """Known to keep the latency goal first; else as the publications order the planes."""
    return float(not one.meets_latency), float(_order(_LATENCY_ORDER, one.plane))


def _order(order: Sequence[str], plane: str) -> int:
    if plane in order:
        return order.index(plane)
    # Another VF is one; whatever else was measured is the kernel's.
    return order.index("vf-passthrough" if on_vf(plane) else "virtio-bridge")


def _forecast(known: EvidenceBase, workload: Workload, plane: str) -> PlaneForecast:
    """One plane: what it carries, then what rules it out."""
    one = (
        _modelled(known.profile, workload, plane)
        if plane in MODELLED
        else _virtio(known.profile, workload)
        if plane == "virtio-bridge"
        else _unpredicted(workload, plane)
    )
    if known.profile is not None and known.profile.emulated:
        one = replace(one, meets=None, floor_ns=None)
    one = with_evidence(one, known.of(plane), workload)
    against = list(hindrances(known.profile, workload, plane))
    one, too_late = hold_to_latency(one, known, workload)
    against += too_late
    against += too_much_cpu(known.of(plane), workload)
    return replace(
        one,
        possible=not against,
        known=known.profile is not None or bool(known.of(plane)),
        statements=(*one.statements, *of_neighbours(workload, plane), *against),
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
}
"""What is known where the guest's kernel binds, not the plane."""


def _modelled(profile: Profile | None, workload: Workload, plane: Plane) -> PlaneForecast:
    empty = _unpredicted(workload, plane, host_cores(plane))
    if workload.application == "kernel":
        floor = None if profile is None else floor_ns(profile, plane, workload.chain)
        return replace(empty, statements=(_KERNEL[plane],), floor_ns=floor)
    if profile is None:
        statement = Statement(
            "Without a host profile nothing is predicted.", "model", "--profile names one"
        )
        return replace(empty, statements=(statement,))
    prediction = predict(profile, plane, workload.chain)
    one = replace(
        empty,
        pps=prediction.pps,
        low_pps=prediction.low_pps if prediction.known else None,
        high_pps=prediction.high_pps if prediction.known else None,
        gbps=prediction.bps / 1e9,
        bottleneck=prediction.bottleneck.name,
        floor_ns=floor_ns(profile, plane, workload.chain),
        statements=(_bound(prediction, profile),),
    )
    return one if profile.emulated else hold_to_rate(one, workload, "model")


def _bound(prediction: Prediction, profile: Profile) -> Statement:
    binds = prediction.bottleneck
    figures = (
        ""
        if profile.emulated
        else f" at {rate_text(prediction.pps)}"
        if not prediction.known
        else f" at {rate_text(prediction.pps)} ({rate_text(prediction.low_pps)} to "
        f"{rate_text(prediction.high_pps)})"
    )
    beyond = " and ".join(prediction.extrapolated)
    extrapolated = f" Extrapolated: this {beyond} was not measured." if beyond else ""
    return Statement(
        f"The {binds.name} binds{figures}: {binds.why}.{extrapolated}",
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
    asked = workload.rate_pps
    meets = False if asked is not None and asked > _POLLED_VIRTIO_PPS else None
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
