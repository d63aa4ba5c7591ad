"""Trials of connect, request, close: what a client feels that opens a connection for each request.

netperf's TCP_CRR, but open loop; see `connect`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from planewise.measure.station import Request, Trial
from planewise.measure.trials.connect import ConnectPart, ConnectTrial


class CrrPart(ConnectPart):
    """Trials of connect, request, close: one a cell and block."""

    request_bytes: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Of a request, and of its answer."""


@dataclass(frozen=True)
class CrrTrial(ConnectTrial):
    """One trial of connect, request, close."""

    rank = 8
    key = "crr"
    own_part: ClassVar[type[CrrPart]] = CrrPart
    packets = 7

    @classmethod
    def requested(cls, request: Request) -> list[Trial]:
        """One."""
        part = request.design.part(cls.key, cls.own_part)
        name = f"crr:{request.cell.name}#r{request.block}"
        return [cls(name, part.count, part.per_s, part.request_bytes)]
