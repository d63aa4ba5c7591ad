"""`planewise doctor`: what this host can do, and what would disturb a measurement on it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from planewise.commands.console import err, out, print_json
from planewise.store.newest import newest_run
from planewise.units import count_text, list_text

if TYPE_CHECKING:
    from planewise.store.models import Fingerprint


def doctor(
    json_: Annotated[bool, Option("--json", help="Print the fingerprint as JSON.")] = False,
    matrix: Annotated[
        bool,
        Option("--matrix", help="List what can be measured: guest, plane, here or on two hosts."),
    ] = False,
    bundle: Annotated[
        Path | None,
        Option(
            metavar="FILE.tar.gz",
            help="Write a support bundle: host, versions, the daemon's state and log, the "
            "newest run's description. Secrets and addresses are hidden.",
        ),
    ] = None,
    socket: Annotated[
        Path | None, Option(envvar="PLANEWISE_SOCKET", help="The daemon, for --bundle.")
    ] = None,
    config: Annotated[Path | None, Option(help="The daemon's configuration, for --bundle.")] = None,
) -> None:
    """Check what this host can measure, and what would disturb it.

    Each plane is tried in namespaces that are removed afterwards.
    """
    if bundle is not None:
        _write_bundle(bundle, socket, config)
        return
    if matrix:
        _print_matrix(json_)
        return
    from planewise.doctor import diagnose

    host = diagnose()
    if json_:
        print_json(host.model_dump(mode="json"))
        return
    _print(host)


def _write_bundle(file: Path, socket: Path | None, config: Path | None) -> None:
    """Writes the support bundle and says what is in it."""
    from planewise import support
    from planewise.doctor import diagnose

    usual = support.Sources()
    sources = support.Sources(
        configuration=config or usual.configuration, daemon_socket=socket or usual.daemon_socket
    )
    names = support.bundle(file, lambda: diagnose().model_dump_json(indent=2), sources)
    print(file)
    console = err()
    console.print(f"It holds {list_text(names)}.")
    console.print("Secrets and addresses are hidden; look through it before you send it.")


def _print_matrix(json: bool) -> None:
    """Prints the table of what can be measured at all; nothing is built for it."""
    from planewise.measure.designs import matrix
    from planewise.testbed import planes
    from planewise.testbed.settings import SETTINGS

    cells = list(matrix.matrix())
    if json:
        print_json([asdict(cell) | {"measurements": matrix.MEASUREMENTS} for cell in cells])
        return
    rows = []
    for plane in dict.fromkeys(cell.plane for cell in cells):
        row = [cell for cell in cells if cell.plane == plane]
        words = (
            matrix.places(cell for cell in row if cell.guest == guest) for guest in matrix.GUESTS
        )
        rows.append((plane, *words, " ".join(planes.plane(plane).needs)))
    console = out()
    working = sum(not cell.reason for cell in cells)
    measured = list_text(matrix.MEASUREMENTS)
    console.print(
        f"{working} of {len(cells)} cells can be measured on hosts that have what they need. "
        f"yes: {measured}, within this machine and between two hosts. Containers need Docker, "
        "virtual machines QEMU and libvirt."
    )
    _print_table(("plane", *matrix.GUESTS, "needs"), rows)
    console.print("Why not:")
    for reason in dict.fromkeys(cell.reason for cell in cells if cell.reason):
        console.print(f"- {reason}")

    console.print("Settings that a design can vary (`factors.setting`):")
    settings = matrix.settings_table().items()
    _print_table(
        ("setting", "planes", "what it changes"),
        [
            (
                name,
                " ".join(plane for plane, guests in by_plane.items() if guests != "no"),
                SETTINGS[name].description,
            )
            for name, by_plane in settings
        ],
    )
    console.print("What can forward in a function of a chain:")
    functions = [(plane, *forwarders) for plane, forwarders in matrix.functions().items()]
    _print_table(("plane", *matrix.FUNCTIONS), functions)


def _print_table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], title: str = "", *, head: bool = True
) -> None:
    """Prints a table whose cells are folded where the terminal is narrow, and never cut."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", show_header=head, box=None)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*row)
    if title:
        out().print()
    out().print(table)


def _print(host: Fingerprint) -> None:
    console = out()
    ready = [plane.plane for plane in host.planes if plane.available]
    if ready:
        console.print(
            f"This host can compare {count_text(len(ready), 'data plane')}: {list_text(ready)}."
        )
    else:
        console.print("This host can build no data plane now.")
        unavailable = next((plane for plane in host.planes if plane.remedy), None)
        if unavailable:
            console.print(f"Why: {unavailable.reason}. Fix: {unavailable.remedy}.")
    warnings = [
        disturbance for disturbance in host.disturbances if disturbance.severity == "warning"
    ]
    if warnings:
        names = list_text([warning.name for warning in warnings])
        console.print(f"{count_text(len(warnings), 'thing')} would disturb a measurement: {names}.")
    else:
        console.print("Nothing serious would disturb a measurement.")
    if line := _better_settings():
        console.print(line)

    _print_table(("", ""), _facts(host), "Host", head=False)
    alike: dict[tuple[str, str, str], list[str]] = {}
    for plane in host.planes:
        here = "yes" if plane.available else "no"
        alike.setdefault((here, plane.reason, plane.remedy), []).append(plane.plane)
    planes = [(", ".join(names), *why) for why, names in alike.items()]
    _print_table(("plane", "here", "why not", "fix"), planes, "Planes")
    disturbances = [
        (f"{'! ' if one.severity == 'warning' else '  '}{one.name}", one.value, one.why, one.remedy)
        for one in host.disturbances
    ]
    if disturbances:
        titles = ("what", "now", "why it matters", "remedy")
        _print_table(titles, disturbances, "What would disturb a measurement")


def _better_settings() -> str:
    """What measured better than this host's defaults in the newest run that varied settings."""
    from planewise.judge.effects import effects
    from planewise.judge.statistics.metrics import RunSample
    from planewise.store.rundir import RunReader

    newest = newest_run(varying="setting")
    if newest is None or not newest.has_trials:
        return ""
    reader = RunReader(newest.path)
    found = effects(RunSample(reader.info.run, reader.info, reader.trials()))
    best: dict[str, str] = {}
    for effect in found:
        if effect.comparison.outcome == "better":
            what = f"{effect.setting} ({effect.metric.title} {effect.text.partition(' (')[0]})"
            best.setdefault(effect.plane, f"{effect.plane} with {what}")
    better = list_text(list(best.values())) or "nothing"
    return f"Better than the default settings in {newest.path}: {better}."


def _facts(host: Fingerprint) -> list[tuple[str, str]]:
    nics = ", ".join(" ".join(filter(None, (nic["name"], nic["driver"]))) for nic in host.nics)
    return [
        ("name", host.hostname),
        ("system", f"{host.distribution}, kernel {host.kernel}".removeprefix(", ")),
        ("CPU", f"{host.cpu_model}, {count_text(host.cpus, 'CPU')} online, SMT {host.smt}"),
        ("memory", f"{host.memory_bytes / 2**30:.1f} GiB"),
        ("virtualisation", host.virtualisation),
        ("clock", host.clocksource),
        ("frequency governor", host.governor),
        ("NICs", nics or "none"),
        *((f"generator by {nic['name']}", nic.get("generator", "")) for nic in host.nics),
    ]
