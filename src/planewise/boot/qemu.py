"""QEMU on this machine: its version, and the command line of a trial guest."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from planewise.boot.model import Accelerator, Kernel
from planewise.errors import UnsupportedError

OLDEST = (8, 1)
"""The first QEMU with igb."""

TRIAL_NAME = "pw-lab-accelerator-trial"
"""Name of the process that tries an accelerator."""

_PROGRAM = "qemu-system-x86_64"

# no_timer_check: the kernel counts a few timer ticks at its start and panics when there are too
# few, and emulated on a busy machine there may be. tsc=reliable: for the same reason its watchdog
# would take a good clock for a bad one. rcu_expedited: on a busy machine halves the time to boot.
KERNEL_PARAMETERS = (
    "console=ttyS0 quiet panic=-1 intel_iommu=on net.ifnames=0 random.trust_cpu=on "
    "no_timer_check tsc=reliable rcupdate.rcu_expedited=1 rcupdate.rcu_normal_after_boot=1 "
    "mitigations=off audit=0 selinux=0 apparmor=0"
)


def find() -> tuple[Path, tuple[int, int]]:
    """QEMU and its version.

    Raises:
        UnsupportedError: there is none, or it is too old.
    """
    if os.uname().machine != "x86_64":
        raise UnsupportedError(f"the lab needs an x86-64 machine, and this is {os.uname().machine}")
    program = shutil.which(_PROGRAM)
    if program is None:
        raise UnsupportedError(
            f"there is no {_PROGRAM} on this machine",
            remedy="run `scripts/setup lab` (as root), or install QEMU 8.1 or newer "
            "(Debian 12: from the backports suite)",
        )
    process = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = parse_version(process.stdout)
    if version is None:
        raise UnsupportedError(f"{program} prints no version", remedy="reinstall QEMU")
    if version < OLDEST:
        raise UnsupportedError(
            f"{program} is version {version[0]}.{version[1]}, and SR-IOV NICs (igb) came with 8.1",
            remedy="run `scripts/setup lab` (as root), or install a newer QEMU "
            "(Debian 12: from the backports suite)",
        )
    return Path(program), version


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor version in the output of `--version`. Pure."""
    match = re.search(r"version (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def trial_command_line(qemu: Path, kernel: Kernel, initrd: Path, accelerator: str) -> list[str]:
    """The command line of the guest that tries an accelerator; its console is stdout. Pure."""
    return [
        str(qemu),
        *("-name", TRIAL_NAME),
        *("-machine", "q35,kernel-irqchip=split,hpet=off"),
        *accelerator_options(Accelerator("kvm" if accelerator == "kvm" else "tcg", "")),
        *("-smp", "2", "-m", "256"),
        *("-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none"),
        *("-serial", "stdio"),
        *("-kernel", str(kernel.image)),
        *("-initrd", str(initrd)),
        *("-append", KERNEL_PARAMETERS),
        *("-device", "intel-iommu,intremap=on,caching-mode=on"),
    ]


def accelerator_options(accelerator: Accelerator) -> tuple[str, ...]:
    """QEMU's options for an accelerator. Pure."""
    if accelerator.name == "kvm":
        return ("-accel", "kvm", "-cpu", "host")
    # One thread for all emulated CPUs: with one each, a CPU may write to a device by a map of the
    # machine that another CPU has just changed (which is what VFs that come and go do), and the
    # write is lost: an interrupt is never acknowledged and its CPU hangs, or QEMU ends with
    # "iotlb_to_section: Assertion failed" (10.0.2; 2 of 22 runs of the scenarios of crates/sriov).
    return ("-accel", "tcg,thread=single", "-cpu", "max")
