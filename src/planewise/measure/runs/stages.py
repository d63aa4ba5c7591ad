"""One stage for all kinds of guest: each kind's own is made when a cell first needs it.

To add a kind of guest, write a stage for it and name it in `stage_makers`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Self

from planewise import procfs
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import AS_IS, Design
from planewise.measure.runs.chains import ChainStage
from planewise.measure.runs.managed import ManagedVmStage
from planewise.measure.runs.stage import (
    ClearableStage,
    FactualStage,
    RebuildingStage,
    Stage,
    StageFacts,
    Station,
)
from planewise.measure.runs.vms import VmStage, local_vms
from planewise.measure.station import GuestStage
from planewise.testbed.hosts.coalescing import read_rx_usecs
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.model import IpVersion
from planewise.testbed.planes import plane, refusal
from planewise.testbed.planes.kinds import GUEST_WORDS, GuestKind
from planewise.testbed.testbed import SPARE_MIB

_FAMILY: Mapping[GuestKind, GuestKind] = MappingProxyType({"container": "namespace"})
"""Guests that share a stage with another kind."""


def stage_makers(
    pair: Pair | None, ip_version: IpVersion = 4
) -> Mapping[GuestKind, Callable[[Design], Stage]]:
    """By kind of guest, what makes its stage on a pair of hosts; None is this machine."""
    guests = partial(GuestStage, pair=pair, ip_version=ip_version)

    def machines(design: Design) -> Stage:
        if design.alloc is not None:
            return ManagedVmStage(design, pair, ip_version)
        if pair is None:
            return local_vms(design, ip_version)
        return VmStage(design, nullcontext(pair), ip_version)

    if pair is None:
        return {"namespace": guests, "vm": machines, "process": ChainStage}
    return {"namespace": guests, "vm": machines, "process": partial(ChainStage, pair=pair)}


def _kind(cell: Cell) -> GuestKind:
    """The kind whose stage a cell is sent to: chains have one, whatever their functions are."""
    return "process" if cell.vnfs else _FAMILY.get(cell.guest, cell.guest)


ONE_PLACE = (
    "both hosts are this machine and share its CPUs, so that CPU load at the sender and at the "
    "responder is one load: it is measured once, on two servers at both"
)


def _second_places(cells: Sequence[Cell]) -> frozenset[Cell]:
    """Of cells that differ in nothing but the location of their CPU load, all but the first."""
    firsts: set[Cell] = set()
    second = []
    for cell in cells:
        if cell.load_type == "cpu":
            alike = replace(cell, load_location="responder")
            if alike in firsts:
                second.append(cell)
            firsts.add(alike)
    return frozenset(second)


class Stages:
    """Sends each cell to the stage of its kind of guest, or to that of chains."""

    def __init__(
        self,
        design: Design,
        pair: Pair | None = None,
        makers: Mapping[GuestKind, Callable[[Design], Stage]] | None = None,
        *,
        ip_version: IpVersion = 4,
    ) -> None:
        self._design = design
        self._pair = pair
        self._makers = makers if makers is not None else stage_makers(pair, ip_version)
        self._stages: dict[GuestKind, Stage] = {}
        self._holder: GuestKind | None = None
        """Of two servers: the kind whose guests have the NICs."""
        self._built = ExitStack()

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""
        kinds: dict[GuestKind, list[Cell]] = {}
        reasons: dict[Cell, str] = {}
        void = _second_places(cells) if self._pair is None else frozenset[Cell]()
        for cell in cells:
            place = ONE_PLACE if cell in void else ""
            refused = self._refusal(cell) or place or self._more_than_its_cpus(cell)
            refused = refused or self._more_than_its_memory(cell)
            if reason := refused or self._no_coalescing(cell):
                reasons[cell] = reason
            else:
                kinds.setdefault(_kind(cell), []).append(cell)
        for kind, group in kinds.items():
            if kind in self._makers:
                reasons |= self._stage(kind).unavailable(group)
            else:
                reason = f"guests that are {GUEST_WORDS[kind][1]} cannot be started on this testbed"
                reasons |= dict.fromkeys(group, reason)
        return reasons

    def _more_than_its_cpus(self, cell: Cell) -> str:
        """Why a set CPU load of every guest cannot be had on a host; empty where it can."""
        per_guest = self._design.background.per_guest
        if cell.load_type != "cpu" or per_guest is None or per_guest.cpu_share is None:
            return ""
        cpus = procfs.count_cpus(self._text_of_loaded(cell, "/proc/cpuinfo"))
        needed = cell.background_guests * per_guest.cpu_share
        if needed <= cpus:
            return ""
        return (
            f"{cell.background_guests} guests that burn {per_guest.cpu_share:g} CPUs each need "
            f"{needed:g}, and a host has {cpus}: as many as they can get are had with busy_threads"
        )

    def _more_than_its_memory(self, cell: Cell) -> str:
        """Why a host has not the memory that its guests are to load; empty where it has.

        A virtual machine loads its own.
        """
        per_guest = self._design.background.per_guest
        if cell.load_type != "memory" or per_guest is None or cell.guest == "vm":
            return ""
        text = self._text_of_loaded(cell, "/proc/meminfo").partition("MemAvailable:")[2]
        free_mib = int(text.split()[0]) // 1024
        needed_mib = cell.background_guests * (per_guest.busy_threads or 1) * per_guest.memory_mib
        if needed_mib + SPARE_MIB <= free_mib:
            return ""
        return (
            f"{cell.background_guests} guests that load {needed_mib} MiB of memory together need a "
            f"host with more: {free_mib} MiB are free"
        )

    def _text_of_loaded(self, cell: Cell, path: str) -> str:
        """A file of the host whose guests load it."""
        if self._pair is None:
            return Path(path).read_text()
        return self._pair.machines[cell.load_location].host.read_text(path)

    def _no_coalescing(self, cell: Cell) -> str:
        """Why the interrupts of the NICs cannot be varied for a cell; empty where they can, or are
        not."""
        if self._design.factors.rx_usecs == (AS_IS,):
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
        """Which host's NIC does not let its interrupts be coalesced; empty where all do."""
        assert self._pair is not None
        for machine in self._pair.machines.values():
            if read_rx_usecs(machine.host, machine.nic) is None:
                return (
                    f"rx_usecs: {machine.nic} on {machine.host.place} does not tell of interrupt "
                    "coalescing (`ethtool -c`)"
                )
        return ""

    def _refusal(self, cell: Cell) -> str:
        """Why no hosts of this sort can have a cell's guests; empty where some can."""
        if cell.vnfs:
            return ""
        names = [cell.plane, cell.background] if cell.background_guests else [cell.plane]
        reasons = (refusal(name, cell.guest, local=self._pair is None) for name in names)
        return next(filter(None, reasons), "")

    def max_pps(self, cell: Cell, size_bytes: int) -> float:
        """The generator's own maximum [packet/s]."""
        return self._cleared(_kind(cell)).max_pps(cell, size_bytes)

    def station(self, cell: Cell) -> AbstractContextManager[Station]:
        """Sets `cell` up and starts its background load."""
        return self._cleared(_kind(cell)).station(cell)

    def new_block(self) -> None:
        """Has stages that can do so cheaply build anew."""
        for stage in self._stages.values():
            if isinstance(stage, RebuildingStage):
                stage.new_block()

    def facts(self) -> StageFacts:
        """The facts of the stages in use."""
        stages = self._stages.values()
        facts = [stage.facts() for stage in stages if isinstance(stage, FactualStage)]
        return StageFacts(
            emulated="; ".join(dict.fromkeys(fact.emulated for fact in facts if fact.emulated)),
            differences={
                plane: words for fact in facts for plane, words in fact.differences.items()
            },
        )

    def _cleared(self, kind: GuestKind) -> Stage:
        """The stage of a kind of guest, which has the NICs of two servers from now on."""
        if self._pair is not None and self._holder not in (None, kind):
            for other, stage in self._stages.items():
                if other != kind and isinstance(stage, ClearableStage):
                    stage.clear()
        self._holder = kind
        return self._stage(kind)

    def _stage(self, kind: GuestKind) -> Stage:
        if kind not in self._stages:
            self._stages[kind] = self._built.enter_context(self._makers[kind](self._design))
        return self._stages[kind]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stages.clear()
        self._built.close()
