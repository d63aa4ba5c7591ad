"""`planewise clean`: removes what killed runs left behind."""

from __future__ import annotations

from typing import Annotated

import typer

from planewise.commands.console import out, print_json


def clean(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say what would be removed.")
    ] = False,
    json_: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Remove the namespaces and processes that killed runs left behind.

    Live runs are never touched, nor is anything that planewise did not make.
    """
    from dataclasses import asdict

    from planewise.testbed.ledger import leftovers, sweep

    found = leftovers() if dry_run else sweep()
    if json_:
        print_json({"dry_run": dry_run, "leftovers": [asdict(one) for one in found]})
        return
    if not found:
        out().print("Nothing is left behind.")
        return
    for one in found:
        what = one.what or "a testbed"
        since = f" of {one.started[:19].replace('T', ' ')}" if one.started else ""
        out().print(
            f"{'Would remove' if dry_run else 'Removed'} {what}{since}: "
            f"{len(one.namespaces)} namespaces (pw-{one.token}-…), {len(one.processes)} processes."
        )
