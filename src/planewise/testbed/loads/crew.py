"""The processes of a background load on one host, one a guest, started and ended together.

`ProcessCrew` starts each by itself: on this machine, where they end with planewise. `ShellCrew`
starts all by one shell: on a host that is reached by ssh each process costs a channel, and thirty
guests would take longer to start than to measure.
"""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

from planewise.errors import PlanewiseError
from planewise.testbed.hosts import counters
from planewise.testbed.hosts.host import FinishedProcess, Host, HostProcess, ProcessTimeoutError
from planewise.testbed.model import GUEST_INTERFACE, CounterPoint, Guest

STOP_S = 60.0
"""How long a crew may take to end: its members print their results."""

_GRACE_S = 5.0
_POLL_S = 0.005

_READY = "pw-ready"
_RECEIVING = "pw-receiving"
_MARK = "\x1e"

# Background jobs of a shell ignore SIGINT; SIGTERM ends them.
_HEAD = """
pids= ; asked=
trap 'asked=1; kill -s TERM $pids 2>/dev/null' INT TERM
mkdir -p "$1" && cd "$1" || exit 1
"""
_BURNING = """
# Beyond what the start itself takes.
for pid in $pids; do
    until read -r name </proc/$pid/comm && [ "$name" = pw-probe ]; do
        kill -0 $pid 2>/dev/null || break; sleep 0.05
    done
    read -r first rest </proc/$pid/schedstat
    until read -r now rest </proc/$pid/schedstat && [ $((now - first)) -gt 2000000 ]; do
        kill -0 $pid 2>/dev/null || break; sleep 0.05
    done
done
echo READY >&2
"""
_STRESSING = """
for pid in $pids; do
    until ran $pid && [ $now -gt 2000000 ]; do
        kill -0 $pid 2>/dev/null || break; sleep 0.05
    done
done
echo READY >&2
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
_LISTENING = """
count=0
for pid in $pids; do
    until grep -q ready $count.err; do kill -0 $pid 2>/dev/null || break; sleep 0.05; done
    count=$((count + 1))
done
received() { sed -n 's/^ *INTERFACE: *[0-9]* *\\([0-9]*\\).*/\\1/p' /proc/$1/net/dev; }
for pid in $pids; do eval "first$pid=$(received $pid)"; done
echo READY >&2
for pid in $pids; do
    eval "first=\\$first$pid"
    until [ "$(received $pid)" -gt "$first" ]; do
        [ -z "$asked" ] && kill -0 $pid 2>/dev/null || break; sleep 0.05
    done
done
echo RECEIVING >&2
"""
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


class Crew(Protocol):
    """Processes that were started together."""

    @property
    def ended(self) -> tuple[str, ...]:
        """Names of the guests whose process has ended, as far as that is known."""

    def await_ready(self, timeout_s: float) -> None:
        """Waits until every member is at work (`burn`, `stress`) or listens (`sink`).

        Raises:
            ProcessTimeoutError: they were not in time.
            PlanewiseError: a member ended.
        """

    def await_receiving(self, timeout_s: float) -> None:
        """Waits until every member's guest has received something; errors as `await_ready`."""

    def done(self) -> Mapping[str, Count]:
        """Counts by guest: CPU time [ns] (`burn`, `stress`), packets that left the guest (`blast`)
        or arrived there (`sink`).

        Raises:
            PlanewiseError: one of them ended.
        """

    def interrupt(self) -> None:
        """Asks all to end, without waiting."""

    def kill(self) -> None:
        """Ends all now."""

    def end(self) -> list[FinishedProcess]:
        """Waits for the end of all that were interrupted; returns their outcomes.

        Raises:
            PlanewiseError: another program ended them.
        """


StartCrew = Callable[[Host, Sequence[CrewProcess], CrewKind], Crew]
"""Starts a crew on a host."""


class ProcessCrew:
    """See `Crew`; each member is a process of its own of the host."""

    def __init__(self, host: Host, members: Sequence[CrewProcess], kind: CrewKind) -> None:
        self._host = host
        self._members = members
        self._kind = kind
        self._received = [
            self._counter(member, "rx_packets") for member in members if kind == "sink"
        ]
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

    def await_ready(self, timeout_s: float) -> None:
        for process in self._processes if self._kind != "stress" else ():
            process.wait_ready("ready", timeout_s)
        if self._kind in ("burn", "stress"):  # beyond what the start itself takes
            self._await([partial(self._burnt, n) for n in range(len(self._members))], timeout_s)

    def await_receiving(self, timeout_s: float) -> None:
        self._await([partial(self._reached, n) for n in range(len(self._members))], timeout_s)

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

    def _burnt(self, number: int) -> bool:
        return self._cpu_time_ns(number) > 2_000_000

    def _reached(self, number: int) -> bool:
        return self._counter(self._members[number], "rx_packets") > self._received[number]

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

    def _await(self, signs: Sequence[Callable[[], bool]], timeout_s: float) -> None:
        """Waits until every sign of work is true."""
        deadline = time.monotonic() + timeout_s
        waiting = list(signs)
        while True:
            for process in self._processes:
                if not process.running:
                    process.wait().check()
                    raise PlanewiseError("a part of the background load stopped unexpectedly")
            waiting = [sign for sign in waiting if not sign()]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise ProcessTimeoutError(
                    f"{len(waiting)} of {len(signs)} background guests did not get to work "
                    f"within {timeout_s:g} s",
                    remedy="use fewer background guests, or stop other work on this machine",
                )
            time.sleep(_POLL_S)


class ShellCrew:
    """See `Crew`; one shell starts all."""

    def __init__(
        self,
        host: Host,
        members: Sequence[CrewProcess],
        kind: CrewKind,
        interface: str = GUEST_INTERFACE,
    ) -> None:
        self._host = host
        self._members = members
        self._kind = kind
        self._interface = interface
        self._directory = f"{host.directory}/{kind}"
        self._process: HostProcess = host.start(
            ["sh", "-s", self._directory],
            stdin=_script(host, members, kind, interface).encode(),
        )

    @property
    def ended(self) -> tuple[str, ...]:
        """See `Crew.ended`: the shell ends when all members have."""
        return () if self._process.running else tuple(member.guest.name for member in self._members)

    def await_ready(self, timeout_s: float) -> None:
        self._process.wait_ready(_READY, timeout_s)

    def await_receiving(self, timeout_s: float) -> None:
        self._process.wait_ready(_RECEIVING, timeout_s)

    def done(self) -> Mapping[str, Count]:
        read_count = _SO_FAR[self._kind].replace("INTERFACE", self._interface)
        script = (
            f'{_TREE}pids=$(cat "$1/pids") || exit; for pid in $pids; do {read_count} || exit; '
        )
        script += "read -r at rest </proc/uptime; echo $now $at; done"
        done = self._host.run(["sh", "-c", script, "sh", self._directory])
        values = done.stdout.split()
        if done.exit_code != 0 or len(values) != 2 * len(self._members):
            raise PlanewiseError(
                f"a part of the background load on {self._host.place} stopped unexpectedly",
                remedy="see whether something ended its guests",
            )
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


def _script(host: Host, members: Sequence[CrewProcess], kind: str, interface: str) -> str:
    """The shell script that runs them. Pure."""
    commands = [shlex.join(host.entering(member.argv, member.guest.netns)) for member in members]
    starts = [
        f'{command} </dev/null >{number}.out 2>{number}.err & pids="$pids $!"'
        for number, command in enumerate(commands)
    ]
    awaits = {"burn": _BURNING, "sink": _LISTENING, "stress": _STRESSING}.get(
        kind, "echo READY >&2\n"
    )
    text = "\n".join((_HEAD, _TREE, *starts, "echo $pids >pids", awaits, _TAIL))
    return (
        text.replace("READY", _READY)
        .replace("RECEIVING", _RECEIVING)
        .replace("INTERFACE", interface)
        .replace("MARK", _MARK)
    )
