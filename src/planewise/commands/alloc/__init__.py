"""`planewise alloc`: who gets a VF. Asks and orders the daemon `planewised`; knows no devices."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from planewise.commands import console
from planewise.commands.alloc.simulate import OWN_WORDS, simulate
from planewise.commands.options import JsonOption
from planewise.errors import BadInputError, PlanewiseError

if TYPE_CHECKING:
    from planewise.testbed.vfs.alloc_client import Client

POLICIES = ("fair", "activity", "benefit", "static")

app = typer.Typer(
    help="Show and control who gets a VF; simulate policies.",
    no_args_is_help=True,
    cls=console.Commands,
    rich_markup_mode=None,
)

Socket = Annotated[
    Path | None,
    Option(
        "--socket",
        envvar="PLANEWISE_SOCKET",
        help="Where planewised listens.",
        show_default="/run/planewise/planewised.sock",
    ),
]
GuestName = Annotated[str, Argument(metavar="GUEST", help="As `status` names it.")]


def _client(socket: Path | None) -> Client:
    from planewise.testbed.vfs.alloc_client import DEFAULT_SOCKET, Client

    return Client(socket or DEFAULT_SOCKET)


@app.callback()
def alloc() -> None:
    """Who gets a VF."""


@app.command()
def status(socket: Socket = None, json_: JsonOption = False) -> None:
    """Show guests with their traffic and VFs, pools, and moves."""
    client = _client(socket)
    if json_:
        console.print_json(client.get("/status"))
        return
    from planewise.commands.alloc import show

    show.status(client.status(), console.out())


@app.command()
def plan(socket: Socket = None, json_: JsonOption = False) -> None:
    """Show the moves that would be made now; nothing is moved."""
    _print_plan(_client(socket), "GET", "/plan", json_)


@app.command()
def rebalance(
    socket: Socket = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the plan only.")] = False,
    json_: JsonOption = False,
) -> None:
    """Plan moves now, not at the end of the interval, and perform them."""
    method, path = ("GET", "/plan") if dry_run else ("POST", "/rebalance")
    _print_plan(_client(socket), method, path, json_)


def _print_plan(client: Client, method: str, path: str, json_: bool) -> None:
    answer = client.order(method, path)
    if json_:
        console.print_json(answer)
        return
    from planewise.commands.alloc import show
    from planewise.testbed.vfs.alloc_client import Planned

    show.plan(client.checked(Planned, answer), console.out())


@app.command()
def pin(guest: GuestName, socket: Socket = None) -> None:
    """Always give a guest a VF, whatever its traffic."""
    _set_stance(guest, "pinned", socket)


@app.command()
def exclude(guest: GuestName, socket: Socket = None) -> None:
    """Never give a guest a VF."""
    _set_stance(guest, "excluded", socket)


@app.command()
def free(guest: GuestName, socket: Socket = None) -> None:
    """Leave a guest to the policy again."""
    _set_stance(guest, "free", socket)


def _set_stance(guest: str, stance: str, socket: Path | None) -> None:
    from planewise.testbed.vfs.alloc_client import guest_path

    _order(_client(socket), "PUT", guest_path(guest, "stance"), {"stance": stance})


@app.command()
def unmark(guest: GuestName, socket: Socket = None) -> None:
    """Clear the mark of a guest that did not answer."""
    from planewise.testbed.vfs.alloc_client import guest_path

    _order(_client(socket), "DELETE", guest_path(guest, "mark"))


@app.command()
def policy(
    name: Annotated[
        str | None,
        Argument(metavar="POLICY", help=f"{', '.join(POLICIES)}.", show_default="print it"),
    ] = None,
    socket: Socket = None,
) -> None:
    """Print or set the policy that ranks guests."""
    client = _client(socket)
    if name is None:
        print(client.status().policy)
        return
    if name not in POLICIES:
        raise BadInputError(f"there is no policy {name!r}", remedy=f"one of {', '.join(POLICIES)}")
    _order(client, "PUT", "/policy", {"policy": name})


@app.command()
def drain(
    off: Annotated[bool, Option("--off", help="Give VFs again.")] = False,
    wait: Annotated[bool, Option("--wait", help="Wait until no guest holds a VF.")] = False,
    socket: Socket = None,
) -> None:
    """Take back every VF, and give none until `drain --off`."""
    if off and wait:
        raise BadInputError("there is nothing to wait for", where="--wait", remedy="leave it out")
    client = _client(socket)
    _order(client, "PUT", "/drain", {"on": not off})
    if wait:
        _wait_until_drained(client)


def _wait_until_drained(client: Client) -> None:
    from planewise.testbed.vfs.alloc_client import Status, printable

    for kind, payload in client.events(status=True):
        if kind != "status":
            continue
        daemon = client.checked(Status, payload)
        holders = [guest for guest in daemon.guests if guest.vf is not None]
        if not holders:
            print("no guest holds a VF")
            return
        if not daemon.draining:
            raise PlanewiseError(
                f"another client ended the draining; guests with a VF: {len(holders)}"
            )
        stuck = [guest for guest in holders if guest.marked or not guest.paravirtual_up]
        if len(stuck) == len(holders) and not any(guest.moving for guest in stuck):
            guest_kept = stuck[0]
            why = guest_kept.marked or "its paravirtual path is down: the VF is its only path"
            raise PlanewiseError(
                printable(f"{guest_kept.id} keeps {guest_kept.vf}: {why}")
                + (f"; and {len(stuck) - 1} more guests" if len(stuck) > 1 else ""),
                remedy="repair the guest, then `planewise alloc unmark GUEST`",
            )
    raise PlanewiseError("the daemon stopped before it was drained")


@app.command()
def reload(socket: Socket = None) -> None:
    """Reload the daemon's configuration."""
    _order(_client(socket), "POST", "/reload")


def _order(client: Client, method: str, path: str, body: dict[str, object] | None = None) -> None:
    from planewise.testbed.vfs.alloc_client import printable

    answer = client.order(method, path, body)
    print(printable(str(answer.get("done", "done"))) if isinstance(answer, dict) else "done")


@app.command()
def watch(socket: Socket = None, json_: JsonOption = False) -> None:
    """Print the daemon's events until Ctrl-C."""
    import json

    from planewise.commands.alloc import show

    client = _client(socket)
    client.status()  # says at once when no daemon answers
    print("watching planewised; Ctrl-C ends", file=sys.stderr, flush=True)
    try:
        for kind, payload in client.events():
            line = (
                json.dumps({kind: payload} if kind != "event" else payload)
                if json_
                else show.event(kind, payload)
            )
            if line:
                print(line, flush=True)
    except KeyboardInterrupt:
        return
    raise PlanewiseError("the daemon stopped", remedy="systemctl status planewised says why")


@app.command()
def page(
    port: Annotated[int, Option(help="Local port.", min=0, max=65535, show_default="any")] = 0,
    socket: Socket = None,
) -> None:
    """Serve the live page to a browser on this machine, until Ctrl-C."""
    from planewise.live.gateway import Gateway

    client = _client(socket)
    client.status()
    with Gateway(client.raw, port) as gateway:
        print(gateway.url, flush=True)
        console.err().print("Open it in a browser; Ctrl-C ends it.")
        try:
            gateway.serve()
        except KeyboardInterrupt:
            return


app.command(context_settings=OWN_WORDS)(simulate)
