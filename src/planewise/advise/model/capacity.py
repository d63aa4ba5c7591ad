"""What a chain of network functions carries on a plane: every limit, and the one that binds.

Rates are totals as the publication counts them (Intel 335625, section 3): what all functions send,
summed. In `north-south` each function gets its own share from the generator and sends it back; in
`east-west` every packet goes through all of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from planewise.advise.model.ethernet import FCS_BYTES, check_frame, line_rate_pps
from planewise.advise.model.pcie import packet_rate_pps
from planewise.advise.model.profile import Basis, Profile
from planewise.errors import BadInputError

Pattern = Literal["north-south", "east-west"]
Plane = Literal["vf-passthrough", "vhost-user"]
Extrapolation = Literal["number of functions", "frame size", "pattern"]
"""What of a chain was not among the measurements that a profile was fitted to."""

LONGEST = 64
_PLANES: tuple[Plane, ...] = ("vf-passthrough", "vhost-user")


@dataclass(frozen=True)
class ChainWorkload:
    """A workload of `vnfs` network functions.

    Raises:
        BadInputError: no such chain.
    """

    pattern: Pattern
    vnfs: int
    frame_bytes: int
    """With FCS."""

    def __post_init__(self) -> None:
        """Refuses chains that no host runs."""
        if self.pattern not in ("north-south", "east-west"):
            raise BadInputError(
                f"there is no pattern {self.pattern}", remedy="north-south or east-west"
            )
        if not 1 <= self.vnfs <= LONGEST:
            raise BadInputError(
                f"a chain of {self.vnfs} network functions is none that a host runs",
                where="number of functions",
                remedy=f"1 to {LONGEST}",
            )
        check_frame(self.frame_bytes)

    @property
    def through(self) -> bool:
        """Whether packets go from function to function; a single one has no neighbour."""
        return self.pattern == "east-west" and self.vnfs > 1


@dataclass(frozen=True)
class Limit:
    """One resource, and the total rate at which it is used up."""

    name: str
    pps: float
    basis: Basis
    why: str
    """How the workload uses it, in a few words."""


@dataclass(frozen=True)
class Prediction:
    """What a chain carries on a plane."""

    plane: Plane
    chain: ChainWorkload
    limits: tuple[Limit, ...]
    """The one that binds first."""
    low_pps: float
    high_pps: float
    """95 % interval; from 0 to the line's limit where the model was never compared with data."""
    has_interval: bool = True
    """Whether the model was compared with data."""
    extrapolated: tuple[Extrapolation, ...] = ()
    """What of the chain was not measured: the interval is as wide as such chains lay off."""

    @property
    def pps(self) -> float:
        """Packets that all functions send a second, together."""
        return self.limits[0].pps

    @property
    def bps(self) -> float:
        """Bits of their frames without FCS, as the publication counts them."""
        return self.pps * 8 * (self.chain.frame_bytes - FCS_BYTES)

    @property
    def bottleneck(self) -> Limit:
        """The limit that binds first."""
        return self.limits[0]


def predict(profile: Profile, plane: Plane, chain: ChainWorkload) -> Prediction:
    """What `chain` carries on `plane` of a host.

    Raises:
        BadInputError: the model knows no such plane.
    """
    if plane not in _PLANES:
        raise BadInputError(
            f"the capacity model knows no plane {plane}", remedy=f"one of {', '.join(_PLANES)}"
        )
    limits_of = _vf_limits if plane == "vf-passthrough" else _vhost_limits
    limits = tuple(sorted(limits_of(profile, chain), key=lambda limit: limit.pps))
    beyond = extrapolations(profile, chain)
    width = _width(profile, plane, beyond)
    if width is None:
        line = _line(profile, chain).pps
        return Prediction(plane, chain, limits, 0.0, line, has_interval=False, extrapolated=beyond)
    low, high = (limits[0].pps * math.exp(sign * width) for sign in (-1, 1))
    return Prediction(plane, chain, limits, low, high, extrapolated=beyond)


def extrapolations(profile: Profile, chain: ChainWorkload) -> tuple[Extrapolation, ...]:
    """What of a chain the profile's measurements did not have; empty where it does not say."""
    spread = profile.spread
    if spread is None or spread.most_functions is None:
        return ()
    kinds: list[Extrapolation] = []
    if chain.vnfs > spread.most_functions:
        kinds.append("number of functions")
    if chain.frame_bytes not in spread.frames_bytes:
        kinds.append("frame size")
    if chain.pattern not in spread.patterns:
        kinds.append("pattern")
    return tuple(kinds)


def _width(profile: Profile, plane: Plane, beyond: Sequence[Extrapolation] = ()) -> float | None:
    """Half of a prediction's interval, as a logarithm; None: never compared with such data.

    Of several extrapolations the squares add. For longer chains than were measured nothing was
    left out, and the width of an unseen frame size stands in.
    """
    spread = profile.spread
    if spread is None:
        return None
    short = "vf" if plane == "vf-passthrough" else "vhost"
    fields = {"number of functions": f"{short}_frame", "frame size": f"{short}_frame"}
    widths = [
        getattr(spread, fields.get(kind, f"{short}_pattern")) for kind in dict.fromkeys(beyond)
    ]
    if not beyond:
        widths = [getattr(spread, short)]
    numbers = [float(width) for width in widths if width is not None]
    return math.hypot(*numbers) if len(numbers) == len(widths) else None


def _core_basis(profile: Profile, plane: Plane) -> Basis:
    """A fit to one plane tells nothing of the other's cores."""
    fitted = profile.spread is None or _width(profile, plane) is not None
    return profile.cores.basis if fitted else "assumption"


def _line(profile: Profile, chain: ChainWorkload) -> Limit:
    pps = line_rate_pps(profile.nic.line_gbps * 1e9, chain.frame_bytes)
    times = chain.vnfs if chain.through else 1
    return Limit("line rate", pps * times, profile.nic.basis, "packets enter and leave by the line")


def _vf_limits(profile: Profile, chain: ChainWorkload) -> list[Limit]:
    """On VFs every packet crosses PCIe twice a function: in, and out again.

    Between two functions it also goes through the NIC's embedded switch.
    """
    nic, cores = profile.nic, profile.cores
    data = chain.frame_bytes - FCS_BYTES
    core_ns = cores.vf_ns + cores.vf_byte_ns * data
    limits = [
        _line(profile, chain),
        Limit("NIC packet rate", nic.packets_mpps * 1e6, nic.basis, "each packet in and out"),
        Limit(
            "PCIe link",
            packet_rate_pps(profile.link.link(), profile.rings.rings(), data),
            profile.link.basis,
            "each packet crosses it once each way, with its descriptors",
        ),
        Limit(
            "VNF core",
            chain.vnfs * 1e9 / core_ns,
            _core_basis(profile, "vf-passthrough"),
            "one core and queue a function",
        ),
    ]
    if chain.through:
        bits = 8 * (data + nic.loop_overhead_bytes)
        limits += [
            Limit(
                "NIC internal packet rate",
                nic.loop_mpps * 1e6,
                nic.basis,
                "every hop goes through the NIC's embedded switch",
            ),
            Limit(
                "NIC internal throughput",
                nic.loop_gbps * 1e9 / bits,
                nic.basis,
                "every hop goes through the NIC's embedded switch",
            ),
        ]
    return limits


def _vhost_limits(profile: Profile, chain: ChainWorkload) -> list[Limit]:
    """On vhost-user packets cross to and from a software switch, and are copied each time.

    One core of the switch polls the NIC: all packets of `north-south` pass it, of `east-west` only
    those at the chain's two ends. Between functions a packet crosses twice, each time copied.
    """
    cores = profile.cores
    data = chain.frame_bytes - FCS_BYTES
    crossings = 2 if chain.through else 1
    copies = "a copy" if crossings == 1 else "two copies"
    core_ns = cores.vhost_ns + crossings * (cores.crossing_ns + cores.copy_byte_ns * data)
    pmd_ns = cores.pmd_ns + cores.pmd_port_ns * chain.vnfs + cores.pmd_byte_ns * data
    times = chain.vnfs if chain.through else 1
    basis = _core_basis(profile, "vhost-user")
    return [
        _line(profile, chain),
        Limit(
            "VNF core",
            chain.vnfs * 1e9 / core_ns,
            basis,
            f"one core and queue a function; {copies} a packet",
        ),
        Limit(
            "PMD core",
            times * 1e9 / pmd_ns,
            basis,
            "one core of the switch polls the NIC and all ports",
        ),
        Limit(
            "PMD core throughput",
            times * cores.pmd_gbps * 1e9 / (8 * data),
            basis,
            "one receive queue of the NIC and one core pass on all bytes",
        ),
    ]
