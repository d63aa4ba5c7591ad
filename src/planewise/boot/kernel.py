"""Finds a kernel for a lab's hosts: the machine's, else a package's."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from debian.debian_support import Version

from planewise.boot import packages
from planewise.boot.model import Kernel
from planewise.boot.packages import version_order
from planewise.errors import PlanewiseError, UnsupportedError

BOOT_MODULES = ("virtio_pci", "virtio_net", "9pnet_virtio", "9p", "overlay", "igb")
"""Loaded before the hosts have a root."""

HOST_MODULES = (*BOOT_MODULES, "igbvf", "vfio-pci", "vfio_iommu_type1")
"""Modules that a lab needs."""

_NEEDS_MIB = 700

_META_PACKAGES = {
    "linux-image-amd64": r"linux-image-\d.*",
    "linux-image-generic": r"linux-(image|modules|modules-extra)-\d.*",
}
"""Debian's and Ubuntu's package of the current kernel -> pattern of dependencies with its files."""


def find(cache: Path) -> Kernel:
    """The machine's own kernel where it has the modules, else the unpacked package.

    Raises:
        UnsupportedError: there is neither; the error says why the machine's kernel is refused.
        StorageError: no room to unpack the package.
    """
    kernel, refusals = _machine_kernel()
    return kernel if kernel is not None else _from_package(cache, refusals)


def needs_download(cache: Path) -> bool:
    """Whether `find` has to fetch a package."""
    return _machine_kernel()[0] is None and not _unpacked(cache)


def expected(cache: Path) -> Kernel:
    """The kernel that `find` would return; nothing is fetched.

    Raises:
        UnsupportedError: `find` would find none.
    """
    kernel, refusals = _machine_kernel()
    if kernel is not None or _unpacked(cache):
        return kernel or _in_tree(_unpacked(cache)[0])
    for name in _kernel_packages():
        if name.startswith("linux-image-"):
            version, tree = name.removeprefix("linux-image-"), cache / name
            modules = tree / "usr/lib/modules" / version
            return Kernel(version, tree / "boot" / f"vmlinuz-{version}", modules, "package")
    return _from_package(cache, refusals)  # which says why there is none


def _machine_kernel() -> tuple[Kernel | None, list[str]]:
    refusals = []
    for version in _installed(platform.release()):
        kernel = Kernel(
            version, Path("/boot") / f"vmlinuz-{version}", Path("/lib/modules") / version, "machine"
        )
        refusal = unusable_reason(kernel)
        if refusal is None:
            return kernel, []
        refusals.append(f"{version}: {refusal}")
    return None, refusals


def _unpacked(cache: Path) -> list[Path]:
    trees = [tree for tree in cache.glob("linux-*") if tree.is_dir()]
    return sorted(trees, key=lambda tree: _release_order(tree.name), reverse=True)


def _release_order(name: str) -> Version:
    """A sort key for kernel releases and names of kernel packages; `-rc1` before the release.

    Source: Debian policy 5.6.12, by which `~` sorts before the end of a version.
    """
    return version_order(name.removeprefix("linux-image-").replace("-rc", "~rc"))


def unusable_reason(kernel: Kernel) -> str | None:
    """Why a lab cannot use this kernel, or None when it can."""
    if not os.access(kernel.image, os.R_OK):
        return f"{kernel.image} is not there or not readable"
    try:
        lacking = missing(
            HOST_MODULES,
            (kernel.modules / "modules.dep").read_text(),
            (kernel.modules / "modules.builtin").read_text(),
        )
    except OSError as error:
        return f"{error.filename} cannot be read"
    return f"it has no module {', '.join(lacking)}" if lacking else None


def module_name(path: str) -> str:
    """`kernel/net/9p/9pnet.ko.xz` -> `9pnet`; hyphens become underscores. Pure."""
    return path.rsplit("/", 1)[-1].split(".ko")[0].replace("-", "_")


def missing(names: Iterable[str], dep: str, builtin: str) -> tuple[str, ...]:
    """The modules that are neither in modules.dep nor in modules.builtin. Pure."""
    available = {module_name(line.split(":")[0]) for line in dep.splitlines()}
    available |= {module_name(line) for line in builtin.splitlines()}
    return tuple(name for name in names if name.replace("-", "_") not in available)


def load_order(names: Iterable[str], dep: str) -> tuple[str, ...]:
    """Module files to load for `names`, each after its dependencies. Pure.

    Built-in modules are left out.
    """
    needs: dict[str, list[str]] = {}
    by_name: dict[str, str] = {}
    for line in dep.splitlines():
        path, _, dependencies = line.partition(":")
        needs[path] = dependencies.split()
        by_name[module_name(path)] = path
    order: dict[str, None] = {}

    def add(path: str) -> None:
        # modules.dep lists what a module needs outermost first, and completely.
        for needed in reversed(needs.get(path, [])):
            order.setdefault(needed)
        order.setdefault(path)

    for name in names:
        if file := by_name.get(name.replace("-", "_")):
            add(file)
    return tuple(order)


def _installed(running: str) -> list[str]:
    modules = Path("/lib/modules")
    versions = [entry.name for entry in modules.iterdir()] if modules.is_dir() else []
    newest_first = sorted(versions, key=_release_order, reverse=True)
    # Cloud flavours lack igb; `unusable_reason` finds that by their modules.
    return sorted(newest_first, key=lambda name: name != running)


def _from_package(cache: Path, refusals: list[str]) -> Kernel:
    reason = (
        f"this machine's own kernel cannot be used ({'; '.join(refusals)})"
        if refusals
        else "this machine has no kernel of its own in /boot and /lib/modules"
    )
    # An unpacked kernel is used on, also when apt knows a newer one.
    for unpacked in _unpacked(cache):
        return _in_tree(unpacked)
    names = _kernel_packages()
    if not names:
        raise UnsupportedError(
            f"no kernel for the lab: {reason}, and apt offers no kernel package",
            remedy=packages.SETUP_REMEDY,
        )
    image = next(name for name in names if name.startswith("linux-image-"))
    try:
        tree = packages.fetch(image, names, cache, needs_mib=_NEEDS_MIB, finish=_index_modules)
    except UnsupportedError as error:
        raise UnsupportedError(
            f"no kernel for the lab: {reason}; {error.what}", remedy=error.remedy
        ) from error
    return _in_tree(tree)


def _kernel_packages() -> tuple[str, ...]:
    for meta, pattern in _META_PACKAGES.items():
        record = packages.show(meta)
        if record is None:
            continue
        names = packages.dependencies(record, pattern)
        more: tuple[str, ...] = ()
        if meta == "linux-image-generic":
            for name in names:
                record = packages.show(name) or ""
                more += packages.dependencies(record, r"linux-modules-\d.*")
        if names:
            return tuple(dict.fromkeys((*names, *more)))
    return ()


def _in_tree(tree: Path) -> Kernel:
    versions = [entry.name for entry in (tree / "usr/lib/modules").iterdir()]
    version = versions[0]
    kernel = Kernel(
        version, tree / "boot" / f"vmlinuz-{version}", tree / "usr/lib/modules" / version, "package"
    )
    refusal = unusable_reason(kernel)
    if refusal is not None:
        raise UnsupportedError(
            f"the kernel package in {tree} cannot be used: {refusal}",
            remedy=f"remove {tree}, so that it is fetched again",
        )
    return kernel


def _index_modules(tree: Path) -> None:
    """Writes modules.dep by depmod, which an installation of the package would run."""
    depmod = shutil.which("depmod", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if depmod is None:
        raise UnsupportedError(
            "there is no program `depmod` on this machine", remedy="install kmod"
        )
    # depmod looks for lib/modules below the base directory.
    (tree / "lib").symlink_to("usr/lib")
    try:
        for version in (tree / "usr/lib/modules").iterdir():
            process = subprocess.run(
                [depmod, "-b", str(tree), version.name],
                capture_output=True,
                text=True,
                check=False,
            )
            if process.returncode != 0:
                raise PlanewiseError(f"depmod failed on {version}: {process.stderr.strip()}")
    finally:
        (tree / "lib").unlink()
