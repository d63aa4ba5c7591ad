"""The stage of virtual machines that an allocator gives VFs to, on two servers.

Those of the responder alone are virtual machines: requests come from namespaces on the sender's
bridge, so that one clock stamps them all and no machine but the one that answers is in the way. The
namespaces that the setting has at the responder stand idle.
"""

from __future__ import annotations

from dataclasses import replace

from planewise.errors import UnsupportedError
from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design
from planewise.measure.runs.stage import StageFacts
from planewise.measure.runs.vms import options_of
from planewise.measure.station import GuestStage
from planewise.measure.trials.alloc import ALLOC_PLANES
from planewise.testbed.guests.vms.managed import managed_machines
from planewise.testbed.guests.vms.platform import VmPlatform, platform_of, vm_mib
from planewise.testbed.guests.vms.resources import memory_shortage, no_iommu
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.machine import Resources
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.model import IpVersion
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.vfs.allocator import Allocator
from planewise.testbed.vfs.nic import Pf


class ManagedVmStage(GuestStage):
    """See `GuestStage`: trials of the allocator are all that it measures."""

    def __init__(self, design: Design, pair: Pair | None = None, ip_version: IpVersion = 4) -> None:
        super().__init__(design, pair, ip_version)
        self._options = options_of(design)
        self._platform: VmPlatform | None = None

    def facts(self) -> StageFacts:
        """See `GuestStage.facts`; and whether the machines' CPUs are emulated."""
        facts = super().facts()
        return replace(facts, emulated="" if self._platform is None else self._platform.emulated)

    def _setting(self, cell: Cell) -> Setting:
        bridge = ALLOC_PLANES["namespace"]
        return replace(cell.testbed, kind="namespace", plane=bridge, background_plane=bridge)

    def _guests_at_nic(self, setting: Setting) -> int:
        """The machines, and the namespaces that stand idle."""
        return 2 * setting.background_guests

    def _cannot_join(
        self, host: Host, resources: Resources, pf: Pf | None, setting: Setting
    ) -> str:
        """A machine joins a VF and its NIC by itself; the host must be able to pass VFs through."""
        if pf is not None and pf.iommu_group is None:
            return no_iommu(resources.place)
        needs = setting.background_guests, vm_mib(self._options)
        if shortage := memory_shortage(*needs, resources.place, resources.free_mib):
            return shortage
        try:
            self._platform = platform_of(host, self._options.programs)
        except UnsupportedError as error:
            return error.what
        return ""

    def _allocator(self, arrangement: Arrangement, pair: Pair, vfs: int) -> Allocator:
        """The allocator of VFs to as many virtual machines as there are background guests."""
        assert self._platform is not None
        host, site = arrangement.hosts["responder"], arrangement.sites["responder"]
        count = len(arrangement.background("responder"))
        machines = managed_machines(host, site, pair.token, count, self._platform, self._options)
        return Allocator(host, pair.machines["responder"].nic, pair.token, vfs, machines)
