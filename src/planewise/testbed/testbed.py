"""The testbed: guests behind planes on the NICs of a pair of hosts. Knows no measurement.

It builds what settings ask for, keeps it for the next setting, and removes everything in the end.
The pair may be two servers, or two namespaces of this machine; a plan is performed by whichever
host it is for (`Host.perform`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Self

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.guests.container import JoiningHost
from planewise.testbed.guests.makers import MAKERS
from planewise.testbed.hosts.machine import (
    MAC_FILTERS,
    Machine,
    MachineState,
    PlacedGuest,
    Resources,
    remove_namespaces,
    remove_traces,
    survey,
)
from planewise.testbed.hosts.pair import Pair, local_pair, plan_pair
from planewise.testbed.hosts.together import together
from planewise.testbed.model import (
    GUEST_INTERFACE,
    HOSTS,
    Guest,
    HostRole,
    Site,
    make_guest,
    other_host,
)
from planewise.testbed.plan import (
    Plan,
    Step,
    accept_address,
    await_up,
    delete_link,
    new_namespace,
    set_mtu,
    set_up,
)
from planewise.testbed.planes import plane, refusal, switch_named
from planewise.testbed.planes.kinds import GUEST_WORDS
from planewise.testbed.planes.plane import Plane
from planewise.testbed.setting import Arrangement, GuestRequest, Setting

SPARE_MIB = 128
"""Memory that a host keeps for itself."""


class _HostState(MachineState):
    """State of one machine, with its guests."""

    def __init__(self, machine: Machine, role: HostRole, token: str) -> None:
        super().__init__(machine, role, token)
        self.placed: dict[GuestRequest, PlacedGuest] = {}
        self.slots: dict[HostRole, int] = {}
        self.prepared: dict[str, Plane] = {}
        """Planes that are prepared on the uplink, by `Plane.preparation`."""


def _initial_states(pair: Pair) -> dict[HostRole, _HostState]:
    return {role: _HostState(machine, role, pair.token) for role, machine in pair.machines.items()}


class Testbed:
    """Two hosts, and the guests that settings ask for.

    Everything that it makes carries the pair's token; `close` removes it.
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    def __init__(self, pair: Pair, mtu_bytes: int) -> None:
        self.pair = pair
        self._mtu_bytes = mtu_bytes
        self._states = _initial_states(pair)
        self._resources: dict[HostRole, Resources] = {}
        self._refusals: dict[tuple[HostRole, str], str] = {}
        self._with_vfs = False

    def expect(self, settings: Iterable[Setting]) -> dict[Setting, str]:
        """Why settings cannot be built, by setting; those that can be are left out.

        One call takes all settings of a run: where one needs VFs, the NIC has them all the time, so
        that every setting finds the same NIC.
        """
        settings = tuple(settings)
        reasons = {setting: self.unavailable_reason(setting) for setting in settings}
        if any(setting.vfs_a_host() and not reason for setting, reason in reasons.items()):
            self._with_vfs = True
            reasons = {setting: self.unavailable_reason(setting) for setting in settings}
        return {setting: reason for setting, reason in reasons.items() if reason}

    def unavailable_reason(self, setting: Setting) -> str:
        """Why this setting cannot be built; empty when it can. Trial builds are removed again."""
        if reason := impossible(setting, local=not self.pair.separate):
            return reason
        roles: tuple[HostRole, ...] = ("sender",) if setting.within_host else HOSTS
        for role in roles:
            if reason := shortage(setting, self.resources(role), self._with_vfs):
                return reason
        for role in roles:
            for name in sorted(setting.planes):
                if reason := self._refused(role, plane(name)):
                    return reason
        return ""

    def resources(self, role: HostRole) -> Resources:
        """A machine's resources at the first call."""
        if role not in self._resources:
            self._resources[role] = survey(self._states[role].machine)
        return self._resources[role]

    def _refused(self, role: HostRole, plane: Plane) -> str:
        """Why a host's kernel cannot build a plane, by a trial build in namespaces of its own;
        empty where it can, or where the plane needs more than a kernel."""
        if plane.needs:
            return ""
        key = (role, plane.name)
        if key not in self._refusals:
            state = self._states[role]
            plan = smallest_plan(plane, role, state.token, self._mtu_bytes)
            try:
                state.host.perform(plan)
                self._refusals[key] = ""
            except PlanewiseError as error:
                self._refusals[key] = error.what
            finally:
                remove_namespaces(state.machine, plan.namespaces)
        return self._refusals[key]

    @contextmanager
    def arrange(self, setting: Setting) -> Iterator[Arrangement]:
        """Builds a setting: makes missing guests, reuses the others.

        Raises:
            UnsupportedError: a machine lacks something.
            PlanewiseError: it could not be built, or a guest was dead at the end.
        """
        states = self._states_of(setting)
        requests = {role: list(setting.requests(role)) for role in HOSTS}
        # East-west, both roles have one state.
        work: dict[int, tuple[_HostState, list[GuestRequest]]] = {}
        for role, state in states.items():
            work.setdefault(id(state), (state, []))[1].extend(requests[role])
        together([partial(self._prepare, *host_work) for host_work in work.values()])
        placed = {role: [states[role].placed[key] for key in requests[role]] for role in HOSTS}
        self._introduce(setting, states, placed)
        joined = {
            placed_guest.guest.netns: placed_guest.container
            for placed_guest in [*placed["sender"], *placed["responder"]]
            if placed_guest.container is not None
        }
        yield Arrangement(
            setting,
            {
                role: JoiningHost(states[role].host, joined) if joined else states[role].host
                for role in HOSTS
            },
            {role: placed[role][0].guest for role in HOSTS},
            {
                role: tuple(placed_guest.guest for placed_guest in placed[role][1:])
                for role in HOSTS
            },
            {role: self._site(states[role]) for role in HOSTS},
            {role: placed[role][0].port for role in HOSTS},
        )
        for state, host_requests in work.values():
            _check_alive(state, host_requests)

    def close(self) -> None:
        """Removes everything, also when a part of it fails; the next setting builds anew.

        Raises:
            PlanewiseError: something could not be removed.
        """
        states = tuple(self._states.values())
        self._states = _initial_states(self.pair)
        with ExitStack() as last:
            if self.pair.separate:
                traces = [
                    partial(remove_traces, state.host, state.machine.nic, state.token)
                    for state in states
                ]
                last.callback(together, traces)
            # VFs come home before their namespaces go, containers before the bridges.
            last.callback(together, [state.close for state in states])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One host.

    def _prepare(self, state: _HostState, requests: Sequence[GuestRequest]) -> None:
        _remove_dead(state)
        planes = {request.plane: plane(request.plane) for request in requests}
        earlier = set(state.placed)
        try:
            self._build(state, requests, planes.values())
        except BaseException:
            # The next setting makes half-built guests anew.
            for request in state.placed.keys() - earlier:
                _remove(state, request)
            raise

    def _build(
        self, state: _HostState, requests: Sequence[GuestRequest], planes: Collection[Plane]
    ) -> None:
        steps = self._set_up_nic(state, planes)
        if self._with_vfs:
            _ = state.vfs  # the NIC has them all the time
        _free_vfs(state, requests)
        self._make_guests(state, requests, steps)

    def _set_up_nic(self, state: _HostState, planes: Collection[Plane]) -> list[Step]:
        """Makes the NIC a port of the switch of these planes.

        Returns:
            Steps that prepare the planes on it, still to be performed.
        """
        site = self._site(state)
        steps: list[Step] = []
        if not state.nic_up:
            if self._mtu_bytes != 1500 and self.pair.separate:
                steps.append(set_mtu(site.netns, site.nic, self._mtu_bytes))
            steps.append(set_up(site.netns, site.nic))
            state.nic_up = True
        switch = next((plane.switch for plane in planes if plane.switch is not None), None)
        if state.switch != (switch.name if switch else ""):
            steps += self._leave_switch(state)
            if switch is not None:
                if switch.name not in state.switches:
                    state.perform(steps)
                    steps = list(switch.create(state, site))
                    state.switches.add(switch.name)
                    site = self._site(state)
                steps += switch.add_nic(site)
            state.switch = switch.name if switch else ""
        site = self._site(state)
        for unprepared in planes:
            if unprepared.preparation not in state.prepared:
                steps += unprepared.prepare(site)
                state.prepared[unprepared.preparation] = unprepared
        return steps

    def _leave_switch(self, state: _HostState) -> list[Step]:
        """Steps that free the NIC and remove interfaces on its uplink: none follows the NIC."""
        site = self._site(state)
        steps: list[Step] = []
        for prepared in state.prepared.values():
            steps += prepared.withdraw(site)
        state.prepared.clear()
        for placed in state.placed.values():
            placed.peer = ("", "")
            if plane(placed.guest.plane).on_uplink and placed.attached:
                steps.append(delete_link(placed.guest.netns, GUEST_INTERFACE))
                placed.attached = False
        switch = switch_named(state.switch)
        return steps if switch is None else [*steps, *switch.release_nic(site)]

    def _make_guests(
        self, state: _HostState, requests: Sequence[GuestRequest], steps: list[Step]
    ) -> None:
        """Performs `steps`, makes missing guests, and plugs in all that have no interface."""
        site = self._site(state)
        for kind, maker in MAKERS.items():
            missing = [
                request
                for request in requests
                if request.kind == kind and request not in state.placed
            ]
            guests = [
                plane(request.plane).adopt(site, self._guest(state, request)) for request in missing
            ]
            if guests and maker.waits:
                state.perform(steps)
                steps = []
            if guests:
                state.placed |= dict(zip(missing, maker.create(state, guests), strict=True))
            for request, guest in zip(missing, guests, strict=True):
                steps += maker.steps(guest)
                # Guest by guest: netlink sockets are by namespace, and few are kept.
                steps += self._plug(state, site, [request]) if plane(request.plane).by_steps else ()
        mains = [request for request in requests if request.use == "main"]
        ready = [
            *(await_up(state.placed[main].guest.netns) for main in mains),
            await_up(site.netns, "" if site.netns else site.nic),
        ]
        loose = [request for request in requests if not state.placed[request].attached]
        if loose:
            state.perform(steps)
            steps = self._plug(state, site, loose)
        if steps or loose:
            state.perform([*steps, *ready])
        for request in mains:
            placed = state.placed[request]
            placed.port = placed.port or plane(request.plane).port(state, placed.guest)

    def _plug(self, state: _HostState, site: Site, requests: Sequence[GuestRequest]) -> list[Step]:
        """Steps that give guests their interfaces, plane by plane."""
        steps: list[Step] = []
        for name in dict.fromkeys(request.plane for request in requests):
            guests = [state.placed[request] for request in requests if request.plane == name]
            steps += plane(name).plug(state, site, guests)
        for request in requests:
            placed = state.placed[request]
            placed.attached = True
            if self._with_vfs and state.role == request.role and plane(request.plane).switch:
                steps.append(accept_address(site.netns, site.nic, placed.guest.mac))
        return steps

    # Both hosts.

    def _states_of(self, setting: Setting) -> Mapping[HostRole, _HostState]:
        return dict.fromkeys(HOSTS, self._states["sender"]) if setting.within_host else self._states

    def _site(self, state: _HostState) -> Site:
        machine = state.machine
        site = Site(
            state.role,
            machine.netns,
            machine.nic,
            self._mtu_bytes,
            machine.nic,
            machine.bridge,
            machine.docker_bridge,
            self.resources(state.role).mac,
            self.resources(other_host(state.role)).mac,
            state.directory,
        )
        switch = switch_named(state.switch)
        return site if switch is None else site.on(switch.interface(site))

    def _guest(self, state: _HostState, request: GuestRequest) -> Guest:
        slot = state.slots[request.role] = state.slots.get(request.role, 0) + 1
        guest = make_guest(
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
        number = 4096 * HOSTS.index(request.role) + slot
        return replace(guest, port=f"pw{state.token}{number:04x}", port_index=20_000 + number)

    def _introduce(
        self,
        setting: Setting,
        states: Mapping[HostRole, _HostState],
        placed: Mapping[HostRole, Sequence[PlacedGuest]],
    ) -> None:
        """Gives each guest its peer's MAC, so that no measurement contains an address resolution.

        Background guests, too: their requests would be counted as their load.
        """
        for role, other in zip(HOSTS, reversed(HOSTS), strict=True):
            state, site = states[role], self._site(states[role])
            pairs = [
                (local, remote.guest)
                for local, remote in zip(placed[role], placed[other], strict=True)
                if local.peer != (remote.guest.ipv4, remote.guest.mac)
            ]
            steps: list[Step] = []
            for local, peer in pairs:
                path = plane(local.guest.plane)
                steps += path.introduce(site, local.guest, peer, setting.within_host)
            state.perform(steps)
            for local, peer in pairs:
                local.peer = (peer.ipv4, peer.mac)


@contextmanager
def local_testbed(setting: Setting, mtu_bytes: int = 1500) -> Iterator[Arrangement]:
    """Builds a setting on this machine, on a testbed of its own.

    Raises:
        UnsupportedError: this machine lacks something.
        PlanewiseError: it could not be built.
    """
    what = f"testbed {setting.plane}, {setting.background_guests} background guests"
    with local_pair(mtu_bytes, what=what) as pair, Testbed(pair, mtu_bytes) as testbed:
        reason = impossible(setting, local=True) or shortage(
            setting, testbed.resources("sender"), False
        )
        if reason:
            raise UnsupportedError(reason, remedy=plane(setting.plane).remedy)
        with testbed.arrange(setting) as arrangement:
            yield arrangement


def impossible(setting: Setting, *, local: bool = False) -> str:
    """Why no pair of hosts can have a setting, as a sentence; empty when one can. Pure.

    `local`: a pair of namespaces of this machine.
    """
    for name in sorted(setting.planes):
        if reason := refusal(name, setting.kind, local=local):
            return reason
    if setting.kind not in MAKERS:
        return f"guests that are {GUEST_WORDS[setting.kind][1]} cannot be started on this testbed"
    return setting.conflict


def shortage(setting: Setting, resources: Resources, with_vfs: bool) -> str:
    """What a machine lacks for a setting, as a sentence; empty when it suffices. Pure.

    `with_vfs`: its NIC has VFs at that time.
    """
    if lacking := MAKERS[setting.kind].lacking(resources):
        return lacking
    for name in sorted(setting.planes):
        if lacking := plane(name).lacking(resources):
            return lacking
    needed = setting.vfs_a_host()
    if needed and not resources.vfs:
        return f"{resources.nic} of {resources.place} has no SR-IOV"
    if needed > resources.vfs:
        return f"needs {needed} VFs on {resources.place}, and {resources.nic} has {resources.vfs}"
    filters = MAC_FILTERS.get(resources.driver)
    behind = setting.addresses_behind_nic()
    if with_vfs and filters and not setting.within_host:
        spare = filters - 1 - resources.vfs
        if behind > spare:
            return (
                f"needs {behind} MAC addresses behind {resources.nic} of {resources.place}, and "
                f"{resources.driver} takes {spare} beside its VFs"
            )
    memory = setting.guests_a_host() * MAKERS[setting.kind].memory_mib + SPARE_MIB
    if memory > resources.free_mib:
        return (
            f"{setting.guests_a_host()} {setting.kind}s on {resources.place} need about "
            f"{memory} MiB, and {resources.free_mib} MiB are free"
        )
    return ""


def smallest_plan(plane: Plane, role: HostRole, token: str, mtu_bytes: int) -> Plan:
    """A plane with one guest, on a NIC that is a veth pair, all in namespaces of its own. Pure."""
    names: dict[HostRole, str] = {host: f"pw-{token}-x{role[0]}{host[0]}" for host in HOSTS}
    site = Site("sender", names["sender"], "wire0", mtu_bytes)
    steps: list[Step] = [*plan_pair(names, mtu_bytes).steps]
    if plane.switch is not None:
        steps += plane.switch.steps(site)
        site = site.on(plane.switch.interface(site))
    netns = f"pw-{token}-x{role[0]}g"
    guest = Guest(
        "try", "sender", "main", 0, plane.name, netns, GUEST_INTERFACE,
        "02:70:77:00:ff:ff", "198.18.254.1", "2001:2:0:1::fffe", f"pw{token}ffff", 29_999,
    )  # fmt: skip
    guest = plane.adopt(site, guest)
    steps += [*plane.prepare(site), *new_namespace(netns), *plane.attach(site, guest)]
    return Plan(tuple(steps))


def _remove_dead(state: _HostState) -> None:
    """Removes guests whose container ended, and takes their VFs back."""
    running = state.running
    if running is None:
        return
    for request, placed in list(state.placed.items()):
        if placed.container is not None and placed.container.name not in running:
            _remove(state, request)


def _remove(state: _HostState, request: GuestRequest) -> None:
    """Ends a guest and takes its VF back, as far as that can be done."""
    placed = state.placed.pop(request)
    with suppress(PlanewiseError):
        plane(request.plane).unplug(state, placed)
    with suppress(PlanewiseError):
        MAKERS[request.kind].remove(state, placed)


def _check_alive(state: _HostState, requests: Sequence[GuestRequest]) -> None:
    """Raises PlanewiseError when the container of one of these guests ended."""
    running = state.running
    if running is None:
        return
    for request in requests:
        container = state.placed[request].container
        if container is not None and container.name not in running:
            state.docker.check(container.name)


def _free_vfs(state: _HostState, requests: Sequence[GuestRequest]) -> None:
    """Takes VFs from guests that are not requested, where too few are free."""
    needed = sum(
        plane(request.plane).vfs
        for request in requests
        if not (request in state.placed and state.placed[request].attached)
    )
    if not needed:
        return
    for request, placed in list(state.placed.items()):
        if state.vfs.free >= needed:
            return
        if placed.vf is not None and request not in requests:
            plane(request.plane).unplug(state, placed)
            placed.attached, placed.peer = False, ("", "")
