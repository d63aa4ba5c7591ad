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
from planewise.testbed.guests import MAKERS
from planewise.testbed.guests.container import JoiningHost
from planewise.testbed.machine import (
    MAC_FILTERS,
    MachineState,
    PlacedGuest,
    Resources,
    remove_namespaces,
    remove_traces,
    survey,
)
from planewise.testbed.model import (
    GUEST_INTERFACE,
    HOSTS,
    Guest,
    HostRole,
    Site,
    make_guest,
    other_host,
)
from planewise.testbed.pair import Pair, local_pair, plan_pair
from planewise.testbed.plan import (
    AcceptAddress,
    AwaitUp,
    DeleteLink,
    Plan,
    SetMtu,
    SetUp,
    Step,
    new_namespace,
)
from planewise.testbed.planes import plane, refusal, switch_named
from planewise.testbed.planes.kinds import GUEST_WORDS
from planewise.testbed.planes.plane import Plane
from planewise.testbed.setting import Arrangement, Setting, WantedGuest
from planewise.testbed.together import together

SPARE_MIB = 128
"""Memory that a host keeps for itself."""


class _Host(MachineState):
    """What stands on one machine, with its guests."""

    def __init__(self, state: MachineState) -> None:
        super().__init__(state.machine, state.role, state.token)
        self.placed: dict[WantedGuest, PlacedGuest] = {}
        self.slots: dict[HostRole, int] = {}
        self.prepared: dict[str, Plane] = {}
        """By what they prepare, planes that are prepared on the uplink."""


def _initial_hosts(pair: Pair) -> dict[HostRole, _Host]:
    return {
        role: _Host(MachineState(machine, role, pair.token))
        for role, machine in pair.machines.items()
    }


class Testbed:
    """Two hosts, and the guests that settings ask for.

    Everything that it makes carries the pair's token; `close` removes it.
    """

    __test__ = False  # not a test class, whatever its name says to pytest

    def __init__(self, pair: Pair, mtu_bytes: int) -> None:
        self.pair = pair
        self._mtu_bytes = mtu_bytes
        self._hosts = _initial_hosts(pair)
        self._resources: dict[HostRole, Resources] = {}
        self._tried: dict[tuple[HostRole, str], str] = {}
        self._with_vfs = False

    def expect(self, settings: Iterable[Setting]) -> dict[Setting, str]:
        """Why these settings cannot stand here; those that can are left out. Changes nothing.

        All that will be asked for belongs into one call: where one needs VFs, the NIC has them all
        the time, so that every setting finds the same NIC.
        """
        wanted = tuple(settings)
        reasons = {setting: self.unavailable_reason(setting) for setting in wanted}
        if any(one.vfs_a_host() and not reason for one, reason in reasons.items()):
            self._with_vfs = True
            reasons = {setting: self.unavailable_reason(setting) for setting in wanted}
        return {setting: reason for setting, reason in reasons.items() if reason}

    def unavailable_reason(self, setting: Setting) -> str:
        """Why this setting cannot stand here; empty when it can. What is tried is removed again."""
        if reason := impossible(setting, here=not self.pair.separate):
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
        """What a machine has, as it was when it was first asked."""
        if role not in self._resources:
            self._resources[role] = survey(self._hosts[role].machine)
        return self._resources[role]

    def _refused(self, role: HostRole, wanted: Plane) -> str:
        """Why the kernel of a host cannot build a plane, found out by building it in namespaces of
        their own; empty where it can, or where that is not for a kernel alone to say."""
        if wanted.needs:
            return ""
        key = (role, wanted.name)
        if key not in self._tried:
            here = self._hosts[role]
            smallest = smallest_plan(wanted, role, here.token, self._mtu_bytes)
            try:
                here.host.perform(smallest)
                self._tried[key] = ""
            except PlanewiseError as error:
                self._tried[key] = error.what
            finally:
                remove_namespaces(here.machine, smallest.namespaces)
        return self._tried[key]

    @contextmanager
    def arrange(self, setting: Setting) -> Iterator[Arrangement]:
        """Makes a setting stand: builds what is missing, reuses what is there.

        Raises:
            UnsupportedError: a machine lacks something.
            PlanewiseError: it could not be built, or a guest was found dead at the end.
        """
        hosts = self._hosts_of(setting)
        wanted = {role: list(setting.wanted(role)) for role in HOSTS}
        work: dict[int, tuple[_Host, list[WantedGuest]]] = {}
        for role, here in hosts.items():
            work.setdefault(id(here), (here, []))[1].extend(wanted[role])
        # Netlink alone keeps one thread of Python busy; two would only wait for one another.
        waits = self.pair.separate or MAKERS[setting.kind].waits
        together(
            [partial(self._prepare, here, guests) for here, guests in work.values()],
            workers=2 if waits else 1,
        )
        placed = {role: [hosts[role].placed[one] for one in wanted[role]] for role in HOSTS}
        self._introduce(setting, hosts, placed)
        joined = {
            one.guest.netns: one.container
            for guests in placed.values()
            for one in guests
            if one.container is not None
        }
        yield Arrangement(
            setting,
            {
                role: JoiningHost(hosts[role].host, joined) if joined else hosts[role].host
                for role in HOSTS
            },
            {role: placed[role][0].guest for role in HOSTS},
            {
                role: tuple(placed_guest.guest for placed_guest in placed[role][1:])
                for role in HOSTS
            },
            {role: self._site(hosts[role]) for role in HOSTS},
            {role: placed[role][0].port for role in HOSTS},
        )
        for here, guests in work.values():
            _check_alive(here, guests)

    def close(self) -> None:
        """Removes everything, also when a part of it fails; the next setting builds anew.

        Raises:
            PlanewiseError: something could not be removed.
        """
        hosts = tuple(self._hosts.values())
        self._hosts = _initial_hosts(self.pair)
        with ExitStack() as last:
            if self.pair.separate:
                traces = [
                    partial(remove_traces, here.host, here.machine.nic, here.token)
                    for here in hosts
                ]
                last.callback(together, traces)
            # VFs come home before their namespaces go, containers before the bridges.
            last.callback(together, [here.close for here in hosts])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One host.

    def _prepare(self, here: _Host, wanted: Sequence[WantedGuest]) -> None:
        _forget_dead(here)
        planes = {one.plane: plane(one.plane) for one in wanted}
        before = set(here.placed)
        try:
            self._build(here, wanted, planes.values())
        except BaseException:
            # Half of a guest is no guest: the next setting makes it anew.
            for one in here.placed.keys() - before:
                _forget(here, one)
            raise

    def _build(self, here: _Host, wanted: Sequence[WantedGuest], planes: Collection[Plane]) -> None:
        steps = self._set_up_nic(here, planes)
        if self._with_vfs:
            _ = here.vfs  # the NIC has them all the time
        _free_vfs(here, wanted)
        self._make_guests(here, wanted, steps)

    def _set_up_nic(self, here: _Host, planes: Collection[Plane]) -> list[Step]:
        """Makes the NIC a port of the switch that these planes want.

        Returns:
            The steps that ready it for them, still to be done.
        """
        site = self._site(here)
        steps: list[Step] = []
        if not here.nic_up:
            if self._mtu_bytes != 1500 and self.pair.separate:
                steps.append(SetMtu(site.netns, site.nic, self._mtu_bytes))
            steps.append(SetUp(site.netns, site.nic))
            here.nic_up = True
        wanted = next((one.switch for one in planes if one.switch is not None), None)
        if here.switch != (wanted.name if wanted else ""):
            steps += self._leave_switch(here)
            if wanted is not None:
                if wanted.name not in here.switches:
                    here.perform(steps)
                    steps = list(wanted.create(here, site))
                    here.switches.add(wanted.name)
                    site = self._site(here)
                steps += wanted.add_nic(site)
            here.switch = wanted.name if wanted else ""
        site = self._site(here)
        for one in planes:
            if one.preparation not in here.prepared:
                steps += one.prepare(site)
                here.prepared[one.preparation] = one
        return steps

    def _leave_switch(self, here: _Host) -> list[Step]:
        """Steps that free the NIC; what sits on the old uplink goes, as no plane's interface
        follows the NIC."""
        site = self._site(here)
        steps: list[Step] = []
        for one in here.prepared.values():
            steps += one.withdraw(site)
        here.prepared.clear()
        for placed in here.placed.values():
            placed.knows = ("", "")
            if plane(placed.guest.plane).on_uplink and placed.attached:
                steps.append(DeleteLink(placed.guest.netns, GUEST_INTERFACE))
                placed.attached = False
        before = switch_named(here.switch)
        return steps if before is None else [*steps, *before.release_nic(site)]

    def _make_guests(self, here: _Host, wanted: Sequence[WantedGuest], steps: list[Step]) -> None:
        """Performs `steps`, makes guests that are missing and plugs them in, with those that lost
        their interface."""
        site = self._site(here)
        for kind, maker in MAKERS.items():
            missing = [one for one in wanted if one.kind == kind and one not in here.placed]
            guests = [plane(one.plane).adopt(site, self._guest(here, one)) for one in missing]
            if guests and maker.waits:
                here.perform(steps)
                steps = []
            if guests:
                here.placed |= dict(zip(missing, maker.create(here, guests), strict=True))
            for one, guest in zip(missing, guests, strict=True):
                steps += maker.steps(guest)
                # Guest by guest: netlink sockets are by namespace, and few are kept.
                steps += self._plug(here, site, [one]) if plane(one.plane).by_steps else ()
        mains = [one for one in wanted if one.use == "main"]
        ready = [
            *(AwaitUp(here.placed[main].guest.netns) for main in mains),
            AwaitUp(site.netns, "" if site.netns else site.nic),
        ]
        loose = [one for one in wanted if not here.placed[one].attached]
        if loose:
            here.perform(steps)
            steps = self._plug(here, site, loose)
        if steps or loose:
            here.perform([*steps, *ready])
        for one in mains:
            placed = here.placed[one]
            placed.port = placed.port or plane(one.plane).port(here, placed.guest)

    def _plug(self, here: _Host, site: Site, wanted: Sequence[WantedGuest]) -> list[Step]:
        """Steps that give guests their interfaces, plane by plane."""
        steps: list[Step] = []
        for name in dict.fromkeys(one.plane for one in wanted):
            placed = [here.placed[one] for one in wanted if one.plane == name]
            steps += plane(name).plug(here, site, placed)
        for one in wanted:
            here.placed[one].attached = True
            if self._with_vfs and here.role == one.role and plane(one.plane).switch is not None:
                steps.append(AcceptAddress(site.netns, site.nic, here.placed[one].guest.mac))
        return steps

    # Both hosts.

    def _hosts_of(self, setting: Setting) -> Mapping[HostRole, _Host]:
        return dict.fromkeys(HOSTS, self._hosts["sender"]) if setting.within_host else self._hosts

    def _site(self, here: _Host) -> Site:
        machine = here.machine
        site = Site(
            here.role,
            machine.netns,
            machine.nic,
            self._mtu_bytes,
            machine.nic,
            machine.bridge,
            machine.docker_bridge,
            self.resources(here.role).mac,
            self.resources(other_host(here.role)).mac,
            here.directory,
        )
        switch = switch_named(here.switch)
        return site if switch is None else site.on(switch.interface(site))

    def _guest(self, here: _Host, wanted: WantedGuest) -> Guest:
        slot = here.slots[wanted.role] = here.slots.get(wanted.role, 0) + 1
        guest = make_guest(
            here.token,
            wanted.role,
            wanted.use,
            wanted.index,
            wanted.plane,
            slot,
            # East-west, guests of both roles live on one machine, and those that talk north-south
            # share the segment with them.
            away=here.role != wanted.role,
        )
        number = 4096 * HOSTS.index(wanted.role) + slot
        return replace(guest, port=f"pw{here.token}{number:04x}", port_index=20_000 + number)

    def _introduce(
        self,
        setting: Setting,
        hosts: Mapping[HostRole, _Host],
        placed: Mapping[HostRole, Sequence[PlacedGuest]],
    ) -> None:
        """Guests know their peer's MAC, so that no address is looked up in a measurement.

        Background guests, too: what they ask would be counted as their load.
        """
        for role, other in zip(HOSTS, reversed(HOSTS), strict=True):
            here, site = hosts[role], self._site(hosts[role])
            pairs = [
                (one, their.guest)
                for one, their in zip(placed[role], placed[other], strict=True)
                if one.knows != (their.guest.ipv4, their.guest.mac)
            ]
            steps: list[Step] = []
            for one, peer in pairs:
                known = plane(one.guest.plane)
                steps += known.introduce(site, one.guest, peer, setting.within_host)
            if steps:
                here.perform(steps)
            for one, peer in pairs:
                one.knows = (peer.ipv4, peer.mac)


@contextmanager
def stand_here(setting: Setting, mtu_bytes: int = 1500) -> Iterator[Arrangement]:
    """A setting on a testbed of its own on this machine.

    Raises:
        UnsupportedError: this machine lacks something.
        PlanewiseError: it could not be built.
    """
    what = f"testbed {setting.plane}, {setting.background_guests} background guests"
    with local_pair(mtu_bytes, what=what) as pair, Testbed(pair, mtu_bytes) as testbed:
        reason = impossible(setting, here=True) or shortage(
            setting, testbed.resources("sender"), False
        )
        if reason:
            raise UnsupportedError(reason, remedy=plane(setting.plane).remedy)
        with testbed.arrange(setting) as standing:
            yield standing


def impossible(setting: Setting, *, here: bool = False) -> str:
    """Why no pair of hosts can have a setting, as a sentence; empty when one can. Pure.

    `here`: a pair of namespaces of this machine.
    """
    for name in sorted(setting.planes):
        if reason := refusal(name, setting.kind, here=here):
            return reason
    if setting.kind not in MAKERS:
        return f"guests that are {GUEST_WORDS[setting.kind][1]} cannot be started on this testbed"
    return setting.conflict


def shortage(setting: Setting, found: Resources, with_vfs: bool) -> str:
    """What a machine lacks for a setting, as a sentence; empty when it suffices. Pure.

    `with_vfs`: its NIC has VFs at that time.
    """
    if lacking := MAKERS[setting.kind].lacking(found):
        return lacking
    for name in sorted(setting.planes):
        if lacking := plane(name).lacking(found):
            return lacking
    needed = setting.vfs_a_host()
    if needed and not found.vfs:
        return f"{found.nic} of {found.place} has no SR-IOV"
    if needed > found.vfs:
        return f"needs {needed} VFs on {found.place}, and {found.nic} has {found.vfs}"
    filters = MAC_FILTERS.get(found.driver)
    behind = setting.addresses_behind_nic()
    if with_vfs and filters and not setting.within_host:
        spare = filters - 1 - found.vfs
        if behind > spare:
            return (
                f"needs {behind} MAC addresses behind {found.nic} of {found.place}, and "
                f"{found.driver} takes {spare} beside its VFs"
            )
    memory = setting.guests_a_host() * MAKERS[setting.kind].memory_mib + SPARE_MIB
    if memory > found.free_mib:
        return (
            f"{setting.guests_a_host()} {setting.kind}s on {found.place} need about {memory} MiB, "
            f"and {found.free_mib} MiB are free"
        )
    return ""


def smallest_plan(wanted: Plane, role: HostRole, token: str, mtu_bytes: int) -> Plan:
    """A plane with one guest, on a NIC that is a veth pair, all in namespaces of its own. Pure."""
    names: dict[HostRole, str] = {one: f"pw-{token}-x{role[0]}{one[0]}" for one in HOSTS}
    site = Site("sender", names["sender"], "wire0", mtu_bytes)
    steps: list[Step] = [*plan_pair(names, mtu_bytes).steps]
    if wanted.switch is not None:
        steps += wanted.switch.steps(site)
        site = site.on(wanted.switch.interface(site))
    netns = f"pw-{token}-x{role[0]}g"
    guest = Guest(
        "try", "sender", "main", 0, wanted.name, netns, GUEST_INTERFACE,
        "02:70:77:00:ff:ff", "198.18.254.1", "2001:2:0:1::fffe", f"pw{token}ffff", 29_999,
    )  # fmt: skip
    guest = wanted.adopt(site, guest)
    steps += [*wanted.prepare(site), *new_namespace(netns), *wanted.attach(site, guest)]
    return Plan(tuple(steps))


def _forget_dead(here: _Host) -> None:
    """Forgets guests whose container ended, and takes their VFs back."""
    running = here.running
    if running is None:
        return
    for wanted, placed in list(here.placed.items()):
        if placed.container is not None and placed.container.name not in running:
            _forget(here, wanted)


def _forget(here: _Host, wanted: WantedGuest) -> None:
    """Ends a guest, and takes back what it held, as far as that can be done."""
    placed = here.placed.pop(wanted)
    with suppress(PlanewiseError):
        plane(wanted.plane).unplug(here, placed)
    with suppress(PlanewiseError):
        MAKERS[wanted.kind].remove(here, placed)


def _check_alive(here: _Host, guests: Sequence[WantedGuest]) -> None:
    """PlanewiseError when the container of one of these guests ended."""
    running = here.running
    if running is None:
        return
    for wanted in guests:
        container = here.placed[wanted].container
        if container is not None and container.name not in running:
            here.docker.check(container.name)


def _free_vfs(here: _Host, wanted: Sequence[WantedGuest]) -> None:
    """Takes VFs from guests that this setting leaves idle, where they do not suffice."""
    needed = sum(
        plane(one.plane).vfs
        for one in wanted
        if not (one in here.placed and here.placed[one].attached)
    )
    if not needed:
        return
    for other, placed in list(here.placed.items()):
        if here.vfs.free >= needed:
            return
        if placed.vf is not None and other not in wanted:
            plane(other.plane).unplug(here, placed)
            placed.attached, placed.knows = False, ("", "")
