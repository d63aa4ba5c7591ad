"""Serves a run's page and state on this machine. Loopback only.

The page (page.html) loads nothing from elsewhere, and asks for the state each second. Requests must
have this machine's name in Host, against DNS rebinding by other sites.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from planewise.errors import PlanewiseError
from planewise.live.state import LiveState, Snapshot

ADDRESS = "127.0.0.1"
_FAREWELL_S = 2.0
"""How long an open page has to ask for the final state."""


def listen(port: int = 0) -> socket.socket:
    """A listening socket on the loopback interface; 0 takes a free port.

    Raises:
        PlanewiseError: the port is taken, or is not this user's to take.
    """
    try:
        return socket.create_server((ADDRESS, port))
    except OSError as error:
        raise PlanewiseError(
            f"cannot listen at {ADDRESS}:{port}: {os.strerror(error.errno or 0)}",
            remedy="name another port, or 0 for a free one",
        ) from error


def as_json(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot as JSON, for the page."""
    return {
        "title": snapshot.title,
        "what": snapshot.what,
        "share": snapshot.share,
        "left_s": snapshot.left_s,
        "notes": list(snapshot.notes),
        "ended": snapshot.ended,
        "stale": snapshot.stale,
        "samples": [
            {"number": numbered.number} | numbered.sample.model_dump(mode="json")
            for numbered in snapshot.samples
        ],
    }


class LiveServer:
    """Serves a run's page until it is closed."""

    def __init__(self, state: LiveState, listening: socket.socket) -> None:
        self._server = _Server(state, listening)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{ADDRESS}:{self._server.port}/"

    def close(self) -> None:
        """Waits until an open page has the final state, then stops."""
        self._server.farewell(_FAREWELL_S)
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, state: LiveState, listening: socket.socket) -> None:
        super().__init__((ADDRESS, 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.port: int = listening.getsockname()[1]
        self.state = state
        text = (resources.files("planewise.live") / "page.html").read_text("utf-8")
        self.page = text.encode()
        self.policy = _policy(text)
        self.last_request_s = -1e9
        """Time of the last request, by the monotonic clock."""
        self.end_delivered = threading.Event()
        """Set when a page got the final state."""

    def farewell(self, timeout_s: float) -> None:
        """Waits for one more request, where a page asked recently."""
        if time.monotonic() - self.last_request_s < 2 * timeout_s:
            self.end_delivered.wait(timeout_s)

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores errors: a page may be closed while it is answered."""


def _policy(page: str) -> str:
    """A policy that allows the page's script and style, and requests to this server."""

    def digests_of(tag: str) -> str:
        matches = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(text.encode()).digest()) for text in matches]
        return " ".join(f"'sha256-{digest.decode()}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {digests_of('script')}; style-src {digests_of('style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )


class Handler(BaseHTTPRequestHandler):
    """Answers requests to this machine's own name, with headers that keep pages to themselves."""

    server_version = "planewise"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30.0
    policy = ""
    """The Content-Security-Policy; empty for texts."""

    def is_for(self, port: int) -> bool:
        """Whether Host names this machine, not another name that resolves to it (DNS rebinding)."""
        return self.headers.get("Host") in (f"{ADDRESS}:{port}", f"localhost:{port}")

    def answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        """Sends a whole answer."""
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        if self.policy:
            self.send_header("Content-Security-Policy", self.policy)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Logs nothing: the terminal is the command's."""


class _Handler(Handler):
    server: _Server

    def do_GET(self) -> None:
        """The page, or the run's state as JSON."""
        self.policy = self.server.policy
        if not self.is_for(self.server.port):
            self.answer(HTTPStatus.FORBIDDEN, b"this address is not the server's\n", "text/plain")
            return
        parts = urlsplit(self.path)
        if parts.path == "/":
            self.answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif parts.path == "/state.json":
            snapshot = self.server.state.now(_since(parts.query))
            self.answer(HTTPStatus.OK, json.dumps(as_json(snapshot)).encode(), "application/json")
            self.server.last_request_s = time.monotonic()
            if snapshot.ended:
                self.server.end_delivered.set()
        else:
            self.answer(HTTPStatus.NOT_FOUND, b"there is no such page\n", "text/plain")


def _since(query: str) -> int:
    since = parse_qs(query).get("since", ["0"])[0]
    return int(since) if since.isascii() and since.isdigit() and len(since) < 16 else 0
