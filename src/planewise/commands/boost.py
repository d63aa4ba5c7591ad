"""`planewise boost`: what a VF saves a guest's packets, as a profile that the daemon reads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from planewise.commands import console
from planewise.commands.options import JsonOption, ProfileOutOption
from planewise.errors import BadInputError, first_fault
from planewise.store.files import write_file
from planewise.units import rate_text, time_text

if TYPE_CHECKING:
    from planewise.advise.gain_profile import GainProfile, SwitchPrice


def boost(
    measured: Annotated[
        Path,
        Argument(
            metavar="RUN", help="A run of two planes by packet rate, as of experiments/boost.yaml."
        ),
    ],
    fast: Annotated[str, Option("--plane", help="The scarce plane.")] = "vf",
    slow: Annotated[
        str, Option("--against", help="The plane that a guest has without it.")
    ] = "bridge",
    moves: Annotated[
        Path | None,
        Option(
            help="Output of `planewise alloc status --json` on that host after some moves: the "
            "price of a switch.",
            metavar="FILE",
        ),
    ] = None,
    out: ProfileOutOption = None,
    json_: JsonOption = False,
) -> None:
    """Compute what a plane saves, and write it as a gain profile.

    The saving is by packet rate and frame size. `planewised` reads the profile (gain_profile in its
    configuration): its policy `benefit` then ranks guests by what was measured.
    """
    from planewise.advise.gain import gain_of
    from planewise.advise.toml_text import toml_text
    from planewise.judge.statistics.metrics import RunSample
    from planewise.store.rundir import RunReader

    reader = RunReader(measured)
    switch = None if moves is None else _switch(moves)
    sample = RunSample(str(measured), reader.info, reader.trials())
    profile, notes = gain_of(sample, slow, fast, switch)
    if out is not None:
        write_file(out, toml_text(profile).encode())
    if json_:
        console.print_json({**profile.model_dump(), "notes": notes})
        return
    _print(profile)
    for note in notes:
        print(f"{note[:1].upper()}{note[1:]}.")
    if emulated := profile.emulated:
        print(f"Emulated: {emulated}. Such a profile ranks guests; its times are not a server's.")
    if switch is not None:
        print(
            f"A switch: {time_text(switch.plug_s * 1e9)} to plug (mean of {switch.gives}), "
            f"{time_text(switch.unplug_s * 1e9)} to unplug (of {switch.takes})."
        )
    if out is not None:
        print(out)


def _switch(path: Path) -> SwitchPrice:
    from pydantic import ValidationError

    from planewise.advise.gain_profile import switch_price
    from planewise.testbed.vfs.alloc_client import FORMAT, Status

    try:
        status = Status.model_validate_json(path.read_bytes())
    except OSError as error:
        raise BadInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    except ValidationError as error:
        place, fault = first_fault(error)
        raise BadInputError(
            f"this is not a status of planewised: {place}: {fault}",
            where=str(path),
            remedy="planewise alloc status --json > FILE",
        ) from error
    if status.format != FORMAT:
        raise BadInputError(
            f"this status is of format {status.format}, this planewise reads format {FORMAT}",
            where=str(path),
            remedy="update planewise and planewised to the same version",
        )
    took_s: dict[str, list[float]] = {"give": [], "take": []}
    for move in status.moves:
        completed = move.ending is not None and move.ending.how == "completed"
        if completed and move.duration_ms is not None:
            took_s[move.direction].append(move.duration_ms / 1e3)
    return switch_price(took_s["give"], took_s["take"])


def _print(gain: GainProfile) -> None:
    titles = ("round trips", "frame", "blocks", gain.slow, gain.fast, "boost", "boost of p99")
    print(f"{gain.fast} instead of {gain.slow}")
    console.print_rows(
        titles,
        [
            (
                rate_text(row.round_trips_pps),
                f"{row.size_bytes} B",
                str(row.blocks),
                time_text(row.slow_us * 1e3),
                time_text(row.fast_us * 1e3),
                f"{row.boost_percent:.0f} % ({_end(row.boost_low_percent)} to "
                f"{_end(row.boost_high_percent)})",
                "not known" if row.boost_p99_percent is None else f"{row.boost_p99_percent:.0f} %",
            )
            for row in gain.measured
        ],
        right=titles,
    )
    print("\nwhat each packet of a guest saves")
    rows = []
    for point in gain.curve:
        ends = [
            "open" if end is None else time_text(end * 1e3) for end in (point.low_us, point.high_us)
        ]
        rows.append((rate_text(point.pps), time_text(point.saved_us * 1e3), " to ".join(ends)))
    of_curve = ("guest's packets", "saved", "95 % interval")
    console.print_rows(of_curve, rows, right=of_curve)


def _end(percent: float | None) -> str:
    """In whole per cent: the table fits 80 columns."""
    return "open" if percent is None else f"{percent:.0f}"
