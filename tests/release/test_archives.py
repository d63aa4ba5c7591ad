"""The tarball on a clean root, and the images as any runtime unpacks them."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from planewise.testbed.vfs.alloc_client import Client
from tests.roots import root

from .conftest import SUITES, artifact

NSPAWN = shutil.which("systemd-nspawn")
EMULATOR = shutil.which("qemu-aarch64-static")

SCRIPT = """
tar -xzf /dist/FILE --strip-components=1 -C /usr/local
planewised --version
pw-probe --version
ls /usr/local/lib/systemd/system/planewised.service /usr/local/share/doc/planewise/LICENSE
"""


@pytest.mark.skipif(NSPAWN is None, reason="no systemd-nspawn: apt-get install systemd-container")
@pytest.mark.parametrize("suite", SUITES)
def test_the_programs_of_the_tarball_run_on_a_clean_root(suite: str, artifacts: Path) -> None:
    file = artifact(artifacts, "planewise-static-*-x86_64.tar.gz")
    done = subprocess.run(
        [
            *(str(NSPAWN), "-q", "--register=no", "--keep-unit", "--volatile=overlay"),
            *("--private-network", f"--directory={root(suite, 'python3-venv')}"),
            *(f"--bind-ro={artifacts}:/dist", "sh", "-ec", SCRIPT.replace("FILE", file.name)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "planewised " in done.stdout


@pytest.mark.skipif(EMULATOR is None, reason="no qemu-aarch64-static: install qemu-user-static")
def test_the_programs_for_arm64_run_emulated_and_the_package_has_the_same_files(
    artifacts: Path, tmp_path: Path
) -> None:
    if not list(artifacts.glob("*aarch64*")):
        pytest.skip("`make release` left arm64 out: no cross compiler")
    with tarfile.open(artifact(artifacts, "planewise-static-*-aarch64.tar.gz")) as archive:
        archive.extractall(tmp_path, filter="data")
    (programs,) = tmp_path.glob("*/bin")
    version = [str(EMULATOR), programs / "pw-probe", "--version"]
    assert subprocess.run(version, capture_output=True, text=True, check=True).stdout
    (tmp_path / "try.toml").write_text(f"""
socket = "{tmp_path}/socket"
state_directory = "{tmp_path}/state"
[containers]
docker = ""
""")
    daemon = subprocess.Popen(
        [str(EMULATOR), programs / "planewised", "daemon", "--dry-run", "--config",
         tmp_path / "try.toml"]
    )  # fmt: skip
    try:
        for _ in range(300):
            if daemon.poll() is not None or (tmp_path / "socket").exists():
                break
            time.sleep(0.1)
        assert Client(tmp_path / "socket").status().guests == []
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0

    listed = {}
    for architecture in ("amd64", "arm64"):
        package = artifact(artifacts, f"planewised_*_{architecture}.deb")
        for field, value in (("Architecture", architecture), ("Package", "planewised")):
            asked = subprocess.run(["dpkg-deb", "-f", package, field], capture_output=True)
            assert asked.stdout.decode().strip() == value
        told = subprocess.run(["dpkg-deb", "-c", package], capture_output=True, check=True)
        listed[architecture] = {line.split()[5] for line in told.stdout.decode().splitlines()}
    assert listed["amd64"] == listed["arm64"]


@pytest.mark.parametrize("program", ["planewised", "pw-probe"])
def test_an_image_is_whole_and_holds_one_program_that_runs(
    program: str, artifacts: Path, tmp_path: Path
) -> None:
    with tarfile.open(artifact(artifacts, f"{program}-*-amd64.oci.tar")) as archive:
        archive.extractall(tmp_path / "image", filter="data")
    image = tmp_path / "image"

    def blob(described: dict[str, str]) -> Path:
        kind, _, digest = described["digest"].partition(":")
        file = image / "blobs" / kind / digest
        told = subprocess.run(["sha256sum", file], capture_output=True, text=True, check=True)
        assert told.stdout.split()[0] == digest
        return file

    (entry,) = json.loads((image / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(entry).read_text())
    config = json.loads(blob(manifest["config"]).read_text())
    (layer,) = manifest["layers"]
    with tarfile.open(blob(layer)) as archive:
        archive.extractall(tmp_path / "root", filter="data")
    programs = [path for path in (tmp_path / "root").rglob("*") if path.stat().st_mode & 0o111]
    assert [path.name for path in programs if path.is_file()] == [program]
    assert config["config"]["Entrypoint"] == [f"/{program}"]
    done = subprocess.run(
        ["unshare", "--root", tmp_path / "root", f"/{program}", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(program)


def test_no_artifact_names_the_folder_in_which_it_was_built(artifacts: Path) -> None:
    packed = [file for file in artifacts.iterdir() if file.suffix in {".whl", ".gz"}]
    assert len(packed) >= 3
    for file in packed:
        assert not [name for name, data in members(file) if b"planewise-release-" in data], file


def members(file: Path) -> Iterator[tuple[str, bytes]]:
    """What a wheel or a tarball holds."""
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            for name in wheel.namelist():
                yield name, wheel.read(name)
        return
    with tarfile.open(file) as archive:
        for entry in archive:
            if (stream := archive.extractfile(entry)) is not None:
                yield entry.name, stream.read()
