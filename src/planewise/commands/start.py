"""`planewise` without a command: the next commands, by the newest run in runs/."""

from __future__ import annotations

from pathlib import Path

from planewise.store.newest import RUNS, RunSummary, newest_run


def start(folder: Path = RUNS) -> None:
    """Print the next commands for a new user."""
    print("Planewise finds out which network data plane each guest on this host should use.\n")
    run = newest_run(folder)
    if run is None:
        print(f"Nothing has been measured here yet: there is no run in {folder}/. Next:")
        steps = [
            ("planewise quick", "compare this host's planes in two minutes; needs no root"),
            ("planewise doctor", "see first what this host can do, and what would disturb it"),
        ]
    else:
        began = run.started.astimezone().strftime("%Y-%m-%d %H:%M")
        print(f"The newest run is {run.path}: {_STATUS.get(run.status, run.status)}, of {began}.")
        report = run.path / "report.html"
        if report.exists():
            print(f"Its report, for a browser: {report.resolve()}")
        print("Next:")
        steps = _next_steps(run)
    width = max(len(command) for command, _ in steps)
    for command, purpose in steps:
        print(f"  {command:{width}}  {purpose}")
    print("\nAll commands: planewise --help")


_STATUS = {"done": "complete", "running": "not finished", "interrupted": "stopped early"}


def _next_steps(run: RunSummary) -> list[tuple[str, str]]:
    path = run.path
    steps = []
    if run.status != "done":
        steps.append((f"planewise run --resume {path}", "continue where it stopped"))
    if run.has_trials:
        steps += [
            ("planewise advise", "which plane to use, and why"),
            (f"planewise compare {path}", "which differences are real"),
            (f"planewise report {path}", "write its report again"),
        ]
    steps.append(("planewise quick", "measure again"))
    return steps
