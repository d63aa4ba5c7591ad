"""Platform of virtual machines on a host: QEMU, an accelerator, vhost-net, the guests' image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planewise.boot import accelerator, initramfs, kernel, packages, qemu, tools
from planewise.boot.model import Accelerator, Kernel
from planewise.errors import UnsupportedError
from planewise.testbed.guests.vms import hypervisor, image
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.guests.vms.image import GuestImage
from planewise.testbed.hosts.host import Host, LocalHost, ProcessTimeoutError, find_probe
from planewise.testbed.hosts.scratch import scratch
from planewise.testbed.planes import vm_plane

_TRIAL_TIMEOUT_S = 60.0

VM_MIB = 170
"""Memory of the host that a tiny guest with an emulated CPU takes: its own, QEMU's translated code,
QEMU itself (`benches/vms.py`)."""

_BESIDE_MIB = 90
"""The part of it that is not the guest's own."""


@dataclass(frozen=True)
class VmPlatform:
    """Platform of virtual machines on a host."""

    qemu: str
    accelerator: Accelerator
    vhost: bool
    """Whether virtio NICs can be served by the kernel."""
    image: GuestImage
    """Its paths are the host's."""

    @property
    def emulated(self) -> str:
        """Why times are not those of hardware; empty when they are."""
        if self.accelerator.name == "kvm":
            return ""
        return (
            "the guests' CPUs are emulated by QEMU (TCG), not virtualised by the hardware (KVM): "
            f"{self.accelerator.reason}"
        )


_LOOK = """
for name in qemu-system-x86_64 libvirtd; do
    PATH="$PATH:/usr/sbin:/sbin" command -v $name || echo -
done
[ ! -e /dev/kvm ] && echo none || { [ -r /dev/kvm ] && [ -w /dev/kvm ] && echo open || echo shut; }
[ -r /dev/vhost-net ] && [ -w /dev/vhost-net ] && echo vhost || echo -
id -u
# A user namespace maps fewer users: root in it is not the machine's root.
read -r inside outside count </proc/self/uid_map && echo "$inside/$outside/$count"
"""


def check(host: Host) -> None:
    """Does nothing where virtual machines can be started; starts none.

    Raises:
        UnsupportedError: no QEMU, libvirt or privilege on the host.
    """
    _programs(host)


def platform_of(host: Host, with_programs: Sequence[str] = ()) -> VmPlatform:
    """The platform of a host; tries KVM there with a guest that prints one line.

    Guests have `with_programs` of this machine.

    Raises:
        UnsupportedError: no QEMU, libvirt or privilege there, or no kernel or program for
            the guests here.
        PlanewiseError: the guests' files cannot be copied there.
    """
    emulator, kvm, vhost = _programs(host)
    cache = packages.cache_directory()
    guest_kernel, busybox = kernel.find(cache), tools.find(cache).busybox
    local = local_image(with_programs)
    copied = replace(
        local,
        kernel=Path(host.program(str(local.kernel))),
        initrd=Path(host.program(str(local.initrd))),
    )
    if isinstance(host, LocalHost):
        chosen = accelerator.find(*qemu.find(), guest_kernel, busybox, cache)
    else:
        chosen = _accelerator(
            host, emulator, kvm, replace(guest_kernel, image=copied.kernel), busybox
        )
    return VmPlatform(emulator, chosen, vhost and chosen.name == "kvm", copied)


def local_image(programs: Sequence[str] = ()) -> GuestImage:
    """The guests' image, with paths of this machine."""
    return image.prepare(Path(find_probe()), programs)


def machine_name(host: Host) -> str:
    """Name in messages of the machine that a host is, or that has its namespace. Pure."""
    return "this machine" if isinstance(host, LocalHost) else host.place


def vm_mib(options: VmOptions) -> int:
    """Memory of the host that a guest takes [MiB]. Pure."""
    more_mib = image.programs_mib(options.programs)
    return max(VM_MIB + more_mib, (options.memory_mib or 0) + _BESIDE_MIB)


def differences(name: str, platform: VmPlatform, options: VmOptions) -> tuple[str, ...]:
    """Differences here from other planes of virtual machines that cannot be removed. Pure."""
    plane = vm_plane(name)
    words = list(plane.differences)
    if plane.model == "virtio" and plane.device:
        reason = "it was not asked for" if not options.vhost else no_vhost(platform)
        user_space = "QEMU serves the NIC, in user space, without vhost-net: " + reason
        words.append("the kernel serves the NIC (vhost-net)" if not reason else user_space)
        if not options.offloads:
            words.append("checksum and segmentation offloads are off, as nobody here needs them")
    return tuple(words)


def no_vhost(platform: VmPlatform) -> str:
    """Why the host's kernel cannot serve virtio NICs; empty where it can. Pure."""
    if platform.vhost:
        return ""
    if platform.accelerator.name != "kvm":
        return "it needs KVM"
    return "this kernel has none (/dev/vhost-net)"


def _programs(host: Host) -> tuple[str, str, bool]:
    """QEMU's path; `none` (no /dev/kvm), `shut` (it may not be opened) or `open`; vhost-net."""
    hypervisor.libraries()
    words = host.run(["sh", "-c", _LOOK]).check().stdout.split()
    program, daemon, kvm, vhost, user, users = words
    if user != "0" or users != "0/0/4294967295":
        raise UnsupportedError(
            f"virtual machines need root on {machine_name(host)}: libvirt's daemon makes "
            "namespaces and taps",
            remedy="run planewise as root"
            if isinstance(host, LocalHost)
            else "log in as root: ssh://root@server",
        )
    for name, path in (("qemu-system-x86_64", program), ("libvirtd", daemon)):
        if path == "-":
            raise UnsupportedError(
                f"there is no {name} on {machine_name(host)}, and virtual machines need it",
                remedy=f"{hypervisor.SETUP_REMEDY}, or install QEMU and libvirt's daemon with its "
                "QEMU driver",
            )
    return program, kvm, vhost == "vhost"


def _accelerator(
    host: Host, emulator: str, kvm: str, guest_kernel: Kernel, busybox: Path
) -> Accelerator:
    if kvm == "none":
        return Accelerator("tcg", f"there is no /dev/kvm on {host.place}")
    if kvm == "shut":
        return Accelerator("tcg", f"/dev/kvm on {host.place} is not accessible")
    with scratch() as directory:
        initrd = directory / "pw-trial.initrd"
        initrd.write_bytes(initramfs.trial(busybox))
        argv = qemu.trial_command_line(
            Path(emulator), guest_kernel, Path(host.program(str(initrd))), "kvm"
        )
        try:
            done = host.run(argv, timeout_s=_TRIAL_TIMEOUT_S)
        except ProcessTimeoutError:
            return Accelerator("tcg", f"a trial guest under KVM hung on {host.place}")
    return accelerator.conclude(done.stdout, done.stderr)
