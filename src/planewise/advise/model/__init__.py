"""The capacity model: what a chain of network functions can carry, and what binds it.

Numbers in, numbers out: knows no run directory, no host and no file but a profile.
"""

from planewise.advise.model.capacity import (
    ChainWorkload,
    Limit,
    Pattern,
    Plane,
    Prediction,
    predict,
)
from planewise.advise.model.latency import floor_ns
from planewise.advise.model.pcie import KERNEL_82599, POLLING_82599, Link, Rings, packet_rate_pps
from planewise.advise.model.profile import Profile, load_profile, shipped, shipped_names

__all__ = [
    "KERNEL_82599",
    "POLLING_82599",
    "ChainWorkload",
    "Limit",
    "Link",
    "Pattern",
    "Plane",
    "Prediction",
    "Profile",
    "Rings",
    "floor_ns",
    "load_profile",
    "packet_rate_pps",
    "predict",
    "shipped",
    "shipped_names",
]
