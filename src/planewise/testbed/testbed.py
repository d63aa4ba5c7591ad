"""The testbed: guests behind planes on the NICs of a pair of hosts.

It builds what settings ask for, keeps it for the next setting, and removes everything in the end.
The pair may be two servers, or two namespaces of this machine. What differs between kinds of guest
is in `guests/`: how one is prepared, started, suspended and removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Self

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.guests.kernel import Containers, Namespaces
from planewise.testbed.guests.kind import Guests, PlacedGuest, remove_lost
from planewise.testbed.guests.vms.booted import machines_on
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.platform import VmPlatform, no_vhost, platform_of
from planewise.testbed.hosts.machine import (
    Machine,
    MachineState,
    Resources,
    remove_traces,
    survey,
)
from planewise.testbed.hosts.pair import Pair, local_pair, plan_pair
from planewise.testbed.hosts.signals import together
from planewise.testbed.model import (
    GUEST_INTERFACE,
    HOSTS,
    Guest,
    GuestKind,
    HostRole,
    Site,
    make_guest,
    other_host,
)
from planewise.testbed.plan import (
    Step,
    accept_address,
    namespaces_of,
    new_namespace,
    set_mtu,
    set_up,
)
from planewise.testbed.planes import plane, switch_named
from planewise.testbed.planes.plane import Plane, Switch
from planewise.testbed.refusals import SPARE_MIB, impossible, memory_of, shortage
from planewise.testbed.setting import Arrangement, GuestRequest, Setting

_REMOVE = 'for name; do ip netns delete "$name" 2>/dev/null; done; true'
"""Shell: removes network namespaces; a missing one is no error."""


class _HostState(MachineState):
    """State of one machine, with its guests."""

    def __init__(self, machine: Machine, role: HostRole, token: str) -> None:
        super().__init__(machine, role, token)
        self.guests: dict[GuestKind, Guests] = {}
        self.placed: dict[GuestRequest, PlacedGuest] = {}
        """The most recently used are the last."""
        self.slots: dict[HostRole, int] = {}
        self.prepared: dict[str, tuple[Plane, Site]] = {}
        """Planes that are prepared on the uplink, by `Plane.preparation`."""

    def remove(self, request: GuestRequest) -> None:
        """Ends a guest."""
        self.guests[request.kind].remove(self.placed[request])
        del self.placed[request]

    def switches_made(self) -> list[Switch]:
        """The switches that were made here."""
        return [switch for name in self.switches if (switch := switch_named(name)) is not None]


class Testbed:
    """Two hosts, and the guests that settings ask for.

    Everything that it makes carries the pair's token; `close` removes it.
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    def __init__(
        self,
        pair: Pair,
        mtu_bytes: int,
        options: VmOptions = VmOptions(),  # noqa: B008 - a frozen value
    ) -> None:
        """`options` are those of virtual machines."""
        self.pair = pair
        self._mtu_bytes = mtu_bytes
        self._options = options
        self._hosts_a_machine = 1 if pair.separate else len(HOSTS)
        self._states = self._initial_states()
        self.platforms: dict[HostRole, VmPlatform] = {}
        """Of virtual machines, each found at its first use."""
        self._resources: dict[HostRole, Resources] = {}
        self._refusals: dict[tuple[HostRole, str], str] = {}
        self._with_vfs = False

    def _initial_states(self) -> dict[HostRole, _HostState]:
        pair = self.pair
        return {role: _HostState(host, role, pair.token) for role, host in pair.machines.items()}

    def check(self, settings: Iterable[Setting]) -> dict[Setting, str]:
        """Why settings cannot be built, by setting; those that can be are left out.

        One call takes all settings of a run: where one needs VFs, the NIC has them all the time, so
        that every setting finds the same NIC.
        """
        settings = tuple(settings)
        self._resources.clear()
        reasons = {setting: self.unavailable_reason(setting) for setting in settings}
        if any(setting.vfs_a_host() and not reason for setting, reason in reasons.items()):
            self._with_vfs = True
            self._resources.clear()
            reasons = {setting: self.unavailable_reason(setting) for setting in settings}
        return {setting: reason for setting, reason in reasons.items() if reason}

    def unavailable_reason(self, setting: Setting) -> str:
        """Why this setting cannot be built; empty when it can. Trial builds are removed again."""
        if reason := impossible(setting, self._mtu_bytes, local=not self.pair.separate):
            return reason
        roles: tuple[HostRole, ...] = ("sender",) if setting.within_host else HOSTS
        try:
            for role in roles:
                if reason := shortage(setting, self.resources(role), self._with_vfs, self._options):
                    return reason
                if setting.kind == "vm":
                    if ("vhost", True) in setting.vm_options and (
                        reason := no_vhost(self.platform(role))
                    ):
                        return f"vhost: {reason}"
                    continue
                for name in sorted(setting.planes):
                    if reason := self._refused(role, plane(name)):
                        return reason
        except UnsupportedError as error:
            return error.what
        return ""

    def resources(self, role: HostRole) -> Resources:
        """A machine's resources at the first call."""
        if role not in self._resources:
            machine = self._states[role].machine
            self._resources[role] = survey(machine, self._with_vfs, self._hosts_a_machine)
        return self._resources[role]

    def platform(self, role: HostRole) -> VmPlatform:
        """The platform of a machine's virtual machines; the accelerator is tried once.

        Raises:
            UnsupportedError: no QEMU or libvirt there, no kernel for the guests here.
        """
        if role not in self.platforms:
            self.platforms[role] = platform_of(self._states[role].host, self._options.programs)
        return self.platforms[role]

    def _refused(self, role: HostRole, plane: Plane) -> str:
        """Why a host's kernel cannot build a plane, by a trial build in namespaces of its own;
        empty where it can, or where the plane needs more than a kernel."""
        if plane.needs:
            return ""
        key = (role, plane.name)
        if key not in self._refusals:
            state = self._states[role]
            steps = smallest_plan(plane, role, state.token, self._mtu_bytes)
            try:
                state.host.perform(steps)
                self._refusals[key] = ""
            except PlanewiseError as error:
                self._refusals[key] = error.what
            finally:
                words = ("sh", "-c", _REMOVE, "sh", *namespaces_of(steps))
                state.host.run(words, timeout_s=60)
        return self._refusals[key]

    @contextmanager
    def arrange(self, setting: Setting) -> Iterator[Arrangement]:
        """Builds a setting: makes missing guests, and wakes or reuses the others.

        Raises:
            UnsupportedError: a machine lacks something.
            PlanewiseError: it could not be built, or a guest was dead at the end.
        """
        states = self._states_of(setting)
        requests = {role: tuple(setting.requests(role)) for role in HOSTS}
        # East-west, both roles have one state.
        work: dict[HostRole, list[GuestRequest]] = {}
        for role, state in states.items():
            work.setdefault(state.role, []).extend(requests[role])
        guests = {role: self._guests_on(self._states[role], setting.kind) for role in work}

        replaced: list[Guest] = []

        def prepare(role: HostRole) -> None:
            replaced.extend(self._prepare(self._states[role], setting, work[role]))

        def end_guests() -> None:
            for kind in guests.values():
                kind.close()

        try:
            together([partial(prepare, role) for role in work])
            placed = {role: [states[role].placed[key] for key in requests[role]] for role in HOSTS}
            pairs: dict[HostRole, list[tuple[PlacedGuest, Guest]]] = {role: [] for role in work}
            for role, other in zip(HOSTS, reversed(HOSTS), strict=True):
                for one, peer in zip(placed[role], placed[other], strict=True):
                    one.within = setting.within_host
                    pairs[states[role].role].append((one, peer.guest))
            starts = [partial(guests[role].start, pairs[role]) for role in work]
            together(starts, abort=end_guests)
            yield Arrangement(
                setting,
                {role: states[role].host for role in HOSTS},
                {role: placed[role][0].guest for role in HOSTS},
                {role: tuple(one.guest for one in placed[role][1:]) for role in HOSTS},
                {role: placed[role][0].site for role in HOSTS},
                {role: self._port(states[role], placed[role][0]) for role in HOSTS},
                replaced=tuple(replaced),
            )
            if setting.kind != "vm":
                self.check_alive(setting)
        finally:
            self._suspend()

    def check_alive(self, setting: Setting) -> None:
        """Does nothing while all guests of a setting live.

        Raises:
            PlanewiseError: one ended.
        """
        for role, state in self._states_of(setting).items():
            placed = [state.placed.get(request) for request in setting.requests(role)]
            ready = [one for one in placed if one is not None and one.ready]
            if setting.kind in state.guests:
                for _, error in state.guests[setting.kind].lost(ready):
                    raise error

    def close(self) -> None:
        """Removes everything, also when a part of it fails; the next setting builds anew.

        Raises:
            PlanewiseError: something could not be removed.
        """
        states, self._states = self._states, self._initial_states()
        together([partial(self._clear, state) for state in states.values()])

    def _clear(self, state: _HostState) -> None:
        with ExitStack() as last:
            # Backwards: guests, then VFs return and switches end, and bridges go.
            if self.pair.separate:
                last.callback(remove_traces, state.host, state.machine.nic, state.token)
            last.callback(state.close)
            for guests in state.guests.values():
                last.callback(guests.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One host.

    def _guests_on(self, state: _HostState, kind: GuestKind) -> Guests:
        if kind not in state.guests:
            if kind == "vm":
                cpus = self.resources(state.role).cpus
                parallel = max(1, 2 * cpus // self._hosts_a_machine)
                platform = self.platform(state.role)
                state.guests[kind] = machines_on(state, platform, self._options, parallel)
            else:
                state.guests[kind] = (Containers if kind == "container" else Namespaces)(state)
        return state.guests[kind]

    def _prepare(
        self, state: _HostState, setting: Setting, requests: Sequence[GuestRequest]
    ) -> list[Guest]:
        """Makes the guests that are missing on a host; returns those that replace ended ones."""
        for switch in state.switches_made():
            switch.resume(state)
        lost = _remove_lost(state)
        if self._with_vfs:
            _ = state.vfs  # the NIC has them all the time
        steps = self._attach_nic(state, setting, requests)
        missing = [request for request in requests if request not in state.placed]
        self._make_room(state, requests, missing)
        for request in requests:
            if request in state.placed:
                state.placed[request] = state.placed.pop(request)
        for request in missing:
            path = plane(request.plane)
            site = self._site(state, "" if path.vfs else next(iter(setting.switches), ""))
            options = dict(request.vm_options)
            site = replace(site, queues=options.get("queues", site.queues))
            guest = path.adopt(site, self._guest(state, request))
            state.placed[request] = PlacedGuest(guest, site, vm_options=options)
        made = [state.placed[request] for request in missing]
        state.guests[setting.kind].prepare(made, steps)
        if self._with_vfs:
            # With VFs, a NIC's promiscuous mode may not do.
            state.host.perform(
                accept_address(one.site.netns, one.site.nic, one.guest.mac)
                for one in made
                if one.plane.switch is not None and one.guest.host == state.role
            )
        for switch in state.switches_made():
            if switch.name not in setting.switches:
                switch.pause(state)
        return [state.placed[request].guest for request in missing if request in lost]

    def _make_room(
        self, state: _HostState, requests: Sequence[GuestRequest], missing: Sequence[GuestRequest]
    ) -> None:
        """Ends idle guests, the least recently used first, until the missing ones have room."""
        idle = [request for request in state.placed if request not in requests]
        vfs = sum(plane(request.plane).vfs for request in missing)

        def lacks_memory() -> bool:
            kinds = [request.kind for request in (*state.placed, *missing)]
            needed_mib = sum(memory_of(kind, self._options) for kind in kinds)
            spare_mib = max(SPARE_MIB[kind] for kind in kinds)
            free_mib = self.resources(state.role).free_mib - spare_mib
            return needed_mib > free_mib / self._hosts_a_machine

        for request in [request for request in idle if plane(request.plane).vfs]:
            if not vfs or state.vfs.free >= vfs:
                break
            idle.remove(request)
            state.remove(request)
        while idle and missing and lacks_memory():
            state.remove(idle.pop(0))

    def _attach_nic(
        self, state: _HostState, setting: Setting, requests: Sequence[GuestRequest]
    ) -> list[Step]:
        """Sets the NICs up, makes one a port of the guests' switch, and prepares their planes.

        Returns:
            Steps that are still to be performed.
        """
        machine = state.machine
        switch = next(iter(setting.switches), "")
        on_nic = any(not plane(request.plane).vfs for request in requests)
        if not switch and (machine.bridge_nic != machine.nic or not on_nic):
            switch = state.switch  # no guest needs another
        steps: list[Step] = []
        if not state.nic_up:
            for nic in dict.fromkeys((machine.nic, machine.bridge_nic)):
                if self._mtu_bytes != 1500 and self.pair.separate:
                    steps.append(set_mtu(machine.netns, nic, self._mtu_bytes))
                steps.append(set_up(machine.netns, nic))
            state.nic_up = True
        if switch != state.switch:
            self._change_switch(state, switch, steps)
            steps = []
        for request in requests:
            path = plane(request.plane)
            site = self._site(state, "" if path.vfs else next(iter(setting.switches), ""))
            earlier = state.prepared.get(path.preparation or path.name)
            if earlier is None or earlier[1].uplink != site.uplink:
                state.prepared[path.preparation or path.name] = (path, site)
                withdrawal = () if earlier is None else earlier[0].withdraw(earlier[1])
                steps += (*withdrawal, *path.prepare(site))
        return steps

    def _change_switch(self, state: _HostState, name: str, steps: list[Step]) -> None:
        """Makes the NIC a port of another switch, or of none, after `steps`."""
        shared = state.machine.bridge_nic == state.machine.nic
        for request, placed in list(state.placed.items()):
            placed.peer = None  # a port's static entries go with it
            # What sits on the NIC and a switch cannot share it, nor does one follow the other.
            if shared and placed.plane.on_uplink and not request.switch:
                state.remove(request)
        for prepared, site in state.prepared.values():
            steps += prepared.withdraw(site)
        state.prepared.clear()
        previous, switch = switch_named(state.switch), switch_named(name)
        if previous is not None:
            steps += previous.release_nic(self._site(state, previous.name))
        if switch is not None:
            if switch.name not in state.switches:
                state.host.perform(steps)
                self._end_rivals(state, switch)
                steps = list(switch.create(state, self._site(state, name)))
                state.switches.add(switch.name)
            steps += switch.add_nic(self._site(state, name))
        state.host.perform(steps)
        state.switch = name

    def _end_rivals(self, state: _HostState, switch: Switch) -> None:
        """Ends switches that cannot run beside `switch`, with their guests."""
        for rival in state.switches_made():
            if switch.user_space and rival.user_space:
                for request in list(state.placed):
                    own = plane(request.plane).switch
                    if rival.name in (request.switch, own and own.name):
                        state.remove(request)
                state.end_program(rival.name)

    def _states_of(self, setting: Setting) -> Mapping[HostRole, _HostState]:
        return dict.fromkeys(HOSTS, self._states["sender"]) if setting.within_host else self._states

    def _site(self, state: _HostState, switch: str) -> Site:
        """A host as a plane on a switch sees it; empty: on the NIC."""
        machine = state.machine
        nic = machine.bridge_nic if switch else machine.nic
        site = Site(
            state.role,
            machine.netns,
            nic,
            self._mtu_bytes,
            nic,
            machine.bridge,
            machine.docker_bridge,
            self.resources(state.role).mac,
            self.resources(other_host(state.role)).mac,
            state.directory,
            self._options.queues,
        )
        found = switch_named(switch)
        return site if found is None else site.on(found.interface(site))

    def _guest(self, state: _HostState, request: GuestRequest) -> Guest:
        slot = state.slots.get(request.role, 0)
        state.slots[request.role] = slot + 1
        return make_guest(
            state.token,
            request.role,
            request.use,
            request.index,
            request.plane,
            slot,
            # East-west, guests of both roles live on one machine, and those that talk north-south
            # share the segment with them.
            away=state.role != request.role,
        )

    def _port(self, state: _HostState, placed: PlacedGuest) -> str:
        """The host side of a guest's interface; empty where there is none."""
        if placed.port is None:
            placed.port = placed.plane.port(state, placed.guest)
        return placed.port

    def _suspend(self) -> None:
        for state in self._states.values():
            for kind, guests in state.guests.items():
                placed = [one for request, one in state.placed.items() if request.kind == kind]
                guests.suspend(placed)
            for switch in state.switches_made():  # after guests, which ask it as they stop
                with suppress(PlanewiseError):
                    switch.pause(state)


def _remove_lost(state: _HostState) -> set[GuestRequest]:
    """Removes guests that ended or never came up, with their VFs; returns the former."""
    lost: set[GuestRequest] = set()
    for kind, guests in state.guests.items():
        of_kind = {request: one for request, one in state.placed.items() if request.kind == kind}
        requests = list(of_kind)
        lost |= remove_lost(guests, of_kind)
        for request in requests:
            if request not in of_kind:
                del state.placed[request]
    return lost


@contextmanager
def local_testbed(setting: Setting, mtu_bytes: int = 1500) -> Iterator[Arrangement]:
    """Builds a setting on this machine, on a testbed of its own.

    Raises:
        UnsupportedError: this machine lacks something.
        PlanewiseError: it could not be built.
    """
    what = f"testbed {setting.plane}, {setting.background_guests} background guests"
    with local_pair(mtu_bytes, what=what) as pair, Testbed(pair, mtu_bytes) as testbed:
        reason = impossible(setting, mtu_bytes, local=True) or shortage(
            setting, testbed.resources("sender"), False
        )
        if reason:
            raise UnsupportedError(reason, remedy=plane(setting.plane).remedy)
        with testbed.arrange(setting) as arrangement:
            yield arrangement


def smallest_plan(plane: Plane, role: HostRole, token: str, mtu_bytes: int) -> tuple[Step, ...]:
    """A plane with one guest, on a NIC that is a veth pair, all in namespaces of its own. Pure."""
    names: dict[HostRole, str] = {host: f"pw-{token}-x{role[0]}{host[0]}" for host in HOSTS}
    site = Site("sender", names["sender"], "wire0", mtu_bytes)
    steps: list[Step] = plan_pair(names, mtu_bytes)
    if plane.switch is not None:
        steps += plane.switch.steps(site)
        site = site.on(plane.switch.interface(site))
    netns = f"pw-{token}-x{role[0]}g"
    guest = Guest(
        "try", "sender", "main", 0, plane.name, netns, GUEST_INTERFACE,
        "02:70:77:00:ff:ff", "198.18.254.1", "2001:2:0:1::fffe", f"pw{token}ffff", 29_999,
    )  # fmt: skip
    guest = plane.adopt(site, guest)
    return (*steps, *plane.prepare(site), *new_namespace(netns), *plane.attach(site, guest))
