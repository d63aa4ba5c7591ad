"""Which plane for a described workload: planes ranked, with what binds and what would change it.

Rests on the capacity model and on what the publications found; each statement says on which. Knows
no run and no host but a profile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from planewise.advise.model.capacity import LONGEST, Chain, Plane, Prediction, predict
from planewise.advise.model.profile import Profile
from planewise.errors import BadInputError
from planewise.units import rate_text

Application = Literal["polling", "kernel"]
Choice = Literal["vf-passthrough", "vhost-user", "virtio-bridge"]
Basis = Literal["measurement", "data sheet", "literature", "assumption", "model", "demand"]

BRIEF = "Intel 335625 (SR-IOV for NFV solutions, 2017)"
_ALIKE = 0.10
"""Predictions closer than this are not told apart: some of the fitted rows lie as far off."""
_POLLED_VIRTIO_PPS = 0.08e6
"""What plain virtio carried at best under a polling application (the brief, north-south)."""
_SIZES = (64, 128, 256, 512, 1024, 1518)
_WORDS: dict[Choice, str] = {
    "vf-passthrough": "a VF passed through (SR-IOV)",
    "vhost-user": "vhost-user on a polling switch (OVS-DPDK)",
    "virtio-bridge": "virtio by the kernel",
}


@dataclass(frozen=True)
class Workload:
    """What an operator asks for.

    Raises:
        BadInputError: a rate, a number of VFs or of cores that cannot be.
    """

    chain: Chain
    application: Application = "polling"
    """Whether the guests' programs poll their NIC (DPDK) or use the kernel's sockets."""
    rate_pps: float | None = None
    """Packets a second that all functions together must send; None for as many as can be."""
    live_migration: bool = False
    vfs: int | None = None
    """VFs that are free; None where it does not matter."""
    spare_cores: int | None = None
    """Cores that the host can give to a polling switch; None where it does not matter."""

    def __post_init__(self) -> None:
        """Refuses what cannot be asked for."""
        if self.application not in ("polling", "kernel"):
            raise BadInputError(
                f"there is no application {self.application}", remedy="polling or kernel"
            )
        if self.rate_pps is not None and not (math.isfinite(self.rate_pps) and self.rate_pps > 0):
            raise BadInputError("the rate must be above zero", remedy="packets a second")
        for name, value in (("VFs", self.vfs), ("spare cores", self.spare_cores)):
            if value is not None and value < 0:
                raise BadInputError(f"there are no {value} {name}", remedy="0 or more")


@dataclass(frozen=True)
class Statement:
    """One sentence, and what it rests on."""

    text: str
    basis: Basis
    source: str = ""


@dataclass(frozen=True)
class Ranked:
    """One plane for the workload."""

    plane: Choice
    possible: bool
    meets: bool | None
    """Whether it carries the rate that was asked for; None where that is not known."""
    pps: float | None
    """What all functions send a second; None where it is not known."""
    low_pps: float | None
    high_pps: float | None
    gbps: float | None
    """Of frames without FCS."""
    share: float | None
    """Of the best plane's rate."""
    bottleneck: str
    host_cores: int
    """Cores that it takes from the host beside the guests' own."""
    statements: tuple[Statement, ...]


@dataclass(frozen=True)
class Advice:
    """Planes by suitability, the best first."""

    workload: Workload
    profile: str
    emulated: bool
    sentence: str
    ranking: tuple[Ranked, ...]
    changes: tuple[Statement, ...]
    """What would change the answer."""

    @property
    def best(self) -> Ranked:
        """The plane to use."""
        return self.ranking[0]


def advise(profile: Profile, workload: Workload) -> Advice:
    """Ranks the planes for `workload` on a host; virtio by the kernel is always possible."""
    ranking = _rank(profile, workload)
    best = ranking[0]
    if profile.emulated:
        # An emulated host's order may hold, its figures do not.
        ranking = tuple(_relative(one) for one in ranking)
    return Advice(
        workload=workload,
        profile=profile.name,
        emulated=profile.emulated,
        sentence=_sentence(ranking, workload),
        ranking=ranking,
        changes=tuple(_changes(profile, workload, best)),
    )


def course(profile: Profile, workload: Workload) -> tuple[Prediction, ...]:
    """What the modelled planes carry from one function to more than asked for, all else alike.

    Empty where the guests' kernels bind, and of an emulated host, which has no figures.
    """
    if profile.emulated or workload.application == "kernel":
        return ()
    most = min(LONGEST, max(8, workload.chain.vnfs + 2))
    planes: tuple[Plane, ...] = ("vf-passthrough", "vhost-user")
    return tuple(
        predict(profile, plane, replace(workload.chain, vnfs=vnfs))
        for plane in planes
        for vnfs in range(1, most + 1)
    )


def why_not(advice: Advice, plane: str) -> str:
    """Why `plane` is not the answer, in words.

    Raises:
        BadInputError: no such plane was weighed.
    """
    for place, one in enumerate(advice.ranking):
        if one.plane != plane:
            continue
        if place == 0:
            return f"{_WORDS[one.plane].capitalize()} is the answer."
        said = " ".join(statement.text for statement in one.statements)
        return f"Not {_WORDS[one.plane]}: {said}"
    raise BadInputError(
        f"{plane} was not weighed",
        where="--why-not",
        remedy=f"one of {', '.join(one.plane for one in advice.ranking)}",
    )


def _rank(profile: Profile, workload: Workload) -> tuple[Ranked, ...]:
    found = [
        _vf(profile, workload),
        _vhost(profile, workload),
        _virtio(workload),
    ]
    most = max((one.pps for one in found if one.possible and one.pps is not None), default=None)
    rated = [
        replace(one, share=one.pps / most if one.pps is not None and most else None)
        for one in found
    ]
    return tuple(sorted(rated, key=lambda one: _merit(one, workload)))


def _merit(one: Ranked, workload: Workload) -> tuple[float, ...]:
    """Smaller is better: possible, fast enough, then cheap where alike, else fast."""
    rate = one.pps or 0.0
    if workload.application == "kernel":
        # The kernel's stack in the guest binds on every plane: the simplest one that is possible.
        order = ("virtio-bridge", "vf-passthrough", "vhost-user")
        return (not one.possible, order.index(one.plane))
    if workload.rate_pps is not None and one.meets:
        return (not one.possible, 0, one.host_cores, -rate)
    # Classes of rates that are alike, and within one the plane that takes fewer cores.
    rank = -round(math.log1p(rate) / math.log1p(_ALIKE))
    return (not one.possible, 1, rank, one.host_cores, -rate)


_KERNEL: dict[Plane, Statement] = {
    "vf-passthrough": Statement(
        "For programs on the kernel's sockets a VF carries 39 Gb/s of TCP from messages of 512 "
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


def _modelled(
    profile: Profile, workload: Workload, plane: Plane, cores: int, hindrance: Statement | None
) -> Ranked:
    prediction = predict(profile, plane, workload.chain)
    polling = workload.application == "polling"
    statements = [_bound(prediction, profile) if polling else _KERNEL[plane]]
    meets: bool | None = None
    if workload.rate_pps is not None and polling and not profile.emulated:
        meets = prediction.low_pps >= workload.rate_pps
        word = "carries" if meets else "may not carry" if (
            prediction.high_pps >= workload.rate_pps
        ) else "does not carry"  # fmt: skip
        statements.append(
            Statement(f"It {word} the {rate_text(workload.rate_pps)} that are asked for.", "model")
        )
    if hindrance is not None:
        statements.append(hindrance)
    return Ranked(
        plane=plane,
        possible=hindrance is None,
        meets=meets,
        pps=prediction.pps if polling else None,
        low_pps=prediction.low_pps if polling else None,
        high_pps=prediction.high_pps if polling else None,
        gbps=prediction.bps / 1e9 if polling else None,
        share=None,
        bottleneck=prediction.bottleneck.name if polling else "guest's kernel",
        host_cores=cores,
        statements=tuple(statements),
    )


def _bound(prediction: Prediction, profile: Profile) -> Statement:
    binds = prediction.bottleneck
    figures = (
        ""
        if profile.emulated
        else f" at {rate_text(prediction.pps)} ({rate_text(prediction.low_pps)} to "
        f"{rate_text(prediction.high_pps)})"
    )
    return Statement(
        f"The {binds.name} binds{figures}: {binds.why}.", "model", f"parameters: {binds.basis}"
    )


def _vf(profile: Profile, workload: Workload) -> Ranked:
    hindrance = None
    needed = workload.chain.vnfs
    if workload.live_migration:
        hindrance = Statement(
            "A guest that holds a VF cannot be migrated live; one that can give it back first "
            "(teaming with a virtio NIC, `planewise alloc`) can.",
            "demand",
        )
    elif workload.vfs is not None and workload.vfs < needed:
        hindrance = Statement(
            f"{needed} guests need {needed} VFs, and {workload.vfs} are free.", "demand"
        )
    return _modelled(profile, workload, "vf-passthrough", 0, hindrance)


def _vhost(profile: Profile, workload: Workload) -> Ranked:
    hindrance = None
    if workload.spare_cores is not None and workload.spare_cores < 1:
        hindrance = Statement(
            "A polling switch takes a core of the host whole, and none is to spare.", "demand"
        )
    return _modelled(profile, workload, "vhost-user", 1, hindrance)


def _virtio(workload: Workload) -> Ranked:
    if workload.application == "kernel":
        said = Statement(
            "For programs on the kernel's sockets it carries 35 to 39 Gb/s of TCP on a 40 Gb/s "
            "line from messages of 1024 bytes on; with smaller ones a VF carries up to twice as "
            "much.",
            "literature",
            BRIEF,
        )
        return Ranked(
            "virtio-bridge", True, None, None, None, None, None, None,
            "guest's kernel", 0, (said,),
        )  # fmt: skip
    meets = None if workload.rate_pps is None else workload.rate_pps <= _POLLED_VIRTIO_PPS
    said = Statement(
        f"Under a polling program plain virtio carried at most {rate_text(_POLLED_VIRTIO_PPS)}: "
        "every packet wakes the host's kernel.",
        "literature",
        BRIEF,
    )
    return Ranked(
        "virtio-bridge", True, meets, _POLLED_VIRTIO_PPS, None, None,
        _POLLED_VIRTIO_PPS * 8 * (workload.chain.frame_bytes - 4) / 1e9, None,
        "host's kernel", 0, (said,),
    )  # fmt: skip


def _relative(one: Ranked) -> Ranked:
    # What the publication saw of virtio has no ratio to what an emulated host carries.
    share = None if one.plane == "virtio-bridge" else one.share
    return replace(one, share=share, pps=None, low_pps=None, high_pps=None, gbps=None, meets=None)


def _sentence(ranking: Sequence[Ranked], workload: Workload) -> str:
    best = ranking[0]
    chain = workload.chain
    where = (
        f"{chain.vnfs} functions in a chain" if chain.through
        else f"{chain.vnfs} function{'s' if chain.vnfs > 1 else ''} that each send back"
    )  # fmt: skip
    text = f"Use {_WORDS[best.plane]} for {where}, frames of {chain.frame_bytes} bytes"
    if workload.application == "kernel":
        return f"{text}, on the kernel's sockets."
    if best.pps is not None and best.low_pps is not None and best.high_pps is not None:
        text += f": about {rate_text(best.pps)} in all, {best.gbps:.3g} Gb/s"
    second = next((one for one in ranking[1:] if one.possible and one.share), None)
    if second is not None and second.share is not None and best.share:
        ratio = best.share / second.share
        text += (
            f", about as much as {second.plane}"
            if abs(ratio - 1) <= _ALIKE
            else f", {_times(ratio)} times what {second.plane} carries"
        )
    return f"{text}; what binds is the {best.bottleneck}."


def _times(ratio: float) -> str:
    return f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def _changes(profile: Profile, workload: Workload, best: Ranked) -> Iterator[Statement]:
    """Where the answer is another, found by asking the model again."""
    chain = workload.chain
    if workload.application == "polling":
        yield from _flips(
            profile,
            workload,
            best,
            [
                (n, replace(workload, chain=replace(chain, vnfs=n)))
                for n in range(chain.vnfs + 1, min(LONGEST, 16) + 1)
            ],
            "from {} functions on",
        )
        yield from _flips(
            profile,
            workload,
            best,
            [
                (n, replace(workload, chain=replace(chain, vnfs=n)))
                for n in range(chain.vnfs - 1, 0, -1)
            ],
            "with {} functions or fewer",
        )
        yield from _flips(
            profile,
            workload,
            best,
            [
                (size, replace(workload, chain=replace(chain, frame_bytes=size)))
                for size in _SIZES
                if size > chain.frame_bytes
            ],
            "with frames of {} bytes and more",
        )
        other: Literal["north-south", "east-west"] = (
            "north-south" if chain.pattern == "east-west" else "east-west"
        )
        turned = replace(workload, chain=replace(chain, pattern=other))
        yield from _flips(profile, workload, best, [(other, turned)], "if traffic were {}")
    for relaxed, words in (
        (replace(workload, live_migration=False), "without live migration"),
        (replace(workload, vfs=None), "with a VF for each guest"),
        (replace(workload, spare_cores=None), "with a core to spare for a polling switch"),
        (replace(workload, live_migration=True), "if guests had to migrate live"),
        (replace(workload, spare_cores=0), "without a core for a polling switch"),
    ):
        if relaxed != workload:
            yield from _flips(profile, workload, best, [(words, relaxed)], "{}")


def _flips(
    profile: Profile,
    workload: Workload,
    best: Ranked,
    others: Sequence[tuple[object, Workload]],
    words: str,
) -> Iterator[Statement]:
    for value, other in others:
        ranking = _rank(profile, other)
        if ranking[0].possible and ranking[0].plane != best.plane:
            when = words.format(value)
            yield Statement(f"{when[0].upper()}{when[1:]}: {_WORDS[ranking[0].plane]}.", "model")
            return


__all__ = ["Advice", "Ranked", "Statement", "Workload", "advise", "course", "why_not"]
