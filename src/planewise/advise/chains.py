"""What a run of service chains says: which plane carries most, where, and what bounds it.

Rests on replicates, compared in pairs within blocks, as the other recommendations do.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from planewise.judge.statistics.comparison import Family, compare_levels
from planewise.judge.statistics.metrics import RunSample, observe
from planewise.judge.statistics.pairing import OVERALL
from planewise.judge.statistics.ranking import first_two
from planewise.judge.statistics.sentences import bound_text, sentence
from planewise.store.cells import level_words
from planewise.store.models import ChainResult, Limit, RunInfo, TcpResult, TrialRecord
from planewise.store.recommendation import Recommendation
from planewise.units import bits_text, percent_text, rate_text

_WORDS: dict[Limit, str] = {
    "PMD core": "the switch's polling core",
    "VNF core": "the functions' cores",
    "generator": "the generator",
    "uplink": "the switch's uplink",
    "shared core": "cores that were shared",
    "kernel": "the kernel",
    "NIC": "the NIC",
    "unknown": "an unknown limit",
}
"""What bounds a chain, as a sentence says it."""
_Chain = tuple[TrialRecord, ChainResult]


def recommend_chains(
    trials: Sequence[TrialRecord], info: RunInfo, reservations: Sequence[str]
) -> Recommendation:
    """The recommendation of a run of chains or of TCP, of trials that are done."""
    chains = [(trial, trial.chain) for trial in trials if trial.chain is not None]
    name, show = ("transmitted", rate_text) if chains else ("goodput", bits_text)
    observed = observe([RunSample("run", info, trials)], name)
    # Guests of one kind are compared with one another: each kind has planes of its own.
    guests = {str(trial.cell.get("guest", "")) for trial in trials if trial.tcp is not None}
    by = "guest" if len(guests) > 1 else "path"
    family = compare_levels(observed, "plane", by=by)
    planes = {str(observation.cell["plane"]) for observation in observed.observations}
    strata = [stratum for stratum in family.strata if stratum != OVERALL] or [OVERALL]
    winners_in_words = [_best_plane(family, by, stratum, show) for stratum in strata]
    winners = {winner for winner, _ in winners_in_words}
    plane = winners.pop() if len(winners) == 1 else None
    if len(planes) == 1:
        plane = next(iter(planes))
        headline = f"Only {plane} was measured: there is nothing to choose from."
    else:
        headline = "; ".join(words for _, words in winners_in_words)
        headline = f"{headline[0].upper()}{headline[1:]}."
    return Recommendation(
        plane=plane,
        headline=headline,
        reasons=(*_maxima(trials, chains), *_limits(chains)),
        reservations=(*_shared(chains), *reservations),
    )


def _best_plane(
    family: Family, by: str, stratum: str, show: Callable[[float], str]
) -> tuple[str | None, str]:
    """The best plane of a path or kind of guests (None where undecided), and that in words."""
    words = level_words("guest", stratum) if by == "guest" else stratum
    prefix = "" if stratum == OVERALL else f"{words}: "
    values, comparison = first_two(family, stratum)
    if len(values) == 1:
        return str(values[0].level), f"{prefix}only {values[0].level} was measured"
    best, second = values[:2]
    names = f"{best.level} and {second.level}"
    if comparison is None:
        return None, f"{prefix}{names} were not measured under one condition"
    if comparison.outcome == "too few blocks":
        return None, f"{prefix}{sentence(comparison, family).rstrip('.')}"
    if comparison.outcome != "better":
        return None, f"{prefix}{names} are not distinguishable by this run ({comparison.why})"
    return (
        str(best.level),
        f"{prefix}use {best.level}: it carries {bound_text(best.bound, show(best.value))}, "
        f"{second.level} {bound_text(second.bound, show(second.value))}",
    )


def _maxima(trials: Sequence[TrialRecord], chains: Sequence[_Chain]) -> Iterator[str]:
    """The highest throughput of each plane and path."""
    groups: dict[tuple[str, str], list[_Chain]] = {}
    for trial, chain in chains:
        key = str(trial.cell["plane"]), str(trial.cell.get("path", ""))
        groups.setdefault(key, []).append((trial, chain))
    for (plane, path), group in sorted(groups.items()):
        top, fastest = max(group, key=lambda one: one[1].tx_pps)
        wide, widest = max(group, key=lambda one: one[1].tx_bps)
        yield (
            f"{plane}, {path}: up to {rate_text(fastest.tx_pps)} with {_frames(top)} and "
            f"{bits_text(widest.tx_bps)} with {_frames(wide)}"
        )
    streams: dict[tuple[str, str], list[TcpResult]] = {}
    for trial in trials:
        if trial.tcp is not None:
            key = str(trial.cell["plane"]), str(trial.cell.get("path", ""))
            streams.setdefault(key, []).append(trial.tcp)
    for (plane, _), of_plane in sorted(streams.items()):
        best = max(of_plane, key=lambda stream: stream.goodput_bps)
        yield (
            f"{plane}: up to {bits_text(best.goodput_bps)} of TCP, with messages of "
            f"{best.message_bytes} bytes"
        )


def _frames(trial: TrialRecord) -> str:
    size, vnfs = trial.cell.get("size_bytes"), trial.cell.get("vnfs")
    frames = "IMIX" if size == "imix" else f"{size}-byte frames"
    return f"{frames} through {vnfs} function{'' if vnfs == 1 else 's'}"


def _limits(chains: Sequence[_Chain]) -> Iterator[str]:
    """What bound how many trials of each plane."""
    planes: dict[str, Counter[Limit]] = {}
    for trial, chain in chains:
        planes.setdefault(str(trial.cell["plane"]), Counter())[chain.limit] += 1
    for plane, counts in sorted(planes.items()):
        words = ", ".join(f"{_WORDS[limit]} in {count}" for limit, count in counts.most_common())
        yield f"what bound {plane}: {words} of {counts.total()} trials"


def _shared(chains: Sequence[_Chain]) -> Iterator[str]:
    """The reservation about shared cores: such trials measure the machine, not the plane."""
    shared = [chain for _, chain in chains if chain.limit == "shared core"]
    shares = [core.ours for chain in shared for core in chain.cores if core.ours is not None]
    had = f": chains had {percent_text(statistics.median(shares))} of their cores" if shares else ""
    if shared:
        yield (
            f"in {len(shared)} of {len(chains)} trials tasks that poll shared a core, with one "
            f"another or with other programs{had}; these say what this machine carries, not what "
            "the planes can"
        )
