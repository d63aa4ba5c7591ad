"""Performs a plan by iproute2 on any host: one shell script a plan. Knows no guest and no plane.

`apply.py` does the same through netlink for this machine. On a host that is reached by ssh each
start of a program costs, so that steps of one namespace go to one `ip -batch`.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
from collections.abc import Iterable

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.apply import explain
from planewise.testbed.hosts.host import FinishedProcess, Host
from planewise.testbed.plan import AddNamespace, AwaitUp, Plan, RunProgram, SetSysctl, SetUp, Step

TIMEOUT_S = 180.0
"""An emulated host that is busy takes its time."""

_UP_ROUNDS = 400
_BATCH = "pw-batch "
_LATE = "pw-late "

_ERRNO = {os.strerror(code): code for code in errno.errorcode}


def perform(plan: Plan, host: Host, netns: str | None = None) -> None:
    """Performs every step of `plan` on `host`; names "" in it are `netns` of the host.

    Raises:
        UnsupportedError: no privilege, or the kernel lacks a feature that a step needs.
        PlanewiseError: a step failed.
    """
    if not plan.steps:
        return
    groups = grouped(plan.steps)
    done = host.run(["sh", "-s"], stdin=script(groups).encode(), netns=netns, timeout_s=TIMEOUT_S)
    if done.exit_code != 0:
        raise _failure(groups, done, host.name)


def grouped(steps: Iterable[Step]) -> tuple[tuple[str, tuple[tuple[str, Step], ...]], ...]:
    """Groups of successive steps that one process performs, with its command. Pure.

    A group is a command and its lines, each with the step that it belongs to; an empty command is
    a line of shell.
    """
    groups: list[tuple[str, list[tuple[str, Step]]]] = []
    for step in steps:
        for command, line in _lines(step):
            if not groups or groups[-1][0] != command or not command:
                groups.append((command, []))
            groups[-1][1].append((line, step))
    return tuple((command, tuple(lines)) for command, lines in groups)


def _lines(step: Step) -> tuple[tuple[str, str], ...]:
    if isinstance(step, AddNamespace):
        up = SetUp(step.name, "lo")
        return (("ip", f"netns add {step.name}"), *_lines(up))
    if isinstance(step, SetSysctl):
        write = f"echo {shlex.quote(step.value)} >/proc/sys/{shlex.quote(step.key)}"
        inside = f"ip netns exec {step.netns} sh -c {shlex.quote(write)}" if step.netns else write
        return (("", inside),)
    if isinstance(step, RunProgram):
        return (("", str(step)),)
    if isinstance(step, AwaitUp):
        ip = f"ip -n {step.netns}" if step.netns else "ip"
        device = f" dev {step.interface}" if step.interface else ""
        condition = f"late=$({ip} -o link show{device} up | grep -e NO-CARRIER -e LOWERLAYERDOWN)"
        give_up = f'{{ echo "{_LATE}$late" >&2; exit 1; }}'
        return (
            (
                "",
                f"n=0; while {condition}; do "
                f"n=$((n + 1)); [ $n -lt {_UP_ROUNDS} ] || {give_up}; sleep 0.05; done",
            ),
        )
    return tuple(_command(line) for line in str(step).split(" && "))


def _command(line: str) -> tuple[str, str]:
    """The command that takes a batch, and the line for it."""
    words = line.split(" ")
    length = 3 if words[1] == "-n" else 1
    return " ".join(words[:length]), " ".join(words[length:])


def script(groups: Iterable[tuple[str, tuple[tuple[str, Step], ...]]]) -> str:
    """The groups as a shell script, which prints the number of each on stderr. Pure."""
    lines = ["set -e", "export LC_ALL=C"]
    for number, (command, content) in enumerate(groups):
        lines.append(f'echo "{_BATCH}{number}" >&2')
        if command:
            lines += [f"{command} -batch - <<'END'", *(line for line, _ in content), "END"]
        else:
            lines += [line for line, _ in content]
    return "\n".join(lines) + "\n"


def _failure(
    groups: tuple[tuple[str, tuple[tuple[str, Step], ...]], ...], done: FinishedProcess, host: str
) -> PlanewiseError:
    """The error of a script, with the step that failed. Pure."""
    lines = done.stderr.strip().splitlines()
    numbers = [int(line.removeprefix(_BATCH)) for line in lines if line.startswith(_BATCH)]
    messages = [line for line in lines if not line.startswith(_BATCH)]
    late = [line.removeprefix(_LATE) for line in messages if line.startswith(_LATE)]
    if not numbers:
        done.check()
    _, content = groups[numbers[-1]]
    if late:
        names = ", ".join(line.split(":")[1].strip() for line in late)
        return PlanewiseError(
            f"{names} on {host} did not come up",
            remedy="is its cable in, and the other end up? is the host overloaded? try again",
        )
    failed = re.search(r"Command failed -:(\d+)", done.stderr)
    step = content[int(failed[1]) - 1 if failed else 0][1]
    reason = next(
        (line for line in messages if not line.startswith("Command failed")), "it printed nothing"
    ).removeprefix("RTNETLINK answers: ")
    missing = re.search(r"(ip|bridge): not found", done.stderr)
    if missing:
        return UnsupportedError(
            f"there is no program `{missing[1]}` on {host}", remedy="install iproute2 there"
        )
    if re.search(r"Cannot find device|does not exist|No such device", reason):
        return explain(step, errno.ENODEV, reason)
    return explain(step, _ERRNO.get(reason.rpartition("Error: ")[2].rstrip("."), 0), reason)
