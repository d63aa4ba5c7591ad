"""A saved guest that has booted: waking it takes a fraction of a boot's time.

Worth it where CPUs are emulated: a boot takes seconds then, and minutes where an emulated CPU
emulates another, as for virtual machines on a lab's hosts. It is saved without a NIC, which is
attached when it wakes. It is valid on this machine alone, until its next boot: a guest's clock runs
at the rate of the machine's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from planewise.boot import packages
from planewise.boot.model import Accelerator
from planewise.errors import PlanewiseError
from planewise.testbed.guests.vms.domain import VmOptions, domain_xml
from planewise.testbed.guests.vms.guests import Saved, read
from planewise.testbed.guests.vms.image import remove_unused
from planewise.testbed.guests.vms.kind import VirtualMachines
from planewise.testbed.guests.vms.platform import VmPlatform, local_image
from planewise.testbed.hosts.host import Host, LocalHost
from planewise.testbed.hosts.machine import Machine, MachineState
from planewise.testbed.model import make_guest


def prepare(platform: VmPlatform, options: VmOptions) -> Saved:
    """The guest, booted on this machine with an emulated CPU; from the cache where it has one.

    Raises:
        PlanewiseError: it does not boot, or the cache has no room.
    """
    emulated = replace(platform, accelerator=Accelerator("tcg", "it is booted to be kept"))
    token, host = "b0070000", LocalHost("booted")
    guest = make_guest(token, "sender", "main", 0, "")
    state = MachineState(Machine(host, "", "", ""), "sender", token)
    machines = VirtualMachines(state, options, emulated)
    try:
        identity = f"{domain_xml(guest, emulated, options, '')}{_boot()}"
        cache = packages.cache_directory()
        path = cache / f"booted-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.save"
        with (cache / ".booted.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one program boots it, others wait
            if path.exists():
                os.utime(path)
            else:
                remove_unused(cache, "booted-*.save")
                with machines.libvirt as libvirt:
                    machines.boot(guest)
                    partial = path.with_suffix(".part")
                    with suppress(FileNotFoundError):
                        partial.unlink()
                    libvirt.save(guest.netns, str(partial))
                    partial.chmod(0o644)
                    partial.rename(path)
        return read(path)
    except OSError as error:
        raise PlanewiseError(
            f"a guest cannot be kept in {packages.cache_directory()}: {error.strerror}",
            remedy="make room, or point XDG_CACHE_HOME elsewhere",
        ) from error
    finally:
        host.close()


def machines_on(
    state: MachineState, platform: VmPlatform, options: VmOptions, parallel: int = 2
) -> VirtualMachines:
    """The virtual machines of a host, which wake where a boot would take long.

    `parallel` of them boot at a time.

    Raises:
        PlanewiseError: the guest that they are copies of does not boot.
    """
    saved = saved_for(state.host, platform, options)
    return VirtualMachines(state, options, platform, parallel, saved)


def saved_for(host: Host, platform: VmPlatform, options: VmOptions) -> Saved | None:
    """A saved guest to wake on `host`; None where guests boot.

    They boot where CPUs are not emulated, and on servers, whose clocks run at another rate.

    Raises:
        PlanewiseError: the guest does not boot here, or cannot be copied to the host.
    """
    is_local = isinstance(host, LocalHost)
    if platform.accelerator.name == "kvm" or not (is_local or host.place.startswith("lab:")):
        return None
    if is_local:
        return prepare(platform, options)
    saved = prepare(replace(platform, image=local_image(options.programs)), options)
    return replace(saved, path=Path(host.program(str(saved.path))))


def _boot() -> str:
    """Identity of this machine's boot and kernel."""
    return Path("/proc/sys/kernel/random/boot_id").read_text() + os.uname().release
