"""The command lines of a lab's hosts, as pure functions."""

from __future__ import annotations

from pathlib import Path

from planewise.boot.qemu import KERNEL_PARAMETERS, accelerator_options
from planewise.lab.initramfs import CACHE_TAG, OUTER_TAG
from planewise.lab.model import (
    HOSTS,
    MANAGEMENT_GATEWAY,
    MANAGEMENT_HOST,
    MANAGEMENT_NETWORK,
    HostId,
    LabPaths,
    LabPlatform,
    LabSpec,
    management_mac,
    pf_mac,
    process_name,
)

_PATIENCE = "systemd.default_timeout_start_sec=600"
"""On a busy machine, services of an emulated systemd take longer to start than the default 90 s."""


def command_line(
    platform: LabPlatform, spec: LabSpec, paths: LabPaths, host: HostId, port: int
) -> list[str]:
    """The command line of one host. Pure.

    `port` is the port on 127.0.0.1 that leads to its sshd.
    """
    files = paths.host(host)
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
        # Name and pidfile first: `lab.leftovers` finds an abandoned process by them.
        *("-name", process_name(spec.name, host)),
        *("-pidfile", str(files.pidfile)),
        "-daemonize",
        *("-machine", "q35,kernel-irqchip=split,hpet=off"),
        *accelerator_options(platform.accelerator),
        # With memory above 4 GiB (from 2816 MiB on) SeaBIOS lays VFs' registers at the top of 40
        # address bits, where the emulated igb's do not answer; with 36 they stay below 4 GiB.
        *("-global", "max-x86_64-cpu.phys-bits=36"),
        *("-smp", str(spec.cpus)),
        *("-m", str(spec.memory_mib)),
        *("-nodefaults", "-no-user-config", "-no-reboot"),
        *("-display", "none"),
        *("-chardev", f"file,id=console,path={_quoted(files.serial_log)}"),
        *("-serial", "chardev:console"),
        *("-kernel", str(platform.kernel.image)),
        *("-initrd", str(files.initrd)),
        *("-append", f"{KERNEL_PARAMETERS} {_PATIENCE}"),
        *("-device", "intel-iommu,intremap=on,caching-mode=on"),
        *_share(OUTER_TAG, _quoted(Path(spec.root))),
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


def _share(tag: str, path: str) -> tuple[str, ...]:
    options = f"local,path={path},mount_tag={tag},security_model=none,readonly=on,multidevs=remap"
    return ("-virtfs", options)


def _quoted(path: Path) -> str:
    """A path inside an option: commas are doubled there."""
    return str(path).replace(",", ",,")
