"""The wheel on a clean root without compiler and network: from nothing to a report in a browser.

In a container of systemd-nspawn: times of an emulated machine would say nothing.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import browser
from tests.roots import root

from .conftest import SUITES, artifact

NSPAWN = shutil.which("systemd-nspawn")
PYTHON = {"bookworm": "3.11", "noble": "3.12"}
LIMIT_S = 300.0
"""From nothing to a report, of which MINUTES are measured."""
MINUTES = 1

SCRIPT = """
for program in cc gcc rustc cargo; do ! command -v $program >/dev/null || exit 99; done
python3 -m venv $HOME/planewise
$HOME/planewise/bin/pip install -q --no-index --find-links /wheels planewise
for program in pw-probe planewised; do $HOME/planewise/bin/$program --version; done
cd /out
$HOME/planewise/bin/planewise quick --minutes MINUTES
"""

FRAME = """<!doctype html><pre id="out"></pre><iframe src="PAGE"></iframe><script>
document.querySelector("iframe").onload = event => {
  const inner = event.target.contentDocument;
  document.getElementById("out").textContent = JSON.stringify({
    title: inner.title, figures: inner.querySelectorAll("svg").length,
    words: inner.body.textContent.length,
  });
};
</script>"""


@pytest.fixture(scope="module")
def wheels(artifacts: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel with what it asks for, by distribution: all that pip gets to see there."""
    folders = {}
    for suite in SUITES:
        folders[suite] = tmp_path_factory.mktemp(suite)
        folders[suite].chmod(0o755)
        command = [sys.executable, "-m", "pip", "download", "-q", "--only-binary=:all:"]
        command += ["--python-version", PYTHON[suite], "--dest", str(folders[suite])]
        subprocess.run([*command, str(artifact(artifacts, "planewise-*x86_64.whl"))], check=True)
    return folders


@pytest.mark.skipif(NSPAWN is None, reason="no systemd-nspawn: apt-get install systemd-container")
@pytest.mark.parametrize("user", ["root", "alice"])
@pytest.mark.parametrize("suite", SUITES)
def test_quick_ends_in_a_report_minutes_after_the_wheel_is_there(
    suite: str, user: str, wheels: dict[str, Path], tmp_path: Path, said: list[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    out.chmod(0o777)
    script = SCRIPT.replace("MINUTES", str(MINUTES))
    become = f'useradd -m {user}; exec runuser -u {user} -- env HOME=/home/{user} sh -ec "$SCRIPT"'
    begun = time.monotonic()
    done = subprocess.run(
        [
            *(str(NSPAWN), "-q", "--register=no", "--keep-unit", "--volatile=overlay"),
            *("--private-network", f"--directory={root(suite, 'python3-venv')}"),
            *(
                f"--bind-ro={wheels[suite]}:/wheels",
                f"--bind={out}:/out",
                f"--setenv=SCRIPT={script}",
            ),
            *("sh", "-ec", script if user == "root" else become),
        ],
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    took_s = time.monotonic() - begun
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    (report,) = out.glob("runs/*/report.html")
    frame = tmp_path / "frame.html"
    frame.write_text(FRAME.replace("PAGE", report.as_uri()))
    seen = browser.look(frame, tmp_path / "profile")
    assert seen.console == []
    assert seen.found["figures"] > 3
    assert seen.found["words"] > 1000
    said.append(f"{suite}, {user}: {took_s:.0f} s to a report, {60 * MINUTES} s of them measured")
    assert took_s < LIMIT_S
