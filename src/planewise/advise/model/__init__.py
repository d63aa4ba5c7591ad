"""The capacity model: what a chain of network functions can carry, and which station limits it."""

from planewise.advise.model.capacity import (
    ChainWorkload,
    Limit,
    Pattern,
    Prediction,
    floor_ns,
    predict,
)
from planewise.advise.model.profile import Plane, Profile, load_profile, shipped, shipped_names

__all__ = [
    "ChainWorkload",
    "Limit",
    "Pattern",
    "Plane",
    "Prediction",
    "Profile",
    "floor_ns",
    "load_profile",
    "predict",
    "shipped",
    "shipped_names",
]
