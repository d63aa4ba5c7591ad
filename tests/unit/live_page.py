"""The daemon's live page in a real browser: a server that shows it in a frame, made-up guests to
fill it, and what the browser says of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from planewise.testbed.vfs.alloc_client import Client

PAGE = Path(__file__).parents[2] / "crates" / "planewised" / "src" / "http" / "page.html"
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
PATIENCE_S = 240

FRAME = """<!doctype html><title>frame</title><body style="margin:0">
<iframe src="/" style="border:0;width:{width}px;height:{height}px"></iframe>
<img src="/held" alt="" hidden>
<script>
const frame = document.querySelector("iframe");
const all = query => [...frame.contentDocument.querySelectorAll(query)];
const text = query => all(query).map(one => one.textContent);
const ready = () => frame.contentDocument?.querySelector("main")?.hidden === false && ({ready});
const later = () => new Promise(done => setTimeout(done, 50));
(async () => {{
  while (!ready()) await later();
  const view = frame.contentWindow, root = frame.contentDocument.documentElement;
  const place = one => one.getBoundingClientRect();
  const found = {{
    width: root.clientWidth,
    content: root.scrollWidth,
    wide: all("body *").filter(one => !one.closest(".table"))
      .filter(one => place(one).right > root.clientWidth + 0.5)
      .map(one => one.outerHTML.slice(0, 80)),
    paper: view.getComputedStyle(frame.contentDocument.body).backgroundColor,
    smallest: Math.min(...all("body *").filter(one => one.textContent && place(one).width)
      .map(one => parseFloat(view.getComputedStyle(one).fontSize))),
    outside: view.performance.getEntriesByType("resource").map(one => new URL(one.name).pathname),
    asked: await ({asked}),
  }};
  await fetch("/found", {{method: "POST", body: JSON.stringify(found)}});
}})();
</script>"""


@dataclass(frozen=True)
class Seen:
    """What the browser says of the page."""

    found: dict[str, Any]
    console: list[str]
    picture: Path


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        show = self.server.show
        path = urlsplit(self.path).path
        if path == "/frame":
            self._say("text/html", show.frame)
        elif path == "/held":
            # The browser takes its picture when this is there.
            show.done.wait(PATIENCE_S)
            self._say("image/png", "")
        elif show.client is not None and path in ("/", "/events"):
            with show.client.raw(self.path) as answer:
                self._begin(
                    answer.headers["Content-Type"], answer.headers.get("Content-Security-Policy")
                )
                while piece := answer.read1(65536):
                    self.wfile.write(piece)
                    self.wfile.flush()
        elif path == "/":
            self._say("text/html; charset=utf-8", PAGE.read_text().replace("NONCE", "0"))
        elif path == "/events":
            self._begin("text/event-stream", None)
            for name, value in show.told():
                self.wfile.write(f"event: {name}\ndata: {json.dumps(value)}\n\n".encode())
                self.wfile.flush()
            show.done.wait(PATIENCE_S)
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        self.server.show.found = json.loads(self.rfile.read(length))
        self._say("text/plain", "")
        self.server.show.done.set()

    def _begin(self, kind: str, policy: str | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if policy:
            self.send_header("Content-Security-Policy", policy)
        self.end_headers()

    def _say(self, kind: str, body: str) -> None:
        self._begin(kind, None)
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    show: Show

    def handle_error(self, *_: object) -> None:
        """The browser leaves when it has seen enough."""


@dataclass
class Show:
    """One page that is shown once."""

    frame: str
    told: Callable[[], Iterator[tuple[str, Any]]]
    client: Client | None
    done: threading.Event
    found: dict[str, Any] | None = None


@contextmanager
def _served(show: Show) -> Iterator[int]:
    server = _Server(("127.0.0.1", 0), _Handler)
    server.show = show
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        show.done.set()
        server.shutdown()
        server.server_close()
        thread.join()


def look(
    folder: Path,
    *flags: str,
    told: Callable[[], Iterator[tuple[str, Any]]] = lambda: iter(()),
    client: Client | None = None,
    width: int = 1200,
    height: int = 1600,
    ready: str = "true",
    asked: str = "null",
) -> Seen:
    """Shows the page in a frame of `width` px, filled by `told` or by the daemon behind `client`.

    As soon as the JavaScript `ready` holds, what the (asynchronous) JavaScript `asked` comes to is
    `found["asked"]`, and a picture is taken.
    """
    if BROWSER is None:
        pytest.skip("no chromium on this machine")
    frame = FRAME.format(width=width, height=height, ready=ready, asked=asked)
    show = Show(frame, told, client, threading.Event())
    picture = folder / f"page-{width}-{len(flags)}.png"
    with _served(show) as port:
        browser = subprocess.Popen(
            [
                BROWSER,
                "--headless",
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
                "--disable-gpu",
                "--disable-quic",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
                "--hide-scrollbars",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "--enable-logging=stderr",
                f"--user-data-dir={folder / 'profile'}",
                f"--window-size={width},{height}",
                f"--screenshot={picture}",
                *flags,
                f"http://127.0.0.1:{port}/frame",
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, said = browser.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            browser.kill()
            _, said = browser.communicate()
    console = [line for line in said.splitlines() if "CONSOLE" in line]
    if show.found is None and not console:
        pytest.skip(f"chromium does not run here: {said.strip()[-200:]}")
    assert show.found is not None, f"the page was not looked at: {console}"
    return Seen(show.found, console, picture)


def made_up(guests: int = 40, seconds: int = 0) -> dict[str, Any]:
    """A status with everything that the page shows, `seconds` after the first."""
    now = int(time.time() * 1e3)

    def guest(number: int) -> dict[str, Any]:
        name = f"guest-{number}"
        odd: dict[str, Any] = {}
        if number == 0:
            name = "<b onclick=alert(1)>a-name-that-is-far-too-long-to-be-shown-in-one-line</b>"
        if number == 1:
            odd = {
                "marked": "could not take simulated0/1 from guest-1: it did not answer within 30 s"
            }
        if number == 2:
            odd = {
                "rate": {"pps": None, "bytes_per_s": None, "source": "unsupported", "blind_ms": 0}
            }
        if number == 3:
            odd = {"stance": "pinned", "class": 2, "moving": True, "paravirtual_up": False}
        pps = 10 ** (number % 7) * (1 + (seconds + number) % 5)
        held = number % 3 == 1
        return {
            "id": name,
            "kind": ("container", "vm", "simulated")[number % 3],
            "mac": f"52:54:00:00:00:{number % 256:02x}",
            "vf": f"enp1s0f0/{number // 3}" if held else None,
            "since_unix_ms": now - 1000 * (40 + number * 97),
            "why": f"ranks {'above' if held else 'below'} the cut ({pps} pps)",
            "rate": {
                "pps": pps,
                "bytes_per_s": pps * 200.0,
                "source": "guest-reported" if number == 4 else "host-side",
                "blind_ms": 90_000 if number == 5 else 0,
            },
            "stance": "free",
            "class": 0,
            "moving": False,
            "paravirtual_up": True,
            "marked": None,
            **odd,
        }

    told = [guest(number) for number in range(guests)]
    holders = [one for one in told if one["vf"]]
    vfs = [{"id": one["vf"], "place": "held", "holder": one["id"], "why": None} for one in holders]
    vfs.append(
        {"id": "enp1s0f1/6", "place": "quarantined", "holder": None, "why": "its reset failed"}
    )
    endings = ("completed", "completed", "undone", "stuck", "quarantined")
    moves = [
        {
            "operation": number,
            "direction": "give" if number % 2 else "take",
            "guest": f"guest-{number}",
            "vf": f"enp1s0f0/{number % 7}",
            "why": "ranks above the cut (1000 pps)",
            "started_unix_ms": now - 9000 + number * 700,
            "duration_ms": 310.5 + 90 * number,
            "steps": [
                {"step": step, "duration_ms": 20.0 + 40 * at + 30 * number}
                for at, step in enumerate(("reserve", "attach", "await its path", "verify"))
            ],
            "ending": {
                "how": endings[number % 5],
                "why": None if number % 5 < 2 else "could not verify: the path does not work",
            },
        }
        for number in range(12)
    ]
    counts = {"completed": 17, "undone": 1, "stuck": 1, "quarantined": 1}
    return {
        "format": 1,
        "version": "0.1.0",
        "at_unix_ms": now,
        "started_unix_ms": now - 7_700_000,
        "policy": "benefit",
        "interval_s": 10.0,
        "sample_s": 1.0,
        "draining": False,
        "guests": told,
        "vfs": vfs,
        "pools": [
            {
                "pf": "enp1s0f0",
                "vfs": 63,
                "free": 63 - len(holders),
                "quarantined": 0,
                "link_up": True,
                "numa": 0,
            },
            {
                "pf": "enp1s0f1",
                "vfs": 7,
                "free": 0,
                "quarantined": 1,
                "link_up": False,
                "numa": None,
            },
        ],
        "moves": moves,
        "errors": [
            {
                "at_unix_ms": now - 60_000,
                "what": "enp1s0f1 has no link",
                "remedy": "look at its cable",
                "guest": None,
                "vf": None,
            }
        ],
        "counters": {"given": counts, "taken": counts, "errors": 1},
    }
