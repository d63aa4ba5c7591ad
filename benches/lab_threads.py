"""Does an emulated host survive that its map of devices changes? With one thread, and one a CPU.

    python benches/lab_threads.py [--rounds N] [--seconds S]

Each round boots a lab (emulated, as root; see `planewise lab up`), takes its second PF from its
driver, and switches that PF's memory off and on in the PCI configuration for S seconds, while the
other emulated CPU sleeps and wakes. Either way of emulation has N rounds, one after the other. It
prints how often the map was changed, and what became of the host. Figures only: nothing passes or
fails. Source of the difference: docs/design.md.
"""

from __future__ import annotations

import argparse
import time
from unittest import mock

from planewise import lab
from planewise.errors import PlanewiseError
from planewise.lab import qemu
from planewise.testbed.hosts.remote import LabHost

_INSIDE = """
import os, sys, time
device = os.path.realpath("/sys/class/net/pf1/device")
with open("/sys/bus/pci/drivers/igb/unbind", "w") as file:
    file.write(os.path.basename(device))
config = os.open(device + "/config", os.O_RDWR)
end = time.time() + float(sys.argv[1])
if os.fork() == 0:
    while time.time() < end:
        time.sleep(0.0005)
    os._exit(0)
changes = 0
while time.time() < end:
    os.pwrite(config, b"\\x00\\x00", 4)
    os.pwrite(config, b"\\x06\\x00", 4)
    changes += 2
print(changes)
"""


class _Silence:
    def begin(self, what: str, total_s: float) -> None:
        pass

    def step(self, what: str, done_s: float) -> None:
        pass


def one_round(name: str, seconds: float) -> str:
    """What became of a host."""
    lab.up(lab.LabSpec(name, pfs=2, memory_mib=768), _Silence())
    begun = time.monotonic()
    try:
        host = LabHost(name, "a", name="sender")
        try:
            inside = ["python3", "-c", _INSIDE, str(seconds)]
            done = host.run(inside, timeout_s=2 * seconds + 60).check()
            return f"lived through {done.stdout.strip()} changes"
        finally:
            host.close()
    except PlanewiseError:
        found = lab.status(name)
        states = [one.finding for one in found.hosts if one.host == "a"] if found else []
        why = f"{states[0].state}: {states[0].reason}" if states else "gone"
        return f"lost after at most {time.monotonic() - begun:.0f} s ({why})"
    finally:
        lab.down(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    ours = qemu.command_line
    for threads in ("single", "multi"):

        def with_threads(*arguments: object, threads: str = threads) -> list[str]:
            argv = ours(*arguments)  # type: ignore[arg-type]
            return [f"tcg,thread={threads}" if one.startswith("tcg,") else one for one in argv]

        with mock.patch.object(qemu, "command_line", with_threads):
            for number in range(options.rounds):
                said = one_round("threads", options.seconds)
                print(f"thread={threads:7} round {number + 1}: {said}", flush=True)


if __name__ == "__main__":
    main()
