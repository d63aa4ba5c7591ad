"""Writes the licences of everything that is linked into the static programs, as one text.

    python packaging/licences.py OUT.txt

Crates are those that cargo links into the two programs on any of TARGETS, without procedural macros
and build scripts. The C library, GCC's unwinder and Rust's standard library are linked as well: no
tool that reads Cargo.lock knows of them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE")
TARGETS = ("x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu")
DEBIAN_LICENCES = Path("/usr/share/common-licenses")


@dataclass(frozen=True)
class Linked:
    """Something that is in the programs."""

    name: str
    version: str
    licence: str
    """SPDX expression."""
    texts: tuple[str, ...]


def main() -> None:
    out = Path(sys.argv[1])
    parts = linked()
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(written(parts))


def run(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE).stdout


def linked() -> list[Linked]:
    """Everything that is linked, each with its licence and a text of it.

    Some crates ship no text, nor a notice of whose they are: they get the licence's own words.
    """
    parts = [*crates(), *toolchain()]
    permission = "Permission is hereby granted"
    texts = {
        "Apache-2.0": (ROOT / "LICENSE").read_text(),
        "MIT": next(text for p in parts for text in p.texts if text.startswith(permission)),
    }
    for index, part in enumerate(parts):
        standard = [text for name, text in texts.items() if name in part.licence]
        parts[index] = replace(part, texts=part.texts or tuple(standard[:1]))
    unclear = [part.name for part in parts if not part.licence or not part.texts]
    assert not unclear, f"no licence or no text of it is known of {', '.join(unclear)}"
    return parts


def crates() -> list[Linked]:
    """The crates that are linked, by name and version."""
    tree = ("cargo", "tree", "--locked", "-p", "planewise-wheel", "-e", "normal,no-proc-macro")
    tree = (*tree, "--prefix", "none", "--no-dedupe", "--format", "{p}")
    named = {line for name in TARGETS for line in run(*tree, "--target", name).splitlines()}
    wanted = {tuple(line.split()[:2]) for line in named}
    packages = json.loads(run("cargo", "metadata", "--locked", "--format-version", "1"))["packages"]
    found = [
        Linked(
            package["name"],
            package["version"],
            package["license"] or "",
            texts_of(Path(package["manifest_path"]).parent),
        )
        for package in packages
        if package["source"] is not None and (package["name"], f"v{package['version']}") in wanted
    ]
    assert len(found) > 50, "cargo tree has another form than expected"
    return sorted(found, key=lambda crate: (crate.name, crate.version))


def texts_of(folder: Path) -> tuple[str, ...]:
    """The licence texts that a crate ships."""
    files = (path for path in folder.iterdir() if path.name.upper().startswith(NAMES))
    return tuple(path.read_text(errors="replace") for path in sorted(files) if path.is_file())


def toolchain() -> list[Linked]:
    """What the compiler and the linker add."""
    rust = run("rustc", "--version").split()[1]
    sysroot = Path(run("rustc", "--print", "sysroot").strip())
    documents = [path for path in sysroot.glob("share/doc/**/LICENSE-*") if path.is_file()]
    rust_texts = tuple(dict.fromkeys(path.read_text() for path in sorted(documents)))
    glibc = run("ldd", "--version").splitlines()[0].split()[-1]
    gcc = run("cc", "-dumpfullversion").strip()
    return [
        Linked("Rust standard library", rust, "MIT OR Apache-2.0", rust_texts),
        Linked("GNU C Library", glibc, "LGPL-2.1-or-later", debian_text("LGPL-2.1")),
        Linked("libgcc_eh", gcc, "GPL-3.0-or-later WITH GCC-exception-3.1", debian_text("GPL-3")),
    ]


def debian_text(name: str) -> tuple[str, ...]:
    file = DEBIAN_LICENCES / name
    return (file.read_text(),) if file.exists() else ()


def written(parts: list[Linked]) -> str:
    """A list of what is linked, then each text once with those whose it is."""
    lines = [
        "What is linked into planewised and pw-probe besides Planewise itself (Apache-2.0).",
        "The sources of Planewise and the versions below are what the programs are made of;",
        "`make release` links them anew, as the GNU C Library's licence wants it possible.",
        "",
    ]
    lines += [f"{part.name} {part.version}: {part.licence}" for part in parts]
    owners: dict[str, list[str]] = {}
    for part in parts:
        for text in part.texts:
            owners.setdefault(text.strip(), []).append(f"{part.name} {part.version}")
    for text, names in owners.items():
        lines += ["", "=" * 80, ", ".join(names), "-" * 80, text]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
