"""Where answers come from: runs, published tables and recordings, all as values by cell.

Knows files and metrics; checks no claim.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Literal

from planewise.errors import BadInputError
from planewise.judge.analysis import SERIES
from planewise.judge.campaign import CampaignCurve, member
from planewise.judge.files import Judged, judge_file
from planewise.judge.policies import switch_losses
from planewise.judge.statistics.metrics import (
    Metric,
    Observation,
    Observed,
    RunSample,
    Unit,
    observe,
    rtt_source,
)
from planewise.store.allocations import by_groups
from planewise.store.cells import Naming, by_series
from planewise.store.models import Level, RunInfo, TrialRecord
from planewise.store.packets import RttMetric
from planewise.store.rundir import RunReader

Counted = Literal["block", "setting", "experiment"]
"""What evidence consists of. A table's settings are complete, so they have no sampling error."""
Cell = Mapping[str, Level]
Values = Iterable[tuple[Cell, float]]

_DEFAULTS: Cell = {"guest": "namespace", "path": "north-south"}
"""Levels that a cell without the factor has."""


@dataclass(frozen=True)
class AskedRun:
    """A run directory."""

    path: Path
    info: RunInfo
    trials: Sequence[TrialRecord]
    """Finished ones."""
    unit: Counted = "block"

    def has_plane(self, plane: str) -> bool:
        """Whether some trial was on this plane."""
        return any(trial.cell.get("plane") == plane for trial in self.trials)

    @property
    def name(self) -> str:
        return self.info.run

    @property
    def emulated(self) -> str:
        """Why its times are not those of hardware; empty when they are."""
        return self.info.emulated

    def observed(self, metric: str, factor: str) -> Observed:
        """The metric's values, one a cell and block; BadInputError where it has no such metric."""
        trials = by_groups(self.trials)
        if factor == SERIES:
            trials = by_series(trials, Naming(trial.cell for trial in trials), SERIES)
        if metric.startswith("boost"):
            fast = metric.partition(":")[2] or "vf"
            return _boost(observe([RunSample(self.name, self.info, trials)], "rtt"), fast)
        if metric not in _OF_TRIALS:
            found = observe([RunSample(self.name, self.info, trials)], metric)
            return _with_defaults(found)
        own = trials if metric == "spread" else self.trials
        title, unit, values = _OF_TRIALS[metric]
        source = rtt_source(own)
        observations = [
            _observation(self.name, trial.block, {**trial.cell, **cell}, value)
            for trial in own
            for cell, value in values(trial, source)
        ]
        if metric == "switch_lost":
            counts = [pair for pair in (switch_losses([trial]) for trial in own) if pair[1]]
            pairs = zip(observations, counts, strict=True)
            observations = [replace(one, counts=pair) for one, pair in pairs]
        described = Metric(metric, title, unit, True)
        return _with_defaults(Observed(described, tuple(observations), seed=self.info.seed))


def read_run(path: Path) -> AskedRun:
    """Reads a run directory; BadInputError when it is none."""
    reader = RunReader(path)
    return AskedRun(
        path, reader.info, [trial for trial in reader.trials() if trial.status == "done"]
    )


def _with_defaults(observed: Observed) -> Observed:
    observations = (replace(one, cell={**_DEFAULTS, **one.cell}) for one in observed.observations)
    return replace(observed, observations=tuple(observations))


def _observation(run: str, block: int, cell: Cell, value: float) -> Observation:
    return Observation(value, abs(value) * 1e-3, run=run, block=block, cell=cell)


def _spread(trial: TrialRecord, source: RttMetric) -> Values:
    latency = trial.latency.get(source)
    if trial.kind == "rtt" and latency is not None and latency.count:
        yield {}, float(latency.p90_ns - latency.p50_ns) or 1.0


def _daemon_memory(trial: TrialRecord, source: RttMetric) -> Values:
    if trial.alloc is not None:
        yield {}, trial.alloc.daemon.memory_bytes / max(1, len(trial.alloc.guests)) / 1e6


def _daemon_cpu(trial: TrialRecord, source: RttMetric) -> Values:
    if trial.alloc is not None:
        yield {}, trial.alloc.daemon.cpu


def _cores(trial: TrialRecord, source: RttMetric) -> Values:
    if trial.chain is not None and trial.chain.cores:
        yield {}, sum(core.used for core in trial.chain.cores if core.tasks != ("generator",))


def _switch_rtt(trial: TrialRecord, source: RttMetric) -> Values:
    for phase in trial.alloc.switch if trial.alloc is not None else ():
        if phase.rtt is not None:
            yield {"phase": phase.name}, float(phase.rtt.p50_ns)


def _switch_lost(trial: TrialRecord, source: RttMetric) -> Values:
    lost, sent = switch_losses([trial])
    if sent:
        yield {}, lost / sent


_OF_TRIALS: Mapping[str, tuple[str, Unit, Callable[[TrialRecord, RttMetric], Values]]] = {
    "spread": ("spread of the round-trip time (90th percentile less median)", "ns", _spread),
    "cores": ("cores that functions and switch keep busy", "share", _cores),
    "daemon_cpu": ("the daemon's share of a CPU", "share", _daemon_cpu),
    "daemon_memory": ("the daemon's memory a guest", "share", _daemon_memory),
    "switch_rtt": ("median time of the moved guest's requests", "ns", _switch_rtt),
    "switch_lost": ("lost requests of the moved guest", "share", _switch_lost),
}


def _boost(rtt: Observed, fast: str) -> Observed:
    """Publication F's boost: 1 − fast/slow of the medians, in one block with all else alike."""
    pairs: dict[tuple[object, ...], dict[str, Observation]] = defaultdict(dict)
    for one in rtt.observations:
        others = sorted((k, v) for k, v in one.cell.items() if k != "plane")
        pairs[one.run, one.block, *others][str(one.cell["plane"])] = one
    saved = [
        replace(by[fast], value=1 - by[fast].value / by["bridge"].value, resolution=1e-3,
                at_least=False, at_most=False, headroom=0.0)
        for by in pairs.values()
        if {fast, "bridge"} <= by.keys()
    ]  # fmt: skip
    metric = Metric("boost", f"share of the round-trip time that {fast} saves", "share", False)
    return _with_defaults(replace(rtt, metric=metric, observations=tuple(saved)))


# --- published tables ----------------------------------------------------------------------------

_PLANES = {"sriov": "vf", "vhost": "vhost-user", "virtio": "virtio-bridge"}
LINE_BPS = 40e9
"""Of the NIC in publication N."""
_NAME_TABLES = "name the folder with throughput.csv and netperf_tcp.csv"
_GAP_BYTES = 20
"""Preamble and inter-frame gap of Ethernet."""


def published_tables(folder: Path) -> PublishedTables:
    """The tables in a folder; BadInputError: it has none."""
    if not any((folder / name).is_file() for name in ("throughput.csv", "netperf_tcp.csv")):
        raise BadInputError("no published table is here", where=str(folder), remedy=_NAME_TABLES)
    return PublishedTables(folder)


@dataclass(frozen=True)
class PublishedTables:
    """Publication N's tables (section 5.1), as throughput.csv and netperf_tcp.csv."""

    folder: Path
    name: str = "published tables"
    emulated: str = ""
    unit: Counted = "setting"

    def observed(self, metric: str, factor: str) -> Observed:
        file = "netperf_tcp.csv" if metric == "goodput" else "throughput.csv"
        try:
            with (self.folder / file).open(newline="") as handle:
                rows = list(csv.DictReader(handle))
            values = [one for row in rows for one in _cells(row, metric)]
        except (OSError, KeyError, ValueError) as error:
            raise BadInputError(
                f"the published table cannot be read: {getattr(error, 'strerror', None) or error}",
                where=str(self.folder / file),
                remedy=_NAME_TABLES,
            ) from error
        if not values:
            raise BadInputError(f"no table has {metric}", where=str(self.folder))
        unit: Unit = "pps" if metric == "transmitted" else "share" if metric == "line" else "bps"
        titles = {
            "transmitted": "packets that all functions transmit",
            "line": "share of line rate",
        }
        title = titles.get(metric, "throughput")
        return _in_settings(Metric(metric, title, unit, False), values, factor, self.name)


def _cells(row: Mapping[str, str], metric: str) -> Values:
    if metric == "goodput":
        size: Cell = {"message_bytes": int(row["message_bytes"]), "generation": row["generation"]}
        for name, plane in _PLANES.items():
            yield {**size, "plane": plane}, float(row[f"{name}_gbps"]) * 1e9
        return
    size_bytes = int(row["packet_bytes"])
    cell: Cell = {
        "plane": _PLANES[row["interface"]], "path": row["pattern"], "vnfs": int(row["vnfs"]),
        "size_bytes": size_bytes,
    }  # fmt: skip
    pps = float(row["tx_mpps"]) * 1e6
    of_metric = {
        "transmitted": pps,
        "transmitted_bits": float(row["tx_gbps"]) * 1e9,
        "line": pps * (size_bytes + _GAP_BYTES) * 8 / LINE_BPS,
    }
    if metric in of_metric and of_metric[metric] > 0:
        yield cell, of_metric[metric]


def _in_settings(metric: Metric, values: Values, factor: str, name: str) -> Observed:
    """Each setting of everything but the factor is a block."""
    blocks: dict[object, int] = {}
    observations = []
    for cell, value in values:
        setting = tuple(sorted((k, str(v)) for k, v in cell.items() if k != factor))
        block = blocks.setdefault(setting, len(blocks))
        observations.append(_observation(name, block, cell, value))
    return Observed(metric, tuple(observations))


# --- recordings ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recordings:
    """PASTRAMI's recorded experiments, a file each."""

    folder: Path
    name: str = "published recordings"
    emulated: str = ""
    unit: Counted = "experiment"

    @cached_property
    def experiments(self) -> tuple[tuple[CampaignCurve, Judged], ...]:
        """Every curve with its verdict; BadInputError where the folder has none."""
        files = sorted(self.folder.glob("*.txt"))
        if not files:
            raise BadInputError(
                "there are no recorded experiments (*.txt)",
                where=str(self.folder),
                remedy="name the folder that holds PASTRAMI's files",
            )
        judged = [one for file in files for one in judge_file(file, None)]
        return tuple((member(one.trials, one.verdict), one) for one in judged if one.verdict)

    def observed(self, metric: str, factor: str) -> Observed:
        if metric == "agreement":
            return _in_settings(
                Metric(metric, "pairs of repetitions with the same word", "share", False),
                _agreements(self.experiments), factor, self.name,
            )  # fmt: skip
        try:
            title, unit, lower, value = _OF_CURVES[metric]
        except KeyError:
            raise BadInputError(f"no recording has {metric}", where=str(self.folder)) from None
        values = [
            (
                {**_aspects(curve), **cell, **({} if factor in SHARED else {"file": curve.name})},
                number,
            )
            for curve, judged in self.experiments
            for cell, number in value(judged)
        ]
        return _in_settings(Metric(metric, title, unit, lower), values, factor, self.name)


Evidence = AskedRun | PublishedTables | Recordings
"""What claims are checked against."""

SHARED = ("nic_ring", "pinning", "platform")
"""Aspects that two experiments differ in; of other factors an experiment has every level."""


def _aspects(curve: CampaignCurve) -> dict[str, Level]:
    """The aspects of an experiment, as the publication's table I names them."""
    cell = {k: v for k, v in curve.aspects.items() if k not in ("runs", "irq_pinning")}
    cpus = {
        part.split("-")[1] for part in str(curve.aspects.get("irq_pinning", "")).split("_") if part
    }
    return {"nic_ring": 512, "class": "routing", **cell, "pinning": f"{len(cpus)} CPUs"}


def _agreements(experiments: Sequence[tuple[CampaignCurve, Judged]]) -> Values:
    repeated: dict[tuple[object, ...], list[Judged]] = defaultdict(list)
    for curve, judged in experiments:
        repeated[tuple(sorted(curve.aspects.items()))].append(judged)
    pairs = ((a, b) for group in repeated.values() for i, a in enumerate(group) for b in group[:i])
    for number, (a, b) in enumerate(pairs):
        yield {"pair": number}, float(_good(a) == _good(b))


def _good(judged: Judged) -> bool:
    return judged.verdict is not None and judged.verdict.pastrami.word == "GOOD"


def _loss_below(judged: Judged) -> Values:
    """Mean loss at half the load of saturation and less, at least the publication's 10⁻⁶."""
    saturation = judged.verdict.saturation if judged.verdict else None
    if judged.curve is not None and saturation is not None:
        early = [p.plr for p in judged.curve.points if p.offered_pps <= saturation.offered_pps / 2]
        if early:
            yield {}, max(statistics.fmean(early), 1e-6)


def _early(judged: Judged) -> Values:
    """Whether some load below saturation loses packets, but no more than 1 %."""
    saturation = judged.verdict.saturation if judged.verdict else None
    if judged.curve is not None and saturation is not None:
        below = [p.plr for p in judged.curve.points if p.offered_pps < saturation.offered_pps]
        yield {}, float(any(0 < loss < 0.01 for loss in below))


def _accuracy(judged: Judged) -> Values:
    """Δ_UCL95 below a tenth of the limit of loss, and above it."""
    parts: dict[str, list[float]] = defaultdict(list)
    for point in judged.curve.points if judged.curve is not None else ():
        delta = point.delta_ucl95
        if delta is not None and math.isfinite(delta) and delta > 0:
            parts["low" if point.plr < 5e-4 else "high" if point.plr > 5e-3 else ""].append(delta)
    for name in ("low", "high"):
        if parts["low"] and parts["high"]:
            yield {"loss": name}, statistics.median(parts[name])


def _falls(judged: Judged) -> Values:
    if judged.curve is not None:
        rates = [point.forwarded_pps for point in judged.curve.points]
        yield {}, float(rates[-1] < 0.95 * max(rates))


def _gap(judged: Judged) -> Values:
    verdict = judged.verdict
    if verdict is not None and verdict.pdr is not None and verdict.saturation is not None:
        word = "GOOD" if _good(judged) else "BAD"
        yield {"word": word}, max(0.0, verdict.saturation.throughput_pps / verdict.pdr.pps - 1)


def _pdr(judged: Judged) -> Values:
    if judged.verdict is not None and judged.verdict.pdr is not None:
        yield {}, judged.verdict.pdr.pps


def _saturation(judged: Judged) -> Values:
    if judged.verdict is not None and judged.verdict.saturation is not None:
        yield {}, judged.verdict.saturation.throughput_pps


_OF_CURVES: Mapping[str, tuple[str, Unit, bool, Callable[[Judged], Values]]] = {
    "good": ("experiments that are GOOD", "share", False, lambda one: [({}, float(_good(one)))]),
    "loss_below": ("loss below half of saturation", "pps", True, _loss_below),
    "early_loss": ("experiments that lose packets below saturation", "share", False, _early),
    "accuracy": ("Δ_UCL95", "pps", True, _accuracy),
    "falls": ("experiments whose throughput falls at the highest load", "share", False, _falls),
    "gap": ("throughput at saturation beyond PDR", "share", True, _gap),
    "pdr": ("PDR", "pps", False, _pdr),
    "saturation": ("throughput at saturation", "pps", False, _saturation),
}
