"""Synthetic systems of the catalogue, of other capacity and shape: for benches and tests."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planewise.judge.synthetic import (
    SyntheticSut,
    gradual,
    non_monotone,
    realistic,
    thrashing,
    variant,
)


def make(
    kind: str, *, capacity_pps: float = 1e6, noise_sd: float = 0.0, seed: int | None = None
) -> SyntheticSut:
    """A system of a class.

    Args:
        kind: one of `planewise.judge.synthetic.KINDS`.
        capacity_pps: nominal saturation load.
        noise_sd: see `planewise.judge.synthetic.variant`.
        seed: draws the class's shape (steepness, early loss, gain, burst length, …) from wide
            ranges, so that nothing is tuned to one shape; None takes the documented values.
    """
    system = replace(variant(kind, noise_sd), capacity_pps=capacity_pps)
    return system if seed is None else _reshaped(kind, system, seed)


def _reshaped(kind: str, system: SyntheticSut, seed: int) -> SyntheticSut:
    """The same class with its shape drawn at random (all ranges are stated here, once)."""
    draw = np.random.default_rng(seed)
    curve = realistic(
        early_loss=float(10 ** draw.uniform(-8, -6)),
        loss_at_saturation=float(10 ** draw.uniform(-2.3, -1.7)),
        steepness=float(draw.uniform(25, 120)),
    )
    match kind:
        case "realistic":
            return replace(system, loss=curve)
        case "bursty":
            burst = float(10 ** draw.uniform(1, 3))
            return replace(system, loss=curve, mean_burst_packets=burst)
        case "thrashing":
            at, over = float(draw.uniform(1.2, 2.0)), float(draw.uniform(0.5, 3.0))
            return replace(system, loss=thrashing(curve, at, over))
        case "gradual":
            gain = float(draw.uniform(0.3, 0.8))
            return replace(system, loss=gradual(gain))
        case "non-monotone":
            centre, width, height = (
                float(draw.uniform(low, high))
                for low, high in ((0.3, 0.7), (0.03, 0.08), (0.01, 0.05))
            )
            return replace(system, loss=non_monotone(centre, width, height))
        case "drifting":
            drift_per_s = float(-(10 ** draw.uniform(-3.5, -2.5)))
            return replace(system, drift_per_s=drift_per_s)
        case "autocorrelated":
            correlation = float(draw.uniform(0.6, 0.9))
            return replace(system, correlation=correlation)
        case "spikes":
            spike_depth = float(draw.uniform(0.1, 0.5))
            return replace(system, spike_depth=spike_depth)
    return system
