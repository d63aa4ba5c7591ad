"""How soon many tiny virtual machines are ready, and what memory each takes. For people.

python benches/vms.py [--guests 32] [--plane virtio-bridge]
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path

from planewise.boot.process import ProcessInfo, processes
from planewise.errors import PlanewiseError
from planewise.measure.runs.stations import SECOND_WIRE
from planewise.testbed.guests.vms.platform import VmPlatform, platform_of
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.pair import local_pair
from planewise.testbed.model import HOSTS
from planewise.testbed.setting import Setting
from planewise.testbed.testbed import Testbed

MIB = 1 << 20


def main() -> int:
    """Boots them, tells, and removes them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--guests", type=int, default=32, help="an even number")
    parser.add_argument("--plane", default="virtio-bridge")
    arguments = parser.parse_args()
    try:
        ours = platform_of(LocalHost("this machine"))
        measure(ours, arguments.guests, arguments.plane)
    except PlanewiseError as error:
        print(f"{error.what}\n  {error.remedy}", file=sys.stderr)
        return 1
    return 0


def measure(ours: VmPlatform, guests: int, plane: str) -> None:
    """Prints the figures of one testbed."""
    setting = Setting("vm", plane, plane, guests // 2 - 1, "north-south")
    free = meminfo("MemAvailable")
    begun = time.monotonic()
    with (
        local_pair(1500, SECOND_WIRE) as pair,
        Testbed(pair, 1500) as testbed,
    ):
        testbed.platforms.update(dict.fromkeys(HOSTS, ours))
        with testbed.arrange(setting):
            ready = time.monotonic() - begun
            taken = free - meminfo("MemAvailable")
            sizes = [memory(one) for one in processes() if of(one, {f"pw-{pair.token}"})]
            asleep = time.monotonic()
        asleep = time.monotonic() - asleep
        woken = time.monotonic()
        with testbed.arrange(setting):
            woken = time.monotonic() - woken
        ended = time.monotonic()
    ended = time.monotonic() - ended
    pss = [size["Pss"] for size in sizes]
    print(f"{guests} guests behind {plane}, {ours.accelerator.name}, {ours.image.memory_mib} MiB")
    print(f"all ready after           {ready:8.1f} s ({ready / guests:.2f} s a guest)")
    print(f"memory of the machine     {taken / guests / MIB:8.0f} MiB a guest")
    print(f"proportional set size     {statistics.median(pss) / MIB:8.0f} MiB a guest, median")
    rss = statistics.median(size["Rss"] for size in sizes)
    print(f"resident set size         {rss / MIB:8.0f} MiB a guest, median")
    print(f"all put to sleep, woken   {asleep:8.2f} s, {woken:.2f} s")
    print(f"all removed               {ended:8.2f} s")


def of(process: ProcessInfo, prefixes: set[str]) -> bool:
    """Whether it is the QEMU of a guest whose name starts so."""
    name = (process.option("-name") or "").partition("guest=")[2].partition(",")[0]
    return name.rpartition("-")[0] in prefixes


def memory(process: ProcessInfo) -> dict[str, int]:
    """Sizes [bytes] from /proc/PID/smaps_rollup."""
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
    return {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines}


def meminfo(name: str) -> int:
    """A line of /proc/meminfo [bytes]."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


if __name__ == "__main__":
    sys.exit(main())
