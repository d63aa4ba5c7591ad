"""Cells that cannot be set up on a pair of hosts, or would show nothing there, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from planewise import procfs
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import AS_IS, Design
from planewise.testbed.hosts.coalescing import read_rx_usecs
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.planes import plane, refusal
from planewise.testbed.refusals import SPARE_MIB

ONE_PLACE = (
    "both hosts are this machine and share its CPUs, so CPU load at the sender and at the "
    "responder is the same: it is measured once here, and at both on two servers"
)


def repeated_cells(cells: Sequence[Cell]) -> frozenset[Cell]:
    """Of cells that differ only in the location of their CPU load, all but the first."""
    firsts: set[Cell] = set()
    repeated = set()
    for cell in cells:
        if cell.load_type == "cpu":
            alike = replace(cell, load_location="responder")
            if alike in firsts:
                repeated.add(cell)
            firsts.add(alike)
    return frozenset(repeated)


class Refusals:
    """Refuses cells of a design on two servers, or on this machine (`pair` None)."""

    def __init__(self, design: Design, pair: Pair | None) -> None:
        self._per_guest = design.background.per_guest
        self._varies_interrupts = design.factors.rx_usecs != (AS_IS,)
        self._pair = pair

    def of(self, cell: Cell) -> str:
        """Why a cell cannot be measured; empty where it can, as far as this is known here."""
        return (
            self._impossible_guests(cell)
            or self._too_few_cpus(cell)
            or self._too_little_memory(cell)
            or self._no_coalescing(cell)
        )

    def _impossible_guests(self, cell: Cell) -> str:
        if cell.vnfs:
            return ""
        names = [cell.plane, cell.background] if cell.background_guests else [cell.plane]
        reasons = (refusal(name, cell.guest, local=self._pair is None) for name in names)
        return next(filter(None, reasons), "")

    def _too_few_cpus(self, cell: Cell) -> str:
        """A set CPU load for every guest that is more than the host has."""
        if cell.load_type != "cpu" or self._per_guest is None or self._per_guest.cpu_share is None:
            return ""
        cpus = procfs.count_cpus(self._text(cell, "/proc/cpuinfo"))
        share = self._per_guest.cpu_share
        needed = cell.background_guests * share
        if needed <= cpus:
            return ""
        return (
            f"{cell.background_guests} guests that burn {share:g} CPUs each need {needed:g}, and a "
            f"host has {cpus}: use busy_threads to take whatever is available"
        )

    def _too_little_memory(self, cell: Cell) -> str:
        """Memory load that the host has no room for; virtual machines load their own memory."""
        per_guest = self._per_guest
        if cell.load_type != "memory" or per_guest is None or cell.guest == "vm":
            return ""
        free_mib = procfs.memory(self._text(cell, "/proc/meminfo"))["MemAvailable"] >> 20
        needed_mib = cell.background_guests * (per_guest.busy_threads or 1) * per_guest.memory_mib
        if needed_mib + SPARE_MIB["namespace"] <= free_mib:
            return ""
        return (
            f"{cell.background_guests} guests that load {needed_mib} MiB of memory together need a "
            f"host with more: {free_mib} MiB are free"
        )

    def _text(self, cell: Cell, path: str) -> str:
        """A file of the loaded host."""
        if self._pair is None:
            return Path(path).read_text()
        return self._pair.machines[cell.load_location].host.read_text(path)

    def _no_coalescing(self, cell: Cell) -> str:
        """A factor rx_usecs where no NIC has interrupts that could be varied."""
        if not self._varies_interrupts:
            return ""
        if self._pair is None:
            return "rx_usecs: a veth pair, which is the hosts' NIC here, has no interrupts"
        if plane(cell.plane).vfs:
            return f"rx_usecs: it is the NICs', and frames of {cell.plane} go through VFs"
        if cell.path == "east-west":
            return "rx_usecs: within one host frames reach no NIC"
        return self._fixed_interrupts

    @cached_property
    def _fixed_interrupts(self) -> str:
        assert self._pair is not None
        for machine in self._pair.machines.values():
            if read_rx_usecs(machine.host, machine.nic) is None:
                return (
                    f"rx_usecs: {machine.nic} on {machine.host.place} does not report interrupt "
                    "coalescing (`ethtool -c`)"
                )
        return ""
