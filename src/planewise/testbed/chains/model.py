"""Chains as values: functions, hops between them, and CPUs. Pure.

The `switch` joins the functions: Open vSwitch with DPDK, or the kernel's bridge.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, pairwise
from typing import Literal

from planewise.errors import BadInputError, UnsupportedError
from planewise.testbed.model import Forwarder, GuestKind
from planewise.testbed.planes import FUNCTIONS_OF, plane

Pattern = Literal["north-south", "east-west"]
FrameSize = int | Literal["imix"]
"""Bytes of a frame with its FCS, or a mix of them."""

FCS_BYTES = 4
SMALLEST_BYTES = 64

IMIX: tuple[tuple[int, int], ...] = ((64, 7), (594, 4), (1518, 1))
"""The simple IMIX: frame sizes [bytes, with FCS] and how many of each in twelve."""

SWITCH, GENERATOR = "switch", "generator"


def frames_of(size: FrameSize) -> tuple[tuple[int, int], ...]:
    """Frame sizes [bytes, with FCS] and how many of each there are in a round."""
    return IMIX if size == "imix" else ((size, 1),)


def mean_bytes(size: FrameSize) -> float:
    """Mean frame size [bytes, with FCS]."""
    frames = frames_of(size)
    total = sum(count for _, count in frames)
    return sum(frame_bytes * count for frame_bytes, count in frames) / total


@dataclass(frozen=True)
class Chain:
    """A chain of network functions.

    Raises:
        BadInputError: it can be built nowhere.
    """

    plane: str
    pattern: Pattern
    vnfs: int
    kind: GuestKind = "process"
    """The kind of guest that each function is."""
    forwarder: Forwarder | Literal[""] = ""
    """Program that forwards in each function; empty: the plane's default."""

    def __post_init__(self) -> None:
        """Refuses chains that can be built nowhere."""
        if reason := plane(self.plane).function_refusal(self.kind, self.forwarder):
            raise BadInputError(reason, remedy=f"planes of chains: {', '.join(FUNCTIONS_OF)}")

    @property
    def forwards(self) -> Forwarder:
        """Program that forwards in each function, the default resolved."""
        return self.forwarder or FUNCTIONS_OF[self.plane][self.kind][0]

    @property
    def on_vfs(self) -> bool:
        """Whether each function has a VF of its own."""
        return self.plane in ("vf", "vf-passthrough")

    @property
    def polls(self) -> bool:
        """Whether functions are dpdk-testpmd; else they route."""
        return self.forwards == "testpmd"

    @property
    def by_vfio(self) -> bool:
        """Whether each function has its VF by VFIO, past the host's kernel."""
        return self.on_vfs and (self.kind == "vm" or self.polls)

    @property
    def through(self) -> bool:
        """Whether frames go through one function after the other."""
        return self.pattern == "east-west"

    @property
    def numbers(self) -> range:
        """Numbers of the functions."""
        return range(1, self.vnfs + 1)

    @property
    def names(self) -> tuple[str, ...]:
        """The functions in order."""
        return tuple(f"vnf{number}" for number in self.numbers)

    @property
    def hops(self) -> tuple[tuple[str, str], ...]:
        """Pairs (from, to) by which the switch forwards; the generator is at both ends."""
        names = self.names
        if self.through:
            stops = (GENERATOR, *names, GENERATOR)
            return tuple(pairwise(stops))
        return tuple(hop for name in names for hop in ((GENERATOR, name), (name, GENERATOR)))

    @property
    def entries(self) -> tuple[str, ...]:
        """The functions that the generator sends to."""
        return tuple(target for source, target in self.hops if source == GENERATOR)


@dataclass(frozen=True)
class Placement:
    """Tasks by CPU; several tasks may share one."""

    tasks: Mapping[int, tuple[str, ...]]

    def cpus(self, task: str) -> tuple[int, ...]:
        """The CPUs of a task; only the switch may have several."""
        return tuple(cpu for cpu, tasks in self.tasks.items() if task in tasks)

    def cpu(self, task: str) -> int:
        """The first CPU of a task."""
        return self.cpus(task)[0]


def assign_cpus(
    tasks: Sequence[str], available: Iterable[int], requested: Mapping[str, Sequence[int]]
) -> Placement:
    """Gives each task a CPU. `requested` names CPUs for `switch`, `generator` and `vnf`.

    By default a switch or generator that comes first has the first CPU to itself, and the others
    take turns on the rest. A switch polls on all CPUs that are requested for it.

    Raises:
        UnsupportedError: too few CPUs, or one is requested that is not available.
    """
    cpus = sorted(available)
    alone = tasks[0] if tasks[0] in (SWITCH, GENERATOR) else ""
    if alone and len(cpus) < 2:
        raise UnsupportedError(
            f"a chain needs two CPUs, one for the {alone} and one for the functions, "
            f"and this process may use {len(cpus)}",
            remedy="allow it more (taskset, cpusets), or use a larger machine",
        )
    kinds = {task: task if task in (SWITCH, GENERATOR) else "vnf" for task in tasks}
    wanted = {kind: tuple(requested.get(kind, ())) for kind in kinds.values()}
    for kind, kind_cpus in wanted.items():
        if unavailable := [cpu for cpu in kind_cpus if cpu not in cpus]:
            raise UnsupportedError(
                f"CPU {unavailable[0]} of `cpus.{kind}` is not available to the chain",
                remedy=f"one of {', '.join(map(str, cpus))}",
            )
    first = (wanted[alone] or (cpus[0],)) if alone else ()
    others = tuple(cpu for cpu in cpus if cpu not in first) or tuple(cpus)
    placed: dict[int, list[str]] = {}
    turns: dict[str, Iterator[int]] = {}
    for task, kind in kinds.items():
        if kind == SWITCH and wanted[kind]:
            task_cpus = wanted[kind]
        else:
            group = kind if wanted[kind] or kind == alone else "others"
            kind_cpus = wanted[kind] or (first if kind == alone else others)
            task_cpus = (next(turns.setdefault(group, cycle(kind_cpus))),)
        for cpu in task_cpus:
            placed.setdefault(cpu, []).append(task)
    return Placement({cpu: tuple(names) for cpu, names in sorted(placed.items())})
