"""Removes the virtual machines of a token from a host, whoever started them."""

from __future__ import annotations

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.host import Host

# QEMU of a killed run ends a moment after its connection; the ports are removed after it.
_REMOVE = """
for process in /proc/[0-9]*; do
    case $(tr '\\0' ' ' 2>/dev/null <$process/cmdline) in
        *qemu*"guest=pw-$1-"*) kill -s KILL ${process#/proc/} 2>/dev/null; died="$died $process" ;;
    esac
done
n=0
for process in $died; do
    while [ -e $process ] && [ $n -lt 600 ]; do n=$((n + 1)); sleep 0.05; done
done
for link in $(ip -o link | sed -n "s/^[0-9]*: \\(pw$1[0-9a-f]*\\)[:@].*/\\1/p"); do
    ip link delete "$link"
done
"""


def remove_guests(host: Host, token: str) -> None:
    """Ends the virtual machines of this token on a host, and removes their ports.

    Raises:
        PlanewiseError: that failed.
    """
    done = host.run(["sh", "-c", _REMOVE, "sh", token], timeout_s=120)
    if done.stderr.strip():
        raise PlanewiseError(
            f"not all virtual machines could be removed from {host.place}: "
            f"{done.stderr.strip().splitlines()[-1]}",
            remedy="`planewise clean` tries again",
        )
