"""Hosts reached by ssh: real servers, and those of a lab. The same protocols as `LocalHost`."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import shlex
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncssh

from planewise import lab
from planewise.errors import BadInputError, PlanewiseError
from planewise.testbed.hosts.host import GRACE_S
from planewise.testbed.hosts.kubernetes import KubernetesHost, parse_node
from planewise.testbed.hosts.remote_host import BEGUN, CONNECT_TIMEOUT_S, Command, RemoteHost
from planewise.testbed.hosts.scratch import scratch
from planewise.testbed.hosts.signals import result_of

_KEEPALIVE_S = 15.0
# An emulated host stands still for longer on a busy machine; its QEMU's end closes the connection.
_LAB_KEEPALIVE_S = 60.0
_STDIN, _STDOUT, _STDERR = 0, 1, 2


@dataclass(frozen=True)
class SshTarget:
    """A server that ssh can reach."""

    text: str
    """As the user wrote it."""
    server: str
    user: str | None = None
    port: int | None = None
    options: dict[str, Any] = field(default_factory=dict)
    """Beyond what ~/.ssh/config and known_hosts say."""


def parse_target(text: str) -> SshTarget:
    """`ssh://[user@]server[:port]`, as a value. Pure.

    Raises:
        BadInputError: it is none.
    """
    remedy = "ssh://server, ssh://user@server:port, lab:a or lab:b, k8s://node"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise BadInputError(f"`{text}` is not a host: {error}", remedy=remedy) from error
    if parts.scheme != "ssh" or not parts.hostname or parts.path.strip("/") or parts.password:
        raise BadInputError(f"`{text}` is not a host", remedy=remedy)
    return SshTarget(text, parts.hostname, parts.username, port)


def parse_lab(text: str) -> tuple[str, lab.HostId]:
    """`lab:a`, or `lab:NAME/a`, as the lab's name and the host. Pure.

    Raises:
        BadInputError: it is none.
    """
    match = re.fullmatch(r"lab:(?:(?P<name>[a-z0-9][a-z0-9-]*)/)?(?P<host>[ab])", text)
    if match is None:
        raise BadInputError(
            f"`{text}` is not a host of a lab", remedy="lab:a and lab:b, or lab:NAME/a"
        )
    return match["name"] or "default", "a" if match["host"] == "a" else "b"


def check_host(text: str) -> None:
    """Raises BadInputError where `text` names no host (`ssh://…`, `lab:…`, `k8s://…`). Pure."""
    if text.startswith("lab:"):
        parse_lab(text)
    elif text.startswith("k8s:"):
        parse_node(text)
    else:
        parse_target(text)


def open_host(text: str, name: str) -> RemoteHost:
    """The host that `text` names (`ssh://…`, `lab:…`, `k8s://…`), connected, in the role `name`.

    Raises:
        BadInputError: it names no host.
        PlanewiseError: it cannot be reached, or the lab is not up.
    """
    if text.startswith("lab:"):
        return LabHost(*parse_lab(text), name=name)
    if text.startswith("k8s:"):
        return KubernetesHost(name, parse_node(text))
    return SshHost(name, parse_target(text))


class SshHost(RemoteHost):
    """A machine reached by ssh; connected when made.

    ~/.ssh/config, known_hosts, keys and agent count as they do for ssh.

    Raises when made:
        PlanewiseError: it cannot be reached, or it does not let us in.
    """

    remedy = "check with `ssh` that the server can be reached without a prompt"
    errors = asyncssh.Error

    def __init__(self, name: str, target: SshTarget) -> None:
        self._target = target
        self._connection: asyncssh.SSHClientConnection
        self._sockets: dict[str, str] = {}
        self._local = ExitStack()
        self._files: asyncssh.SFTPClient | None = None
        super().__init__(name, target.text)

    def socket(self, path: str) -> str:
        """See `Host.socket`: forwarded over the connection, gone with it."""
        if path not in self._sockets:
            local = str(self._local.enter_context(scratch()) / "socket")
            try:
                self.call(self._forward(local, path))
            except OSError as error:
                raise PlanewiseError(
                    f"{path} on {self.place} cannot be reached: {error.strerror or error}",
                    remedy="allow AllowStreamLocalForwarding in its sshd_config",
                ) from error
            self._sockets[path] = local
        return self._sockets[path]

    def put(self, local: Path, remote: str) -> None:
        """See `Host.put`; the mode is kept."""
        self._copy(str(local), remote, f"{local} cannot be copied to {self.place}:{remote}", True)

    def fetch(self, remote: str, local: Path) -> None:
        """See `Host.fetch`; the mode is kept."""
        self._copy(remote, str(local), f"{self.place}:{remote} cannot be copied to {local}", False)

    def stream(self, command: str) -> int:
        """Runs a shell command with this program's stdin, stdout and stderr; gives its exit code.

        Ctrl-C goes to the command.

        Raises:
            PlanewiseError: the connection was lost.
        """
        stream = _Terminal()
        running = asyncio.run_coroutine_threadsafe(
            stream.run(self._connection, command), self._loop
        )
        while True:
            try:
                return self.exit_code(result_of(running), "the command")
            except KeyboardInterrupt:
                if stream.pid:
                    self.call(self.shell(f"kill -s INT -- -{stream.pid}"))
            except asyncssh.Error as error:
                raise self._explain(error) from error

    def close(self) -> None:
        super().close()
        self._local.close()
        self._sockets.clear()

    async def shell(self, command: str) -> None:
        """Runs a short shell command whose outcome does not matter."""
        await self._connection.run(command, check=False, timeout=CONNECT_TIMEOUT_S)

    async def _connect(self) -> None:
        options = dict(self._target.options)
        if self._target.user is not None:
            options["username"] = self._target.user
        if self._target.port is not None:
            options["port"] = self._target.port
        _set_client_version()
        options.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
        options.setdefault("login_timeout", CONNECT_TIMEOUT_S)
        options.setdefault("keepalive_interval", _KEEPALIVE_S)
        try:
            self._connection = await asyncssh.connect(self._target.server, **options)
        except TimeoutError as error:
            raise PlanewiseError(
                f"{self.place} does not answer by ssh within {CONNECT_TIMEOUT_S:g} s",
                remedy=self.remedy,
            ) from error
        except (OSError, ValueError) as error:
            # ValueError: a key or a line of ~/.ssh/config that cannot be read.
            # asyncio's own message for a refusal has the address instead of the reason.
            code = getattr(error, "errno", None) or 0
            reason = os.strerror(code) if code > 0 else getattr(error, "strerror", "") or str(error)
            if getattr(error, "filename", None):
                reason = f"{error.filename}: {reason}"  # type: ignore[union-attr]
            raise PlanewiseError(
                f"{self.place} cannot be reached by ssh: {reason}", remedy=self.remedy
            ) from error

    async def _spawn(self, command: str) -> Command:
        return await self._connection.create_process(command, encoding=None)

    async def _forward(self, local: str, remote: str) -> None:
        await self._connection.forward_local_path(local, remote)

    def _copy(self, source: str, target: str, failure: str, upload: bool) -> None:
        async def copy() -> None:
            if self._files is None:
                self._files = await self._connection.start_sftp_client()
            if upload:
                await self._files.put(source, target, preserve=True)
            else:
                await self._files.get(source, target, preserve=True)

        try:
            self.call(copy())
        except OSError as error:
            raise PlanewiseError(f"{failure}: {error.strerror or error}") from error
        except PlanewiseError as error:
            cause = error.__cause__
            if isinstance(cause, asyncssh.SFTPError):
                raise PlanewiseError(f"{failure}: {cause.reason}") from cause
            raise

    async def _disconnect(self) -> None:
        self._connection.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._connection.wait_closed(), GRACE_S)

    def _explain(self, error: Exception) -> PlanewiseError:
        if isinstance(error, asyncssh.PermissionDenied):
            return PlanewiseError(
                f"{self.place} refuses us by ssh: {error.reason}",
                remedy="put your public key into the server's authorized_keys, or name the user: "
                "ssh://user@server",
            )
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            return PlanewiseError(
                f"the host key of {self.place} is not known",
                remedy=f"log in once with `ssh {self._target.server}`, which asks about it",
            )
        return PlanewiseError(
            f"ssh to {self.place} failed: {getattr(error, 'reason', '') or type(error).__name__}",
            remedy=self.remedy,
        )


class LabHost(SshHost):
    """A host of a lab: an ssh host whose address and key are known. Holds the lab while open.

    Raises when made:
        PlanewiseError: the lab is not up, or the host does not run.
    """

    remedy = "`planewise lab status` shows the state of the host"

    def __init__(self, lab_name: str, host: lab.HostId, *, name: str) -> None:
        self._lab_use = ExitStack()
        try:
            status = self._lab_use.enter_context(lab.using(lab_name))
            record = status.record.hosts[host]
            text = f"lab:{host}" if lab_name == "default" else f"lab:{lab_name}/{host}"
            options: dict[str, Any] = {
                "config": None,
                "agent_path": None,
                "keepalive_interval": _LAB_KEEPALIVE_S,
                "client_keys": [str(status.directory / "key")],
                "known_hosts": ([asyncssh.import_public_key(record.host_key)], [], []),
            }
            super().__init__(name, SshTarget(text, "127.0.0.1", "root", record.port, options))
        except BaseException:
            self._lab_use.close()
            raise

    def program(self, local: str) -> str:
        """See `SshHost.program`: it is there, as a lab's hosts see this machine's files."""
        local_stat = Path(local).stat()
        remote_stat = self.run(["stat", "--format=%s %Y", "--", local])
        if remote_stat.stdout.split() == [str(local_stat.st_size), str(int(local_stat.st_mtime))]:
            return local
        return super().program(local)  # made after the host had looked there

    def close(self) -> None:
        """See `SshHost.close`; releases the lab."""
        super().close()
        self._lab_use.close()


def _set_client_version() -> None:
    """asyncssh asks for our own name; a user without an account, as in containers, has none."""
    try:
        getpass.getuser()
    except (KeyError, OSError):
        os.environ["LOGNAME"] = f"uid{os.getuid()}"


class _Terminal:
    """A command that has this program's stdin, stdout and stderr."""

    def __init__(self) -> None:
        self.pid = 0
        """Its process group on the host, once it runs."""

    async def run(self, connection: asyncssh.SSHClientConnection, command: str) -> int | None:
        """Runs it to its end; gives its exit code, None where the connection was lost."""
        shell = shlex.join(["sh", "-c", f'echo "{BEGUN}$$" >&2; {command}'])
        remote = await connection.create_process(f"exec {shell}", encoding=None)
        first = await remote.stderr.readline()
        self.pid = int(first.decode().removeprefix(BEGUN) or 0)
        # The command has the stdin, so that the keeper watches a channel of its own.
        watch = f"trap '' INT TERM HUP; read -r done || kill -s KILL -- -{self.pid}"
        keeper = await connection.create_process(f"exec {shlex.join(['sh', '-c', watch])}")
        loop = asyncio.get_running_loop()
        threading.Thread(target=self._feed, args=(remote, loop), name="stdin", daemon=True).start()
        await asyncio.gather(
            self._pump(remote.stdout, _STDOUT, loop), self._pump(remote.stderr, _STDERR, loop)
        )
        await remote.wait_closed()
        # Background processes of the command stay, as with ssh: the keeper must read this line.
        keeper.stdin.write("done\n")
        with suppress(TimeoutError):
            await asyncio.wait_for(keeper.wait_closed(), GRACE_S)
        return remote.returncode

    @staticmethod
    async def _pump(
        source: asyncssh.SSHReader[bytes], into: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        while part := await source.read(1 << 16):
            await loop.run_in_executor(None, _write_all, into, part)

    def _feed(
        self, remote: asyncssh.SSHClientProcess[bytes], loop: asyncio.AbstractEventLoop
    ) -> None:
        # In a thread of its own: whatever stdin is (terminal, pipe, file), reading it blocks.
        with suppress(OSError, RuntimeError):
            while part := os.read(_STDIN, 1 << 16):
                asyncio.run_coroutine_threadsafe(self._write(remote, part), loop).result()
            loop.call_soon_threadsafe(remote.stdin.write_eof)

    @staticmethod
    async def _write(remote: asyncssh.SSHClientProcess[bytes], part: bytes) -> None:
        with suppress(OSError, asyncssh.Error):
            remote.stdin.write(part)
            await remote.stdin.drain()


def _write_all(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
