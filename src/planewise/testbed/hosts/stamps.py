"""Time stamps that a NIC claims to take, as in `ethtool -T`, by the kernel's ioctl."""

from __future__ import annotations

import array
import fcntl
import socket
import struct
from dataclasses import dataclass

# include/uapi/linux/ethtool.h and net_tstamp.h
_SIOCETHTOOL = 0x8946
_GET_TS_INFO = 0x41
_INFO = struct.Struct("IIiIIIIIIII")
_TX_HARDWARE, _RX_HARDWARE = 1 << 0, 1 << 2
_FILTER_ALL, _TX_ON = 1 << 1, 1 << 1


@dataclass(frozen=True)
class HardwareStamps:
    """A driver's claims, unverified."""

    sent: bool
    received: bool
    """Of some packets at least."""
    every_received: bool
    """Of all packets: an echo needs that, PTP's own messages do not."""
    clock: int
    """N of its PTP clock /dev/ptpN; -1 without one."""

    @property
    def text(self) -> str:
        """The claims in words, with the stamps that Planewise uses. Pure."""
        if not (self.sent or self.received):
            return "none by the NIC; the kernel's are used"
        packets = "all" if self.every_received else "PTP's alone"
        clock = f"/dev/ptp{self.clock}" if self.clock >= 0 else "no PTP clock"
        received = f"received packets ({packets})" if self.received else "no received packets"
        return (
            f"the NIC says {'sent packets and ' if self.sent else ''}{received}, by {clock}; "
            "Planewise uses the kernel's"
        )


def parse(answer: bytes) -> HardwareStamps:
    """`struct ethtool_ts_info` as the kernel fills it. Pure."""
    _, stamping, clock, sending, _, _, _, filters, *_ = _INFO.unpack(answer)
    return HardwareStamps(
        sent=bool(stamping & _TX_HARDWARE and sending & _TX_ON),
        received=bool(stamping & _RX_HARDWARE and filters > 1),
        every_received=bool(filters & _FILTER_ALL),
        clock=clock,
    )


def stamps_of(interface: str) -> str:
    """The claims of an interface of this machine, in words; `unknown` without an answer."""
    answer = array.array("B", _INFO.pack(_GET_TS_INFO, *[0] * 10))
    address, _ = answer.buffer_info()
    request = struct.pack("16sQ16x", interface.encode(), address)
    try:
        with socket.socket() as any_socket:
            fcntl.ioctl(any_socket, _SIOCETHTOOL, request)
    except OSError:
        return "unknown"
    return parse(answer.tobytes()).text
