"""Virtual hosts with SR-IOV NICs: two QEMU machines, cabled back to back, on any Linux machine."""

from planewise.lab.lifecycle import (
    AbandonedLab,
    down,
    leftovers,
    plan,
    status,
    statuses,
    up,
    using,
)
from planewise.lab.model import HOSTS, HostId, LabSpec
from planewise.lab.state import names
from planewise.lab.watch import HostStatus, LabStatus

__all__ = [
    "HOSTS",
    "AbandonedLab",
    "HostId",
    "HostStatus",
    "LabSpec",
    "LabStatus",
    "down",
    "leftovers",
    "names",
    "plan",
    "status",
    "statuses",
    "up",
    "using",
]
