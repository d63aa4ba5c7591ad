"""Frames in a pcap file, for generators that send what a file holds. Pure."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

from planewise.testbed.chains.generator import PORT
from planewise.testbed.chains.model import FCS_BYTES
from planewise.testbed.chains.routing import SOURCE, TARGET

_MAGIC, _ETHERNET = 0xA1B2C3D4, 1
_ADDRESSES = socket.inet_aton(SOURCE), socket.inet_aton(TARGET)
_MACS = bytes.fromhex("027077400001") + bytes.fromhex("0270774000f0")
_HEADERS_BYTES = 14 + 20 + 8


def mixed(frames: Sequence[tuple[int, int]]) -> list[int]:
    """Frame sizes [bytes, with FCS] in an order that spreads each evenly over the round."""
    places = [((number + 0.5) / count, size) for size, count in frames for number in range(count)]
    return [size for _, size in sorted(places)]


def pcap(sizes: Sequence[int]) -> bytes:
    """A file (libpcap's format, 2.4) of UDP frames of these sizes [bytes, with FCS]."""
    parts = [struct.pack("<IHHiIII", _MAGIC, 2, 4, 0, 0, 65535, _ETHERNET)]
    for size in sizes:
        content = frame(size)
        parts += [struct.pack("<IIII", 0, 0, len(content), len(content)), content]
    return b"".join(parts)


def frame(size_bytes: int) -> bytes:
    """An Ethernet frame with IPv4 and UDP, of `size_bytes` with the FCS that is not in it."""
    length = size_bytes - FCS_BYTES
    ip_length = length - 14
    header = struct.pack(">BBHHHBBH4s4s", 0x45, 0, ip_length, 0, 0, 64, 17, 0, *_ADDRESSES)
    header = header[:10] + struct.pack(">H", _checksum(header)) + header[12:]
    # A UDP checksum of zero means none (RFC 768).
    udp = struct.pack(">HHHH", 49152, PORT, ip_length - 20, 0)
    return _MACS + b"\x08\x00" + header + udp + bytes(length - _HEADERS_BYTES)


def _checksum(header: bytes) -> int:
    """RFC 1071."""
    total: int = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
