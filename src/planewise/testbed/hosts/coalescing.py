"""Interrupt coalescing of a NIC: for how long it collects frames before it interrupts a CPU.

A host's note (`ledger.HostNote`) has the previous value, which is restored from there, also after a
kill -9.
"""

from __future__ import annotations

import re

from planewise.testbed.hosts.host import Host


def read_rx_usecs(host: Host, nic: str) -> int | None:
    """`rx-usecs` of a NIC; None where its driver cannot set it, or ethtool is not there."""
    output = host.run(["sh", "-c", 'ethtool -c "$1" 2>/dev/null', "sh", nic]).stdout
    match = re.search(r"^rx-usecs:\s+(\d+)\s*$", output, re.MULTILINE)
    return None if match is None else int(match[1])


def rx_usecs_line(nic: str, rx_usecs: int) -> str:
    """Shell that sets a NIC to interrupt `rx_usecs` µs after a frame at the latest, unless it is
    so: ethtool refuses to change nothing. Pure."""
    is_so = f"ethtool -c {nic} | grep -Eq '^rx-usecs:[[:space:]]+{rx_usecs}[[:space:]]*$'"
    return f"{is_so} || ethtool -C {nic} rx-usecs {rx_usecs}"


def set_rx_usecs(host: Host, nic: str, rx_usecs: int) -> None:
    """Performs `rx_usecs_line`.

    Raises:
        PlanewiseError: the driver refuses.
    """
    host.run(["sh", "-ec", rx_usecs_line(nic, rx_usecs)]).check()
