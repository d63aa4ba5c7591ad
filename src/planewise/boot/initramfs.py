"""Parts of an initramfs: busybox, programs, and kernel modules in load order.

Also the initramfs of the guest that tries an accelerator. Starts no machine.
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
"""Console output of the guest that tries an accelerator."""

_TRIAL = f"""\
#!/bin/busybox sh
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox sha256sum /bin/busybox >/dev/null && echo "{ACCELERATED}"
/bin/busybox poweroff -f
"""


def busybox_entries(busybox: Path) -> list[cpio.Entry]:
    """busybox, and the mount point of devtmpfs."""
    return [
        cpio.directory("bin"),
        cpio.directory("dev"),
        cpio.file("bin/busybox", busybox.read_bytes(), 0o755),
    ]


def module_entries(kernel: Kernel, modules: Iterable[str]) -> list[cpio.Entry]:
    """The `modules` with their dependencies, and `modules/order`, the order to load them.

    Modules that are built into the kernel are left out.

    Raises:
        PlanewiseError: a module cannot be read.
    """
    order = load_order(modules, (kernel.modules / "modules.dep").read_text())
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
"""Libraries that a program loads by their path, which ldd(1) does not list."""


def program_entries(programs: Iterable[str]) -> list[cpio.Entry]:
    """Programs of this machine in /bin, with their loader and libraries where the loader looks.

    Raises:
        UnsupportedError: a program is missing, or its libraries cannot be listed.
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
        plug_ins = [str(library) for library in _plug_ins(name)]
        for library in (
            *plug_ins,
            *(library for file in (path, *plug_ins) for library in _libraries(file)),
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
        UnsupportedError: a library is missing.
    """
    libraries = []
    for pattern in _PLUG_INS.get(program, ()):
        matches = sorted(root.glob(pattern))
        if not matches:
            raise UnsupportedError(
                f"{program} has no /{pattern} on this machine, and virtual machines are given it "
                "from here",
                remedy=f"reinstall {program}",
            )
        libraries.append(matches[-1])
    return libraries


def _libraries(program: str) -> list[str]:
    """Paths of a program's loader and libraries from ldd(1); empty for a static program.

    Raises:
        UnsupportedError: there is no ldd, or a library is missing.
    """
    try:
        listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    except OSError as error:
        raise UnsupportedError(
            f"the libraries of {program} cannot be listed: {error.strerror}", remedy="install ldd"
        ) from error
    if "not found" in listing.stdout:
        raise UnsupportedError(f"{program} lacks a library on this machine", remedy="reinstall it")
    return re.findall(r"(?:^\s*|=> )(/\S+)", listing.stdout, re.MULTILINE)


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
            zstd = subprocess.run(["zstd", "-dcq"], input=content, capture_output=True, check=True)
            return zstd.stdout
    except (OSError, lzma.LZMAError, EOFError, subprocess.CalledProcessError) as error:
        raise PlanewiseError(
            f"the kernel module {module} cannot be read: {error}",
            remedy="remove the directory linux-… of the lab's cache, so that it is fetched again",
        ) from error
    return content
