"""What an operator asks for, and which planes cannot give it: a reason for each, with its source.

Knows a host's profile only for what its NIC has; no prediction, no measurement.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from planewise.advise.model.capacity import ChainWorkload
from planewise.advise.model.profile import Profile
from planewise.errors import BadInputError

Application = Literal["polling", "kernel"]
Isolation = Literal["memory", "filtering", "load"]
Basis = Literal["measurement", "data sheet", "literature", "assumption", "model", "demand"]

BRIEF = "Intel 335625 (SR-IOV for NFV solutions, 2017)"
KVM_STUDY = "Comput. Commun. 211 (2023), KVM guests"
DOCKER_STUDY = "the same authors on Docker containers"
ISOLATIONS: dict[Isolation, str] = {
    "memory": "no process of the host shares the guests' memory",
    "filtering": "the host sees and filters every packet",
    "load": "what one guest gets does not depend on what others send",
}
MOST_GUESTS = 100_000
MOST_CORES = 100_000


@dataclass(frozen=True)
class Workload:
    """What an operator asks for.

    Raises:
        BadInputError: a rate, a number of VFs, guests or cores, or a latency that cannot be.
    """

    chain: ChainWorkload
    application: Application = "polling"
    """Whether the guests' programs poll their NIC (DPDK) or use the kernel's sockets."""
    rate_pps: float | None = None
    """Packets a second that all functions together must send; None for as many as can be."""
    latency_ns: float | None = None
    """Round-trip time that 99 of 100 packets must keep; None where it does not matter."""
    live_migration: bool = False
    isolation: tuple[Isolation, ...] = ()
    guests: int | None = None
    """Guests of the host that are to have this plane; None: one for each function."""
    vfs: int | None = None
    """VFs that are free; None: as many as the profile's NIC has."""
    cores: int | None = None
    """Cores for functions and switch together; None where it does not matter."""
    spare_cores: int | None = None
    """Cores that the host can give beside the functions' own; None where it does not matter."""

    def __post_init__(self) -> None:
        """Refuses what cannot be asked for."""
        if self.application not in ("polling", "kernel"):
            raise BadInputError(
                f"there is no application {self.application}", remedy="polling or kernel"
            )
        for name, value, unit in (
            ("rate", self.rate_pps, "packets a second"),
            ("latency goal", self.latency_ns, "a time"),
        ):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise BadInputError(f"the {name} must be above zero", remedy=unit)
        for isolation in self.isolation:
            if isolation not in ISOLATIONS:
                raise BadInputError(
                    f"there is no isolation {isolation}",
                    where="isolation",
                    remedy="; ".join(f"{name}: {words}" for name, words in ISOLATIONS.items()),
                )
        for name, count, most in (
            ("VFs", self.vfs, MOST_GUESTS),
            ("spare cores", self.spare_cores, MOST_CORES),
            ("cores", self.cores, MOST_CORES),
            ("guests", self.guests, MOST_GUESTS),
        ):
            if count is not None and not 0 <= count <= most:
                raise BadInputError(f"there are no {count} {name}", remedy=f"0 to {most}")
        if self.guests is not None and self.guests < self.chain.functions:
            raise BadInputError(
                f"{self.guests} guests are fewer than {self.chain.functions} functions",
                where="guests",
                remedy="the functions' own guests count among them",
            )

    @property
    def holders(self) -> int:
        """Guests that would need a VF each."""
        return self.chain.functions if self.guests is None else self.guests


@dataclass(frozen=True)
class Statement:
    """One sentence, and what it rests on."""

    text: str
    basis: Basis
    source: str = ""

    @property
    def rests_on(self) -> str:
        """Basis and source."""
        return f"{self.basis}; {self.source}" if self.source else self.basis


def on_vf(plane: str) -> bool:
    """Whether a guest on `plane` holds a VF."""
    return plane in ("vf", "vf-passthrough", "macvtap-vf")


def hindrances(profile: Profile | None, workload: Workload, plane: str) -> Iterator[Statement]:
    """Why `plane` cannot give what is asked for, whatever it carries. Empty when it can."""
    if on_vf(plane):
        yield from _of_vf(profile, workload, plane)
    if plane == "vhost-user" and "memory" in workload.isolation:
        yield Statement(
            "The switch maps the guests' memory to copy packets: a fault in it reaches every "
            "guest, and isolation of memory was asked for.",
            "literature",
            "QEMU, vhost-user: guests' memory is shared with the back end",
        )
    yield from _of_cores(workload, plane)


def _of_vf(profile: Profile | None, workload: Workload, plane: str) -> Iterator[Statement]:
    if workload.live_migration:
        yield Statement(
            "A guest that holds a VF cannot be migrated live; one that can give it back first "
            "(teaming with a virtio NIC, `planewise alloc`) can.",
            "demand",
        )
    if "filtering" in workload.isolation and plane != "macvtap-vf":
        yield Statement(
            "Packets of a VF never pass the host's kernel: the NIC checks addresses and VLANs "
            "alone, and filtering on the host was asked for.",
            "literature",
            "ip-link(8), `vf`: spoofchk, vlan, trust, max_tx_rate",
        )
    needed = workload.holders
    if workload.vfs is not None and workload.vfs < needed:
        yield Statement(
            f"{needed} guests need {needed} VFs, and {workload.vfs} are free; "
            "`planewise alloc` shares them out among the guests that gain most.",
            "demand",
        )
        return
    if workload.vfs is not None or profile is None or profile.vfs is None:
        return
    if profile.vfs < needed:
        yield Statement(
            f"{needed} guests need {needed} VFs, and the NIC has {profile.vfs}; "
            "`planewise alloc` shares them out among the guests that gain most.",
            "data sheet",
            f"vfs of the profile {profile.name}",
        )


def host_cores(plane: str, chain: ChainWorkload) -> int:
    """Whole cores that a plane takes from the host besides the guests' own."""
    return chain.switch_cores if plane in ("vhost-user", "memif") else 0


def _of_cores(workload: Workload, plane: str) -> Iterator[Statement]:
    switch_cores = host_cores(plane, workload.chain)
    if workload.spare_cores is not None and workload.spare_cores < switch_cores:
        yield Statement(
            "A polling switch takes a whole core of the host, and there is none to spare.", "demand"
        )
    if workload.cores is None or workload.application == "kernel":
        functions = 0
    else:
        functions = workload.chain.functions * workload.chain.vnf_cores
    needed = functions + switch_cores
    if workload.cores is not None and workload.cores < needed:
        parts = [
            f"{workload.chain.functions} polling function{'s' if functions > 1 else ''}"
        ] * bool(functions)
        parts += ["the polling switch"] * bool(switch_cores)
        words = " and ".join(parts)
        yield Statement(
            f"{words[0].upper()}{words[1:]} need{'s' if needed == 1 else ''} {needed} "
            f"core{'s' if needed > 1 else ''}, and the budget is {workload.cores}.",
            "demand",
        )
