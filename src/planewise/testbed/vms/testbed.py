"""A testbed whose guests are virtual machines: two hosts, a wire, and a libvirt on each host.

Hosts are namespaces of this machine. `lay_out` and `plan_ports` are pure; `VmTestbed` applies what
they return, starts the guests, and removes all of it again. Knows no measurement.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path

from planewise.boot import accelerator, kernel, packages, qemu, tools
from planewise.errors import PlanewiseError, UnsupportedError
from planewise.store.models import Metric
from planewise.testbed.apply import apply
from planewise.testbed.host import Host, LocalHost, find_probe
from planewise.testbed.model import (
    BRIDGE,
    HOSTS,
    WIRE,
    WIRE_INDEX,
    CapturePoint,
    CounterPoint,
    Guest,
    HostRole,
    Site,
    TestbedSpec,
    make_guest,
)
from planewise.testbed.namespaces import Topology, _Testbed, new_namespace
from planewise.testbed.netns import NamespaceThread
from planewise.testbed.plan import AddBridge, AddVeth, AwaitUp, Plan, SetMaster, SetUp, Step
from planewise.testbed.vms import booted, hypervisor, image
from planewise.testbed.vms.domain import VmOptions
from planewise.testbed.vms.guests import HostGuests, Platform, Started, nic_of
from planewise.testbed.vms.hypervisor import Hypervisor
from planewise.testbed.vms.planes import vm_plane

BOOT_LIMIT_S = 300.0
"""From start to ready. An emulated guest takes 3 s of a CPU, beside others in proportion."""

GUEST_MIB = 170
"""Memory that a tiny guest takes of its host where its CPU is emulated: its own, what QEMU keeps of
translated code, QEMU itself."""


def platform() -> Platform:
    """What this machine lends to virtual machines; the accelerator is tried once a boot.

    Raises:
        UnsupportedError: no QEMU, no kernel for the guests, or no privilege.
    """
    program, version = qemu.find()
    cache = packages.cache_directory()
    found = kernel.find(cache)
    ours = accelerator.find(program, version, found, tools.find(cache).busybox, cache)
    vhost = ours.name == "kvm" and os.access("/dev/vhost-net", os.R_OK | os.W_OK)
    return Platform(str(program), ours, vhost, image.prepare(Path(find_probe())))


def check() -> None:
    """Does nothing where virtual machines can be started.

    Raises:
        UnsupportedError: no privilege, or libvirt is missing.
    """
    if os.geteuid() != 0 or not _is_first_user_namespace():
        raise UnsupportedError(
            "virtual machines need root here: libvirt's daemon makes namespaces and taps",
            remedy="run planewise as root",
        )
    hypervisor.libraries()
    if shutil.which("libvirtd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
        raise UnsupportedError(
            "there is no libvirtd on this machine, and virtual machines need it",
            remedy=f"{hypervisor.SETUP_REMEDY}, or install libvirt's daemon and its QEMU driver",
        )


def _is_first_user_namespace() -> bool:
    """Whether root here is root of the machine: a user namespace maps fewer users."""
    first = Path("/proc/self/uid_map").read_text().split()[:3]
    return first == ["0", "0", "4294967295"]


def differences(name: str, ours: Platform, options: VmOptions) -> tuple[str, ...]:
    """What is unlike other planes of virtual machines, here, and cannot be made alike. Pure."""
    plane = vm_plane(name, vfs=True)
    found = list(plane.differences)
    if plane.model == "virtio":
        why = "it was not asked for" if not options.vhost else _no_vhost(ours)
        served = "QEMU serves the NIC, in user space, without vhost-net: " + why
        found.append("the kernel serves the NIC (vhost-net)" if not why else served)
        if not options.offloads:
            found.append("checksum and segmentation offloads are off, as nobody here needs them")
    return tuple(found)


def _no_vhost(ours: Platform) -> str:
    if ours.vhost:
        return ""
    if ours.accelerator.name != "kvm":
        return "it needs KVM"
    return "this kernel has none (/dev/vhost-net)"


def lay_out(token: str, spec: TestbedSpec) -> Topology:
    """Names and addresses of everything in a testbed of virtual machines. Pure.

    Raises:
        BadInputError: there is no such plane for virtual machines.
        UnsupportedError: a plane that needs hardware.
    """
    planes = [vm_plane(name) for name in spec.planes]
    uplink = BRIDGE if any(plane.bridged for plane in planes) else WIRE
    sites: dict[HostRole, Site] = {
        host: Site(host, f"pw-{token}-{host[0]}", uplink, spec.mtu_bytes) for host in HOSTS
    }
    # 16 bits of the token above 2 × 2048 guests: no other macvtap of the machine has such an index.
    first = (8 + int(token[:4], 16)) << 13

    def guest(host: HostRole, plane: str, index: int | None) -> Guest:
        role = "main" if index is None else "background"
        made = make_guest(token, host, role, index or 0, plane)  # type: ignore[arg-type]
        slot = 0 if index is None else 1 + index
        return replace(made, port_index=first + HOSTS.index(host) * 2048 + slot)

    return Topology(
        spec,
        sites,
        {host: guest(host, planes[0].name, None) for host in HOSTS},
        {
            host: tuple(
                guest(host, planes[-1].name, index) for index in range(spec.background_guests)
            )
            for host in HOSTS
        },
    )


def plan_ports(topology: Topology, queues: int = 1) -> Plan:
    """Every step that makes the hosts and the host sides of the guests' NICs. Pure."""
    steps: list[Step] = []
    for site in topology.sites.values():
        steps += new_namespace(site.netns)
    sender, responder = topology.sites["sender"], topology.sites["responder"]
    steps.append(
        AddVeth(
            sender.netns,
            WIRE,
            WIRE_INDEX,
            sender.wire_mac,
            responder.netns,
            WIRE,
            responder.wire_mac,
            topology.spec.mtu_bytes,
        )
    )
    for site in topology.sites.values():
        if site.uplink == BRIDGE:
            steps += [
                AddBridge(site.netns, BRIDGE, site.bridge_mac, site.mtu_bytes),
                SetMaster(site.netns, WIRE, BRIDGE),
                SetUp(site.netns, BRIDGE),
            ]
        steps.append(SetUp(site.netns, WIRE))
        for guest in (topology.main[site.host], *topology.background[site.host]):
            steps += vm_plane(guest.plane).attach(site, guest, queues)
    return Plan(tuple(steps))


def plan_acquaintance(topology: Topology) -> Plan:
    """What can only be done once the guests have opened their ports. Pure."""
    steps: list[Step] = []
    for host, peer in zip(HOSTS, reversed(HOSTS), strict=True):
        main = topology.main[host]
        plane = vm_plane(main.plane)
        steps += plane.acquaint(topology.sites[host], main, topology.main[peer])
    steps += [AwaitUp(topology.sites[host].netns) for host in HOSTS]
    return Plan(tuple(steps))


class VmTestbed(_Testbed):
    """Sender host, responder host, the wire, and guests that are virtual machines.

    A context manager. All guests run when it is entered; `wake` puts those to sleep that are not
    needed.

    Raises on entry:
        BadInputError: there is no such plane for virtual machines.
        UnsupportedError: no privilege, or this machine lacks what virtual machines need.
        PlanewiseError: a guest did not come up.
    """

    def __init__(
        self,
        spec: TestbedSpec,
        ours: Platform,
        options: VmOptions = VmOptions(),  # noqa: B008 - a frozen value
        *,
        parallel: int | None = None,
        boot_limit_s: float = BOOT_LIMIT_S,
        on_ready: Callable[[Guest], None] = lambda _: None,
    ) -> None:
        """`parallel` limits the guests that boot at a time (None: two a CPU)."""
        super().__init__(f"testbed {spec.plane}, {spec.background_guests} background VMs")
        self.spec = spec
        self.options = options
        self.started: tuple[Started, ...] = ()
        """How the guests came up, in the order in which they were ready."""
        lay_out("0" * 8, spec)  # a wrong plane is said before anything is made
        self._ours = ours
        self._parallel = parallel or 2 * (os.cpu_count() or 1)
        self._boot_limit_s = boot_limit_s
        self._on_ready = on_ready
        self._topology: Topology | None = None
        self._built = ExitStack()
        self._locals: dict[HostRole, LocalHost] = {}
        self._guests: dict[HostRole, HostGuests] = {}

    @property
    def topology(self) -> Topology:
        """Names and addresses of everything in it; only inside the `with` block."""
        if self._topology is None:
            raise RuntimeError("the testbed is not built: use it in a with block")
        return self._topology

    @property
    def hosts(self) -> Mapping[HostRole, Host]:
        """`sender` and `responder`; a guest's `netns` reaches into its virtual machine."""
        return {role: guests.host for role, guests in self._guests.items()}

    @property
    def plan(self) -> Plan:
        """The steps that made what is not a virtual machine."""
        ports = plan_ports(self.topology, self.options.queues)
        return Plan((*ports.steps, *plan_acquaintance(self.topology).steps))

    def main(self, host: HostRole) -> Guest:
        """The measured guest of a host."""
        return self.topology.main[host]

    def background(self, host: HostRole) -> tuple[Guest, ...]:
        """The background guests of a host that are awake."""
        guests = self.topology.background[host]
        return tuple(guest for guest in guests if self._guests[host].is_awake(guest))

    @property
    def guests(self) -> tuple[Guest, ...]:
        """All of them, the main ones first."""
        topology = self.topology
        background = [guest for host in HOSTS for guest in topology.background[host]]
        return (*(topology.main[host] for host in HOSTS), *background)

    @property
    def capture_points(self) -> tuple[CapturePoint, ...]:
        """Where probe packets can be seen, along their way from the sender."""
        points: list[CapturePoint] = []
        for host in HOSTS:
            site, guest = self.topology.sites[host], self.topology.main[host]
            port = vm_plane(guest.plane).host_interface(guest)
            here = [
                CapturePoint(f"{host}_guest", host, site.netns, port),
                CapturePoint(f"{host}_nic", host, site.netns, WIRE),
            ]
            points += here if host == "sender" else reversed(here)
        return tuple(points)

    @property
    def counter_points(self) -> tuple[CounterPoint, ...]:
        """Every interface on the way from the sender's main guest to the responder's."""
        points: list[CounterPoint] = []
        for host in HOSTS:
            site, guest = self.topology.sites[host], self.topology.main[host]
            here = [
                CounterPoint(host, guest.netns, guest.interface),
                CounterPoint(host, site.netns, vm_plane(guest.plane).host_interface(guest)),
            ]
            if site.uplink != WIRE:
                here.append(CounterPoint(host, site.netns, site.uplink))
            here.append(CounterPoint(host, site.netns, WIRE))
            points += here if host == "sender" else reversed(here)
        return tuple(points)

    @property
    def not_measurable(self) -> Mapping[Metric, str]:
        """Metrics that do not exist for the main guests' plane, with the reason."""
        return vm_plane(self.spec.plane).not_measurable

    def hypervisor(self, host: HostRole) -> Hypervisor:
        """The libvirt that runs a host's guests."""
        return self._guests[host].hypervisor

    def check(self) -> None:
        """Does nothing while all guests that are awake live.

        Raises:
            GuestGoneError: one ended.
            HypervisorGoneError: a libvirt did, and its guests with it.
        """
        for host in HOSTS:
            self._guests[host].check((self.main(host), *self.background(host)))

    def wake(self, background_guests: int) -> tuple[Guest, ...]:
        """Lets the main guests and so many background guests a host run; the others sleep.

        A sleeping guest takes no CPU. Guests that ended are started anew, and returned.

        Raises:
            PlanewiseError: a guest did not come up.
        """
        replaced = self._repair()
        for host in HOSTS:
            wanted = {self.main(host).netns}
            background = self.topology.background[host]
            wanted |= {guest.netns for guest in background[:background_guests]}
            for guest in (self.main(host), *background):
                self._guests[host].set_awake(guest, guest.netns in wanted)
        return replaced

    def sleep(self) -> None:
        """Lets no guest run. Guests that ended are not looked at."""
        for guest in self.guests:
            with suppress(PlanewiseError):
                self._guests[guest.host].set_awake(guest, False)

    def __enter__(self) -> VmTestbed:
        super().__enter__()
        try:
            self._start_guests()
        except BaseException:
            self._tear_down()
            raise
        return self

    def _repair(self) -> tuple[Guest, ...]:
        """Starts guests anew that ended, and a libvirt that went away."""
        missing: list[Guest] = []
        for host in HOSTS:
            all_ = (self.main(host), *self.topology.background[host])
            missing += self._guests[host].ended(all_)
        self._boot(missing)
        return tuple(missing)

    def _start_guests(self) -> None:
        # An emulated CPU takes seconds to boot; one guest does it for all.
        emulated = self._ours.accelerator.name == "tcg"
        saved = booted.prepare(self._ours, self.options, self._boot_limit_s) if emulated else None
        for host in HOSTS:
            local = LocalHost(host, self.topology.sites[host].netns)
            self._locals[host] = local
            guests = HostGuests(
                local, self._ours, self.options, boot_limit_s=self._boot_limit_s, saved=saved
            )
            self._guests[host] = self._built.enter_context(guests)
        self._boot(self.guests)
        thread = NamespaceThread("apply")
        try:
            apply(plan_acquaintance(self.topology), thread)
        finally:
            thread.close()

    def _boot(self, guests: Sequence[Guest]) -> None:
        """Starts guests, a limited number at a time, and returns when all are ready.

        Raises:
            PlanewiseError: one did not come up; the others are left as they are.
        """
        if not guests:
            return
        pool = ThreadPoolExecutor(max_workers=min(self._parallel, len(guests)))
        try:
            for started in pool.map(self._start, guests):
                self.started = (*self.started, started)
                self._on_ready(started.guest)
        finally:
            pool.shutdown(cancel_futures=True)

    def _start(self, guest: Guest) -> Started:
        peers = {}
        if guest.role == "main":
            peer = self.main("responder" if guest.host == "sender" else "sender")
            peers[peer.ipv4] = peer.mac
        guests, plane = self._guests[guest.host], vm_plane(guest.plane)
        assert plane.model is not None
        nic = nic_of(plane.model, guest, plane.host_interface(guest), guests)
        return guests.start(guest, nic, self.spec.mtu_bytes, peers)

    def _plan(self, token: str) -> Plan:
        self._topology = lay_out(token, self.spec)
        return plan_ports(self._topology, self.options.queues)

    def _hosts(self) -> list[LocalHost]:
        # Libvirt first: its sockets and consoles are in the hosts' directories.
        self._built.close()
        hosts = list(self._locals.values())
        self._locals.clear()
        self._guests.clear()
        self._topology = None
        return hosts


def memory_needed_bytes(specs: Iterable[TestbedSpec]) -> int:
    """About what these testbeds' guests take of this machine."""
    guests = sum(2 + 2 * spec.background_guests for spec in specs)
    return guests * GUEST_MIB << 20
