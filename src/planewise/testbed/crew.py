"""Many processes of one host, started and ended together by one shell. Knows guests, no load.

On a host that is reached by ssh each process that is started by itself costs a channel; thirty
background guests would take longer to start than to measure.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from planewise.errors import PlanewiseError
from planewise.testbed.host import Finished, Host, HostProcess

STOP_S = 60.0
"""How long a crew may take to end: its members print what they did."""

_READY = "pw-ready"
_RECEIVING = "pw-receiving"
_MARK = "\x1e"

# Members are deaf to SIGINT, as a shell starts background jobs; SIGTERM ends them.
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
    "burn": "read -r now rest </proc/$pid/schedstat",
    "blast": (
        "now=$(sed -n 's/^ *INTERFACE: *\\([0-9][0-9]* *\\)\\{9\\}\\([0-9]*\\).*/\\2/p'"
        " /proc/$pid/net/dev)"
    ),
}
"""What a member has done: CPU time [ns], packets that left its guest."""
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
class Member:
    """One process of a crew."""

    argv: tuple[str, ...]
    """Entering the guest included."""
    program: tuple[str, ...]
    """What runs there."""


class Crew:
    """Processes that one shell started. Leaving its `with` block ends them.

    `kind` is what pw-probe does there: `burn` is ready when each has got CPU time, `sink` when
    each says so, and then awaited to have received on `interface`.
    """

    def __init__(self, host: Host, members: Sequence[Member], kind: str, interface: str) -> None:
        self._host = host
        self._members = members
        self._kind = kind
        self._interface = interface
        self._directory = f"{host.directory}/{kind}"
        self._process: HostProcess = host.start(
            ["sh", "-s", self._directory],
            stdin=_script(members, kind, interface).encode(),
        )

    @property
    def running(self) -> bool:
        """Whether its shell runs: it ends when all members have ended."""
        return self._process.running

    def await_ready(self, timeout_s: float) -> None:
        """Waits until every member is at work (burning) or listens.

        Raises:
            ProcessTimeoutError: that did not come in time.
            PlanewiseError: the members ended.
        """
        self._process.wait_ready(_READY, timeout_s)

    def await_receiving(self, timeout_s: float) -> None:
        """Waits until every member's guest has received something; errors as `await_ready`."""
        self._process.wait_ready(_RECEIVING, timeout_s)

    def done(self) -> int:
        """What all members together have done so far: CPU time [ns], or packets that they sent.

        Raises:
            PlanewiseError: one of them ended.
        """
        look = _SO_FAR[self._kind].replace("INTERFACE", self._interface)
        script = f'pids=$(cat "$1/pids") || exit; sum=0; for pid in $pids; do {look} || exit; '
        script += "sum=$((sum + now)); done; echo $sum"
        asked = self._host.run(["sh", "-c", script, "sh", self._directory])
        if asked.exit_code != 0 or not asked.stdout.strip().isdigit():
            raise PlanewiseError(
                f"a part of the background load on {self._host.place} ended by itself",
                remedy="see whether something ended its guests",
            )
        return int(asked.stdout)

    def interrupt(self) -> None:
        """Asks all to end, without waiting."""
        self._process.interrupt()

    def kill(self) -> None:
        """Ends all now."""
        self._process.kill()

    def end(self) -> list[Finished]:
        """Waits for the end of all that were asked to; gives what each left.

        Raises:
            PlanewiseError: the shell was ended by somebody else.
        """
        done = self._process.wait(STOP_S)
        parts = done.stdout.split(_MARK)[1:]
        if len(parts) != 2 * len(self._members):
            raise PlanewiseError(
                f"the background load on {self._host.place} was ended by somebody else "
                f"({done.ending})"
            )
        ended = []
        for number, member in enumerate(self._members):
            code, _, output = parts[2 * number].partition("\n")
            ended.append(Finished(member.program, int(code), output, parts[2 * number + 1]))
        return ended


def _script(members: Sequence[Member], kind: str, interface: str) -> str:
    """The shell script that runs them. Pure."""
    starts = [
        f'{shlex.join(member.argv)} </dev/null >{number}.out 2>{number}.err & pids="$pids $!"'
        for number, member in enumerate(members)
    ]
    awaits = {"burn": _BURNING, "sink": _LISTENING}.get(kind, "echo READY >&2\n")
    text = "\n".join((_HEAD, *starts, "echo $pids >pids", awaits, _TAIL))
    return (
        text.replace("READY", _READY)
        .replace("RECEIVING", _RECEIVING)
        .replace("INTERFACE", interface)
        .replace("MARK", _MARK)
    )
