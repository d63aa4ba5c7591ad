"""`planewise report` of a large run: time, memory, size of the page. Prints, never passes or fails.

    python benches/report.py                            # 500 cells, 5000 trials, 10 million packets
    python benches/report.py --keep DIR                 # make the run in DIR, or take the one there
    python benches/report.py --blocks 3 --packets 200   # smaller

The run is made up: five planes in the factorial design of publication K. Its packets are drawn anew
for each trial (log-normal with a heavy tail), its histograms are taken from a few of them, because
filling 30 000 would take minutes and nothing here reads them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl
from hdrh.histogram import HdrHistogram
from numpy.typing import NDArray

from planewise.store.models import Fingerprint, Level, RunInfo

PLANES = {  # sender host, responder host [ns]; whether the host sees its frames
    "e1000-bridge": (61_000, 54_000, True),
    "virtio-bridge": (29_000, 27_000, True),
    "macvtap-bridge": (24_000, 21_000, True),
    "macvtap-vf": (16_000, 14_000, True),
    "vf-passthrough": (9_000, 8_000, False),
}
GUESTS = (8, 32, 64, 128)
LOADS = {"cpu": (1.9, 0.45), "network": (3.2, 0.7)}
FREQUENCIES_PPS = (1000.0, 1_000_000.0)
SIZES_BYTES = (64, 512, 1518)
STARTED = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
WIRE_NS = 12_000.0
_HISTOGRAMS = 8


def cells() -> list[dict[str, Level]]:
    """500 cells: 20 of an idle host with one size less, 480 with load."""
    loaded = [
        {
            "plane": plane,
            "load_type": load,
            "load_location": location,
            "background_guests": guests,
            "size_bytes": size,
            "frequency_pps": frequency,
        }
        for plane, load, location, guests, size, frequency in product(
            PLANES, LOADS, ("sender", "responder"), GUESTS, SIZES_BYTES, FREQUENCIES_PPS
        )
    ]
    idle = [
        {
            "plane": plane,
            "load_type": "none",
            "load_location": "responder",
            "background_guests": 0,
            "size_bytes": size,
            "frequency_pps": frequency,
        }
        for plane, size, frequency in product(PLANES, SIZES_BYTES[:2], FREQUENCIES_PPS)
    ]
    return idle + loaded


def make(path: Path, blocks: int, packets: int) -> int:
    """Writes the run and returns how many packets it has."""
    rng = np.random.default_rng(1)
    path.mkdir(parents=True, exist_ok=True)
    (path / "packets").mkdir()
    all_cells = cells()
    histograms = [_histogram(rng) for _ in range(_HISTOGRAMS)]
    clock, order = STARTED, 0
    with (path / "trials.jsonl").open("w") as lines:
        for block in range(blocks):
            for place in rng.permutation(len(all_cells)):
                record, frame = _trial(rng, all_cells[place], block, packets)
                name = f"packets/{order}.parquet"
                frame.write_parquet(path / name, compression="zstd", compression_level=1)
                clock += timedelta(seconds=1.4)
                for metric in record["latency"].values():  # type: ignore[union-attr,attr-defined]
                    metric["hdr"] = histograms[order % _HISTOGRAMS]
                record |= {"order": order, "started": clock.isoformat(), "packets": name}
                lines.write(json.dumps(record) + "\n")
                order += 1
    (path / "run.json").write_text(_info(blocks, packets, order).model_dump_json(indent=2))
    return order * packets


def _histogram(rng: np.random.Generator) -> str:
    histogram = HdrHistogram(1, 60_000_000_000, 3)
    for value in rng.lognormal(11, 0.6, 2000):
        histogram.record_value(int(value))
    return str(histogram.encode().decode())


def _trial(
    rng: np.random.Generator, cell: dict[str, Level], block: int, n: int
) -> tuple[dict[str, object], pl.DataFrame]:
    sender, responder, seen = PLANES[str(cell["plane"])]
    factor, sigma = LOADS.get(str(cell["load_type"]), (1.0, 0.1))
    factor *= 1 + 0.01 * float(cell["background_guests"])
    factor *= float(rng.normal(1, 0.03)) * (1 + 0.01 * block)
    at_sender = cell["load_location"] == "sender"
    frequency = float(cell["frequency_pps"])

    def times(mean: float, busy: bool) -> NDArray[np.int64]:
        spread = sigma if busy else 0.08
        values = mean * (factor if busy else 1.0) * rng.lognormal(0, spread, n)
        values[rng.random(n) < 0.002] *= 10
        return values.astype(np.int64)

    scheduled = (1_773_480_413e9 + np.arange(n) * (1e9 / frequency)).astype(np.int64)
    user_tx = scheduled + times(300, False)
    kernel_tx = user_tx + times(900, False)
    guest_request = kernel_tx + times(sender * 0.1, at_sender)
    nic_request = guest_request + times(sender * 0.4, at_sender)
    arrival = nic_request + 5_000_000_000 + int(WIRE_NS / 2)
    departure = arrival + times(responder, not at_sender)
    nic_reply = nic_request + (departure - arrival) + times(WIRE_NS, False)
    guest_reply = nic_reply + times(sender * 0.4, at_sender)
    kernel_rx = guest_reply + times(sender * 0.1, at_sender)
    user_rx = kernel_rx + times(1_400, False)
    lost = rng.random(n) < (0.001 if cell["load_type"] == "network" else 0.0)
    frame = pl.DataFrame(
        {
            "seq": np.arange(n),
            "scheduled_ns": scheduled,
            "user_tx_ns": user_tx,
            "kernel_tx_ns": kernel_tx,
            "kernel_rx_ns": kernel_rx,
            "user_rx_ns": user_rx,
            "sender_guest_request_ns": guest_request,
            "sender_guest_reply_ns": guest_reply,
            "sender_nic_request_ns": nic_request,
            "sender_nic_reply_ns": nic_reply,
            "responder_nic_request_ns": arrival,
            "responder_nic_reply_ns": departure,
        }
    )
    hidden = [name for name in frame.columns if "_nic_" in name or "_guest_" in name]
    gone = pl.Series(lost)
    frame = frame.with_columns(
        pl.when(gone).then(None).otherwise(pl.col(name)).alias(name)
        for name in frame.columns
        if "_reply_" in name or "_rx_" in name
    )
    if not seen:
        frame = frame.with_columns(pl.lit(None, dtype=pl.Int64).alias(name) for name in hidden)
    kept = ~lost
    latency = {
        "rtt_user": _latency((user_rx - user_tx)[kept]),
        "rtt_kernel": _latency((kernel_rx - kernel_tx)[kept]),
    }
    reason = "the VF belongs to the guest alone: the host does not see its frames"
    if seen:
        latency["overhead"] = _latency((user_rx - user_tx - nic_reply + nic_request)[kept])
        latency["response"] = _latency((departure - arrival)[kept])
    busy = 0.1 + 0.5 * (factor / 6)
    record: dict[str, object] = {
        "trial": "rtt:" + ",".join(str(level) for level in cell.values()) + f"#r{block}",
        "kind": "rtt",
        "cell": cell,
        "block": block,
        "replicate": block,
        "duration_s": n / frequency,
        "load": {"intended_pps": frequency, "achieved_pps": frequency, "size_bytes": 64},
        "counts": {"sent": n, "received": int(kept.sum()), "lost": int(lost.sum())},
        "latency": latency,
        "not_measurable": {} if seen else dict.fromkeys(("overhead", "response"), reason),
        "cpu": {
            host: {
                "usr": round(busy * 0.4 * float(rng.normal(1, 0.05)), 6),
                "sys": round(busy * 0.4, 6),
                "soft": round(busy * 0.15, 6),
            }
            for host in ("sender", "responder")
        },
        "schedule_slip_ns": _latency(user_tx - scheduled),
    }
    return record, frame


def _latency(values: NDArray[np.int64]) -> dict[str, object]:
    p50, p90, p99, p999 = (float(value) for value in np.percentile(values, [50, 90, 99, 99.9]))
    return {
        "count": len(values),
        "min_ns": int(values.min()),
        "mean_ns": float(values.mean()),
        "p50_ns": p50,
        "p90_ns": p90,
        "p99_ns": p99,
        "p999_ns": p999,
        "max_ns": int(values.max()),
    }


def _info(blocks: int, packets: int, trials: int) -> RunInfo:
    host = Fingerprint(
        hostname="bench-1",
        kernel="6.1.0-18-amd64",
        cpu_model="made up",
        cpus=2,
        memory_bytes=8 * 2**30,
        virtualisation="kvm",
        clocksource="kvm-clock",
        governor="none",
        smt="on",
    )
    return RunInfo(
        run="20260314-092653-bench",
        title="A large factorial experiment, made up",
        planewise="0.1.0",
        design={"blocks": blocks, "seed": 1, "rtt": {"packets": packets, "protocol": "icmp"}},
        seed=1,
        hosts={"sender": host, "responder": host},
        started=STARTED,
        finished=STARTED + timedelta(hours=3),
        status="done",
        trials_planned=trials,
    )


def report(run: Path, page: Path) -> None:
    """Runs the command once, alone, and prints what it cost."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", "planewise", "--quiet", "report", str(run), "-o", str(page)],
        stdout=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall_s = time.perf_counter() - started
    if os.waitstatus_to_exitcode(status) != 0:
        raise SystemExit("the report failed")
    print(
        f"  {wall_s:.1f} s ({usage.ru_utime:.1f} s of CPU in user mode, {usage.ru_stime:.1f} s in "
        f"the kernel), {usage.ru_maxrss / 1e6:.2f} GB at most, "
        f"page {page.stat().st_size / 1e6:.1f} MB"
    )


@contextlib.contextmanager
def _folder(keep: Path | None) -> Iterator[Path]:
    if keep is not None:
        yield keep
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)


def main() -> None:
    """Makes the run, then times the report twice: the files are in the page cache either way."""
    parser = argparse.ArgumentParser(description="time of the report of a large run")
    parser.add_argument("--blocks", type=int, default=10)
    parser.add_argument("--packets", type=int, default=2000, help="in each trial")
    parser.add_argument("--keep", type=Path, help="directory for the run and the page")
    wanted = parser.parse_args()
    with _folder(wanted.keep) as folder:
        run = folder / "run"
        if not (run / "run.json").exists():
            packets = make(run, wanted.blocks, wanted.packets)
            print(
                f"made a run of {len(cells())} cells, {wanted.blocks * len(cells())} trials, "
                f"{packets / 1e6:.1f} million packets"
            )
        print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs")
        for _ in range(2):
            report(run, folder / "report.html")


if __name__ == "__main__":
    main()
