"""How fast `pw-probe trial` paces 64-byte frames over a veth pair, and whether it loses count.

    python benches/rate.py [--repeat 3] [--seconds 1] [--json FILE]

Prints, from one run on one pair of namespaces: the paced maximum of af_packet (the highest rate of
a ladder that was achieved within 0.1 %), achieved over intended at 1, 10 and 100 kpps, and the loss
that no counter explains; benches/generators.py has the other backends and other generators. The
generator runs on the first CPU, the sink's thread on the last. As root af_packet may ask for
real-time priority (`--real-time`), which shows what it can do where other programs keep the CPUs
busy. Never passes or fails; docs/SPECIFICATION.md has the promises.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.linux.probe import Network, cable, run

from planewise.testbed import privilege

STEPS_PPS = (1_000, 10_000, 100_000)
LADDER_PPS = (300_000, 400_000, 500_000, 550_000, 600_000, 650_000, 700_000, 750_000, 800_000)
SIZE_BYTES = 64


@dataclass(frozen=True)
class Row:
    """The best of several trials at one rate."""

    intended_pps: float
    achieved_pps: float
    sent: int
    received: int
    lost: int
    unexplained: int
    slip_p99_ns: float
    idle: float
    """Share of all CPUs' time; low where other programs ran beside the trial."""

    @property
    def ratio(self) -> float:
        """Achieved over intended."""
        return self.achieved_pps / self.intended_pps


def measure(network: Network, rate_pps: float, args: argparse.Namespace) -> list[Row]:
    """Trials at one rate, each as a row."""
    path = ("--tx", network.a.spec, "--rx", network.b.spec, "--dst", network.b.ipv4)
    cpus = sorted(os.sched_getaffinity(0))
    pinned = ("--tx-cpu", str(cpus[0]), "--rx-cpu", str(cpus[-1]))
    load = ("--rate", f"{rate_pps:g}", "--duration", f"{args.seconds:g}", "--size", str(SIZE_BYTES))
    rows = []
    for _ in range(args.repeat):
        packets = ("--backend", "af_packet", "--sink", "af_packet")
        done = run(
            *("trial", *path, *pinned, *load, *packets, "--max-pps", "1000M"),
            preexec_fn=args.prepare,
        )
        if done.code:
            sys.exit(done.stderr)
        output = done.output
        rows.append(
            Row(
                intended_pps=output["intended_pps"],
                achieved_pps=output["achieved_pps"],
                sent=output["sent"],
                received=output["received"],
                lost=output["lost"],
                unexplained=output["unexplained"],
                slip_p99_ns=output["generator"]["slip"]["p99_ns"],
                idle=output["cpu"]["all"]["idle"],
            )
        )
    return rows


def climb(network: Network, args: argparse.Namespace) -> Iterator[list[Row]]:
    """Trials up the ladder, until the generator is far from the rate."""
    for rate_pps in LADDER_PPS:
        rows = measure(network, rate_pps, args)
        yield rows
        if max(row.ratio for row in rows) < 0.9:
            return


def real_time() -> None:
    """Real-time priority for the child, where it may have it."""
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


def main() -> None:
    """Measures and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--real-time", action="store_true", help="needs root")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    args.prepare = real_time if args.real_time else None
    privilege.ensure()
    cpu = ("--tx-cpu", str(min(os.sched_getaffinity(0))))
    alone = run(
        *("trial", "--calibrate-only", "--backend", "af_packet", "--size", str(SIZE_BYTES), *cpu),
        preexec_fn=args.prepare,
    ).output["max_pps"]
    with cable() as network:
        steps = [row for rate in STEPS_PPS for row in measure(network, rate, args)]
        ladder = [row for rows in climb(network, args) for row in rows]
    every = steps + ladder
    print(f"64-byte frames over veth, {args.seconds:g} s a trial; CPUs: {os.cpu_count()}")
    print(
        f"{'intended':>10} {'achieved':>10} {'ratio':>8} {'lost':>8} {'unexpl.':>8} {'slip':>7} p99"
    )
    for row in every:
        print(
            f"{row.intended_pps:10.0f} {row.achieved_pps:10.0f} {row.ratio:8.4f} {row.lost:8d} "
            f"{row.unexplained:8d} {row.slip_p99_ns / 1000:7.1f} µs  idle {row.idle:.0%}"
        )
    kept = [row.intended_pps for row in every if row.ratio >= 0.999]
    print(f"generator alone: {alone / 1e6:.3f} Mpps")
    print(f"highest rate sent, sink included: {max(r.achieved_pps for r in every) / 1e6:.3f} Mpps")
    print(f"paced maximum (within 0.1 %): {max(kept, default=0) / 1e6:.3f} Mpps")
    print(f"unexplained loss over all trials: {sum(row.unexplained for row in every)}")
    if args.json:
        result = {
            "generator_max_pps": alone,
            "paced_max_pps": max(kept, default=0),
            "trials": [asdict(row) for row in every],
        }
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
