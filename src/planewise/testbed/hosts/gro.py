"""GRO that a killed generator left switched on: found by its keepers' notes, and switched off.

`pw-probe trial --gro` has a keeper, a process that switches GRO off again however the trial ends,
and holds a lock on a note of the interface. A note without a lock is that of a killed keeper.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.host import find_probe

NOTES = Path("/run/planewise/gro")
_GONE = 2
"""Exit code of pw-probe where the interface or its namespace is not there any more."""


def leftovers(*, remove: bool, notes: Path = NOTES) -> tuple[str, ...]:
    """Interfaces (`IF@NETNS`) with GRO that dead keepers left on; with `remove` it is switched off.

    Raises:
        PlanewiseError: it could not be switched off; all before it is.
    """
    interfaces = []
    paths = sorted(notes.iterdir()) if notes.is_dir() else []
    for path in paths:
        # The keeper removes it when it ends.
        with suppress(FileNotFoundError), path.open("rb") as note:
            try:
                fcntl.flock(note, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            interface = os.fsdecode(note.read())
            if interface:  # an empty note is about to be locked and written
                interfaces.append(interface)
                if remove:
                    _switch_off(interface)
                    path.unlink(missing_ok=True)
    return tuple(interfaces)


def _switch_off(interface: str) -> None:
    # A keeper whose pipe is closed at the start switches GRO off.
    keeper = subprocess.run(
        [find_probe(), "keep-gro", interface],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if keeper.returncode not in (0, _GONE):
        raise PlanewiseError(
            f"GRO could not be switched off at {interface}: {keeper.stderr.strip()}",
            remedy="run `planewise clean` as root",
        )
