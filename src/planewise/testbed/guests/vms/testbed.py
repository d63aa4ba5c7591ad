"""Virtual machines on a pair of hosts: servers, a lab's hosts, or two namespaces of this machine.

Builds guests behind planes on each host's NIC as settings ask for them, VFs among the planes, and
keeps them asleep for the next setting. Knows no measurement.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Self

from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.testbed.guests.vms import booted
from planewise.testbed.guests.vms.arrangement import (
    VmArrangement,
    VmRequest,
    guest_in,
    on_nic,
    vm_requests,
)
from planewise.testbed.guests.vms.cleanup import remove_guests
from planewise.testbed.guests.vms.domain import AnyNic, Passthrough, VhostUserNic, VmOptions
from planewise.testbed.guests.vms.guests import HostGuests, Started, nic_of
from planewise.testbed.guests.vms.hypervisor import Hypervisor
from planewise.testbed.guests.vms.platform import VmPlatform, platform_of, vm_mib
from planewise.testbed.guests.vms.resources import SPARE_MIB, VmResources, shortage, survey_vms
from planewise.testbed.guests.vms.saved import Saved
from planewise.testbed.hosts.machine import Machine, MachineState, remove_traces
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.hosts.together import together
from planewise.testbed.model import ETHERNET_BYTES, HOSTS, Guest, HostRole, Site, other_host
from planewise.testbed.plan import Step, accept_address, await_up, set_mtu, set_up
from planewise.testbed.planes import PLANES, Switch, VmPlane, switch_named, vm_plane
from planewise.testbed.setting import Setting
from planewise.testbed.vfs.nic import ListedVf


@dataclass
class _Placed:
    """A guest that was made on a machine."""

    guest: Guest
    vf: ListedVf | None = None
    running: bool = False
    """Whether it has come up."""
    neighbours: Mapping[str, str] = field(default_factory=dict)
    """Permanent neighbours that were set in it: MACs by address of its peer."""
    peer: tuple[str, str] = ("", "")
    """Address and MAC of the peer that its host's switch was given."""


class _HostState(MachineState):
    """State of one machine, with its virtual machines."""

    def __init__(self, machine: Machine, role: HostRole, token: str) -> None:
        super().__init__(machine, role, token)
        self.placed: dict[VmRequest, _Placed] = {}
        """The most recently used are the last."""
        self.guests: HostGuests | None = None
        self.slots: dict[HostRole, int] = {}
        self.prepared: dict[str, tuple[VmPlane, Site]] = {}
        """Planes that are prepared, with the site, by `Plane.preparation`."""
        self.lock = threading.Lock()


def _initial_states(pair: Pair) -> dict[HostRole, _HostState]:
    return {role: _HostState(machine, role, pair.token) for role, machine in pair.machines.items()}


class VmTestbed:
    """Two machines, and the virtual machines that settings ask for.

    Everything that it makes carries the pair's token; `close` removes it.
    """

    def __init__(
        self,
        pair: Pair,
        mtu_bytes: int,
        options: VmOptions = VmOptions(),  # noqa: B008 - a frozen value
        *,
        parallel: int | None = None,
        on_ready: Callable[[Started], None] = lambda _: None,
        platform: VmPlatform | None = None,
    ) -> None:
        """`parallel` limits the guests of a host that boot at a time (None: two a CPU).

        `platform` is that of both hosts (None: found at the first use).
        """
        self.options = options
        self._pair = pair
        self._token = pair.token
        self._mtu_bytes = mtu_bytes
        self._parallel = parallel
        self._on_ready = on_ready
        self._hosts_a_machine = 1 if pair.separate else len(HOSTS)
        self._states = _initial_states(pair)
        self._platforms = {} if platform is None else dict.fromkeys(HOSTS, platform)
        self._resources: dict[HostRole, VmResources] = {}
        self._with_vfs = False
        self._saved: dict[HostRole, Saved | None] = {}

    def expect(self, settings: Iterable[Setting]) -> dict[Setting, str]:
        """Why settings cannot be built, by setting; those that can be are left out.

        Changes nothing. One call takes all settings of a run: where one needs VFs, the NIC has them
        all the time, so that every setting finds the same NIC.
        """
        settings = tuple(settings)
        self._resources.clear()
        names = {name for setting in settings for name in setting.planes}
        self._with_vfs = any(plane.vfs for plane in PLANES if plane.name in names)
        reasons = {setting: self._unavailable_reason(setting) for setting in settings}
        return {setting: reason for setting, reason in reasons.items() if reason}

    def platform(self, role: HostRole) -> VmPlatform:
        """The platform of a machine; the accelerator is tried once.

        Raises:
            UnsupportedError: no QEMU or libvirt there, no kernel for the guests here.
        """
        if role not in self._platforms:
            host = self._states[role].machine.host
            self._platforms[role] = platform_of(host, self.options.programs)
        return self._platforms[role]

    def resources(self, role: HostRole) -> VmResources:
        """A machine's resources at the first call."""
        if role not in self._resources:
            machine = self._states[role].machine
            self._resources[role] = survey_vms(machine, self._with_vfs, self._hosts_a_machine)
        return self._resources[role]

    @contextmanager
    def arrange(self, setting: Setting) -> Iterator[VmArrangement]:
        """Builds a setting: starts missing guests, and wakes the others that it asks for.

        Raises:
            UnsupportedError: a machine lacks something.
            PlanewiseError: a guest could not be started.
        """
        states = self._states_of(setting)
        requests = {role: tuple(vm_requests(setting, role)) for role in HOSTS}
        work: dict[HostRole, list[VmRequest]] = {}
        for role, state in states.items():
            work.setdefault(state.role, []).extend(requests[role])
        try:
            replaced = self._start(setting, work)
            self._set_neighbours(setting)
            mains = {role: states[role].placed[requests[role][0]] for role in HOSTS}
            yield VmArrangement(
                setting,
                {role: self._guests(states[role]).host for role in HOSTS},
                {role: placed.guest for role, placed in mains.items()},
                {
                    role: tuple(states[role].placed[key].guest for key in requests[role][1:])
                    for role in HOSTS
                },
                {
                    role: self._way_out(states[role], requests[role][0], placed)
                    for role, placed in mains.items()
                },
                {
                    role: vm_plane(setting.plane).host_interface(placed.guest)
                    for role, placed in mains.items()
                },
                replaced,
            )
        finally:
            self._suspend_guests()

    def check(self, setting: Setting) -> None:
        """Does nothing while all guests of a setting live.

        Raises:
            GuestGoneError: one ended.
            HypervisorGoneError: a libvirt did, and its guests with it.
        """
        for role, state in self._states_of(setting).items():
            if state.guests is not None:
                placed = [state.placed.get(request) for request in vm_requests(setting, role)]
                state.guests.check(vm.guest for vm in placed if vm is not None and vm.running)

    def hypervisor(self, role: HostRole) -> Hypervisor:
        """The libvirt that runs the guests of a host."""
        return self._guests(self._states[role]).hypervisor

    def close(self) -> None:
        """Removes everything, also when a part of it fails; the next setting builds anew.

        Raises:
            PlanewiseError: something could not be removed.
        """
        states, self._states = self._states, _initial_states(self._pair)
        self._saved.clear()
        together([partial(self._clear, state) for state in states.values()])

    def _clear(self, state: _HostState) -> None:
        with ExitStack() as last:
            # Backwards: guests, their ports, then VFs return and switches end, and bridges go.
            lasting = not state.machine.netns  # ports and bridges go with a namespace
            if lasting:
                last.callback(remove_traces, state.host, state.machine.nic, self._token)
            last.callback(state.close)
            if lasting:
                last.callback(remove_guests, state.host, self._token)
            if state.guests is not None:
                last.callback(state.guests.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _unavailable_reason(self, setting: Setting) -> str:
        try:
            for name in sorted(setting.planes):
                most = vm_plane(name).most_mtu_bytes
                if most is not None and self._mtu_bytes > most:
                    return (
                        f"the plane {name} has frames of up to {most + ETHERNET_BYTES} bytes, as "
                        "the device by which its switch has the NIC takes no larger ones"
                    )
            if setting.conflict:
                return setting.conflict
            for role in dict.fromkeys(state.role for state in self._states_of(setting).values()):
                guest_mib = vm_mib(self.options)
                reason = shortage(setting, self.resources(role), self._with_vfs, guest_mib)
                if reason:
                    return reason
                self.platform(role)
        except (BadInputError, UnsupportedError) as error:
            return error.what
        return ""

    def _states_of(self, setting: Setting) -> Mapping[HostRole, _HostState]:
        states = self._states
        return dict.fromkeys(HOSTS, states["sender"]) if setting.within_host else states

    def _start(
        self, setting: Setting, work: Mapping[HostRole, Sequence[VmRequest]]
    ) -> tuple[Guest, ...]:
        """Starts and wakes guests, by role of their machine; returns those that had ended."""
        replaced: list[Guest] = []
        for role in work:
            self._saved_on(role)  # booted for all hosts together, and where it fails, once

        def prepare(role: HostRole) -> None:
            replaced.extend(self._prepare(self._states[role], work[role]))

        together([partial(prepare, role) for role in work])
        peers = {request: peer for _, request, peer in self._peers(setting)}
        boots = [partial(self._boot_all, self._states[role], peers) for role in work]
        together(boots, abort=self._end_guests)
        return tuple(replaced)

    # One machine.

    def _prepare(self, state: _HostState, requests: Sequence[VmRequest]) -> list[Guest]:
        """Makes the ports of missing guests, and wakes the others; returns those that had ended."""
        guests = self._guests(state)
        for switch in _switches(state.switches):
            switch.resume(state)
        replaced = self._remove_ended(state)
        if self._with_vfs:
            _ = state.vfs  # the NIC has them all the time
        self._attach_nic(state, requests)
        missing = [request for request in requests if request not in state.placed]
        self._make_room(state, requests, missing)
        for request in requests:
            if request in state.placed:
                guests.set_awake(state.placed[request].guest, True)
                state.placed[request] = state.placed.pop(request)
        for request in missing:
            self._place(state, request)
        for switch in _switches(state.switches - {request.switch for request in requests}):
            switch.pause(state)
        return [state.placed[request].guest for request in missing if request in replaced]

    def _remove_ended(self, state: _HostState) -> set[VmRequest]:
        """Removes guests that ended or never came up, with their VFs; returns the former."""
        by_guest = {placed.guest: request for request, placed in state.placed.items()}
        ended = {by_guest[guest] for guest in self._guests(state).ended(by_guest)}
        half_built = {request for request, placed in state.placed.items() if not placed.running}
        for request in ended | half_built:
            self._remove(state, request)
        return ended - half_built

    def _make_room(
        self, state: _HostState, requests: Sequence[VmRequest], missing: Sequence[VmRequest]
    ) -> None:
        """Ends idle guests, the least recently used first, until the missing ones have room."""
        idle = [request for request in state.placed if request not in requests]

        def lacks_vfs() -> bool:
            needed = sum(vm_plane(request.plane).vfs for request in missing)
            return needed > 0 and state.vfs.free < needed

        def lacks_memory() -> bool:
            free_mib = self.resources(state.role).free_mib - SPARE_MIB
            guests = len(state.placed) + len(missing)
            return guests * vm_mib(self.options) > free_mib / self._hosts_a_machine

        while idle and lacks_vfs():
            holders = [request for request in idle if state.placed[request].vf is not None]
            if not holders:
                break
            idle.remove(holders[0])
            self._remove(state, holders[0])
        while idle and lacks_memory():
            self._remove(state, idle.pop(0))

    def _attach_nic(self, state: _HostState, requests: Sequence[VmRequest]) -> None:
        """Sets the NICs up, makes one a port of the guests' switch, and prepares their planes."""
        machine = state.machine
        switch = next((request.switch for request in requests if request.switch), "")
        own_bridge_nic = machine.bridge_nic != machine.nic
        if not switch and (own_bridge_nic or not any(map(on_nic, requests))):
            switch = state.switch  # no guest needs another
        steps: list[Step] = []
        if switch != state.switch:
            steps += self._change_switch(state, switch)
        if not state.nic_up:
            for nic in dict.fromkeys((machine.nic, machine.bridge_nic)):
                if self._mtu_bytes != 1500:
                    steps.append(set_mtu(machine.netns, nic, self._mtu_bytes))
                steps.append(set_up(machine.netns, nic))
        for request in requests:
            steps += self._prepare_plane(state, vm_plane(request.plane), self._site(state, request))
        if steps:
            awaited = machine.bridge_nic if switch else machine.nic
            state.perform([*steps, await_up(machine.netns, awaited)])
        state.switch, state.nic_up = switch, True

    def _change_switch(self, state: _HostState, name: str) -> list[Step]:
        """Steps that make the NIC a port of another switch, or of none; makes the switch."""
        machine = state.machine
        if machine.bridge_nic == machine.nic:
            # A macvtap and a switch cannot share a NIC, nor does one follow the other.
            for request in [request for request in state.placed if on_nic(request)]:
                if vm_plane(request.plane).on_uplink:
                    self._remove(state, request)
        steps: list[Step] = []
        for plane, prepared_site in state.prepared.values():
            steps += plane.withdraw(prepared_site)
        state.prepared.clear()
        previous, switch = switch_named(state.switch), switch_named(name)
        if previous is not None:
            steps += previous.release_nic(self._switch_site(state))
        for placed in state.placed.values():
            placed.peer = ("", "")  # a port's static entries go with it
        if switch is not None:
            if switch.name not in state.switches:
                state.perform(steps)
                self._end_rivals(state, switch)
                steps = list(switch.create(state, self._switch_site(state)))
                state.switches.add(switch.name)
            steps += switch.add_nic(self._switch_site(state))
        return steps

    def _end_rivals(self, state: _HostState, switch: Switch) -> None:
        """Ends switches that cannot run beside `switch`, with their guests."""
        for rival in _switches(state.switches):
            if switch.user_space and rival.user_space:
                for guest in [guest for guest in state.placed if guest.switch == rival.name]:
                    self._remove(state, guest)
                state.end_program(rival.name)

    def _prepare_plane(self, state: _HostState, plane: VmPlane, site: Site) -> tuple[Step, ...]:
        """Steps that prepare a plane on its uplink, and withdraw it from the previous one."""
        earlier = state.prepared.get(plane.preparation)
        if earlier is not None and earlier[1].uplink == site.uplink:
            return ()
        state.prepared[plane.preparation] = (plane, site)
        withdrawal = () if earlier is None else earlier[0].withdraw(earlier[1])
        return (*withdrawal, *plane.prepare(site))

    def _place(self, state: _HostState, request: VmRequest) -> None:
        """Makes the host side of a guest's attachment."""
        plane = vm_plane(request.plane)
        guest = self._guest(state, request)
        site = self._site(state, request)
        vf = None
        if plane.vfs:
            vf = state.vfs.take()
            # The VF's own address: its driver in a guest takes no other.
            guest = replace(guest, mac=vf.config.mac)
        state.placed[request] = _Placed(guest, vf)
        steps: list[Step] = []
        if vf is None:
            steps += plane.attach(site, guest, self.options.queues)
            if self._with_vfs and plane.switch is not None:
                # With VFs, a NIC's promiscuous mode may not do.
                steps.append(accept_address(site.netns, site.nic, guest.mac))
        elif plane.passed_through:
            state.vfs.bind_vfio(vf)
        else:
            state.vfs.bring_up(vf, self._mtu_bytes)
            interface = _interface(vf)
            steps += plane.attach(site, guest, self.options.queues, interface)
            steps.append(await_up(site.netns, interface))
        state.perform(steps)

    def _boot_all(self, state: _HostState, peers: Mapping[VmRequest, Guest]) -> None:
        """Starts all guests that do not run yet, some at a time."""
        missing = [request for request, placed in state.placed.items() if not placed.running]
        if missing:
            parallel = self._parallel or (
                2 * self.resources(state.role).cpus // self._hosts_a_machine
            )
            workers = min(len(missing), max(1, parallel))
            boots = [partial(self._boot, state, request, peers[request]) for request in missing]
            together(boots, workers)

    def _boot(self, state: _HostState, request: VmRequest, peer: Guest) -> None:
        placed, guests = state.placed[request], self._guests(state)
        nic = _nic(vm_plane(request.plane), self._site(state, request), placed, guests)
        neighbours = self._neighbours(state, request, peer)
        started = guests.start(placed.guest, nic, self._mtu_bytes, neighbours)
        placed.running, placed.neighbours = True, neighbours
        self._on_ready(started)

    def _neighbours(self, state: _HostState, request: VmRequest, peer: Guest) -> Mapping[str, str]:
        """Permanent neighbours of a guest: next-hop MACs by address of its peer."""
        guest = state.placed[request].guest
        mac = vm_plane(request.plane).next_hop_mac(self._site(state, request), guest, peer)
        # Background guests send by IPv4 alone.
        addresses = (peer.ipv4, peer.ipv6) if request.use == "main" else (peer.ipv4,)
        return dict.fromkeys(addresses, mac)

    def _remove(self, state: _HostState, request: VmRequest) -> None:
        """Ends a guest, and removes the host side of its attachment."""
        placed = state.placed[request]
        plane = vm_plane(request.plane)
        self._guests(state).end(placed.guest)
        plane.detach(state, placed.guest)
        if placed.vf is not None:
            state.vfs.restore_vf(placed.vf)
        del state.placed[request]

    def _end_guests(self) -> None:
        for state in self._states.values():
            if state.guests is not None:
                state.guests.close()

    def _suspend_guests(self) -> None:
        """Suspends all guests and switches; guests that ended are ignored."""
        for state in self._states.values():
            for placed in state.placed.values():
                if placed.running and state.guests is not None:
                    with suppress(PlanewiseError):
                        state.guests.set_awake(placed.guest, False)
            for switch in _switches(state.switches):  # after guests, which ask it as they stop
                with suppress(PlanewiseError):
                    switch.pause(state)

    def _guests(self, state: _HostState) -> HostGuests:
        with state.lock:
            if state.guests is None:
                platform, saved = self.platform(state.role), self._saved_on(state.role)
                guests = HostGuests(state.host, platform, self.options, saved=saved)
                state.guests = guests.__enter__()
            return state.guests

    def _saved_on(self, role: HostRole) -> Saved | None:
        if role not in self._saved:
            host = self._states[role].machine.host
            self._saved[role] = booted.saved_for(host, self.platform(role), self.options)
        return self._saved[role]

    def _site(self, state: _HostState, request: VmRequest) -> Site:
        """A host as the plane of a guest sees it."""
        site = self._switch_site(state)
        switch = switch_named(request.switch)
        if switch is not None:
            return site.on(switch.interface(site))
        return replace(site, nic=state.machine.nic, uplink=state.machine.nic)

    def _switch_site(self, state: _HostState) -> Site:
        """A host as a switch sees it."""
        machine, peer = state.machine, other_host(state.role)
        return Site(
            state.role,
            machine.netns,
            machine.bridge_nic,
            self._mtu_bytes,
            machine.bridge_nic,
            machine.bridge,
            nic_mac=self.resources(state.role).mac,
            peer_nic_mac=self.resources(peer).mac,
            directory=state.directory,
        )

    def _way_out(self, state: _HostState, request: VmRequest, placed: _Placed) -> Site:
        """The host with the interface by which a main guest's frames leave: NIC or VF."""
        site = self._site(state, request)
        if placed.vf is None:
            return site
        return replace(site, nic=placed.vf.netdev.name if placed.vf.netdev else "")

    def _guest(self, state: _HostState, request: VmRequest) -> Guest:
        slot = state.slots.get(request.role, 0)
        state.slots[request.role] = slot + 1
        return guest_in(
            self._token, slot, request.role, request.use, request.index, request.plane, state.role
        )

    # Both.

    def _peers(self, setting: Setting) -> Iterator[tuple[_HostState, VmRequest, Guest]]:
        """The requests of a setting, with the state of their host and their peer."""
        states = self._states_of(setting)
        for role, other in zip(HOSTS, reversed(HOSTS), strict=True):
            pairs = zip(vm_requests(setting, role), vm_requests(setting, other), strict=True)
            for request, peer_request in pairs:
                yield states[role], request, states[other].placed[peer_request].guest

    def _set_neighbours(self, setting: Setting) -> None:
        """Sets neighbours in guests and forwarding entries in switches, against broadcasts.

        Of background guests, too: their requests would be counted as their load.
        """
        steps: dict[HostRole, list[Step]] = {}
        for state, request, peer in self._peers(setting):
            placed, peer_addresses = state.placed[request], (peer.ipv4, peer.mac)
            neighbours = self._neighbours(state, request, peer)
            if placed.neighbours != neighbours:
                self._guests(state).set_neighbours(placed.guest, neighbours)
                placed.neighbours = neighbours
            if placed.peer != peer_addresses:
                plane, site = vm_plane(request.plane), self._site(state, request)
                entries = steps.setdefault(state.role, [])
                entries += plane.introduce(site, placed.guest, peer, setting.within_host)
                switch = switch_named(request.switch)
                if plane.on_uplink and switch is not None and not setting.within_host:
                    entries.append(switch.static_entry(site, site.nic, peer.mac))
                placed.peer = peer_addresses
        for role, entries in steps.items():
            self._states[role].perform(entries)


def _switches(names: Iterable[str]) -> list[Switch]:
    """The switches of these names."""
    return [switch for name in names if (switch := switch_named(name)) is not None]


def _nic(plane: VmPlane, site: Site, placed: _Placed, guests: HostGuests) -> AnyNic:
    """The NIC of a guest. Pure."""
    if socket := plane.socket(site, placed.guest):
        return VhostUserNic(placed.guest.mac, socket, guests.options.queues)
    if plane.model is not None:
        return nic_of(plane.model, placed.guest, plane.host_interface(placed.guest), guests)
    assert placed.vf is not None
    return Passthrough(placed.vf.address)


def _interface(vf: ListedVf) -> str:
    if vf.netdev is None:
        raise PlanewiseError(
            f"the VF {vf.address} has no interface: its driver is {vf.driver or 'none'}",
            remedy=f"bind its network driver: `planewised vf bind {vf.address} netdev`",
        )
    return vf.netdev.name
