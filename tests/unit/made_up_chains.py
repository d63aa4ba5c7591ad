"""Trials of chains with made-up throughput, for tests: what a profile predicts, or given rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from planewise.advise.model.capacity import ChainWorkload, Pattern, predict
from planewise.advise.model.profile import Plane, Profile
from planewise.store.models import ChainResult, Limit, TcpResult, TrialRecord, VnfTotal
from planewise.store.rundir import TRIALS_FILE, RunReader
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp

PLANES: tuple[Plane, ...] = ("vf-passthrough", "vhost-user")
PATTERNS: tuple[Pattern, ...] = ("north-south", "east-west")


def trial(
    plane: str,
    chain: ChainWorkload,
    pps: float,
    *,
    limit: Limit = "PMD core",
    replicate: int = 0,
) -> TrialRecord:
    """One trial of a chain in which all functions together sent `pps`."""
    each = pps / chain.vnfs
    bits = 8 * (chain.frame_bytes - 4)
    return made_up_run.trial(
        f"chain:{plane},{chain.pattern},{chain.vnfs},{chain.frame_bytes}B#r{replicate}",
        "chain",
        {
            "plane": plane,
            "guest": "process",
            "path": chain.pattern,
            "vnfs": chain.vnfs,
            "size_bytes": chain.frame_bytes,
        },
        replicate,
        order=replicate,
        duration_s=2.0,
        chain=ChainResult(
            offered_pps=2 * pps,
            delivered_pps=pps,
            tx_pps=pps,
            tx_bps=pps * bits,
            frame_bytes=chain.frame_bytes,
            vnfs=tuple(
                VnfTotal(
                    name=f"vnf{number + 1}",
                    tx_packets=round(2 * each),
                    tx_pps=each,
                    tx_bps=each * bits,
                )
                for number in range(chain.vnfs)
            ),
            limit=limit,
            why="made up",
        ),
    )


def tcp(plane: str, message_bytes: int, goodput_bps: float) -> TrialRecord:
    """One trial of TCP."""
    return made_up_run.trial(
        f"tcp:{plane},{message_bytes}B#r0",
        "tcp",
        {"plane": plane, "guest": "namespace", "message_bytes": message_bytes},
        duration_s=2.0,
        tcp=TcpResult(goodput_bps=goodput_bps, message_bytes=message_bytes, retransmits=0),
    )


def predicted(profile: Profile, planes: Sequence[Plane] = PLANES) -> Iterator[TrialRecord]:
    """Trials that send exactly what `profile` predicts."""
    for plane in planes:
        for pattern in PATTERNS:
            for vnfs in (1, 2, 3, 4, 7):
                for size in (64, 128, 256, 512, 1024, 1518):
                    chain = ChainWorkload(pattern, vnfs, size)
                    yield trial(plane, chain, predicted_pps(profile, plane, chain))


def predicted_pps(profile: Profile, plane: Plane, chain: ChainWorkload) -> float:
    """The rate that `profile` predicts for a plane that it knows."""
    prediction = predict(profile, plane, chain)
    assert prediction is not None
    return prediction.pps


def write(
    path: Path, trials: Sequence[TrialRecord], emulated: str = "", status: str = "done"
) -> RunReader:
    """A run directory that holds these trials alone."""
    made_up_run.write(
        path,
        MadeUp(
            planes=("veth",),
            load_types=("none",),
            blocks=1,
            packets=10,
            load_blocks=0,
            failed=0,
            with_packets=False,
            with_recommendation=False,
            emulated=emulated,
            status=status,
        ),
    )
    (path / TRIALS_FILE).write_text("".join(f"{one.model_dump_json()}\n" for one in trials))
    return RunReader(path)
