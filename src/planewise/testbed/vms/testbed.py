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
from planewise.testbed.machine import Machine, MachineState, remove_traces
from planewise.testbed.model import ETHERNET_BYTES, HOSTS, Guest, HostRole, Site, other_host
from planewise.testbed.pair import Pair
from planewise.testbed.plan import AcceptAddress, AwaitUp, SetMtu, SetUp, Step
from planewise.testbed.planes import PLANES, Switch, VmPlane, switch_named, vm_plane
from planewise.testbed.setting import Setting
from planewise.testbed.together import together
from planewise.testbed.vfs import ListedVf
from planewise.testbed.vms import booted
from planewise.testbed.vms.arrangement import GuestRequest, VmArrangement, guest_in, on_nic, wanted
from planewise.testbed.vms.cleanup import remove_guests
from planewise.testbed.vms.domain import AnyNic, Passthrough, VhostUserNic, VmOptions
from planewise.testbed.vms.guests import HostGuests, Started, nic_of
from planewise.testbed.vms.hypervisor import Hypervisor
from planewise.testbed.vms.platform import VmPlatform, platform_of, vm_mib
from planewise.testbed.vms.resources import SPARE_MIB, VmResources, look, shortage
from planewise.testbed.vms.saved import Saved


@dataclass
class _Placed:
    """A guest that stands on a machine."""

    guest: Guest
    vf: ListedVf | None = None
    running: bool = False
    """Whether it has come up."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Addresses of its peer, with the MACs, that it was told of."""
    known: tuple[str, str] = ("", "")
    """Address and MAC of its peer that its host was told of."""


class _HostState(MachineState):
    """What stands on one machine, with its virtual machines."""

    def __init__(self, machine: Machine, role: HostRole, token: str) -> None:
        super().__init__(machine, role, token)
        self.placed: dict[GuestRequest, _Placed] = {}
        """The most recently used are the last."""
        self.guests: HostGuests | None = None
        self.slots: dict[HostRole, int] = {}
        self.prepared: dict[str, tuple[VmPlane, Site]] = {}
        """By what they prepare, planes that are prepared, and where."""
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
        lent: VmPlatform | None = None,
    ) -> None:
        """`parallel` limits the guests of a host that boot at a time (None: two a CPU).

        `lent` is what the hosts lend to virtual machines (None: looked up at first use).
        """
        self.options = options
        self._pair = pair
        self._token = pair.token
        self._mtu_bytes = mtu_bytes
        self._parallel = parallel
        self._on_ready = on_ready
        self._hosts_a_machine = 1 if pair.separate else len(HOSTS)
        self._states = _initial_states(pair)
        self._platforms = {} if lent is None else dict.fromkeys(HOSTS, lent)
        self._resources: dict[HostRole, VmResources] = {}
        self._with_vfs = False
        self._saved: dict[HostRole, Saved | None] = {}

    def expect(self, settings: Iterable[Setting]) -> dict[Setting, str]:
        """Why these settings cannot stand here; those that can are left out. Changes nothing.

        All that will be asked for belongs into one call: where one needs VFs, the NIC has them all
        the time, so that every setting finds the same NIC.
        """
        asked = tuple(settings)
        self._resources.clear()
        names = {name for setting in asked for name in setting.planes}
        self._with_vfs = any(plane.vfs for plane in PLANES if plane.name in names)
        reasons = {setting: self._unavailable_reason(setting) for setting in asked}
        return {setting: reason for setting, reason in reasons.items() if reason}

    def platform(self, role: HostRole) -> VmPlatform:
        """What a machine lends to virtual machines; the accelerator is tried once.

        Raises:
            UnsupportedError: no QEMU or libvirt there, no kernel for the guests here.
        """
        if role not in self._platforms:
            host = self._states[role].machine.host
            self._platforms[role] = platform_of(host, self.options.programs)
        return self._platforms[role]

    def resources(self, role: HostRole) -> VmResources:
        """What a machine has, as it was when it was first asked."""
        if role not in self._resources:
            machine = self._states[role].machine
            self._resources[role] = look(machine, self._with_vfs, self._hosts_a_machine)
        return self._resources[role]

    @contextmanager
    def arrange(self, setting: Setting) -> Iterator[VmArrangement]:
        """Makes a setting stand: starts what is missing, wakes what is there, and only that.

        Raises:
            UnsupportedError: a machine lacks something.
            PlanewiseError: a guest could not be started.
        """
        states = self._states_of(setting)
        wants = {role: tuple(wanted(setting, role)) for role in HOSTS}
        work: dict[HostRole, list[GuestRequest]] = {}
        for role, state in states.items():
            work.setdefault(state.role, []).extend(wants[role])
        try:
            replaced = self._start(setting, work)
            self._set_neighbours(setting)
            mains = {role: states[role].placed[wants[role][0]] for role in HOSTS}
            yield VmArrangement(
                setting,
                {role: self._guests(states[role]).host for role in HOSTS},
                {role: placed.guest for role, placed in mains.items()},
                {
                    role: tuple(states[role].placed[want].guest for want in wants[role][1:])
                    for role in HOSTS
                },
                {
                    role: self._way_out(states[role], wants[role][0], placed)
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
            placed = [state.placed[want] for want in wanted(setting, role) if want in state.placed]
            if state.guests is not None:
                state.guests.check(
                    placed_guest.guest for placed_guest in placed if placed_guest.running
                )

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
        self, setting: Setting, work: Mapping[HostRole, Sequence[GuestRequest]]
    ) -> tuple[Guest, ...]:
        """Starts and wakes guests, by the machine that they live on; gives those that had ended."""
        replaced: list[Guest] = []
        for role in work:
            self._saved_on(role)  # booted for all hosts together, and where it fails, once

        def prepare(role: HostRole) -> None:
            replaced.extend(self._prepare(self._states[role], work[role]))

        together([partial(prepare, role) for role in work])
        peers = {want: peer for _, want, peer in self._peers(setting)}
        boots = [partial(self._boot_all, self._states[role], peers) for role in work]
        together(boots, abort=self._end_guests)
        return tuple(replaced)

    # One machine.

    def _prepare(self, state: _HostState, wants: Sequence[GuestRequest]) -> list[Guest]:
        """Makes what these guests are plugged into, and wakes those that run; gives those that had
        ended."""
        guests = self._guests(state)
        for switch in _switches(state.switches):
            switch.wake(state)
        replaced = self._forget_ended(state)
        if self._with_vfs:
            _ = state.vfs  # the NIC has them all the time
        self._attach_nic(state, wants)
        missing = [want for want in wants if want not in state.placed]
        self._make_room(state, wants, missing)
        for want in wants:
            if want in state.placed:
                guests.set_awake(state.placed[want].guest, True)
                state.placed[want] = state.placed.pop(want)
        for want in missing:
            self._place(state, want)
        for switch in _switches(state.switches - {want.switch for want in wants}):
            switch.rest(state)
        return [state.placed[want].guest for want in missing if want in replaced]

    def _forget_ended(self, state: _HostState) -> set[GuestRequest]:
        """Forgets guests that ended, and takes their VFs back."""
        by_guest = {placed.guest: want for want, placed in state.placed.items()}
        ended = {by_guest[guest] for guest in self._guests(state).ended(by_guest)}
        half = {want for want, placed in state.placed.items() if not placed.running}
        for want in ended | half:
            self._remove(state, want)
        return ended - half

    def _make_room(
        self, state: _HostState, wants: Sequence[GuestRequest], missing: Sequence[GuestRequest]
    ) -> None:
        """Ends guests that this setting leaves idle, those used longest ago first, for others."""
        idle = [want for want in state.placed if want not in wants]

        def lacks_vfs() -> bool:
            needed = sum(vm_plane(want.plane).vfs for want in missing)
            return needed > 0 and state.vfs.free < needed

        def lacks_memory() -> bool:
            free_mib = self.resources(state.role).free_mib - SPARE_MIB
            here = len(state.placed) + len(missing)
            return here * vm_mib(self.options) > free_mib / self._hosts_a_machine

        while idle and lacks_vfs():
            holders = [want for want in idle if state.placed[want].vf is not None]
            if not holders:
                break
            idle.remove(holders[0])
            self._remove(state, holders[0])
        while idle and lacks_memory():
            self._remove(state, idle.pop(0))

    def _attach_nic(self, state: _HostState, wants: Sequence[GuestRequest]) -> None:
        """Sets the NICs up, makes one a port of the switch that guests want, and prepares their
        planes on it."""
        machine = state.machine
        switch = next((want.switch for want in wants if want.switch), "")
        apart = machine.bridge_nic != machine.nic
        if not switch and (apart or not any(map(on_nic, wants))):
            switch = state.switch  # what nobody asks for stays as it is
        steps: list[Step] = []
        if switch != state.switch:
            steps += self._change_switch(state, switch)
        if not state.nic_up:
            for nic in dict.fromkeys((machine.nic, machine.bridge_nic)):
                if self._mtu_bytes != 1500:
                    steps.append(SetMtu(machine.netns, nic, self._mtu_bytes))
                steps.append(SetUp(machine.netns, nic))
        for want in wants:
            steps += self._prepare_plane(state, vm_plane(want.plane), self._site(state, want))
        if steps:
            awaited = machine.bridge_nic if switch else machine.nic
            state.perform([*steps, AwaitUp(machine.netns, awaited)])
        state.switch, state.nic_up = switch, True

    def _change_switch(self, state: _HostState, name: str) -> list[Step]:
        """Steps that make the NIC a port of another switch, or of none; makes the switch."""
        machine = state.machine
        if machine.bridge_nic == machine.nic:
            # A macvtap and a switch cannot share a NIC, nor does one follow the other.
            for want in [want for want in state.placed if on_nic(want)]:
                if vm_plane(want.plane).on_uplink:
                    self._remove(state, want)
        steps: list[Step] = []
        for plane, where in state.prepared.values():
            steps += plane.withdraw(where)
        state.prepared.clear()
        before, after = switch_named(state.switch), switch_named(name)
        if before is not None:
            steps += before.release_nic(self._switch_site(state))
        for placed in state.placed.values():
            placed.known = ("", "")  # a port takes what the switch knew of it with it
        if after is not None:
            if after.name not in state.switches:
                state.perform(steps)
                self._end_rivals(state, after)
                steps = list(after.create(state, self._switch_site(state)))
                state.switches.add(after.name)
            steps += after.add_nic(self._switch_site(state))
        return steps

    def _end_rivals(self, state: _HostState, wanted: Switch) -> None:
        """Ends switches beside which another cannot stand, with their guests."""
        for rival in _switches(state.switches):
            if wanted.user_space and rival.user_space:
                for want in [want for want in state.placed if want.switch == rival.name]:
                    self._remove(state, want)
                state.end_program(rival.name)

    def _prepare_plane(self, state: _HostState, plane: VmPlane, site: Site) -> tuple[Step, ...]:
        """Steps that a plane wants on its uplink; what it prepared on another is withdrawn."""
        before = state.prepared.get(plane.preparation)
        if before is not None and before[1].uplink == site.uplink:
            return ()
        state.prepared[plane.preparation] = (plane, site)
        gone = () if before is None else before[0].withdraw(before[1])
        return (*gone, *plane.prepare(site))

    def _place(self, state: _HostState, want: GuestRequest) -> None:
        """Makes what a guest will be plugged into."""
        plane = vm_plane(want.plane)
        guest = self._guest(state, want)
        site = self._site(state, want)
        vf = None
        if plane.vfs:
            vf = state.vfs.take()
            # The VF's own address: its driver in a guest takes no other.
            guest = replace(guest, mac=vf.config.mac)
        state.placed[want] = _Placed(guest, vf)
        steps: list[Step] = []
        if vf is None:
            steps += plane.attach(site, guest, self.options.queues)
            if self._with_vfs and plane.switch is not None:
                # With VFs, a NIC's promiscuous mode may not do.
                steps.append(AcceptAddress(site.netns, site.nic, guest.mac))
        elif plane.passed_through:
            state.vfs.hand_over(vf)
        else:
            state.vfs.bring_up(vf, self._mtu_bytes)
            interface = _interface(vf)
            steps += plane.attach(site, guest, self.options.queues, interface)
            steps.append(AwaitUp(site.netns, interface))
        state.perform(steps)

    def _boot_all(self, state: _HostState, peers: Mapping[GuestRequest, Guest]) -> None:
        """Starts those that were placed and do not run yet, some at a time."""
        missing = [want for want, placed in state.placed.items() if not placed.running]
        if missing:
            parallel = self._parallel or (
                2 * self.resources(state.role).cpus // self._hosts_a_machine
            )
            workers = min(len(missing), max(1, parallel))
            together([partial(self._boot, state, want, peers[want]) for want in missing], workers)

    def _boot(self, state: _HostState, want: GuestRequest, peer: Guest) -> None:
        placed, guests = state.placed[want], self._guests(state)
        nic = _nic(vm_plane(want.plane), self._site(state, want), placed, guests)
        known = self._neighbours(state, want, peer)
        started = guests.start(placed.guest, nic, self._mtu_bytes, known)
        placed.running, placed.told = True, known
        self._on_ready(started)

    def _neighbours(self, state: _HostState, want: GuestRequest, peer: Guest) -> Mapping[str, str]:
        """Addresses that a guest need not ask for, with the MACs that its frames there have."""
        guest = state.placed[want].guest
        mac = vm_plane(want.plane).next_hop_mac(self._site(state, want), guest, peer)
        # Background guests send by IPv4 alone.
        addresses = (peer.ipv4, peer.ipv6) if want.use == "main" else (peer.ipv4,)
        return dict.fromkeys(addresses, mac)

    def _remove(self, state: _HostState, want: GuestRequest) -> None:
        """Ends a guest, and takes away what it was plugged into."""
        placed = state.placed[want]
        plane = vm_plane(want.plane)
        self._guests(state).end(placed.guest)
        plane.detach(state, placed.guest)
        if placed.vf is not None:
            state.vfs.give_back(placed.vf)
        del state.placed[want]

    def _end_guests(self) -> None:
        for state in self._states.values():
            if state.guests is not None:
                state.guests.close()

    def _suspend_guests(self) -> None:
        """Lets no guest run, and no switch. Guests that ended are not looked at."""
        for state in self._states.values():
            for placed in state.placed.values():
                if placed.running and state.guests is not None:
                    with suppress(PlanewiseError):
                        state.guests.set_awake(placed.guest, False)
            for switch in _switches(state.switches):  # after guests, which ask it as they stop
                with suppress(PlanewiseError):
                    switch.rest(state)

    def _guests(self, state: _HostState) -> HostGuests:
        with state.lock:
            if state.guests is None:
                host, ours = state.host, self.platform(state.role)
                guests = HostGuests(host, ours, self.options, saved=self._saved_on(state.role))
                state.guests = guests.__enter__()
            return state.guests

    def _saved_on(self, role: HostRole) -> Saved | None:
        if role not in self._saved:
            host = self._states[role].machine.host
            self._saved[role] = booted.saved_for(host, self.platform(role), self.options)
        return self._saved[role]

    def _site(self, state: _HostState, want: GuestRequest) -> Site:
        """A host as the plane of a guest sees it."""
        site = self._switch_site(state)
        switch = switch_named(want.switch)
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

    def _way_out(self, state: _HostState, want: GuestRequest, placed: _Placed) -> Site:
        """The host as a main guest's frames leave it: by its NIC, or by the VF's interface."""
        site = self._site(state, want)
        if placed.vf is None:
            return site
        return replace(site, nic=placed.vf.netdev.name if placed.vf.netdev else "")

    def _guest(self, state: _HostState, want: GuestRequest) -> Guest:
        slot = state.slots.get(want.role, 0)
        state.slots[want.role] = slot + 1
        return guest_in(self._token, slot, want.role, want.use, want.index, want.plane, state.role)

    # Both.

    def _peers(self, setting: Setting) -> Iterator[tuple[_HostState, GuestRequest, Guest]]:
        """Each guest of a setting, and the one of the other role that it talks to."""
        states = self._states_of(setting)
        for role, other in zip(HOSTS, reversed(HOSTS), strict=True):
            pairs = zip(wanted(setting, role), wanted(setting, other), strict=True)
            for want, of_peer in pairs:
                yield states[role], want, states[other].placed[of_peer].guest

    def _set_neighbours(self, setting: Setting) -> None:
        """Guests know their peer's MAC, and bridges both: none is looked up, no frame is flooded.

        Background guests, too: what they ask would be counted as their load.
        """
        steps: dict[HostRole, list[Step]] = {}
        for state, want, peer in self._peers(setting):
            placed, name = state.placed[want], (peer.ipv4, peer.mac)
            inside = self._neighbours(state, want, peer)
            if placed.told != inside:
                self._guests(state).set_neighbours(placed.guest, inside)
                placed.told = inside
            if placed.known != name:
                plane, site = vm_plane(want.plane), self._site(state, want)
                known = plane.introduce(site, placed.guest, peer, setting.within_host)
                switch = switch_named(want.switch)
                if plane.on_uplink and switch is not None and not setting.within_host:
                    known = (*known, switch.know(site, site.nic, peer.mac))
                steps.setdefault(state.role, []).extend(known)
                placed.known = name
        for role, known_there in steps.items():
            self._states[role].perform(known_there)


def _switches(names: Iterable[str]) -> list[Switch]:
    """The switches of these names."""
    return [switch for name in names if (switch := switch_named(name)) is not None]


def _nic(plane: VmPlane, site: Site, placed: _Placed, guests: HostGuests) -> AnyNic:
    """What a guest is given as its NIC. Pure."""
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
