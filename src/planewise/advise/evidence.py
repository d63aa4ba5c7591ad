"""What runs measured of planes, as evidence for an advice: times, rates, CPU, loss, chains.

Of an emulated host only the order of its planes counts, never a figure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from planewise.advise.model.capacity import ChainWorkload
from planewise.advise.recommend import (
    ALL_LOADS,
    LOAD_WORDS,
    at_each_sending,
    rankings_of,
    value_of,
)
from planewise.errors import BadInputError
from planewise.judge.bounded import Bounded, at_least, exact, mean_of, median_interval, median_of
from planewise.judge.statistics.sentences import bound_text
from planewise.store.levels import keeps_levels
from planewise.store.models import Limit, RunInfo, TrialRecord
from planewise.store.recommendation import RankedPlane
from planewise.units import bits_text, percent_text, rate_text, time_text


@dataclass(frozen=True)
class MeasuredChain:
    """What a chain sent on one plane, over the replicates of one cell."""

    pattern: str
    vnfs: int
    frame_bytes: int
    pps: float
    """What all functions sent a second; the median of the replicates."""
    low_pps: float | None
    """95 % interval of the median; None of fewer than six replicates, and where it is open."""
    high_pps: float | None
    limit: str
    """What limited it most often."""
    at_least: bool
    """Whether in half of the trials something else than the plane was the limit."""


@dataclass(frozen=True)
class Evidence:
    """What one run tells of one plane."""

    run: str
    plane: str
    order_only: str
    """Why the run's figures count for nothing, only the order of its planes; else empty."""
    virtualised: str
    """The hypervisor that the hosts themselves ran on; empty for none."""
    sentences: tuple[str, ...]
    """What was measured."""
    rtt_place: int | None
    """Place by median round-trip time over all loads, from 1; None: not beside another plane."""
    tcp_place: int | None
    """Place by goodput of TCP, from 1; None: not measured beside another, or of one of them only a
    bound is known."""
    tails: tuple[RankedPlane, ...]
    """The 99th percentiles under each load that was measured."""
    cpu: RankedPlane | None
    """CPU time of the kernel for a forwarded packet [ns]."""
    chains: tuple[MeasuredChain, ...]
    pair: MeasuredChain | None
    """One pair of guests, as the chain of one function that sends to the other host."""

    def chain(self, workload: ChainWorkload, *, as_pair: bool) -> MeasuredChain | None:
        """What was measured of this very chain; `as_pair` takes a pair of guests for one, too."""
        key = (workload.pattern, workload.vnfs, workload.frame_bytes)
        for chain in self.chains:
            if (chain.pattern, chain.vnfs, chain.frame_bytes) == key:
                return chain
        fits = self.pair is not None and (1, self.pair.frame_bytes) == key[1:]
        return self.pair if fits and as_pair else None


def gather(run: str, trials: Iterable[TrialRecord], info: RunInfo) -> tuple[Evidence, ...]:
    """A run's evidence on each of its planes. `run` is its name.

    Of RTT trials at several rates of the probes, those at the lowest give the times.

    Raises:
        BadInputError: it measured no plane.
    """
    done = [trial for trial in trials if keeps_levels(trial) and "plane" in trial.cell]
    slowest = next(iter(at_each_sending(done).values()), done)
    if not done:
        raise BadInputError(
            "this run measured no plane",
            where=run,
            remedy="`planewise quick` or `planewise run` measure planes",
        )
    places = rankings_of([trial for trial in slowest if trial.kind in ("rtt", "load")], info)
    rivals = [place.plane for place in places["rtt_p50"] if place.load_type == ALL_LOADS]
    of_plane: dict[str, list[TrialRecord]] = {}
    for trial in done:
        of_plane.setdefault(str(trial.cell["plane"]), []).append(trial)
    streams = {plane: _tcp(own) for plane, own in of_plane.items()}
    fastest = _by_goodput(streams)
    machines = {host.virtualisation for host in info.hosts.values()} - {"none", ""}
    gathered = []
    for plane, own in of_plane.items():
        by_load = {
            metric: {place.load_type: place for place in ranked if place.plane == plane}
            for metric, ranked in places.items()
        }
        rate = by_load["forwarded"].get("none") or by_load["forwarded"].get(ALL_LOADS)
        sizes = {trial.load.size_bytes for trial in own if trial.kind == "load" and trial.load}
        cpu = by_load["cpu"].get(ALL_LOADS)
        order = []
        if plane in rivals and len(rivals) > 1:
            place = f"number {rivals.index(plane) + 1} of {len(rivals)}"
            order.append(f"By median round-trip time it was {place} ({', '.join(rivals)}).")
        if plane in fastest:
            order.append(f"By the goodput of TCP it was number {fastest.index(plane) + 1}.")
        figures = () if info.emulated else _figures(own, by_load, streams[plane], rate, sizes, cpu)
        gathered.append(
            Evidence(
                run=run,
                plane=plane,
                order_only=info.emulated,
                virtualised=", ".join(sorted(machines)),
                sentences=(*order, *figures),
                rtt_place=rivals.index(plane) + 1 if plane in rivals and rivals[1:] else None,
                tcp_place=fastest.index(plane) + 1 if plane in fastest else None,
                tails=tuple(p for load, p in by_load["rtt_p99"].items() if load != ALL_LOADS),
                cpu=cpu,
                chains=tuple(chains_of(one_kind(own))),
                pair=_pair(rate, min(sizes)) if rate and len(sizes) == 1 else None,
            )
        )
    return tuple(gathered)


def _pair(rate: RankedPlane, frame_bytes: int) -> MeasuredChain:
    bound = rate.bound == "at least"
    limit = "generator" if bound else "kernel"
    return MeasuredChain("", 1, frame_bytes, rate.value, rate.low, rate.high, limit, bound)


def _figures(
    trials: Sequence[TrialRecord],
    by_load: Mapping[str, Mapping[str, RankedPlane]],
    streams: Mapping[int, Bounded],
    rate: RankedPlane | None,
    sizes: Collection[int],
    cpu: RankedPlane | None,
) -> Iterator[str]:
    """What was measured of a plane in numbers, in sentences."""
    if streams:
        of_size = ", ".join(
            f"{bound_text(goodput.bound, bits_text(goodput.value))} of {size} bytes"
            for size, goodput in streams.items()
        )
        yield f"TCP by messages: {of_size}."
    for load, median in by_load["rtt_p50"].items():
        if load in LOAD_WORDS:
            tail = by_load["rtt_p99"].get(load)
            tail_text = f", {value_of(tail, time_text)} for 99 of 100" if tail is not None else ""
            yield (
                f"Round-trip time {LOAD_WORDS[load]}: {value_of(median, time_text)} in the "
                f"median{tail_text}."
            )
    if rate is not None:
        size_text = f" of {min(sizes)} bytes" if len(sizes) == 1 else ""
        yield f"One pair of guests: {value_of(rate, rate_text)}{size_text}."
    if cpu is not None:
        yield f"It took {value_of(cpu, time_text)} of the kernel's CPU for each packet."
    counts = [trial.counts for trial in trials if trial.kind == "rtt" and trial.counts]
    lost, sent = sum(count.lost for count in counts), sum(count.sent for count in counts)
    if sent:
        yield f"Probe packets lost: {percent_text(lost / sent) if lost else 'none'} of {sent}."


def one_kind(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Of trials of one plane those whose functions are of one kind: processes where there are some,
    as the model means them, else containers. Their rates are no replicates of one another."""
    kinds = {str(trial.cell.get("guest", "")) for trial in trials}
    leading = next((kind for kind in ("process", "container", "vm") if kind in kinds), None)
    alike = [trial for trial in trials if leading is None or trial.cell.get("guest", "") == leading]
    # A cell need not name its plane's only forwarder. One that polls comes first; the model does
    # not cover XDP programs.
    forwarders = {str(trial.cell.get("forwarder", "")) for trial in alike}
    order = ("testpmd", "", "kernel")
    forwarder = next((name for name in order if name in forwarders), "")
    return [trial for trial in alike if trial.cell.get("forwarder", "") == forwarder]


def chains_of(trials: Iterable[TrialRecord]) -> list[MeasuredChain]:
    """What chains of one plane and kind sent; those of mixed frame sizes are left out."""
    cells: dict[tuple[str, int, int], list[tuple[Bounded, Limit]]] = {}
    for trial in trials:
        size, vnfs = trial.cell.get("size_bytes"), trial.cell.get("vnfs")
        if trial.chain is None or not isinstance(size, int) or not isinstance(vnfs, int):
            continue
        pattern = str(trial.cell.get("path", trial.cell.get("pattern", "")))
        rate = at_least(trial.chain.tx_pps) if trial.is_bound else exact(trial.chain.tx_pps)
        cells.setdefault((pattern, vnfs, size), []).append((rate, trial.chain.limit))
    chains = []
    for cell, replicates in cells.items():
        rates, limits = zip(*replicates, strict=True)
        middle, bound = median_of(rates), median_of(rates).bound == "at least"
        low, high = (end if math.isfinite(end) else None for end in median_interval(rates))
        limit = statistics.mode(limits)
        chains.append(MeasuredChain(*cell, middle.value, low, high, limit, bound))
    return chains


def _tcp(trials: Iterable[TrialRecord]) -> dict[int, Bounded]:
    sizes: dict[int, list[Bounded]] = {}
    for trial in trials:
        if trial.tcp is not None:
            bounded = at_least if trial.is_bound else exact
            sizes.setdefault(trial.tcp.message_bytes, []).append(bounded(trial.tcp.goodput_bps))
    return {size: mean_of(sizes[size]) for size in sorted(sizes)}


def _by_goodput(streams: Mapping[str, Mapping[int, Bounded]]) -> list[str]:
    """Planes by the geometric mean over the message sizes that all were measured with."""
    measured = {plane: sizes for plane, sizes in streams.items() if sizes}
    common = set.intersection(*(set(sizes) for sizes in measured.values())) if measured else set()
    if len(measured) < 2 or not common:
        return []
    if any(sizes[size].bound != "exact" for sizes in measured.values() for size in common):
        return []

    def mean(plane: str) -> float:
        return statistics.fmean(math.log(max(measured[plane][size].value, 1e-9)) for size in common)

    return sorted(measured, key=mean, reverse=True)
