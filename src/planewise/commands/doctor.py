"""`planewise doctor`: what this host can do, and what would disturb a measurement on it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planewise.commands.console import err, out, print_json
from planewise.units import count_text, list_text

if TYPE_CHECKING:
    from planewise.store.models import Fingerprint


def doctor(
    json_: Annotated[bool, typer.Option("--json", help="Print the fingerprint as JSON.")] = False,
    matrix: Annotated[
        bool,
        typer.Option(
            "--matrix", help="List what can be measured: guest, plane, here or on two hosts."
        ),
    ] = False,
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.tar.gz",
            help="Write a support bundle: host, versions, the daemon's state and log, the "
            "newest run's description. Secrets and addresses are hidden.",
        ),
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(envvar="PLANEWISE_SOCKET", help="The daemon, for --bundle.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The daemon's configuration, for --bundle.")
    ] = None,
) -> None:
    """Report which data planes this host can build, and what would disturb a measurement on it.

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
    from dataclasses import asdict

    from rich.table import Table

    from planewise.measure.designs import matrix
    from planewise.testbed import planes
    from planewise.testbed.settings import SETTINGS

    cells = list(matrix.matrix())
    if json:
        print_json([asdict(cell) | {"measurements": matrix.MEASUREMENTS} for cell in cells])
        return
    table = Table("plane", *matrix.GUESTS, "needs", box=None)
    for plane in dict.fromkeys(cell.plane for cell in cells):
        row = [cell for cell in cells if cell.plane == plane]
        words = (
            matrix.places(cell for cell in row if cell.guest == guest) for guest in matrix.GUESTS
        )
        table.add_row(plane, *words, " ".join(planes.plane(plane).needs))
    console = out()
    working = sum(not cell.reason for cell in cells)
    measured = list_text(matrix.MEASUREMENTS)
    console.print(
        f"{working} of {len(cells)} cells can be measured on hosts that have what they need. "
        f"yes: {measured}, within this machine and between two hosts. Containers need Docker, "
        "virtual machines QEMU and libvirt."
    )
    console.print(table)
    console.print("Why not:")
    for reason in dict.fromkeys(cell.reason for cell in cells if cell.reason):
        console.print(f"- {reason}")
    chains = Table("plane", *matrix.FUNCTIONS, box=None)
    for plane, forwarders in matrix.functions().items():
        chains.add_row(plane, *forwarders)
    varied = Table("setting", "planes", "what it changes", box=None)
    for name, by_plane in matrix.settings_table().items():
        able = " ".join(plane for plane, guests in by_plane.items() if guests != "no")
        varied.add_row(name, able, SETTINGS[name].description)
    console.print("Settings that a design can vary (`factors.setting`):")
    console.print(varied)
    console.print("What can forward in a function of a chain:")
    console.print(chains)


def _print(host: Fingerprint) -> None:
    from rich.table import Table

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

    console.print()
    facts = Table(title="Host", title_justify="left", show_header=False, box=None)
    for name, value in _facts(host):
        facts.add_row(name, value)
    console.print(facts)

    console.print()
    planes = Table("plane", "here", title="Planes", title_justify="left")
    for title in ("why not", "fix"):
        planes.add_column(title, overflow="fold")  # a command cut short helps nobody
    alike: dict[tuple[str, str, str], list[str]] = {}
    for plane in host.planes:
        here = "yes" if plane.available else "no"
        alike.setdefault((here, plane.reason, plane.remedy), []).append(plane.plane)
    for (here, reason, remedy), alike_planes in alike.items():
        planes.add_row(", ".join(alike_planes), here, reason, remedy)
    console.print(planes)

    if host.disturbances:
        console.print()
        table = Table("what", "now", "why it matters", title_justify="left")
        table.add_column("remedy", overflow="fold")
        table.title = "What would disturb a measurement"
        for disturbance in host.disturbances:
            mark = "! " if disturbance.severity == "warning" else "  "
            table.add_row(
                mark + disturbance.name, disturbance.value, disturbance.why, disturbance.remedy
            )
        console.print(table)


def _better_settings() -> str:
    """What measured better than this host's defaults in the newest run that varied settings."""
    from planewise.judge.effects import effects
    from planewise.judge.statistics import RunSample
    from planewise.store.newest import newest_run
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
