"""Writes a run directory with made-up numbers, for tests. Knows nothing of testbeds or reports.

As a program: `python -m tests.unit.made_up_run DIR [--large | --huge]`.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice, product
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

from planewise.advise.recommend import recommend
from planewise.store.models import (
    Capture,
    Counts,
    Disturbance,
    Fingerprint,
    Latency,
    Level,
    Limit,
    LossPart,
    OfferedLoad,
    PlaneAvailability,
    RunInfo,
    TrialKind,
    TrialRecord,
)
from planewise.store.rundir import TRIALS_FILE, RunReader, RunWriter, packets_file

HIDDEN_REASON = "the host does not see the frames of this plane, so it cannot stamp them"

STARTED = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)

# Per plane: time in the sender host, on the wire and in the responder host [ns], saturation [pps].
PLANES: Mapping[str, tuple[float, float, float, float]] = {
    "veth": (6_100, 2_300, 5_600, 640_000),
    "bridge": (8_400, 2_300, 7_900, 520_000),
    "macvlan": (6_900, 2_300, 6_400, 610_000),
}
# Under load everything takes longer and varies more: factor, spread (sigma of the log).
LOADS: Mapping[str, tuple[float, float]] = {
    "none": (1.0, 0.10),
    "cpu": (1.9, 0.45),
    "network": (4.5, 0.70),
}


@dataclass(frozen=True)
class MadeUp:
    """What the made-up run holds."""

    planes: Sequence[str] = ("veth", "bridge", "macvlan")
    load_types: Sequence[str] = ("none", "cpu", "network")
    locations: Sequence[str] = ("responder",)
    guests: Sequence[int] = (8,)
    """With 0 there is one cell a plane, without load."""
    kinds: Sequence[str] = ("namespace",)
    background_planes: Sequence[str] = ("same",)
    frequencies_pps: Sequence[float] = (1000.0,)
    sizes_bytes: Sequence[int] = (64,)
    protocols: Sequence[str] = ("icmp",)
    blocks: int = 3
    packets: int = 1000
    load_blocks: int = 5
    """K: load trials at each offered load; 0 for none."""
    ladder: Sequence[float] = (0.3, 0.5, 0.7, 0.85, 0.95, 1.05, 1.2, 1.4, 1.6)
    """Offered loads as shares of the plane's saturation."""
    loaded: Sequence[str] = ("none",)
    """Load types under which load trials are run."""
    hidden: Sequence[str] = ("macvlan",)
    """Planes whose NIC stamps do not exist."""
    inside: bool = False
    """Whether packets were stamped at the guests' own interfaces."""
    hosts: Sequence[str] = ("shared",)
    failed: int = 1
    generator_limited: bool = True
    drift: float = 0.05
    """How much slower everything is at the end of the run."""
    slower: float = 1.0
    """How many times as long packets take as `PLANES` says; it forwards that much less."""
    emulated: str = ""
    virtualisation: str = "kvm"
    with_packets: bool = True
    with_recommendation: bool = True
    title: str = "Which plane on this host?"
    status: str = "done"
    seed: int = 7
    extra: Mapping[str, Level] = field(default_factory=dict)


def write(path: Path, wanted: MadeUp = MadeUp()) -> Path:
    """Writes the run directory `path` (new or empty) and returns it."""
    info = _info(wanted)
    with RunWriter.create(path, info) as writer, ThreadPoolExecutor(2) as pool:
        order = 0
        clock = STARTED
        lines = []
        # Not by the writer, which waits for the disk after every trial.
        trials = _trials(wanted)
        while batch := list(islice(trials, 64)):
            for record in pool.map(lambda made: _keep(path, *made), batch):
                lines.append(record.model_dump_json(exclude_defaults=True) + "\n")
                order, clock = record.order + 1, record.started
        (path / TRIALS_FILE).write_text("".join(lines))
        if wanted.with_recommendation:
            reader = RunReader(path)
            writer.recommend(recommend(reader.trials(), reader.info))
        finished = clock if wanted.status == "done" else None
        writer.finish(
            info.model_copy(
                update={"finished": finished, "status": wanted.status, "trials_planned": order}
            )
        )
    return path


def info(title: str, emulated: str = "") -> RunInfo:
    """What a finished run of two bare hosts says of itself."""
    host = Fingerprint(
        hostname="h", kernel="6", cpu_model="c", cpus=2, memory_bytes=1, virtualisation="none",
        clocksource="tsc", governor="none", smt="off",
    )  # fmt: skip
    return RunInfo(
        run="made-up", title=title, planewise="0", design={}, seed=1,
        hosts={"sender": host, "responder": host}, started=STARTED, status="done",
        emulated=emulated,
    )  # fmt: skip


def trial(
    name: str, kind: TrialKind, cell: Mapping[str, Level], block: int = 0, **more: Any
) -> TrialRecord:
    """A trial with these fields; without others it took a second and came first in its block."""
    others: dict[str, Any] = {"replicate": block, "order": 0, "started": STARTED, "duration_s": 1.0}
    return TrialRecord(trial=name, kind=kind, cell=dict(cell), block=block, **others | more)


def cells(wanted: MadeUp) -> list[dict[str, Level]]:
    """Its cells, without the traffic of their trials; what has no meaning is not told apart."""
    found: dict[tuple[Level, ...], dict[str, Level]] = {}
    for plane, kind, behind, guests, load, place in product(
        wanted.planes,
        wanted.kinds,
        wanted.background_planes,
        wanted.guests,
        wanted.load_types,
        wanted.locations,
    ):
        cell: dict[str, Level] = {
            "plane": plane,
            "guest": kind,
            "background_plane": behind if guests else wanted.background_planes[0],
            "background_guests": guests,
            "load_type": load if guests else "none",
            "load_location": place if guests and load != "none" else wanted.locations[0],
            "path": "north-south",
        }
        found[tuple(cell.values())] = cell | dict(wanted.extra)
    return list(found.values())


def _trials(wanted: MadeUp) -> Iterator[tuple[TrialRecord, pl.DataFrame | None]]:
    rng = np.random.default_rng(wanted.seed)
    own = cells(wanted)
    visits = [
        (block, cell)
        for block in range(max(wanted.blocks, wanted.load_blocks))
        for cell in _shuffled(rng, own)
    ]
    order = failed = 0
    clock = STARTED
    for visit, (block, cell) in enumerate(visits):
        slower = wanted.slower * (1 + wanted.drift * visit / max(1, len(visits) - 1))
        for kind, value, size, protocol in _plans(rng, wanted, block, cell):
            if kind == "rtt":
                record, packets = _rtt(
                    rng, wanted, cell, block, order, clock, value, size, protocol, slower
                )
            else:
                record, packets = _load(rng, wanted, cell, block, order, clock, value, size)
            if kind == "rtt" and failed < wanted.failed and visit >= 4:
                record, packets = _failed(record), None
                failed += 1
            yield record, packets
            order += 1
            clock += timedelta(seconds=1.4)


def _keep(path: Path, record: TrialRecord, packets: pl.DataFrame | None) -> TrialRecord:
    """Writes the packets; the record then says where they are."""
    if packets is None:
        return record
    buffer = io.BytesIO()
    packets.write_parquet(buffer, compression="zstd")
    name = packets_file(record.trial)
    (path / name).write_bytes(buffer.getvalue())
    return record.model_copy(update={"packets": name})


def _shuffled(
    rng: np.random.Generator, cells: Sequence[dict[str, Level]]
) -> list[dict[str, Level]]:
    return [cells[place] for place in rng.permutation(len(cells))]


def _plans(
    rng: np.random.Generator, wanted: MadeUp, block: int, cell: Mapping[str, Level]
) -> list[tuple[str, float, int, str]]:
    plans: list[tuple[str, float, int, str]] = []
    if block < wanted.blocks:
        plans += [
            ("rtt", frequency, size, protocol)
            for frequency in wanted.frequencies_pps
            for size in wanted.sizes_bytes
            for protocol in wanted.protocols
        ]
    if block < wanted.load_blocks and cell["load_type"] in wanted.loaded:
        steps = rng.permutation(np.asarray(wanted.ladder))
        saturation = PLANES.get(str(cell["plane"]), PLANES["bridge"])[3] / wanted.slower
        plans += [
            ("load", float(f"{share * saturation:.2g}"), size, "")
            for size in wanted.sizes_bytes
            for share in steps
        ]
    return plans


def _name(kind: str, cell: Mapping[str, Level]) -> str:
    return f"{kind}:" + ",".join(str(level) for level in cell.values())


def _rtt(
    rng: np.random.Generator,
    wanted: MadeUp,
    cell: dict[str, Level],
    block: int,
    order: int,
    started: datetime,
    frequency: float,
    size: int,
    protocol: str,
    slower: float,
) -> tuple[TrialRecord, pl.DataFrame | None]:
    n = wanted.packets
    plane, load = str(cell["plane"]), str(cell["load_type"])
    sender, wire, responder, _ = PLANES.get(plane, PLANES["bridge"])
    factor, sigma = LOADS.get(load, (1.5, 0.3))
    at_sender = cell["load_location"] == "sender"
    factor *= (1 + 0.004 * float(cell["background_guests"])) * float(rng.normal(1, 0.02)) * slower

    def times(mean: float, busy: bool) -> NDArray[np.int64]:
        base = mean * (factor if busy else slower)
        values = base * rng.lognormal(0, sigma if busy else 0.08, n)
        values[rng.random(n) < 0.004] *= 12
        return values.astype(np.int64)

    out, back = times(sender * 0.5, at_sender), times(sender * 0.5, at_sender)
    wire_ns = times(wire, False)
    inside = times(responder, not at_sender)
    user_out, user_back = times(900, False), times(1_400, False)
    scheduled = (np.arange(n) * (1e9 / frequency)).astype(np.int64)
    user_tx = scheduled + times(300, False)
    kernel_tx = user_tx + user_out
    nic_request = kernel_tx + out
    other_clock = 5_000_000_000
    arrival = nic_request + wire_ns // 2 + other_clock
    departure = arrival + inside
    nic_reply = nic_request + wire_ns + inside
    kernel_rx = nic_reply + back
    user_rx = kernel_rx + user_back
    lost = rng.random(n) < (0.002 if load == "network" else 0.0)
    columns = {
        "seq": np.arange(n),
        "scheduled_ns": scheduled,
        "user_tx_ns": user_tx,
        "kernel_tx_ns": kernel_tx,
        "kernel_rx_ns": kernel_rx,
        "user_rx_ns": user_rx,
        "sender_nic_request_ns": nic_request,
        "sender_nic_reply_ns": nic_reply,
        "responder_nic_request_ns": arrival,
        "responder_nic_reply_ns": departure,
    }
    if wanted.inside:
        columns |= {
            "sender_inside_request_ns": user_tx + user_out // 2,
            "sender_inside_reply_ns": kernel_rx,
            "responder_inside_request_ns": arrival + inside // 4,
            "responder_inside_reply_ns": departure - inside // 4,
        }
    frame = pl.DataFrame(columns)
    gone = pl.Series(lost)
    nic = [name for name in columns if "_nic_" in name]
    replies = ["kernel_rx_ns", "user_rx_ns", *(name for name in columns if "reply" in name)]
    frame = frame.with_columns(
        pl.when(gone).then(None).otherwise(pl.col(name)).alias(name) for name in replies
    )
    hidden = plane in wanted.hidden
    if hidden:
        frame = frame.with_columns(pl.lit(None, dtype=pl.Int64).alias(name) for name in nic)
    kept = ~lost
    rtt_user, rtt_kernel = (user_rx - user_tx)[kept], (kernel_rx - kernel_tx)[kept]
    latency = {"rtt_user": latency_of(rtt_user), "rtt_kernel": latency_of(rtt_kernel)}
    not_measurable = {}
    if hidden:
        not_measurable = {"overhead": HIDDEN_REASON, "response": HIDDEN_REASON}
    else:
        latency["overhead"] = latency_of(rtt_user - (nic_reply - nic_request)[kept])
        latency["response"] = latency_of((departure - arrival)[kept])
    record = trial(
        f"{_name('rtt', cell)},{frequency:g}pps,{size}B,{protocol}#r{block}",
        "rtt",
        cell | {"size_bytes": size, "frequency_pps": frequency, "protocol": protocol},
        block,
        order=order,
        started=started,
        duration_s=n / frequency,
        load=OfferedLoad(intended_pps=frequency, achieved_pps=frequency * 0.9998, size_bytes=size),
        counts=Counts(sent=n, received=int(kept.sum()), lost=int(lost.sum())),
        latency=latency,
        not_measurable=not_measurable,
        cpu=_cpu(rng, wanted, load),
        cpu_window_s=1.0,
        schedule_slip_ns=latency_of(user_tx - scheduled),
        captures=()
        if hidden
        else (Capture(point="wire0", host="sender", packets=2 * n, dropped=0),),
        warnings=("steal time was 1.2 % during this trial",) if order == 0 else (),
    )
    return record, frame if wanted.with_packets else None


def _load(
    rng: np.random.Generator,
    wanted: MadeUp,
    cell: dict[str, Level],
    block: int,
    order: int,
    started: datetime,
    offered: float,
    size: int,
) -> tuple[TrialRecord, None]:
    plane, load = str(cell["plane"]), str(cell["load_type"])
    saturation = PLANES.get(plane, PLANES["bridge"])[3] / LOADS.get(load, (1.5, 0.3))[0] ** 0.5
    saturation *= float(rng.normal(1, 0.01)) / wanted.slower
    limits: tuple[Limit, ...] = ("sut",) if offered > saturation else ()
    achieved = offered * 0.9999
    if wanted.generator_limited and plane == "veth" and offered > 1.5 * saturation:
        achieved, limits = offered * 0.93, ("generator",)
    sent = int(achieved)
    early = 3e-6 * (achieved / saturation) ** 2
    loss = max(0.0, 1 - saturation / achieved) if achieved > saturation else 0.0
    if plane == "macvlan" and achieved > saturation:
        loss *= 0.55  # forwards ever more: throughput creeps on, never saturates
    lost = min(sent, int(rng.poisson(sent * early)) + int(sent * loss))
    at_ring = lost // 3
    record = trial(
        f"{_name('load', cell)},{size}B#r{block}@{offered:.0f}",
        "load",
        cell | {"size_bytes": size},
        block,
        order=order,
        started=started,
        load=OfferedLoad(intended_pps=offered, achieved_pps=achieved, size_bytes=size),
        counts=Counts(sent=sent, received=sent - lost, lost=lost),
        loss=(
            LossPart(where="responder:wire0", counter="rx_dropped", count=lost - at_ring),
            LossPart(where="sender:wire0", counter="tx_dropped", count=at_ring),
        ),
        latency={
            "one_way": latency_of(
                (9_000 * rng.lognormal(0, 0.2 + 0.5 * (loss > 0), 500)).astype(np.int64)
            )
        },
        cpu=_cpu(rng, wanted, "network"),
        limits=limits,
    )
    return record, None


def _failed(record: TrialRecord) -> TrialRecord:
    return record.model_copy(
        update={
            "status": "failed",
            "reason": "the responder stopped answering: interface pw-r0 vanished",
            "latency": {},
            "counts": None,
            "packets": None,
        }
    )


def latency_of(values: NDArray[np.int64]) -> Latency:
    """A metric's distribution [ns] as a trial record has it."""
    histogram = HdrHistogram(1, 60_000_000_000, 3)
    # Its own way of recording takes a value at a time.
    half = histogram.sub_bucket_half_count
    bucket = np.maximum(np.log2(np.maximum(values, 1)).astype(np.int64) - 10, 0)
    places, counts = np.unique(bucket * half + (values >> bucket), return_counts=True)
    for place, count in zip(places.tolist(), counts.tolist(), strict=True):
        histogram.counts[place] = count
    histogram.total_count = len(values)
    histogram.min_value, histogram.max_value = int(values.min()), int(values.max())
    p50, p90, p99, p999 = np.percentile(values, [50, 90, 99, 99.9])
    return Latency(
        count=len(values),
        min_ns=int(values.min()),
        mean_ns=float(values.mean()),
        p50_ns=float(p50),
        p90_ns=float(p90),
        p99_ns=float(p99),
        p999_ns=float(p999),
        max_ns=int(values.max()),
        hdr=histogram.encode().decode(),
    )


def _cpu(rng: np.random.Generator, wanted: MadeUp, load: str) -> dict[str, dict[str, float]]:
    means = {
        "none": {"usr": 0.03, "sys": 0.05, "soft": 0.03, "steal": 0.005},
        "cpu": {"usr": 0.71, "sys": 0.06, "soft": 0.03, "steal": 0.02},
        "network": {"usr": 0.08, "sys": 0.34, "soft": 0.21, "steal": 0.01},
    }.get(load, {"usr": 0.1})
    hosts = {}
    for host in wanted.hosts:
        modes = {mode: float(mean * rng.normal(1, 0.06)) for mode, mean in means.items()}
        modes["idle"] = 1 - sum(modes.values())
        hosts[host] = modes
    return hosts


def _info(wanted: MadeUp) -> RunInfo:
    fingerprint = Fingerprint(
        hostname="bench-1",
        kernel="6.1.0-18-amd64",
        distribution="Debian GNU/Linux 12 (bookworm)",
        cpu_model="AMD EPYC 7B13",
        cpus=2,
        memory_bytes=23 * 2**30,
        virtualisation=wanted.virtualisation,
        clocksource="kvm-clock" if wanted.virtualisation != "none" else "tsc",
        governor="none",
        smt="on",
        mitigations={
            "spectre_v2": "Mitigation: Retpolines; IBPB: conditional",
            "meltdown": "Not affected",
        },
        nics=({"name": "eth0", "driver": "virtio_net", "speed": "unknown", "offloads": "gro gso"},),
        disturbances=(
            Disturbance(
                name="virtual clock",
                value="kvm-clock",
                severity="warning",
                why="the hypervisor may stop this machine's CPUs at any time",
                remedy="measure on the bare host, or read times as those of this virtual machine",
            ),
            Disturbance(
                name="SMT",
                value="on",
                severity="info",
                why="two threads of one core slow each other down",
                remedy="echo off > /sys/devices/system/cpu/smt/control",
            ),
        ),
        planes=(
            *(PlaneAvailability(plane=plane, available=True) for plane in wanted.planes),
            PlaneAvailability(
                plane="ipvlan",
                available=False,
                reason="this kernel has no ipvlan",
                remedy="use a kernel with CONFIG_IPVLAN",
            ),
        ),
    )
    return RunInfo(
        run="20260314-092653-k3v9",
        title=wanted.title,
        planewise="0.1.0",
        design={
            "blocks": wanted.blocks,
            "seed": wanted.seed,
            "rtt": {"packets": wanted.packets},
        },
        seed=wanted.seed,
        hosts=dict.fromkeys(wanted.hosts, fingerprint),
        emulated=wanted.emulated,
        started=STARTED,
    )


LARGE = MadeUp(
    locations=("sender", "responder"),
    guests=(4, 8, 16, 24, 32, 48, 64, 128),
    frequencies_pps=(1000.0, 100_000.0),
    sizes_bytes=(64, 1518),
    hosts=("sender", "responder"),
    blocks=2,
    packets=10_000,
    load_blocks=3,
)
"""480 RTT cells, 9.6 million packets, 48 curves."""

HUGE = MadeUp(
    planes=("veth", "bridge", "macvlan", "docker-bridge", "vf"),
    kinds=("container",),
    load_types=("cpu", "network"),
    locations=("sender", "responder"),
    guests=(0, 8, 32, 64, 128),
    frequencies_pps=(1000.0, 1_000_000.0),
    sizes_bytes=(64, 512, 1518),
    hosts=("sender", "responder"),
    blocks=10,
    packets=2000,
    load_blocks=0,
)
"""510 cells, 5100 trials, 10.2 million packets: publication D's design, with sizes, ten blocks."""

if __name__ == "__main__":
    size = {"--large": LARGE, "--huge": HUGE}.get(sys.argv[-1], MadeUp())
    print(write(Path(sys.argv[1]), size))
