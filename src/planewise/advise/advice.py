"""Which plane for a described workload: planes ranked, with bottlenecks and what would change it.

Statements rest on the capacity model, on measured runs or on publications, and say on which.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from planewise.advise.evidence import Evidence
from planewise.advise.forecast import PlaneForecast, Statement, forecast, on_vf
from planewise.advise.gain_profile import GainProfile, gain_sentence
from planewise.advise.model.capacity import LONGEST, Prediction, predict
from planewise.advise.model.profile import PLANES, Profile
from planewise.advise.workload import Workload
from planewise.errors import BadInputError
from planewise.units import rate_text

ALIKE = 0.10
"""Predictions closer than this are not told apart: some of the fitted rows lie as far off."""
_PUBLISHED = ("vf-passthrough", "vhost-user", "virtio-bridge")
"""Planes that the publications compare; they are always weighed."""
_KERNEL_ORDER = ("virtio-bridge", "vf-passthrough", "vhost-user")
"""Where the guests' kernels bind: the simplest first (the brief)."""
_LATENCY_ORDER = ("vf-passthrough", "vhost-user", "virtio-bridge")
"""Lowest round-trip times first: VFs below bridges by both studies; polling lies between."""
_SIZES = (64, 128, 256, 512, 1024, 1518)
_WORDS = {
    "vf-passthrough": "a VF passed through (SR-IOV)",
    "vhost-user": "vhost-user on a polling switch (OVS-DPDK)",
    "memif": "memif on a polling switch (VPP)",
    "virtio-bridge": "virtio by the kernel",
}
_GIVEN_UP: dict[str, dict[str, Any]] = {
    "live migration": {"live_migration": False},
    "the limit of VFs": {"vfs": None, "guests": None},
    "the limit of spare cores": {"spare_cores": None},
    "the limit of cores": {"cores": None},
    "the latency goal": {"latency_ns": None},
    "isolation": {"isolation": ()},
}
"""Demands that can be given up, each with a workload's fields without it."""


@dataclass(frozen=True)
class Advice:
    """Planes by suitability, the best first."""

    workload: Workload
    profile: str
    """Empty without one."""
    emulated: bool
    sentence: str
    ranking: tuple[PlaneForecast, ...]
    changes: tuple[Statement, ...]
    """What would change the answer."""
    notes: tuple[Statement, ...] = ()
    """What to keep in mind of the profile and of the runs."""


def advise(
    profile: Profile | None,
    workload: Workload,
    evidence: Sequence[Evidence] = (),
    gain: GainProfile | None = None,
) -> Advice:
    """Ranks the planes for `workload` on a host.

    Without a profile nothing is predicted: then only evidence, demands and literature speak. `gain`
    is reported and ranks nothing: it compares two planes at the host's own packet rates.
    """
    ranking = _rank(profile, evidence, workload)
    changes = tuple(_changes(profile, evidence, workload, ranking[0]))
    emulated = profile is not None and profile.emulated
    for one in ranking:
        # An emulated host's order may hold, its figures do not.
        if emulated and not one.measured:
            one.pps = one.low_pps = one.high_pps = one.gbps = one.meets = None
            # What the publication saw of virtio has no ratio to what an emulated host carries.
            one.share = None if one.plane == "virtio-bridge" else one.share
    return Advice(
        workload=workload,
        profile="" if profile is None else profile.name,
        emulated=emulated,
        sentence=_sentence(profile, ranking, workload),
        ranking=ranking,
        changes=changes,
        notes=tuple(_notes(profile, evidence, gain, workload)),
    )


def course(profile: Profile | None, workload: Workload) -> tuple[Prediction, ...]:
    """What the modelled planes carry from one function to more than asked for, all else alike.

    Empty where the guests' kernels bind, without a profile, and of an emulated host, which has no
    figures.
    """
    if profile is None or profile.emulated or workload.application == "kernel":
        return ()
    most = min(LONGEST, max(8, workload.chain.vnfs + 2))
    predictions = (
        predict(profile, plane, replace(workload.chain, vnfs=vnfs))
        for plane in PLANES
        for vnfs in range(1, most + 1)
    )
    return tuple(prediction for prediction in predictions if prediction is not None)


def why_not(advice: Advice, plane: str) -> str:
    """Why `plane` is not the answer, in words.

    Raises:
        BadInputError: no such plane was weighed.
    """
    one = next((one for one in advice.ranking if one.plane == plane), None)
    if one is None:
        raise BadInputError(
            f"{plane} was not weighed",
            where="--why-not",
            remedy=f"one of {', '.join(ranked.plane for ranked in advice.ranking)}",
        )
    words = words_of(plane)
    if one is advice.ranking[0] and one.possible:
        return f"{words[0].upper()}{words[1:]} is the answer."
    return f"Not {words}: {' '.join(statement.text for statement in one.statements)}"


def words_of(plane: str) -> str:
    """What a plane is called in a sentence."""
    return _WORDS.get(plane, plane)


# --- ranked -------------------------------------------------------------------------------------


def _rank(
    profile: Profile | None, evidence: Sequence[Evidence], workload: Workload
) -> tuple[PlaneForecast, ...]:
    """All planes, the most suitable first: those of the publications, and what was measured."""
    fitted = [station.plane for station in profile.stations] if profile else []
    planes = dict.fromkeys((*_PUBLISHED, *fitted, *(piece.plane for piece in evidence)))
    ranking = [
        forecast(profile, [piece for piece in evidence if piece.plane == plane], workload, plane)
        for plane in planes
    ]
    best_pps = max((one.pps for one in ranking if one.possible and one.pps), default=None)
    # A rate that may be higher has no share, and no other rate has a share of it.
    if best_pps and not any(one.at_least and one.pps == best_pps for one in ranking):
        for one in ranking:
            one.share = None if one.pps is None or one.at_least else one.pps / best_pps
    return tuple(sorted(ranking, key=lambda one: _merit(one, workload)))


def _merit(one: PlaneForecast, workload: Workload) -> tuple[float, ...]:
    """Smaller is better: possible, fast enough, then cheap where alike, else fast."""
    rate = one.pps or 0.0
    # Planes that share a core with neighbours come last, where isolation from load was asked for.
    shares = "load" in workload.isolation and not on_vf(one.plane)
    head = (not one.possible, not one.known, shares)
    # Known to keep the latency goal first; else as the publications order the planes.
    late = (
        (float(not one.meets_latency), float(_order(_LATENCY_ORDER, one.plane)))
        if workload.latency_ns is not None
        else ()
    )
    if workload.application == "kernel":
        # The kernel's stack in the guest binds on every plane: as measured, else the simplest.
        place = math.inf if one.place is None else one.place
        return (*head, *late, place, _order(_KERNEL_ORDER, one.plane))
    if workload.rate_pps is not None and one.meets:
        return (*head, 0, *late, one.host_cores, -rate)
    # Classes of rates that are alike, and within one the plane that takes fewer cores.
    rank = -round(math.log1p(rate) / math.log1p(ALIKE))
    return (*head, 1, rank, *late, one.host_cores, -rate)


def _order(order: Sequence[str], plane: str) -> int:
    if plane in order:
        return order.index(plane)
    # Other planes on VFs rank as a VF; whatever else was measured is the kernel's.
    return order.index("vf-passthrough" if on_vf(plane) else "virtio-bridge")


# --- what would change the answer ---------------------------------------------------------------


def _changes(
    profile: Profile | None, evidence: Sequence[Evidence], workload: Workload, best: PlaneForecast
) -> Iterator[Statement]:
    """Yields what would change the answer, found by asking again with other demands."""

    def flips(when: str, variants: Iterable[tuple[object, Workload]]) -> Iterator[Statement]:
        for value, variant in variants:
            first = _rank(profile, evidence, variant)[0]
            if first.possible and (first.plane != best.plane or not best.possible):
                words = when.format(value)
                yield Statement(f"{words[0].upper()}{words[1:]}: {words_of(first.plane)}.", "model")
                return

    def with_functions(numbers: Iterable[int]) -> Iterator[tuple[object, Workload]]:
        for vnfs in numbers:
            # As many guests, or more where there must be.
            guests = None if workload.guests is None else max(workload.guests, vnfs)
            yield vnfs, replace(workload, chain=replace(chain, vnfs=vnfs), guests=guests)

    chain = workload.chain
    if workload.application == "polling":
        more = range(chain.vnfs + 1, min(LONGEST, 16) + 1)
        yield from flips("from {} functions on", with_functions(more))
        fewer = range(chain.vnfs - 1, 0, -1)
        yield from flips("with {} functions or fewer", with_functions(fewer))
        larger = (size for size in _SIZES if size > chain.frame_bytes)
        sizes = ((n, replace(workload, chain=replace(chain, frame_bytes=n))) for n in larger)
        yield from flips("with frames of {} bytes and more", sizes)
        turned = replace(
            chain, pattern="north-south" if chain.pattern == "east-west" else "east-west"
        )
        variant = replace(workload, chain=turned)
        yield from flips("if traffic were {}", [(turned.pattern, variant)])
    given_up = [one for one in _GIVEN_UP.items() if replace(workload, **one[1]) != workload]
    for count in (1, 2) if best.possible else (1, 2, 3):
        found = [
            statement
            for group in combinations(given_up, count)
            for statement in flips(
                f"without {' and '.join(words for words, _ in group)}",
                [("", replace(workload, **{k: v for _, one in group for k, v in one.items()}))],
            )
        ]
        yield from found
        if found:
            break
    for words, changed in (
        ("if guests had to migrate live", replace(workload, live_migration=True)),
        ("without a core for a polling switch", replace(workload, spare_cores=0)),
    ):
        if changed != workload:
            yield from flips(words, [("", changed)])


# --- words --------------------------------------------------------------------------------------


def _sentence(profile: Profile | None, ranking: Sequence[PlaneForecast], workload: Workload) -> str:
    best, chain = ranking[0], workload.chain
    chain_text = (
        f"{chain.chains} chains of {chain.vnfs} functions" if chain.through and chain.chains > 1
        else f"{chain.vnfs} functions in a chain" if chain.through
        else f"{chain.vnfs} functions that each send back" if chain.vnfs > 1
        else "a function that sends back"
    )  # fmt: skip
    sized = f"{chain_text}, frames of {chain.frame_bytes} bytes"
    if not best.possible:
        return (
            f"No plane meets all demands of {sized}; {words_of(best.plane)} comes closest. "
            "The compromises are listed below."
        )
    predicted = profile is not None and workload.application != "kernel" and best.plane in PLANES
    if not (best.measured or best.place is not None or predicted):
        return (
            f"No plane is recommended for {sized}: no run measured this chain, and no profile "
            "predicts it. Measure it (`planewise run experiments/nfv-chains.yaml`, then `--run "
            "RUN`), or give `--profile`."
        )
    text = f"Use {words_of(best.plane)} for {sized}"
    if workload.application == "kernel":
        return f"{text}, on the kernel's sockets."
    if best.pps is not None and best.gbps is not None:
        about = "" if best.measured else "about "
        text += f": {about}{rate_text(best.pps)} in all, {best.gbps:.3g} Gbit/s"
    second = next((ranked for ranked in ranking[1:] if ranked.possible and ranked.share), None)
    if second is not None and second.share is not None and best.share:
        ratio = best.share / second.share
        times = f"{ratio:.2g}" if ratio < 1 else f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"
        text += (
            f", about as much as {second.plane}"
            if abs(ratio - 1) <= ALIKE
            else f", {times} times what {second.plane} carries"
        )
    the = "" if best.bottleneck in ("not known", "unknown") else "the "
    text += f"; the bottleneck is {the}{best.bottleneck}."
    possible = [one.meets for one in ranking if one.possible]
    if workload.rate_pps is None or any(possible):
        return text
    asked = f"carries the {rate_text(workload.rate_pps)} that are asked for"
    if all(meets is False for meets in possible):
        return f"{text} No plane that is possible here {asked}."
    return f"{text} Whether any {asked} is not certain."


def _notes(
    profile: Profile | None,
    evidence: Sequence[Evidence],
    gain: GainProfile | None,
    workload: Workload,
) -> Iterator[Statement]:
    for plane in PLANES if profile is not None and not profile.emulated else ():
        stations = profile.stations_of(plane) if profile else ()
        if profile and stations and not profile.fitted_to(plane):
            yield Statement(
                f"For {plane} this profile was never compared with measurements: its figures have "
                "no interval and may be far off. `planewise calibrate` fits it.",
                stations[0].basis,
                stations[0].source,
            )
    for run, machine, reason in dict.fromkeys(
        (piece.run, piece.virtualised, piece.order_only) for piece in evidence
    ):
        if machine:
            yield Statement(
                f"{run} was measured inside a virtual machine ({machine}): its times are not those "
                "of hardware.",
                "measurement",
                run,
            )
        if reason:
            text = f"Of {run} the order of planes counts, no figure: {reason}."
            yield Statement(text, "measurement", run)
    if gain is not None:
        rate_pps = workload.rate_pps
        # Each function sends its share, and receives as much.
        text = gain_sentence(gain, rate_pps and 2 * rate_pps / workload.chain.functions)
        yield Statement(text, "measurement", gain.run)
