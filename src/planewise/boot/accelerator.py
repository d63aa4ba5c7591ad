"""Chooses KVM where a trial guest runs under it, else TCG. The result is cached until a reboot.

/dev/kvm may open and still not work: inside some virtual machines every guest dies at once.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from planewise.boot import initramfs
from planewise.boot.model import Accelerator, Kernel
from planewise.boot.process import spawn_tied
from planewise.boot.qemu import trial_command_line

TRIAL_TIMEOUT_S = 15.0
"""A trial takes two seconds where KVM works; it may hang where KVM does not."""

_FILE = "accelerator.json"
_DEVICE = Path("/dev/kvm")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def find(
    qemu: Path, qemu_version: tuple[int, int], kernel: Kernel, busybox: Path, cache: Path
) -> Accelerator:
    """The accelerator for this machine; one trial for each boot, QEMU and kernel."""
    refused = _refused()
    if refused is not None:
        return refused
    subject = _subject(qemu, qemu_version, kernel)
    cached = _recall(cache, subject)
    if cached is not None:
        return cached
    accelerator = _try(qemu, kernel, busybox, cache)
    with suppress(OSError):
        scratch = cache / f".trial-{os.getpid()}.json"
        scratch.write_text(json.dumps(subject | asdict(accelerator)))
        scratch.rename(cache / _FILE)
    return accelerator


def recall(qemu: Path, qemu_version: tuple[int, int], kernel: Kernel, cache: Path) -> Accelerator:
    """The cached result of `find`; TCG where there was no trial yet."""
    return (
        _refused()
        or _recall(cache, _subject(qemu, qemu_version, kernel))
        or Accelerator("tcg", "KVM was not tried yet")
    )


def _refused() -> Accelerator | None:
    if not _DEVICE.exists():
        return Accelerator("tcg", f"there is no {_DEVICE}")
    if not os.access(_DEVICE, os.R_OK | os.W_OK):
        return Accelerator("tcg", f"{_DEVICE} is not accessible to this user")
    return None


def _subject(qemu: Path, qemu_version: tuple[int, int], kernel: Kernel) -> dict[str, str]:
    return {
        "boot_id": _BOOT_ID.read_text().strip(),
        "qemu": f"{qemu} {qemu_version[0]}.{qemu_version[1]}",
        "kernel": kernel.version,
    }


def _recall(cache: Path, subject: dict[str, str]) -> Accelerator | None:
    try:
        content = json.loads((cache / _FILE).read_text())
        if content["name"] in ("kvm", "tcg") and subject.items() <= content.items():
            return Accelerator(content["name"], str(content["reason"]))
    except (OSError, ValueError, KeyError, AttributeError):
        pass
    return None


def _try(qemu: Path, kernel: Kernel, busybox: Path, cache: Path) -> Accelerator:
    with tempfile.TemporaryDirectory(prefix=".trial-", dir=cache) as scratch:
        initrd = Path(scratch) / "initrd"
        initrd.write_bytes(initramfs.trial(busybox))
        process = spawn_tied(trial_command_line(qemu, kernel, initrd, "kvm"))
        try:
            console, errors = process.communicate(timeout=TRIAL_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return Accelerator("tcg", f"a trial guest under KVM hung for {TRIAL_TIMEOUT_S:g} s")
    return conclude(console.decode(errors="replace"), errors.decode(errors="replace"))


def conclude(console: str, errors: str) -> Accelerator:
    """The accelerator by the trial guest's console and QEMU's stderr. Pure."""
    if initramfs.ACCELERATED in console:
        return Accelerator("kvm", "a trial guest ran under KVM")
    lines = [line for line in errors.splitlines() if line.strip()]
    why = lines[0].strip()[:120] if lines else "it printed nothing"
    return Accelerator("tcg", f"a trial guest under KVM died: {why}")
