"""One trial beside a background load: whether the load kept up is part of its record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from planewise.measure.experiment import TrialResult
from planewise.testbed.load import Load


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
