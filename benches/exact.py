"""Whether the sink inside the kernel counts planted losses, duplicates and reordering to the frame.

    python benches/exact.py [--frames 1e9] [--rate 3M] [--every 1000] [--json FILE]

The kernel's generator sends 64-byte frames over two veth pairs; between them an XDP program drops,
doubles and reorders by sequence number (benches/faults.bpf.c), so that what must be counted follows
from what was sent. Prints both, trial by trial, and the sum of frames. A billion frames at 3 Mpps
take six minutes, as root; with FILE a bench that was ended goes on where it was. Exits with 1 where
one frame is not as it must be. A trial in which the machine lost frames elsewhere, planted ones
perhaps among them, proves nothing: its frames are not added, and as many are sent again, up to
three times as many in all.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import astuple
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.linux import faults
from tests.linux.probe import relay, run

TRIAL_S = 30.0
MOST = 3
"""So many times the frames that are wanted are sent, where the machine loses some."""


def main() -> int:
    """Measures until enough frames were sent."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--frames", type=float, default=1e9)
    parser.add_argument("--rate", default="3M", help="packets/s")
    parser.add_argument("--every", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=TRIAL_S, help="of one trial")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    if reason := faults.lacking():
        sys.exit(reason)
    cpus = sorted(os.sched_getaffinity(0))
    there = args.json is not None and args.json.exists()
    frames, wrong, untold = json.loads(args.json.read_text()) if there else (0, 0, 0)
    with relay() as network, faults.planted(network, args.every):
        path = ("--tx", network.a.spec, "--rx", network.b.spec, "--dst", network.b.ipv4)
        load = ("--rate", args.rate, "--duration", f"{args.seconds:g}", "--size", "64")
        chosen = ("--backend", "live", "--sink", "xdp-native", "--dst-mac", "rx")
        pinned = ("--tx-cpu", str(cpus[0]), "--rx-cpu", str(cpus[-1]), "--max-pps", "1000M")
        while frames < args.frames and frames + untold < MOST * args.frames:
            done = run("trial", *path, *load, *chosen, *pinned, timeout_s=10 * args.seconds + 60)
            if done.code:
                sys.exit(done.stderr)
            output = done.output
            must, was = faults.expected(output, args.every), faults.counted(output)
            if must is None:
                continue
            elsewhere = output["lost"] - was.lost
            # A frame lost elsewhere takes one planted fault along at most.
            off = max(abs(a - b) for a, b in zip(astuple(must), astuple(was), strict=True))
            if must == was:
                verdict = "as must be"
                frames += output["sent"]
            elif off <= elsewhere:
                verdict = "cannot be told"
                untold += output["sent"]
            else:
                verdict = "WRONG"
                frames += output["sent"]
                wrong += 1
            if args.json is not None:
                args.json.write_text(json.dumps([frames, wrong, untold]))
            ratio = output["achieved_pps"] / output["intended_pps"]
            print(
                f"{output['sent']:>10} sent, ratio {ratio:.5f}, lost elsewhere {elsewhere}; must "
                f"{must.lost} {must.duplicate} {must.reordered}, counted "
                f"{was.lost} {was.duplicate} {was.reordered}: {verdict}",
                flush=True,
            )
    print(
        f"{frames} frames told, {wrong} trials of them not to the frame; {untold} frames of trials "
        "that cannot be told"
    )
    return 1 if wrong or frames < args.frames else 0


if __name__ == "__main__":
    sys.exit(main())
