"""What runs measured, applied to a plane: rates, latency, CPU; and what that rules out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from planewise.advise.demand import (
    DOCKER_STUDY,
    KVM_STUDY,
    Statement,
    Workload,
    on_vf,
)
from planewise.advise.evidence import ChainSeen, Evidence
from planewise.advise.model.capacity import ChainWorkload
from planewise.advise.ranked import MODELLED, EvidenceBase, PlaneForecast, hold_to_rate
from planewise.advise.recommend import LOAD_WORDS, value_of
from planewise.judge.statistics.sentences import bound_text
from planewise.store.recommendation import RankedPlane
from planewise.units import bits_text, percent_text, rate_text, time_text


def with_evidence(
    one: PlaneForecast, evidence: Sequence[Evidence], workload: Workload
) -> PlaneForecast:
    """The plane with what runs tell of it; a measurement of the very chain replaces the model."""
    statements = list(one.statements)
    for seen in evidence:
        source = f"{seen.run}, emulated: the order alone counts" if seen.order_only else seen.run
        statements += [Statement(text, "measurement", source) for text in _seen(seen)]
    one = replace(one, statements=tuple(statements))
    streams = [seen.tcp_place for seen in evidence if seen.tcp_place]
    times = [seen.rtt_place for seen in evidence if seen.rtt_place and len(seen.rivals) > 1]
    # Sockets that want throughput are told apart by that, where it was measured.
    places = times if workload.latency_ns is not None else [*streams, *times]
    figures = [seen for seen in evidence if not seen.order_only]
    worst = _latest(tail for seen in figures for tail in seen.tails)
    one = replace(
        one,
        place=places[0] if places else None,
        rtt_p99_ns=None if worst is None else worst.value,
        rtt_p99_bound="exact" if worst is None else worst.bound,
    )
    if workload.application == "kernel":
        return one
    for seen in figures:
        chain = seen.chain(workload.chain)
        if chain is not None:
            return _with_chain(one, seen.run, chain, workload)
    for seen in figures:
        match = _as_chain(seen, workload.chain)
        if match is not None and one.plane not in MODELLED:
            return _with_chain(one, seen.run, match, workload)
    return one


def _latest(tails: Iterable[RankedPlane]) -> RankedPlane | None:
    """The latest; a bound from below that is as late comes first: it may be later."""
    return max(tails, key=lambda tail: (tail.value, tail.bound == "at least"), default=None)


def _as_chain(seen: Evidence, chain: ChainWorkload) -> ChainSeen | None:
    """One pair of guests is a chain of one function that sends to the other host."""
    rate = seen.forwarded
    if rate is None or chain.vnfs != 1 or seen.forwarded_bytes != chain.frame_bytes:
        return None
    at_least = rate.bound == "at least"
    limit = "generator" if at_least else "kernel"
    return ChainSeen(
        chain.pattern, 1, chain.frame_bytes, rate.value, rate.low, rate.high, limit, at_least
    )


def _with_chain(one: PlaneForecast, run: str, seen: ChainSeen, workload: Workload) -> PlaneForecast:
    """A measurement of the very chain takes the prediction's place.

    Where something else than the plane was the limit, only if it is more than predicted.
    """
    carried = f"Measured: this chain sent {rate_text(seen.pps)}"
    if seen.low_pps is not None and seen.high_pps is not None:
        carried += f" ({rate_text(seen.low_pps)} to {rate_text(seen.high_pps)})"
    if seen.at_least:
        why = "" if seen.limit == "unknown" else f", where the {seen.limit} was the limit"
        basis = Statement(f"{carried} at least{why}.", "measurement", run)
    else:
        basis = Statement(f"{carried}; the {seen.limit} was the limit.", "measurement", run)
    # The model's word on the rate is taken back.
    kept = tuple(
        statement
        for statement in one.statements
        if seen.at_least or "asked for" not in statement.text
    )
    one = replace(one, statements=(*kept, basis))
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
    return hold_to_rate(one, workload, "measurement", run)


def _seen(seen: Evidence) -> Iterator[str]:
    """What a run tells of a plane, in sentences."""
    if seen.rtt_place is not None and len(seen.rivals) > 1:
        place = f"number {seen.rtt_place} of {len(seen.rivals)}"
        others = ", ".join(seen.rivals)
        yield f"By median round-trip time it was {place} ({others})."
    if seen.tcp_place is not None:
        yield f"By the goodput of TCP it was number {seen.tcp_place}."
    if seen.order_only:
        return
    if seen.tcp:
        streams = ", ".join(
            f"{bound_text(rate.bound, bits_text(rate.value))} of {size} bytes"
            for size, rate in seen.tcp.items()
        )
        yield f"TCP by messages: {streams}."
    for load, median in seen.rtt_p50.items():
        if load not in LOAD_WORDS:
            continue
        tail = seen.rtt_p99.get(load)
        most = f", {value_of(tail, time_text)} for 99 of 100" if tail is not None else ""
        yield (
            f"Round-trip time {LOAD_WORDS[load]}: {value_of(median, time_text)} in the "
            f"median{most}."
        )
    if seen.forwarded is not None:
        size = f" of {seen.forwarded_bytes} bytes" if seen.forwarded_bytes else ""
        yield f"One pair of guests: {value_of(seen.forwarded, rate_text)}{size}."
    if seen.cpu is not None:
        yield f"It took {value_of(seen.cpu, time_text)} of the kernel's CPU for each packet."
    if seen.sent:
        share = "none" if not seen.lost else percent_text(seen.lost / seen.sent)
        yield f"Probe packets lost: {share} of {seen.sent}."


def hold_to_latency(
    one: PlaneForecast, known: EvidenceBase, workload: Workload
) -> tuple[PlaneForecast, list[Statement]]:
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
    tails = [
        (tail, seen.run)
        for seen in known.of(one.plane)
        if not seen.order_only
        for tail in seen.tails
    ]
    if tails:
        return _check_tails(one, goal, tails)
    bound = f"at least {time_text(one.floor_ns)} by the model; " if one.floor_ns is not None else ""
    statement = Statement(
        f"Whether it keeps {wanted} is not known: {bound}`--run` takes a measurement.", "model"
    )
    return replace(
        one, statements=(*one.statements, statement, *_latency_literature(one.plane))
    ), []


def _check_tails(
    one: PlaneForecast, goal: float, tails: Sequence[tuple[RankedPlane, str]]
) -> tuple[PlaneForecast, list[Statement]]:
    """What measured 99th percentiles say of the goal [ns]: one that is missed once is not kept,
    and one for which a bound leaves room is not known to be. `tails` with their runs; not empty."""

    def latest(some: Sequence[tuple[RankedPlane, str]]) -> tuple[str, str]:
        tail, run = max(some, key=lambda pair: pair[0].value)
        return (
            f"{value_of(tail, time_text)} {LOAD_WORDS.get(tail.load_type, tail.load_type)}",
            run,
        )

    wanted = f"{time_text(goal)} for 99 of 100 packets"
    over = [pair for pair in tails if pair[0].value > goal]
    missed = [pair for pair in over if pair[0].bound in ("exact", "at least")]
    if missed:
        late, run = latest(missed)
        return replace(one, meets_latency=False), [
            Statement(
                f"99 of 100 packets took up to {late}, and the goal is {time_text(goal)}.",
                "measurement",
                run,
            )
        ]
    open_ = over or [pair for pair in tails if pair[0].bound in ("at least", "unbounded")]
    late, run = latest(open_ or tails)
    text = (
        f"Whether it keeps {wanted} is not known: measured were {late}."
        if open_
        else f"It kept {wanted}: {late}, the worst that was measured."
    )
    statement = Statement(text, "measurement", run)
    held = replace(one, statements=(*one.statements, statement))
    return held if open_ else replace(held, meets_latency=True), []


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


def too_much_cpu(evidence: Sequence[Evidence], workload: Workload) -> list[Statement]:
    """Where the kernel carries packets, its measured time for them must be there."""
    spare = workload.spare_cores
    if spare is None or workload.rate_pps is None:
        return []
    for seen in evidence:
        # A bound from below that is too much already is too much.
        if seen.order_only or seen.cpu is None or seen.cpu.bound not in ("exact", "at least"):
            continue
        needed = workload.rate_pps * seen.cpu.value / 1e9
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


def of_neighbours(workload: Workload, plane: str) -> Iterator[Statement]:
    """What the load of others does to it, where isolation from load was asked for."""
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
