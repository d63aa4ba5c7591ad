"""Client of the daemon's API over its Unix socket, with checked answers.

The API is described by `/openapi.json` (docs/reference/alloc.md).
"""

from __future__ import annotations

import grp
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from planewise.errors import BadInputError, PlanewiseError, first_fault

DEFAULT_SOCKET = Path("/run/planewise/planewised.sock")

PATIENCE_S = 45.0
"""The daemon answers or withdraws a request after 30 s; one that does neither hangs."""

FORMAT = 1
"""Version of the status that this client understands."""


class _DaemonModel(BaseModel):
    """An object of the daemon's API; a newer daemon may add fields."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Rate(_DaemonModel):
    """A guest's traffic, both directions together."""

    pps: float | None
    bytes_per_s: float | None
    source: str


class GuestStatus(_DaemonModel):
    """One guest."""

    id: str
    kind: str
    mac: str | None
    vf: str | None
    since_unix_ms: int
    why: str
    rate: Rate
    stance: str
    priority: int = Field(alias="class")
    moving: bool
    paravirtual_up: bool
    marked: str | None


class VfStatus(_DaemonModel):
    """One VF."""

    id: str
    place: str
    holder: str | None
    why: str | None


class PoolStatus(_DaemonModel):
    """The VFs of one PF."""

    pf: str
    vfs: int
    free: int
    quarantined: int
    link_up: bool
    numa: int | None


class Ending(_DaemonModel):
    """The outcome of a move."""

    how: str
    why: str | None


class MoveStatus(_DaemonModel):
    """One move, under way or ended."""

    operation: int
    direction: str
    guest: str
    vf: str
    why: str
    started_unix_ms: int
    duration_ms: float | None
    ending: Ending | None


class ErrorRecord(_DaemonModel):
    """An error of the daemon."""

    at_unix_ms: int
    what: str
    remedy: str


class Status(_DaemonModel):
    """State of the daemon at one moment."""

    format: int
    version: str
    at_unix_ms: int
    started_unix_ms: int
    policy: str
    interval_s: float
    draining: bool
    guests: tuple[GuestStatus, ...]
    vfs: tuple[VfStatus, ...]
    pools: tuple[PoolStatus, ...]
    moves: tuple[MoveStatus, ...]
    errors: tuple[ErrorRecord, ...]


class PlannedMove(_DaemonModel):
    """One move of a plan."""

    direction: str
    guest: str
    vf: str
    why: str


class Planned(_DaemonModel):
    """A plan of moves, which the daemon performs or not."""

    moves: tuple[PlannedMove, ...]
    deferred: int
    performed: bool


_Model = TypeVar("_Model", bound=BaseModel)


class _UnixConnection(HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float | None) -> None:
        super().__init__("planewised", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass(frozen=True)
class Client:
    """A client of the daemon that listens at `socket`."""

    socket: Path

    def get(self, path: str) -> Any:
        """The daemon's answer at `path`, from JSON."""
        return self.order("GET", path)

    def order(self, method: str, path: str, body: dict[str, object] | None = None) -> Any:
        """Sends a request to the daemon; returns its answer, from JSON."""
        with self._answer(method, path, body, timeout_s=PATIENCE_S) as answer:
            return self._parsed(answer.read().decode(errors="replace"))

    def status(self) -> Status:
        """The daemon's status now."""
        return self.checked(Status, self.get("/status"))

    def checked(self, model: type[_Model], answer: Any) -> _Model:
        """The answer as a `model`.

        Raises:
            PlanewiseError: the two versions do not fit.
        """
        remedy = "update planewise and planewised to the same version"
        if isinstance(answer, dict) and answer.get("format", FORMAT) != FORMAT:
            raise PlanewiseError(
                f"the daemon at {self.socket} gives its status in format {answer['format']}, "
                f"this planewise reads format {FORMAT}",
                remedy=remedy,
            )
        try:
            return model.model_validate(answer)
        except ValidationError as error:
            place, fault = first_fault(error)
            raise PlanewiseError(
                f"the answer of {self.socket} is not understood: {place}: {fault}",
                remedy=remedy,
            ) from error

    def events(self, *, status: bool = False) -> Iterator[tuple[str, Any]]:
        """The daemon's events, as (kind, value): `event`, `missed`, and with `status` `status`.

        Ends with the daemon.
        """
        path = "/events?status=true" if status else "/events"
        with self._answer("GET", path, None, timeout_s=None) as answer:
            kind = ""
            while line := answer.readline():
                text = line.decode(errors="replace").rstrip("\r\n")
                if text.startswith("event:"):
                    kind = text[6:].strip()
                elif text.startswith("data:"):
                    yield kind, self._parsed(text[5:])

    @contextmanager
    def raw(self, path: str) -> Iterator[HTTPResponse]:
        """The daemon's answer, unchecked, to be passed on."""
        with self._connected(None) as connection:
            connection.request("GET", path)
            yield connection.getresponse()

    @contextmanager
    def _answer(
        self, method: str, path: str, body: dict[str, object] | None, *, timeout_s: float | None
    ) -> Iterator[HTTPResponse]:
        with self._connected(timeout_s) as connection:
            headers = {"Content-Type": "application/json"} if body is not None else {}
            text = json.dumps(body) if body is not None else None
            connection.request(method, path, text, headers)
            answer = connection.getresponse()
            if answer.status >= 400:
                self._refused(answer)
            yield answer

    @contextmanager
    def _connected(self, timeout_s: float | None) -> Iterator[HTTPConnection]:
        connection = _UnixConnection(self.socket, timeout_s)
        try:
            yield connection
        except TimeoutError as error:
            raise PlanewiseError(
                f"the daemon at {self.socket} does not answer",
                remedy="see what it says: journalctl -u planewised",
            ) from error
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError) as error:
            raise PlanewiseError(
                f"planewised is not running: nothing listens at {self.socket}",
                remedy="start it (systemctl start planewised), or name its socket with --socket",
            ) from error
        except PermissionError as error:
            raise PlanewiseError(
                f"you may not use the daemon's socket {self.socket}",
                remedy=self._access_hint(),
            ) from error
        except (HTTPException, OSError) as error:
            raise PlanewiseError(
                f"the connection to {self.socket} failed: {error or type(error).__name__}",
                remedy="is that planewised's socket? `systemctl status planewised`",
            ) from error
        finally:
            connection.close()

    def _access_hint(self) -> str:
        """The remedy of a user who may not use the socket."""
        try:
            data = self.socket.stat()
            if data.st_gid and data.st_mode & stat.S_IWGRP:
                group = grp.getgrgid(data.st_gid).gr_name
                return (
                    f"become a member (sudo usermod -aG {group} $USER, log in again), or use sudo"
                )
        except (OSError, KeyError):
            pass
        return "use sudo, or name a group in the daemon's configuration"

    def _refused(self, answer: HTTPResponse) -> None:
        problem = self._parsed(answer.read().decode(errors="replace"))
        if not isinstance(problem, dict) or not isinstance(problem.get("what"), str):
            problem = {"what": f"{self.socket} answered {answer.status}"}
        what, remedy = printable(problem["what"]), printable(str(problem.get("remedy", "")))
        if problem.get("fault") in ("bad-request", "not-found"):
            raise BadInputError(what, remedy=remedy)
        raise PlanewiseError(what, remedy=remedy)

    def _parsed(self, text: str) -> Any:
        try:
            return json.loads(text)
        except ValueError as error:
            raise PlanewiseError(
                f"the answer of {self.socket} is not JSON",
                remedy="is that planewised's socket? --socket names another",
            ) from error


def guest_path(guest: str, what: str) -> str:
    """Path of `what` of a guest in the API, as `/guests/web/stance`."""
    if not guest:
        raise BadInputError("a guest without a name", remedy="`planewise alloc status` lists them")
    # The daemon refuses surrogates, which stand for bytes that are no text in this locale.
    return f"/guests/{quote(os.fsencode(guest), safe='')}/{what}"


def printable(text: str) -> str:
    """Foreign text without control characters, for a terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)
