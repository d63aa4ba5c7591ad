"""`planewise clean`: removes what killed runs left behind."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from typer import Option

from planewise.commands.console import out, print_json
from planewise.commands.options import JsonOption


def clean(
    dry_run: Annotated[bool, Option("--dry-run", help="Only print what would be removed.")] = False,
    json_: JsonOption = False,
) -> None:
    """Remove what killed runs left behind, and unused labs.

    Live runs are never touched, nor is anything that planewise did not make.
    """

    from planewise.lab import lifecycle as lab
    from planewise.testbed.hosts import pair, scratch

    netns_leftovers = pair.leftovers() if dry_run else pair.sweep()
    labs = lab.leftovers(remove=not dry_run)
    directories = scratch.leftovers(remove=not dry_run)
    if json_:
        print_json(
            {
                "dry_run": dry_run,
                "leftovers": [asdict(leftover) for leftover in netns_leftovers],
                "labs": [asdict(leftover) for leftover in labs],
                "directories": [str(path) for path in directories],
            }
        )
        return
    if not (netns_leftovers or labs or directories):
        out().print("Nothing is left behind.")
        return
    for path in directories:
        out().print(f"{'Would remove' if dry_run else 'Removed'} the scratch directory {path}.")
    for lab_leftover in labs:
        out().print(f"{'Would remove' if dry_run else 'Removed'} the lab {lab_leftover.name}.")
    for leftover in netns_leftovers:
        places = "".join(f", its remains on {note.host}" for note in leftover.hosts)
        testbed = leftover.what or "a testbed"
        since = f" of {leftover.started[:19].replace('T', ' ')}" if leftover.started else ""
        out().print(
            f"{'Would remove' if dry_run else 'Removed'} {testbed}{since}: "
            f"{len(leftover.namespaces)} namespaces (pw-{leftover.token}-…), "
            f"{len(leftover.processes)} processes{places}."
        )
