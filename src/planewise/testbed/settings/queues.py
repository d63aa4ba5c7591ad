"""Setting `queues`: queue pairs of virtual machines' virtio NICs."""

from __future__ import annotations

from planewise.testbed.planes import Plane, VmPlane
from planewise.testbed.settings.host_setting import HostSetting, between


def _refusal(plane: Plane) -> str:
    virtio = isinstance(plane, VmPlane) and plane.model == "virtio"
    return "" if virtio else f"the guest's interface on {plane.name} is no virtio NIC"


SETTING = HostSetting(
    "queues",
    "queue pairs of the virtual machines' virtio NICs, at most one a virtual CPU",
    levels="1 to 64",
    accepts=between(1, 64),
    places=(),
    refuses=_refusal,
    vm_options=lambda level: {"queues": int(level)},
)
