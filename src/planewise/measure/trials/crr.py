"""Trials of connect, request, close: what a client feels that opens a connection for each request.

netperf's TCP_CRR, but open loop; see `connect`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from planewise.measure.station import Trial
from planewise.measure.trials.connect import Connect, ConnectPart, ConnectTrial
from planewise.measure.trials.kind import TrialRequest


class CrrPart(ConnectPart):
    """Trials of connect, request, close: one a cell and block."""

    request_bytes: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Of a request, and of its answer."""


class Crr(Connect):
    rank = 8
    part = "crr"
    own_part = CrrPart
    packets = 7

    def trials(self, request: TrialRequest) -> list[Trial]:
        """One."""
        part = CrrPart.model_validate(request.design.others[self.part])
        name = f"crr:{request.cell.name}#r{request.block}"
        return [ConnectTrial(name, part.count, part.per_s, part.request_bytes)]


KIND = Crr()
