"""Two hosts for a testbed: servers reached by ssh, or two namespaces of this machine.

Opens and closes them, notes and restores their NICs, and removes killed runs' leftovers on servers.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from planewise import lab
from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.lab.state import state_root
from planewise.testbed.guests.docker import REMOVE_CGROUPS
from planewise.testbed.guests.vms.guests import remove_guests
from planewise.testbed.hosts import ledger, netns, signals
from planewise.testbed.hosts.coalescing import read_rx_usecs, rx_usecs_line
from planewise.testbed.hosts.host import Host, LocalHost
from planewise.testbed.hosts.ledger import DeadRun, HostNote, Ownership
from planewise.testbed.hosts.machine import Machine, remove_traces, survey
from planewise.testbed.model import BRIDGE, DOCKER_BRIDGE, HOSTS, WIRE, WIRE_INDEX, HostRole
from planewise.testbed.plan import (
    Step,
    add_veth,
    await_up,
    new_namespace,
    set_sysctl,
    set_up,
)
from planewise.testbed.settings import SETTINGS
from planewise.testbed.switches.openvswitch import REMOVE_DATAPATH, has_datapath
from planewise.testbed.vfs.nic import Tool

if TYPE_CHECKING:
    from planewise.testbed.hosts.remote_host import RemoteHost

LAB_NIC = "pf0"

_DEATH_S = 30.0
"""How long the kernel may take to end a killed daemon's containers."""

STATE_VARIABLE = "PLANEWISE_LAB_STATE"


@dataclass(frozen=True)
class Targets:
    """The hosts that a user names for a run."""

    sender: str
    """`ssh://server`, `lab:a`, `k8s://node`."""
    responder: str
    nic: str = ""
    """The interface to use on both; empty: a lab's first PF."""

    def __post_init__(self) -> None:
        if self.sender == self.responder:
            raise BadInputError(
                f"the sender and the responder are both {self.sender}",
                where="--responder",
                remedy="give two hosts; traffic within the sender is the level `east-west` of "
                "the factor `path`",
            )
        for flag, target in (("--sender", self.sender), ("--responder", self.responder)):
            if not self.nic and not target.startswith("lab:"):
                raise BadInputError(
                    f"which NIC of {target} may be used is not given",
                    where=flag,
                    remedy="name it with --nic (`ip link` there lists them); it must be one that "
                    "nobody uses",
                )

    @property
    def interface(self) -> str:
        """The NIC to use."""
        return self.nic or LAB_NIC

    def emulated(self) -> str:
        """Why times there are not those of hardware, as a sentence; empty when they are."""
        for target in (self.sender, self.responder):
            if target.startswith("lab:"):
                from planewise.testbed.hosts.remote import parse_lab

                status = lab.status(parse_lab(target)[0])
                under = "" if status is None else f" under {status.record.accelerator.upper()}"
                return f"the hosts are QEMU machines of `planewise lab`{under}, their NICs emulated"
        return ""


@dataclass(frozen=True)
class Pair:
    """Two hosts that may be used under a token."""

    machines: Mapping[HostRole, Machine]
    token: str
    separate: bool
    """Whether they are two machines: then each has CPUs of its own."""


@contextmanager
def remote_pair(targets: Targets) -> Iterator[Pair]:
    """Connects to two servers.

    Raises:
        PlanewiseError: one cannot be reached, or its NIC is in use.
    """
    from planewise.testbed.hosts.remote import open_host

    with ExitStack() as open_hosts:
        changed_signals = signals.raise_on_signals()
        open_hosts.callback(signals.restore, changed_signals)
        hosts: dict[HostRole, RemoteHost] = {}
        for role, target in zip(HOSTS, (targets.sender, targets.responder), strict=True):
            hosts[role] = open_host(target, role)
            open_hosts.callback(hosts[role].close)
        nic = targets.interface
        for host in hosts.values():
            survey(Machine(host, nic, "", ""))  # raises where it is in use
        notes = [_note(host, nic) for host in hosts.values()]
        ownership = Ownership.take("guests on other hosts", _state(), notes)
        try:
            token = ownership.token
            yield Pair(
                {
                    role: Machine(host, nic, f"pw-{token}-b", f"pw-{token}-d")
                    for role, host in hosts.items()
                },
                token,
                separate=True,
            )
        except BaseException:
            with signals.uninterrupted():
                _clean_after_error(hosts.values(), notes, ownership)
            raise
        with signals.uninterrupted():
            return_nics(hosts.values(), notes)
            ownership.release()


def _clean_after_error(
    hosts: Iterable[RemoteHost], notes: Iterable[HostNote], ownership: Ownership
) -> None:
    """Removes everything after an error; where that fails, leaves it to a sweep."""
    try:
        for host, note in zip(hosts, notes, strict=True):
            remove_guests(host, ownership.token)
            remove_traces(host, note.nic, ownership.token)
        return_nics(hosts, notes)
    except PlanewiseError:
        ownership.abandon()
    else:
        ownership.release()


@contextmanager
def local_pair(
    mtu_bytes: int, second_wire: str = "", what: str = "two hosts and their guests"
) -> Iterator[Pair]:
    """Two namespaces of this machine, joined by a veth pair, as hosts.

    `second_wire` names the interfaces of a second pair, for a bridge beside the NIC.

    Raises:
        UnsupportedError: no privilege to make them.
    """
    with owned(what) as (ownership, opened):
        names = {role: ownership.name(role[0]) for role in HOSTS}
        with closing(LocalHost("this machine")) as here:
            here.perform(plan_pair(names, mtu_bytes, second_wire))
        machines = {}
        for role, name in names.items():
            host = opened.enter_context(closing(LocalHost(role, name)))
            machines[role] = Machine(host, WIRE, BRIDGE, DOCKER_BRIDGE, second_wire, name)
        yield Pair(machines, ownership.token, separate=False)


@contextmanager
def owned(what: str) -> Iterator[tuple[Ownership, ExitStack]]:
    """A token for namespaces of this machine, and what is closed before they are removed.

    Both happen on success, on error, on Ctrl-C and on SIGTERM; after a kill `planewise clean` finds
    the namespaces.

    Raises:
        UnsupportedError: no privilege to make namespaces.
    """
    netns.prepare_run()
    changed_signals = signals.raise_on_signals()
    ownership = Ownership.take(what)
    opened = ExitStack()
    try:
        yield ownership, opened
    finally:
        try:
            with signals.uninterrupted(), ExitStack() as last:
                last.callback(ownership.remove)
                last.callback(opened.close)
        finally:
            signals.restore(changed_signals)


def plan_pair(names: Mapping[HostRole, str], mtu_bytes: int, second_wire: str = "") -> list[Step]:
    """The steps that make namespaces two hosts. Pure."""
    sender, responder = names["sender"], names["responder"]
    steps: list[Step] = [*new_namespace(sender), *new_namespace(responder)]
    for number, wire in enumerate((WIRE, second_wire) if second_wire else (WIRE,)):
        macs = (f"02:70:77:20:00:0{number}", f"02:70:77:21:00:0{number}")
        steps += [
            add_veth(
                sender, wire, WIRE_INDEX + number, macs[0], responder, wire, macs[1], mtu_bytes
            ),
            set_up(sender, wire),
            set_up(responder, wire),
        ]
    return [*steps, await_up(sender)]


def _state() -> Path:
    """Directory of notes of runs on other hosts: a plain user may not write to root's."""
    return ledger.STATE if os.geteuid() == 0 else state_root() / "hosts"


def leftovers() -> tuple[DeadRun, ...]:
    """Dead runs of this user, here and on other hosts."""
    host_runs = () if _state() == ledger.STATE else ledger.leftovers(_state(), namespaces=False)
    return (*ledger.leftovers(), *host_runs)


def sweep() -> tuple[DeadRun, ...]:
    """Removes the leftovers of dead runs, here and on other hosts.

    Raises:
        PlanewiseError: something could not be removed; all else is.
    """
    local_runs = ledger.sweep(elsewhere=remove_elsewhere)
    if _state() == ledger.STATE:
        return local_runs
    return (*local_runs, *ledger.sweep(_state(), remove_elsewhere, namespaces=False))


def remove_elsewhere(run: DeadRun) -> None:
    """Removes a dead run's control groups here and its leftovers on other hosts, and restores their
    NICs.

    Raises:
        PlanewiseError: a host cannot be reached, or something cannot be removed.
    """
    from planewise.testbed.hosts.remote import open_host

    _remove_groups(run.token)
    unreachable: list[PlanewiseError] = []
    with ThreadPoolExecutor(max(1, len(run.hosts))) as pool:
        removals = []
        for note in run.hosts:
            with _labs_in(note.labs):
                if note.host.startswith("lab:") and _is_down(note.host):
                    continue
                try:
                    host = open_host(note.host, "clean")
                except PlanewiseError as error:
                    unreachable.append(error)
                    continue
            removals.append(pool.submit(_clean, host, note, run.token))
        for removal in removals:
            removal.result()
    if unreachable:
        raise unreachable[0]


def _remove_groups(token: str) -> None:
    """Removes control groups of containers; these end a moment after their daemon."""
    deadline = time.monotonic() + _DEATH_S
    while any(Path("/sys/fs/cgroup").glob(f"pw-{token}")) or any(
        Path("/sys/fs/cgroup").glob(f"*/pw-{token}")
    ):
        argv = ["sh", "-c", REMOVE_CGROUPS, "sh", f"pw-{token}"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.stderr and time.monotonic() > deadline:
            raise PlanewiseError(
                f"a control group could not be removed: {done.stderr.strip().splitlines()[-1]}",
                remedy="run `planewise clean` as root",
            )
        time.sleep(0.02)


@contextmanager
def _labs_in(directory: str) -> Iterator[None]:
    """Looks for labs in the state directory of the run that is cleaned up."""
    previous = os.environ.get(STATE_VARIABLE)
    if directory:
        os.environ[STATE_VARIABLE] = directory
    try:
        yield
    finally:
        if previous is None:
            os.environ.pop(STATE_VARIABLE, None)
        else:
            os.environ[STATE_VARIABLE] = previous


def _clean(host: RemoteHost, note: HostNote, token: str) -> None:
    """Removes a dead run's leftovers from a host, and closes it."""
    with closing(host):
        remove_guests(host, token)  # first: a virtual machine holds its VF
        try:
            tool = Tool.on(host)
        except UnsupportedError:
            pass  # without it no VF was ever touched
        else:
            tool.restore(f"pw-{token}")
        remove_traces(host, note.nic, token)
        return_nics([host], [note])


def _is_down(target: str) -> bool:
    from planewise.testbed.hosts.remote import parse_lab

    status = lab.status(parse_lab(target)[0])
    return status is None or status.state in ("dead", "hung")


def _note(host: Host, nic: str) -> HostNote:
    (link,) = host.run(["ip", "-json", "link", "show", "dev", nic]).json()
    state = "up" if "UP" in link["flags"] else "down"
    # Open vSwitch sets it, and a killed one leaves it so.
    promiscuous = "on" if "PROMISC" in link["flags"] else "off"
    lines = [f"ip link set {nic} mtu {link['mtu']} {state} promisc {promiscuous}"]
    # Planes that route switch forwarding on (testbed/planes/veth.py).
    keys = [f"net/ipv4/conf/{nic}/forwarding"]
    keys += [key for setting in SETTINGS.values() for key in setting.machine_wide]
    for key in keys:
        with suppress(PlanewiseError):  # the host has no such setting
            value = host.read_text(f"/proc/sys/{key}").strip()
            lines.append(set_sysctl("", key, value).words)
    for setting in SETTINGS.values():
        if setting.notes:
            lines += host.run(["sh", "-c", setting.notes, "sh", nic]).stdout.splitlines()
    if (rx_usecs := read_rx_usecs(host, nic)) is not None:
        lines.append(rx_usecs_line(nic, rx_usecs))
    if not has_datapath(host):
        lines.append(REMOVE_DATAPATH)
    labs = str(state_root()) if host.place.startswith("lab:") else ""
    return HostNote(host.place, nic, tuple(lines), labs)


def return_nics(hosts: Iterable[Host], notes: Iterable[HostNote]) -> None:
    """Restores servers as noted.

    Raises:
        PlanewiseError: a server refuses.
    """
    for host, note in zip(hosts, notes, strict=True):
        done = host.run(["sh", "-es"], stdin="\n".join(note.restore).encode())
        if done.exit_code:
            raise PlanewiseError(
                f"{note.nic} of {host.place} could not be restored: {done.last_line}",
                remedy="`planewise clean` tries again",
            )
