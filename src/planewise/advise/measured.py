"""What runs measured, applied to a plane: rates, latency, CPU; and what that rules out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from planewise.advise.demand import DOCKER_STUDY, KVM_STUDY, Statement, Workload, on_vf
from planewise.advise.evidence import Evidence, MeasuredChain
from planewise.advise.model.capacity import ChainWorkload
from planewise.advise.ranked import MODELLED, EvidenceBase, PlaneForecast, hold_to_rate
from planewise.advise.recommend import LOAD_WORDS, value_of
from planewise.judge.statistics.sentences import bound_text
from planewise.store.recommendation import RankedPlane
from planewise.units import bits_text, percent_text, rate_text, time_text


def with_evidence(
    forecast: PlaneForecast, evidence: Sequence[Evidence], workload: Workload
) -> PlaneForecast:
    """The plane with what runs tell of it; a measurement of the very chain replaces the model."""
    statements = list(forecast.statements)
    for piece in evidence:
        source = f"{piece.run}, emulated: the order alone counts" if piece.order_only else piece.run
        statements += [Statement(text, "measurement", source) for text in _sentences(piece)]
    forecast = replace(forecast, statements=tuple(statements))
    streams = [piece.tcp_place for piece in evidence if piece.tcp_place]
    times = [piece.rtt_place for piece in evidence if piece.rtt_place and len(piece.rivals) > 1]
    # Sockets that want throughput are told apart by that, where it was measured.
    places = times if workload.latency_ns is not None else [*streams, *times]
    figures = [piece for piece in evidence if not piece.order_only]
    worst = _latest(tail for piece in figures for tail in piece.tails)
    forecast = replace(
        forecast,
        place=places[0] if places else None,
        rtt_p99_ns=None if worst is None else worst.value,
        rtt_p99_bound="exact" if worst is None else worst.bound,
    )
    if workload.application == "kernel":
        return forecast
    for piece in figures:
        chain = piece.chain(workload.chain)
        if chain is not None:
            return _with_chain(forecast, piece.run, chain, workload)
    for piece in figures:
        match = _as_chain(piece, workload.chain)
        if match is not None and forecast.plane not in MODELLED:
            return _with_chain(forecast, piece.run, match, workload)
    return forecast


def _latest(tails: Iterable[RankedPlane]) -> RankedPlane | None:
    """The latest; a bound from below that is as late comes first: it may be later."""
    return max(tails, key=lambda tail: (tail.value, tail.bound == "at least"), default=None)


def _as_chain(evidence: Evidence, chain: ChainWorkload) -> MeasuredChain | None:
    """One pair of guests is a chain of one function that sends to the other host."""
    rate = evidence.forwarded
    if rate is None or chain.vnfs != 1 or evidence.forwarded_bytes != chain.frame_bytes:
        return None
    at_least = rate.bound == "at least"
    limit = "generator" if at_least else "kernel"
    return MeasuredChain(
        chain.pattern, 1, chain.frame_bytes, rate.value, rate.low, rate.high, limit, at_least
    )


def _with_chain(
    forecast: PlaneForecast, run: str, chain: MeasuredChain, workload: Workload
) -> PlaneForecast:
    """A measurement of the very chain takes the prediction's place.

    Where something else than the plane was the limit, only if it is more than predicted.
    """
    carried = f"Measured: this chain sent {rate_text(chain.pps)}"
    if chain.low_pps is not None and chain.high_pps is not None:
        carried += f" ({rate_text(chain.low_pps)} to {rate_text(chain.high_pps)})"
    if chain.at_least:
        reason = "" if chain.limit == "unknown" else f", where the {chain.limit} was the limit"
        basis = Statement(f"{carried} at least{reason}.", "measurement", run)
    else:
        basis = Statement(f"{carried}; the {chain.limit} was the limit.", "measurement", run)
    # The model's statement on the rate no longer holds.
    statements = tuple(
        statement
        for statement in forecast.statements
        if chain.at_least or "asked for" not in statement.text
    )
    forecast = replace(forecast, statements=(*statements, basis))
    if chain.at_least and forecast.pps is not None and forecast.pps >= chain.pps:
        return forecast
    forecast = replace(
        forecast,
        measured=True,
        at_least=chain.at_least,
        meets=None,
        pps=chain.pps,
        low_pps=chain.low_pps,
        high_pps=None if chain.at_least else chain.high_pps,
        gbps=chain.pps * 8 * (chain.frame_bytes - 4) / 1e9,
        bottleneck=chain.limit,
    )
    return hold_to_rate(forecast, workload, "measurement", run)


def _sentences(evidence: Evidence) -> Iterator[str]:
    """What a run tells of a plane, in sentences."""
    if evidence.rtt_place is not None and len(evidence.rivals) > 1:
        place = f"number {evidence.rtt_place} of {len(evidence.rivals)}"
        rivals = ", ".join(evidence.rivals)
        yield f"By median round-trip time it was {place} ({rivals})."
    if evidence.tcp_place is not None:
        yield f"By the goodput of TCP it was number {evidence.tcp_place}."
    if evidence.order_only:
        return
    if evidence.tcp:
        streams = ", ".join(
            f"{bound_text(rate.bound, bits_text(rate.value))} of {size} bytes"
            for size, rate in evidence.tcp.items()
        )
        yield f"TCP by messages: {streams}."
    for load, median in evidence.rtt_p50.items():
        if load not in LOAD_WORDS:
            continue
        tail = evidence.rtt_p99.get(load)
        tail_text = f", {value_of(tail, time_text)} for 99 of 100" if tail is not None else ""
        yield (
            f"Round-trip time {LOAD_WORDS[load]}: {value_of(median, time_text)} in the "
            f"median{tail_text}."
        )
    if evidence.forwarded is not None:
        size = f" of {evidence.forwarded_bytes} bytes" if evidence.forwarded_bytes else ""
        yield f"One pair of guests: {value_of(evidence.forwarded, rate_text)}{size}."
    if evidence.cpu is not None:
        yield f"It took {value_of(evidence.cpu, time_text)} of the kernel's CPU for each packet."
    if evidence.sent:
        share = "none" if not evidence.lost else percent_text(evidence.lost / evidence.sent)
        yield f"Probe packets lost: {share} of {evidence.sent}."


def hold_to_latency(
    forecast: PlaneForecast, evidence: EvidenceBase, workload: Workload
) -> tuple[PlaneForecast, list[Statement]]:
    """The forecast held to the latency goal, and why the plane cannot keep it."""
    goal, floor_ns = workload.latency_ns, forecast.floor_ns
    if goal is None:
        return forecast, []
    goal_text = f"{time_text(goal)} for 99 of 100 packets"
    if floor_ns is not None and floor_ns > goal:
        return replace(forecast, meets_latency=False), [
            Statement(
                f"Work and wires alone take {time_text(floor_ns)}, and the goal is "
                f"{time_text(goal)}.",
                "model",
                "lower bound: no queue, no wake-up",
            )
        ]
    if forecast.meets is False:
        return replace(forecast, meets_latency=False), [
            Statement(
                "More is asked for than it carries: its queues stay full, and no latency goal "
                "can be kept.",
                "model",
            )
        ]
    tails = [
        (tail, piece.run)
        for piece in evidence.of(forecast.plane)
        if not piece.order_only
        for tail in piece.tails
    ]
    if tails:
        return _check_tails(forecast, goal, tails)
    bound = f"at least {time_text(floor_ns)} by the model; " if floor_ns is not None else ""
    statement = Statement(
        f"Whether it keeps {goal_text} is not known: {bound}`--run` takes a measurement.", "model"
    )
    return replace(
        forecast, statements=(*forecast.statements, statement, *_latency_literature(forecast.plane))
    ), []


def _check_tails(
    forecast: PlaneForecast, goal: float, tails: Sequence[tuple[RankedPlane, str]]
) -> tuple[PlaneForecast, list[Statement]]:
    """Holds the forecast to a goal [ns] by measured 99th percentiles: missed once, it is not kept;
    left open by a bound, it is not known to be. `tails` with their runs; not empty."""

    def latest(pairs: Sequence[tuple[RankedPlane, str]]) -> tuple[str, str]:
        tail, run = max(pairs, key=lambda pair: pair[0].value)
        return (
            f"{value_of(tail, time_text)} {LOAD_WORDS.get(tail.load_type, tail.load_type)}",
            run,
        )

    goal_text = f"{time_text(goal)} for 99 of 100 packets"
    over = [pair for pair in tails if pair[0].value > goal]
    missed = [pair for pair in over if pair[0].bound in ("exact", "at least")]
    if missed:
        late, run = latest(missed)
        return replace(forecast, meets_latency=False), [
            Statement(
                f"99 of 100 packets took up to {late}, and the goal is {time_text(goal)}.",
                "measurement",
                run,
            )
        ]
    open_ = over or [pair for pair in tails if pair[0].bound in ("at least", "unbounded")]
    late, run = latest(open_ or tails)
    text = (
        f"Whether it keeps {goal_text} is not known: measured were {late}."
        if open_
        else f"It kept {goal_text}: {late}, the worst that was measured."
    )
    statement = Statement(text, "measurement", run)
    forecast = replace(forecast, statements=(*forecast.statements, statement))
    return forecast if open_ else replace(forecast, meets_latency=True), []


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
    """Why the spare cores do not suffice for the kernel's measured CPU time per packet."""
    spare = workload.spare_cores
    if spare is None or workload.rate_pps is None:
        return []
    for piece in evidence:
        # A bound from below that is too much already is too much.
        if piece.order_only or piece.cpu is None or piece.cpu.bound not in ("exact", "at least"):
            continue
        needed = workload.rate_pps * piece.cpu.value / 1e9
        if needed > spare:
            return [
                Statement(
                    f"At {rate_text(workload.rate_pps)} the kernel would take {needed:.1f} cores, "
                    f"and {spare} {'is' if spare == 1 else 'are'} to spare.",
                    "measurement",
                    piece.run,
                )
            ]
    return []


def of_neighbours(workload: Workload, plane: str) -> Iterator[Statement]:
    """How neighbours' load affects `plane`, where isolation from load was asked for."""
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
