"""Stations that are chains of functions, on this machine or on two hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self

from planewise.errors import PlanewiseError
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import ChainPart, Design
from planewise.measure.station import End, Station
from planewise.measure.trials import vm_options
from planewise.measure.trials.applications import IPERF, lacking
from planewise.measure.trials.load_one_process import Generator
from planewise.testbed.chains import describe
from planewise.testbed.chains.built import Feed
from planewise.testbed.chains.dpdk import Driver
from planewise.testbed.chains.ends import PLACES
from planewise.testbed.chains.model import (
    GENERATOR,
    SMALLEST_BYTES,
    SWITCH,
    Chain,
    Placement,
    assign_cpus,
)
from planewise.testbed.chains.testbed import ChainTestbed
from planewise.testbed.guests.vms.guests import LAB_BOOT_LIMIT_S
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.model import HOSTS
from planewise.testbed.planes import plane

SLACK_S = 60.0
"""On a busy machine a trial may begin this much late, and take this much longer."""


@dataclass(frozen=True)
class Build:
    """The steps that build a chain, for people."""

    tasks: Mapping[int, tuple[str, ...]]
    """By CPU; empty where that is known only once the hosts are asked."""
    steps: tuple[str, ...]


class Chains:
    """Builds a chain for each visit and removes it after."""

    def __init__(self, design: Design, pair: Pair | None = None) -> None:
        """`pair`: two hosts; None: both are namespaces of this machine, made for each chain."""
        self._part = design.chain or ChainPart()
        self._tcp = design.tcp is not None
        self._pair = pair
        self._testbed = ChainTestbed(pair, vm_options(design))
        self._generators: dict[str, Generator] = {}

    def unavailable(self, cells: Sequence[Cell]) -> Mapping[Cell, str]:
        """Which of these cells cannot be set up here, and why."""
        return {cell: reason for cell in cells if (reason := self._unavailable_reason(cell))}

    @property
    def emulated(self) -> str:
        """Why the functions' CPUs are not those of hardware; empty when they are."""
        return self._testbed.emulated

    def builds(self, cells: Sequence[Cell], nic: str = "") -> dict[str, Build]:
        """By plane, the steps of its longest chain among `cells`, which can all be built: on two
        hosts whose NIC is called `nic` and whose CPUs are unknown, or here."""
        builds = {}
        for name, cell in longest(cells).items():
            chain = chain_of(cell)
            placement = assign_cpus(chain.names, [0], {}) if nic else self._place(chain)
            if nic and plane(chain.plane).switch_is_program:
                placement = Placement({0: (SWITCH,), 1: chain.names})
            steps = describe.steps(chain, placement, nic, self._driver(chain))
            builds[name] = Build({} if nic else placement.tasks, steps)
        return builds

    def _driver(self, chain: Chain) -> Driver | None:
        return self._part.uplink if chain.plane == "vhost-user" else None

    def _unavailable_reason(self, cell: Cell) -> str:
        try:
            chain = chain_of(cell)
            if reason := self._refusal(chain):
                return reason
            if self._tcp and (reason := lacking([self._testbed.host], (IPERF,))):
                return reason
            self._place(chain)
            return self._testbed.check(chain)
        except PlanewiseError as error:
            return error.what

    def _refusal(self, chain: Chain) -> str:
        """Why no hosts of this sort can have a chain, as a sentence; empty when some can."""
        if self._tcp and chain.polls:
            return "functions that poll carry no TCP: they forward all frames one way"
        if chain.plane != "vhost-user":
            return ""
        if self._tcp:
            return "the flows of a DPDK switch are one-way, and TCP needs both directions"
        if self._part.uplink:
            return ""
        if self._pair is not None:
            return "a DPDK switch on another host is fed over its NIC: give `chain.uplink` a driver"
        if self._part.offered_pps is not None:
            return (
                "without an uplink the generator on a switch cannot be paced: give `chain.uplink` "
                "a driver, or leave `offered_pps` out"
            )
        if not chain.polls:
            return "functions that route need IP traffic from outside: give `chain.uplink` a driver"
        return ""

    def _place(self, chain: Chain) -> Placement:
        # The kernel's bridge is not a task: its work is done where a frame comes from.
        tasks = [SWITCH] if plane(chain.plane).switch_is_program else []
        if self._pair is None and (chain.plane != "vhost-user" or self._part.uplink):
            tasks.append(GENERATOR)
        return assign_cpus((*tasks, *chain.names), self._testbed.cpus, self._part.cpus.named())

    @contextmanager
    def station(self, cell: Cell) -> Iterator[Station]:
        """The cell's chain, built."""
        chain = chain_of(cell)
        feed = Feed(self._max_pps, self._part.offered_pps, self._driver(chain), self._tcp)
        with self._testbed.arrange(chain, self._place(chain), feed) as built:
            ends = [
                End(host, netns, place, interface, address)
                for place, (host, netns, address, interface) in zip(
                    PLACES, built.endpoints, strict=True
                )
            ]
            emulated_twice = chain.kind == "vm" and self._pair is not None
            with Station(
                built.hosts,
                dict(zip(HOSTS, ends, strict=True)),
                sent=lambda: {
                    name: (counters.packets, counters.bytes)
                    for name, counters in built.read().vnfs.items()
                },
                chain=built,
                slack_s=LAB_BOOT_LIMIT_S if emulated_twice else SLACK_S,
            ) as station:
                yield station

    def _max_pps(self, host: Host) -> float:
        """The generator's own maximum on its host [packet/s], measured once."""
        return self._generators.setdefault(host.name, Generator(host)).max_pps(SMALLEST_BYTES)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._testbed.close()


def longest(cells: Sequence[Cell]) -> dict[str, Cell]:
    """The cell with the longest chain by plane, containers apart. Pure."""
    by_name: dict[str, Cell] = {}
    for cell in cells:
        name = cell.plane if cell.guest != "container" else f"{cell.plane}, containers"
        if cell.vnfs >= by_name.get(name, cell).vnfs:
            by_name[name] = cell
    return by_name


def chain_of(cell: Cell) -> Chain:
    """The chain that a cell is; BadInputError when it cannot be built."""
    return Chain(cell.plane, cell.path, cell.vnfs, cell.guest, cell.forwarder)
