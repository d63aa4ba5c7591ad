"""Finds the newest run below a folder. Reads run.json alone, with nothing slow imported."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

RUNS = Path("runs")
"""Default folder of runs, below the current directory."""


@dataclass(frozen=True)
class RunSummary:
    """Path, start and state of a run."""

    path: Path
    started: datetime
    status: str
    """`running`, `done`, `interrupted` or `failed`; a killed run stays `running`."""
    has_trials: bool
    varied: tuple[str, ...] = ()
    """Factors of its design with several levels."""


def newest_run(folder: Path = RUNS, varying: str = "") -> RunSummary | None:
    """The run in `folder` that began last; None where there is none.

    `varying`: a factor that its design varies.

    A run without a finished trial counts only where no run has any. Directories without a readable
    run.json are skipped.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return None
    runs = [run for run in map(_summary, paths) if run is not None]
    runs = [run for run in runs if not varying or varying in run.varied]
    return max(runs, key=lambda run: (run.has_trials, run.started), default=None)


def _summary(path: Path) -> RunSummary | None:
    try:
        info = json.loads((path / "run.json").read_bytes())
        started = datetime.fromisoformat(info["started"])
        status = str(info.get("status", "running"))
        trials = path / "trials.jsonl"
        has_trials = trials.exists() and trials.stat().st_size > 0
        factors = info.get("design", {}).get("factors", {})
        varied = tuple(name for name, levels in factors.items() if len(levels) > 1)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if started.tzinfo is None:
        started = started.replace(tzinfo=UTC)
    return RunSummary(path, started, status, has_trials, varied)
