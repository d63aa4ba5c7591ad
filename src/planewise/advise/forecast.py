"""One plane for a workload: what it carries, what was measured of it, and what rules it out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from planewise.advise.evidence import Evidence, MeasuredChain
from planewise.advise.model.capacity import WORDS, floor_ns, line_ns, predict
from planewise.advise.model.profile import PLANES, Plane, Profile
from planewise.advise.recommend import LOAD_WORDS, value_of
from planewise.advise.workload import Workload
from planewise.judge.bounded import Bound
from planewise.units import count_text, rate_text, time_text

Basis = Literal["measurement", "data sheet", "literature", "assumption", "model", "demand"]

BRIEF = "Intel 335625 (SR-IOV for NFV solutions, 2017)"
KVM_STUDY = "Comput. Commun. 211 (2023), KVM guests"
DOCKER_STUDY = "the same authors on Docker containers"
_POLLED_VIRTIO_PPS = 0.08e6
"""What plain virtio carried at best under a polling application (the brief, north-south)."""
_KERNEL: dict[str, tuple[str, str]] = {
    "vf-passthrough": (
        "For programs on the kernel's sockets a VF carries 39 Gbit/s of TCP from messages of 512 "
        "bytes on, where virtio has 20; from 1024 bytes on both fill the line to nine tenths.",
        BRIEF,
    ),
    "vhost-user": (
        "For programs on the kernel's sockets it carries what virtio does, or less, and takes a "
        "core of the host besides.",
        BRIEF,
    ),
    "memif": ("memif has no interface for programs on the kernel's sockets.", "DPDK, memif"),
    "virtio-bridge": (
        "For programs on the kernel's sockets it carries 35 to 39 Gbit/s of TCP on a 40 Gbit/s "
        "line from messages of 1024 bytes on; with smaller ones a VF carries up to twice as much.",
        BRIEF,
    ),
}
"""What is known where the guest's kernel binds, not the plane, and by which source."""


@dataclass(frozen=True)
class Statement:
    """One sentence, and what it rests on."""

    text: str
    basis: Basis
    source: str = ""

    @property
    def rests_on(self) -> str:
        """Basis and source."""
        return f"{self.basis}; {self.source}" if self.source else self.basis


@dataclass
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
    statements: list[Statement] = field(default_factory=list)
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
    """Whether the profile or a run covers it; otherwise only demands and literature are known."""
    place: int | None = None
    """Among what one run measured, by TCP's goodput or by round-trip time; 1 is the best."""

    def say(self, text: str, basis: Basis, source: str = "") -> None:
        """Adds a sentence."""
        self.statements.append(Statement(text, basis, source))

    def rule_out(self, text: str, basis: Basis, source: str = "") -> None:
        """Adds a sentence on why it is not possible."""
        self.possible = False
        self.say(text, basis, source)

    def carries(self, pps: float, frame_bytes: int) -> None:
        """Sets the rate."""
        self.pps, self.gbps = pps, pps * 8 * (frame_bytes - 4) / 1e9


def forecast(
    profile: Profile | None, evidence: Sequence[Evidence], workload: Workload, plane: str
) -> PlaneForecast:
    """What `plane` carries, then what rules it out. `evidence` is that on this plane."""
    switch_cores = workload.chain.switch_cores if plane in ("vhost-user", "memif") else 0
    known = profile is not None or bool(evidence)
    one = PlaneForecast(plane, host_cores=switch_cores, known=known)
    _predict(one, profile, workload)
    # Figures before orders.
    pieces = sorted(evidence, key=lambda piece: bool(piece.order_only))
    _measure(one, pieces, workload)
    if one.measured or (plane in PLANES and not (profile and profile.emulated)):
        run = one.statements[-1].source if one.measured else ""
        hold_to_rate(one, workload, "measurement" if one.measured else "model", run)
    _beside_neighbours(one, workload)
    _hold_to_demands(one, profile, workload)
    _hold_to_latency(one, pieces, workload)
    _hold_to_cpu(one, pieces, workload)
    return one


# --- predicted ----------------------------------------------------------------------------------


def _predict(one: PlaneForecast, profile: Profile | None, workload: Workload) -> None:
    """The rate by the model or, of planes that it does not know, by literature."""
    chain, plane = workload.chain, modelled(one.plane)
    real = profile is not None and not profile.emulated
    if workload.application == "kernel":
        one.bottleneck = "guest's kernel"
    if profile is not None and real and (plane or one.plane == "virtio-bridge"):
        one.floor_ns = floor_ns(profile, plane, chain) if plane else line_ns(profile, chain)
    if workload.application == "kernel":
        if one.plane in _KERNEL:
            text, source = _KERNEL[one.plane]
            one.say(text, "literature", source)
    elif one.plane == "virtio-bridge":
        one.carries(_POLLED_VIRTIO_PPS, chain.frame_bytes)
        one.bottleneck = "host's kernel"
        # "At most" rules a rate out, and never in.
        if workload.rate_pps and workload.rate_pps > _POLLED_VIRTIO_PPS and (real or not profile):
            one.meets = False
        one.say(
            f"Under a polling program plain virtio carried at most {rate_text(_POLLED_VIRTIO_PPS)}:"
            " every packet wakes the host's kernel.",
            "literature",
            BRIEF,
        )
    elif plane and profile is None:
        one.say("Without a host profile nothing is predicted.", "model", "--profile names one")
    elif plane and profile:
        _by_model(one, profile, workload, plane)


def _by_model(one: PlaneForecast, profile: Profile, workload: Workload, plane: Plane) -> None:
    prediction = predict(profile, plane, workload.chain)
    if prediction is None:
        one.floor_ns = None
        one.say(
            f"Not known: the profile has no measurement of {plane}. Measure its chains, and fit "
            "them with `planewise calibrate`.",
            "model",
        )
        return
    binds = prediction.bottleneck
    one.carries(prediction.pps, workload.chain.frame_bytes)
    one.low_pps, one.high_pps = prediction.interval or (None, None)
    one.bottleneck = binds.name
    rate = "" if profile.emulated else f" at {rate_text(prediction.pps)}"
    if rate and prediction.interval:
        rate += " ({} to {})".format(*map(rate_text, prediction.interval))
    text = f"The bottleneck is the {binds.name}{rate}: {binds.why}."
    if beyond := " and ".join(WORDS[name] for name in prediction.unmeasured):
        text += f" Extrapolated: no chain with this {beyond} was measured."
    if missing := " and ".join(WORDS[name] for name in prediction.unknown):
        text += f" How far off is not known: measure a chain with this {missing}."
    one.say(text, "model", f"parameters: {binds.basis}")


def modelled(plane: str) -> Plane | None:
    """The plane as the model knows it; None where it does not."""
    return next((known for known in PLANES if known == plane), None)


def hold_to_rate(one: PlaneForecast, workload: Workload, basis: Basis, source: str = "") -> None:
    """Says whether the plane carries the rate asked for, where both are known.

    A rate without an interval is not taken as exact: a measured bound from below is its lower end;
    else it is not known on which side of the demand the rate lies.
    """
    asked, low, high = workload.rate_pps, one.low_pps, one.high_pps
    if asked is None or one.pps is None:
        return
    if low is None and one.at_least:
        low = one.pps
    if low is None:
        one.meets = None
        origin = "measurement" if one.measured else "prediction"
        one.say(
            f"Whether it carries the {rate_text(asked)} that are asked for is not known: the "
            f"{origin} has no interval.",
            basis,
            source,
        )
        return
    one.meets = True if low >= asked else False if (high or math.inf) < asked else None
    word = {True: "carries", False: "does not carry", None: "may or may not carry"}[one.meets]
    one.say(f"It {word} the {rate_text(asked)} that are asked for.", basis, source)


# --- measured -----------------------------------------------------------------------------------


def _measure(one: PlaneForecast, evidence: Sequence[Evidence], workload: Workload) -> None:
    """Adds what runs measured on the plane; a measurement of the same chain replaces the model."""
    for piece in evidence:
        source = f"{piece.run}, emulated: the order alone counts" if piece.order_only else piece.run
        for text in piece.sentences:
            one.say(text, "measurement", source)
    streams = [piece.tcp_place for piece in evidence if piece.tcp_place]
    times = [piece.rtt_place for piece in evidence if piece.rtt_place]
    # Without a latency goal, planes are compared by TCP's goodput if it was measured.
    places = times if workload.latency_ns is not None else [*streams, *times]
    one.place = next(iter(places), None)
    figures = [piece for piece in evidence if not piece.order_only]
    # A bound from below that is as late comes first: it may be later.
    worst = max(
        (tail for piece in figures for tail in piece.tails),
        key=lambda tail: (tail.value, tail.bound == "at least"),
        default=None,
    )
    if worst is not None:
        one.rtt_p99_ns, one.rtt_p99_bound = worst.value, worst.bound
    if workload.application == "kernel":
        return
    for piece in figures:
        chain = piece.chain(workload.chain, as_pair=one.plane not in PLANES)
        if chain is not None:
            _as_measured(one, piece.run, chain)
            return


def _as_measured(one: PlaneForecast, run: str, chain: MeasuredChain) -> None:
    """A measurement of the very chain takes the prediction's place.

    Where something else than the plane was the limit, only if it is more than predicted.
    """
    carried = f"Measured: this chain sent {rate_text(chain.pps)}"
    if chain.low_pps is not None and chain.high_pps is not None:
        carried += f" ({rate_text(chain.low_pps)} to {rate_text(chain.high_pps)})"
    if chain.at_least:
        reason = "" if chain.limit == "unknown" else f", where the {chain.limit} was the limit"
        one.say(f"{carried} at least{reason}.", "measurement", run)
        if one.pps is not None and one.pps >= chain.pps:
            return
    else:
        one.say(f"{carried}; the {chain.limit} was the limit.", "measurement", run)
    one.measured, one.at_least, one.meets = True, chain.at_least, None
    one.carries(chain.pps, chain.frame_bytes)
    one.low_pps, one.high_pps = chain.low_pps, None if chain.at_least else chain.high_pps
    one.bottleneck = chain.limit


# --- ruled out ----------------------------------------------------------------------------------


def on_vf(plane: str) -> bool:
    """Whether a guest on `plane` holds a VF."""
    return plane in ("vf", "vf-passthrough", "macvtap-vf")


def _beside_neighbours(one: PlaneForecast, workload: Workload) -> None:
    """How neighbours' load affects the plane, where isolation from load was asked for."""
    if "load" not in workload.isolation:
        return
    if one.plane == "vhost-user":
        text = "All guests share the core that polls: what one sends takes from the others."
        one.say(text, "model")
    elif on_vf(one.plane):
        text = "A VF has queues of its own, and its rate can be capped in the NIC."
        one.say(text, "literature", "ip-link(8), `vf`: max_tx_rate")
    else:
        text = "Guests share the host's kernel: its round-trip times grew tenfold beside busy "
        one.say(f"{text}neighbours.", "literature", DOCKER_STUDY)


def _hold_to_demands(one: PlaneForecast, profile: Profile | None, workload: Workload) -> None:
    """Rules the plane out where it cannot give what is asked for, whatever it carries."""
    if on_vf(one.plane):
        _hold_to_vfs(one, profile, workload)
    if one.plane == "vhost-user" and "memory" in workload.isolation:
        one.rule_out(
            "The switch maps the guests' memory to copy packets: a fault in it reaches every "
            "guest, and isolation of memory was asked for.",
            "literature",
            "QEMU, vhost-user: guests' memory is shared with the back end",
        )
    chain = workload.chain
    if workload.spare_cores is not None and workload.spare_cores < one.host_cores:
        text = "A polling switch takes a whole core of the host, and there is none to spare."
        one.rule_out(text, "demand")
    functions = chain.functions * chain.vnf_cores if workload.application == "polling" else 0
    needed = functions + one.host_cores
    if workload.cores is not None and workload.cores < needed:
        who = [count_text(chain.functions, "polling function")] if functions else []
        who += ["the polling switch"] if one.host_cores else []
        words = " and ".join(who)
        one.rule_out(
            f"{words[0].upper()}{words[1:]} need{'s' if needed == 1 else ''} "
            f"{count_text(needed, 'core')}, and the budget is {workload.cores}.",
            "demand",
        )


def _hold_to_vfs(one: PlaneForecast, profile: Profile | None, workload: Workload) -> None:
    if workload.live_migration:
        one.rule_out(
            "A guest that holds a VF cannot be migrated live; one that can give it back first "
            "(teaming with a virtio NIC, `planewise alloc`) can.",
            "demand",
        )
    if "filtering" in workload.isolation and one.plane != "macvtap-vf":
        one.rule_out(
            "Packets of a VF never pass the host's kernel: the NIC checks addresses and VLANs "
            "alone, and filtering on the host was asked for.",
            "literature",
            "ip-link(8), `vf`: spoofchk, vlan, trust, max_tx_rate",
        )
    needed, free = workload.holders, workload.vfs
    of_nic = None if profile is None else profile.vfs
    words = f"{needed} guests need {needed} VFs, and"
    sharing = "`planewise alloc` shares them out among the guests that gain most."
    if free is not None and free < needed:
        one.rule_out(f"{words} {free} are free; {sharing}", "demand")
    elif free is None and profile and of_nic is not None and of_nic < needed:
        source = f"vfs of the profile {profile.name}"
        one.rule_out(f"{words} the NIC has {of_nic}; {sharing}", "data sheet", source)


def _hold_to_latency(one: PlaneForecast, evidence: Sequence[Evidence], workload: Workload) -> None:
    """Rules the plane out where it cannot keep the latency goal; says where that is not known."""
    goal, floor = workload.latency_ns, one.floor_ns
    if goal is None:
        return
    if floor is not None and floor > goal:
        one.meets_latency = False
        one.rule_out(
            f"Work and wires alone take {time_text(floor)}, and the goal is {time_text(goal)}.",
            "model",
            "lower bound: no queue, no wake-up",
        )
        return
    if one.meets is False:
        one.meets_latency = False
        one.rule_out(
            "More is asked for than it carries: its queues stay full, and no latency goal can be "
            "kept.",
            "model",
        )
        return
    goal_text = f"{time_text(goal)} for 99 of 100 packets"
    tails = [
        (tail, piece.run) for piece in evidence if not piece.order_only for tail in piece.tails
    ]
    if not tails:
        bound = f"at least {time_text(floor)} by the model; " if floor is not None else ""
        text = f"Whether it keeps {goal_text} is not known: {bound}`--run` takes a measurement."
        one.say(text, "model")
        if on_vf(one.plane):
            text = "Round-trip times on VFs were the lowest of all planes: half of a bridge's and"
            one.say(f"{text} less.", "literature", f"{KVM_STUDY}; {DOCKER_STUDY}")
        elif one.plane == "virtio-bridge":
            text = "Round-trip times over a bridge were twice those on VFs and more, beside busy"
            one.say(f"{text} neighbours ten times.", "literature", f"{KVM_STUDY}; {DOCKER_STUDY}")
        return
    # Missed once, it is not kept; left open by a bound, it is not known to be.
    over = [pair for pair in tails if pair[0].value > goal]
    missed = [pair for pair in over if pair[0].bound in ("exact", "at least")]
    unsure = over or [pair for pair in tails if pair[0].bound in ("at least", "unbounded")]
    tail, run = max(missed or unsure or tails, key=lambda pair: pair[0].value)
    late = f"{value_of(tail, time_text)} {LOAD_WORDS.get(tail.load_type, tail.load_type)}"
    one.meets_latency = False if missed else None if unsure else True
    if missed:
        text = f"99 of 100 packets took up to {late}, and the goal is {time_text(goal)}."
        one.rule_out(text, "measurement", run)
    elif unsure:
        text = f"Whether it keeps {goal_text} is not known: measured were {late}."
        one.say(text, "measurement", run)
    else:
        one.say(f"It kept {goal_text}: {late}, the worst that was measured.", "measurement", run)


def _hold_to_cpu(one: PlaneForecast, evidence: Sequence[Evidence], workload: Workload) -> None:
    """Rules the plane out where the kernel's measured CPU time per packet exceeds spare cores."""
    spare = workload.spare_cores
    if spare is None or workload.rate_pps is None:
        return
    for piece in evidence:
        # A bound from below that is too much already is too much.
        if piece.order_only or piece.cpu is None or piece.cpu.bound not in ("exact", "at least"):
            continue
        needed = workload.rate_pps * piece.cpu.value / 1e9
        if needed > spare:
            one.rule_out(
                f"At {rate_text(workload.rate_pps)} the kernel would take {needed:.1f} cores, and "
                f"{spare} {'is' if spare == 1 else 'are'} to spare.",
                "measurement",
                piece.run,
            )
            return
