"""Settings of a testbed that measurements ask for, and their built form. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from planewise.store.models import Metric
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import (
    HOSTS,
    CapturePoint,
    CounterPoint,
    Guest,
    GuestKind,
    GuestRole,
    HostRole,
    Site,
    TrafficPath,
    TrialPath,
    inside,
)
from planewise.testbed.planes import plane
from planewise.testbed.planes.plane import Plane


@dataclass(frozen=True)
class Setting:
    """Main guests on one plane, background guests on another."""

    kind: GuestKind
    plane: str
    background_plane: str
    background_guests: int
    path: TrafficPath
    vm_options: tuple[tuple[str, int], ...] = ()
    """Fields of `VmOptions` in which its virtual machines' NICs differ from the testbed's."""

    @property
    def planes(self) -> frozenset[str]:
        """Names of the planes in use."""
        used = {self.plane}
        if self.background_guests:
            used.add(self.background_plane)
        return frozenset(used)

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches that the NIC must be a port of; it can be a port of one only."""
        switches = (plane(name).switch for name in sorted(self.planes))
        return tuple(sorted({switch.name for switch in switches if switch is not None}))

    @property
    def conflict(self) -> str:
        """Why a NIC cannot serve its planes at the same time, as a sentence; empty where it can."""
        behind = self.background_guests and plane(self.background_plane).is_host
        if behind or (self.within_host and plane(self.plane).is_host):
            return "the host itself is one guest: give background guests a plane of their own"
        several = len(self.switches) > 1
        return f"{' and '.join(self.switches)} cannot share the NIC" if several else ""

    @property
    def within_host(self) -> bool:
        """Whether both main guests live on one host."""
        return self.path == "east-west"

    def guests_a_host(self) -> int:
        """Guests of a setting on a host that has any."""
        return sum(1 for _ in self._planes_a_host())

    def vfs_a_host(self) -> int:
        """VFs that a host needs."""
        return sum(plane.vfs for plane in self._planes_a_host())

    def addresses_behind_nic(self) -> int:
        """MAC addresses of guests that the NIC of a host must receive for."""
        return sum(plane.switch is not None for plane in self._planes_a_host())

    def _planes_a_host(self) -> Iterator[Plane]:
        """The plane of each guest of a host."""
        for _ in range(2 if self.within_host else 1):
            yield plane(self.plane)
            for _ in range(self.background_guests):
                yield plane(self.background_plane)

    def requests(self, role: HostRole) -> Iterator[GuestRequest]:
        """The guests of a role, the main one first."""
        yield self._request(role, "main", 0, self.plane)
        for index in range(self.background_guests):
            yield self._request(role, "background", index, self.background_plane)

    def _request(self, role: HostRole, use: GuestRole, index: int, name: str) -> GuestRequest:
        switched = self.kind == "vm" and not plane(name).vfs
        switch = next(iter(self.switches), "") if switched else ""
        return GuestRequest(role, use, index, self.kind, name, switch, self.vm_options)


@dataclass(frozen=True)
class GuestRequest:
    """A guest as a setting asks for it; equal requests get the same guest."""

    role: HostRole
    use: GuestRole
    index: int
    kind: GuestKind
    plane: str
    switch: str = ""
    """Of a virtual machine, the switch that its port is, or sits on, a port of; empty: the NIC."""
    vm_options: tuple[tuple[str, int], ...] = ()
    """See `Setting`."""


@dataclass(frozen=True)
class Arrangement:
    """A built setting, as measurements and loads see it."""

    setting: Setting
    hosts: Mapping[HostRole, Host]
    mains: Mapping[HostRole, Guest]
    backgrounds: Mapping[HostRole, tuple[Guest, ...]]
    sites: Mapping[HostRole, Site]
    ports: Mapping[HostRole, str]
    """The host side of the main guests; empty where there is none."""
    replaced: tuple[Guest, ...] = ()
    """Guests that had ended and were started anew: the next trial says so."""

    @property
    def own_kernels(self) -> bool:
        """Whether the guests' own kernels count what passes their interfaces."""
        return self.setting.kind == "vm"

    @property
    def shared(self) -> bool:
        """Whether both main guests live on one host."""
        return self.setting.within_host

    def main(self, host: HostRole) -> Guest:
        """The measured guest of a role."""
        return self.mains[host]

    def background(self, host: HostRole) -> tuple[Guest, ...]:
        """The background guests of a role."""
        return self.backgrounds[host]

    @property
    def _plane(self) -> Plane:
        return plane(self.setting.plane)

    @property
    def _at_nic(self) -> bool:
        """Whether frames between the main guests pass a NIC."""
        return not self.shared or self._plane.nic_within_host

    @property
    def capture_points(self) -> tuple[CapturePoint, ...]:
        """Where probe packets can be seen, along their way from the sender.

        `…_guest` is missing for a plane without a host side, `…_nic` within one host for a plane
        whose frames then reach no NIC.
        """
        points: list[CapturePoint] = []
        for role in HOSTS:
            guest, site = self.mains[role], self.sites[role]
            outward = [inside(guest, role, own_kernel=self.own_kernels)]
            if self.ports[role]:
                outward.append(CapturePoint(f"{role}_guest", role, site.netns, self.ports[role]))
            if self._at_nic and not self._plane.passed_through:
                outward.append(
                    CapturePoint(f"{role}_nic", role, *self._plane.nic_point(site, guest))
                )
            points += outward if role == "sender" else reversed(outward)
        return tuple(points)

    @property
    def counter_points(self) -> tuple[CounterPoint, ...]:
        """Every interface of the hosts on the way between the main guests."""
        if self.own_kernels:
            return tuple(
                CounterPoint(point.host, point.netns, point.interface)
                for point in self.capture_points
                if not point.own_kernel
            )
        points: list[CounterPoint] = []
        for role in HOSTS:
            guest, site = self.mains[role], self.sites[role]
            nic = self._plane.nic_point(site, guest)
            outward = [CounterPoint(role, guest.netns, guest.interface)]
            if self.ports[role]:
                outward.append(CounterPoint(role, site.netns, self.ports[role]))
            if not self.shared and nic != (guest.netns, guest.interface):
                if site.uplink != site.nic:
                    outward.append(CounterPoint(role, site.netns, site.uplink))
                outward.append(CounterPoint(role, *nic))
            points += outward if role == "sender" else reversed(outward)
        return tuple(points)

    @property
    def entrances(self) -> Mapping[HostRole, tuple[str, ...]]:
        """By role, the host's own interfaces where frames of the main guests enter it."""
        return {
            role: tuple(
                point.interface
                for point in self.capture_points
                if point.host == role and point.netns == self.sites[role].netns
            )
            for role in HOSTS
        }

    @property
    def not_measurable(self) -> Mapping[Metric, str]:
        """Metrics that do not exist for the main guests' plane, with the reason."""
        if self._at_nic:
            return self._plane.not_measurable
        reason = "between guests of one host no frame reaches the NIC"
        return {**self._plane.not_measurable, "overhead": reason, "response": reason}

    def next_hop_mac(self) -> str:
        """Destination MAC of the frames of the sender's main guest to the responder's."""
        guest, peer = self.mains["sender"], self.mains["responder"]
        return self._plane.next_hop_mac(self.sites["sender"], guest, peer)

    def trial_path(self) -> TrialPath:
        """From the sender's main guest to the responder's."""
        guest, peer = self.mains["sender"], self.mains["responder"]
        return TrialPath(
            tx_netns=guest.netns,
            tx_interface=guest.interface,
            rx_netns=peer.netns,
            rx_interface=peer.interface,
            next_hop_mac=self.next_hop_mac(),
            source_ipv4=guest.ipv4,
            destination_ipv4=peer.ipv4,
            source_ipv6=guest.ipv6,
            destination_ipv6=peer.ipv6,
        )
