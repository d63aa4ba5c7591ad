"""A testbed on hosts that processes are started on: servers reached by ssh, or namespaces here.

Builds guests (namespaces, containers) behind planes on each host's NIC as settings ask for them,
keeps them for the next setting, and removes everything in the end. Knows no measurement. What
`namespaces.py` does through netlink for namespaces of this machine is done here by commands, so
that a host may be anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, Self

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.store.models import Metric
from planewise.testbed import script
from planewise.testbed.containers import (
    GUEST_MIB,
    REMOVE_CGROUPS,
    Container,
    Docker,
    join_command,
)
from planewise.testbed.host import Finished, Host, HostProcess, LocalHost
from planewise.testbed.model import (
    GUEST_INTERFACE,
    HOSTS,
    CapturePoint,
    CounterPoint,
    Guest,
    GuestRole,
    HostRole,
    Site,
    TrialPath,
)
from planewise.testbed.namespaces import new_namespace
from planewise.testbed.plan import (
    AcceptAddress,
    AddBridge,
    AwaitUp,
    DeleteLink,
    Plan,
    ReleaseMaster,
    SetMaster,
    SetMtu,
    SetUp,
    Step,
)
from planewise.testbed.planes.bridge import BridgePlane
from planewise.testbed.planes.kinds import GuestKind
from planewise.testbed.planes.macvlan import MacvlanPlane
from planewise.testbed.planes.plane import Plane, neighbours, on_link
from planewise.testbed.vfs import VfPool

PLANES = ("bridge", "macvlan", "docker-bridge", "vf")
"""Planes that can be built on such hosts."""

NAMESPACE_MIB = 3
"""Memory that an idle namespace with a process in it takes."""

SPARE_MIB = 128
"""Memory that a host keeps for itself."""

_WORKERS = 2
"""Containers that a host starts at a time."""

TrafficPath = Literal["north-south", "east-west"]
Attachment = Literal["nic", "bridge", "docker-bridge"]

_PLANES: Mapping[str, Plane] = {"bridge": BridgePlane(), "macvlan": MacvlanPlane()}


@dataclass(frozen=True)
class Machine:
    """A host with the NIC that the testbed may use there."""

    host: Host
    nic: str
    letter: str
    """`s` or `r`: the role whose guests live on it when traffic goes north-south."""
    bridge: str
    """What our bridge is called there."""
    docker_bridge: str
    second_nic: str = ""
    """A NIC on another wire to the other machine, for our bridge: guests on the bridge and guests
    on the NIC can then stand side by side. Empty where there is none."""
    netns: str = ""
    """The namespace of this machine that stands for it; empty for a machine."""

    @property
    def bridge_nic(self) -> str:
        """The NIC that our bridge takes."""
        return self.second_nic or self.nic


@dataclass(frozen=True)
class Setting:
    """What a measurement wants to find: main guests on one plane, background guests on another."""

    kind: GuestKind
    plane: str
    background_plane: str
    background_guests: int
    path: TrafficPath

    @property
    def planes(self) -> frozenset[str]:
        """The planes in use."""
        used = {self.plane}
        if self.background_guests:
            used.add(self.background_plane)
        return frozenset(used)

    def guests_a_host(self) -> int:
        """Guests on a host that has any."""
        each = 1 + self.background_guests
        return each if self.path == "north-south" else 2 * each

    def vfs_a_host(self) -> int:
        """VFs that a host needs."""
        each = (self.plane == "vf") + self.background_guests * (self.background_plane == "vf")
        return each if self.path == "north-south" else 2 * each


@dataclass(frozen=True)
class Arrangement:
    """A setting that stands: what measurements and loads need to know of it."""

    setting: Setting
    hosts: Mapping[HostRole, Host]
    mains: Mapping[HostRole, Guest]
    backgrounds: Mapping[HostRole, tuple[Guest, ...]]
    sites: Mapping[HostRole, Site]
    ports: Mapping[HostRole, str]
    """The host side of the main guests; empty where there is none."""

    @property
    def shared(self) -> bool:
        """Whether both main guests live on one host."""
        return self.setting.path == "east-west"

    def main(self, host: HostRole) -> Guest:
        """The measured guest of a role."""
        return self.mains[host]

    def background(self, host: HostRole) -> tuple[Guest, ...]:
        """The background guests of a role."""
        return self.backgrounds[host]

    @property
    def capture_points(self) -> tuple[CapturePoint, ...]:
        """Where probe packets can be seen, along their way from the sender.

        A VF is its guest's NIC: its netdev is the point. Within one host, other planes' frames
        reach no NIC.
        """
        points: list[CapturePoint] = []
        for role in HOSTS:
            guest, here = self.mains[role], []
            if self.ports[role]:
                here.append(CapturePoint(f"{role}_guest", role, "", self.ports[role]))
            if guest.plane == "vf":
                here.append(CapturePoint(f"{role}_nic", role, guest.netns, guest.interface))
            elif not self.shared:
                here.append(CapturePoint(f"{role}_nic", role, "", self.sites[role].nic))
            points += here if role == "sender" else reversed(here)
        return tuple(points)

    @property
    def counter_points(self) -> tuple[CounterPoint, ...]:
        """Every interface of the hosts on the way between the main guests."""
        points: list[CounterPoint] = []
        for role in HOSTS:
            guest, site = self.mains[role], self.sites[role]
            here = [CounterPoint(role, guest.netns, guest.interface)]
            if self.ports[role]:
                here.append(CounterPoint(role, "", self.ports[role]))
            if guest.plane != "vf" and not self.shared:
                here.append(CounterPoint(role, "", site.nic))
            points += here if role == "sender" else reversed(here)
        return tuple(points)

    @property
    def not_measurable(self) -> Mapping[Metric, str]:
        """Metrics that do not exist for the main guests' plane, with the reason."""
        if self.shared and self.setting.plane != "vf":
            why = "between guests of one host no frame reaches the NIC"
            return {"overhead": why, "response": why}
        return {}

    def trial_path(self) -> TrialPath:
        """From the sender's main guest to the responder's."""
        sender, responder = self.mains["sender"], self.mains["responder"]
        return TrialPath(
            tx_netns=sender.netns,
            tx_interface=sender.interface,
            rx_netns=responder.netns,
            rx_interface=responder.interface,
            source_mac=sender.mac,
            next_hop_mac=responder.mac,
            source_ipv4=sender.ipv4,
            destination_ipv4=responder.ipv4,
            source_ipv6=sender.ipv6,
            destination_ipv6=responder.ipv6,
        )


@dataclass
class _Placed:
    """A guest that stands on a machine."""

    guest: Guest
    kind: GuestKind
    attached: bool = False
    container: Container | None = None
    knows: tuple[str, str] = ("", "")
    """Address and MAC of the peer that it was told of."""
    vf: int | None = None
    """Number of the VF that it holds."""
    port: str = ""


@dataclass(frozen=True)
class _Want:
    """A guest as a setting asks for it: the same wish finds the same guest again."""

    role: HostRole
    use: GuestRole
    index: int
    kind: GuestKind
    plane: str


@dataclass
class _Yard:
    """What stands on one machine."""

    machine: Machine
    attachment: Attachment = "nic"
    ready: bool = False
    """Whether the NIC was set up."""
    bridges: set[Attachment] = field(default_factory=set)
    """Which bridges were made."""
    placed: dict[_Want, _Placed] = field(default_factory=dict)
    docker: Docker | None = None
    vfs: VfPool | None = None
    slots: dict[HostRole, int] = field(default_factory=dict)
    opened: ExitStack = field(default_factory=ExitStack)
    """Closes what was opened here."""


class HostedTestbed:
    """Two machines, and the guests that settings ask for.

    Everything that it makes carries `token`; `close` removes it.
    """

    def __init__(self, machines: Mapping[HostRole, Machine], token: str, mtu_bytes: int) -> None:
        self._token = token
        self._mtu_bytes = mtu_bytes
        self._yards = {role: _Yard(machine) for role, machine in machines.items()}
        self._resources: dict[str, Resources] = {}
        self._with_vfs = False

    def expect(self, settings: Iterable[Setting]) -> dict[Setting, str]:
        """Why these settings cannot stand here; those that can are left out. Changes nothing.

        All that will be asked for belongs into one call: where one needs VFs, the NIC has them all
        the time, so that every setting finds the same NIC.
        """
        wanted = tuple(settings)
        reasons = {setting: self.why_not(setting) for setting in wanted}
        if any("vf" in one.planes and not reason for one, reason in reasons.items()):
            self._with_vfs = True
            reasons = {setting: self.why_not(setting) for setting in wanted}
        return {setting: reason for setting, reason in reasons.items() if reason}

    def why_not(self, setting: Setting) -> str:
        """Why this setting cannot stand here; empty when it can. Changes nothing."""
        unknown = sorted(setting.planes - set(PLANES))
        if unknown:
            return (
                f"the plane {unknown[0]} cannot be built for {setting.kind}s on these hosts "
                f"(only {', '.join(PLANES)})"
            )
        if {"bridge", "docker-bridge"} <= setting.planes:
            return "bridge and docker-bridge cannot both have the NIC"
        if setting.path == "east-west":
            roles: tuple[HostRole, ...] = ("sender",)
        else:
            roles = HOSTS
        for role in roles:
            reason = shortage(setting, self.resources(role), self._with_vfs)
            if reason:
                return reason
        return ""

    def resources(self, role: HostRole) -> Resources:
        """What a machine has, as it was when it was first asked."""
        if role not in self._resources:
            self._resources[role] = survey(self._yards[role].machine)
        return self._resources[role]

    @contextmanager
    def arrange(self, setting: Setting) -> Iterator[Arrangement]:
        """Makes a setting stand: builds what is missing, reuses what is there.

        Raises:
            UnsupportedError: a machine lacks something.
            PlanewiseError: it could not be built, or a guest was found dead at the end.
        """
        yards = self._yards_of(setting)
        wants = {role: list(_wants(setting, role)) for role in HOSTS}
        work: dict[int, tuple[_Yard, list[_Want]]] = {}
        for role, yard in yards.items():
            work.setdefault(id(yard), (yard, []))[1].extend(wants[role])
        _together([partial(self._prepare, yard, all_) for yard, all_ in work.values()])
        placed = {role: [yards[role].placed[want] for want in wants[role]] for role in HOSTS}
        self._acquaint(setting, yards, {role: placed[role][0] for role in HOSTS})
        joined = {
            one.guest.netns: one.container
            for all_ in placed.values()
            for one in all_
            if one.container is not None
        }
        yield Arrangement(
            setting,
            {role: JoiningHost(yards[role].machine.host, joined) for role in HOSTS},
            {role: placed[role][0].guest for role in HOSTS},
            {role: tuple(one.guest for one in placed[role][1:]) for role in HOSTS},
            {role: self._site(role, yards[role], setting.planes) for role in HOSTS},
            {role: placed[role][0].port for role in HOSTS},
        )
        for yard, all_ in work.values():
            self._check_alive(yard, all_)

    def close(self) -> None:
        """Removes everything, also when a part of it fails.

        Raises:
            PlanewiseError: something could not be removed.
        """
        yards = {id(yard.machine.host): yard for yard in self._yards.values()}.values()
        with ExitStack() as last:
            # Namespaces that stand in for machines see each other's guests: one after the other.
            one = any(isinstance(yard.machine.host, LocalHost) for yard in yards)
            traces = [
                partial(remove_traces, yard.machine.host, yard.machine.nic, self._token)
                for yard in yards
            ]
            last.callback(_together, traces, 1 if one else _MACHINES)
            # VFs come home before their namespaces go, containers before the bridges.
            last.callback(_together, [partial(self._clear, yard) for yard in yards])

    def _clear(self, yard: _Yard) -> None:
        yard.placed.clear()
        yard.docker = yard.vfs = None
        yard.opened.pop_all().close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # One machine.

    def _prepare(self, yard: _Yard, wants: Sequence[_Want]) -> None:
        self._drop_dead(yard)
        planes = frozenset(want.plane for want in wants)
        self._attach_nic(yard, attachment_for(planes))
        missing = [want for want in wants if want not in yard.placed]
        if self._with_vfs:
            self._vfs(yard)
        if "vf" in planes:
            self._free_vfs(yard, wants)
        self._create(yard, missing)
        self._plug(yard, [want for want in wants if not yard.placed[want].attached])

    def _drop_dead(self, yard: _Yard) -> None:
        """Forgets guests whose container ended, and brings their VFs home."""
        if yard.docker is None:
            return
        alive = yard.docker.running()
        for want, placed in list(yard.placed.items()):
            if placed.container is not None and placed.container.name not in alive:
                self._remove(yard, want)

    def _check_alive(self, yard: _Yard, wants: Sequence[_Want]) -> None:
        if yard.docker is None:
            return
        alive = yard.docker.running()
        for want in wants:
            container = yard.placed[want].container
            if container is not None and container.name not in alive:
                yard.docker.check(container.name)

    def _attach_nic(self, yard: _Yard, wanted: Attachment) -> None:
        machine = yard.machine
        steps: list[Step] = []
        if wanted == "docker-bridge" and "docker-bridge" not in yard.bridges:
            number = HOSTS.index("sender" if machine.letter == "s" else "responder")
            self._docker(yard).add_network(
                f"pw-{self._token}",
                machine.docker_bridge,
                "198.18.0.0/15",
                f"198.{18 + number}.255.253",
                self._mtu_bytes,
            )
        if wanted == "bridge" and "bridge" not in yard.bridges:
            mac = f"02:70:77:3{HOSTS.index('sender' if machine.letter == 's' else 'responder')}:"
            steps += [
                AddBridge("", machine.bridge, f"{mac}00:00", self._mtu_bytes),
                SetUp("", machine.bridge),
            ]
        if yard.attachment != wanted:
            if yard.attachment != "nic":
                steps.append(ReleaseMaster("", machine.nic))
            for placed in yard.placed.values():
                # A macvlan and a bridge cannot share a NIC, nor does one follow the other.
                if placed.guest.plane == "macvlan" and placed.attached:
                    steps.append(DeleteLink(placed.guest.netns, GUEST_INTERFACE))
                    placed.attached, placed.knows = False, ("", "")
            if wanted == "bridge":
                steps.append(SetMaster("", machine.nic, machine.bridge))
            elif wanted == "docker-bridge":
                steps.append(SetMaster("", machine.nic, machine.docker_bridge))
        if not yard.ready:
            if self._mtu_bytes != 1500:
                steps.append(SetMtu("", machine.nic, self._mtu_bytes))
            steps.append(SetUp("", machine.nic))
        script.perform(Plan(tuple(steps)), machine.host)
        yard.attachment, yard.ready = wanted, True
        if wanted != "nic":
            yard.bridges.add(wanted)

    def _free_vfs(self, yard: _Yard, wants: Sequence[_Want]) -> None:
        """Takes VFs from guests that this setting leaves idle, where they do not suffice."""
        pool = self._vfs(yard)
        needed = sum(
            want.plane == "vf" and not (want in yard.placed and yard.placed[want].attached)
            for want in wants
        )
        for want, placed in list(yard.placed.items()):
            if pool.free >= needed:
                return
            if placed.vf is not None and want not in wants:
                pool.bring_home(placed.vf)
                placed.vf, placed.attached, placed.knows = None, False, ("", "")

    def _create(self, yard: _Yard, wants: Sequence[_Want]) -> None:
        """Namespaces and containers, not yet plugged in."""
        guests = {want: self._guest(yard, want) for want in wants}
        steps: list[Step] = []
        for want, guest in guests.items():
            if want.kind == "namespace":
                steps += new_namespace(guest.netns)
                yard.placed[want] = _Placed(guest, want.kind)
        script.perform(Plan(tuple(steps)), yard.machine.host)
        contained = [want for want in wants if want.kind == "container"]
        if not contained:
            return
        docker = self._docker(yard)

        def start(want: _Want) -> None:
            if want.plane == "docker-bridge":
                address = {"ipv4_address": guests[want].ipv4}
                docker.run(guests[want].netns, network=f"pw-{self._token}", interface=address)
            else:
                docker.run(guests[want].netns)

        _together([partial(start, want) for want in contained], _WORKERS)
        found = docker.locate([guests[want].netns for want in contained])
        attach = "".join(f"ip netns attach {one.name} {one.pid}\n" for one in found)
        yard.machine.host.run(["sh", "-es"], stdin=attach.encode(), timeout_s=120).check()
        for want, container in zip(contained, found, strict=True):
            mac = container.mac or guests[want].mac
            yard.placed[want] = _Placed(
                replace(guests[want], mac=mac), want.kind, container=container
            )

    def _plug(self, yard: _Yard, wants: Sequence[_Want]) -> None:
        """Gives guests their interfaces."""
        steps: list[Step] = []
        virtual = [yard.placed[want] for want in wants if want.plane == "vf"]
        if virtual:
            guests = [placed.guest for placed in virtual]
            moved = self._vfs(yard).move(guests, self._mtu_bytes)
            for placed in virtual:
                vf = moved[placed.guest.netns]
                placed.vf = vf.index
                # The VF's own address: setting another means binding its driver anew.
                placed.guest = replace(placed.guest, mac=vf.config.mac)
                steps += on_link(placed.guest)
        for want in wants:
            placed = yard.placed[want]
            if want.plane in _PLANES:
                site = self._site(want.role, yard, frozenset({want.plane}))
                plane = _PLANES[want.plane]
                steps += plane.attach(site, placed.guest)
                placed.port = plane.host_interface(placed.guest) or ""
            if self._with_vfs and yard.machine.letter == want.role[0] and _bridged(want.plane):
                steps.append(AcceptAddress("", yard.machine.nic, placed.guest.mac))
            placed.attached = True
        steps += [AwaitUp(yard.placed[want].guest.netns) for want in wants]
        script.perform(Plan(tuple(steps)), yard.machine.host)
        for want in wants:
            if want.plane == "docker-bridge" and want.use == "main":
                yard.placed[want].port = self._port_of(yard, yard.placed[want].guest)

    def _port_of(self, yard: _Yard, guest: Guest) -> str:
        """Docker gives the host's end of a pair a random name: found by its index."""
        host = yard.machine.host
        listed = host.run(["ip", "-n", guest.netns, "-json", "link", "show", GUEST_INTERFACE])
        index = listed.json()[0]["link_index"]
        for link in host.run(["ip", "-json", "link"]).json():
            if link["ifindex"] == index:
                return str(link["ifname"])
        return ""

    def _remove(self, yard: _Yard, want: _Want) -> None:
        placed = yard.placed.pop(want)
        if placed.vf is not None:
            self._vfs(yard).bring_home(placed.vf)
        if placed.container is not None and yard.docker is not None:
            yard.docker.remove(placed.container.name)
        yard.machine.host.run(["ip", "netns", "delete", placed.guest.netns])

    def _docker(self, yard: _Yard) -> Docker:
        if yard.docker is None:
            yard.docker = yard.opened.enter_context(Docker(yard.machine.host, self._token))
        return yard.docker

    def _vfs(self, yard: _Yard) -> VfPool:
        if yard.vfs is None:
            pool = VfPool(yard.machine.host, yard.machine.nic, self._token)
            yard.vfs = yard.opened.enter_context(pool)
        return yard.vfs

    # Both.

    def _yards_of(self, setting: Setting) -> Mapping[HostRole, _Yard]:
        if setting.path == "east-west":
            return dict.fromkeys(HOSTS, self._yards["sender"])
        return self._yards

    def _site(self, role: HostRole, yard: _Yard, planes: frozenset[str]) -> Site:
        machine = yard.machine
        uplink = machine.nic if yard.attachment == "nic" else machine.bridge
        if yard.attachment == "docker-bridge":
            uplink = machine.docker_bridge
        return Site(role, "", uplink, self._mtu_bytes, machine.nic, machine.bridge)

    def _guest(self, yard: _Yard, want: _Want) -> Guest:
        number = HOSTS.index(want.role)
        slot = yard.slots.get(want.role, 0) + 1
        yard.slots[want.role] = slot
        # East-west, guests of both roles live on one machine, and those that talk north-south
        # share the segment with them.
        away = 1 if yard.machine.letter != want.role[0] else 0
        number_on_wire = number + 2 * away
        high, low = divmod(slot, 250)
        return Guest(
            name=f"{want.role}-{want.use}{want.index}",
            host=want.role,
            role=want.use,
            index=want.index,
            plane=want.plane,
            netns=f"pw-{self._token}-{want.role[0]}{want.use[0]}{slot}{'e' * away}",
            interface=GUEST_INTERFACE,
            mac=f"02:70:77:0{number_on_wire}:{slot >> 8:02x}:{slot & 255:02x}",
            ipv4=f"198.{18 + number}.{high + 100 * away}.{1 + low}",
            ipv6=f"2001:2:0:{1 + number_on_wire}::{1 + slot:x}",
            port=f"pw{self._token}{2048 * number + slot:03x}",
            port_index=20_000 + 4096 * number + slot,
        )

    def _acquaint(
        self, setting: Setting, yards: Mapping[HostRole, _Yard], mains: Mapping[HostRole, _Placed]
    ) -> None:
        """Main guests know each other's MAC, so that no address is looked up in a measurement."""
        for role, other in zip(HOSTS, reversed(HOSTS), strict=True):
            placed, peer = mains[role], mains[other].guest
            if placed.knows == (peer.ipv4, peer.mac):
                continue
            known = neighbours(placed.guest, peer, peer.mac)
            # Docker's network has no IPv6.
            steps = known[:1] if setting.plane == "docker-bridge" else known
            script.perform(Plan(steps), yards[role].machine.host)
            placed.knows = (peer.ipv4, peer.mac)


def _wants(setting: Setting, role: HostRole) -> Iterator[_Want]:
    yield _Want(role, "main", 0, setting.kind, setting.plane)
    for index in range(setting.background_guests):
        yield _Want(role, "background", index, setting.kind, setting.background_plane)


def _bridged(plane: str) -> bool:
    return plane in ("bridge", "docker-bridge")


def attachment_for(planes: frozenset[str]) -> Attachment:
    """Where the NIC must be for guests on these planes. Pure."""
    if "bridge" in planes:
        return "bridge"
    return "docker-bridge" if "docker-bridge" in planes else "nic"


_MACHINES = 2


def _together(work: Sequence[Callable[[], None]], workers: int = _MACHINES) -> None:
    """Does all of it, some at a time; raises the first error once all have ended."""
    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(one) for one in work]:
            future.result()


# Everything that carries the token, of which nothing else takes care: namespaces, bridges, groups.
_REMOVE = (
    """
if [ -n "$2" ]; then
    ours='02:70:77:0|02:42:c6:1[23]:'
    for mac in $(bridge fdb show dev "$2" | grep self | grep -Eo "^($ours)[0-9a-f:]*"); do
        bridge fdb delete "$mac" dev "$2" self
    done
fi
for name in $(ip netns list | sed -n "s/^\\(pw-$1-[a-z0-9]*\\).*/\\1/p"); do
    for pid in $(ip netns pids "$name"); do kill -s KILL "$pid" 2>/dev/null; done
    ip netns delete "$name"
done
for link in $(ip -o link show type bridge | sed -n "s/^[0-9]*: \\(pw-$1-[a-z]*\\):.*/\\1/p"); do
    ip link delete "$link"
done
set -- "pw-$1"
"""
    + REMOVE_CGROUPS
)


def remove_traces(host: Host, nic: str, token: str) -> None:
    """Removes namespaces, bridges and control groups of this token from a host.

    And the addresses of guests from its NIC.

    Raises:
        PlanewiseError: something could not be removed.
    """
    done = host.run(["sh", "-c", _REMOVE, "sh", token, nic], timeout_s=120)
    if done.stderr.strip():
        raise PlanewiseError(
            f"not everything could be removed from {host.place}: "
            f"{done.stderr.strip().splitlines()[-1]}",
            remedy="`planewise clean` tries again",
        )


@dataclass(frozen=True)
class Resources:
    """What a machine has for guests."""

    place: str
    nic: str
    driver: str
    """Of the NIC; empty for a virtual one."""
    vfs: int
    """How many VFs its NIC can have; 0 without SR-IOV."""
    free_mib: int
    dockerd: bool


def survey(machine: Machine) -> Resources:
    """Looks at a machine.

    Raises:
        PlanewiseError: it has no such NIC, or somebody uses it.
    """
    look = (
        'cat "/sys/class/net/$1/device/sriov_totalvfs" 2>/dev/null || echo 0; '
        'basename "$(readlink "/sys/class/net/$1/device/driver" || echo none)"; '
        "sed -n 's/^MemAvailable: *//p' /proc/meminfo; "
        "if command -v dockerd >/dev/null || [ -S /run/docker.sock ]; then echo yes; "
        'else echo no; fi; ip -json address show dev "$1" 2>/dev/null'
    )
    host = machine.host
    said = host.run(["sh", "-c", look, "sh", machine.nic]).stdout
    vfs, driver, memory, dockerd, *rest = said.splitlines()
    listed = json.loads("\n".join(rest) or "[]")
    if not listed:
        raise UnsupportedError(
            f"there is no interface {machine.nic} on {host.place}",
            remedy="name the NIC to use with --nic (`ip link` there lists them)",
        )
    addresses = [
        one["local"] for one in listed[0].get("addr_info", ()) if one.get("scope") == "global"
    ]
    if addresses:
        raise PlanewiseError(
            f"{machine.nic} on {host.place} is in use: it has the address {addresses[0]}",
            remedy="name a NIC that nobody uses with --nic",
        )
    if listed[0].get("master"):
        raise PlanewiseError(
            f"{machine.nic} on {host.place} is in use: it is a port of {listed[0]['master']}",
            remedy="name a NIC that nobody uses with --nic",
        )
    return Resources(
        host.place,
        machine.nic,
        "" if driver == "none" else driver,
        int(vfs),
        int(memory.split()[0]) // 1024,
        dockerd == "yes",
    )


MAC_FILTERS = {"igb": 24, "igbvf": 24}
"""MAC addresses that a NIC with VFs can receive for, by driver, where promiscuous mode does not do
(rar_entry_count of Linux' igb for the 82576); one is its own, each VF takes one."""


def shortage(setting: Setting, found: Resources, with_vfs: bool) -> str:
    """What a machine lacks for a setting, as a sentence; empty when it suffices. Pure.

    `with_vfs`: its NIC has VFs at that time.
    """
    if setting.kind == "container" and not found.dockerd:
        return f"there is no Docker on {found.place}"
    needed = setting.vfs_a_host()
    if needed and not found.vfs:
        return f"{found.nic} of {found.place} has no SR-IOV"
    if needed > found.vfs:
        return f"needs {needed} VFs on {found.place}, and {found.nic} has {found.vfs}"
    filters = MAC_FILTERS.get(found.driver)
    bridged = _bridged(setting.plane) + setting.background_guests * _bridged(
        setting.background_plane
    )
    if with_vfs and filters and setting.path == "north-south":
        spare = filters - 1 - found.vfs
        if bridged > spare:
            return (
                f"needs {bridged} MAC addresses behind {found.nic} of {found.place}, and "
                f"{found.driver} takes {spare} beside its VFs"
            )
    each = GUEST_MIB if setting.kind == "container" else NAMESPACE_MIB
    memory = setting.guests_a_host() * each + SPARE_MIB
    if memory > found.free_mib:
        return (
            f"{setting.guests_a_host()} {setting.kind}s on {found.place} need about {memory} MiB, "
            f"and {found.free_mib} MiB are free"
        )
    return ""


class JoiningHost:
    """A host whose processes join the control groups of the container whose network they enter.

    They are in the container as far as its network and its share of CPU and memory go; their files
    are the host's, as results are written there.
    """

    def __init__(self, host: Host, containers: Mapping[str, Container]) -> None:
        self._host = host
        self._containers = containers

    def start(
        self, argv: Sequence[str], *, netns: str | None = None, stdin: bytes | None = None
    ) -> HostProcess:
        """See `Host.start`."""
        argv, netns = self.command(argv, netns)
        return self._host.start(argv, netns=netns, stdin=stdin)

    def run(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> Finished:
        """See `Host.run`."""
        argv, netns = self.command(argv, netns)
        return self._host.run(
            argv, netns=netns, timeout_s=timeout_s, stdin=stdin, expected_s=expected_s
        )

    def command(self, argv: Sequence[str], netns: str | None) -> tuple[Sequence[str], str | None]:
        """What is really started, and where, for `argv` in a namespace."""
        if netns is None or netns not in self._containers:
            return argv, netns
        return join_command(self._containers[netns], netns, argv), None

    # All else is the host's own.

    @property
    def name(self) -> str:
        """See `Host.name`."""
        return self._host.name

    @property
    def place(self) -> str:
        """See `Host.place`."""
        return self._host.place

    @property
    def probe(self) -> str:
        """See `Host.probe`."""
        return self._host.probe

    @property
    def directory(self) -> str:
        """See `Host.directory`."""
        return self._host.directory

    def program(self, local: str) -> str:
        """See `Host.program`."""
        return self._host.program(local)

    def socket(self, path: str) -> str:
        """See `Host.socket`."""
        return self._host.socket(path)

    def read_text(self, path: str, *, netns: str | None = None) -> str:
        """See `Host.read_text`."""
        return self._host.read_text(path, netns=netns)

    def take(self, remote: str, into: Path, *, netns: str | None = None) -> Path:
        """See `Host.take`."""
        return self._host.take(remote, into, netns=netns)

    def put(self, local: Path, remote: str) -> None:
        """See `Host.put`."""
        self._host.put(local, remote)

    def fetch(self, remote: str, local: Path) -> None:
        """See `Host.fetch`."""
        self._host.fetch(remote, local)

    def close(self) -> None:
        """Nothing: the host is another's."""
