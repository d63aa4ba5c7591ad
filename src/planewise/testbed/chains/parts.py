"""Shared state of a chain's parts: its host, its directory, and what is closed at its end."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property

from planewise.testbed.chains.ends import MTU_BYTES, netns
from planewise.testbed.chains.model import Chain, Placement
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.model import Guest
from planewise.testbed.plan import set_up


@dataclass
class ChainParts:
    """A chain on its functions' host."""

    chain: Chain
    placement: Placement
    state: MachineState
    """The functions' host."""
    opened: ExitStack = field(default_factory=ExitStack)
    """Ends what was started, the last first."""

    @property
    def numbers(self) -> range:
        """Numbers of the functions."""
        return self.chain.numbers

    def cpu(self, number: int) -> int:
        """CPU of a function."""
        return self.placement.cpu(f"vnf{number}")

    @cached_property
    def directory(self) -> str:
        """A scratch directory on the host, removed with the chain."""
        host = self.state.host
        # By this name `remove_traces` knows what runs in it.
        template = f"{host.directory}/pw-{self.state.token}.XXXXXX"
        directory = host.run(["mktemp", "-d", template]).check().stdout.strip()
        self.opened.callback(host.run, ["rm", "-rf", directory])
        return directory

    def netns(self, number: int) -> str:
        """The namespace of a function, or the name of its virtual machine."""
        return netns(self.state.token, f"v{number}")


def move_vfs(state: MachineState, opened: ExitStack, guests: Sequence[Guest]) -> dict[int, str]:
    """Gives each guest a VF and sets it up; returns their MACs, by index.

    Raises:
        PlanewiseError: too few VFs, or one could not be moved.
    """
    moved = state.vfs.move(guests, MTU_BYTES)
    for vf in moved.values():
        opened.callback(state.vfs.return_to_pool, vf.index)
    state.perform(set_up(guest.netns, guest.interface) for guest in guests)
    return {guest.index: moved[guest.netns].config.mac for guest in guests}
