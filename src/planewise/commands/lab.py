"""`planewise lab`: two virtual servers with SR-IOV NICs, cabled back to back."""

from __future__ import annotations

import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from planewise.commands.console import Commands, Verbosity, err, out, print_json
from planewise.commands.options import JsonOption
from planewise.commands.progress import ProgressLine
from planewise.errors import BadInputError
from planewise.units import count_text, duration_text

if TYPE_CHECKING:
    from planewise.lab import HostId, HostStatus, LabSpec, LabStatus

app = typer.Typer(
    help="Run two virtual servers with SR-IOV NICs, on any machine.",
    no_args_is_help=True,
    cls=Commands,
    rich_markup_mode=None,
)

NameOption = Annotated[str, Option("--name", help="Name of the lab.")]
PfsOption = Annotated[int, Option("--pfs", help="SR-IOV PFs of each host (7 VFs each).")]
MemoryOption = Annotated[int, Option("--memory", metavar="MIB", help="Memory of each host in MiB.")]
CpusOption = Annotated[int, Option("--cpus", help="Virtual CPUs of each host.")]
RootOption = Annotated[
    Path,
    Option(
        "--root", metavar="DIR", help="A Debian or Ubuntu root whose systemd is the hosts' init."
    ),
]


@app.command()
def up(
    context: typer.Context,
    name: NameOption = "default",
    pfs: PfsOption = 1,
    memory: MemoryOption = 2048,
    cpus: CpusOption = 2,
    root: RootOption = Path("/"),
    boot_limit: Annotated[
        float, Option(metavar="SECONDS", help="Give up when a host takes longer to boot.")
    ] = 120.0,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the QEMU command lines; start nothing.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Bring the lab up, unless it is up already."""
    from planewise import lab

    spec = lab.LabSpec(name, pfs, memory, cpus, str(root.absolute()))
    if dry_run:
        _print_plan(spec, json)
        return
    if boot_limit <= 0:
        raise BadInputError(f"{boot_limit:g} is not a time to boot in", where="--boot-limit")
    begun = time.monotonic()
    with ProgressLine(context.obj) as progress:
        status = lab.up(spec, progress, boot_limit)
    if json:
        print_json(_as_json(status))
        return
    out().print(
        f"The lab `{name}` is up ({time.monotonic() - begun:.1f} s): hosts a and b with "
        f"{count_text(pfs, 'PF')} each, under {status.record.accelerator.upper()}."
    )
    verbosity: Verbosity = context.obj
    if not verbosity.quiet:
        err().print(
            f"log in:     ssh -F {status.directory}/ssh_config a\n"
            f"run there:  planewise lab run{_name_flag(name)} --host a -- ip link\n"
            f"end it:     planewise lab down{_name_flag(name)}"
        )


@app.command()
def run(
    context: typer.Context,
    command: Annotated[list[str], Argument(metavar="-- COMMAND", help="What to run.")],
    host: Annotated[Literal["a", "b"], Option(help="Host to run on.")] = "a",
    name: NameOption = "default",
    fresh: Annotated[
        bool, Option("--fresh", help="Bring up a lab for this command alone.")
    ] = False,
    pfs: PfsOption = 1,
    memory: MemoryOption = 2048,
    cpus: CpusOption = 2,
) -> None:
    """Run a command on a host, in this directory; exits with its exit code.

    The host sees this machine's files as they were when it first read them; what it writes is lost
    when the lab goes down. --pfs, --memory and --cpus are for --fresh.
    """
    from planewise import lab

    if not fresh:
        raise typer.Exit(_run(name, host, command))
    spec = lab.LabSpec(f"fresh-{os.getpid()}", pfs, memory, cpus)
    try:
        with ProgressLine(context.obj) as progress:
            lab.up(spec, progress)
        code = _run(spec.name, host, command)
    finally:
        lab.down(spec.name)
    raise typer.Exit(code)


@app.command()
def status(
    name: Annotated[str | None, Option(help="Only this lab.")] = None,
    json: JsonOption = False,
) -> None:
    """Show the state of the labs' hosts: booting, running, hung or dead."""
    from planewise import lab

    labs = [status for status in lab.statuses() if name in (None, status.record.name)]
    if json:
        print_json({"labs": [_as_json(lab_status) for lab_status in labs]})
        return
    if not labs:
        out().print("No lab is up." if name is None else f"No lab `{name}` is up.")
        return
    for lab_status in labs:
        _print_lab(lab_status)
    for lab_status in labs:
        for host in lab_status.hosts:
            _print_fault(lab_status, host)


@app.command()
def down(
    name: NameOption = "default",
    every: Annotated[bool, Option("--all", help="Every lab of this user.")] = False,
) -> None:
    """Take the lab down, with all its processes, sockets and files."""
    from planewise import lab

    names = lab.names() if every else (name,)
    ended = [name for name in names if lab.down(name)]
    for lab_name in ended:
        out().print(f"The lab `{lab_name}` is down.")
    if not ended:
        out().print("No lab is up." if every else f"No lab `{name}` is up.")


def _run(name: str, host: HostId, command: list[str]) -> int:
    from planewise.testbed.hosts.remote import LabHost

    # The same directory, where the host has it; else its home.
    words = f"cd {shlex.quote(str(Path.cwd()))} 2>/dev/null; exec {shlex.join(command)}"
    remote = LabHost(name, host, name="lab")
    try:
        sys.stdout.flush()
        return remote.stream(words)
    finally:
        remote.close()


def _print_plan(spec: LabSpec, json: bool) -> None:
    from planewise import lab

    lines = lab.plan(spec)
    if json:
        print_json({"commands": lines})
        return
    for line in lines:
        out().print(shlex.join(line), soft_wrap=True)


def _print_lab(lab: LabStatus) -> None:
    record = lab.record
    console = out()
    console.print(
        f"{record.name}: {lab.state}, {count_text(record.pfs, 'PF')} a host, "
        f"{record.accelerator.upper()} ({record.accelerator_reason}), kernel {record.kernel}"
    )
    for host in lab.hosts:
        since = f" for {duration_text(time.time() - host.started_s)}" if host.started_s else ""
        answers = "answers" if host.answers else "does not answer"
        console.print(
            f"  {host.host}  {host.finding.state}{since}, "
            f"ssh on 127.0.0.1:{host.port} {answers}, log {host.serial_log}"
        )


def _print_fault(lab: LabStatus, host: HostStatus) -> None:
    if host.finding.state not in ("dead", "hung"):
        return
    console = out()
    verb = "is dead" if host.finding.state == "dead" else "hangs"
    console.print(
        f"\nHost {host.host} of `{lab.record.name}` {verb}: {host.finding.reason}. "
        f"Its log, {host.serial_log}, ends:"
    )
    for line in host.last_lines or ("(nothing)",):
        console.print(f"    {line}")


def _as_json(lab: LabStatus) -> dict[str, object]:
    record = lab.record
    names = ("name", "pfs", "memory_mib", "cpus", "kernel", "qemu")
    return {
        **{name: getattr(record, name) for name in names},
        "state": lab.state,
        "directory": str(lab.directory),
        "ssh_config": str(lab.directory / "ssh_config"),
        "accelerator": {"name": record.accelerator, "reason": record.accelerator_reason},
        "hosts": [
            {
                **{name: getattr(host, name) for name in ("host", "pid", "started_s")},
                "state": host.finding.state,
                "reason": host.finding.reason or None,
                "age_s": None if host.started_s is None else time.time() - host.started_s,
                "ssh": {"address": "127.0.0.1", "port": host.port, "reachable": host.answers},
                "serial_log": str(host.serial_log),
                "last_lines": list(host.last_lines),
            }
            for host in lab.hosts
        ],
    }


def _name_flag(name: str) -> str:
    return "" if name == "default" else f" --name {name}"
