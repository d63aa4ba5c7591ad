"""A run's page on this machine: one file, asked for anew each second. Loopback only.

The page (page.html) loads nothing from elsewhere. Whoever asks must name this machine: another
site's page, whose name was made to point here, gets nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs, urlsplit

from planewise.errors import BadInputError, PlanewiseError
from planewise.live.state import LiveState, Snapshot

ADDRESS = "127.0.0.1"
_FAREWELL_S = 2.0
"""How long a page that looks on is given to learn of the end."""


def listen(port: int = 0) -> socket.socket:
    """A listening socket on the loopback interface; 0 takes a free port.

    Raises:
        BadInputError: no port has that number.
        PlanewiseError: the port is taken, or is not this user's to take.
    """
    if not 0 <= port <= 65535:
        raise BadInputError(
            f"no port has the number {port}", where="--live-port", remedy="0 takes a free one"
        )
    try:
        return socket.create_server((ADDRESS, port))
    except OSError as error:
        raise PlanewiseError(
            f"port {port} of this machine cannot be listened on: {error.strerror}",
            remedy="another --live-port, or 0 for a free one",
        ) from error


def as_json(now: Snapshot) -> dict[str, Any]:
    """A snapshot as the page gets it."""
    return {
        "title": now.title,
        "what": now.what,
        "share": now.share,
        "left_s": now.left_s,
        "notes": list(now.notes),
        "ended": now.ended,
        "stale": now.stale,
        "samples": [
            {"number": one.number} | one.sample.model_dump(mode="json") for one in now.samples
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
        """Where the page is."""
        return f"http://{ADDRESS}:{self._server.port}/"

    def close(self) -> None:
        """Waits until a page that looks on was told of the end, then ends."""
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
        self.asked_s = -1e9
        """When a page asked last, of the monotonic clock."""
        self.told = threading.Event()
        """Whether a page knows of the end."""

    def farewell(self, timeout_s: float) -> None:
        """Waits for a page that asked a moment ago to ask once more."""
        if time.monotonic() - self.asked_s < 2 * timeout_s:
            self.told.wait(timeout_s)

    def handle_error(self, request: object, client_address: object) -> None:
        """A page that went away in the midst of an answer is no error."""


def _policy(page: str) -> str:
    """Allows the page's own script and style, and questions to this server; nothing else."""

    def digests_of(tag: str) -> str:
        matches = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(one.encode()).digest()) for one in matches]
        return " ".join(f"'sha256-{digest.decode()}'" for digest in digests)

    return (
        f"default-src 'none'; script-src {digests_of('script')}; style-src {digests_of('style')}; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    server_version = "planewise"
    sys_version = ""
    protocol_version = "HTTP/1.1"
    timeout = 30

    def do_GET(self) -> None:
        """The page, or the run's state as JSON."""
        if not self._is_own_address():
            self._answer(HTTPStatus.FORBIDDEN, b"not for you\n", "text/plain")
            return
        parts = urlsplit(self.path)
        if parts.path == "/":
            self._answer(HTTPStatus.OK, self.server.page, "text/html; charset=utf-8")
        elif parts.path == "/state.json":
            now = self.server.state.now(_since(parts.query))
            self._answer(HTTPStatus.OK, json.dumps(as_json(now)).encode(), "application/json")
            self.server.asked_s = time.monotonic()
            if now.ended:
                self.server.told.set()
        else:
            self._answer(HTTPStatus.NOT_FOUND, b"there is no such page\n", "text/plain")

    def _is_own_address(self) -> bool:
        name = self.headers.get("Host", "")
        return name in (f"{ADDRESS}:{self.server.port}", f"localhost:{self.server.port}")

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Content-Security-Policy", self.server.policy)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Says nothing: the terminal is the run's."""


def _since(query: str) -> int:
    since = parse_qs(query).get("since", ["0"])[0]
    return int(since) if since.isascii() and since.isdigit() and len(since) < 16 else 0
