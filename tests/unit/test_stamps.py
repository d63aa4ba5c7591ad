"""What a NIC claims of time stamps, from the kernel's answer."""

from __future__ import annotations

import struct

import pytest

from planewise.testbed.stamps import parse, stamps_of

SOFTWARE, HARDWARE = 0b11010, 0b1000101
"""SOF_TIMESTAMPING flags, as `ethtool -T` names them: software-*; hardware-* and raw."""


def answer(stamping: int, clock: int, sending: int, filters: int) -> bytes:
    return struct.pack("IIiI12xI12x", 0x41, stamping, clock, sending, filters)


@pytest.mark.parametrize(
    ("stamping", "clock", "sending", "filters", "said"),
    [
        (SOFTWARE, -1, 0, 0, "none by the NIC"),
        (SOFTWARE | HARDWARE, 0, 0b11, 0b11, "sent packets and received packets (all)"),
        (HARDWARE, 2, 0b11, 0b1001, "received packets (PTP's alone), by /dev/ptp2"),
        # A driver that has the calls but switches nothing on.
        (HARDWARE, 1, 0b1, 0b1, "none by the NIC"),
    ],
)  # fmt: skip
def test_a_nics_claim_is_told_in_words(
    stamping: int, clock: int, sending: int, filters: int, said: str
) -> None:
    assert said in parse(answer(stamping, clock, sending, filters)).text


def test_an_interface_that_cannot_be_asked_is_unknown_and_not_without_stamps() -> None:
    assert stamps_of("pw-not-there") == "unknown"
