"""The VFs of one NIC and their holders, by `planewised vf`.

A NIC whose VFs were set up by somebody is used as it is, with the unused VFs. A NIC without VFs
gets as many as it can have: their number cannot be changed later without destroying all of them.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from pydantic import BaseModel, ConfigDict

from planewise.errors import PlanewiseError
from planewise.testbed.hosts import programs
from planewise.testbed.hosts.host import FinishedProcess, Host
from planewise.testbed.model import Guest

TIMEOUT_S = 180.0
"""Binding the drivers of seven VFs takes an emulated host some seconds, a busy one longer."""


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Config(_Answer):
    """The PF's configuration of a VF."""

    mac: str


class Netdev(_Answer):
    """The interface of a VF."""

    name: str


class ListedVf(_Answer):
    """A VF in `planewised vf list`."""

    index: int
    address: str
    driver: str | None
    config: Config
    netdev: Netdev | None = None
    used_by: str | None = None

    @property
    def usable(self) -> bool:
        """Whether nobody uses it."""
        return self.used_by is None and self.driver != "vfio-pci"


class Pf(_Answer):
    """A PF in `planewised vf list`."""

    total_vfs: int
    num_vfs: int
    vfs: tuple[ListedVf, ...]
    iommu_group: int | None = None


class _Listed(_Answer):
    pfs: tuple[Pf, ...]


class _Setup(_Answer):
    pf: Pf


@dataclass(frozen=True)
class Tool:
    """`planewised` on a host."""

    host: Host
    path: str

    @classmethod
    def on(cls, host: Host) -> Tool:
        """Finds it on this machine, and copies it to the host.

        Raises:
            UnsupportedError: it is not installed here.
            PlanewiseError: it cannot be copied.
        """
        return cls(host, host.program(find_planewised()))

    def run(self, *argv: str) -> FinishedProcess:
        """Runs `planewised vf …`.

        Raises:
            PlanewiseError: it failed; the message is its own.
        """
        return self.host.run([self.path, "vf", *argv], timeout_s=TIMEOUT_S).check()

    def pf(self, nic: str) -> Pf:
        """A NIC of the host as a PF, with its VFs and their users. Changes nothing.

        Raises:
            UnsupportedError: it has no SR-IOV.
        """
        (pf,) = _parsed(self.run("list", nic, "--json"), _Listed).pfs
        return pf

    def restore(self, owner: str) -> None:
        """Restores every PF and VF that is recorded under this owner.

        Raises:
            PlanewiseError: that failed.
        """
        self.run("restore", "--owner", owner)


class VfPool:
    """The VFs of one NIC; leaving its `with` block restores their previous state.

    Raises on entry:
        UnsupportedError: the NIC has no SR-IOV.
        PlanewiseError: somebody uses it, or its VFs cannot be set up.
    """

    def __init__(self, host: Host, nic: str, token: str) -> None:
        self._host = host
        self._nic = nic
        self._owner = f"pw-{token}"
        self._tool: Tool | None = None
        self._free: list[ListedVf] = []
        self._held: dict[int, ListedVf] = {}

    @property
    def free(self) -> int:
        """Number of VFs that nobody holds."""
        return len(self._free)

    @property
    def tool(self) -> Tool:
        """`planewised` on the host; only inside the `with` block."""
        if self._tool is None:
            raise RuntimeError("the pool is not set up: use it in a with block")
        return self._tool

    def __enter__(self) -> Self:
        self._tool = Tool.on(self._host)
        try:
            pf = self.tool.pf(self._nic)
            if not pf.num_vfs:
                argv = ("--count", str(pf.total_vfs), "--owner", self._owner, "--json")
                pf = _parsed(self.tool.run("setup", self._nic, *argv), _Setup).pf
        except BaseException:
            self.close()
            raise
        self._free = [vf for vf in pf.vfs if vf.usable]
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def move(self, guests: Sequence[Guest], mtu_bytes: int) -> Mapping[str, ListedVf]:
        """Moves a VF's interface into each guest's namespace; returns the VFs by namespace.

        The guest's MAC is then the VF's own.

        Raises:
            PlanewiseError: there are too few, or one could not be moved.
        """
        if len(guests) > len(self._free):
            raise PlanewiseError(
                f"{len(guests)} VFs of {self._nic} on {self._host.place} are needed, and "
                f"{len(self._free)} are free",
                remedy="fewer guests on the plane vf, or a NIC with more VFs",
            )
        moved: dict[str, ListedVf] = {}
        lines = []
        for guest in guests:
            vf = self._free.pop()
            self._held[vf.index] = vf
            moved[guest.netns] = vf
            argv = [
                *(self.tool.path, "vf", "move", vf.address, "--to", guest.netns),
                *("--name", guest.interface, "--mtu", str(mtu_bytes)),
                *("--owner", self._owner, "--json"),
            ]
            lines.append(f"{shlex.join(argv)} >/dev/null\n")
        done = self._host.run(["sh", "-es"], stdin="".join(lines).encode(), timeout_s=TIMEOUT_S)
        # The shell's failure is that of the program that it ran.
        FinishedProcess(("planewised",), done.exit_code, done.stdout, done.stderr).check()
        return moved

    def take(self) -> ListedVf:
        """Takes an unused VF from the pool, unchanged.

        Raises:
            PlanewiseError: there is none.
        """
        if not self._free:
            raise PlanewiseError(
                f"another VF of {self._nic} on {self._host.place} is needed, and none is free",
                remedy="fewer guests on VFs, or a NIC with more VFs",
            )
        vf = self._free.pop()
        self._held[vf.index] = vf
        return vf

    def bring_up(self, vf: ListedVf, mtu_bytes: int) -> None:
        """Sets up the interface of a VF that was taken, in the host's namespace.

        Raises:
            PlanewiseError: it has none, or it could not be changed.
        """
        argv = ("--to", "home", "--mtu", str(mtu_bytes), "--owner", self._owner)
        self.tool.run("move", vf.address, *argv)

    def bind_vfio(self, vf: ListedVf) -> None:
        """Binds a VF that was taken to vfio-pci, for a virtual machine.

        Raises:
            PlanewiseError: somebody uses it, or its IOMMU group cannot be passed through.
        """
        self.tool.run("bind", vf.address, "vfio-pci", "--owner", self._owner)

    def restore_vf(self, vf: ListedVf) -> None:
        """Returns a VF of `bring_up` or `bind_vfio` to the pool, in its previous state.

        Raises:
            PlanewiseError: a virtual machine still has it.
        """
        if vf.index in self._held:
            self.tool.run("restore", vf.address, "--owner", self._owner)
            self._free.append(self._held.pop(vf.index))

    def return_to_pool(self, index: int) -> None:
        """Takes a VF back from a guest, alive or not.

        Raises:
            PlanewiseError: it could not be moved back.
        """
        vf = self._held[index]
        self.tool.run("release", vf.address)
        self._free.append(self._held.pop(index))

    def close(self) -> None:
        """Restores the state before the pool was set up.

        Raises:
            PlanewiseError: that failed.
        """
        if self._tool is not None:
            self._tool.restore(self._owner)
            self._tool = None
        self._free.clear()
        self._held.clear()


def find_planewised() -> str:
    """Path of planewised on this machine: beside the Python that runs, else on PATH.

    Raises:
        UnsupportedError: there is none.
    """
    return programs.find("planewised")


AnswerT = TypeVar("AnswerT", bound=_Answer)


def _parsed(done: FinishedProcess, model: type[AnswerT]) -> AnswerT:
    return programs.checked(done.json(), model, "planewised")
