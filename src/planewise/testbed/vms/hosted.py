"""Virtual machines on hosts that commands are run on: servers reached by ssh, a lab's hosts.

Builds guests behind planes on each host's NIC as settings ask for them, VFs among the planes, and
keeps them asleep for the next setting. What `testbed.py` does for two namespaces of this machine
is done here with a NIC that is there. Knows no measurement.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal, Self

from planewise.boot import accelerator, initramfs, kernel, packages, qemu, tools
from planewise.boot.model import Accelerator, Kernel
from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.store.models import Metric
from planewise.testbed import script
from planewise.testbed.host import Host, ProcessTimeoutError, find_probe
from planewise.testbed.hosted import MAC_FILTERS, Machine, Setting, remove_traces, survey
from planewise.testbed.model import (
    GUEST_INTERFACE,
    HOSTS,
    CapturePoint,
    CounterPoint,
    Guest,
    GuestRole,
    HostRole,
    Site,
)
from planewise.testbed.plan import (
    AcceptAddress,
    AddBridge,
    AwaitUp,
    Plan,
    ReleaseMaster,
    SetMaster,
    SetMtu,
    SetUp,
    Step,
)
from planewise.testbed.scratch import scratch
from planewise.testbed.vfs import Vf, VfPool, look_at_vfs
from planewise.testbed.vms import booted, hypervisor, image
from planewise.testbed.vms.domain import Nic, Passthrough, VmOptions
from planewise.testbed.vms.guests import HostGuests, Platform, Started, nic_of
from planewise.testbed.vms.image import GuestImage
from planewise.testbed.vms.planes import VF_PLANES, VM_PLANES, VmPlane, vm_plane
from planewise.testbed.vms.saved import Saved

PLANES = tuple(plane.name for plane in (*VM_PLANES, *VF_PLANES))
"""Planes that virtual machines can have on such hosts."""

BOOT_LIMIT_S = 1800.0
"""From start to ready. In a lab the guest's emulated CPU is emulated once more: a minute and a half
where nothing else runs, and many where much does."""

GUEST_MIB = 250
"""Memory that a tiny guest takes of its host: its own, what QEMU keeps of translated code, QEMU
itself."""

SPARE_MIB = 256
"""Memory that a host keeps for itself."""

_TRIAL_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class VmArrangement:
    """A setting that stands: what measurements and loads need to know of it."""

    setting: Setting
    hosts: Mapping[HostRole, Host]
    mains: Mapping[HostRole, Guest]
    backgrounds: Mapping[HostRole, tuple[Guest, ...]]
    nics: Mapping[HostRole, str]
    """What leaves each host on the main guests' way: its NIC, or the VF's interface."""
    replaced: tuple[Guest, ...] = ()
    """Guests that had ended and were started anew."""

    def main(self, host: HostRole) -> Guest:
        """The measured guest of a role."""
        return self.mains[host]

    def background(self, host: HostRole) -> tuple[Guest, ...]:
        """The background guests of a role."""
        return self.backgrounds[host]

    @property
    def capture_points(self) -> tuple[CapturePoint, ...]:
        """Where probe packets can be seen, along their way from the sender.

        There are none where the guests drive their VFs themselves.
        """
        points: list[CapturePoint] = []
        plane = vm_plane(self.setting.plane, vfs=True)
        for role in HOSTS if not plane.passed_through else ():
            port = plane.host_interface(self.mains[role])
            here = [
                CapturePoint(f"{role}_guest", role, "", port),
                CapturePoint(f"{role}_nic", role, "", self.nics[role]),
            ]
            points += here if role == "sender" else reversed(here)
        return tuple(points)

    @property
    def counter_points(self) -> tuple[CounterPoint, ...]:
        """The hosts' interfaces on the way between the main guests, along that way."""
        return tuple(
            CounterPoint(point.host, point.netns, point.interface) for point in self.capture_points
        )

    @property
    def not_measurable(self) -> Mapping[Metric, str]:
        """Metrics that do not exist for the main guests' plane, with the reason."""
        return vm_plane(self.setting.plane, vfs=True).not_measurable


@dataclass(frozen=True)
class _Want:
    """A guest as a setting asks for it: the same wish finds the same guest again."""

    role: HostRole
    use: GuestRole
    index: int
    plane: str


@dataclass
class _Placed:
    """A guest that stands on a machine."""

    guest: Guest
    vf: Vf | None = None
    running: bool = False
    """Whether it has come up."""
    told: tuple[str, str] = ("", "")
    """Address and MAC of the peer that it was told of."""
    known: tuple[str, str] = ("", "")
    """The same, as its host was told."""


@dataclass
class _Yard:
    """What stands on one machine."""

    machine: Machine
    attachment: Literal["nic", "bridge"] = "nic"
    bridge_made: bool = False
    ready: bool = False
    """Whether the NIC was set up."""
    placed: dict[_Want, _Placed] = field(default_factory=dict)
    """The most recently used are the last."""
    guests: HostGuests | None = None
    vfs: VfPool | None = None
    slots: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class HostedVmTestbed:
    """Two machines, and the virtual machines that settings ask for.

    Everything that it makes carries `token`; `close` removes it.
    """

    def __init__(
        self,
        machines: Mapping[HostRole, Machine],
        token: str,
        mtu_bytes: int,
        options: VmOptions = VmOptions(),  # noqa: B008 - a frozen value
        *,
        boot_limit_s: float = BOOT_LIMIT_S,
        on_ready: Callable[[Started], None] = lambda _: None,
    ) -> None:
        self.options = options
        self._token = token
        self._mtu_bytes = mtu_bytes
        self._boot_limit_s = boot_limit_s
        self._on_ready = on_ready
        self._yards = {role: _Yard(machine) for role, machine in machines.items()}
        self._platforms: dict[HostRole, Platform] = {}
        self._resources: dict[HostRole, Resources] = {}
        self._with_vfs = False
        self._booting = threading.Lock()

    def expect(self, settings: Iterable[Setting]) -> dict[Setting, str]:
        """Why these settings cannot stand here; those that can are left out. Changes nothing.

        All that will be asked for belongs into one call: where one needs VFs, the NIC has them all
        the time, so that every setting finds the same NIC.
        """
        wanted = tuple(settings)
        self._resources.clear()
        known = [one for one in wanted if not one.planes - set(PLANES)]
        self._with_vfs = any(vm_plane(name, vfs=True).takes_vf for s in known for name in s.planes)
        reasons = {setting: self._why_not(setting) for setting in wanted}
        return {setting: reason for setting, reason in reasons.items() if reason}

    def platform(self, role: HostRole) -> Platform:
        """What a machine lends to virtual machines; the accelerator is tried once.

        Raises:
            UnsupportedError: no QEMU or libvirt there, no kernel for the guests here.
        """
        if role not in self._platforms:
            self._platforms[role] = platform(self._yards[role].machine.host)
        return self._platforms[role]

    def resources(self, role: HostRole) -> Resources:
        """What a machine has, as it was when it was first asked."""
        if role not in self._resources:
            self._resources[role] = look(self._yards[role].machine, self._with_vfs)
        return self._resources[role]

    @contextmanager
    def arrange(self, setting: Setting) -> Iterator[VmArrangement]:
        """Makes a setting stand: starts what is missing, wakes what is there, and only that.

        Raises:
            UnsupportedError: a machine lacks something.
            PlanewiseError: a guest could not be started.
        """
        wants = {role: tuple(_wants(setting, role)) for role in HOSTS}
        try:
            places = [partial(self._prepare, self._yards[role], wants[role]) for role in HOSTS]
            replaced = [guest for done in _together(places) for guest in done]
            boots = [partial(self._boot_all, setting, self._yards[role]) for role in HOSTS]
            _together(boots, abort=self._end_guests)
            self._acquaint(setting)
            mains = {role: self._yards[role].placed[wants[role][0]] for role in HOSTS}
            yield VmArrangement(
                setting,
                {role: self._guests(self._yards[role]).host for role in HOSTS},
                {role: placed.guest for role, placed in mains.items()},
                {
                    role: tuple(self._yards[role].placed[want].guest for want in wants[role][1:])
                    for role in HOSTS
                },
                {role: self._way_out(role, placed) for role, placed in mains.items()},
                tuple(replaced),
            )
        finally:
            self._sleep()

    def check(self, setting: Setting) -> None:
        """Does nothing while all guests of a setting live.

        Raises:
            GuestGoneError: one ended.
            HypervisorGoneError: a libvirt did, and its guests with it.
        """
        for role, yard in self._yards.items():
            placed = [yard.placed[want] for want in _wants(setting, role) if want in yard.placed]
            if yard.guests is not None:
                yard.guests.check(one.guest for one in placed if one.running)

    def close(self) -> None:
        """Removes everything, also when a part of it fails.

        Raises:
            PlanewiseError: something could not be removed.
        """
        _together([partial(self._clear, yard) for yard in self._yards.values()])

    def _clear(self, yard: _Yard) -> list[Guest]:
        with ExitStack() as last:
            # Backwards: guests, their ports, then VFs come home, and bridges go.
            last.callback(remove_traces, yard.machine.host, yard.machine.nic, self._token)
            if yard.vfs is not None:
                last.callback(yard.vfs.close)
                yard.vfs = None
            last.callback(remove_guests, yard.machine.host, self._token)
            yard.placed.clear()
            if yard.guests is not None:
                last.callback(yard.guests.close)
                yard.guests = None
        return []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _why_not(self, setting: Setting) -> str:
        try:
            for name in sorted(setting.planes):
                vm_plane(name, vfs=True)
            if setting.path != "north-south":
                return f"virtual machines have no {setting.path} path between two guests of a host"
            for role in HOSTS:
                reason = shortage(setting, self.resources(role), self._with_vfs)
                if reason:
                    return reason
                self.platform(role)
        except (BadInputError, UnsupportedError) as error:
            return error.what
        return ""

    # One machine.

    def _prepare(self, yard: _Yard, wants: Sequence[_Want]) -> list[Guest]:
        """Makes what these guests are plugged into, and wakes those that run; gives those that had
        ended."""
        guests = self._guests(yard)
        replaced = self._drop_ended(yard)
        planes = [vm_plane(want.plane, vfs=True) for want in wants]
        if self._with_vfs:
            self._vfs(yard)
        self._attach_nic(yard, planes)
        missing = [want for want in wants if want not in yard.placed]
        self._make_room(yard, wants, missing)
        for want in wants:
            if want in yard.placed:
                guests.set_awake(yard.placed[want].guest, True)
                yard.placed[want] = yard.placed.pop(want)
        for want in missing:
            self._place(yard, want)
        return [yard.placed[want].guest for want in missing if want in replaced]

    def _drop_ended(self, yard: _Yard) -> set[_Want]:
        """Forgets guests that ended, and takes their VFs back."""
        by_guest = {placed.guest: want for want, placed in yard.placed.items()}
        ended = {by_guest[guest] for guest in self._guests(yard).ended(by_guest)}
        half = {want for want, placed in yard.placed.items() if not placed.running}
        for want in ended | half:
            self._remove(yard, want)
        return ended - half

    def _make_room(self, yard: _Yard, wants: Sequence[_Want], missing: Sequence[_Want]) -> None:
        """Ends guests that this setting leaves idle, those used longest ago first, for others."""
        idle = [want for want in yard.placed if want not in wants]

        def lacks_vfs() -> bool:
            needed = sum(vm_plane(want.plane, vfs=True).takes_vf for want in missing)
            return needed > 0 and self._vfs(yard).free < needed

        def lacks_memory() -> bool:
            free_mib = self.resources(wants[0].role).free_mib - SPARE_MIB
            return (len(yard.placed) + len(missing)) * self._guest_mib() > free_mib

        while idle and lacks_vfs():
            holders = [want for want in idle if yard.placed[want].vf is not None]
            if not holders:
                break
            idle.remove(holders[0])
            self._remove(yard, holders[0])
        while idle and lacks_memory():
            self._remove(yard, idle.pop(0))

    def _attach_nic(self, yard: _Yard, planes: Sequence[VmPlane]) -> None:
        machine = yard.machine
        steps: list[Step] = []
        wanted: Literal["nic", "bridge"] = yard.attachment
        if any(plane.bridged for plane in planes):
            wanted = "bridge"
        elif any(plane.port == "macvtap" and not plane.takes_vf for plane in planes):
            wanted = "nic"
        if wanted != yard.attachment:
            # A macvtap and a bridge cannot share a NIC, nor does one follow the other.
            for want in [one for one in yard.placed if one.plane == "macvtap-bridge"]:
                self._remove(yard, want)
        if wanted == "bridge" and not yard.bridge_made:
            mac = f"02:70:77:3{self._number(yard)}:00:00"
            steps += [
                AddBridge("", machine.bridge, mac, self._mtu_bytes),
                SetUp("", machine.bridge),
            ]
        if wanted != yard.attachment:
            if wanted == "bridge":
                steps.append(SetMaster("", machine.nic, machine.bridge))
            else:
                steps.append(ReleaseMaster("", machine.nic))
        if not yard.ready:
            if self._mtu_bytes != 1500:
                steps.append(SetMtu("", machine.nic, self._mtu_bytes))
            steps.append(SetUp("", machine.nic))
        if steps:
            yard.bridge_made = yard.bridge_made or wanted == "bridge"
            script.perform(Plan((*steps, AwaitUp("", machine.nic))), machine.host)
        yard.attachment, yard.ready = wanted, True

    def _place(self, yard: _Yard, want: _Want) -> None:
        """Makes what a guest will be plugged into."""
        plane = vm_plane(want.plane, vfs=True)
        guest = self._guest(yard, want)
        vf = None
        if plane.takes_vf:
            vf = self._vfs(yard).take()
            # The VF's own address: its driver in a guest takes no other.
            guest = replace(guest, mac=vf.config.mac)
        yard.placed[want] = _Placed(guest, vf)
        steps: list[Step] = []
        if vf is None:
            steps += plane.attach(self._site(yard, want.role), guest, self.options.queues)
            if self._with_vfs and plane.bridged:
                # With VFs, a NIC's promiscuous mode may not do.
                steps.append(AcceptAddress("", yard.machine.nic, guest.mac))
        elif plane.passed_through:
            self._vfs(yard).hand_over(vf)
        else:
            self._vfs(yard).bring_up(vf, self._mtu_bytes)
            interface = _interface(vf)
            site = self._site(yard, want.role)
            steps += plane.attach(site, guest, self.options.queues, interface)
            steps.append(AwaitUp("", interface))
        script.perform(Plan(tuple(steps)), yard.machine.host)

    def _boot_all(self, setting: Setting, yard: _Yard) -> list[Guest]:
        """Starts those that were placed and do not run yet, some at a time."""
        missing = [want for want, placed in yard.placed.items() if not placed.running]
        if missing:
            workers = min(len(missing), 2 * self.resources(missing[0].role).cpus)
            _together([partial(self._boot, setting, yard, want) for want in missing], workers)
        return []

    def _boot(self, setting: Setting, yard: _Yard, want: _Want) -> list[Guest]:
        peers: dict[str, str] = {}
        if want.use == "main":
            other: HostRole = "responder" if want.role == "sender" else "sender"
            peer = self._yards[other].placed[next(_wants(setting, other))].guest
            peers = {peer.ipv4: peer.mac}
        placed, guests = yard.placed[want], self._guests(yard)
        plane = vm_plane(want.plane, vfs=True)
        nic: Nic | Passthrough
        if plane.passed_through:
            assert placed.vf is not None
            nic = Passthrough(placed.vf.address)
        else:
            assert plane.model is not None
            nic = nic_of(plane.model, placed.guest, plane.host_interface(placed.guest), guests)
        started = guests.start(placed.guest, nic, self._mtu_bytes, peers)
        placed.running = True
        placed.told = next(iter(peers.items()), ("", ""))
        self._on_ready(started)
        return []

    def _remove(self, yard: _Yard, want: _Want) -> None:
        """Ends a guest, and takes away what it was plugged into."""
        placed = yard.placed[want]
        plane = vm_plane(want.plane, vfs=True)
        self._guests(yard).end(placed.guest)
        if port := plane.host_interface(placed.guest):
            host = yard.machine.host
            host.run(["ip", "link", "delete", port])  # it may never have been made
        if placed.vf is not None:
            self._vfs(yard).give_back(placed.vf)
        del yard.placed[want]

    def _end_guests(self) -> None:
        for yard in self._yards.values():
            if yard.guests is not None:
                yard.guests.close()

    def _sleep(self) -> None:
        """Lets no guest run. Guests that ended are not looked at."""
        for yard in self._yards.values():
            for placed in yard.placed.values():
                if placed.running and yard.guests is not None:
                    with suppress(PlanewiseError):
                        yard.guests.set_awake(placed.guest, False)

    def _guests(self, yard: _Yard) -> HostGuests:
        with yard.lock:
            if yard.guests is None:
                role: HostRole = "sender" if self._number(yard) == 0 else "responder"
                made = HostGuests(
                    yard.machine.host,
                    self.platform(role),
                    self.options,
                    boot_limit_s=self._boot_limit_s,
                    saved=self._saved(role),
                )
                made.__enter__()
                yard.guests = made
            return yard.guests

    def _saved(self, role: HostRole) -> Saved | None:
        """A guest to wake instead of booting it, where an emulated CPU would emulate another."""
        with self._booting:
            return saved_for(self._yards[role].machine.host, self.platform(role), self.options)

    def _vfs(self, yard: _Yard) -> VfPool:
        with yard.lock:
            if yard.vfs is None:
                yard.vfs = VfPool(yard.machine.host, yard.machine.nic, self._token).__enter__()
            return yard.vfs

    def _guest_mib(self) -> int:
        return max(GUEST_MIB, (self.options.memory_mib or 0) + 100)

    def _number(self, yard: _Yard) -> int:
        return HOSTS.index("sender" if yard.machine.letter == "s" else "responder")

    def _site(self, yard: _Yard, role: HostRole) -> Site:
        machine = yard.machine
        uplink = machine.nic if yard.attachment == "nic" else machine.bridge
        return Site(role, "", uplink, self._mtu_bytes, machine.nic, machine.bridge)

    def _way_out(self, role: HostRole, placed: _Placed) -> str:
        if placed.vf is None:
            return self._yards[role].machine.nic
        return "" if placed.vf.netdev is None else placed.vf.netdev.name

    def _guest(self, yard: _Yard, want: _Want) -> Guest:
        number = HOSTS.index(want.role)
        yard.slots += 1
        slot = yard.slots
        high, low = divmod(slot, 250)
        return Guest(
            name=f"{want.role}-{want.use}{'' if want.use == 'main' else want.index}",
            host=want.role,
            role=want.use,
            index=want.index,
            plane=want.plane,
            netns=f"pw-{self._token}-{want.role[0]}{want.use[0]}{slot}",
            interface=GUEST_INTERFACE,
            mac=f"02:70:77:0{number}:{slot >> 8:02x}:{slot & 255:02x}",
            ipv4=f"198.{18 + number}.{high}.{1 + low}",
            ipv6=f"2001:2:0:{1 + number}::{1 + slot:x}",
            port=f"pw{self._token}{2048 * number + slot:03x}",
            port_index=20_000 + 4096 * number + slot,
        )

    # Both.

    def _acquaint(self, setting: Setting) -> None:
        """Main guests know each other's MAC: none is looked up, no frame is flooded."""
        plane = vm_plane(setting.plane, vfs=True)
        want = {role: next(_wants(setting, role)) for role in HOSTS}
        for role, other in zip(HOSTS, reversed(HOSTS), strict=True):
            yard = self._yards[role]
            placed = yard.placed[want[role]]
            peer = self._yards[other].placed[want[other]].guest
            name = (peer.ipv4, peer.mac)
            if placed.told != name:
                told = ["arp", "-i", GUEST_INTERFACE, "-s", *name]
                self._guests(yard).host.run(told, netns=placed.guest.netns).check()
                placed.told = name
            if placed.known != name:
                known = plane.acquaint(self._site(yard, role), placed.guest, peer)
                script.perform(Plan(known), yard.machine.host)
                placed.known = name


def _wants(setting: Setting, role: HostRole) -> Iterator[_Want]:
    yield _Want(role, "main", 0, setting.plane)
    for index in range(setting.background_guests):
        yield _Want(role, "background", index, setting.background_plane)


def _interface(vf: Vf) -> str:
    if vf.netdev is None:
        raise PlanewiseError(
            f"the VF {vf.address} has no interface: its driver is {vf.driver or 'none'}",
            remedy=f"bind its network driver: `planewised vf bind {vf.address} netdev`",
        )
    return vf.netdev.name


def _together(
    work: Sequence[Callable[[], list[Guest]]],
    workers: int = 2,
    abort: Callable[[], None] = lambda: None,
) -> list[list[Guest]]:
    """Does all of it, some at a time; raises the first error once all have ended.

    `abort` makes what is under way fail: a boot that takes minutes is no reason to let somebody
    wait who wants to stop.
    """
    with ThreadPoolExecutor(max(1, workers)) as pool:
        futures = [pool.submit(one) for one in work]
        try:
            return [future.result() for future in futures]
        except PlanewiseError:
            raise
        except BaseException:
            for future in futures:
                future.cancel()
            abort()
            raise


@dataclass(frozen=True)
class Resources:
    """What a machine has for virtual machines."""

    place: str
    nic: str
    driver: str
    """Of the NIC; empty for a virtual one."""
    cpus: int
    free_mib: int
    vfs: int = 0
    """VFs that nobody uses, or that its NIC could have; 0 without SR-IOV."""
    used: tuple[str, ...] = ()
    """What is known of the VFs that somebody uses."""
    iommu: bool = True
    """Whether its IOMMU lets functions be passed through."""


def look(machine: Machine, with_vfs: bool) -> Resources:
    """Looks at a machine; at its VFs only where they count.

    Raises:
        PlanewiseError: it has no such NIC, or somebody uses it.
    """
    found = survey(machine)
    cpus = machine.host.read_text("/proc/cpuinfo").count("\nprocessor") + 1
    plain = Resources(found.place, found.nic, found.driver, cpus, found.free_mib)
    if not with_vfs or not found.vfs:
        return plain
    pf = look_at_vfs(machine.host, machine.nic)
    usable = [vf for vf in pf.vfs if vf.usable]
    return replace(
        plain,
        vfs=len(usable) if pf.num_vfs else pf.total_vfs,
        used=tuple(
            f"{machine.nic}/{vf.index} {vf.used_by or f'has the driver {vf.driver}'}"
            for vf in pf.vfs
            if not vf.usable
        ),
        iommu=pf.iommu_group is not None,
    )


def shortage(setting: Setting, found: Resources, with_vfs: bool) -> str:
    """What a machine lacks for a setting, as a sentence; empty when it suffices. Pure.

    `with_vfs`: its NIC has VFs at that time.
    """
    main, others = (vm_plane(name, vfs=True) for name in (setting.plane, setting.background_plane))
    count = setting.background_guests
    needed = main.takes_vf + count * others.takes_vf
    if needed and not (found.vfs or found.used):
        return f"{found.nic} of {found.place} has no SR-IOV"
    if needed > found.vfs:
        users = f" ({'; '.join(found.used)})" if found.used else ""
        free = " free" if found.used else ""
        return f"needs {needed} VFs on {found.place}, and {found.nic} has {found.vfs}{free}{users}"
    if (main.passed_through or (count and others.passed_through)) and not found.iommu:
        return no_iommu(found.place)
    filters = MAC_FILTERS.get(found.driver)
    bridged = main.bridged + count * others.bridged
    if with_vfs and filters and bridged > filters - 1 - found.vfs:
        return (
            f"needs {bridged} MAC addresses behind {found.nic} of {found.place}, and "
            f"{found.driver} takes {filters - 1 - found.vfs} beside its VFs"
        )
    memory = (1 + count) * GUEST_MIB + SPARE_MIB
    if memory > found.free_mib:
        return (
            f"{1 + count} virtual machines on {found.place} need about {memory} MiB, "
            f"and {found.free_mib} MiB are free"
        )
    return ""


_LOOK = """
for name in qemu-system-x86_64 libvirtd; do
    PATH="$PATH:/usr/sbin:/sbin" command -v $name || echo -
done
[ ! -e /dev/kvm ] && echo none || { [ -r /dev/kvm ] && [ -w /dev/kvm ] && echo open || echo shut; }
[ -r /dev/vhost-net ] && [ -w /dev/vhost-net ] && echo vhost || echo -
id -u
"""


def platform(host: Host) -> Platform:
    """What a host lends to virtual machines; tries KVM there with a guest that says one line.

    Raises:
        UnsupportedError: no QEMU, libvirt or privilege there, or no kernel for the guests here.
        PlanewiseError: the guests' files cannot be copied there.
    """
    said = host.run(["sh", "-c", _LOOK]).check().stdout.split()
    program, daemon, kvm, vhost, user = said
    hypervisor.libraries()
    if user != "0":
        raise UnsupportedError(
            f"virtual machines on {host.place} need root there",
            remedy="log in as root: ssh://root@server",
        )
    for name, path in (("qemu-system-x86_64", program), ("libvirtd", daemon)):
        if path == "-":
            raise UnsupportedError(
                f"there is no {name} on {host.place}, and virtual machines need it",
                remedy="install QEMU and libvirt's daemon with its QEMU driver there",
            )
    cache = packages.cache_directory()
    found, programs = kernel.find(cache), tools.find(cache)
    ours = image_here()
    there = replace(
        ours,
        kernel=Path(host.program(str(ours.kernel))),
        initrd=Path(host.program(str(ours.initrd))),
    )
    chosen = _accelerator(host, program, kvm, replace(found, image=there.kernel), programs.busybox)
    return Platform(program, chosen, vhost == "vhost" and chosen.name == "kvm", there)


def saved_for(host: Host, ours: Platform, options: VmOptions) -> Saved | None:
    """A guest to wake on `host` instead of booting it; None where a boot is the better way.

    That is wherever no emulated CPU would emulate another.
    """
    if ours.accelerator.name == "kvm" or not host.place.startswith("lab:"):
        return None
    kept = booted.prepare(replace(ours, image=image_here()), options)
    return replace(kept, path=Path(host.program(str(kept.path))))


def no_iommu(place: str) -> str:
    """That a host's functions cannot be passed through, with the way out. Pure."""
    return (
        f"{place} has no IOMMU that is in use, and without one no VF can be passed "
        "through (kernel parameter intel_iommu=on or amd_iommu=on, and VT-d or AMD-Vi in its "
        "firmware)"
    )


def image_here() -> GuestImage:
    """The guest, as this machine has it."""
    return image.prepare(Path(find_probe()))


def _accelerator(
    host: Host, program: str, kvm: str, with_kernel: Kernel, busybox: Path
) -> Accelerator:
    if kvm == "none":
        return Accelerator("tcg", f"there is no /dev/kvm on {host.place}")
    if kvm == "shut":
        return Accelerator("tcg", f"/dev/kvm on {host.place} may not be opened")
    with scratch() as directory:
        initrd = directory / "pw-trial.initrd"
        initrd.write_bytes(initramfs.trial(busybox))
        argv = qemu.trial_command_line(
            Path(program), with_kernel, Path(host.program(str(initrd))), "kvm"
        )
        try:
            done = host.run(argv, timeout_s=_TRIAL_TIMEOUT_S)
        except ProcessTimeoutError:
            return Accelerator("tcg", f"a trial guest under KVM hung on {host.place}")
    return accelerator.conclude(done.stdout, done.stderr)


# QEMU of a run that was killed ends with its connection, in a moment; what it had open is ours.
_REMOVE = """
for process in /proc/[0-9]*; do
    case $(tr '\\0' ' ' 2>/dev/null <$process/cmdline) in
        *qemu*"guest=pw-$1-"*) kill -s KILL ${process#/proc/} 2>/dev/null; died="$died $process" ;;
    esac
done
n=0
for process in $died; do
    while [ -e $process ] && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.05; done
done
for link in $(ip -o link | sed -n "s/^[0-9]*: \\(pw$1[0-9a-f]*\\)[:@].*/\\1/p"); do
    ip link delete "$link"
done
"""


def remove_guests(host: Host, token: str) -> None:
    """Ends the virtual machines of this token on a host, and removes their ports.

    Raises:
        PlanewiseError: that failed.
    """
    done = host.run(["sh", "-c", _REMOVE, "sh", token], timeout_s=120)
    if done.stderr.strip():
        raise PlanewiseError(
            f"not all virtual machines could be removed from {host.place}: "
            f"{done.stderr.strip().splitlines()[-1]}",
            remedy="`planewise clean` tries again",
        )
