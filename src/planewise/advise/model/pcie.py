"""What a PCIe link carries: the bytes that packets and their descriptors cost on it.

Sources: PCI Express Base Specification 5.0, sections 2 (packet formats), 2.6.1.2 (flow control
updates) and 3.6.3.1 (acknowledgements); Neugebauer et al., Understanding PCIe performance for end
host networking, SIGCOMM 2018 (the method, and what an 82599 does with its rings, from its data
sheet). Directions are the device's: *up* to the host, *down* from it. Knows no Ethernet.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from planewise.errors import BadInputError

_GT_PER_S = {1: 2.5e9, 2: 5e9, 3: 8e9, 4: 16e9, 5: 32e9}
"""Transfers a second and lane, by generation."""
_PAYLOADS = (128, 256, 512, 1024, 2048, 4096)
_LANES = (1, 2, 4, 8, 16)

_FRAMING_BYTES = 8
"""Around every TLP: two of the physical layer, sequence number (2) and LCRC (4)."""
WRITE_BYTES = _FRAMING_BYTES + 16
"""A memory write's overhead with 64-bit addresses: four double words of header."""
READ_BYTES = _FRAMING_BYTES + 16
"""A memory read request, which carries no data."""
COMPLETION_BYTES = _FRAMING_BYTES + 12
"""A completion's overhead: three double words of header."""

_DLLP_BYTES = 8
"""An acknowledgement or a flow control update on the wire."""
_SKIP_SHARE = 4 / 1538
"""SKP ordered sets: one every 1538 symbol times at most (4.2.7.3)."""
_TLP_OVERHEAD_BYTES = 28
_INTERNAL_DELAY = {1: 19, 2: 70, 3: 115, 4: 115, 5: 115}
"""Symbol times (tables 2-46 to 2-48 and 3-7 to 3-9 rest on them)."""


@dataclass(frozen=True)
class Link:
    """A PCIe link as it was negotiated.

    Raises:
        BadInputError: there is no such link.
    """

    generation: int
    lanes: int
    mps_bytes: int = 256
    """Maximum payload size: of writes and completions."""
    mrrs_bytes: int = 512
    """Maximum read request size."""

    def __post_init__(self) -> None:
        """Refuses what no device can negotiate."""
        for name, value, allowed in (
            ("generation", self.generation, tuple(_GT_PER_S)),
            ("lanes", self.lanes, _LANES),
            ("mps_bytes", self.mps_bytes, _PAYLOADS),
            ("mrrs_bytes", self.mrrs_bytes, _PAYLOADS),
        ):
            if value not in allowed:
                choice = ", ".join(map(str, allowed))
                raise BadInputError(
                    f"no PCIe link has {name} {value}",
                    where="link",
                    remedy=f"one of {choice}; `lspci -vv` shows LnkSta, MaxPayload and MaxReadReq",
                )

    @property
    def raw_bps(self) -> float:
        """Bits a second each way after the line code: 8b/10b, 128b/130b from generation 3 on."""
        code = 8 / 10 if self.generation < 3 else 128 / 130
        return _GT_PER_S[self.generation] * self.lanes * code

    @property
    def tlp_bps(self) -> float:
        """What is left for TLPs beside acknowledgements, flow control and SKP ordered sets.

        One of each DLLP every (MPS + 28) · AckFactor / lanes + InternalDelay symbol times, as the
        specification recommends (tables 2-46 to 2-48, 3-7 to 3-9).
        """
        factor = _ack_factor(self.lanes, self.mps_bytes)
        period = math.floor(
            (self.mps_bytes + _TLP_OVERHEAD_BYTES) * factor / self.lanes
            + _INTERNAL_DELAY[self.generation]
        )
        return self.raw_bps * (1 - 2 * _DLLP_BYTES / period - _SKIP_SHARE)


def _ack_factor(lanes: int, mps_bytes: int) -> float:
    """TLPs that one acknowledgement covers (tables 3-7 to 3-9)."""
    small = mps_bytes <= 256
    if lanes <= 4:
        return 1.4 if small else 1.0
    if lanes == 8:
        return 2.5 if small else 1.0
    return 3.0 if small else 2.0


@dataclass(frozen=True)
class Rings:
    """How a NIC and its driver exchange descriptors; counts are packets for one exchange."""

    descriptor_bytes: int = 16
    tx_fetch: int = 40
    """Transmit descriptors that one read request fetches."""
    tx_write_back: int = 8
    rx_fetch: int = 1
    rx_write_back: int = 1
    tx_doorbell: int = 32
    """The driver writes the tail pointer once for so many packets."""
    rx_doorbell: int = 32
    interrupt: int = 0
    """One interrupt for so many packets; 0 for a polling driver."""
    tx_head_read: int = 0
    """The driver reads the head pointer once for so many packets; 0 never."""
    rx_head_read: int = 0


POLLING_82599 = Rings()
"""An 82599 under a polling driver (82599 data sheet, 7.1.6, 7.1.7, 7.2.3.4; DPDK's ixgbe)."""
KERNEL_82599 = Rings(tx_doorbell=1, interrupt=32, tx_head_read=1, rx_head_read=8)
"""The same under Linux's driver: a doorbell a packet, interrupts, head pointers read."""

_POINTER_BYTES = 4


@dataclass(frozen=True)
class Cost:
    """Bytes that one packet costs on the link."""

    up: float
    down: float

    def __add__(self, other: Cost) -> Cost:
        """Both one after the other."""
        return Cost(self.up + other.up, self.down + other.down)


def _read(link: Link, size_bytes: float) -> Cost:
    """The device reads from the host."""
    return Cost(
        math.ceil(size_bytes / link.mrrs_bytes) * READ_BYTES,
        math.ceil(size_bytes / link.mps_bytes) * COMPLETION_BYTES + size_bytes,
    )


def _write(link: Link, size_bytes: float) -> Cost:
    """The device writes to the host."""
    return Cost(math.ceil(size_bytes / link.mps_bytes) * WRITE_BYTES + size_bytes, 0)


def _share(cost: Cost, packets: int) -> Cost:
    return Cost(cost.up / packets, cost.down / packets) if packets else Cost(0, 0)


_DOORBELL = Cost(0, WRITE_BYTES + _POINTER_BYTES)
_INTERRUPT = Cost(WRITE_BYTES + _POINTER_BYTES, 0)
_HEAD_READ = Cost(COMPLETION_BYTES + _POINTER_BYTES, READ_BYTES)


def transmit_cost(link: Link, rings: Rings, data_bytes: int) -> Cost:
    """A packet of `data_bytes` (without FCS) from host to NIC."""
    size = rings.descriptor_bytes
    return (
        _share(_DOORBELL, rings.tx_doorbell)
        + _share(_read(link, size * rings.tx_fetch), rings.tx_fetch)
        + _read(link, data_bytes)
        + _share(_write(link, size * rings.tx_write_back), rings.tx_write_back)
        + _share(_INTERRUPT, rings.interrupt)
        + _share(_HEAD_READ, rings.tx_head_read)
    )


def receive_cost(link: Link, rings: Rings, data_bytes: int) -> Cost:
    """A packet from NIC to host.

    The request that reads the receive descriptor counts: published models of a modern NIC assign
    over it (pcie-bench's `rx_tx_data_B`), which leaves out 24 bytes a packet.
    """
    size = rings.descriptor_bytes
    return (
        _share(_DOORBELL, rings.rx_doorbell)
        + _share(_read(link, size * rings.rx_fetch), rings.rx_fetch)
        + _write(link, data_bytes)
        + _share(_write(link, size * rings.rx_write_back), rings.rx_write_back)
        + _share(_INTERRUPT, rings.interrupt)
        + _share(_HEAD_READ, rings.rx_head_read)
    )


def packet_rate_pps(link: Link, rings: Rings, data_bytes: int) -> float:
    """Packets a second in both directions at once that the link carries, each sent and received.

    `data_bytes` without FCS. The fuller direction binds.
    """
    cost = transmit_cost(link, rings, data_bytes) + receive_cost(link, rings, data_bytes)
    return link.tlp_bps / 8 / max(cost.up, cost.down)
