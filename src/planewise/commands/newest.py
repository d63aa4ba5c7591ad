"""The run that commands use when none is named."""

from __future__ import annotations

from pathlib import Path

from planewise.commands import console
from planewise.errors import BadInputError
from planewise.store.newest import RUNS, newest_run


def newest_measured(command: str, otherwise: str = "") -> Path:
    """The newest run below the current directory, named on stderr.

    `otherwise` is added to the error's remedy.

    Raises:
        BadInputError: no run has a finished trial.
    """
    run = newest_run()
    if run is None or not run.has_trials:
        raise BadInputError(
            f"there is no measured run in {RUNS}/",
            where=command,
            remedy=f"measure it: planewise quick (two minutes){otherwise}",
        )
    console.err().print(f"Evidence: {run.path}, the newest run here.")
    return run.path
