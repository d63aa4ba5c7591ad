"""The support bundle: a host's facts for whoever is asked for help, without its secrets.

Gathers texts, hides secrets and addresses in them, and writes one archive. A file that cannot be
read is replaced by the reason: an unreadable file is not an empty one.
"""

from __future__ import annotations

import getpass
import io
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import tarfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

from planewise import __version__
from planewise.errors import PlanewiseError
from planewise.redaction import Redactor
from planewise.store.newest import RUNS, newest_run

LOG_LINES = 2000
"""Number of the daemon's last log lines in the bundle."""
LOG_PATIENCE_S = 20

_README = """\
A support bundle of planewise {version}. Look through it before you send it.

Hidden: keys, tokens, passwords. MAC and IP addresses, the names of this host and of its users are
pseudonyms (mac-1, ipv4-2, host-1), the same in all files. Not hidden: names of guests, interfaces
and files.

{contents}
"""


@dataclass(frozen=True)
class Sources:
    """Paths and names on this host that the bundle is gathered from."""

    configuration: Path = Path("/etc/planewise/planewised.toml")
    daemon_socket: Path = Path("/run/planewise/planewised.sock")
    unit: str = "planewised"
    runs: Path = RUNS


def bundle(file: Path, fingerprint: Callable[[], str], sources: Sources) -> list[str]:
    """Writes the bundle `file` (.tar.gz, readable by its owner alone); returns the names in it.

    `fingerprint` returns the host as JSON.

    Raises:
        PlanewiseError: the file cannot be written.
    """
    redact = Redactor(_secrets(sources.configuration), _names())
    texts = {name: redact(text) for name, text in _texts(fingerprint, sources)}
    contents = "\n".join(f"{name}: {len(text.splitlines())} lines" for name, text in texts.items())
    texts = {"README": _README.format(version=__version__, contents=contents), **texts}
    _write(file, texts)
    return list(texts)


def _texts(fingerprint: Callable[[], str], sources: Sources) -> Iterator[tuple[str, str]]:
    """Name and text of each file of the bundle, not redacted yet."""
    yield "host.json", _text_or_reason(fingerprint)
    yield "versions.json", json.dumps(_versions(), indent=2)
    yield "daemon/status.json", _text_or_reason(lambda: _status(sources.daemon_socket))
    yield "daemon/planewised.toml", _text_or_reason(lambda: sources.configuration.read_text())
    yield "daemon/journal", _text_or_reason(lambda: _state(sources.configuration))
    yield "daemon/log.txt", _text_or_reason(lambda: _log(sources.unit))
    run = newest_run(sources.runs)
    if run is None:
        yield "run.json", f"(there is no run in {sources.runs.resolve()})"
    else:
        yield "run.json", _text_or_reason(lambda: (run.path / "run.json").read_text())


def _text_or_reason(text: Callable[[], str]) -> str:
    """The text, or in brackets why it cannot be read."""
    try:
        return text()
    except OSError as error:
        return f"({error.filename or 'it'} cannot be read: {error.strerror or error})"
    except (PlanewiseError, subprocess.SubprocessError, UnicodeError) as error:
        return f"({error})"


def _versions() -> dict[str, str]:
    versions = {"planewise": __version__, "python": platform.python_version()}
    with suppress(PackageNotFoundError):
        for requirement in requires("planewise") or ():
            if "extra ==" not in requirement and (name := re.match(r"[\w.-]+", requirement)):
                versions[name[0]] = version(name[0])
    for program in ("pw-probe", "planewised"):
        path = shutil.which(program)
        versions[program] = (
            "(not installed)"
            if path is None
            else _text_or_reason(partial(_output, path, "--version"))
        )
    return versions


def _status(daemon_socket: Path) -> str:
    """The daemon's answer to GET /status."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(LOG_PATIENCE_S)
        try:
            connection.connect(str(daemon_socket))
            connection.sendall(
                b"GET /status HTTP/1.1\r\nHost: planewised\r\nConnection: close\r\n\r\n"
            )
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
        except OSError as error:
            raise PlanewiseError(
                f"no daemon answers on {daemon_socket}: {error.strerror or error}"
            ) from error
    return answer.partition(b"\r\n\r\n")[2].decode(errors="replace")


def _configured(configuration: Path, *keys: str) -> str | None:
    """A string of the daemon's configuration; None where the key is missing."""
    try:
        value: object = tomllib.loads(configuration.read_text())
    except (OSError, ValueError):
        return None
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, str) else None


def _state(configuration: Path) -> str:
    """The allocator's journal."""
    folder = _configured(configuration, "state_directory") or "/var/lib/planewise"
    return (Path(folder) / "journal").read_text(errors="replace")


def _log(unit: str) -> str:
    """The daemon's last log lines, from systemd's journal."""
    journalctl = shutil.which("journalctl")
    if journalctl is None:
        return "(there is no journalctl on this host)"
    command = ("--unit", unit, "--lines", str(LOG_LINES), "--no-pager", "--output", "short-iso")
    return _output(journalctl, *command)


def _output(*command: str) -> str:
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=LOG_PATIENCE_S, check=False
    )
    return (process.stdout or process.stderr).strip()


def _secrets(configuration: Path) -> Iterator[str]:
    """Tokens of the daemon's clients, to be hidden in every text."""
    file = _configured(configuration, "tcp", "tokens")
    if file is None:
        return
    with suppress(OSError):
        for line in Path(file).read_text(errors="replace").splitlines():
            yield from line.split()[1:]


def _names() -> Iterator[tuple[str, str]]:
    """Names of this host and of the user."""
    host = socket.gethostname()
    for name in dict.fromkeys((host, host.partition(".")[0])):
        if name not in ("localhost", ""):
            yield name, "host"
    with suppress(OSError, KeyError):
        users = {getpass.getuser(), os.environ.get("SUDO_USER", "")}
        yield from ((user, "user") for user in sorted(users - {"root", ""}))


def _write(file: Path, texts: dict[str, str]) -> None:
    """Writes the archive, for its owner alone, as a whole or not at all."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, text in texts.items():
            data = text.encode()
            member = tarfile.TarInfo(f"planewise-support/{name}")
            member.size, member.mode = len(data), 0o600
            archive.addfile(member, io.BytesIO(data))
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(content.getvalue())
    except FileExistsError as error:
        raise PlanewiseError(
            f"{file} is there already", remedy="name another file, or remove it"
        ) from error
    except OSError as error:
        raise PlanewiseError(
            f"cannot write {file}: {error.strerror or error}",
            remedy="name a file elsewhere with --bundle FILE",
        ) from error
