"""QEMU's command lines, as pure functions, and whether this machine's QEMU will do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from planewise.errors import UnsupportedError
from planewise.lab.initramfs import CACHE_TAG, OUTER_TAG
from planewise.lab.model import (
    HOSTS,
    MANAGEMENT_GATEWAY,
    MANAGEMENT_HOST,
    MANAGEMENT_NETWORK,
    PREFIX,
    Accelerator,
    HostId,
    Kernel,
    LabPaths,
    LabSpec,
    Platform,
    management_mac,
    pf_mac,
    process_name,
)

OLDEST = (8, 1)
"""The first QEMU with igb."""

TRIAL_NAME = f"{PREFIX}accelerator-trial"
"""Name of the process that tries an accelerator."""

_PROGRAM = "qemu-system-x86_64"

# no_timer_check: the kernel counts a few timer ticks at its start and panics when there are too
# few, and emulated on a busy machine there may be. tsc=reliable: for the same reason its watchdog
# would take a good clock for a bad one. rcu_expedited: on a busy machine halves the time to boot.
_APPEND = (
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
    done = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    version = parse_version(done.stdout)
    if version is None:
        raise UnsupportedError(f"{program} does not say its version", remedy="reinstall QEMU")
    if version < OLDEST:
        raise UnsupportedError(
            f"{program} is version {version[0]}.{version[1]}, and SR-IOV NICs (igb) came with 8.1",
            remedy="run `scripts/setup lab` (as root), or install a newer QEMU "
            "(Debian 12: from the backports suite)",
        )
    return Path(program), version


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor version in what `--version` prints. Pure."""
    match = re.search(r"version (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def command_line(
    platform: Platform, spec: LabSpec, paths: LabPaths, host: HostId, port: int
) -> list[str]:
    """The command line of one host. Pure.

    `port` is the port on 127.0.0.1 that leads to its sshd.
    """
    own = paths.host(host)
    peer = HOSTS[1 - HOSTS.index(host)]
    network = ",".join(
        (
            "user",
            "id=mgmt",
            "ipv6=off",
            f"net={MANAGEMENT_NETWORK}",
            f"host={MANAGEMENT_GATEWAY}",
            f"dhcpstart={MANAGEMENT_HOST}",
            "restrict=on",
            f"hostfwd=tcp:127.0.0.1:{port}-{MANAGEMENT_HOST}:22",
        )
    )
    argv = [
        str(platform.qemu),
        # First what finds it again, should nobody be left who knows of it.
        *("-name", process_name(spec.name, host)),
        *("-pidfile", str(own.pidfile)),
        "-daemonize",
        *("-machine", "q35,kernel-irqchip=split"),
        *_accelerator(platform.accelerator),
        *("-smp", str(spec.cpus)),
        *("-m", str(spec.memory_mib)),
        *("-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none"),
        *("-chardev", f"file,id=console,path={_quoted(own.serial_log)}"),
        *("-serial", "chardev:console"),
        *("-qmp", f"unix:{_quoted(own.monitor)},server=on,wait=off"),
        *("-kernel", str(platform.kernel.image)),
        *("-initrd", str(own.initrd)),
        *("-append", _APPEND),
        *("-device", "intel-iommu,intremap=on,caching-mode=on"),
        *_share(OUTER_TAG, "/"),
        *_share(CACHE_TAG, _quoted(platform.cache)),
        *("-netdev", network),
        *("-device", f"virtio-net-pci,netdev=mgmt,mac={management_mac(host)},romfile="),
        *("-device", "virtio-rng-pci"),
    ]
    for index in range(spec.pfs):
        cable = (
            f"dgram,id=wire{index},local.type=unix,local.path={_quoted(paths.cable(host, index))},"
            f"remote.type=unix,remote.path={_quoted(paths.cable(peer, index))}"
        )
        argv += [
            *("-netdev", cable),
            # A port of its own for each PF: the VFs of two would collide on one bus.
            *("-device", f"pcie-root-port,id=port{index},chassis={index + 1},slot={index + 1}"),
            *("-device", f"igb,bus=port{index},netdev=wire{index},mac={pf_mac(host, index)}"),
        ]
    return argv


def trial_command_line(qemu: Path, kernel: Kernel, initrd: Path, accelerator: str) -> list[str]:
    """The command line of the guest that tries an accelerator; its console is stdout. Pure."""
    return [
        str(qemu),
        *("-name", TRIAL_NAME),
        *("-machine", "q35,kernel-irqchip=split"),
        *_accelerator(Accelerator("kvm" if accelerator == "kvm" else "tcg", "")),
        *("-smp", "2", "-m", "256"),
        *("-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none"),
        *("-serial", "stdio"),
        *("-kernel", str(kernel.image)),
        *("-initrd", str(initrd)),
        *("-append", _APPEND),
        *("-device", "intel-iommu,intremap=on,caching-mode=on"),
    ]


def _accelerator(accelerator: Accelerator) -> tuple[str, ...]:
    if accelerator.name == "kvm":
        return ("-accel", "kvm", "-cpu", "host")
    # One thread for all emulated CPUs: with one each, a CPU may write to a device by a map of the
    # machine that another CPU has just changed (which is what VFs that come and go do), and the
    # write is lost: an interrupt is never acknowledged and its CPU hangs, or QEMU ends with
    # "iotlb_to_section: Assertion failed" (10.0.2; 2 of 22 runs of the scenarios of crates/sriov).
    return ("-accel", "tcg,thread=single", "-cpu", "max")


def _share(tag: str, path: str) -> tuple[str, ...]:
    options = f"local,path={path},mount_tag={tag},security_model=none,readonly=on,multidevs=remap"
    return ("-virtfs", options)


def _quoted(path: Path) -> str:
    """A path inside an option: commas are doubled there."""
    return str(path).replace(",", ",,")
