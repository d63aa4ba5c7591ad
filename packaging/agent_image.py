"""Builds the image of the Kubernetes node agent and controller, as the other images are built.

    python packaging/agent_image.py [OUT [PROGRAM]]

Writes OUT/planewised-kubernetes-VERSION-ARCHITECTURE.oci.tar (OUT: dist). `ctr --namespace k8s.io
images import FILE` gives it to a node as planewise/planewised-kubernetes:VERSION, which the chart
names; `skopeo copy oci-archive:FILE docker://…` to a registry. It has one static program (PROGRAM,
or what is built here) and no shell.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import tomllib
from pathlib import Path

from artifacts import ARCHITECTURES, DAEMON, ROOT, oci_archive

PROGRAM = "planewised-kubernetes"
CRATE = ROOT / "crates" / "kube"


def main() -> None:
    out = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _output("git", "log", "-1", "--format=%ct")
    version = tomllib.loads((CRATE / "Cargo.toml").read_text())["package"]["version"]
    machine = platform.machine()
    program = (Path(sys.argv[2]) if len(sys.argv) > 2 else built(machine)).read_bytes()
    made = oci_archive(
        PROGRAM,
        version,
        ARCHITECTURES[machine],
        int(epoch),
        {
            PROGRAM: (program, 0o755),
            "usr/share/doc/planewise/LICENSE": ((ROOT / "LICENSE").read_bytes(), 0o644),
        },
        {"Entrypoint": [f"/{PROGRAM}"], "Cmd": DAEMON},
    )
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{PROGRAM}-{version}-{ARCHITECTURES[machine]}.oci.tar"
    file.write_bytes(made)
    print(file)


def built(machine: str) -> Path:
    """The static program, built for this machine."""
    target = f"{machine}-unknown-linux-gnu"
    home = os.environ.get("CARGO_HOME", Path.home() / ".cargo")
    flags = f"--remap-path-prefix={ROOT}=/planewise --remap-path-prefix={home}=/cargo"
    settings = {"RUSTFLAGS": flags, "CARGO_BUILD_TARGET": target, "CARGO_INCREMENTAL": "0"}
    words = [ROOT / "scripts" / "static", *("cargo", "build", "-q", "--release", "--locked")]
    if features := os.environ.get("FEATURES"):
        words += ["--features", features]
    subprocess.run(words, cwd=CRATE, env=os.environ | settings, check=True)
    return Path(os.environ.get("CARGO_TARGET_DIR", CRATE / "target")) / target / "release" / PROGRAM


def _output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
