"""Virtual machines on a host's bridge to which planewised gives VFs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial

from planewise.testbed.guests.vms.booted import guests_on
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.guests import nic_of
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.signals import together
from planewise.testbed.model import Guest, Site, make_guest
from planewise.testbed.planes import vm_plane

MANAGED_PLANE = "virtio-bridge"
"""Their plane beside a VF."""
_FIRST_SLOT = 512
"""Their names and addresses differ from those of the namespaces on the same host."""
_WORKERS = 2
"""Machines that a host starts at a time."""


def managed_guests(token: str, count: int) -> tuple[Guest, ...]:
    """The responder's virtual machines, with planewised's names. Pure."""
    guests = (
        make_guest(token, "responder", "background", n, MANAGED_PLANE, _FIRST_SLOT + n)
        for n in range(count)
    )
    return tuple(replace(guest, name=guest.netns) for guest in guests)


@contextmanager
def managed_machines(
    host: Host, site: Site, guests: Sequence[Guest], platform: VmPlatform, options: VmOptions
) -> Iterator[str]:
    """Runs virtual machines on taps of a host's bridge; they end with the `with` block, which gets
    the socket of their libvirt on the host.

    Raises:
        UnsupportedError: the host has no libvirt, or it does not start.
        PlanewiseError: a machine did not come up.
    """
    options, site = replace(options, managed=True), replace(site, queues=options.queues)
    plane = vm_plane(MANAGED_PLANE)
    assert plane.model is not None
    with ExitStack() as undo:
        for guest in guests:
            port = plane.host_interface(guest)
            undo.callback(host.run, ["ip", "link", "delete", port])
            host.perform(plane.attach(site, guest))
        running = undo.enter_context(guests_on(host, platform, options))
        starts = [
            partial(
                running.start,
                guest,
                nic_of(plane.model, guest, plane.host_interface(guest), running),
                site.mtu_bytes,
            )
            for guest in guests
        ]
        together(starts, _WORKERS)
        yield running.libvirt.socket
