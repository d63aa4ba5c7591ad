"""Virtual hosts with SR-IOV NICs: two QEMU machines, cabled back to back, on any Linux machine.

Knows no testbed and no measurement: `testbed` asks it for the addresses of its hosts.
"""

from planewise.lab.lifecycle import (
    HostStatus,
    LabStatus,
    Leftover,
    down,
    leftovers,
    plan,
    status,
    statuses,
    sweep,
    up,
    using,
)
from planewise.lab.model import HOSTS, HostId, LabSpec
from planewise.lab.state import names

__all__ = [
    "HOSTS",
    "HostId",
    "HostStatus",
    "LabSpec",
    "LabStatus",
    "Leftover",
    "down",
    "leftovers",
    "names",
    "plan",
    "status",
    "statuses",
    "sweep",
    "up",
    "using",
]
