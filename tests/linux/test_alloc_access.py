"""Who may use the daemon's socket: with a real second user, who is in the group or is not."""

from __future__ import annotations

import grp
import os
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from planewise.errors import PlanewiseError
from planewise.testbed.vfs.alloc_client import Client
from planewise.testbed.vfs.nic import find_planewised

pytestmark = [pytest.mark.linux, pytest.mark.apart]

PATIENCE_S = 120
STRANGER = 65_534

CONFIG = """
socket = "{folder}/run/planewised.sock"
state_directory = "{folder}/state"
group = "{group}"
sample_s = 0.1
[containers]
docker = ""
[simulated]
vfs = 1
[simulated.guests]
web = {{ constant = 100.0 }}
"""


def as_stranger(groups: list[int], do: Callable[[], str]) -> str:
    """What `do` says in a process of another user, who is in these groups."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        said = "it did not get there"
        try:
            os.setgroups(groups)
            os.setgid(STRANGER)
            os.setuid(STRANGER)
            said = do()
        except OSError as error:
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writer, said.encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


@pytest.fixture
def group() -> grp.struct_group:
    """A group that is neither root's nor the stranger's."""
    if as_stranger([], lambda: "there") != "there":
        pytest.skip("processes cannot become another user here: root outside user namespaces can")
    found = [one for one in grp.getgrall() if one.gr_gid not in (0, STRANGER)]
    if not found:
        pytest.skip("this machine has no group beside root's")
    return found[0]


@pytest.fixture
def client(group: grp.struct_group) -> Iterator[Client]:
    """A daemon on a made-up host, with that group."""
    with tempfile.TemporaryDirectory(prefix="pw-access-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        configuration = folder / "planewised.toml"
        configuration.write_text(CONFIG.format(folder=folder, group=group.gr_name))
        client = Client(folder / "run" / "planewised.sock")
        log = folder / "log"
        with log.open("w") as to:
            daemon = subprocess.Popen(
                [find_planewised(), "daemon", "--config", str(configuration)], stderr=to
            )
        try:
            end = time.monotonic() + PATIENCE_S
            while not client.socket.exists():
                assert daemon.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            yield client
            daemon.send_signal(signal.SIGTERM)
            assert daemon.wait(PATIENCE_S) == 0, log.read_text()
        finally:
            daemon.kill()
            daemon.wait()


def test_a_user_outside_the_group_cannot_reach_the_daemon(
    client: Client, group: grp.struct_group
) -> None:
    def status() -> str:
        try:
            return client.status().policy
        except PlanewiseError as error:
            return f"{error.what}; {error.remedy}"

    def raw() -> str:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE_S)
            connection.connect(str(client.socket))
            connection.sendall(b"GET /status HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while piece := connection.recv(65_536):
                answer += piece
            return answer.decode()

    data = client.socket.stat()
    assert (data.st_gid, stat.S_IMODE(data.st_mode)) == (group.gr_gid, 0o660)
    said = as_stranger([], status)
    assert said.startswith(f"you may not use the daemon's socket {client.socket}; become a member")
    assert group.gr_name in said
    assert as_stranger([group.gr_gid], status) == "benefit"
    # Where the socket's own mode does not keep the stranger out, the daemon does.
    client.socket.chmod(0o666)
    said = as_stranger([], raw)
    assert said.startswith("HTTP/1.1 403 Forbidden")
    assert f"user {STRANGER} is not permitted" in said
    assert "guests" not in said
    assert "is not permitted; become a member of the group" in as_stranger([], status)
    assert as_stranger([group.gr_gid], status) == "benefit"
    assert client.status().policy == "benefit"
