"""The ssh addresses of a lab's hosts. Opens no connection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from planewise.errors import PlanewiseError
from planewise.lab import state
from planewise.lab.model import HostId


@dataclass(frozen=True)
class Address:
    """Port and keys of a lab's host, for ssh."""

    port: int
    """On 127.0.0.1."""
    key: Path
    """The private key of its user root."""
    host_key: str
    """The host's public key."""


def address(lab: str, host: HostId) -> Address:
    """The address of a host.

    Raises:
        PlanewiseError: there is no such lab.
    """
    paths = state.paths(lab)
    record = state.read(paths)
    if record is None:
        raise PlanewiseError(f"there is no lab `{lab}`", remedy="start it with `planewise lab up`")
    host_record = record.hosts[host]
    return Address(host_record.port, paths.key, host_record.host_key)
