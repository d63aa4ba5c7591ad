"""Virtual machines on a host's bridge to which planewised gives VFs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from planewise.testbed.guests.kind import PlacedGuest
from planewise.testbed.guests.vms.booted import machines_on
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.model import Guest, Site, make_guest

MANAGED_PLANE = "virtio-bridge"
"""Their plane beside a VF."""
_FIRST_SLOT = 512
"""Their names and addresses differ from those of the namespaces on the same host."""


def managed_guests(token: str, count: int) -> tuple[Guest, ...]:
    """The responder's virtual machines, with planewised's names. Pure."""
    guests = (
        make_guest(token, "responder", "background", n, MANAGED_PLANE, _FIRST_SLOT + n)
        for n in range(count)
    )
    return tuple(replace(guest, name=guest.netns) for guest in guests)


@contextmanager
def managed_machines(
    state: MachineState,
    site: Site,
    guests: Sequence[Guest],
    platform: VmPlatform,
    options: VmOptions,
) -> Iterator[str]:
    """Runs virtual machines on taps of a host's bridge; they end with the `with` block, which gets
    the socket of their libvirt on the host.

    Raises:
        UnsupportedError: the host has no libvirt, or it does not start.
        PlanewiseError: a machine did not come up.
    """
    machines = machines_on(state, platform, replace(options, managed=True))
    site = replace(site, queues=options.queues)
    placed = [PlacedGuest(guest, site) for guest in guests]
    with ExitStack() as undo:
        undo.callback(machines.libvirt.close)
        for one in placed:
            undo.callback(machines.remove, one)
        machines.prepare(placed, ())
        machines.wake([(one, None) for one in placed])
        yield machines.libvirt.socket
