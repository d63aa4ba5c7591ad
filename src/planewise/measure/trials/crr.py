"""Trials of connect, request, close: what a client feels that opens a connection for each request.

netperf's TCP_CRR, but open loop: a connection that is due while the one before lasts counts from
when it was due.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from planewise.measure.designs.design import Design
from planewise.measure.station import Trial
from planewise.measure.trials.connect import Connect, ConnectPart, ConnectTrial
from planewise.measure.trials.kind import TrialRequest


class CrrPart(ConnectPart):
    """Trials of connect, request, close: one a cell and block."""

    request_bytes: Annotated[int, Field(ge=1, le=65_536)] = 64
    """Of a request, and of its answer."""


@dataclass(frozen=True)
class CrrTrial(ConnectTrial):
    """One trial of connect, request, close."""

    figure: ClassVar[str] = "crr"
    timed: ClassVar[str] = "time to connect, request and close"


class Crr(Connect):
    """See `Kind`."""

    rank = 8
    part = "crr"
    own_part = CrrPart

    def trials(self, request: TrialRequest) -> list[Trial]:
        """One."""
        part = CrrPart.model_validate(request.design.others[self.part])
        name = f"crr:{request.cell.name}#r{request.block}"
        return [CrrTrial(name, part.count, part.per_s, part.request_bytes)]

    def offered(self, design: Design) -> Iterator[tuple[str, float | str]]:
        """Seven packets a connection, which is reset at last."""
        yield "crr.per_s", 7 * CrrPart.model_validate(design.others[self.part]).per_s


KIND = Crr()
