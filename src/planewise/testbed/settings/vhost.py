"""Setting `vhost`: who serves virtual machines' virtio NICs, the host's kernel or QEMU."""

from __future__ import annotations

from planewise.testbed.planes import Plane, VmPlane
from planewise.testbed.settings.host_setting import HostSetting


def _refusal(plane: Plane) -> str:
    served = isinstance(plane, VmPlane) and plane.model == "virtio" and plane.device
    return "" if served else f"the guest's interface on {plane.name} is no virtio tap"


SETTING = HostSetting(
    "vhost",
    "the host's kernel serves the virtual machines' virtio NICs (vhost-net)",
    places=(),
    refuses=_refusal,
    vm_options=lambda level: {"vhost": level == "on"},
)
