"""The hosts of a run: named by options, remembered from a run, or a lab brought up for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planewise import procfs
from planewise.errors import BadInputError

if TYPE_CHECKING:
    from planewise.measure.experiment import Progress
    from planewise.pipeline import Elsewhere
    from planewise.store.models import Fingerprint
    from planewise.testbed.pair import Targets

LEAST_LAB_MIB = 2048
"""Memory of a host of a run's own lab; it takes what it uses of it."""
MOST_LAB_MIB = 4096
"""The same where this machine has it to spare: a dozen virtual machines stand beside one another,
and none is ended to be started anew for the next cell."""


@dataclass(frozen=True)
class OtherHosts:
    """Hosts other than this machine."""

    targets: Targets
    fresh_lab: str = ""
    """Name of the lab to bring up for them, and down again; empty where they stand."""


def chosen(
    sender: str | None, responder: str | None, nic: str, lab: bool, resume: Path | None
) -> OtherHosts | None:
    """What options, or the run to be continued, say; None is this machine.

    Raises:
        BadInputError: they contradict one another, or name no host.
    """
    if lab and (sender or responder or nic):
        raise BadInputError(
            "--lab brings up hosts of its own",
            where="--lab",
            remedy="give either --lab, or --sender and --responder",
        )
    if lab:
        return _fresh()
    if sender or responder:
        return _named(sender, responder, nic)
    if nic:
        raise BadInputError(
            "--nic is for the hosts that --sender and --responder name", where="--nic"
        )
    return None if resume is None else _remembered(resume)


def examined(where: OtherHosts | None) -> Fingerprint:
    """This machine, ready to be measured where no others are named.

    A plain user is in a user namespace afterwards, which no process with threads can enter:
    what starts some is imported later.
    """
    from planewise import doctor
    from planewise.testbed import privilege

    if where is not None:
        return doctor.examine(sample_s=0)
    host = doctor.diagnose()
    privilege.ensure()
    return host


@contextmanager
def opened(where: OtherHosts | None, progress: Progress) -> Iterator[Elsewhere | None]:
    """Connects to the hosts, brings up their lab first; ends both afterwards.

    Raises:
        PlanewiseError: a host cannot be reached, or the lab does not come up.
    """
    if where is None:
        yield None
        return
    from planewise import doctor, lab
    from planewise.pipeline import Elsewhere
    from planewise.testbed.pair import remote_pair

    targets = where.targets
    testbed = {
        "sender": targets.sender,
        "responder": targets.responder,
        "nic": targets.interface,
    }
    with ExitStack() as standing:
        if where.fresh_lab:
            memory = procfs.memory(Path("/proc/meminfo").read_text())
            available_mib = memory.get("MemAvailable", 0) >> 20
            spec = lab.LabSpec(where.fresh_lab, memory_mib=lab_mib(available_mib))
            standing.callback(lab.down, where.fresh_lab)
            lab.up(spec, progress)
            testbed["lab"] = where.fresh_lab
        pair = standing.enter_context(remote_pair(targets))
        with ThreadPoolExecutor(len(pair.machines)) as pool:
            examined_hosts = pool.map(
                lambda one: doctor.examine_host(one.host), pair.machines.values()
            )
            fingerprints = {
                str(role): one for role, one in zip(pair.machines, examined_hosts, strict=True)
            }
        yield Elsewhere(
            pair,
            fingerprints,
            testbed,
            targets.emulated(),
        )


def lab_mib(available_mib: int) -> int:
    """Memory of each of a lab's two hosts, of what this machine has to spare. Pure."""
    return min(MOST_LAB_MIB, max(LEAST_LAB_MIB, available_mib * 4 // 10))


def _fresh() -> OtherHosts:
    from planewise.testbed.pair import Targets

    name = f"run-{os.getpid()}"
    return OtherHosts(Targets(f"lab:{name}/a", f"lab:{name}/b"), name)


def _named(sender: str | None, responder: str | None, nic: str) -> OtherHosts:
    from planewise.testbed.pair import Targets
    from planewise.testbed.remote import check_host

    for flag, target in (("--sender", sender), ("--responder", responder)):
        if not target:
            raise BadInputError(
                f"{flag} is missing",
                where="planewise run",
                remedy="traffic between two hosts needs both --sender and --responder",
            )
        try:
            check_host(target)
        except BadInputError as error:
            raise replace_where(error, flag) from error
    return OtherHosts(Targets(sender or "", responder or "", nic))


def replace_where(error: BadInputError, flag: str) -> BadInputError:
    """The same error, with the option that it is about."""
    return BadInputError(error.what, where=flag, remedy=error.remedy)


def _remembered(run: Path) -> OtherHosts | None:
    from planewise.store.rundir import RunReader
    from planewise.testbed.pair import Targets

    testbed = RunReader(run).info.testbed
    if not testbed:
        return None
    if "lab" in testbed:
        return _fresh()
    return OtherHosts(Targets(testbed["sender"], testbed["responder"], testbed["nic"]))
