"""Virtual machines as guests of a testbed; between settings they sleep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from planewise.errors import PlanewiseError
from planewise.testbed.guests.kind import Guests, PlacedGuest
from planewise.testbed.guests.vms import booted
from planewise.testbed.guests.vms.domain import AnyNic, Nic, Passthrough, VmOptions
from planewise.testbed.guests.vms.guests import nic_of, remove_guests
from planewise.testbed.guests.vms.hypervisor import HypervisorGoneError, Libvirt
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.hosts.signals import together
from planewise.testbed.model import Guest
from planewise.testbed.plan import Step, await_up
from planewise.testbed.planes import VmPlane, switch_named


class VirtualMachines(Guests):
    """The virtual machines of one host.

    Raises:
        PlanewiseError: the guest that they are copies of does not boot.
    """

    def __init__(
        self, state: MachineState, options: VmOptions, platform: VmPlatform, parallel: int
    ) -> None:
        """`parallel` of them boot at a time."""
        super().__init__(state)
        self.options = options
        self._parallel = parallel
        self._vms = booted.guests_on(state.host, platform, options)

    @property
    def libvirt(self) -> Libvirt:
        """What runs them."""
        return self._vms.libvirt

    def prepare(self, placed: Sequence[PlacedGuest], steps: Sequence[Step]) -> None:
        """Makes the host side of guests' NICs."""
        state, machine = self.state, self.state.machine
        self._vms.revive()
        if steps:
            nic = machine.bridge_nic if state.switch else machine.nic
            state.host.perform([*steps, await_up(machine.netns, nic)])
        added: list[Step] = []
        for one in placed:
            path, vf_interface = _plane(one), ""
            if path.vfs:
                vf_interface = self._take_vf(one)
            added += path.attach(one.site, one.guest)
            if vf_interface:
                added.append(await_up(machine.netns, vf_interface))
        state.host.perform(added)

    def _take_vf(self, one: PlacedGuest) -> str:
        """Gives a guest a VF; returns its interface on the host, empty where that goes."""
        vfs = self.state.vfs
        vf = one.vf = vfs.take()
        # The VF's own address: its driver in a guest takes no other.
        one.guest = replace(one.guest, mac=vf.config.mac)
        interface = vf.netdev.name if vf.netdev else ""
        one.site = replace(one.site, nic=interface)
        if one.plane.passed_through:
            vfs.bind_vfio(vf)
            return ""
        vfs.bring_up(vf, one.site.mtu_bytes)
        if not interface:
            raise PlanewiseError(
                f"the VF {vf.address} has no interface: its driver is {vf.driver or 'none'}",
                remedy=f"bind its network driver: `planewised vf bind {vf.address} netdev`",
            )
        return interface

    def start(self, pairs: Sequence[tuple[PlacedGuest, Guest]]) -> None:
        self.wake(pairs)
        entries: list[Step] = []
        for one, peer in pairs:
            if one.peer == peer:
                continue
            if one.peer is not None:
                self._vms.set_neighbours(one.guest, neighbours_of(one, peer))
            entries += one.plane.static_neighbours(one.site, one.guest, peer, one.within)
            switch = switch_named(self.state.switch)
            above = one.plane.on_uplink and one.site.uplink != one.site.nic
            if above and switch is not None and not one.within:
                entries.append(switch.static_entry(one.site, one.site.nic, peer.mac))
            one.peer = peer
        self.state.host.perform(entries)

    def wake(self, pairs: Sequence[tuple[PlacedGuest, Guest | None]]) -> None:
        """Wakes guests, and boots new ones, each with its peer as its neighbour.

        Raises:
            PlanewiseError: one did not come up.
        """
        for one, _ in pairs:
            if one.ready:
                self._vms.set_awake(one.guest, True)
        boots = [partial(self._boot, one, peer) for one, peer in pairs if not one.ready]
        together(boots, self._parallel, self._vms.close)

    def _boot(self, one: PlacedGuest, peer: Guest | None) -> None:
        neighbours = None if peer is None else neighbours_of(one, peer)
        self._vms.start(one.guest, self._nic(one), one.site.mtu_bytes, neighbours)
        one.ready = True

    def _nic(self, one: PlacedGuest) -> AnyNic:
        path, guest = _plane(one), one.guest
        if socket := path.socket(one.site, guest):
            return Nic("virtio", guest.mac, socket=socket, queues=one.site.queues)
        if path.model is not None:
            port = path.host_interface(guest)
            return nic_of(path.model, guest, port, self._vms, one.vm_options)
        assert one.vf is not None
        return Passthrough(one.vf.address)

    def suspend(self, placed: Sequence[PlacedGuest]) -> None:
        for one in placed:
            if one.ready:
                with suppress(PlanewiseError):  # it may have ended
                    self._vms.set_awake(one.guest, False)

    def remove(self, placed: PlacedGuest) -> None:
        self._vms.end(placed.guest)
        placed.plane.unplug(self.state, placed)
        if placed.vf is not None:
            self.state.vfs.restore_vf(placed.vf)

    def lost(self, placed: Sequence[PlacedGuest]) -> list[tuple[PlacedGuest, PlanewiseError]]:
        try:
            reasons = self._vms.lost([one.guest for one in placed])
        except HypervisorGoneError as error:
            return [(one, error) for one in placed]
        return [(one, reasons[one.guest]) for one in placed if one.guest in reasons]

    def close(self) -> None:
        self._vms.close()
        if not self.state.machine.netns:  # ports go with a namespace
            remove_guests(self.state.host, self.state.token)


def _plane(placed: PlacedGuest) -> VmPlane:
    assert isinstance(placed.plane, VmPlane)
    return placed.plane


def neighbours_of(placed: PlacedGuest, peer: Guest) -> Mapping[str, str]:
    """Permanent neighbours of a guest: next-hop MACs by address of its peer. Pure."""
    mac = placed.plane.next_hop_mac(placed.site, placed.guest, peer)
    # Background guests send by IPv4 alone.
    addresses = (peer.ipv4, peer.ipv6) if placed.guest.role == "main" else (peer.ipv4,)
    return dict.fromkeys(addresses, mac)
