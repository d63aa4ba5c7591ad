"""The processes of a background load on one host, one a guest, started and ended together.

`ProcessCrew` starts each by itself: on this machine, where they end with planewise. `ShellCrew`
starts all by one shell: on a host that is reached by ssh each process costs a channel, and thirty
guests would take longer to start than to measure.
"""

from __future__ import annotations

import shlex
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from planewise.errors import PlanewiseError
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.host import FinishedProcess, Host, HostProcess, ProcessTimeoutError
from planewise.testbed.model import CounterPoint, Guest

STOP_S = 60.0
"""How long a crew may take to end: its members print their results."""

_GRACE_S = 5.0
_POLL_S = 0.02
_AT_WORK_NS = 2_000_000
"""CPU time of a guest that is at work: beyond what the start itself takes."""

_READY = "pw-ready"
_MARK = "\x1e"

# Background jobs of a shell ignore SIGINT; SIGTERM ends them.
_HEAD = """
pids=
trap 'kill -s TERM $pids 2>/dev/null' INT TERM
mkdir -p "$1" && cd "$1" || exit 1
"""
_SAID = """
count=0
for pid in $pids; do
    until grep -q ready $count.err; do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
    count=$((count + 1))
done
"""
_TREE = """
tree() { echo $1; for one in $(cat /proc/$1/task/$1/children 2>/dev/null); do tree $one; done; }
ran() {
    now=0
    for one in $(tree $1); do
        read -r first rest 2>/dev/null </proc/$one/schedstat && now=$((now + first))
    done
    kill -0 $1
}
"""
"""CPU time of a process and all below it, which stress-ng's workers are."""
_SO_FAR = {
    "stress": "ran $pid",
    "burn": "read -r now rest </proc/$pid/schedstat",
    "blast": (
        "now=$(sed -n 's/^ *INTERFACE: *\\([0-9][0-9]* *\\)\\{9\\}\\([0-9]*\\).*/\\2/p'"
        " /proc/$pid/net/dev)"
    ),
    "sink": (
        "now=$(sed -n 's/^ *INTERFACE: *[0-9][0-9]* *\\([0-9]*\\).*/\\1/p' /proc/$pid/net/dev)"
    ),
}
"""Shell: sets `now` to a member's CPU time [ns], or the packets that left or reached its guest."""
_TAIL = """
count=0
for pid in $pids; do
    while kill -0 $pid 2>/dev/null; do wait $pid; done
    wait $pid; code=$?
    printf 'MARK%s\\n' $code; cat $count.out; printf 'MARK'; cat $count.err
    rm -f $count.out $count.err; count=$((count + 1))
done
rm -f pids
"""


@dataclass(frozen=True)
class CrewProcess:
    """One process of a crew, in a guest."""

    guest: Guest
    argv: tuple[str, ...]


@dataclass(frozen=True)
class Count:
    """A count of the work in one guest; a busy guest takes long to answer."""

    value: float
    at_s: float
    """By a clock of its crew."""
    within_s: float = 0.0
    """Uncertainty of `at_s`."""


CrewKind = Literal["burn", "sink", "blast", "stress"]
"""Command of pw-probe in the guests; `stress` is stress-ng."""


class Crew(ABC):
    """Processes that were started together."""

    def __init__(self, host: Host, members: Sequence[CrewProcess], kind: CrewKind) -> None:
        self._host = host
        self._members = members
        self._kind = kind
        self._first: Mapping[str, Count] = {}
        """Counts when all were ready."""

    @property
    @abstractmethod
    def ended(self) -> tuple[str, ...]:
        """Names of the guests whose process has ended, as far as that is known."""

    @abstractmethod
    def _await_said(self, timeout_s: float) -> None:
        """Waits until every member says that it is ready, except stress-ng."""

    @abstractmethod
    def done(self) -> Mapping[str, Count]:
        """Counts by guest: CPU time [ns] (`burn`, `stress`), packets that left the guest (`blast`)
        or arrived there (`sink`).

        Raises:
            PlanewiseError: one of them ended.
        """

    @abstractmethod
    def interrupt(self) -> None:
        """Asks all to end, without waiting."""

    @abstractmethod
    def kill(self) -> None:
        """Ends all now."""

    @abstractmethod
    def end(self) -> list[FinishedProcess]:
        """Waits for the end of all that were interrupted; returns their outcomes.

        Raises:
            PlanewiseError: another program ended them.
        """

    def await_ready(self, timeout_s: float) -> None:
        """Waits until every guest is at work (`burn`, `stress`) or listens (`sink`).

        Raises:
            ProcessTimeoutError: they were not in time.
            PlanewiseError: a member ended.
        """
        self._await_said(timeout_s)
        self._first = self.done()
        if self._kind in ("burn", "stress"):
            self._await_more(_AT_WORK_NS, timeout_s)

    def await_receiving(self, timeout_s: float) -> None:
        """Waits until every guest has received something; errors as `await_ready`."""
        self._await_more(1, timeout_s)

    def _await_more(self, least: float, timeout_s: float) -> None:
        """Waits until every guest's count has risen by `least` since all were ready."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self.ended:
                self._raise_ended()
            counts = self.done()
            waiting = [n for n in counts if counts[n].value - self._first[n].value < least]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise ProcessTimeoutError(
                    f"{len(waiting)} of {len(counts)} background guests did not get to work "
                    f"within {timeout_s:g} s",
                    remedy="use fewer background guests, or stop other work on this machine",
                )
            time.sleep(_POLL_S)

    def _raise_ended(self) -> None:
        raise PlanewiseError(
            f"a part of the background load on {self._host.place} stopped unexpectedly",
            remedy="see whether something ended its guests",
        )


StartCrew = Callable[[Host, Sequence[CrewProcess], CrewKind], Crew]
"""Starts a crew on a host."""


class ProcessCrew(Crew):
    """See `Crew`; each member is a process of its own of the host."""

    def __init__(self, host: Host, members: Sequence[CrewProcess], kind: CrewKind) -> None:
        super().__init__(host, members, kind)
        self._processes: list[HostProcess] = []
        try:
            for member in members:
                self._processes.append(host.start(member.argv, netns=member.guest.netns))
        except BaseException:
            self.kill()
            raise

    @property
    def ended(self) -> tuple[str, ...]:
        pairs = zip(self._members, self._processes, strict=True)
        return tuple(member.guest.name for member, process in pairs if not process.running)

    def _await_said(self, timeout_s: float) -> None:
        for process in self._processes if self._kind != "stress" else ():
            process.wait_ready("ready", timeout_s)

    def _raise_ended(self) -> None:
        for process in self._processes:
            if not process.running:
                process.wait().check()
        super()._raise_ended()

    def done(self) -> Mapping[str, Count]:
        return _by_guest(self._members, map(self._count, range(len(self._members))))

    def interrupt(self) -> None:
        for process in self._processes:
            process.interrupt()

    def kill(self) -> None:
        for process in self._processes:
            process.kill()

    def end(self) -> list[FinishedProcess]:
        with suppress(ProcessTimeoutError):
            for process in self._processes:
                process.wait(_GRACE_S)
        return [process.stop() for process in self._processes]

    def _count(self, number: int) -> Count:
        begun_s = time.monotonic()
        if self._kind in ("burn", "stress"):
            value = self._cpu_time_ns(number)
        else:
            name = "rx_packets" if self._kind == "sink" else "tx_packets"
            value = self._counter(self._members[number], name)
        half_s = (time.monotonic() - begun_s) / 2
        return Count(value, begun_s + half_s, half_s)

    def _cpu_time_ns(self, number: int) -> int:
        """CPU time of a member; a virtual machine counts its own processes."""
        pid, guest = self._processes[number].pid, self._members[number].guest

        def ran_ns(pid: str) -> int:
            text = self._host.read_text(f"/proc/{pid}/schedstat", netns=guest.netns)
            return int(text.split()[0])

        total, waiting = ran_ns(str(pid)), [str(pid)] if self._kind == "stress" else []
        while waiting:
            parent = waiting.pop()
            with suppress(PlanewiseError):  # one that ended meanwhile
                path = f"/proc/{parent}/task/{parent}/children"
                children = self._host.read_text(path, netns=guest.netns).split()
                waiting += children
                total += sum(map(ran_ns, children))
        return total

    def _counter(self, member: CrewProcess, name: str) -> int:
        guest = member.guest
        point = CounterPoint(guest.host, guest.netns, guest.interface)
        return counters.read(self._host, point).counters[name]


class ShellCrew(Crew):
    """See `Crew`; one shell starts all."""

    def __init__(self, host: Host, members: Sequence[CrewProcess], kind: CrewKind) -> None:
        super().__init__(host, members, kind)
        self._directory = f"{host.directory}/{kind}"
        self._process: HostProcess = host.start(
            ["sh", "-s", self._directory],
            stdin=_script(host, members, kind).encode(),
        )

    @property
    def ended(self) -> tuple[str, ...]:
        """See `Crew.ended`: the shell ends when all members have."""
        return () if self._process.running else tuple(member.guest.name for member in self._members)

    def _await_said(self, timeout_s: float) -> None:
        self._process.wait_ready(_READY, timeout_s)

    def done(self) -> Mapping[str, Count]:
        read_count = _SO_FAR[self._kind].replace("INTERFACE", self._members[0].guest.interface)
        script = (
            f'{_TREE}pids=$(cat "$1/pids") || exit; for pid in $pids; do {read_count} || exit; '
        )
        script += "read -r at rest </proc/uptime; echo $now $at; done"
        done = self._host.run(["sh", "-c", script, "sh", self._directory])
        values = done.stdout.split()
        if done.exit_code != 0 or len(values) != 2 * len(self._members):
            self._raise_ended()
        counts = zip(map(int, values[::2]), map(float, values[1::2]), strict=True)
        return _by_guest(self._members, (Count(value, at_s) for value, at_s in counts))

    def interrupt(self) -> None:
        self._process.interrupt()

    def kill(self) -> None:
        self._process.kill()

    def end(self) -> list[FinishedProcess]:
        done = self._process.wait(STOP_S)
        parts = done.stdout.split(_MARK)[1:]
        if len(parts) != 2 * len(self._members):
            raise PlanewiseError(
                f"the background load on {self._host.place} was ended by somebody else "
                f"({done.ending})"
            )
        processes = []
        for number, member in enumerate(self._members):
            code, _, output = parts[2 * number].partition("\n")
            processes.append(FinishedProcess(member.argv, int(code), output, parts[2 * number + 1]))
        return processes


def _by_guest(members: Sequence[CrewProcess], counts: Iterable[Count]) -> dict[str, Count]:
    """Sums of the members' counts, by guest."""
    counts_by_guest: dict[str, list[Count]] = {}
    for member, count in zip(members, counts, strict=True):
        counts_by_guest.setdefault(member.guest.name, []).append(count)
    return {
        name: Count(
            sum(count.value for count in guest_counts),
            statistics.fmean(count.at_s for count in guest_counts),
            max(count.within_s for count in guest_counts),
        )
        for name, guest_counts in counts_by_guest.items()
    }


def _script(host: Host, members: Sequence[CrewProcess], kind: str) -> str:
    """The shell script that runs them. Pure."""
    commands = [shlex.join(host.entering(member.argv, member.guest.netns)) for member in members]
    starts = [
        f'{command} </dev/null >{number}.out 2>{number}.err & pids="$pids $!"'
        for number, command in enumerate(commands)
    ]
    said = _SAID if kind in ("burn", "sink") else ""
    ready = f"{said}echo {_READY} >&2"
    return "\n".join((_HEAD, *starts, "echo $pids >pids", ready, _TAIL.replace("MARK", _MARK)))
