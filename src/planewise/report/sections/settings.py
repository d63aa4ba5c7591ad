"""The section on what each setting does."""

from __future__ import annotations

from collections.abc import Iterator

from planewise.judge.effects import effects
from planewise.judge.statistics.metrics import RunSample
from planewise.report.data import RunData
from planewise.report.figure import Section, Table


def sections(data: RunData) -> Iterator[Section]:
    """The section, where a run has settings beside the default."""
    found = effects(RunSample(data.info.run, data.info, data.trials))
    if not found:
        return
    table = Table.of(
        found,
        {
            "Plane": lambda effect: effect.plane,
            "Setting": lambda effect: effect.setting,
            "Metric": lambda effect: effect.metric.title,
            "Change from the default": lambda effect: effect.text,
            "Outcome": lambda effect: effect.comparison.outcome,
        },
    )
    yield Section(
        "settings",
        "What each setting does",
        "Each setting alone against the default on the same plane, compared within blocks and "
        "corrected for all settings and planes of a metric. The largest known effect comes first.",
        tables=(("Effects by plane", table),),
    )
