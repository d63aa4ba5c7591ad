"""A program between generator and sink that plants losses, duplicates and reordering by sequence
number, and what a sink must then have counted. benches/faults.bpf.c is the program."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.linux.probe import Network, ip

SOURCE = Path(__file__).resolve().parents[2] / "benches" / "faults.bpf.c"
PORT = 4862


def lacking() -> str:
    """Why the program cannot be had here; empty where it can."""
    if shutil.which("clang") is None or not Path("/usr/include/bpf/bpf_helpers.h").exists():
        return "clang and libbpf's headers are not installed (scripts/setup test)"
    return ""


@contextmanager
def planted(network: Network, every: int) -> Iterator[None]:
    """Frames from `left` go on by `right`, with faults once in `every` sequence numbers."""
    middle = network.middle
    shown = subprocess.run(
        ["ip", "-n", middle, "-o", "link", "show", "right"],
        capture_output=True,
        text=True,
        check=True,
    )
    with TemporaryDirectory() as directory:
        made = f"{directory}/faults.o"
        defines = (f"-DOUT={shown.stdout.split(':')[0]}", f"-DPORT={PORT}", f"-DEVERY={every}")
        headers = f"-I/usr/include/{platform.machine()}-linux-gnu"
        compiler = ("clang", "-O2", "-g", "-target", "bpf", headers, *defines)
        subprocess.run([*compiler, "-c", str(SOURCE), "-o", made], check=True)
        ip("-n", middle, "link", "set", "left", "xdpdrv", "obj", made, "sec", "xdp")
    try:
        yield
    finally:
        subprocess.run(["ip", "-n", middle, "link", "set", "left", "xdp", "off"], check=False)


@dataclass(frozen=True)
class Faults:
    """What a sink must have counted."""

    lost: int
    duplicate: int
    reordered: int


def expected(output: dict[str, Any], every: int) -> Faults | None:
    """Of the frames that a trial sent; None where its warm-up frame was taken for its first."""

    def numbers(place: int, start: int, end: int) -> int:
        """How many numbers from `start` up to `end` are `place` modulo `every`."""
        return (end - 1 - place) // every - (start - 1 - place) // every

    first, sent = output["first_sequence"], output["sent"]
    end = first + sent
    if first % every == 8:
        return None
    lost = numbers(3, first, end) + numbers(5, first, end)
    if (end - 1) % every == 7 and sent == output["planned"]:
        lost += 1  # goes on as a number that is none of the trial
    return Faults(lost, numbers(4, first, end - 1), numbers(7, first, end - 1))


def counted(output: dict[str, Any]) -> Faults:
    """What the trial counted, without what the counters of its interfaces have. Those of the host's
    receive backlogs count other programs' frames, too, and those of XDP never pass them."""
    named = sum(part["count"] for part in output["loss"] if part["where"] != "host")
    return Faults(output["lost"] - named, output["duplicate"], output["reordered"])
