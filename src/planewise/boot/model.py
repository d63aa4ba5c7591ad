"""Kernel and accelerator of a machine, as values. Touches nothing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class Kernel:
    """A kernel and its modules."""

    version: str
    """As `uname -r` prints it."""
    image: Path
    modules: Path
    """The directory that holds modules.dep."""
    origin: Literal["machine", "package"]


@dataclass(frozen=True)
class Accelerator:
    """QEMU's accelerator, and the reason for the choice."""

    name: Literal["kvm", "tcg"]
    reason: str
