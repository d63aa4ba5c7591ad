"""What a run wrote to kpis.jsonl."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from pydantic import ValidationError

from planewise.store.models import KpiSample, TrialRecord
from planewise.store.rundir import KPIS_FILE


def kpis(run: Path, trial: TrialRecord | None = None) -> list[KpiSample]:
    """Throughput by the second, of all trials or of one; a line that a kill left torn is left out.

    What was sampled of a trial that was then measured once more is left out when `trial` is given.
    """
    file = run / KPIS_FILE
    samples = []
    for line in file.read_bytes().splitlines() if file.exists() else ():
        with suppress(ValidationError):
            samples.append(KpiSample.model_validate_json(line))
    if trial is None:
        return samples
    return [one for one in samples if one.trial == trial.trial and one.at >= trial.started]
