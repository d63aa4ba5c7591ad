"""Pages in a headless Chromium, and what axe-core finds in them."""

from __future__ import annotations

import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")

needs_browser = pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")

_SPEC = importlib.util.find_spec("axe_core_python")
assert _SPEC is not None
assert _SPEC.origin is not None
AXE = Path(os.environ.get("PLANEWISE_AXE") or Path(_SPEC.origin).with_name("axe.min.js"))
"""Deque's accessibility checker; PLANEWISE_AXE names a newer one."""

ACCESSIBILITY = (
    """
async function findings(page, colours) {
  const script = page.contentDocument.createElement("script");
  const loaded = new Promise(done => script.onload = done);
  script.src = "AXE";
  page.contentDocument.head.append(script);
  await loaded;
  const rules = {"color-contrast": {enabled: colours}};
  const seen = await page.contentWindow.axe.run({resultTypes: ["violations"], rules});
  return seen.violations.filter(one => ["serious", "critical"].includes(one.impact)).map(one =>
    `${one.id}: ${one.nodes.length} × ${one.nodes[0].html.slice(0, 120)}`);
}
"""
).replace("AXE", AXE.as_uri())
"""JavaScript: what axe-core finds serious or critical in the page of an iframe; `colours` checks
their contrast, which takes four fifths of the time."""


@dataclass(frozen=True)
class Seen:
    """What the browser says of a page."""

    found: Any
    """The JSON that the page wrote into its element `out`."""
    console: list[str]


def look(frame: Path, profile: Path, *flags: str, budget_s: int = 30) -> Seen:
    """Opens a local page that writes what it sees into `<pre id="out">`; there is no network."""
    assert BROWSER is not None
    done = subprocess.run(
        [
            *(BROWSER, "--headless", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"),
            *(["--no-sandbox"] if os.geteuid() == 0 else []),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--disable-quic", "--host-resolver-rules=MAP * ~NOTFOUND"),
            *("--allow-file-access-from-files", "--enable-logging=stderr"),
            *(f"--user-data-dir={profile}", "--window-size=1600,1000"),
            *(f"--virtual-time-budget={budget_s * 1000}", *flags, "--dump-dom", frame.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=max(300, budget_s),
        check=False,
    )
    out = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, flags=re.DOTALL)
    if out is None:
        pytest.skip(f"chromium does not run here: {done.stderr.strip()[-200:]}")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert out[1], f"the page was not looked at: {console}"
    return Seen(json.loads(html.unescape(out[1])), console)
