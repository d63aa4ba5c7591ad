"""What names a host reached by ssh, and what is said of one that cannot be reached."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import BadInputError, PlanewiseError
from planewise.testbed.hosts.remote import check_host, open_host, parse_lab


@pytest.mark.parametrize(
    "text", ["ssh://server", "ssh://me@server.example:2222", "ssh://[2001:2::1]:22"]
)
def test_a_server_is_named_by_a_url(text: str) -> None:
    check_host(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "server", "ssh://", "http://server", "ssh://server/path", "ssh://me:secret@server"),
        *("ssh://server:port", "ssh://server:99999", "ssh://[::1"),
    ],
)
def test_what_is_no_url_of_a_server_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="is not a host") as caught:
        check_host(text)
    assert "ssh://user@server" in caught.value.remedy


@given(st.text())
def test_any_text_is_a_host_or_refused(text: str) -> None:
    with contextlib.suppress(BadInputError):
        check_host(text)


def test_a_host_of_a_lab_is_named_by_its_letter() -> None:
    assert parse_lab("lab:a") == ("default", "a")
    assert parse_lab("lab:second/b") == ("second", "b")
    for wrong in ("lab:", "lab:c", "lab:x/", "lab:a/b/c", "lab:A"):
        with pytest.raises(BadInputError):
            parse_lab(wrong)


def test_a_server_that_is_not_there_is_said() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    with pytest.raises(PlanewiseError, match=r"cannot be reached by ssh: .*refused"):
        open_host(f"ssh://127.0.0.1:{port}", "sender")


def test_a_server_that_speaks_no_ssh_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.listen()
        port = server.getsockname()[1]

        def greet() -> None:
            peer, _ = server.accept()
            with peer:
                peer.sendall(b"220 this is mail\r\n" * 3)
                peer.shutdown(socket.SHUT_WR)
                # Closed with words unread, it would reset the connection before it is heard.
                while peer.recv(4096):
                    pass

        thread = threading.Thread(target=greet)
        thread.start()
        with pytest.raises(PlanewiseError, match=f"ssh to ssh://127.0.0.1:{port} failed"):
            open_host(f"ssh://127.0.0.1:{port}", "sender")
        thread.join()


def test_who_measures_on_this_machine_loads_nothing_that_reaches_others() -> None:
    script = "import sys, planewise.pipeline\n"
    script += "print(sorted({'docker', 'libvirt'} & set(sys.modules)))"
    argv = [sys.executable, "-c", script]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
