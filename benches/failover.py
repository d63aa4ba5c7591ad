"""What plugging and unplugging a guest's failover primary costs by itself. For people.

python benches/failover.py [--rate PPS] [--rounds N]

Two emulated guests of this machine (no nesting; root) on one bridge. One has a virtio-net NIC with
`failover=on`, and QMP plugs and unplugs its primary, an emulated NIC on the same hub as the
virtio-net NIC. Every frame is there for both, so nobody has to move an address, and no daemon runs:
what is lost, the guest's net_failover and the emulation lost. The other guest is never changed.
Prints, for both, packets lost and the longest silence between a probe's answers. Figures only:
nothing passes or fails. Compare tests/lab/test_machines.py, where the primary is a VF that the
daemon moves, in a machine within a machine.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from planewise.boot import accelerator, cpio, kernel, packages, qemu, tools
from planewise.boot.initramfs import busybox_entries, module_entries
from planewise.boot.model import Accelerator, Kernel
from planewise.errors import PlanewiseError
from planewise.testbed.hosts import netns
from planewise.testbed.hosts.host import HostProcess, LocalHost, find_probe
from planewise.testbed.hosts.scratch import scratch
from planewise.testbed.plan import (
    Step,
    add_bridge,
    add_tap,
    new_namespace,
    set_address,
    set_master,
    set_up,
)

BEFORE_S, AFTER_S = 3.0, 12.0
"""How long the probe runs before and after QMP's command."""

WAIT_S = 300.0
PRIMARY = "e1000e"
"""QEMU refuses igb, as it may have several functions."""

MEMORY_MIB = 160

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module"; done </modules/order
$b ip link set lo up
until [ -e /proc/sys/net/ipv4/conf/eth0 ]; do $b sleep 1; done
$b ip link set eth0 up
$b ip addr add ADDRESS/24 dev eth0
exec /bin/pw-probe reflect --poll-us 0
"""


class Qmp:
    """QEMU's machine protocol over its Unix socket."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(WAIT_S)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("r")
        self._events: list[str] = []
        self._lines.readline()  # its greeting
        self.order("qmp_capabilities")

    def close(self) -> None:
        """Closes the connection."""
        self._lines.close()
        self._socket.close()

    def order(self, command: str, **arguments: str) -> None:
        """Has QEMU do something.

        Raises:
            PlanewiseError: it refuses.
        """
        self._socket.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
        while "return" not in (told := self._next()):
            if "error" in told:
                raise PlanewiseError(f"QEMU refuses {command}: {told['error']['desc']}")

    def await_event(self, name: str) -> None:
        """Waits until QEMU has told of an event."""
        while name not in self._events:
            self._next()
        self._events.remove(name)

    def _next(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise PlanewiseError("QEMU ended", remedy="is there memory for two guests?")
        told: dict[str, Any] = json.loads(line)
        if "event" in told:
            self._events.append(told["event"])
        return told


@dataclass(frozen=True)
class Guest:
    """An emulated guest."""

    number: int
    directory: Path

    @property
    def address(self) -> str:
        return f"198.18.0.1{self.number}"

    @property
    def mac(self) -> str:
        return f"02:70:77:00:02:1{self.number}"

    @property
    def tap(self) -> str:
        return f"tap{self.number}"

    @property
    def console(self) -> Path:
        return self.directory / f"console{self.number}"

    @property
    def monitor(self) -> Path:
        return self.directory / f"qmp{self.number}"

    def initrd(self, boots: Kernel) -> Path:
        """Writes what it boots from."""
        cache = packages.cache_directory()
        entries = [
            *busybox_entries(tools.find(cache).busybox),
            cpio.directory("proc"),
            cpio.directory("sys"),
            cpio.file("bin/pw-probe", Path(find_probe()).read_bytes(), 0o755),
            cpio.file("init", INIT.replace("ADDRESS", self.address).encode(), 0o755),
            *module_entries(boots, ("virtio_pci", "virtio_net", PRIMARY)),
        ]
        path = self.directory / f"initrd{self.number}"
        path.write_bytes(gzip.compress(cpio.archive(entries), 1))
        return path

    def argv(self, program: Path, found: Accelerator, boots: Kernel, initrd: Path) -> list[str]:
        """QEMU's command line. The hub has a port for the tap, one for either NIC."""
        # The kernel's informational lines say when a primary was registered and has a link.
        parameters = qemu.KERNEL_PARAMETERS.replace(" quiet", " loglevel=7")
        hub = [f"hubport,id=hub{port},hubid=0" for port in ("a", "b")]
        return [
            str(program),
            *("-machine", "q35,kernel-irqchip=split,hpet=off"),
            *qemu.accelerator_options(found),
            *("-smp", "1", "-m", str(MEMORY_MIB)),
            *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
            *("-serial", f"file:{self.console}"),
            *("-qmp", f"unix:{self.monitor},server=on,wait=off"),
            *("-kernel", str(boots.image), "-initrd", str(initrd), "-append", parameters),
            *("-netdev", f"tap,id=up,ifname={self.tap},script=no,downscript=no,vhost=off"),
            *("-netdev", "hubport,id=hubup,hubid=0,netdev=up"),
            *(word for port in hub for word in ("-netdev", port)),
            "-device",
            f"virtio-net-pci,id=sb0,netdev=huba,mac={self.mac},failover=on,romfile=",
            *("-device", "pcie-root-port,id=port0,chassis=1,slot=1"),
        ]

    def said(self) -> str:
        """What its console has shown."""
        return self.console.read_text(errors="replace") if self.console.exists() else ""

    def await_ready(self, process: HostProcess) -> None:
        """Waits until it answers."""
        deadline = time.monotonic() + WAIT_S
        while "ready: reflecting" not in self.said():
            if not process.running:
                process.wait().check()
            if time.monotonic() > deadline:
                raise PlanewiseError(f"guest {self.number} was not up within {WAIT_S:g} s")
            time.sleep(0.1)


@dataclass(frozen=True)
class Seen:
    """What a probe of a guest saw."""

    sent: int
    lost: int
    silence_s: float
    """The longest time between two answers."""

    @classmethod
    def of(cls, packets: Path) -> Seen:
        """Reads the stamps that `pw-probe ping` wrote."""
        with packets.open() as file:
            rows = list(csv.DictReader(file))
        answers = sorted(int(row["user_rx_ns"]) for row in rows if row["user_rx_ns"])
        silence_ns = max((after - before for before, after in pairwise(answers)), default=0)
        return cls(len(rows), len(rows) - len(answers), silence_ns / 1e9)

    def __str__(self) -> str:
        return f"{self.lost:5} of {self.sent} lost, longest silence {self.silence_s:6.3f} s"


def network(name: str, guests: Sequence[Guest]) -> list[Step]:
    """A namespace with a bridge and a tap a guest."""
    steps: list[Step] = [
        *new_namespace(name),
        add_bridge(name, "br0", "02:70:77:00:02:01", 1500),
        set_address(name, "br0", "198.18.0.1/24"),
        set_up(name, "br0"),
    ]
    for guest in guests:
        port_mac = f"02:70:77:00:02:2{guest.number}"
        steps += [
            *add_tap(name, guest.tap, port_mac, 1500),
            set_master(name, guest.tap, "br0"),
            set_up(name, guest.tap),
        ]
    return steps


def probed(
    host: LocalHost, name: str, guests: Sequence[Guest], rate: int, do: Callable[[], None]
) -> list[Seen]:
    """What probes of all guests see while something is done."""
    duration_s = BEFORE_S + AFTER_S
    with ExitStack() as stack:
        streams = []
        for guest in guests:
            ping = [host.probe, "ping", guest.address, "--proto", "stamp", "--no-watch"]
            ping += ["--rate", str(rate), "--duration", str(duration_s), "--patience", "30"]
            ping += ["--packets", str(guest.directory / f"packets{guest.number}")]
            streams.append(stack.enter_context(host.start(ping, netns=name)))
        time.sleep(BEFORE_S)
        do()
        for stream in streams:
            stream.wait(WAIT_S).check()
    return [Seen.of(guest.directory / f"packets{guest.number}") for guest in guests]


def link_up_s(console: str) -> str:
    """How long the guest's last primary took from its registration to its link, by its clock."""
    registered = re.findall(r"\[ *([\d.]+)\].*failover primary slave:\w+ registered", console)
    up = re.findall(r"\[ *([\d.]+)\].*Link is Up", console)
    if not registered or not up or float(up[-1]) < float(registered[-1]):
        return "its console does not say when its link was up"
    return f"link {float(up[-1]) - float(registered[-1]):.3f} s after it was registered"


def measure(rate: int, rounds: int) -> None:
    """Prints the figures."""
    program, version = qemu.find()
    cache = packages.cache_directory()
    boots = kernel.find(cache)
    found = accelerator.find(program, version, boots, tools.find(cache).busybox, cache)
    name = f"pw-failover-{os.getpid()}"
    with ExitStack() as stack:
        directory = Path(stack.enter_context(scratch()))
        guests = (Guest(0, directory), Guest(1, directory))
        host = stack.enter_context(closing(LocalHost("this machine")))
        stack.callback(netns.remove, name)
        host.perform(network(name, guests))
        started = []
        for guest in guests:
            argv = guest.argv(program, found, boots, guest.initrd(boots))
            started.append(stack.enter_context(host.start(argv, netns=name)))
        for guest, process in zip(guests, started, strict=True):
            guest.await_ready(process)
        qmp = stack.enter_context(closing(Qmp(guests[0].monitor)))
        print(f"{PRIMARY} as primary, {found.name}, {rate} packets/s and their answers, a guest")

        def plug() -> None:
            device = {"driver": PRIMARY, "id": "primary", "bus": "port0", "netdev": "hubb"}
            device |= {"mac": guests[0].mac, "failover_pair_id": "sb0", "romfile": ""}
            qmp.order("device_add", **device)

        def unplug() -> None:
            begun = time.monotonic()
            qmp.order("device_del", id="primary")
            qmp.await_event("DEVICE_DELETED")
            released.append(time.monotonic() - begun)

        released: list[float] = []
        for what, do in (("nothing", lambda: None), *(("plug", plug), ("unplug", unplug)) * rounds):
            moved, beside = probed(host, name, guests, rate, do)
            more = ""
            if what == "plug":
                more = f"; {link_up_s(guests[0].said())}"
            elif what == "unplug":
                more = f"; released after {released[-1]:.3f} s"
            print(f"{what:8} moved  {moved}{more}\n{'':8} beside {beside}", flush=True)


def main() -> int:
    """Boots them, measures, and removes them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rate", type=int, default=500, help="requests a second, a guest")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    try:
        measure(options.rate, options.rounds)
    except PlanewiseError as error:
        print(f"{error.what}\n  {error.remedy}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
