"""Summary numbers of a cell's packets, for the figures. Knows no files and no drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planewise.report.packets import Floats, Packets
from planewise.units import time_text

BOX = (0.05, 0.25, 0.5, 0.75, 0.95)
"""Quantiles of a box: whiskers, ends and middle."""

PROBABILITIES: tuple[float, ...] = (
    0.001,
    0.005,
    *(percent / 100 for percent in range(1, 100)),
    *(1 - digit * 10.0**-power for power in (3, 4, 5, 6) for digit in (5, 2, 1)),
)
"""Quantiles that are kept of a distribution: every per cent, then towards 1 - 10⁻⁶."""

MOST_POINTS = 400
"""Most packets of a cell that a scatter draws."""


@dataclass(frozen=True)
class Spread:
    """A time's distribution over all packets of a cell, as a box [ns]."""

    low_ns: float
    q25_ns: float
    median_ns: float
    q75_ns: float
    high_ns: float
    packets: int
    medians_ns: tuple[float, ...]
    """Median of each replicate."""

    @classmethod
    def of(cls, ends_ns: Sequence[float], packets: int, medians_ns: Sequence[float]) -> Spread:
        """From the quantiles at `BOX`."""
        low, q25, median, q75, high = ends_ns
        return cls(low, q25, median, q75, high, packets, tuple(medians_ns))

    @property
    def row(self) -> dict[str, float]:
        """The quantiles as fields of a mark."""
        return {
            "low": self.low_ns,
            "q25": self.q25_ns,
            "median": self.median_ns,
            "q75": self.q75_ns,
            "high": self.high_ns,
        }

    @property
    def words(self) -> str:
        """The quantiles in words."""
        return (
            f"median {time_text(self.median_ns)}, middle half {time_text(self.q25_ns)} to "
            f"{time_text(self.q75_ns)}, 5th to 95th percentile {time_text(self.low_ns)} to "
            f"{time_text(self.high_ns)}"
        )

    @property
    def replicates(self) -> str:
        """The lowest and the highest median of a replicate."""
        if not self.medians_ns:
            return "—"
        return f"{time_text(min(self.medians_ns))} – {time_text(max(self.medians_ns))}"


@dataclass(frozen=True)
class Distribution:
    """A cell's RTT in full: for the cumulative curve, the tail and the scatter [ns]."""

    quantiles_ns: tuple[float, ...]
    """At `PROBABILITIES`, as far as at least one packet lies beyond."""
    points_ns: tuple[float, ...]
    """Packets at even distances in the order of sending, `MOST_POINTS` at most."""
    max_ns: float
    packets: int


@dataclass(frozen=True)
class TimeParts:
    """Parts of a typical packet's round trip [ns]: means over the middle half of the packets.

    They add up to `total_ns`. None: that part does not exist for this plane, or was not stamped.
    """

    total_ns: float
    instrument_ns: float | None
    """RTT between user-space stamps minus RTT between kernel stamps; None without both. Part of
    `sender_stack_ns`, where that is known."""
    sender_stack_ns: float | None
    """RTT at the guest minus RTT at its own interface: its network stack, and the probe."""
    sender_ns: float | None
    """The rest of the RTT overhead. None where the host does not see its guest's packets."""
    wire_ns: float
    """RTT at the sender's NIC minus response time; where the hosts see no packets, the time between
    the guests' interfaces."""
    responder_ns: float | None
    """Response time without the time in the responder's guest. None as `sender_ns`."""
    responder_stack_ns: float | None
    """From the interface of the responder's guest into its network stack and back."""
    packets: int

    @classmethod
    def of(
        cls,
        *,
        total: float,
        wire: float,
        overhead: float | None,
        response: float | None,
        instrument: float | None,
        stacks: tuple[float, float] | None,
        packets: int,
    ) -> TimeParts:
        """From nested times; `stacks` are those of sender and responder."""
        sender_stack, responder_stack = stacks or (None, None)
        guest = instrument if sender_stack is None else sender_stack
        return cls(
            total_ns=total,
            instrument_ns=instrument,
            sender_stack_ns=sender_stack,
            sender_ns=None if overhead is None else overhead - (guest or 0.0),
            wire_ns=wire,
            responder_ns=None if response is None else response - (responder_stack or 0.0),
            responder_stack_ns=responder_stack,
            packets=packets,
        )

    @property
    def overhead_ns(self) -> float | None:
        """RTT at the guest minus RTT at the sender's NIC."""
        if self.sender_ns is None:
            return None
        guest = self.instrument_ns if self.sender_stack_ns is None else self.sender_stack_ns
        return self.sender_ns + (guest or 0.0)


def without_nan(values: Floats) -> Floats:
    """`values` of packets that have one."""
    return values[~np.isnan(values)]


def at(ordered: Floats, probabilities: Sequence[float]) -> list[float]:
    """Quantiles of values in rising order, linear between neighbours (Hyndman & Fan, type 7)."""
    places = np.asarray(probabilities) * (len(ordered) - 1)
    below = np.floor(places).astype(int)
    above = np.minimum(below + 1, len(ordered) - 1)
    share = places - below
    return [float(value) for value in ordered[below] * (1 - share) + ordered[above] * share]


def spread(ordered: Floats, medians_ns: Sequence[float]) -> Spread:
    """The box of at least one value, in rising order."""
    return Spread.of(at(ordered, BOX), len(ordered), medians_ns)


def distribution(in_order_of_sending: Floats, ordered: Floats) -> Distribution:
    """The distribution of a cell's RTT; both arrays hold the same values."""
    n = len(ordered)
    indices = np.linspace(0, n - 1, min(n, MOST_POINTS)).astype(int)
    return Distribution(
        quantiles_ns=tuple(at(ordered, meaningful(n))),
        points_ns=tuple(float(value) for value in in_order_of_sending[indices]),
        max_ns=float(ordered[-1]),
        packets=n,
    )


def meaningful(packets: int) -> tuple[float, ...]:
    """The `PROBABILITIES` with at least one of `packets` on either side."""
    least = (1 - 1e-9) / max(1, packets)
    return tuple(p for p in PROBABILITIES if least <= p <= 1 - least) or (0.5,)


def parts(packets: Packets, *, of_user: bool, hosts_see: bool) -> TimeParts | None:
    """The parts of the time; None where no packet has all stamps.

    `of_user`: the RTT is between user-space stamps, which differ from those at the guest's
    interface; `hosts_see`: the hosts have capture points at their NICs.
    """
    inside = (packets.sender_inside_ns, packets.responder_inside_ns)
    stacks = of_user and not any(np.isnan(values).all() for values in inside)
    rtt_has_instrument = of_user and not np.isnan(packets.kernel_ns).all()
    if not hosts_see and not stacks:
        return None
    durations = [packets.rtt_ns]
    durations += [packets.kernel_ns] if rtt_has_instrument else []
    durations += [packets.nic_ns, packets.response_ns] if hosts_see else []
    durations += inside if stacks else ()
    complete = ~np.isnan(np.stack(durations)).any(axis=0)
    total = packets.rtt_ns[complete]
    if not len(total):
        return None
    low, high = np.quantile(total, (0.25, 0.75))
    middle = (total >= low) & (total <= high)

    def mean(values: Floats) -> float:
        return float(values[complete][middle].mean())

    outer = (packets.nic_ns, packets.response_ns) if hosts_see else inside
    return TimeParts.of(
        total=mean(packets.rtt_ns),
        wire=mean(outer[0] - outer[1]),
        overhead=mean(packets.rtt_ns - packets.nic_ns) if hosts_see else None,
        response=mean(packets.response_ns) if hosts_see else None,
        instrument=mean(packets.rtt_ns - packets.kernel_ns) if rtt_has_instrument else None,
        stacks=(mean(packets.rtt_ns - inside[0]), mean(inside[1])) if stacks else None,
        packets=int(middle.sum()),
    )
