"""One trial beside a background load: what the load did is part of its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planewise.errors import PlanewiseError
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import BackgroundPart
from planewise.measure.runs.stage import TrialResult
from planewise.testbed.loads.background import BackgroundLoad, LoadSpec


def load_of(cell: Cell, background: BackgroundPart) -> LoadSpec:
    """The load that a cell asks for: its type and place by the cell, its strength by the design."""
    per_guest = background.per_guest
    if per_guest is None:
        return LoadSpec(
            type=cell.load_type,
            location=cell.load_location,
            cpu_share=background.cpu_share,
            rate_pps=background.rate_pps,
            burst=background.burst_packets,
            payload_bytes=background.payload_bytes,
        )
    return LoadSpec(
        type=cell.load_type,
        location=cell.load_location,
        by_guest=True,
        cpu_share=per_guest.cpu_share,
        busy_threads=per_guest.busy_threads or 1,
        rate_pps=None if per_guest.rate_pps == "max" else per_guest.rate_pps,
        burst=per_guest.burst_packets,
        payload_bytes=per_guest.payload_bytes,
        memory_mib=per_guest.memory_mib,
    )


def beside(load: BackgroundLoad, measure: Callable[[], TrialResult]) -> TrialResult:
    """Measures; what a background load did meanwhile is part of the trial's record.

    Raises:
        PlanewiseError: what `measure` raises, or a part of the load ended.
    """
    if load.spec.type == "none":
        return measure()
    work = load.work()
    try:
        result = measure()
    except PlanewiseError:
        load.check()  # a guest that died under load is why, where one did
        raise
    load.check()
    record = result.record.model_copy(update={"background": load.achieved(work)})
    return replace(result, record=record)
