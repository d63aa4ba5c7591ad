"""The hosts of a run: from options, from the run to be continued, or a lab of its own."""

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
    from planewise.measure.runs.experiment import Progress
    from planewise.pipeline import RemoteHosts
    from planewise.store.models import Fingerprint
    from planewise.testbed.hosts.pair import Targets

LEAST_LAB_MIB = 2048
"""Least memory of a host of a run's own lab; only what is used is taken."""
MOST_LAB_MIB = 4096
"""Most memory, where this machine can spare it: a dozen virtual machines run at once, and none
is stopped for the next cell."""


@dataclass(frozen=True)
class OtherHosts:
    """Hosts other than this machine."""

    targets: Targets
    fresh_lab: str = ""
    """Name of the lab to bring up and down for them; empty where they run already."""


def chosen(
    sender: str | None, responder: str | None, nic: str, lab: bool, resume: Path | None
) -> OtherHosts | None:
    """The hosts by the options, or by the run to be continued; None is this machine.

    Raises:
        BadInputError: options contradict one another, or name no host.
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
        raise BadInputError("it is for the hosts that --sender and --responder name", where="--nic")
    return None if resume is None else _remembered(resume)


def examined(other_hosts: OtherHosts | None) -> Fingerprint:
    """This machine's fingerprint; without other hosts, the machine is made ready to be measured.

    A plain user is in a user namespace afterwards. A process with threads cannot enter one:
    import modules that start threads later.
    """
    from planewise import doctor
    from planewise.testbed.hosts import privilege

    doctor.check_limits()
    if other_hosts is not None:
        return doctor.examine(sample_s=0)
    host = doctor.diagnose()
    privilege.ensure()
    return host


@contextmanager
def opened(other_hosts: OtherHosts | None, progress: Progress) -> Iterator[RemoteHosts | None]:
    """Brings up the lab and connects to the hosts; ends both afterwards.

    Raises:
        PlanewiseError: a host cannot be reached, or the lab does not come up.
    """
    if other_hosts is None:
        yield None
        return
    from planewise import doctor, lab
    from planewise.pipeline import RemoteHosts
    from planewise.testbed.hosts.pair import remote_pair

    targets = other_hosts.targets
    testbed = {
        "sender": targets.sender,
        "responder": targets.responder,
        "nic": targets.interface,
    }
    with ExitStack() as stack:
        if other_hosts.fresh_lab:
            memory = procfs.memory(Path("/proc/meminfo").read_text())
            available_mib = memory.get("MemAvailable", 0) >> 20
            spec = lab.LabSpec(other_hosts.fresh_lab, memory_mib=lab_mib(available_mib))
            stack.callback(lab.down, other_hosts.fresh_lab)
            lab.up(spec, progress)
            testbed["lab"] = other_hosts.fresh_lab
        pair = stack.enter_context(remote_pair(targets))
        with ThreadPoolExecutor(len(pair.machines)) as pool:
            examined_hosts = pool.map(
                lambda machine: doctor.examine_host(machine.host), pair.machines.values()
            )
            fingerprints = {
                str(role): host for role, host in zip(pair.machines, examined_hosts, strict=True)
            }
        yield RemoteHosts(pair, fingerprints, testbed, targets.emulated())


def lab_mib(available_mib: int) -> int:
    """Memory of each of a lab's two hosts, of what this machine has to spare. Pure."""
    return min(MOST_LAB_MIB, max(LEAST_LAB_MIB, available_mib * 4 // 10))


def _fresh() -> OtherHosts:
    from planewise.testbed.hosts.pair import Targets

    name = f"run-{os.getpid()}"
    return OtherHosts(Targets(f"lab:{name}/a", f"lab:{name}/b"), name)


def _named(sender: str | None, responder: str | None, nic: str) -> OtherHosts:
    from planewise.testbed.hosts.pair import Targets
    from planewise.testbed.hosts.remote import check_host

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
            raise BadInputError(error.what, where=flag, remedy=error.remedy) from error
    return OtherHosts(Targets(sender or "", responder or "", nic))


def _remembered(run: Path) -> OtherHosts | None:
    from planewise.store.rundir import RunReader
    from planewise.testbed.hosts.pair import Targets

    testbed = RunReader(run).info.testbed
    if not testbed:
        return None
    if "lab" in testbed:
        return _fresh()
    return OtherHosts(Targets(testbed["sender"], testbed["responder"], testbed["nic"]))
