"""Huge pages of a host for as long as a `with` block runs; returned also after a kill."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from planewise import procfs
from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts.host import Host, LocalHost

POOL = Path("/proc/sys/vm/nr_hugepages")
_TOO_FEW = 9
_LEASE_S = 120.0
_READY = "pw-taken"

# Pages are added to the pool and subtracted again, so that programs keep one another's; a lock on
# the pool's file keeps two from doing so at once. A killed planewise, or a lost connection, ends
# this shell by SIGKILL: then a keeper in a session of its own returns the pages.
_LEASE = f"""
trap '' INT TERM
needed=$1 file=$2/proc/sys/vm/nr_hugepages info=$2/proc/meminfo
free=$(($(sed -n 's/^HugePages_Free: *//p' $info) - $(sed -n 's/^HugePages_Rsvd: *//p' $info)))
added=0
exec 9<$file
flock 9
if [ -w $file ]; then
    before=$(cat $file)
    echo $((before + needed)) >$file
    if [ $(cat $file) -lt $((before + needed)) ] && [ -w $2/proc/sys/vm/compact_memory ]; then
        echo 1 >$2/proc/sys/vm/compact_memory
        echo $((before + needed)) >$file
    fi
    added=$(($(cat $file) - before))
    [ $added -ge $needed ] || {{ echo $before >$file; added=0; }}
fi
[ $added -gt 0 ] || [ $free -ge $needed ] || exit {_TOO_FEW}
back='exec 9<$2; flock 9; echo $(($(cat $2) - $1)) >$2' keeper=
if [ $added -gt 0 ]; then
    setsid sh -c 'while kill -0 $3 2>/dev/null; do sleep 0.5; done;'"$back" \\
        sh $added $file $$ </dev/null >/dev/null 2>&1 9<&- &
    keeper=$!
    until [ "$(cut -d ' ' -f 6 /proc/$keeper/stat)" = $keeper ]; do sleep 0.01; done
fi
exec 9<&-
setpriv --pdeathsig KILL sleep infinity &
sleeper=$!
until [ "$(cat /proc/$sleeper/comm)" = sleep ]; do sleep 0.01; done
trap 'kill -s KILL $sleeper $keeper; [ -z "$keeper" ] || sh -c "$back" sh $added $file
exit' INT TERM
echo {_READY} >&2
wait $sleeper
"""


def unavailable_reason(needed_bytes: int, root: Path = Path("/")) -> str:
    """Why `needed_bytes` cannot be reserved here; empty when they probably can. Changes nothing."""
    memory = procfs.memory((root / "proc/meminfo").read_text())
    page_bytes, available = memory.get("Hugepagesize", 0), memory.get("MemAvailable", 0)
    if not page_bytes:
        return "this kernel has no huge pages (CONFIG_HUGETLBFS)"
    free = memory.get("HugePages_Free", 0) - memory.get("HugePages_Rsvd", 0)
    if free * page_bytes >= needed_bytes:
        return ""
    if available < needed_bytes:
        return (
            f"it needs {needed_bytes >> 20} MiB of huge pages, and {available >> 20} MiB of "
            "memory are available"
        )
    return ""


@contextmanager
def reserved(host: Host, needed_bytes: int, root: str = "") -> Iterator[None]:
    """Adds pages for `needed_bytes` to a host's pool.

    Adds none where the kernel gives too few, but enough pages of the pool are free.

    Raises:
        UnsupportedError: the kernel does not give them.
    """
    memory = procfs.memory(host.read_text(f"{root}/proc/meminfo"))
    page_bytes = memory.get("Hugepagesize", 0)
    if not page_bytes:
        raise UnsupportedError(
            f"the kernel of {host.place} has no huge pages (CONFIG_HUGETLBFS)",
            remedy="boot a kernel that has them",
        )
    pages = -(-needed_bytes // page_bytes)
    with ExitStack() as opened:
        if isinstance(host, LocalHost):
            # Not in a testbed's namespace: `planewise clean` ends what runs there.
            host = opened.enter_context(closing(LocalHost("huge pages")))
        lease = opened.enter_context(host.start(["sh", "-c", _LEASE, "sh", str(pages), root]))
        try:
            lease.wait_ready(_READY, _LEASE_S)
        except PlanewiseError as error:
            if lease.running or lease.wait().exit_code != _TOO_FEW:
                raise
            raise UnsupportedError(
                f"it needs {pages} huge pages of {page_bytes >> 20} MiB on {host.place}, "
                "and its kernel does not give as many",
                remedy="run as root, free memory, use fewer functions, or reserve huge pages at "
                "boot (hugepages=N)",
            ) from error
        yield
