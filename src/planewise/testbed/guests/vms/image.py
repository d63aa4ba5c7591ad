"""The tiny guest: a distribution's kernel, and an initramfs with pw-probe. Starts nothing.

Its only download is the kernel package that the lab uses, too. All files of a guest are in memory;
it gets its NIC and its addresses once it runs.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import os
import struct
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from planewise.boot import cpio, kernel, packages, tools
from planewise.boot.initramfs import busybox_entries, module_entries, program_entries
from planewise.boot.model import Kernel
from planewise.errors import PlanewiseError, UnsupportedError

AGENT_PORT = "org.qemu.guest_agent.0"
"""The virtio-serial port of the agent: the name that libvirt's agent commands use."""

PROBE = "/bin/pw-probe"
"""Where pw-probe is inside a guest."""

FAILED = "pw-guest: failed: "
"""Prefix of the console's line with the reason why a guest failed."""

PVH_MIB, BZIMAGE_MIB = 80, 112
"""Memory that a guest needs.

Debian's kernel ends 66 MiB above zero when it is loaded as it is, and unpacks itself within 74.
"""

_PROGRAM_MIB = {
    "iperf3": 24,
    "redis-server": 64,
    "stress-ng": 112,
    "dpdk-testpmd": 96,
    "ip": 16,
    "nice": 0,
    "stdbuf": 0,
}
"""Additional memory for a program with its libraries, which are in memory twice while the guest
boots; for testpmd with the huge pages of its buffers."""


def programs_mib(programs: Iterable[str]) -> int:
    """Additional memory of a guest for these programs [MiB]. Pure."""
    return sum(_PROGRAM_MIB[program] for program in programs)


MODULES = ("virtio_pci", "virtio_console", "virtio_net", "e1000", "igbvf")
"""Modules for the guests' devices, where a kernel has them not built in."""
_MODULES_OF = {"dpdk-testpmd": ("uio_pci_generic",)}
"""Additional modules for a program of a guest."""

# nr_cpus is added by the domain. percpu_alloc, nohugevmalloc and kfence save 6 MiB of the guest's
# memory. cryptomgr and initcall_blacklist (random numbers from timing, for ciphers that nobody
# uses here) take two seconds off an emulated guest's boot; the rest is as for the lab's hosts.
COMMAND_LINE = (
    "console=ttyS0 quiet panic=-1 net.ifnames=0 random.trust_cpu=on no_timer_check tsc=reliable "
    "rcupdate.rcu_expedited=1 rcupdate.rcu_normal_after_boot=1 mitigations=off audit=0 selinux=0 "
    "apparmor=0 kfence.sample_interval=0 percpu_alloc=page nohugevmalloc cryptomgr.notests "
    "initcall_blacklist=jent_mod_init,crypto_kdf108_init,add_pcspkr"
)

_KEPT_S = 86_400.0

_INIT = """\
#!/bin/busybox sh
# First process of a guest: loads drivers, then serves the agent.
b=/bin/busybox
fail() { echo "FAILED_MARK$*"; $b poweroff -f; }
$b mount -t proc proc /proc && $b mount -t sysfs sys /sys && $b mount -t devtmpfs dev /dev ||
    fail "proc, sysfs and devtmpfs could not be mounted"
$b --install -s /bin
mkdir -p /dev/pts && mount -t devpts devpts /dev/pts
while read -r module; do
    insmod "/modules/$module" || fail "the kernel module $module could not be loaded"
    rm "/modules/$module"
done </modules/order
ip link set lo up
while :; do pw-probe agent --port AGENT_PORT; sleep 0.1; done
"""


@dataclass(frozen=True)
class GuestImage:
    """Kernel and initramfs of a guest."""

    kernel: Path
    initrd: Path
    version: str
    """Of the kernel, as `uname -r` says it."""
    memory_mib: int
    """Memory that it needs."""


def prepare(probe: Path, programs: Sequence[str] = ()) -> GuestImage:
    """The guest with this pw-probe in it; built where the cache has none.

    It has `programs` of this machine with their libraries.

    Raises:
        UnsupportedError: there is no kernel, busybox or program, or pw-probe is not static, or the
            kernel lacks a module for a program.
        StorageError: no room in the cache.
    """
    cache = packages.cache_directory()
    guest_kernel = kernel.find(cache)
    busybox = tools.find(cache).busybox
    program = probe.read_bytes()
    if not tools.is_static(program):
        raise UnsupportedError(
            f"{probe} is linked to libraries that a guest does not have",
            remedy="build it with `make setup`, which links it statically",
        )
    image = _uncompressed(guest_kernel, cache)
    entries = program_entries(programs)
    modules = _modules(guest_kernel, programs)
    initrd = cache / _name(guest_kernel, program, busybox, entries, modules)
    if initrd.exists():
        with suppress(OSError):  # it may be another user's
            os.utime(initrd)
    else:
        remove_unused(cache, "guest-*.initrd")
        archive = initramfs(guest_kernel, busybox, program, entries, modules)
        _write(initrd, gzip.compress(archive, 6, mtime=0))
    more_mib = programs_mib(programs)
    if image is None:
        return GuestImage(guest_kernel.image, initrd, guest_kernel.version, BZIMAGE_MIB + more_mib)
    return GuestImage(image, initrd, guest_kernel.version, PVH_MIB + more_mib)


def _modules(guest_kernel: Kernel, programs: Sequence[str]) -> tuple[str, ...]:
    """Kernel modules of guests with these programs.

    Raises:
        UnsupportedError: the kernel lacks a module for a program.
    """
    files = ("modules.dep", "modules.builtin")
    modules: tuple[str, ...] = MODULES
    for program, needed in _MODULES_OF.items():
        if program not in programs:
            continue
        texts = [(guest_kernel.modules / file).read_text() for file in files]
        if lacking := kernel.missing(needed, *texts):
            raise UnsupportedError(
                f"the guests' kernel {guest_kernel.version} has no module {', '.join(lacking)}, "
                f"which {program} needs in a virtual machine",
                remedy="install Debian's linux-image-amd64, or functions whose kernel routes",
            )
        modules += needed
    return modules


def remove_unused(cache: Path, pattern: str) -> None:
    """Removes files that were not used of late; another planewise may still use recent ones."""
    for path in cache.glob(pattern):
        with suppress(OSError):
            if time.time() - path.stat().st_mtime > _KEPT_S:
                path.unlink()


def initramfs(
    guest_kernel: Kernel,
    busybox: Path,
    probe: bytes,
    entries: Sequence[cpio.Entry] = (),
    modules: Sequence[str] = MODULES,
) -> bytes:
    """The archive of all guests with this kernel, additional `entries` and `modules`.

    Raises:
        PlanewiseError: a module cannot be read.
    """
    return cpio.archive(
        [
            *busybox_entries(busybox),
            *(cpio.directory(name) for name in ("proc", "sys", "tmp")),
            cpio.file(PROBE.lstrip("/"), probe, 0o755),
            cpio.file("init", _filled().encode(), 0o755),
            *module_entries(guest_kernel, modules),
            *entries,
        ]
    )


def _filled() -> str:
    return _INIT.replace("FAILED_MARK", FAILED).replace("AGENT_PORT", AGENT_PORT)


def _name(
    guest_kernel: Kernel,
    probe: bytes,
    busybox: Path,
    entries: Sequence[cpio.Entry],
    modules: Sequence[str],
) -> str:
    """A file name that identifies the archive's content."""
    digest = hashlib.sha256(probe)
    for entry in entries:
        digest.update(f"{entry.path}\n".encode() + entry.content)
    digest.update(
        f"{_filled()}{modules}{guest_kernel.modules}{busybox.stat().st_mtime_ns}".encode()
    )
    return f"guest-{guest_kernel.version}-{digest.hexdigest()[:12]}.initrd"


def _uncompressed(guest_kernel: Kernel, cache: Path) -> Path | None:
    """The uncompressed kernel, which an emulated guest starts a second faster.

    None where this kernel cannot be started so.
    """
    target = cache / f"vmlinux-{guest_kernel.version}"
    if not target.exists():
        content = unpacked(guest_kernel.image.read_bytes())
        if content is None or not starts_by_pvh(content):
            return None
        _write(target, content)
    return target


def _write(target: Path, content: bytes) -> None:
    """Writes a file of the cache atomically."""
    scratch = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        scratch.write_bytes(content)
        scratch.chmod(0o644)
        scratch.rename(target)
    except OSError as error:
        with suppress(OSError):
            scratch.unlink()
        raise PlanewiseError(
            f"{target} cannot be written: {error.strerror}",
            remedy="make room, or point XDG_CACHE_HOME elsewhere",
        ) from error


_HEADER = b"HdrS"
_XZ, _ZSTD, _GZIP = b"\xfd7zXZ\0", b"\x28\xb5\x2f\xfd", b"\x1f\x8b"


def unpacked(image: bytes) -> bytes | None:
    """The ELF file inside a bzImage, or None where it cannot be had.

    Source: the kernel's Documentation/arch/x86/boot.rst (setup_sects, payload_offset and _length).
    """
    if image[0x202:0x206] != _HEADER or len(image) < 0x250:
        return None
    setup_sectors = image[0x1F1] or 4
    offset, length = struct.unpack_from("<II", image, 0x248)
    payload = image[(setup_sectors + 1) * 512 + offset :][:length]
    with suppress(OSError, lzma.LZMAError, EOFError, ValueError, subprocess.CalledProcessError):
        if payload.startswith(_XZ):
            return lzma.LZMADecompressor().decompress(payload)
        if payload.startswith(_GZIP):
            return gzip.decompress(payload)
        if payload.startswith(_ZSTD):
            # What follows the frame is the length of the kernel, which zstd complains about.
            done = subprocess.run(["zstd", "-dcq"], input=payload, capture_output=True, check=False)
            return done.stdout or None
    return None


_PHYS32_ENTRY = 18


def starts_by_pvh(elf: bytes) -> bool:
    """Whether a kernel has the 32-bit entry point that QEMU starts an ELF file by.

    Source: Xen's PVH boot protocol (the note XEN_ELFNOTE_PHYS32_ENTRY, of 4 or 8 bytes).
    """
    notes = (struct.pack("<III4s", 4, size, _PHYS32_ENTRY, b"Xen") for size in (4, 8))
    return elf.startswith(b"\x7fELF\x02\x01") and any(note in elf for note in notes)
