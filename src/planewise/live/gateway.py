"""The daemon's live page for a browser on this machine: a gateway from loopback to the socket.

Every user of a machine and every page in a browser can reach its loopback: so the gateway forwards
read requests only, and only to clients that have the secret of its address.
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from http import HTTPStatus
from http.client import HTTPResponse
from http.cookies import CookieError, SimpleCookie
from http.server import ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from planewise.errors import PlanewiseError
from planewise.live.server import ADDRESS, Handler, listen

PATHS = ("/", "/events?status=true", "/status")
"""Paths that are forwarded: the reads that the page needs."""

HEADERS = ("Content-Type", "Content-Security-Policy", "Cache-Control", "X-Content-Type-Options")


class Gateway:
    """Serves the page on the loopback interface. A context manager."""

    def __init__(
        self, ask: Callable[[str], AbstractContextManager[HTTPResponse]], port: int
    ) -> None:
        """`ask` sends a GET of this path to the daemon; a `port` of 0 takes a free one."""
        self.ask = ask
        self.secret = secrets.token_urlsafe(24)
        listening = listen(port)
        self.port: int = listening.getsockname()[1]
        self._server = _Server((ADDRESS, 0), _Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listening
        self._server.gateway = self

    @property
    def url(self) -> str:
        """The page's address; its secret lets any client read the status."""
        return f"http://{ADDRESS}:{self.port}/?secret={self.secret}"

    @property
    def cookie(self) -> str:
        """The cookie's name: cookies do not know ports."""
        return f"planewise-{self.port}"

    def serve(self) -> None:
        """Serves until `stop`."""
        self._server.serve_forever(poll_interval=0.2)

    def stop(self) -> None:
        """Ends `serve`, from another thread."""
        threading.Thread(target=self._server.shutdown).start()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    gateway: Gateway


class _Handler(Handler):
    server: _Server
    protocol_version = "HTTP/1.0"  # the end of an event stream is that of its connection
    timeout = 10.0

    def do_GET(self) -> None:  # noqa: N802
        gateway = self.server.gateway
        if not self.is_for(gateway.port):
            self._send_text(HTTPStatus.FORBIDDEN, "this address is not the gateway's")
            return
        url = urlsplit(self.path)
        secret = parse_qs(url.query).get("secret", [""])[0]
        if url.path == "/" and _equal(secret, gateway.secret):
            self.send_response(303)
            # The address with the secret does not stay in the browser's history or title.
            self.send_header("Location", "/")
            attributes = "HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", f"{gateway.cookie}={gateway.secret}; {attributes}")
            self.end_headers()
        elif not _equal(self._cookie(), gateway.secret):
            self._send_text(
                HTTPStatus.FORBIDDEN, "open the address that `planewise alloc page` printed"
            )
        elif self.path not in PATHS:
            self._send_text(HTTPStatus.NOT_FOUND, "this gateway shows the page only")
        else:
            self._forward()

    def _cookie(self) -> str:
        try:
            cookies = SimpleCookie(self.headers.get("Cookie", ""))
        except CookieError:
            return ""
        cookie = cookies.get(self.server.gateway.cookie)
        return cookie.value if cookie else ""

    def _forward(self) -> None:
        started = False
        try:
            with self.server.gateway.ask(self.path) as answer:
                self.send_response(answer.status)
                for name in HEADERS:
                    if value := answer.headers.get(name):
                        self.send_header(name, value)
                self.end_headers()
                started = True
                while chunk := answer.read1(65536):
                    self.wfile.write(chunk)
                    self.wfile.flush()
        except PlanewiseError as error:
            # The browser reconnects a stream that breaks off, but not after an error response.
            if not started and not self.path.startswith("/events"):
                self._send_text(HTTPStatus.BAD_GATEWAY, f"{error.what}. {error.remedy}")
        self.close_connection = True

    def _send_text(self, status: HTTPStatus, sentence: str) -> None:
        self.answer(status, sentence.encode(), "text/plain; charset=utf-8")


def _equal(a: str, b: str) -> bool:
    return hmac.compare_digest(a.encode(), b.encode())
