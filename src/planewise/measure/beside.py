"""One trial beside a background load: whether the load kept up is part of its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planewise.measure.cells import Cell
from planewise.measure.design import BackgroundPart
from planewise.measure.stage import TrialResult
from planewise.testbed.load import Load, LoadSpec


def load_of(cell: Cell, background: BackgroundPart) -> LoadSpec:
    """The load that a cell asks for: its type and place by the cell, its strength by the design."""
    return LoadSpec(
        type=cell.load_type,
        location=cell.load_location,
        cpu_share=background.cpu_share,
        rate_pps=background.rate_pps,
        burst=background.burst_packets,
        payload_bytes=background.payload_bytes,
    )


def beside(load: Load, measure: Callable[[], TrialResult]) -> TrialResult:
    """Measures; a background load that fell behind meanwhile is a warning of the trial.

    Raises:
        PlanewiseError: what `measure` raises, or a part of the load ended.
    """
    if load.spec.type == "none":
        return measure()
    before = load.work()
    result = measure()
    load.check()
    warnings = (*result.record.warnings, *load.shortfall(before))
    return replace(result, record=result.record.model_copy(update={"warnings": warnings}))
