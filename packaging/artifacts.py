"""Puts the built programs into what people install: .deb, tarball and OCI images, with SHA256SUMS.

    python packaging/artifacts.py --share DIR --documents DIR --out DIST WHEEL…

The programs are taken out of the wheels, one an architecture, so that all artifacts have the same.
Every archive is a function of its content and of SOURCE_DATE_EPOCH: sorted names, one time stamp,
no owner.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAMS = ("planewised", "pw-probe")
DAEMON = ["daemon", "--config", "/etc/planewise/planewised.toml"]
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""The kernel's names of architectures, and those of Debian and OCI."""

MAINTAINER = "The Planewise authors <planewise@planewise.invalid>"
SUMMARY = "gives a host's scarce SR-IOV functions to the guests that gain most"
DESCRIPTION = (
    "planewised moves virtual functions of SR-IOV NICs, live, between the containers and virtual",
    "machines of a host, as their traffic changes. Every step is journalled, so that a crash at",
    "any moment leaves nothing behind. pw-probe measures latency, loss and throughput between",
    "two interfaces. Both are static programs.",
)


@dataclass(frozen=True)
class Release:
    """What is released: one version for one architecture."""

    version: str
    machine: str
    epoch: int
    programs: dict[str, bytes]
    share: Path
    """Manual pages and completions, laid out as /usr/share."""
    documents: Path
    """Licences and bills of materials."""

    @property
    def architecture(self) -> str:
        return ARCHITECTURES[self.machine]


def main() -> None:
    parser = argparse.ArgumentParser(description="Assemble what people install.")
    parser.add_argument("wheels", type=Path, nargs="+")
    parser.add_argument("--share", type=Path, required=True)
    parser.add_argument("--documents", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for wheel in given.wheels:
        release = read(wheel, given.share, given.documents)
        debian_package(release, given.out)
        tarball(release, given.out)
        for program in PROGRAMS:
            image(release, program, given.out)
    checksums(given.out)


def read(wheel: Path, share: Path, documents: Path) -> Release:
    """The programs of a wheel, and for which version and machine it is."""
    _, version, _, _, platforms = wheel.stem.split("-")
    machine = next(name for name in ARCHITECTURES if platforms.endswith(name))
    with zipfile.ZipFile(wheel) as archive:
        programs = {
            Path(name).name: archive.read(name)
            for name in archive.namelist()
            if ".data/scripts/" in name and Path(name).name in PROGRAMS
        }
    assert set(programs) == set(PROGRAMS), f"{wheel} holds {sorted(programs)}"
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    return Release(version, machine, epoch, programs, share, documents)


def checksums(out: Path) -> None:
    """SHA256SUMS over everything else in the folder, as `sha256sum --check` reads it."""
    files = sorted(path for path in out.iterdir() if path.name != "SHA256SUMS")
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (out / "SHA256SUMS").write_text("".join(lines))


# --- tar archives ---------------------------------------------------------------------------------


def tar(files: dict[str, tuple[bytes, int]], epoch: int) -> bytes:
    """A tar archive of name -> (content, mode), with the directories above them."""
    folders = {str(parent) for name in files for parent in Path(name).parents} - {"."}
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name in sorted(folders | files.keys()):
            member = tarfile.TarInfo(name)
            member.mtime = epoch
            if name in folders:
                member.type, member.mode = tarfile.DIRTYPE, 0o755
                archive.addfile(member)
            else:
                data, member.mode = files[name]
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))
    return content.getvalue()


def files_below(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file below a folder, sorted."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield str(path.relative_to(folder)), path.read_bytes()


def tarball(release: Release, out: Path) -> None:
    """`planewise-static-VERSION-MACHINE.tar.gz`: unpacked over /usr/local it is installed."""
    top = f"planewise-static-{release.version}-{release.machine}"
    files = {f"{top}/bin/{name}": (data, 0o755) for name, data in release.programs.items()}
    for name, data in files_below(release.share):
        if not Path(name).name.lstrip("_").startswith("planewise."):  # those of the wheel's command
            files[f"{top}/share/{name}"] = (data, 0o644)
    for name, data in documents(release):
        files[f"{top}/share/doc/planewise/{name}"] = (data, 0o644)
    configured = configuration().encode()
    files[f"{top}/share/doc/planewise/planewised.toml"] = (configured, 0o644)
    for name, data in system_files().items():
        files[f"{top}/lib/{name}"] = (data, 0o644)
    (out / f"{top}.tar.gz").write_bytes(gzip.compress(tar(files, release.epoch), mtime=0))


def system_files() -> dict[str, bytes]:
    """Path below a lib directory -> content: the unit, and what keeps network managers off VFs."""
    places = {
        "systemd/system/planewised.service": "planewised.service",
        "systemd/network/05-planewise-vf.network": "planewise-vf.network",
        "udev/rules.d/85-planewise-vf.rules": "planewise-vf.rules",
    }
    crate = ROOT / "crates" / "planewised"
    return {place: (crate / name).read_bytes() for place, name in places.items()}


def documents(release: Release) -> Iterator[tuple[str, bytes]]:
    """What a person who has the programs may want to read, and a lawyer."""
    yield "LICENSE", (ROOT / "LICENSE").read_bytes()
    yield "CHANGELOG.md", (ROOT / "CHANGELOG.md").read_bytes()
    yield from files_below(release.documents)


def configuration() -> str:
    """The example configuration, with the group that the package makes."""
    example = (ROOT / "crates" / "planewised" / "example.toml").read_text()
    line = '#: group = "planewise"\n'
    assert line in example, f"example.toml has no line {line!r}"
    return example.replace(line, line.removeprefix("#: "))


# --- Debian ---------------------------------------------------------------------------------------


def debian_package(release: Release, out: Path) -> None:
    """`planewised_VERSION_ARCHITECTURE.deb`, by dpkg-deb."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "root"
        root.mkdir(mode=0o755)
        for name, (data, mode) in debian_files(release).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            path.chmod(mode)
        control = root / "DEBIAN"
        control.mkdir()
        sums = [
            f"{hashlib.md5(data, usedforsecurity=False).hexdigest()}  {name}\n"
            for name, data in files_below(root)
            if not name.startswith("etc/")
        ]
        (control / "md5sums").write_text("".join(sums))
        (control / "conffiles").write_text("/etc/planewise/planewised.toml\n")
        (control / "control").write_text(control_file(release, root))
        for script in ("postinst", "prerm", "postrm"):
            shutil.copy(ROOT / "packaging" / "debian" / script, control / script)
            (control / script).chmod(0o755)
        for path in [root, *root.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
            os.utime(path, (release.epoch, release.epoch))
        file = out / f"planewised_{release.version}_{release.architecture}.deb"
        command = ["dpkg-deb", "--root-owner-group", "-Zxz", "--threads-max=1", "--build"]
        subprocess.run([*command, root, file], check=True, stdout=subprocess.DEVNULL)


def debian_files(release: Release) -> dict[str, tuple[bytes, int]]:
    """Name below / -> (content, mode)."""
    files = {f"usr/bin/{name}": (data, 0o755) for name, data in release.programs.items()}
    files["etc/planewise/planewised.toml"] = (configuration().encode(), 0o644)
    for name, data in system_files().items():
        files[f"usr/lib/{name}"] = (data.replace(b"/usr/local/bin/", b"/usr/bin/"), 0o644)
    for name, data in files_below(release.share):
        if Path(name).name.split(".")[0].split("-")[0].lstrip("_") == "planewise":
            continue  # of the wheel's command
        if name.startswith("man/"):
            name, data = f"{name}.gz", gzip.compress(data, mtime=0)
        name = name.replace("zsh/site-functions/", "zsh/vendor-completions/")
        files[f"usr/share/{name}"] = (data, 0o644)
    for folder in ("prometheus", "grafana"):
        for name, data in files_below(ROOT / "packaging" / folder):
            if name.endswith((".rules.yaml", ".json")):
                files[f"usr/share/planewise/{folder}/{name}"] = (data, 0o644)
    doc = "usr/share/doc/planewised"
    for name, data in documents(release):
        if name == "CHANGELOG.md":
            files[f"{doc}/changelog.gz"] = (gzip.compress(data, mtime=0), 0o644)
        elif name != "LICENSE":
            files[f"{doc}/{name}.gz"] = (gzip.compress(data, mtime=0), 0o644)
    files[f"{doc}/copyright"] = (copyright_file().encode(), 0o644)
    return files


def copyright_file() -> str:
    """Debian's machine-readable form; Apache-2.0 lies on every Debian system."""
    return """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: Planewise
Comment: The programs are linked statically: third-party-licenses.txt.gz has the licences of what is
 in them, planewised.cdx.json.gz the bill of materials.

Files: *
Copyright: The Planewise authors
License: Apache-2.0
 On Debian systems, the full text is in /usr/share/common-licenses/Apache-2.0.
"""


def control_file(release: Release, root: Path) -> str:
    """The package's description for dpkg."""
    size = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    description = "\n".join(f" {line}" for line in DESCRIPTION)
    return f"""\
Package: planewised
Version: {release.version}
Architecture: {release.architecture}
Maintainer: {MAINTAINER}
Section: net
Priority: optional
Depends: passwd
Suggests: docker.io, libvirt-daemon-system
Installed-Size: {size // 1024}
Description: {SUMMARY}
{description}
"""


# --- images ---------------------------------------------------------------------------------------


def image(release: Release, program: str, out: Path) -> None:
    """`PROGRAM-VERSION-ARCHITECTURE.oci.tar`: one program and nothing else, no shell."""
    files = {program: (release.programs[program], 0o755)}
    if program == "planewised":
        configured = configuration().replace('group = "planewise"', '#: group = "planewise"', 1)
        files["etc/planewise/planewised.toml"] = (configured.encode(), 0o644)
    for name, data in documents(release):
        files[f"usr/share/doc/planewise/{name}"] = (data, 0o644)
    config: dict[str, object] = {
        "Entrypoint": [f"/{program}"],
        "Cmd": DAEMON if program == "planewised" else ["--help"],
    }
    made = oci_archive(program, release.version, release.architecture, release.epoch, files, config)
    (out / f"{program}-{release.version}-{release.architecture}.oci.tar").write_bytes(made)


def oci_archive(
    program: str,
    version: str,
    architecture: str,
    epoch: int,
    files: dict[str, tuple[bytes, int]],
    config: dict[str, object],
) -> bytes:
    """An OCI image layout of one layer that is a Docker archive as well, of `planewise/PROGRAM`.

    Old `docker load` reads manifest.json; newer ones, containerd, podman and skopeo index.json.
    """
    layer = tar(files, epoch)
    described = image_config(program, version, architecture, epoch, config, layer)
    blobs: dict[str, bytes] = {}

    def blob(kind: str, data: bytes) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[f"blobs/sha256/{digest}"] = data
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": f"sha256:{digest}", "size": len(data)}

    head = blob("config.v1+json", json.dumps(described, sort_keys=True).encode())
    layers = [blob("layer.v1.tar", layer)]
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": head,
        "layers": layers,
    }
    name = f"planewise/{program}:{version}"
    index = blob("manifest.v1+json", json.dumps(manifest, sort_keys=True).encode()) | {
        "annotations": {
            "io.containerd.image.name": f"docker.io/{name}",
            "org.opencontainers.image.ref.name": version,
        },
        "platform": {"architecture": architecture, "os": "linux"},
    }
    path = {kind["digest"]: f"blobs/sha256/{str(kind['digest'])[7:]}" for kind in (head, *layers)}
    texts = {
        "oci-layout": {"imageLayoutVersion": "1.0.0"},
        "index.json": {"schemaVersion": 2, "manifests": [index]},
        "manifest.json": [
            {
                "Config": path[head["digest"]],
                "RepoTags": [name],
                "Layers": [path[layers[0]["digest"]]],
            }
        ],
    }
    members = {name: json.dumps(value, sort_keys=True).encode() for name, value in texts.items()}
    return tar({name: (data, 0o644) for name, data in (blobs | members).items()}, epoch)


def image_config(
    program: str,
    version: str,
    architecture: str,
    epoch: int,
    config: dict[str, object],
    layer: bytes,
) -> dict[str, object]:
    """What a container of the image starts as."""
    moment = datetime.fromtimestamp(epoch, UTC).isoformat().replace("+00:00", "Z")
    labels = {
        "org.opencontainers.image.title": program,
        "org.opencontainers.image.version": version,
        "org.opencontainers.image.licenses": "Apache-2.0",
    }
    return {
        "architecture": architecture,
        "os": "linux",
        "created": moment,
        "config": {**config, "Labels": labels},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
        "history": [{"created": moment, "created_by": "packaging/artifacts.py"}],
    }


if __name__ == "__main__":
    main()
