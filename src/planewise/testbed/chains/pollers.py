"""Functions that poll: dpdk-testpmd processes of one host, each with a VF of a NIC by vfio-pci.

Knows a host and a pool of VFs; no generator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Self

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.chains.functions import MEMORY_BYTES, Function, PortStats, vf_command
from planewise.testbed.chains.model import FCS_BYTES
from planewise.testbed.chains.reading import Sent, now_s
from planewise.testbed.host import Host, HostProcess
from planewise.testbed.vfs import Vf, VfPool

_SPARE_BYTES = 16 << 20
"""Huge pages that a function takes beside its buffers."""
_LEASE_S = 120.0
_TAKEN = "pw-taken"
_TOO_FEW = 9
_WRAPPED = 1 << 31
"""A VF's counters have 32 bits; one that rose by more than half of that has not counted."""

# The pages go back when the lease ends. Who gives them back is in a session of its own, as a lost
# connection ends the lease's by SIGKILL.
_LEASE = f"""
wanted=$1 file=/proc/sys/vm/nr_hugepages
before=$(cat $file) && echo $((before + wanted)) >$file || exit 1
added=$(($(cat $file) - before))
setsid sh -c 'while kill -0 $1; do sleep 0.5; done
    echo $(($(cat $3) - $2)) >$3' sh $$ $added $file </dev/null >/dev/null 2>&1 &
[ $added -ge "$wanted" ] || exit {_TOO_FEW}
echo {_TAKEN} >&2
exec sleep infinity
"""


class Pollers:
    """The functions of one chain; leaving its `with` block ends them and gives all back.

    A VF is only given back once its function has ended: a kernel that is to take a VF from a
    process that holds it waits for ever.
    """

    def __init__(self, host: Host, pool: VfPool, token: str) -> None:
        self._host = host
        self._pool = pool
        self._token = token
        self._vfs: dict[int, Vf] = {}
        self._functions: dict[int, Function] = {}
        self._last: dict[int, PortStats] = {}
        self._counted_fcs: dict[int, int] = {}
        self._standing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the functions, then gives back VFs and huge pages. Idempotent."""
        self._functions.clear()
        self._vfs.clear()
        self._standing.close()

    def take(self, numbers: Sequence[int]) -> Mapping[int, str]:
        """Takes a VF and huge pages for each function; gives the VFs' MACs by number.

        Raises:
            UnsupportedError: the host has too few huge pages.
            PlanewiseError: too few VFs, or one cannot be had by VFIO.
        """
        self._lease(len(numbers))
        for number in numbers:
            vf = self._vfs[number] = self._pool.take()
            # igb counts the FCS as well (VFGOTC); elsewhere DPDK takes it off.
            self._counted_fcs[number] = FCS_BYTES if vf.driver == "igbvf" else 0
            self._standing.callback(self._pool.give_back, vf)
            self._pool.hand_over(vf)
        return {number: vf.config.mac for number, vf in self._vfs.items()}

    def _lease(self, functions: int) -> None:
        text = self._host.read_text("/proc/meminfo")
        sizes = [line.split()[1] for line in text.splitlines() if line.startswith("Hugepagesize:")]
        if not sizes:
            raise UnsupportedError(
                f"the kernel of {self._host.place} has no huge pages (CONFIG_HUGETLBFS)",
                remedy="boot a kernel that has them",
            )
        page_bytes = int(sizes[0]) << 10
        pages = -(-functions * (MEMORY_BYTES + _SPARE_BYTES) // page_bytes)
        lease: HostProcess = self._host.start(["sh", "-c", _LEASE, "sh", str(pages)])
        self._standing.callback(lease.stop)
        try:
            lease.wait_ready(_TAKEN, _LEASE_S)
        except PlanewiseError as error:
            if lease.running or lease.wait().exit_code != _TOO_FEW:
                raise
            raise UnsupportedError(
                f"{functions} functions need {pages} huge pages of {page_bytes >> 20} MiB on "
                f"{self._host.place}, and its kernel does not give as many",
                remedy="fewer functions, or a host with more free memory",
            ) from error

    def start(self, peers: Mapping[int, str], cpus: Mapping[int, int]) -> None:
        """Starts the functions, by number: each sends all to its peer's MAC, from its CPU.

        Raises:
            PlanewiseError: one ended, such as for want of a driver for its VF.
        """
        # On a host with one CPU what polls would leave none to those who ask.
        alone = self._host.run(["nproc"]).check().stdout.strip() == "1"
        for number, vf in self._vfs.items():
            name = f"vnf{number}"
            command = vf_command(vf.address, cpus[number], peers[number], f"{self._token}{name}")
            if alone:
                command = ["nice", "-n", "19", *command]
            function = Function(self._host, self._host.directory, name, command)
            self._standing.callback(function.close)
            self._functions[number] = function
        for function in self._functions.values():
            function.await_prompt()
            function.say("start")

    @property
    def pids(self) -> Mapping[int, int]:
        """By number, the process on the host that is a function."""
        return {number: function.pid for number, function in self._functions.items()}

    def clear(self) -> None:
        """Begins the count of cycles anew."""
        self._last.clear()
        for function in self._functions.values():
            function.clear()

    def busy_s(self) -> dict[str, float]:
        """Time that each function's core spent on packets since `clear`, by name."""
        return {one.name: one.forwarded().busy_s for one in self._functions.values()}

    def read(self) -> dict[int, Sent]:
        """What the functions' VFs have counted, by number; each with its time.

        Raises:
            PlanewiseError: one ended, or its VF was reset below it.
        """
        return {number: self._read(number) for number in self._functions}

    def _read(self, number: int) -> Sent:
        function = self._functions[number]
        if not function.alive:
            raise PlanewiseError(f"{function.name} ended while it was measured")
        began_s = now_s()
        seen = function.port_stats()
        before = self._last.get(number, seen)
        for now, then in (
            (seen.tx_packets, before.tx_packets),
            (seen.rx_packets, before.rx_packets),
        ):
            if now < then or now - then > _WRAPPED:
                raise PlanewiseError(
                    f"the counters of {function.name}'s VF jumped from {then} to {now}: its PF "
                    "went down and up, and the VF is dead until its function is started again",
                    remedy="leave the PF up while chains are measured, and `--resume` the run",
                )
        self._last[number] = seen
        at_s = (began_s + now_s()) / 2
        size = seen.tx_bytes - seen.tx_packets * self._counted_fcs.get(number, 0)
        return Sent(seen.tx_packets, size, seen.rx_missed, seen.rx_packets, at_s)
