"""The allocator of a design: gives VFs of the responder's NIC to guests or virtual machines there.

Only the responder's guests are virtual machines. Requests come from namespaces on the sender's
bridge, so that one clock stamps them all and no machine but the one that answers is in the way; the
namespaces that the setting has at the responder stay idle.
"""

from __future__ import annotations

from dataclasses import replace

from planewise.errors import UnsupportedError
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import AllocPart
from planewise.measure.trials.alloc import ALLOC_PLANES
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.managed import managed_machines
from planewise.testbed.guests.vms.platform import VmPlatform, platform_of, vm_mib
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.refusals import memory_shortage, no_iommu
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.testbed import Testbed
from planewise.testbed.vfs.allocator import Allocator, bonding_shortage, shortage
from planewise.testbed.vfs.nic import read_pf


class Allocators:
    """Allocators for the cells of a design on two servers."""

    def __init__(self, part: AllocPart, options: VmOptions, pair: Pair) -> None:
        self._part = part
        self._options = options
        self._pair = pair
        self._machine = pair.machines["responder"]
        self.platform: VmPlatform | None = None
        """Of the responder's virtual machines, once a cell needs it."""

    @staticmethod
    def setting(cell: Cell) -> Setting:
        """What the testbed builds for a cell."""
        if cell.guest != "vm":
            return cell.testbed
        bridge = ALLOC_PLANES["namespace"]
        return replace(cell.testbed, kind="namespace", plane=bridge, background_plane=bridge)

    def shortage(self, testbed: Testbed, cell: Cell) -> str:
        """Why VFs cannot be given to a cell's guests; empty where they can."""
        resources, host = testbed.resources("responder"), self._machine.host
        pf = read_pf(host, self._machine.nic) if resources.vfs else None
        machines = cell.guest == "vm"
        # Beside virtual machines stand as many idle namespaces.
        at_nic = cell.background_guests * (2 if machines else 1)
        if reason := shortage(resources, pf, self._part.vfs, at_nic):
            return reason
        if not machines:
            return bonding_shortage(host)
        if pf is not None and pf.iommu_group is None:
            return no_iommu(resources.place)
        needs = cell.background_guests, vm_mib(self._options)
        if reason := memory_shortage(*needs, resources.place, resources.free_mib):
            return reason
        try:
            self.platform = platform_of(host, self._options.programs)
        except UnsupportedError as error:
            return error.what
        return ""

    def make(self, cell: Cell, arrangement: Arrangement, vfs: int) -> Allocator:
        """The allocator of a cell's setting; entering it starts the virtual machines, if any."""
        host, nic, token = arrangement.hosts["responder"], self._machine.nic, self._pair.token
        guests = arrangement.background("responder")
        if cell.guest != "vm":
            return Allocator(host, nic, token, vfs, guests)
        assert self.platform is not None
        site = arrangement.sites["responder"]
        machines = managed_machines(host, site, token, len(guests), self.platform, self._options)
        return Allocator(host, nic, token, vfs, machines)
