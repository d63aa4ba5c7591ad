"""Receive work of a testbed's hosts, moved to CPUs of their own.

On one machine a frame sent into a veth pair is received by the CPU that sent it: the generator
pays for the plane's work, sends more slowly and never loses a frame. With receive packet steering
(RPS, Documentation/networking/scaling.rst of Linux) on the interfaces where frames enter a host,
that work moves to other CPUs, as it would on two machines: the generator keeps its schedule, and
what the plane cannot take is lost and counted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.host import Host


@dataclass(frozen=True)
class CpuSplit:
    """Which CPU generates, and which receive."""

    generator: int
    receivers: tuple[int, ...]


# /sys shows the namespace that mounted it, so that this command mounts it anew. The kernel refuses
# that where `ip netns exec` has done so. Docker's is read-only, and is remounted for this command.
OWN_SYS = (
    "mount -t sysfs sysfs /sys 2>/dev/null || true; "
    "[ -w /sys ] || mount -o remount,rw /sys 2>/dev/null || true;"
)
"""Shell, under `unshare --mount`: /sys as the network namespace sees it, to be written."""


def split_cpus(available: Iterable[int] | None = None) -> CpuSplit | None:
    """The first CPU generates, all others receive; None where there is only one CPU.

    Pure with `available`. By default they are the CPUs that this process may use; None where it may
    not steer.
    """
    if available is None and not may_steer(Path("/proc/self/uid_map").read_text()):
        return None
    cpus = sorted(os.sched_getaffinity(0) if available is None else available)
    return CpuSplit(cpus[0], tuple(cpus[1:])) if len(cpus) > 1 else None


def may_steer(uid_map: str) -> bool:
    """Whether /proc/PID/uid_map is that of the machine's own user namespace. Pure.

    RPS asks for a capability over the whole machine (net/core/net-sysfs.c of Linux), which no
    user namespace gives.
    """
    return uid_map.split() == ["0", "0", "4294967295"]


def cpu_mask(cpus: Iterable[int]) -> str:
    """A CPU mask for the kernel: hexadecimal, a comma between every 32 CPUs, highest first."""
    bits = sum(1 << cpu for cpu in set(cpus))
    words = []
    while True:
        words.append(f"{bits & 0xFFFFFFFF:08x}" if bits >> 32 else f"{bits:x}")
        bits >>= 32
        if not bits:
            return ",".join(reversed(words))


def steer(host: Host, netns: str, interfaces: Sequence[str], cpus: Iterable[int]) -> None:
    """Moves the receive work of interfaces to `cpus`; none: to the CPU where a frame arrives.

    Raises:
        PlanewiseError: this kernel or container does not let us.
    """
    script = (
        f"{OWN_SYS} mask=$1 && shift && "
        'for name; do echo "$mask" > "/sys/class/net/$name/queues/rx-0/rps_cpus" || exit 1; done'
    )
    argv = ["unshare", "--mount", "sh", "-ec", script, "steer", cpu_mask(cpus), *interfaces]
    finished = host.run(argv, netns=netns, timeout_s=30)
    if finished.exit_code:
        raise PlanewiseError(
            f"receive work in {netns} cannot be moved to other CPUs: {finished.last_line}",
            remedy="load trials still run; the generator then pays for the plane's work",
        )
