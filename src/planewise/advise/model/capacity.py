"""What a chain of network functions can carry on a plane, and which station limits it.

A packet visits stations; a station takes a time for each visit, and the chain's rate is one over
the largest sum of times (Denning and Buzen, ACM Computing Surveys 10, 1978). Rates are totals as
Intel 335625 counts them: what all functions send, summed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from planewise.advise.model.profile import Basis, Dimension, Plane, Profile, Station
from planewise.errors import BadInputError

Pattern = Literal["north-south", "east-west", "pipeline"]
LONGEST = 64
FCS_BYTES = 4
"""Frame check sequence: part of a frame's size (RFC 2544), stripped by the NIC."""
GAP_BYTES = 20
"""Preamble, start delimiter and gap between frames (IEEE 802.3, 3.1.1 and 4.4.2)."""
SMALLEST_BYTES, LARGEST_BYTES = 64, 9216
_FARTHEST = 2.0
"""No interval is given beyond so many times the largest value that was measured."""

WORDS: Mapping[Dimension, str] = {
    "vnfs": "number of functions",
    "chains": "number of chains",
    "frame_bytes": "frame size",
    "pattern": "pattern",
    "switch_cores": "number of switch cores",
    "vnf_cores": "number of cores a function",
    "threads_per_core": "number of threads a core",
}


@dataclass(frozen=True)
class ChainWorkload:
    """Chains of network functions, and the hardware that they have.

    `north-south`: `vnfs` functions that each send their packets back; `east-west`: each packet
    passes `vnfs` functions, and the switch or NIC between them; `pipeline`: the same, but functions
    hand packets to each other directly.

    Raises:
        BadInputError: there is no such chain.
    """

    pattern: Pattern
    vnfs: int
    frame_bytes: int
    """With FCS."""
    chains: int = 1
    """Such chains side by side."""
    switch_cores: int = 1
    vnf_cores: int = 1
    """Cores of each function."""
    switch_threads: int | None = None
    """Threads of the switch on its cores together; None where that is not known."""

    def __post_init__(self) -> None:
        """Refuses what cannot be."""
        if self.pattern not in ("north-south", "east-west", "pipeline"):
            raise BadInputError(
                f"there is no pattern {self.pattern}", remedy="north-south, east-west or pipeline"
            )
        for number, words in (
            (self.vnfs, "network functions"),
            (self.chains, "chains"),
            (self.switch_cores, "switch cores"),
            (self.vnf_cores, "cores a function"),
            (self.threads_per_core or 1, "threads a core"),
        ):
            if not 1 <= number <= LONGEST:
                raise BadInputError(
                    f"a chain must have 1 to {LONGEST} {words}, not {number:g}", where=words
                )
        if not SMALLEST_BYTES <= self.frame_bytes <= LARGEST_BYTES:
            raise BadInputError(
                f"no Ethernet frame has {self.frame_bytes} bytes",
                where="frame size",
                remedy=f"{SMALLEST_BYTES} to {LARGEST_BYTES} bytes, frame check sequence included",
            )

    @property
    def threads_per_core(self) -> float | None:
        """Threads on each core of the switch; None where that is not known."""
        return self.switch_threads and self.switch_threads / max(self.switch_cores, 1)

    @property
    def length(self) -> int:
        """Functions that each packet passes."""
        return 1 if self.pattern == "north-south" else self.vnfs

    @property
    def functions(self) -> int:
        """All functions of all chains."""
        return self.vnfs * self.chains

    @property
    def through(self) -> bool:
        """Whether packets go from function to function."""
        return self.length > 1

    @property
    def hops(self) -> int:
        """How often each packet goes from one function to the next by way of the switch."""
        return self.length - 1 if self.pattern == "east-west" else 0


@dataclass(frozen=True)
class Limit:
    """One station, and the total rate at which it is fully used."""

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
    """The bottleneck first."""
    interval: tuple[float, float] | None
    """From the largest error on rows left out of the fit [pps]; None where that is not known."""
    unknown: tuple[Dimension, ...] = ()
    """Why there is no interval: what of the chain the measurements do not cover."""
    unmeasured: tuple[Dimension, ...] = ()
    """What of the chain was not measured; the interval is that of such chains."""

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
        """The station that limits the rate."""
        return self.limits[0]


Visits = Mapping[str, Mapping[str, float]]
"""By station and by time of `Station`: how often a packet entering a chain takes that time."""


def visits(plane: Plane, chain: ChainWorkload) -> Visits:
    """The stations of `plane`, divided by the number of cores that share their work."""
    data, length, hops = chain.frame_bytes - FCS_BYTES, chain.length, chain.hops
    own = chain.functions / length * chain.vnf_cores
    core = {"packet_ns": 1 / own, "byte_ns": data / own}
    line = {"byte_ns": chain.frame_bytes + GAP_BYTES}
    if plane == "vf-passthrough":
        inside = length if chain.through else 0
        return {
            "NIC packet rate": {"packet_ns": length},
            "NIC internal packet rate": {"packet_ns": inside},
            "NIC internal throughput": {"packet_ns": inside, "byte_ns": inside * data},
            "VNF core": core,
            "line rate": line,
        }
    ports = chain.functions if chain.pattern != "pipeline" else chain.chains
    switch = {
        "visit_ns": hops + 2,
        "packet_ns": 1,
        "hop_ns": hops,
        "byte_ns": data,
        "hop_byte_ns": hops * data,
        "port_ns": ports - 1,
    }
    between = bool(hops) / own
    return {
        "switch core": {name: times / chain.switch_cores for name, times in switch.items()},
        "VNF core": core | {"hop_ns": between, "hop_byte_ns": between * data},
        "switch throughput": {"byte_ns": data / chain.switch_cores},
        "line rate": line,
    }


_WHY = {
    "line rate": "packets enter and leave by the line",
    "NIC packet rate": "each packet passes the NIC for each function",
    "NIC internal packet rate": "every hop goes through the NIC's embedded switch",
    "NIC internal throughput": "every hop goes through the NIC's embedded switch",
    "switch core": "the switch's cores share the packets of all functions",
    "VNF core": "each function handles its packets on its own cores",
    "switch throughput": "the switch's cores copy every byte",
}


def line_ns(profile: Profile, chain: ChainWorkload) -> float:
    """Time that a frame is on the line: 8 (size + 20) / rate (RFC 2544, appendix B)."""
    rate = profile.line_gbps
    return 8 * (chain.frame_bytes + GAP_BYTES) / rate if rate else 0.0


def station_ns(station: Station, counts: Mapping[str, float]) -> float:
    """What a packet takes of a station."""
    return float(sum(getattr(station, name) * times for name, times in counts.items()))


def predict(profile: Profile, plane: Plane, chain: ChainWorkload) -> Prediction | None:
    """What `chain` carries on `plane` of a host; None where the profile knows no limit."""
    counts = visits(plane, chain)
    times: list[tuple[float, str, Basis]] = [
        (station_ns(one, counts[one.name]), one.name, one.basis)
        for one in profile.stations_of(plane)
    ]
    if not times:
        return None
    times.append((line_ns(profile, chain), "line rate", "data sheet"))
    limits = tuple(
        Limit(name, chain.length * 1e9 / ns, basis, _WHY[name])
        for ns, name, basis in sorted(times, reverse=True)
        if ns > 0
    )
    fitted = profile.fitted_to(plane)
    if not limits or fitted is None:
        return Prediction(plane, chain, limits, None) if limits else None
    unmeasured: list[Dimension] = [
        name for name, seen in fitted.seen.items() if getattr(chain, name) not in (*seen, None)
    ]
    unknown = tuple(
        name
        for name in unmeasured
        if name not in fitted.errors or _far(getattr(chain, name), fitted.seen[name])
    )
    errors = [fitted.errors[name] for name in unmeasured if name in fitted.errors]
    width = max(errors) if errors else min(fitted.errors.values(), default=None)
    interval = (
        None
        if unknown or width is None
        else (limits[0].pps * math.exp(-width), limits[0].pps * math.exp(width))
    )
    return Prediction(plane, chain, limits, interval, unknown, tuple(unmeasured))


def _far(value: object, seen: tuple[int | float | str, ...]) -> bool:
    """Whether a number is far beyond those measured."""
    numbers = [one for one in seen if not isinstance(one, str)]
    return isinstance(value, int | float) and bool(numbers) and value > _FARTHEST * max(numbers)


def floor_ns(profile: Profile, plane: Plane, chain: ChainWorkload) -> float:
    """Least time of a packet from the line through its functions and back to the line [ns].

    The line twice, and the time that every core it meets spends on it in a full batch. A real
    latency is several times as long: queues, interrupts and the scheduler add to it.
    """
    alone = replace(
        chain, vnfs=chain.length, chains=1, vnf_cores=1, switch_cores=1, switch_threads=None
    )
    counts = visits(plane, alone)
    times = {one.name: station_ns(one, counts[one.name]) for one in profile.stations_of(plane)}
    cores = times.get("switch core", 0.0) + chain.length * times.get("VNF core", 0.0)
    return 2 * line_ns(profile, chain) + cores
