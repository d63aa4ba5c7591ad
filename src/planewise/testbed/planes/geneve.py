"""Plane `geneve`: as `vxlan`, with a Geneve tunnel (RFC 8926), which OVN and Cilium use."""

from __future__ import annotations

from typing import ClassVar

from planewise.testbed.planes.vxlan import VxlanPlane


class GenevePlane(VxlanPlane):
    """Linux chooses the tunnel's source address by its route."""

    name = "geneve"
    rank = 37
    options: ClassVar[str] = "type geneve id 47 dstport 6081"


PLANE = GenevePlane()
