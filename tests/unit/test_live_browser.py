"""The live page in a real browser: what it is told, anew each second, and the end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from planewise.live.server import LiveServer, listen
from planewise.live.state import LiveState, Snapshot
from tests.unit.test_live import kpi

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")


class _Told(LiveState):
    """A run that goes on each time that the page asks, and ends after some seconds."""

    def __init__(self) -> None:
        super().__init__("Chains <b>here</b>")
        self.asked = 0
        self._order = threading.Lock()

    def now(self, since: int = 0) -> Snapshot:
        with self._order:
            self.asked += 1
            if self.asked == 4:
                self.end("done")
            elif self.asked < 4:
                self.add(kpi(self.asked, ("vnf1", "<i>vnf2</i>"), pps=1e6 * self.asked))
        return super().now(since)


def test_the_page_shows_each_second_and_the_end_and_asks_nobody_else(tmp_path: Path) -> None:
    state = _Told()
    state.begin("measuring", 60.0)
    state.note("left out: <script>alert(1)</script>")
    server = LiveServer(state, listen())
    try:
        assert BROWSER is not None
        done = subprocess.run(
            [
                BROWSER,
                "--headless",
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
                "--disable-gpu",
                "--no-first-run",
                "--disable-background-networking",
                "--disable-component-update",
                "--disable-sync",
                "--disable-dev-shm-usage",
                "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
                "--enable-logging=stderr",
                f"--user-data-dir={tmp_path / 'profile'}",
                "--window-size=360,900",
                "--virtual-time-budget=20000",
                "--dump-dom",
                server.url,
            ],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
    finally:
        server.close()
    page = done.stdout
    if "</html>" not in page:
        pytest.skip(f"chromium does not run here: {done.stderr.strip()[-200:]}")
    complaints = [one for one in done.stderr.splitlines() if "CONSOLE" in one]
    assert complaints == []
    assert state.asked == 4  # and no more after the end
    assert "The run has ended: done." in page
    assert "Chains &lt;b&gt;here&lt;/b&gt;" in page
    assert "left out: &lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert re.search(r'<strong id="pps">9 Mpps</strong>', page)
    assert re.search(r'<strong id="bps">4.32 Gbit/s</strong>', page)
    rows = re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td><td>(.*?)</td>', page)
    assert rows == [
        ("vnf1", "3 Mpps", "1.44 Gbit/s"),
        ("&lt;i&gt;vnf2&lt;/i&gt;", "6 Mpps", "2.88 Gbit/s"),
    ]
    assert re.findall(r"CPU \d", page) == ["CPU 0", "CPU 0", "CPU 1", "CPU 1"]
    (points,) = re.findall(r'id="curve" points="([^"]*)"', page)
    assert len(points.split()) == 3
