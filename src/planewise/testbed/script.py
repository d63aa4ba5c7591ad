"""Runs a plan on any host: one shell script, with one `ip -batch` per namespace in parallel.

Each start of a program costs milliseconds, and tens of them on an emulated host.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.plan import Step

if TYPE_CHECKING:
    from planewise.testbed.hosts.host import FinishedProcess, Host

TIMEOUT_S = 180.0
"""An emulated host that is busy takes its time."""

_ERRNO = {os.strerror(code): code for code in errno.errorcode}
_ERRNO |= {
    "Unknown device type": errno.EOPNOTSUPP,
    "Directory nonexistent": errno.ENOENT,
    "nonexistent directory": errno.ENOENT,
}

_START = """\
export LC_ALL=C
batch() {  # number command…: runs a group, and prints its number and messages if it fails
  number=$1; shift
  said=$("$@" 2>&1 >/dev/null) && return
  printf 'pw-failed %s %s\\n%s\\n' "$number" $? "$said" >&2; return 1
}
up() {  # command…: waits until the interfaces that it lists are up, and ports of bridges forward
  n=0
  while late=$("$@" 2>&1 | grep -e NO-CARRIER -e LOWERLAYERDOWN -e 'bridge_slave state [dbl]'); do
    n=$((n + 1)); [ $n -lt 1000 ] || { echo "$late" >&2; return 1; }; sleep 0.02
  done
}
all() { failed=; for pid; do wait $pid || failed=1; done; [ -z "$failed" ] || exit 1; }
"""


@dataclass
class Group:
    """Steps that one process performs."""

    level: int
    command: str
    steps: list[Step] = field(default_factory=list)


def grouped(steps: Iterable[Step]) -> list[Group]:
    """The groups of a plan, by level: those of one level run in parallel. Pure.

    A step joins the group that was the last to change its namespaces, if that has the same command;
    else it comes one level later. So the order of the steps of each namespace stays. A program
    that may touch all namespaces, and a wait, come after everything before them.
    """
    groups: dict[tuple[int, str], Group] = {}
    last: dict[str, tuple[int, str]] = {}
    floor = (-1, "")
    top = 0
    for step in steps:
        command = _command(step)
        if step.program == "host":
            key = floor = (top + 1 if groups else 0, command)
        elif step.program == "await":
            shared = floor[1] == "await" and floor[0] == top
            floor = floor if shared else (top + 1 if groups else 0, "await")
            key = (floor[0], command)
        else:
            names = {step.netns, step.other or step.netns}
            if step.feature == "namespaces":
                names = {step.other}
            places = [max(floor, last.get(name, floor)) for name in names]
            latest = max(place[0] for place in places)
            joins = all(place[1] == command for place in places if place[0] == latest)
            key = (latest if joins and (latest, command) in groups else latest + 1, command)
            last |= dict.fromkeys(names, key)
        groups.setdefault(key, Group(*key)).steps.append(step)
        top = max(top, key[0])
    return sorted(groups.values(), key=lambda group: group.level)


def _command(step: Step) -> str:
    if step.program in ("ip", "bridge"):
        inside = f" -n {step.netns}" if step.netns else ""
        return f"{step.program}{inside} -batch -"
    if step.program == "await":
        inside = f" -n {step.netns}" if step.netns else ""
        device = f" dev {step.words}" if step.words else ""
        return f"up ip{inside} -d -o link show{device} up"
    return f"nsenter --net=/run/netns/{step.netns} sh" if step.netns else "sh"


def script(groups: Iterable[Group]) -> str:
    """The groups as a shell script. Pure."""
    by_level: dict[int, list[str]] = {}
    for number, group in enumerate(groups):
        lines = [step.words for step in group.steps]
        if group.command.endswith("sh"):
            lines = [f"{line} || exit {min(n, 255)}" for n, line in enumerate(lines, 1)]
        text = f"batch {number} {group.command}"
        if not group.command.startswith("up "):
            text = "\n".join([f"{text} <<'END' &", *lines, "END"])
        else:
            text += " &"
        by_level.setdefault(group.level, []).append(text + '\np="$p $!"')
    levels = ("\n".join(["p=", *level, "all $p"]) for level in by_level.values())
    return _START + "\n".join(levels) + "\n"


def perform(steps: Iterable[Step], host: Host) -> None:
    """Performs steps on `host`, in their order; an empty namespace is the host's own.

    After an interrupt or error, nothing is undone: the caller removes the namespaces.

    Raises:
        UnsupportedError: no privilege, or the kernel lacks a feature that a step needs.
        PlanewiseError: a step failed.
    """
    groups = grouped(steps)
    if not groups:
        return
    done = host.run(["sh", "-s"], stdin=script(groups).encode(), timeout_s=TIMEOUT_S)
    if done.exit_code != 0:
        raise _failure(groups, done, host.name)


def _failure(groups: list[Group], done: FinishedProcess, host: str) -> PlanewiseError:
    """The error of a script, with the step that failed. Pure."""
    failed = re.search(r"^pw-failed (\d+) (\d+)\n((?s:.*?))(?=^pw-failed|\Z)", done.stderr, re.M)
    if failed is None:
        done.check()
        raise PlanewiseError(f"the plan on {host} failed: {done.stderr.strip()}")
    group, code, messages = groups[int(failed[1])], int(failed[2]), failed[3]
    if group.steps[0].program == "await":
        names = ", ".join(re.findall(r"^\d+: ([^:@]+)", messages, re.M))
        return PlanewiseError(
            f"{names} on {host} did not come up",
            remedy="is its cable in, and the other end up? is the host overloaded? try again",
        )
    line = re.search(r"Command failed -:(\d+)", messages)
    number = int(line[1]) if line else code if group.command.endswith("sh") else 1
    step = group.steps[min(number, len(group.steps)) - 1]
    if missing := re.search(r"([\w-]+): (?:command )?not found", messages):
        what = f"there is no program `{missing[1]}` on {host}: apt-get install {step.package}"
        return UnsupportedError(what)
    said = [line for line in messages.splitlines() if not line.startswith("Command failed")]
    reason = next(reversed(said), "it printed nothing").strip()
    reason = reason.removeprefix("RTNETLINK answers: ").removeprefix("Error: ").rstrip(".")
    if re.search(r"Cannot find device|does not exist|No such device|No such file.*netns", reason):
        return explain(step, errno.ENODEV, reason)
    return explain(step, _ERRNO.get(reason.rpartition(": ")[2], 0), reason)


def explain(step: Step, code: int, message: str) -> PlanewiseError:
    """One sentence for an error number of the kernel, with the step in it. Pure."""
    feature = step.feature
    if code == errno.ENOENT and step.words.startswith("echo "):
        key = step.words.rpartition("/proc/sys/")[2]
        return UnsupportedError(
            f"this kernel has no setting {key}",
            remedy="boot it with IPv6 (without ipv6.disable=1)" if "ipv6" in key else "",
        )
    if code == errno.EROFS:
        return UnsupportedError(
            f"/proc/sys may only be read here, as in a container: `{step}`",
            remedy="in Docker, start the container with --privileged",
        )
    if code in (errno.EPERM, errno.EACCES):
        return UnsupportedError(
            f"no privilege to change the network: `{step}` was refused",
            remedy="run as root, or as a plain user on a kernel that allows user namespaces",
        )
    if feature == "namespaces" and code == errno.ENOSPC:
        return PlanewiseError(
            f"`{step}` failed: {message}",
            remedy="use fewer guests, or raise user.max_net_namespaces and fs.mount-max (sysctl); "
            "`planewise clean` removes what dead runs left",
        )
    if feature == "namespaces" and code == errno.EINVAL:
        return UnsupportedError(
            f"`{step}` failed: {message}", remedy="use a kernel built with CONFIG_NET_NS"
        )
    if feature == "MAC filters":
        return PlanewiseError(
            f"{step} failed: the NIC takes no further MAC address beside its VFs",
            remedy="fewer guests on a bridge while VFs are in use, or a NIC with more filters",
        )
    if feature and code in (errno.EOPNOTSUPP, errno.ENOENT, errno.EPROTONOSUPPORT):
        return UnsupportedError(
            f"this kernel has no {feature}",
            remedy=f"as root: modprobe {feature}; "
            f"else a kernel built with CONFIG_{feature.upper()}",
        )
    if code == errno.EEXIST:
        return PlanewiseError(
            f"the name or address is taken already: `{step}`",
            remedy="`planewise clean` removes what dead runs left",
        )
    if code in (errno.ENODEV, errno.ENXIO, errno.ENOENT):
        return PlanewiseError(
            f"an interface or namespace vanished before it could be used: `{step}`",
            remedy="another program removed it; start again",
        )
    if code == errno.EBUSY:
        return PlanewiseError(
            f"another plane holds the interface: `{step}` failed",
            remedy="a bridge and a macvlan cannot share one interface",
        )
    return PlanewiseError(f"`{step}` failed: {message or errno.errorcode.get(code, code)}")
