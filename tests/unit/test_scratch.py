"""Scratch directories: held while their program lives, found once it was killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from planewise.testbed.hosts import scratch

HOLD = (
    "from planewise.testbed.hosts.scratch import scratch\n"
    "import time\n"
    "with scratch() as path:\n"
    "    (path / 'x').write_text('x'); print(path, flush=True); time.sleep(60)\n"
)


def test_a_scratch_directory_is_left_alone_while_in_use_and_removed_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE, text=True) as held:
        assert held.stdout is not None
        path = Path(held.stdout.readline().strip())
        assert path.parent == tmp_path
        assert scratch.leftovers(remove=True) == ()
        held.send_signal(signal.SIGKILL)
        held.wait()
    assert (path / "x").exists()
    assert scratch.leftovers() == (path,)
    assert scratch.leftovers(remove=True) == (path,)
    assert list(tmp_path.iterdir()) == []


def test_a_scratch_directory_goes_with_its_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch.scratch() as path:
        assert list(tmp_path.iterdir()) == [path]
    assert list(tmp_path.iterdir()) == []
