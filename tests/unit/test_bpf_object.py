"""The committed BPF objects are what their C sources compile to."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OBJECTS = {
    "trial": ROOT / "crates/probe/bpf",
    "router": ROOT / "src/planewise/testbed/bpf",
    "pass": ROOT / "src/planewise/testbed/bpf",
}
MADE_BY = "14.0.6"
"""The clang that made the committed object; another one may choose other instructions."""


def clang_version() -> str:
    if shutil.which("clang") is None or shutil.which("llvm-strip") is None:
        pytest.skip("clang and llvm-strip are not installed (scripts/setup test)")
    if not Path("/usr/include/bpf/bpf_helpers.h").exists():
        pytest.skip("libbpf's headers are not installed (scripts/setup test)")
    told = subprocess.run(["clang", "--version"], capture_output=True, text=True, check=True)
    version = re.search(r"clang version ([\d.]+)", told.stdout)
    return version[1] if version else "unknown"


@pytest.mark.parametrize("name", OBJECTS)
def test_the_committed_object_is_what_the_source_compiles_to(name: str, tmp_path: Path) -> None:
    version = clang_version()
    folder = OBJECTS[name]
    for source in (*folder.glob("*.bpf.[ch]"), folder / "Makefile"):
        shutil.copy(source, tmp_path)
    made = subprocess.run(
        ["make", "-C", str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    if version != MADE_BY:
        pytest.skip(f"the object was made by clang {MADE_BY}; clang {version} builds the source")
    assert (tmp_path / f"{name}.bpf.o").read_bytes() == (folder / f"{name}.bpf.o").read_bytes()
