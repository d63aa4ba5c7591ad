"""Which plane for a described workload: planes ranked, with what binds and what would change it.

Rests on the capacity model, on what runs measured and on what the publications found; each
statement says on which. Knows no host but a profile and evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, get_args

from planewise.advise.demand import (
    BRIEF,
    DOCKER_STUDY,
    KVM_STUDY,
    Statement,
    Workload,
    hindrances,
    host_cores,
    on_vf,
)
from planewise.advise.evidence import LOAD_WORDS, ChainSeen, Evidence
from planewise.advise.model.capacity import LONGEST, Chain, Plane, Prediction, predict
from planewise.advise.model.latency import floor_ns, line_ns
from planewise.advise.model.profile import Profile
from planewise.errors import BadInputError
from planewise.units import bits_text, percent_text, rate_text, time_text

_ALIKE = 0.10
"""Predictions closer than this are not told apart: some of the fitted rows lie as far off."""
_POLLED_VIRTIO_PPS = 0.08e6
"""What plain virtio carried at best under a polling application (the brief, north-south)."""
_SIZES = (64, 128, 256, 512, 1024, 1518)
_MODELLED: tuple[Plane, ...] = get_args(Plane)
_KERNEL_ORDER = ("virtio-bridge", "vf-passthrough", "vhost-user")
"""Where the guests' kernels bind: the simplest first (the brief)."""
_LATENCY_ORDER = ("vf-passthrough", "vhost-user", "virtio-bridge")
"""Lowest round-trip times first: VFs below bridges by both studies; polling lies between."""
_WORDS = {
    "vf-passthrough": "a VF passed through (SR-IOV)",
    "vhost-user": "vhost-user on a polling switch (OVS-DPDK)",
    "virtio-bridge": "virtio by the kernel",
}


@dataclass(frozen=True)
class Ranked:
    """One plane for the workload."""

    plane: str
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
    measured: bool = False
    """Whether the rate was measured for this very chain, not predicted."""
    at_least: bool = False
    """Something else than the plane was the limit of that measurement."""
    meets_latency: bool | None = None
    """Whether it keeps the latency goal; None where that is not known, or none was asked for."""
    rtt_p99_ns: float | None = None
    """99th percentile of round-trip times measured under the worst load; None: not measured."""
    floor_ns: float | None = None
    """No packet is faster, by the model; None where there is none."""
    known: bool = True
    """Whether the profile or a run tells of it; else only demands and literature do."""
    place: int | None = None
    """Among what one run measured, by TCP's goodput or by round-trip time; 1 is the best."""


@dataclass(frozen=True)
class Advice:
    """Planes by suitability, the best first."""

    workload: Workload
    profile: str
    """Empty without one."""
    emulated: bool
    sentence: str
    ranking: tuple[Ranked, ...]
    changes: tuple[Statement, ...]
    """What would change the answer."""
    notes: tuple[Statement, ...] = ()
    """What to keep in mind of the profile and of the runs."""

    @property
    def best(self) -> Ranked:
        """The plane to use; where nothing is possible, the one that comes nearest."""
        return self.ranking[0]


@dataclass(frozen=True)
class _Known:
    """All that an answer rests on."""

    profile: Profile | None
    evidence: tuple[Evidence, ...]

    def of(self, plane: str) -> tuple[Evidence, ...]:
        """What runs tell of a plane; figures before orders."""
        own = (one for one in self.evidence if one.plane == plane)
        return tuple(sorted(own, key=lambda one: bool(one.order_only)))

    @property
    def planes(self) -> tuple[str, ...]:
        """The planes that are weighed: those of the publications, and what was measured."""
        measured = (one.plane for one in self.evidence)
        return tuple(dict.fromkeys((*_MODELLED, "virtio-bridge", *measured)))


def advise(
    profile: Profile | None, workload: Workload, evidence: Sequence[Evidence] = ()
) -> Advice:
    """Ranks the planes for `workload` on a host.

    Without a profile nothing is predicted: then only evidence, demands and literature speak.
    """
    known = _Known(profile, tuple(evidence))
    ranking = _rank(known, workload)
    best = ranking[0]
    emulated = profile is not None and profile.emulated
    if emulated:
        # An emulated host's order may hold, its figures do not.
        ranking = tuple(one if one.measured else _relative(one) for one in ranking)
    return Advice(
        workload=workload,
        profile="" if profile is None else profile.name,
        emulated=emulated,
        sentence=_sentence(ranking, workload),
        ranking=ranking,
        changes=tuple(_changes(known, workload, best)),
        notes=tuple(_notes(known)),
    )


def course(profile: Profile | None, workload: Workload) -> tuple[Prediction, ...]:
    """What the modelled planes carry from one function to more than asked for, all else alike.

    Empty where the guests' kernels bind, without a profile, and of an emulated host, which has no
    figures.
    """
    if profile is None or profile.emulated or workload.application == "kernel":
        return ()
    most = min(LONGEST, max(8, workload.chain.vnfs + 2))
    return tuple(
        predict(profile, plane, replace(workload.chain, vnfs=vnfs))
        for plane in _MODELLED
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
        words = _words(one.plane)
        if place == 0 and one.possible:
            return f"{words[0].upper()}{words[1:]} is the answer."
        said = " ".join(statement.text for statement in one.statements)
        return f"Not {words}: {said}"
    raise BadInputError(
        f"{plane} was not weighed",
        where="--why-not",
        remedy=f"one of {', '.join(one.plane for one in advice.ranking)}",
    )


def _words(plane: str) -> str:
    return _WORDS.get(plane, plane)


def _rank(known: _Known, workload: Workload) -> tuple[Ranked, ...]:
    found = [_weigh(known, workload, plane) for plane in known.planes]
    most = max((one.pps for one in found if one.possible and one.pps is not None), default=None)
    rated = [
        replace(one, share=one.pps / most if one.pps is not None and most else None)
        for one in found
    ]
    return tuple(sorted(rated, key=lambda one: _merit(one, workload)))


def _merit(one: Ranked, workload: Workload) -> tuple[float, ...]:
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
    rank = -round(math.log1p(rate) / math.log1p(_ALIKE))
    return (*head, 1, rank, *late, one.host_cores, -rate)


def _lateness(one: Ranked) -> tuple[float, float]:
    """Known to keep the latency goal first; else as the publications order the planes."""
    return float(not one.meets_latency), float(_order(_LATENCY_ORDER, one.plane))


def _order(order: Sequence[str], plane: str) -> int:
    if plane in order:
        return order.index(plane)
    # Another VF is one; whatever else was measured is the kernel's.
    return order.index("vf-passthrough" if on_vf(plane) else "virtio-bridge")


def _weigh(known: _Known, workload: Workload, plane: str) -> Ranked:
    """One plane: what it carries, then what rules it out."""
    one = (
        _modelled(known.profile, workload, plane)
        if plane in _MODELLED
        else _virtio(known.profile, workload)
        if plane == "virtio-bridge"
        else _measured_only(workload, plane)
    )
    if known.profile is not None and known.profile.emulated:
        one = replace(one, meets=None, floor_ns=None)
    one = _with_evidence(one, known.of(plane), workload)
    against = list(hindrances(known.profile, workload, plane))
    one, too_late = _hold_to_latency(one, known, workload)
    against += too_late
    against += _too_much_cpu(known.of(plane), workload)
    return replace(
        one,
        possible=not against,
        known=known.profile is not None or bool(known.of(plane)),
        statements=(*one.statements, *_of_neighbours(workload, plane), *against),
    )


# --- what it carries ----------------------------------------------------------------------------


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


def _modelled(profile: Profile | None, workload: Workload, plane: Plane) -> Ranked:
    empty = Ranked(
        plane, True, None, None, None, None, None, None,
        "guest's kernel" if workload.application == "kernel" else "not known",
        host_cores(plane), (),
    )  # fmt: skip
    if workload.application == "kernel":
        floor = None if profile is None else floor_ns(profile, plane, workload.chain)
        return replace(empty, statements=(_KERNEL[plane],), floor_ns=floor)
    if profile is None:
        said = Statement(
            "Without a host profile nothing is predicted.", "model", "--profile names one"
        )
        return replace(empty, statements=(said,))
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
    return one if profile.emulated else _hold_to_rate(one, workload, "model")


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


def _hold_to_rate(
    one: Ranked, workload: Workload, basis: Literal["model", "measurement"], source: str = ""
) -> Ranked:
    """With a sentence on the rate that was asked for, where one was and it is known.

    A rate without an interval is not taken as exact: one that was seen at least is a lower bound,
    and nothing else tells on which side of the demand it lies.
    """
    if workload.rate_pps is None or one.pps is None:
        return one
    low, high = one.low_pps, one.high_pps
    if low is None and one.at_least:
        low = one.pps
    if low is None:
        what = "measurement" if one.measured else "prediction"
        said = Statement(
            f"Whether it carries the {rate_text(workload.rate_pps)} that are asked for is not "
            f"known: the {what} has no interval.",
            basis,
            source,
        )
        return replace(one, meets=None, statements=(*one.statements, said))
    high = math.inf if high is None else high
    meets = True if low >= workload.rate_pps else False if high < workload.rate_pps else None
    word = {True: "carries", False: "does not carry", None: "may or may not carry"}[meets]
    said = Statement(
        f"It {word} the {rate_text(workload.rate_pps)} that are asked for.", basis, source
    )
    return replace(one, meets=meets, statements=(*one.statements, said))


def _virtio(profile: Profile | None, workload: Workload) -> Ranked:
    floor = None if profile is None else line_ns(profile, workload.chain)
    if workload.application == "kernel":
        said = Statement(
            "For programs on the kernel's sockets it carries 35 to 39 Gbit/s of TCP on a 40 Gbit/s "
            "line from messages of 1024 bytes on; with smaller ones a VF carries up to twice as "
            "much.",
            "literature",
            BRIEF,
        )
        return Ranked(
            "virtio-bridge", True, None, None, None, None, None, None,
            "guest's kernel", 0, (said,), floor_ns=floor,
        )  # fmt: skip
    # "At most" rules a rate out, and never in.
    asked = workload.rate_pps
    meets = False if asked is not None and asked > _POLLED_VIRTIO_PPS else None
    said = Statement(
        f"Under a polling program plain virtio carried at most {rate_text(_POLLED_VIRTIO_PPS)}: "
        "every packet wakes the host's kernel.",
        "literature",
        BRIEF,
    )
    return Ranked(
        "virtio-bridge", True, meets, _POLLED_VIRTIO_PPS, None, None,
        _POLLED_VIRTIO_PPS * 8 * (workload.chain.frame_bytes - 4) / 1e9, None,
        "host's kernel", 0, (said,), floor_ns=floor,
    )  # fmt: skip


def _measured_only(workload: Workload, plane: str) -> Ranked:
    binds = "guest's kernel" if workload.application == "kernel" else "not known"
    return Ranked(plane, True, None, None, None, None, None, None, binds, 0, ())


# --- what runs measured -------------------------------------------------------------------------


def _with_evidence(one: Ranked, evidence: Sequence[Evidence], workload: Workload) -> Ranked:
    statements = list(one.statements)
    for seen in evidence:
        statements += _seen(seen)
    one = replace(one, statements=tuple(statements))
    streams = [seen.tcp_place for seen in evidence if seen.tcp_place]
    times = [seen.rtt_place for seen in evidence if seen.rtt_place and len(seen.rivals) > 1]
    # Sockets that want throughput are told apart by that, where it was measured.
    places = times if workload.latency_ns is not None else [*streams, *times]
    figures = [seen for seen in evidence if not seen.order_only]
    tails = [seen.worst_p99.value for seen in figures if seen.worst_p99 is not None]
    one = replace(
        one,
        place=places[0] if places else None,
        rtt_p99_ns=max(tails, default=None),
    )
    if workload.application == "kernel":
        return one
    for seen in figures:
        chain = seen.chain(workload.chain)
        if chain is not None:
            return _with_chain(one, seen.run, chain, workload)
    for seen in figures:
        found = _as_chain(seen, workload.chain)
        if found is not None and one.plane not in _MODELLED:
            return _with_chain(one, seen.run, found, workload)
    return one


def _as_chain(seen: Evidence, chain: Chain) -> ChainSeen | None:
    """One pair of guests is a chain of one function that sends to the other host."""
    rate = seen.forwarded
    if rate is None or chain.vnfs != 1 or seen.forwarded_bytes != chain.frame_bytes:
        return None
    limit = "generator" if rate.at_least else "kernel"
    return ChainSeen(
        chain.pattern, 1, chain.frame_bytes, rate.value, rate.low, rate.high, limit, rate.at_least
    )


def _with_chain(one: Ranked, run: str, seen: ChainSeen, workload: Workload) -> Ranked:
    """A measurement of the very chain takes the prediction's place.

    Where something else than the plane was the limit, only if it is more than predicted.
    """
    carried = f"Measured: this chain sent {rate_text(seen.pps)}"
    if seen.low_pps is not None and seen.high_pps is not None:
        carried += f" ({rate_text(seen.low_pps)} to {rate_text(seen.high_pps)})"
    if seen.at_least:
        why = "" if seen.limit == "unknown" else f", where the {seen.limit} was the limit"
        said = Statement(f"{carried} at least{why}.", "measurement", run)
    else:
        said = Statement(f"{carried}; the {seen.limit} was the limit.", "measurement", run)
    # The model's word on the rate is taken back.
    kept = tuple(
        statement
        for statement in one.statements
        if seen.at_least or "asked for" not in statement.text
    )
    one = replace(one, statements=(*kept, said))
    if seen.at_least and one.pps is not None and one.pps >= seen.pps:
        return one
    one = replace(
        one,
        measured=True,
        at_least=seen.at_least,
        meets=None,
        pps=seen.pps,
        low_pps=seen.low_pps,
        high_pps=None if seen.at_least else seen.high_pps,
        gbps=seen.pps * 8 * (seen.frame_bytes - 4) / 1e9,
        bottleneck=seen.limit,
    )
    return _hold_to_rate(one, workload, "measurement", run)


def _seen(seen: Evidence) -> Iterator[Statement]:
    """What a run tells of a plane, in sentences."""
    if seen.rtt_place is not None and len(seen.rivals) > 1:
        place = f"number {seen.rtt_place} of {len(seen.rivals)}"
        others = ", ".join(seen.rivals)
        yield Statement(
            f"By median round-trip time it was {place} ({others}).",
            "measurement",
            f"{seen.run}, emulated: the order alone counts" if seen.order_only else seen.run,
        )
    if seen.tcp_place is not None:
        yield Statement(
            f"By the goodput of TCP it was number {seen.tcp_place}.",
            "measurement",
            f"{seen.run}, emulated: the order alone counts" if seen.order_only else seen.run,
        )
    if seen.order_only:
        return
    if seen.tcp:
        shown = ", ".join(f"{bits_text(bps)} of {size} bytes" for size, bps in seen.tcp.items())
        yield Statement(f"TCP by messages: {shown}.", "measurement", seen.run)
    for load, median in seen.rtt_p50.items():
        if load not in LOAD_WORDS:
            continue
        tail = seen.rtt_p99.get(load)
        most = f", {time_text(tail.value)} for 99 of 100" if tail is not None else ""
        yield Statement(
            f"Round-trip time {LOAD_WORDS[load]}: {time_text(median.value)} in the median{most}.",
            "measurement",
            seen.run,
        )
    if seen.forwarded is not None:
        least = "at least " if seen.forwarded.at_least else ""
        size = f" of {seen.forwarded_bytes} bytes" if seen.forwarded_bytes else ""
        yield Statement(
            f"One pair of guests: {least}{rate_text(seen.forwarded.value)}{size}.",
            "measurement",
            seen.run,
        )
    if seen.cpu_ns is not None:
        yield Statement(
            f"It took {time_text(seen.cpu_ns)} of the kernel's CPU for each packet.",
            "measurement",
            seen.run,
        )
    if seen.sent:
        share = "none" if not seen.lost else percent_text(seen.lost / seen.sent)
        yield Statement(f"Probe packets lost: {share} of {seen.sent}.", "measurement", seen.run)


# --- what rules a plane out beside the demands alone ---------------------------------------------


def _hold_to_latency(
    one: Ranked, known: _Known, workload: Workload
) -> tuple[Ranked, list[Statement]]:
    """With what is known of the latency goal; and why the plane cannot keep it."""
    goal = workload.latency_ns
    if goal is None:
        return one, []
    wanted = f"{time_text(goal)} for 99 of 100 packets"
    if one.floor_ns is not None and one.floor_ns > goal:
        return replace(one, meets_latency=False), [
            Statement(
                f"Work and wires alone take {time_text(one.floor_ns)}, and the goal is "
                f"{time_text(goal)}.",
                "model",
                "lower bound: no queue, no wake-up",
            )
        ]
    if one.meets is False:
        return replace(one, meets_latency=False), [
            Statement(
                "More is asked for than it carries: its queues stay full, and no latency goal "
                "can be kept.",
                "model",
            )
        ]
    measured = [
        (seen.worst_p99, seen)
        for seen in known.of(one.plane)
        if not seen.order_only and seen.worst_p99 is not None
    ]
    if measured:
        # The worst of all runs: a goal that was missed once is not kept.
        tail, seen = max(measured, key=lambda pair: pair[0].value)
        load = LOAD_WORDS.get(tail.load_type, tail.load_type)
        if tail.value > goal:
            return replace(one, meets_latency=False), [
                Statement(
                    f"99 of 100 packets took up to {time_text(tail.value)} {load}, and the goal "
                    f"is {time_text(goal)}.",
                    "measurement",
                    seen.run,
                )
            ]
        said = Statement(
            f"It kept {wanted}: {time_text(tail.value)} {load}, the worst that was measured.",
            "measurement",
            seen.run,
        )
        return replace(one, meets_latency=True, statements=(*one.statements, said)), []
    bound = f"at least {time_text(one.floor_ns)} by the model; " if one.floor_ns is not None else ""
    said = Statement(
        f"Whether it keeps {wanted} is not known: {bound}`--run` takes a measurement.", "model"
    )
    return replace(one, statements=(*one.statements, said, *_latency_literature(one.plane))), []


def _latency_literature(plane: str) -> Iterator[Statement]:
    if on_vf(plane):
        yield Statement(
            "Round-trip times on VFs were the lowest of all planes: half of a bridge's and less.",
            "literature",
            f"{KVM_STUDY}; {DOCKER_STUDY}",
        )
    elif plane == "virtio-bridge":
        yield Statement(
            "Round-trip times over a bridge were twice those on VFs and more, beside busy "
            "neighbours ten times.",
            "literature",
            f"{KVM_STUDY}; {DOCKER_STUDY}",
        )


def _too_much_cpu(evidence: Sequence[Evidence], workload: Workload) -> list[Statement]:
    """Where the kernel carries packets, its measured time for them must be there."""
    spare = workload.spare_cores
    if spare is None or workload.rate_pps is None:
        return []
    for seen in evidence:
        if seen.order_only or seen.cpu_ns is None:
            continue
        needed = workload.rate_pps * seen.cpu_ns / 1e9
        if needed > spare:
            return [
                Statement(
                    f"At {rate_text(workload.rate_pps)} the kernel would take {needed:.1f} cores, "
                    f"and {spare} {'is' if spare == 1 else 'are'} to spare.",
                    "measurement",
                    seen.run,
                )
            ]
    return []


def _of_neighbours(workload: Workload, plane: str) -> Iterator[Statement]:
    if "load" not in workload.isolation:
        return
    if plane == "vhost-user":
        yield Statement(
            "All guests share the core that polls: what one sends takes from the others.", "model"
        )
    elif on_vf(plane):
        yield Statement(
            "A VF has queues of its own, and its rate can be capped in the NIC.",
            "literature",
            "ip-link(8), `vf`: max_tx_rate",
        )
    else:
        yield Statement(
            "Guests share the host's kernel: its round-trip times grew tenfold beside busy "
            "neighbours.",
            "literature",
            DOCKER_STUDY,
        )


# --- words --------------------------------------------------------------------------------------


def _relative(one: Ranked) -> Ranked:
    # What the publication saw of virtio has no ratio to what an emulated host carries.
    share = None if one.plane == "virtio-bridge" else one.share
    return replace(one, share=share, pps=None, low_pps=None, high_pps=None, gbps=None, meets=None)


def _sentence(ranking: Sequence[Ranked], workload: Workload) -> str:
    best = ranking[0]
    chain = workload.chain
    where = (
        f"{chain.vnfs} functions in a chain" if chain.through
        else f"{chain.vnfs} function{'s' if chain.vnfs > 1 else ''} that each "
        f"send{'' if chain.vnfs > 1 else 's'} back" if chain.vnfs > 1
        else "a function that sends back"
    )  # fmt: skip
    sized = f"{where}, frames of {chain.frame_bytes} bytes"
    if not best.possible:
        return (
            f"No plane gives all that is asked for {sized}; {_words(best.plane)} comes nearest. "
            "What to give up is below."
        )
    text = f"Use {_words(best.plane)} for {sized}"
    if workload.application == "kernel":
        return f"{text}, on the kernel's sockets."
    if best.pps is not None and best.gbps is not None:
        about = "" if best.measured else "about "
        text += f": {about}{rate_text(best.pps)} in all, {best.gbps:.3g} Gbit/s"
    second = next((one for one in ranking[1:] if one.possible and one.share), None)
    if second is not None and second.share is not None and best.share:
        ratio = best.share / second.share
        text += (
            f", about as much as {second.plane}"
            if abs(ratio - 1) <= _ALIKE
            else f", {_times(ratio)} times what {second.plane} carries"
        )
    text += f"; what binds is {_the(best.bottleneck)}."
    if workload.rate_pps is not None and not any(one.meets for one in ranking if one.possible):
        sure = all(one.meets is False for one in ranking if one.possible)
        text += (
            f" No plane that is possible here carries the {rate_text(workload.rate_pps)} that are "
            "asked for."
            if sure
            else f" Whether any carries the {rate_text(workload.rate_pps)} that are asked for is "
            "not certain."
        )
    return text


def _the(bottleneck: str) -> str:
    return bottleneck if bottleneck in ("not known", "unknown") else f"the {bottleneck}"


def _times(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 1 else f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def _notes(known: _Known) -> Iterator[Statement]:
    profile = known.profile
    for plane in _MODELLED:
        if profile is None or profile.emulated:
            continue
        if predict(profile, plane, Chain("north-south", 1, 64)).known:
            continue
        yield Statement(
            f"For {plane} this profile was never held against measurements: its figures have no "
            "interval and may be far off. `planewise calibrate` fits it.",
            profile.cores.basis,
            profile.cores.source,
        )
    for run, machine in dict.fromkeys((one.run, one.virtualised) for one in known.evidence):
        if machine:
            yield Statement(
                f"{run} was measured inside a virtual machine ({machine}): its times are not those "
                "of hardware.",
                "measurement",
                run,
            )
    for run, why in dict.fromkeys(
        (one.run, one.order_only) for one in known.evidence if one.order_only
    ):
        yield Statement(
            f"Of {run} the order of planes counts, no figure: {why}.", "measurement", run
        )


def _changes(known: _Known, workload: Workload, best: Ranked) -> Iterator[Statement]:
    """Where the answer is another, found by asking the model again."""
    chain = workload.chain
    if workload.application == "polling":
        yield from _flips(
            known,
            workload,
            best,
            [
                (n, _with_functions(workload, n))
                for n in range(chain.vnfs + 1, min(LONGEST, 16) + 1)
            ],
            "from {} functions on",
        )
        yield from _flips(
            known,
            workload,
            best,
            [(n, _with_functions(workload, n)) for n in range(chain.vnfs - 1, 0, -1)],
            "with {} functions or fewer",
        )
        yield from _flips(
            known,
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
        yield from _flips(known, workload, best, [(other, turned)], "if traffic were {}")
    given_up = [
        (words, change)
        for words, change in _GIVEN_UP.items()
        if replace(workload, **change) != workload
    ]
    found = False
    for count in (1, 2) if best.possible else (1, 2, 3):
        for some in combinations(given_up, count):
            together = replace(workload, **{k: v for _, one in some for k, v in one.items()})
            words = " and ".join(name for name, _ in some)
            for statement in _flips(known, workload, best, [(words, together)], "without {}"):
                found = True
                yield statement
        if found:
            break
    for words, change in _ASKED_MORE.items():
        asked = replace(workload, **change)
        if asked != workload:
            yield from _flips(known, workload, best, [(words, asked)], "{}")


def _with_functions(workload: Workload, vnfs: int) -> Workload:
    """The same with so many functions, and as many guests, or more where there must be."""
    guests = None if workload.guests is None else max(workload.guests, vnfs)
    return replace(workload, chain=replace(workload.chain, vnfs=vnfs), guests=guests)


_GIVEN_UP: dict[str, dict[str, Any]] = {
    "live migration": {"live_migration": False},
    "the limit of VFs": {"vfs": None, "guests": None},
    "the limit of spare cores": {"spare_cores": None},
    "the limit of cores": {"cores": None},
    "the latency goal": {"latency_ns": None},
    "isolation": {"isolation": ()},
}
"""Demands that can be given up, and how a workload is without."""
_ASKED_MORE: dict[str, dict[str, Any]] = {
    "if guests had to migrate live": {"live_migration": True},
    "without a core for a polling switch": {"spare_cores": 0},
}


def _flips(
    known: _Known,
    workload: Workload,
    best: Ranked,
    others: Sequence[tuple[object, Workload]],
    words: str,
) -> Iterator[Statement]:
    for value, other in others:
        first = _rank(known, other)[0]
        if first.possible and (first.plane != best.plane or not best.possible):
            when = words.format(value)
            yield Statement(f"{when[0].upper()}{when[1:]}: {_words(first.plane)}.", "model")
            return


__all__ = ["Advice", "Ranked", "Statement", "Workload", "advise", "course", "why_not"]
