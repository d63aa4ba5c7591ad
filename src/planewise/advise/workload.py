"""Which plane for a described workload: planes ranked, with bottlenecks and what would change it.

Statements rest on the capacity model, on measured runs or on publications, and say on which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from planewise.advise.changes import changes
from planewise.advise.demand import Statement, Workload
from planewise.advise.evidence import Evidence
from planewise.advise.gain_profile import GainProfile, gain_statement
from planewise.advise.model.capacity import LONGEST, Prediction, predict
from planewise.advise.model.profile import Profile
from planewise.advise.ranked import ALIKE, MODELLED, EvidenceBase, PlaneForecast, words_of
from planewise.advise.ranking import rank
from planewise.errors import BadInputError
from planewise.units import rate_text


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
    base = EvidenceBase(profile, tuple(evidence))
    ranking = rank(base, workload)
    best = ranking[0]
    emulated = profile is not None and profile.emulated
    if emulated:
        # An emulated host's order may hold, its figures do not.
        ranking = tuple(ranked if ranked.measured else _relative(ranked) for ranked in ranking)
    return Advice(
        workload=workload,
        profile="" if profile is None else profile.name,
        emulated=emulated,
        sentence=_sentence(profile, ranking, workload),
        ranking=ranking,
        changes=tuple(changes(base, workload, best)),
        notes=tuple(_notes(base, gain, workload)),
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
        for plane in MODELLED
        for vnfs in range(1, most + 1)
    )
    return tuple(prediction for prediction in predictions if prediction is not None)


def why_not(advice: Advice, plane: str) -> str:
    """Why `plane` is not the answer, in words.

    Raises:
        BadInputError: no such plane was weighed.
    """
    for place, ranked in enumerate(advice.ranking):
        if ranked.plane != plane:
            continue
        words = words_of(ranked.plane)
        if place == 0 and ranked.possible:
            return f"{words[0].upper()}{words[1:]} is the answer."
        reasons = " ".join(statement.text for statement in ranked.statements)
        return f"Not {words}: {reasons}"
    raise BadInputError(
        f"{plane} was not weighed",
        where="--why-not",
        remedy=f"one of {', '.join(ranked.plane for ranked in advice.ranking)}",
    )


def _relative(forecast: PlaneForecast) -> PlaneForecast:
    # What the publication saw of virtio has no ratio to what an emulated host carries.
    share = None if forecast.plane == "virtio-bridge" else forecast.share
    return replace(
        forecast, share=share, pps=None, low_pps=None, high_pps=None, gbps=None, meets=None
    )


def _sentence(profile: Profile | None, ranking: Sequence[PlaneForecast], workload: Workload) -> str:
    best = ranking[0]
    grounded = best.measured or best.place is not None
    if profile is not None and workload.application != "kernel":
        grounded |= best.plane in MODELLED
    chain = workload.chain
    chain_text = (
        f"{chain.chains} chains of {chain.vnfs} functions" if chain.through and chain.chains > 1
        else f"{chain.vnfs} functions in a chain" if chain.through
        else f"{chain.vnfs} function{'s' if chain.vnfs > 1 else ''} that each "
        f"send{'' if chain.vnfs > 1 else 's'} back" if chain.vnfs > 1
        else "a function that sends back"
    )  # fmt: skip
    sized = f"{chain_text}, frames of {chain.frame_bytes} bytes"
    if not best.possible:
        return (
            f"No plane meets all demands of {sized}; {words_of(best.plane)} comes closest. "
            "The compromises are listed below."
        )
    if not grounded:
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
        text += (
            f", about as much as {second.plane}"
            if abs(ratio - 1) <= ALIKE
            else f", {_times(ratio)} times what {second.plane} carries"
        )
    text += f"; the bottleneck is {_bottleneck_words(best.bottleneck)}."
    if workload.rate_pps is not None and not any(
        ranked.meets for ranked in ranking if ranked.possible
    ):
        sure = all(ranked.meets is False for ranked in ranking if ranked.possible)
        text += (
            f" No plane that is possible here carries the {rate_text(workload.rate_pps)} that are "
            "asked for."
            if sure
            else f" Whether any carries the {rate_text(workload.rate_pps)} that are asked for is "
            "not certain."
        )
    return text


def _bottleneck_words(bottleneck: str) -> str:
    return bottleneck if bottleneck in ("not known", "unknown") else f"the {bottleneck}"


def _times(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 1 else f"{ratio:.1f}" if ratio < 10 else f"{ratio:.0f}"


def _notes(base: EvidenceBase, gain: GainProfile | None, workload: Workload) -> Iterator[Statement]:
    profile = base.profile
    for plane in MODELLED:
        if profile is None or profile.emulated:
            continue
        stations = profile.stations_of(plane)
        if not stations or profile.fitted_to(plane):
            continue
        yield Statement(
            f"For {plane} this profile was never compared with measurements: its figures have no "
            "interval and may be far off. `planewise calibrate` fits it.",
            stations[0].basis,
            stations[0].source,
        )
    for run, machine in dict.fromkeys((item.run, item.virtualised) for item in base.evidence):
        if machine:
            yield Statement(
                f"{run} was measured inside a virtual machine ({machine}): its times are not those "
                "of hardware.",
                "measurement",
                run,
            )
    for run, reason in dict.fromkeys(
        (item.run, item.order_only) for item in base.evidence if item.order_only
    ):
        yield Statement(
            f"Of {run} the order of planes counts, no figure: {reason}.", "measurement", run
        )
    if gain is not None:
        rate_pps = workload.rate_pps
        # Each function sends its share, and receives as much.
        yield gain_statement(gain, rate_pps and 2 * rate_pps / workload.chain.functions)
