"""A virtual machine that routes between a generator's two ports. Knows no generator, no testbed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from planewise.testbed.chains.machines import router_script, run_script
from planewise.testbed.chains.routing import router_settings
from planewise.testbed.guests.vms import booted
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.guests import HostGuests, nic_of
from planewise.testbed.guests.vms.platform import platform_of
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.model import GUEST_INTERFACE, Guest
from planewise.testbed.plan import set_sysctl

RING_PACKETS = (256, 512, 1024)
"""What QEMU takes for the receive ring of a virtio NIC (hw/net/virtio-net.c)."""


class RouterMachine:
    """Runs one router; leaving its `with` block ends it, and its libvirt.

    Raises:
        UnsupportedError: no QEMU, libvirt or privilege here, or no kernel for the guest.
    """

    def __init__(self, host: LocalHost, cpus: tuple[int, ...] = ()) -> None:
        """`cpus` are those of this machine that its virtual CPU may run on; empty: all."""
        options = VmOptions(main_cpus=cpus)
        platform = platform_of(host)
        self.emulated = platform.emulated
        """Why its times are not those of hardware; empty where they are."""
        saved = booted.saved_for(host, platform, options)
        self._guests = HostGuests(host, platform, options, saved=saved)

    def __enter__(self) -> Self:
        self._guests.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._guests.close()

    def start(
        self,
        guest: Guest,
        neighbours: Mapping[str, str],
        port: str,
        mtu_bytes: int,
        ring_packets: int | None = None,
    ) -> None:
        """Starts `guest` behind the tap `port`, and has it forward IPv4 and IPv6.

        Raises:
            PlanewiseError: it does not come up, or its kernel refuses.
        """
        nic = replace(nic_of("virtio", guest, port, self._guests), ring_packets=ring_packets)
        self._guests.start(guest, nic, mtu_bytes, neighbours)
        ipv6 = set_sysctl(guest.netns, "net/ipv6/conf/all/forwarding", "1")
        steps = (*router_settings(guest.netns, GUEST_INTERFACE), ipv6)
        run_script(self._guests, guest, router_script(steps, guest.netns))
