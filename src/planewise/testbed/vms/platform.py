"""What a host lends to virtual machines: QEMU, an accelerator, vhost-net, the guests' image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from planewise.boot import accelerator, initramfs, kernel, packages, qemu, tools
from planewise.boot.model import Accelerator, Kernel
from planewise.errors import UnsupportedError
from planewise.testbed.host import Host, LocalHost, ProcessTimeoutError, find_probe
from planewise.testbed.planes import vm_plane
from planewise.testbed.scratch import scratch
from planewise.testbed.vms import hypervisor, image
from planewise.testbed.vms.domain import VmOptions
from planewise.testbed.vms.image import GuestImage

_TRIAL_TIMEOUT_S = 60.0

VM_MIB = 170
"""Memory that a tiny guest takes of its host where its CPU is emulated: its own, what QEMU keeps of
translated code, QEMU itself (`benches/vms.py`)."""

_BESIDE_MIB = 90
"""Of these, what is not the guest's own."""


@dataclass(frozen=True)
class VmPlatform:
    """What a host lends to virtual machines."""

    qemu: str
    accelerator: Accelerator
    vhost: bool
    """Whether virtio NICs can be served by the kernel."""
    image: GuestImage
    """As the host has it."""

    @property
    def emulated(self) -> str:
        """Why times are not those of hardware; empty when they are."""
        if self.accelerator.name == "kvm":
            return ""
        return (
            "the guests' CPUs are emulated by QEMU (TCG), not virtualised by the hardware (KVM): "
            f"{self.accelerator.reason}"
        )


@dataclass(frozen=True)
class _Programs:
    """What was seen on a host without starting a virtual machine."""

    qemu: str
    kvm: str
    """`none` (no /dev/kvm), `shut` (it may not be opened) or `open`."""
    vhost: bool


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
    """What a host lends to virtual machines; tries KVM there with a guest that says one line.

    The guests have `with_programs` of this machine.

    Raises:
        UnsupportedError: no QEMU, libvirt or privilege there, or no kernel or program for
            the guests here.
        PlanewiseError: the guests' files cannot be copied there.
    """
    programs = _programs(host)
    cache = packages.cache_directory()
    boots, busybox = kernel.find(cache), tools.find(cache).busybox
    here = image_here(with_programs)
    there = replace(
        here,
        kernel=Path(host.program(str(here.kernel))),
        initrd=Path(host.program(str(here.initrd))),
    )
    if isinstance(host, LocalHost):
        chosen = accelerator.find(*qemu.find(), boots, busybox, cache)
    else:
        chosen = _accelerator(host, programs, replace(boots, image=there.kernel), busybox)
    return VmPlatform(programs.qemu, chosen, programs.vhost and chosen.name == "kvm", there)


def image_here(programs: Sequence[str] = ()) -> GuestImage:
    """The guest, as this machine has it."""
    return image.prepare(Path(find_probe()), programs)


def machine_name(host: Host) -> str:
    """How sentences call the machine that a host is, or that its namespace is on. Pure."""
    return "this machine" if isinstance(host, LocalHost) else host.place


def vm_mib(options: VmOptions) -> int:
    """Memory that a guest takes of its host [MiB]. Pure."""
    more_mib = image.programs_mib(options.programs)
    return max(VM_MIB + more_mib, (options.memory_mib or 0) + _BESIDE_MIB)


def differences(name: str, ours: VmPlatform, options: VmOptions) -> tuple[str, ...]:
    """What is unlike other planes of virtual machines, here, and cannot be made alike. Pure."""
    plane = vm_plane(name)
    words = list(plane.differences)
    if plane.model == "virtio" and plane.device:
        why = "it was not asked for" if not options.vhost else _no_vhost(ours)
        served = "QEMU serves the NIC, in user space, without vhost-net: " + why
        words.append("the kernel serves the NIC (vhost-net)" if not why else served)
        if not options.offloads:
            words.append("checksum and segmentation offloads are off, as nobody here needs them")
    return tuple(words)


def _no_vhost(ours: VmPlatform) -> str:
    if ours.vhost:
        return ""
    if ours.accelerator.name != "kvm":
        return "it needs KVM"
    return "this kernel has none (/dev/vhost-net)"


def _programs(host: Host) -> _Programs:
    hypervisor.libraries()
    seen = host.run(["sh", "-c", _LOOK]).check().stdout.split()
    program, daemon, kvm, vhost, user, users = seen
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
    return _Programs(program, kvm, vhost == "vhost")


def _accelerator(host: Host, programs: _Programs, boots: Kernel, busybox: Path) -> Accelerator:
    if programs.kvm == "none":
        return Accelerator("tcg", f"there is no /dev/kvm on {host.place}")
    if programs.kvm == "shut":
        return Accelerator("tcg", f"/dev/kvm on {host.place} may not be opened")
    with scratch() as directory:
        initrd = directory / "pw-trial.initrd"
        initrd.write_bytes(initramfs.trial(busybox))
        argv = qemu.trial_command_line(
            Path(programs.qemu), boots, Path(host.program(str(initrd))), "kvm"
        )
        try:
            done = host.run(argv, timeout_s=_TRIAL_TIMEOUT_S)
        except ProcessTimeoutError:
            return Accelerator("tcg", f"a trial guest under KVM hung on {host.place}")
    return accelerator.conclude(done.stdout, done.stderr)
