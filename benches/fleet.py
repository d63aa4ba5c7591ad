"""Planted slow nodes in made-up fleets: how many are found, and how many others are accused.

Measurements are drawn, not measured: a node's own spread, what a pair adds, and how often a pair is
far off by itself are those of the row.

    python benches/fleet.py [--fleets 200] [--nodes 1000] [--meetings 4] [--slow 3] [--seed 1]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np

from planewise.fleet.tournament import tournament
from planewise.judge.statistics.nodes import false_discovery, node_effects

Draw = Callable[[np.random.Generator, int], np.ndarray]

NOISE: dict[str, Draw] = {
    "normal, 3 %": lambda rng, n: 0.03 * rng.standard_normal(n),
    "heavy tails (t with 3 degrees), 3 %": lambda rng, n: 0.03 * rng.standard_t(3, n),
    "2 % of pairs off by half": lambda rng, n: (
        0.03 * rng.standard_normal(n) + 0.5 * (rng.random(n) < 0.02)
    ),
    "skewed (exponential), 4 %": lambda rng, n: 0.04 * (rng.exponential(1, n) - 1),
}


def main() -> None:
    """Prints a row a kind of fleet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleets", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--meetings", type=int, default=4)
    parser.add_argument("--slow", type=int, default=3)
    parser.add_argument("--by", type=float, default=0.3, help="how much slower, as a share")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    print(
        f"{options.fleets} fleets of {options.nodes} nodes, {options.meetings} meetings each, "
        f"{options.slow} of them {options.by:.0%} slower, seed {options.seed}"
    )
    kinds = [(name, draw, "sum") for name, draw in NOISE.items()]
    kinds += [
        ("normal, 3 %; a pair is as slow as its slower node", NOISE["normal, 3 %"], "max"),
        ("normal, 3 %; a tenth of nodes five times as noisy", NOISE["normal, 3 %"], "noisy"),
    ]
    print(f"{'deviation of pairs':<52} found  all found  false share  fleets with a false one")
    for name, draw, kind in kinds:
        print(f"{name:<52} {_row(rng, options, draw, kind)}", flush=True)


def _row(rng: np.random.Generator, options: argparse.Namespace, draw: Draw, kind: str) -> str:
    found = whole = accused = 0
    shares = []
    for _ in range(options.fleets):
        pairs = options.nodes * options.meetings // 2
        matches = tournament(options.nodes, pairs, int(rng.integers(2**31)))
        a = np.array([match.sender for match in matches])
        b = np.array([match.responder for match in matches])
        nodes = 0.015 * rng.standard_normal(options.nodes)
        slow = set(rng.choice(options.nodes, options.slow, replace=False).tolist())
        nodes[list(slow)] += math.log1p(options.by)
        deviation = draw(rng, pairs)
        if kind == "noisy":
            factor = np.where(rng.random(options.nodes) < 0.1, 5.0, 1.0)
            deviation *= np.maximum(factor[a], factor[b])
        joined = np.maximum(nodes[a], nodes[b]) if kind == "max" else nodes[a] + nodes[b]
        values = math.log(20_000) + joined + deviation
        meetings = [(int(x), int(y), float(v)) for x, y, v in zip(a, b, values, strict=True)]
        effects = node_effects(options.nodes, meetings).nodes
        claimed = set(np.flatnonzero(false_discovery([one.p for one in effects]) <= 0.05).tolist())
        wrong = claimed - slow
        found += len(claimed & slow)
        whole += slow <= claimed
        accused += bool(wrong)
        shares.append(len(wrong) / max(1, len(claimed)))
    n = options.fleets
    return (
        f"{found / max(1, n * options.slow):5.3f}  {whole / n:9.3f}  {np.mean(shares):11.4f}  "
        f"{accused / n:6.3f}"
    )


if __name__ == "__main__":
    main()
