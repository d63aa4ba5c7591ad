"""`planewise alloc`: who gets a VF. Asks and orders the daemon `planewised`; knows no devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planewise.commands import console
from planewise.commands.alloc.simulate import simulate
from planewise.commands.options import JsonOption
from planewise.errors import BadInputError, PlanewiseError

if TYPE_CHECKING:
    from planewise.testbed.alloc_client import Client

POLICIES = ("fair", "activity", "benefit", "static")

app = typer.Typer(
    help="Who gets a VF: ask and order the daemon; simulate policies on made-up hosts.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Socket = Annotated[
    Path | None,
    typer.Option(
        "--socket",
        envvar="PLANEWISE_SOCKET",
        help="Where planewised listens.",
        show_default="/run/planewise/planewised.sock",
    ),
]
GuestName = Annotated[str, typer.Argument(metavar="GUEST", help="As `status` names it.")]


def _client(at: Path | None) -> Client:
    from planewise.testbed.alloc_client import DEFAULT_SOCKET, Client

    return Client(at or DEFAULT_SOCKET)


@app.callback()
def alloc() -> None:
    """Who gets a VF."""


@app.command()
def status(at: Socket = None, json_: JsonOption = False) -> None:
    """Show guests, their traffic and VFs, pools, the latest moves and errors."""
    client = _client(at)
    if json_:
        console.print_json(client.get("/status"))
        return
    from planewise.commands.alloc import show

    show.status(client.status(), console.out())


@app.command()
def plan(at: Socket = None, json_: JsonOption = False) -> None:
    """Show what would be done now; nothing is done."""
    _planned(_client(at), "GET", "/plan", json_)


@app.command()
def rebalance(
    at: Socket = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan only.")] = False,
    json_: JsonOption = False,
) -> None:
    """Decide now, not at the end of the interval, and perform the plan."""
    method, path = ("GET", "/plan") if dry_run else ("POST", "/rebalance")
    _planned(_client(at), method, path, json_)


def _planned(client: Client, method: str, path: str, json_: bool) -> None:
    answer = client.order(method, path)
    if json_:
        console.print_json(answer)
        return
    from planewise.commands.alloc import show
    from planewise.testbed.alloc_client import Planned

    show.plan(client.checked(Planned, answer), console.out())


@app.command()
def pin(guest: GuestName, at: Socket = None) -> None:
    """Give a guest a VF, whatever its traffic."""
    _stance(guest, "pinned", at)


@app.command()
def exclude(guest: GuestName, at: Socket = None) -> None:
    """Never give a guest a VF."""
    _stance(guest, "excluded", at)


@app.command()
def free(guest: GuestName, at: Socket = None) -> None:
    """Leave a guest to the policy again."""
    _stance(guest, "free", at)


def _stance(guest: str, stance: str, at: Path | None) -> None:
    from planewise.testbed.alloc_client import guest_path

    _order(_client(at), "PUT", guest_path(guest, "stance"), {"stance": stance})


@app.command()
def unmark(guest: GuestName, at: Socket = None) -> None:
    """Clear the mark of a guest that did not answer, so that it may have a VF again."""
    from planewise.testbed.alloc_client import guest_path

    _order(_client(at), "DELETE", guest_path(guest, "mark"))


@app.command()
def policy(
    name: Annotated[
        str | None, typer.Argument(help=f"{', '.join(POLICIES)}.", show_default="print it")
    ] = None,
    at: Socket = None,
) -> None:
    """Print or set who ranks first."""
    client = _client(at)
    if name is None:
        print(client.status().policy)
        return
    if name not in POLICIES:
        raise BadInputError(f"there is no policy {name!r}", remedy=f"one of {', '.join(POLICIES)}")
    _order(client, "PUT", "/policy", {"policy": name})


@app.command()
def drain(
    off: Annotated[bool, typer.Option("--off", help="Give VFs again.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Until no guest holds a VF.")] = False,
    at: Socket = None,
) -> None:
    """Take every VF back and give none, until `drain --off`; guests go on by their other path."""
    if off and wait:
        raise BadInputError("there is nothing to wait for", where="--wait", remedy="leave it out")
    client = _client(at)
    _order(client, "PUT", "/drain", {"on": not off})
    if wait:
        _drained(client)


def _drained(client: Client) -> None:
    from planewise.testbed.alloc_client import Status, printable

    for kind, told in client.events(status=True):
        if kind != "status":
            continue
        now = client.checked(Status, told)
        holders = [guest for guest in now.guests if guest.vf is not None]
        if not holders:
            print("no guest holds a VF")
            return
        if not now.draining:
            raise PlanewiseError(
                f"the draining was ended by somebody else; guests with a VF: {len(holders)}"
            )
        kept = [guest for guest in holders if guest.marked or not guest.paravirtual_up]
        if len(kept) == len(holders) and not any(guest.moving for guest in kept):
            first = kept[0]
            why = first.marked or "its paravirtual path is down: the VF is all it has"
            raise PlanewiseError(
                printable(f"{first.id} keeps {first.vf}: {why}")
                + (f"; and {len(kept) - 1} more guests" if len(kept) > 1 else ""),
                remedy="put the guest right, then `planewise alloc unmark GUEST`",
            )
    raise PlanewiseError("the daemon stopped before it was drained")


@app.command()
def reload(at: Socket = None) -> None:
    """Have the daemon read its configuration again."""
    _order(_client(at), "POST", "/reload")


def _order(client: Client, method: str, path: str, body: dict[str, object] | None = None) -> None:
    from planewise.testbed.alloc_client import printable

    answer = client.order(method, path, body)
    print(printable(str(answer.get("done", "done"))) if isinstance(answer, dict) else "done")


@app.command()
def watch(at: Socket = None, json_: JsonOption = False) -> None:
    """Print what happens, as it happens, until Ctrl-C."""
    import json

    from planewise.commands.alloc import show

    try:
        for kind, told in _client(at).events():
            line = (
                json.dumps({kind: told} if kind != "event" else told)
                if json_
                else show.event(kind, told)
            )
            if line:
                print(line, flush=True)
    except KeyboardInterrupt:
        return
    raise PlanewiseError("the daemon stopped", remedy="systemctl status planewised says why")


@app.command()
def page(
    port: Annotated[
        int, typer.Option("--port", help="On 127.0.0.1.", min=0, max=65535, show_default="any")
    ] = 0,
    at: Socket = None,
) -> None:
    """Serve the live page to a browser on this machine, until Ctrl-C."""
    from planewise.commands.alloc.page import Gateway

    client = _client(at)
    client.status()
    with Gateway(client, port) as gateway:
        print(gateway.url, flush=True)
        console.err().print("Open it in a browser; Ctrl-C ends it.")
        try:
            gateway.serve()
        except KeyboardInterrupt:
            return


app.command()(simulate)
