"""Virtual machines as guests of a testbed; between settings they sleep."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from planewise.boot import packages
from planewise.errors import PlanewiseError
from planewise.testbed.guests.kind import Guests, PlacedGuest
from planewise.testbed.guests.vms.agent import GuestAgent
from planewise.testbed.guests.vms.domain import (
    AnyNic,
    Nic,
    Passthrough,
    VmOptions,
    domain_xml,
    nic_xml,
)
from planewise.testbed.guests.vms.guests import (
    Saved,
    boot_limit_s,
    last_words,
    network_of,
    nic_of,
    remove_guests,
)
from planewise.testbed.guests.vms.hypervisor import GuestGoneError, HypervisorGoneError, Libvirt
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.hosts.signals import together
from planewise.testbed.model import Guest
from planewise.testbed.plan import Step, await_up
from planewise.testbed.planes import VmPlane, switch_named

_POLL_S = 0.05
_LOOK_S = 0.2
_CONSOLE_BYTES = 4096
_COPY_S = 300.0

_JOIN = '{ cat; tail -c +"$2" "$3"; } >"$1"'
"""Makes file $1 of stdin and of file $3 from byte $2 on."""


class VirtualMachines(Guests):
    """The virtual machines of one host, whose processes can start in them by their `netns`."""

    def __init__(
        self,
        state: MachineState,
        options: VmOptions,
        platform: VmPlatform,
        parallel: int = 2,
        saved: Saved | None = None,
    ) -> None:
        """`parallel` of them boot at a time.

        `saved`: a guest of these options, in a file of the host, to wake instead of booting.
        """
        super().__init__(state)
        self.options = options
        self.libvirt = Libvirt(state.host)
        """What runs them."""
        self._platform = platform
        self._parallel = parallel
        self._saved = saved
        self._agents: dict[str, GuestAgent] = {}

    def prepare(self, placed: Sequence[PlacedGuest], steps: Sequence[Step]) -> None:
        """Makes the host side of guests' NICs; starts libvirt where it does not run."""
        state, machine = self.state, self.state.machine
        if not self.libvirt.alive:
            self.libvirt.restart()
        if steps:
            nic = machine.bridge_nic if state.switch else machine.nic
            state.host.perform([*steps, await_up(machine.netns, nic)])
        added: list[Step] = []
        for one in placed:
            path, vf_interface = _plane(one), ""
            if path.vfs:
                vf_interface = self._take_vf(one)
            if not one.socket:
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
                self.set_neighbours(one.guest, neighbours_of(one, peer))
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
            PlanewiseError: one did not come up; it is left as it is.
        """
        for one, _ in pairs:
            if one.asleep:
                self.libvirt.resume(one.guest.netns)
                one.asleep = False
        boots = [partial(self._start, one, peer) for one, peer in pairs if not one.ready]
        together(boots, self._parallel, self._close)

    def _start(self, one: PlacedGuest, peer: Guest | None) -> None:
        """Starts a guest, and returns when its agent answers and its NIC has a link."""
        guest, begun = one.guest, time.monotonic()
        agent = self.boot(guest)
        self.libvirt.attach(guest.netns, nic_xml(self._nic(one)))
        # Polled from the host: a guest that polls takes its own CPU time.
        interface = f"/sys/class/net/{guest.interface}"
        self._await_file(guest, agent, f"{interface}/address", "", begun)
        neighbours = None if peer is None else neighbours_of(one, peer)
        agent.set_network(guest.interface, network_of(guest, one.site.mtu_bytes, neighbours))
        self._await_file(guest, agent, f"{interface}/carrier", "1", begun)
        one.ready = True

    def boot(self, guest: Guest) -> GuestAgent:
        """Starts a guest without a NIC, or wakes the saved one under its name.

        Raises:
            PlanewiseError: it did not come up; it is left as it is.
        """
        begun, name, host = time.monotonic(), guest.netns, self.state.host
        agent = GuestAgent(self.libvirt, name, host.directory, partial(self._end_error, guest))
        self._agents[name] = host.agents[name] = agent
        xml = domain_xml(guest, self._platform, self.options, self._console(guest))
        if self._saved is None:
            self.libvirt.start(xml, name)
        else:
            self._restore(self._saved, name, xml)
        while not agent.ready():
            if time.monotonic() - begun > boot_limit_s(host):
                raise self._late_error(guest, f"the virtual machine {guest.name}")
            agent.pause(_POLL_S)
        return agent

    def _restore(self, saved: Saved, name: str, xml: str) -> None:
        host = self.state.host
        file = f"{host.directory}/{name}.save"
        words = ("sh", file, str(saved.stream_at + 1), str(saved.path))
        try:
            head = saved.header(xml)
            host.run(["sh", "-c", _JOIN, *words], stdin=head, timeout_s=_COPY_S).check()
            self.libvirt.restore(file, name)
        finally:
            host.run(["rm", "-f", file])

    def _await_file(
        self, guest: Guest, agent: GuestAgent, path: str, content: str, begun: float
    ) -> None:
        """Waits until a file of a guest exists and starts with `content`."""
        while True:
            try:
                if agent.read(path).decode().startswith(content):
                    return
            except (GuestGoneError, HypervisorGoneError):
                raise
            except PlanewiseError:
                pass  # not there yet, or not yet to be read
            if time.monotonic() - begun > boot_limit_s(self.state.host):
                raise self._late_error(guest, f"the NIC of the virtual machine {guest.name}")
            agent.pause(_LOOK_S)

    def set_neighbours(self, guest: Guest, neighbours: Mapping[str, str]) -> None:
        """Sets permanent neighbours of a guest: MACs by IP address.

        Raises:
            PlanewiseError: the guest does not answer, or refuses.
        """
        words = [f"neighbour={address},{mac}" for address, mac in neighbours.items()]
        self._agents[guest.netns].set_network(guest.interface, words)

    def _nic(self, one: PlacedGuest) -> AnyNic:
        path, guest = _plane(one), one.guest
        if socket := one.socket or path.socket(one.site, guest):
            return Nic("virtio", guest.mac, socket=socket, queues=one.site.queues)
        if path.model is not None:
            differing: Mapping[str, Any] = one.vm_options
            options = replace(self.options, **differing)
            return nic_of(path.model, guest, path.host_interface(guest), self._platform, options)
        assert one.vf is not None
        return Passthrough(one.vf.address)

    def suspend(self, placed: Sequence[PlacedGuest]) -> None:
        for one in placed:
            if one.ready and not one.asleep:
                with suppress(PlanewiseError):  # it may have ended
                    self.libvirt.suspend(one.guest.netns)
                    one.asleep = True

    def remove(self, placed: PlacedGuest) -> None:
        name = placed.guest.netns
        if self.libvirt.alive:
            self.libvirt.destroy(name)
        self._forget(name)
        if not placed.socket:
            placed.plane.unplug(self.state, placed)
        if placed.vf is not None:
            self.state.vfs.restore_vf(placed.vf)

    def lost(self, placed: Sequence[PlacedGuest]) -> list[tuple[PlacedGuest, PlanewiseError]]:
        try:
            states = self.libvirt.states()
        except HypervisorGoneError as error:
            return [(one, error) for one in placed]
        gone = [one for one in placed if one.guest.netns not in states]
        return [(one, self._end_error(one.guest)) for one in gone]

    def close(self) -> None:
        self._close()
        if not self.state.machine.netns:  # ports go with a namespace
            remove_guests(self.state.host, self.state.token)

    def _close(self) -> None:
        self.libvirt.close()
        for name in list(self._agents):
            self._forget(name)

    def _forget(self, name: str) -> None:
        self._agents.pop(name, None)
        self.state.host.agents.pop(name, None)

    def _late_error(self, guest: Guest, what: str) -> PlanewiseError:
        limit_s = boot_limit_s(self.state.host)
        return PlanewiseError(
            f"{what} was not ready within {limit_s:g} s; {self._last_words(guest)}",
            remedy=self._end_error(guest).remedy,
        )

    def _console(self, guest: Guest) -> str:
        return f"{self.state.host.directory}/{guest.netns}.console"

    def _end_error(self, guest: Guest) -> GuestGoneError:
        """Why a guest ended, by its console, which is kept."""
        log = packages.cache_directory() / f"failed-{guest.name}.console"
        with suppress(PlanewiseError, OSError):
            scratch = log.with_name(f".{log.name}-{os.getpid()}")
            scratch.write_bytes(self.state.host.read(self._console(guest)))
            scratch.rename(log)
        return GuestGoneError(
            f"the virtual machine {guest.name} ended; {self._last_words(guest)}",
            remedy=f"its console is kept in {log}; the kernel's log (`dmesg`) reports a lack of "
            "memory",
        )

    def _last_words(self, guest: Guest) -> str:
        lines: list[str] = []
        with suppress(PlanewiseError):
            tail = ["tail", "-c", str(_CONSOLE_BYTES), self._console(guest)]
            lines = last_words(self.state.host.run(tail).check().stdout)
        return f"its console ends with: {lines[-1]}" if lines else "its console is empty"


def _plane(placed: PlacedGuest) -> VmPlane:
    assert isinstance(placed.plane, VmPlane)
    return placed.plane


def neighbours_of(placed: PlacedGuest, peer: Guest) -> Mapping[str, str]:
    """Permanent neighbours of a guest: next-hop MACs by address of its peer. Pure."""
    mac = placed.plane.next_hop_mac(placed.site, placed.guest, peer)
    # Background guests send by IPv4 alone.
    addresses = (peer.ipv4, peer.ipv6) if placed.guest.role == "main" else (peer.ipv4,)
    return dict.fromkeys(addresses, mac)
