"""The fleet directory: nodes, pairs, design, and the state of each pair.

FLEET/fleet.json      FleetPlan; written once
FLEET/pairs/00012/    the run directory of pair 12, as of any run
FLEET/pairs/00012.failed  why its last attempt measured nothing; removed once it is measured
FLEET/locks/          a file for each node, locked while it is measured
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from planewise.errors import BadInputError, StorageError, first_fault
from planewise.fleet.tournament import Match
from planewise.measure.designs.design import Design
from planewise.store.files import write_file
from planewise.store.models import RunInfo
from planewise.store.rundir import RUN_FILE, RunReader

PLAN_FILE = "fleet.json"
_MOST_NODES = 100_000
LOCAL = "local:"

State = Literal["to do", "begun", "done", "failed"]
"""`failed`: the last attempt measured nothing; it is tried again on resume."""


class FleetModel(BaseModel):
    """A part of fleet.json: unknown fields are an error, values are final."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Budget(FleetModel):
    """Limits of the load on nodes, for the sake of their tenants."""

    pps: Annotated[float, Field(gt=0)] | None = None
    """Most packets offered to a node at any time [packet/s]; None: as the design."""
    cpu: Annotated[float, Field(ge=0, le=1)] | None = None
    """Largest share of a node's CPUs for background load."""
    time: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Largest share of time in which a node is measured; it rests between two pairs."""


class FleetPlan(FleetModel):
    """fleet.json."""

    format: Literal[1] = 1
    title: str = ""
    nodes: Annotated[tuple[str, ...], Field(max_length=_MOST_NODES)]
    """`ssh://server`, `lab:NAME/a`, `k8s://NODE`; `local:NAME`: namespaces of this machine."""
    nic: str = ""
    """The interface to use on all nodes."""
    pairs: tuple[tuple[int, int, int], ...]
    """Round, sender and responder of each pair; nodes by number, from 0."""
    seed: Annotated[int, Field(ge=0)]
    """Seed of the pairs and of each pair's order."""
    budget: Budget = Budget()
    design: dict[str, object]
    """The design of each pair, as in run.json."""

    @property
    def local(self) -> bool:
        """Whether its nodes are namespaces of this machine."""
        return any(node.startswith(LOCAL) for node in self.nodes)

    @model_validator(mode="after")
    def _nodes_can_meet(self) -> FleetPlan:
        twice = [node for node, count in Counter(self.nodes).items() if count > 1]
        if twice:
            raise ValueError(f"the node {twice[0]} is named twice")
        local = [node for node in self.nodes if node.startswith(LOCAL)]
        if local and len(local) < len(self.nodes):
            raise ValueError(f"{local[0]} runs on this machine alone and cannot meet other hosts")
        return self

    def matches(self) -> tuple[Match, ...]:
        """The pairs as matches."""
        return tuple(Match(index, *pair) for index, pair in enumerate(self.pairs))

    def design_of(self, match: Match) -> Design:
        """The design of a pair, with its own seed."""
        seed = (self.seed + match.index) % 2**63
        return Design.model_validate({**self.design, "seed": seed}, strict=False)


def read_nodes(file: Path) -> tuple[str, ...]:
    """The nodes in a file, one a line; `#` begins a comment.

    Raises:
        BadInputError: the file cannot be read, or a line names no node.
    """
    try:
        lines = file.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"the nodes cannot be read: {getattr(error, 'strerror', None) or error}",
            where=str(file),
            remedy="a text file with a line a node: ssh://server or k8s://node",
        ) from error
    nodes = []
    for number, line in enumerate(lines, start=1):
        if node := line.partition("#")[0].strip():
            check_node(node, f"{file}:{number}")
            nodes.append(node)
    return tuple(nodes)


def check_node(node: str, where: str) -> None:
    """Raises BadInputError where `node` names no host."""
    from planewise.testbed.hosts.remote import check_host

    if re.fullmatch(rf"{LOCAL}[a-z0-9][a-z0-9-]*", node):
        return
    try:
        check_host(node)
    except BadInputError as error:
        raise BadInputError(error.what, where=where, remedy=error.remedy) from error


def default_seed(nodes: Sequence[str], design: Design) -> int:
    """A seed from nodes and design, so that all pods of a Job draw the same pairs."""
    text = "\n".join([*nodes, design.model_dump_json()])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])


class Fleet:
    """A fleet directory."""

    def __init__(self, path: Path, plan: FleetPlan) -> None:
        """Use `create` or `open`."""
        self.path = path
        self.plan = plan
        self.matches = plan.matches()

    @classmethod
    def open(cls, path: Path) -> Fleet:
        """Reads fleet.json. BadInputError when `path` is not a fleet directory."""
        file = path / PLAN_FILE
        try:
            return cls(path, FleetPlan.model_validate_json(file.read_bytes()))
        except OSError as error:
            raise BadInputError(
                f"this is not a fleet directory: {PLAN_FILE} cannot be read ({error.strerror})",
                where=str(path),
                remedy="name the directory that `planewise fleet run` wrote",
            ) from error
        except ValidationError as error:
            place, fault = first_fault(error)
            raise BadInputError(f"{place}: {fault}", where=str(file)) from error

    @classmethod
    def create(cls, path: Path, plan: FleetPlan) -> Fleet:
        """Makes the directory, or opens the one that has the same plan.

        Raises:
            BadInputError: the directory has another plan.
            StorageError: it cannot be written.
        """
        fleet = cls(path, plan)
        file = path / PLAN_FILE
        if file.exists():
            if cls.open(path).plan != plan:
                raise BadInputError(
                    "there is another fleet's plan in this directory",
                    where=str(path),
                    remedy="name another with --out, or continue that one with --resume",
                )
            return fleet
        try:
            (path / "pairs").mkdir(parents=True, exist_ok=True)
            (path / "locks").mkdir(exist_ok=True)
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror}") from error
        write_file(file, plan.model_dump_json(indent=1).encode())
        return fleet

    def directory(self, match: Match) -> Path:
        """The run directory of a pair."""
        return self.path / "pairs" / f"{match.index:05d}"

    def state(self, match: Match) -> State:
        """The state of a pair."""
        directory = self.directory(match)
        if not (directory / RUN_FILE).exists():
            return "failed" if self._failed(match).exists() else "to do"
        return "done" if RunReader(directory).info.status == "done" else "begun"

    def record_failure(self, match: Match, why: str) -> None:
        """Writes why an attempt measured nothing."""
        write_file(self._failed(match), f"{why}\n".encode())

    def clear_failure(self, match: Match) -> None:
        """Removes the reason of an earlier failure."""
        self._failed(match).unlink(missing_ok=True)

    def failures(self) -> Mapping[int, str]:
        """Reasons why pairs were not measured, by their index."""
        files = sorted((self.path / "pairs").glob("*.failed"))
        return {int(file.stem): file.read_text().strip() for file in files if file.stem.isdigit()}

    @contextmanager
    def using(self, match: Match) -> Iterator[None]:
        """Locks both nodes against other processes that measure, also on other machines.

        Waits for the lower number first, which avoids deadlocks. The directory's file system must
        support locks, as NFS does.
        """
        with ExitStack() as stack:
            for node in sorted((match.sender, match.responder)):
                lock = os.open(self.path / "locks" / str(node), os.O_RDWR | os.O_CREAT, 0o644)
                stack.callback(os.close, lock)
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def rest_s(self, match: Match, now: float) -> float:
        """How long the pair's nodes must still rest after earlier pairs."""
        share = self.plan.budget.time
        if share >= 1:
            return 0.0
        nodes = {match.sender, match.responder}
        until = now
        for earlier in self.matches:
            if nodes & {earlier.sender, earlier.responder} and earlier != match:
                info = self._info(earlier)
                if info is not None and info.finished is not None:
                    started, ended = info.started.timestamp(), info.finished.timestamp()
                    until = max(until, ended + (ended - started) * (1 / share - 1))
        return until - now

    def _info(self, match: Match) -> RunInfo | None:
        directory = self.directory(match)
        return RunReader(directory).info if (directory / RUN_FILE).exists() else None

    def _failed(self, match: Match) -> Path:
        return self.path / "pairs" / f"{match.index:05d}.failed"
