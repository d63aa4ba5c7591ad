"""Time stamps that a NIC claims to take, by `ethtool -T`."""

from __future__ import annotations

import re
import subprocess


def claims(text: str) -> str:
    """What `ethtool -T` prints, in words, with the stamps that Planewise uses. Pure."""
    modes = text.partition("Hardware Transmit Timestamp Modes")[2]
    sending, _, filters = modes.partition("Hardware Receive Filter Modes")
    sent = "hardware-transmit" in text and re.search(r"\bon\b", sending) is not None
    # A driver may have the calls and switch nothing on.
    received = "hardware-receive" in text and re.search(r"\b(all|ptp\S*|some)\b", filters)
    if not (sent or received):
        return "none by the NIC; the kernel's are used"
    packets = "all" if re.search(r"\ball\b", filters) else "PTP's alone"
    number = re.search(r"PTP Hardware Clock: (\d+)", text)
    clock = f"/dev/ptp{number[1]}" if number else "no PTP clock"
    received_words = f"received packets ({packets})" if received else "no received packets"
    return (
        f"the NIC says {'sent packets and ' if sent else ''}{received_words}, by {clock}; "
        "Planewise uses the kernel's"
    )


def stamps_of(interface: str) -> str:
    """The claims of an interface of this machine, in words; `unknown` without an answer."""
    words = ["ethtool", "-T", interface]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return claims(done.stdout)
