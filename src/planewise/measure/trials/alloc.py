"""Trials of the allocator: latency under one policy, as `measure.trials.allocation` measures it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, cast

from planewise.measure.designs.design import SAME, AllocPart, Design, Policy, Problem, Protocol
from planewise.measure.station import OnSample, Place, Request, Station, Trial, TrialResult
from planewise.measure.trials.allocation import measure_allocation
from planewise.measure.trials.applications import IPERF, REDIS
from planewise.store.models import Level, TrialKind
from planewise.testbed.model import GUEST_WORDS, GuestKind

ALLOC_PLANES: Mapping[GuestKind, str] = MappingProxyType(
    {"namespace": "bridge", "container": "bridge", "vm": "virtio-bridge"}
)
"""What guests of an allocator have beside a VF: planewised joins it with a veth, or a virtio NIC,
on a bridge."""


@dataclass(frozen=True)
class AllocTrial(Trial):
    """One trial of the allocator."""

    policy: Policy
    size_bytes: int
    protocol: Protocol
    part: AllocPart
    draw: int
    """Seed of what is drawn at random."""
    kind: ClassVar[TrialKind] = "alloc"
    rank = 5
    key = "alloc"

    @classmethod
    def requested(cls, request: Request) -> list[Trial]:
        """One for each policy, size and protocol."""
        design, trials = request.design, list[Trial]()
        part, draw = design.part(cls.key, AllocPart), design.seed + request.block
        for levels in request.traffic:
            policy, size_bytes = cast("Policy", levels["policy"]), int(levels["size_bytes"])
            protocol = cast("Protocol", levels["protocol"])
            traffic = f"{policy},{size_bytes}B,{protocol}"
            name = f"alloc:{request.cell.name},{traffic}#r{request.block}"
            trials.append(cls(name, policy, size_bytes, protocol, part, draw))
        return trials

    @classmethod
    def programs(cls, design: Design) -> Sequence[str]:
        """A Redis server, where that is what answers, and a file server, where one downloads."""
        part = design.part(cls.key, AllocPart)
        redis = (REDIS,) if "redis" in design.factors.protocol else ()
        return redis if part.download_mib is None else (*redis, IPERF)

    @classmethod
    def problems(cls, design: Design) -> Iterator[Problem]:
        """Guests that no allocator can give VFs to, or nothing for it to choose from."""
        factors, part = design.factors, design.part(cls.key, AllocPart)
        yield from _guests_problems(design)
        if "east-west" in factors.path:
            yield Problem(
                ("factors", "path"),
                "the allocator's guests answer requests from another host",
                "leave `path` out",
            )
        if "switch" in factors.policy and part.change_s:
            yield Problem(
                ("alloc", "change_s"),
                "the load does not change in a trial of a switch",
                "use a separate design for the policy `switch`",
            )
        fewest = min(factors.background_guests)
        if fewest <= part.vfs:
            yield Problem(
                ("factors", "background_guests"),
                f"{fewest} guests for {part.vfs} VFs leave nothing to choose: each could have one",
                "give more guests than `alloc.vfs`",
            )
        if fewest < len(part.group_pps):
            yield Problem(
                ("alloc", "group_pps"),
                f"{len(part.group_pps)} groups of {fewest} guests: some would have none",
                "give more guests in `factors.background_guests`",
            )
        if len(set(part.group_pps)) != len(part.group_pps):
            yield Problem(
                ("alloc", "group_pps"), "a rate is named twice", "a group is known by its rate"
            )

    @classmethod
    def offered(cls, design: Design) -> Iterator[tuple[str, float | str]]:
        """What all guests are sent together."""
        groups = design.part(cls.key, AllocPart).group_pps
        guests = max(design.factors.background_guests)
        yield "alloc.group_pps", math.ceil(guests / len(groups)) * sum(groups)

    @property
    def expected_s(self) -> float:
        return self.part.warmup_s + self.part.duration_s + self.part.change_s

    def traffic(self) -> dict[str, Level]:
        return {
            "policy": self.policy,
            "size_bytes": self.size_bytes,
            "protocol": self.protocol,
        }

    def measure_on(self, station: Station, place: Place, on_sample: OnSample) -> TrialResult:
        return measure_allocation(station, self, place)


def _guests_problems(design: Design) -> Iterator[Problem]:
    """Guests, or planes of theirs, that planewised does not manage."""
    factors = design.factors
    for index, kind in enumerate(factors.guest):
        if kind not in ALLOC_PLANES:
            yield Problem(
                ("factors", "guest", index),
                f"the allocator gives no VFs to guests that are {GUEST_WORDS[kind][1]}",
                f"set `factors.guest` to {', '.join(ALLOC_PLANES)}",
            )
    if "vm" in factors.guest and (parts := design.kinds().keys() - {"alloc"}):
        yield Problem(
            ("factors", "guest"),
            f"virtual machines that are given VFs are measured by `alloc` alone, not by "
            f"`{'`, `'.join(sorted(parts))}`",
            "use a separate design for each",
        )
    guests = " and ".join(GUEST_WORDS[kind][1] for kind in factors.guest)
    planes = tuple(dict.fromkeys(ALLOC_PLANES[kind] for kind in factors.guest))
    for place, names in (("plane", factors.plane), ("background_plane", factors.background_plane)):
        for index, name in enumerate(names):
            if name not in (*planes, SAME):
                allowed = " and ".join(planes)
                yield Problem(
                    ("factors", place, index),
                    f"the allocator gives VFs to {guests} on {allowed}, not on {name}",
                    f"set `factors.{place}` to {allowed}, and use a separate design for other "
                    "planes",
                )
