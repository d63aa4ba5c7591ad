"""Parts of an initramfs that every machine needs: busybox, and kernel modules in load order.

Also the whole initramfs of the guest that tries an accelerator. Reads files; starts nothing.
"""

from __future__ import annotations

import gzip
import lzma
import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from planewise.boot import cpio
from planewise.boot.kernel import load_order, module_name
from planewise.boot.model import Kernel
from planewise.errors import PlanewiseError, UnsupportedError

ACCELERATED = "pw-boot: it runs"
"""What the guest that tries an accelerator prints on its console."""

_TRIAL = f"""\
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox sha256sum /bin/busybox >/dev/null && echo "{ACCELERATED}"
/bin/busybox poweroff -f
"""


def busybox_entries(busybox: Path) -> list[cpio.Entry]:
    """busybox, and the directory that devtmpfs is mounted on."""
    return [
        cpio.directory("bin"),
        cpio.directory("dev"),
        cpio.file("bin/busybox", busybox.read_bytes(), 0o755),
    ]


def module_entries(kernel: Kernel, wanted: Iterable[str]) -> list[cpio.Entry]:
    """The modules `wanted` with what they depend on, and `modules/order`, the order to load them.

    Modules that are built into the kernel are left out.

    Raises:
        PlanewiseError: a module cannot be read.
    """
    order = load_order(wanted, (kernel.modules / "modules.dep").read_text())
    names = [f"{module_name(path)}.ko" for path in order]
    return [
        cpio.directory("modules"),
        cpio.file("modules/order", "".join(f"{name}\n" for name in names).encode()),
        *(
            cpio.file(f"modules/{name}", _decompressed(kernel.modules / path))
            for name, path in zip(names, order, strict=True)
        ),
    ]


_PLUG_INS = {
    "dpdk-testpmd": tuple(
        f"usr/lib/*/dpdk/pmds-*/librte_{name}.so"
        for name in ("mempool_ring", "net_virtio", "net_e1000", "net_iavf")
    ),
    "stdbuf": ("usr/libexec/coreutils/libstdbuf.so",),
}
"""Libraries that a program loads by their path, of which ldd(1) does not know."""


def program_entries(programs: Iterable[str]) -> list[cpio.Entry]:
    """Programs of this machine in /bin, with their loader and libraries where the loader looks.

    Raises:
        UnsupportedError: there is no such program here, or its libraries cannot be listed.
    """
    files: dict[str, Path] = {}
    for name in programs:
        path = shutil.which(name)
        if path is None:
            raise UnsupportedError(
                f"there is no {name} on this machine, and virtual machines are given it from here",
                remedy=f"install {name}",
            )
        files[f"bin/{name}"] = Path(path)
        plug_ins = [str(one) for one in _plug_ins(name)]
        for library in (
            *plug_ins,
            *(one for file in (path, *plug_ins) for one in _libraries(file)),
        ):
            files[library.lstrip("/")] = Path(library)
    parents = {str(parent) for file in files for parent in Path(file).parents} - {".", "bin"}
    return [
        *(cpio.directory(parent) for parent in sorted(parents)),
        *(cpio.file(name, path.read_bytes(), 0o755) for name, path in sorted(files.items())),
    ]


def _plug_ins(program: str, root: Path = Path("/")) -> list[Path]:
    """Libraries that a program loads by their path.

    Raises:
        UnsupportedError: one is not there.
    """
    found = []
    for pattern in _PLUG_INS.get(program, ()):
        there = sorted(root.glob(pattern))
        if not there:
            raise UnsupportedError(
                f"{program} has no /{pattern} on this machine, and virtual machines are given it "
                "from here",
                remedy=f"reinstall {program}",
            )
        found.append(there[-1])
    return found


def _libraries(program: str) -> list[str]:
    """Paths of a program's loader and libraries, as ldd(1) lists them; none of a static one.

    Raises:
        UnsupportedError: there is no ldd, or a library is missing.
    """
    try:
        said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnsupportedError(
            f"the libraries of {program} cannot be listed: {error.strerror}", remedy="install ldd"
        ) from error
    if "not found" in said.stdout:
        raise UnsupportedError(f"{program} lacks a library on this machine", remedy="reinstall it")
    return re.findall(r"(?:^\s*|=> )(/\S+)", said.stdout, re.MULTILINE)


def trial(busybox: Path) -> bytes:
    """The whole initramfs of the guest that tries an accelerator: prints one line and ends."""
    return cpio.archive([*busybox_entries(busybox), cpio.file("init", _TRIAL.encode(), 0o755)])


def _decompressed(module: Path) -> bytes:
    """A module's content: busybox loads no compressed ones.

    Raises:
        PlanewiseError: it cannot be read.
        UnsupportedError: it is compressed with zstd, and there is no zstd.
    """
    try:
        content = module.read_bytes()
        if module.suffix == ".xz":
            return lzma.decompress(content)
        if module.suffix == ".gz":
            return gzip.decompress(content)
        if module.suffix == ".zst":
            if shutil.which("zstd") is None:
                raise UnsupportedError(
                    "there is no program `zstd` on this machine", remedy="install zstd"
                )
            done = subprocess.run(["zstd", "-dcq"], input=content, capture_output=True, check=True)
            return done.stdout
    except (OSError, lzma.LZMAError, EOFError, subprocess.CalledProcessError) as error:
        raise PlanewiseError(
            f"the kernel module {module} cannot be read: {error}",
            remedy="remove the directory linux-… of the lab's cache, so that it is fetched again",
        ) from error
    return content
