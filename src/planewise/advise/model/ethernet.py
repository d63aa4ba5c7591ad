"""What an Ethernet line carries. Knows no NIC."""

from __future__ import annotations

from planewise.errors import BadInputError

FCS_BYTES = 4
"""Frame check sequence: part of a frame's size (RFC 2544), stripped before PCIe."""
GAP_BYTES = 20
"""Preamble, start delimiter and gap between frames (IEEE 802.3, 3.1.1 and 4.4.2)."""
SMALLEST_BYTES, LARGEST_BYTES = 64, 9216


def line_rate_pps(rate_bps: float, frame_bytes: int) -> float:
    """Frames a second at line rate: rate / (8 (size + 20)), RFC 2544 appendix B.

    40 Gbit/s carry 59.5 million frames of 64 bytes a second, 3.25 million of 1518.
    """
    return rate_bps / (8 * (check_frame(frame_bytes) + GAP_BYTES))


def check_frame(frame_bytes: int) -> int:
    """`frame_bytes`, FCS included, as it is.

    Raises:
        BadInputError: no Ethernet frame has that size.
    """
    if not SMALLEST_BYTES <= frame_bytes <= LARGEST_BYTES:
        raise BadInputError(
            f"no Ethernet frame has {frame_bytes} bytes",
            where="frame size",
            remedy=f"{SMALLEST_BYTES} to {LARGEST_BYTES} bytes, frame check sequence included",
        )
    return frame_bytes
