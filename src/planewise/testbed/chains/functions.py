"""A dpdk-testpmd process: a network function, or a generator.

Its prompt reads commands from a pipe and writes answers to a file, on its host or in its virtual
machine. It ends with planewise.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.chains.model import Chain
from planewise.testbed.chains.reading import VnfCounters
from planewise.testbed.guests.vms.guests import boot_limit_s
from planewise.testbed.hosts.host import Host, HostProcess, ProcessTimeoutError
from planewise.testbed.model import GUEST_INTERFACE
from planewise.testbed.switches.dpdk_switch import SETUP_REMEDY

PROGRAM = "dpdk-testpmd"
MEMORY_BYTES = 64 << 20
_GUEST_PAGES = 16
"""Huge pages of 2 MiB in a virtual machine."""
RING = 1024
"""Packets that a ring between switch and function holds."""
_BUFFERS = 8192
_VF_BUFFERS = 4096
_NO_DEVICE = "No probed ethernet devices"
_PROMPT = "testpmd> "
_START_S = 120.0
_ANSWER_S = 60.0
_END_S = 5.0
_POLL_S = 0.01

# stdio writes to a file only when its buffer is full (hence stdbuf). Its input must stay open.
_MAKE = 'command -v "$1" >/dev/null && mkfifo "$2" && : >"$3"'
# Opened for reading, too: opening for writing alone waits for a reader, which may have ended.
_WRITE = 'exec 3<>"$1"; cat >&3'
_SCRIPT = 'exec 0<>"$1" 1>"$2" 2>&1; shift 2; exec "$@"'


def command(chain: Chain, device: str, cpu: int, peer: str, prefix: str) -> list[str]:
    """The command line of a function of a chain, whose frames go to `peer`. Pure.

    testpmd wants two logical cores, one for its prompt: both are one CPU here.

    Args:
        chain: whose function.
        device: the PCI address of its NIC, or the socket of its vhost-user port.
        cpu: of the host, or of its virtual machine.
        peer: a MAC address.
        prefix: tells processes of DPDK apart.
    """
    options, buffers, memory_mib = ["-a", device], _VF_BUFFERS, MEMORY_BYTES >> 20
    if chain.kind == "vm":
        memory_mib = 2 * _GUEST_PAGES
    elif not chain.on_vfs:
        port = f"net_virtio_user0,path={device},server=1,queue_size={RING}"
        options, buffers = ["--single-file-segments", "--no-pci", "--vdev", port], _BUFFERS
    return [
        *(PROGRAM, "--lcores", f"0@{cpu},1@{cpu}", "--in-memory", "--no-telemetry"),
        *("--file-prefix", prefix, "-m", str(memory_mib), *options),
        *("--", "--interactive", "--no-mlockall", "--forward-mode=mac"),
        *(f"--eth-peer=0,{peer}", f"--total-num-mbufs={buffers}", "--record-core-cycles"),
    ]


GUEST_DIRECTORY = "/tmp"
"""Directory of pipe and file in a virtual machine."""
GUEST_SCRIPT = f"""
set -e
pages={_GUEST_PAGES}
device=$(readlink -f /sys/class/net/{GUEST_INTERFACE}/device)
# That of virtio is on a bus of its own, below the PCI function.
[ -e $device/resource ] || device=${{device%/*}}
address=${{device##*/}}
ip link set {GUEST_INTERFACE} down
echo uio_pci_generic >$device/driver_override
echo $address >$device/driver/unbind
echo $address >/sys/bus/pci/drivers_probe
[ -e $device/uio ] || {{ echo "uio_pci_generic does not take $address" >&2; exit 1; }}
chmod go-w / # DPDK loads no library from below what everybody may write to
echo $pages >/proc/sys/vm/nr_hugepages
[ $(cat /proc/sys/vm/nr_hugepages) -eq $pages ] || {{
    echo "its memory has no $pages huge pages in one piece each" >&2; exit 1; }}
echo $address
"""
"""Takes a virtual machine's NIC from its kernel, and prints its PCI address."""


class Function:
    """A started testpmd; `await_prompt` returns once it takes commands."""

    def __init__(
        self,
        host: Host,
        directory: str,
        name: str,
        command: Sequence[str],
        netns: str | None = None,
        guest: str | None = None,
    ) -> None:
        """
        Args:
            host: where it runs.
            directory: of its pipe and file.
            name: for messages.
            command: starts it.
            netns: the namespace of its container, where it is in one.
            guest: the virtual machine that it, its pipe and file are in.
        """
        self.name = name
        self._host = host
        self._guest = guest
        self._pipe = f"{directory}/{name}.in"
        self._file = f"{directory}/{name}.out"
        done = host.run(["sh", "-c", _MAKE, "sh", PROGRAM, self._pipe, self._file], netns=guest)
        if done.exit_code:
            raise UnsupportedError(
                f"{PROGRAM} is not installed on {host.place}", remedy=SETUP_REMEDY
            )
        self._process: HostProcess = host.start(
            [
                *("sh", "-c", _SCRIPT, "sh", self._pipe, self._file),
                *("env", f"RUNTIME_DIRECTORY={directory}", "stdbuf", "-oL"),
                *command,
            ],
            netns=netns or guest,
        )

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.running

    def await_prompt(self) -> None:
        """Waits until it takes commands, for which the switch must have connected.

        Raises:
            PlanewiseError: it has ended, or has no device, without which it takes commands, too.
        """
        # In an emulated machine it may take as long as the machine's boot.
        limit_s = _START_S if self._guest is None else boot_limit_s(self._host)
        if _NO_DEVICE in self._await(0, limit_s):
            raise self._no_device_error()

    def execute(self, command: str) -> str:
        """Gives a command and returns the answer.

        Raises:
            PlanewiseError: it has ended, or does not answer.
        """
        start = len(self._text())
        try:
            self._write(f"{command}\n")
        except PlanewiseError as error:
            raise self._ended_error() from error
        return self._await(start, _ANSWER_S)

    def busy_s(self) -> float:
        """Time that its core spent on packets since `clear`, by its count of cycles [s]."""
        return parse_busy(self.execute("show fwd stats all"))

    def port_stats(self) -> VnfCounters:
        """Its port's counters, which include a VF's former users; bytes with or without FCS, by
        driver."""
        return parse_port(self.execute("show port stats 0"))

    def clear(self) -> None:
        """Resets its statistics."""
        self.execute("clear fwd stats all")

    def _write(self, text: str) -> None:
        if not self.alive:
            raise self._ended_error()
        argv = ["sh", "-c", _WRITE, "sh", self._pipe]
        self._host.run(argv, netns=self._guest, stdin=text.encode()).check()

    def _text(self) -> str:
        with suppress(PlanewiseError):
            return self._host.read_text(self._file, netns=self._guest)
        return ""

    def _await(self, start: int, limit_s: float) -> str:
        """Its output from `start` on, up to its next prompt."""
        deadline = time.monotonic() + limit_s
        while True:
            answer = self._text()[start:]
            # The command's echo follows the previous prompt.
            if answer.endswith(_PROMPT):
                return answer
            if not self.alive:
                raise self._ended_error()
            if time.monotonic() > deadline:
                raise PlanewiseError(
                    f"{self.name} ({PROGRAM}) did not answer for {limit_s:g} s",
                    remedy="stop other work on the machine, and try again",
                )
            time.sleep(_POLL_S)

    def _no_device_error(self) -> PlanewiseError:
        return PlanewiseError(
            f"{self.name} ({PROGRAM}) found no device: DPDK has no driver for it, or could not "
            "open it",
            remedy="`dpdk-devbind.py --status` shows who has it; DPDK's manual which NICs it knows",
        )

    def _ended_error(self) -> PlanewiseError:
        if _NO_DEVICE in self._text():
            return self._no_device_error()
        ending = self._process.wait(_END_S).ending.removeprefix("ended by ")
        if _PROMPT in self._text():
            return PlanewiseError(
                f"{self.name} ({PROGRAM}) ended while it was measured ({ending})",
                remedy="the kernel's log (`dmesg`) may say why",
            )
        lines = [line for line in self._text().splitlines() if line.strip()]
        return PlanewiseError(
            f"{self.name} ({PROGRAM}) ended ({ending}): "
            f"{lines[-1] if lines else 'it printed nothing'}",
            remedy="are there enough free huge pages?",
        )

    def close(self) -> None:
        """Ends it. Idempotent."""
        if self.alive:
            with suppress(PlanewiseError):
                self._write("stop\nquit\n")
            with suppress(ProcessTimeoutError):
                self._process.wait(_END_S)
        self._process.stop()


def parse_busy(text: str) -> float:
    """Time spent on packets [s] in the output of `show fwd stats all`; 0: not there. Pure."""
    cycles = re.search(r"total cycles=(\d+).*?at (\d+(?:\.\d+)?) MHz", text, re.DOTALL)
    return int(cycles[1]) / (float(cycles[2]) * 1e6) if cycles else 0.0


def parse_port(text: str) -> VnfCounters:
    """Parses the output of `show port stats 0`. Pure."""
    names = ("TX-packets", "TX-bytes", "RX-missed", "RX-packets")
    return VnfCounters(*(_count(text, name) for name in names))


def _count(text: str, name: str) -> int:
    match = re.search(rf"{name}: +(\d+)", text)
    return int(match[1]) if match else 0
