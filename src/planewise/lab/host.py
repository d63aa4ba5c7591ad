"""Where a lab's hosts can be reached by ssh. Opens no connection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from planewise.errors import PlanewiseError
from planewise.lab import state
from planewise.lab.model import HostId


@dataclass(frozen=True)
class Address:
    """A host of a lab, as ssh needs to know it."""

    port: int
    """On 127.0.0.1."""
    key: Path
    """The private key that opens it; its user is root."""
    host_key: str
    """Its own public key."""


def address(lab: str, host: HostId) -> Address:
    """Where a host can be reached.

    Raises:
        PlanewiseError: there is no such lab.
    """
    where = state.paths(lab)
    record = state.read(where)
    if record is None:
        raise PlanewiseError(f"there is no lab `{lab}`", remedy="start it with `planewise lab up`")
    known = record.hosts[host]
    return Address(known.port, where.key, known.host_key)
