"""The guest that has booted already: waking it takes a fraction of what booting takes.

Worth it where CPUs are emulated: a boot takes seconds then, and minutes where an emulated CPU
emulates another, as for virtual machines on a lab's hosts. It is kept without a NIC, which is
plugged in when it wakes. Good on this machine alone, and until that is booted anew: a guest's clock
goes at the rate of the machine's.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from planewise.boot import packages
from planewise.boot.model import Accelerator
from planewise.errors import PlanewiseError
from planewise.testbed.host import Host, LocalHost
from planewise.testbed.model import make_guest
from planewise.testbed.vms.domain import VmOptions, domain_xml
from planewise.testbed.vms.guests import HostGuests
from planewise.testbed.vms.platform import VmPlatform, image_here
from planewise.testbed.vms.saved import Saved, read

_KEPT_S = 86_400.0


def prepare(ours: VmPlatform, options: VmOptions) -> Saved:
    """The guest, booted on this machine with an emulated CPU; from the cache where it is there.

    Raises:
        PlanewiseError: it does not boot, or the cache has no room.
    """
    emulated = replace(ours, accelerator=Accelerator("tcg", "it is booted to be kept"))
    guest = make_guest("booted", "sender", "main", 0, "")
    host = LocalHost("booted")
    guests = HostGuests(host, emulated, options)
    try:
        spec = guests.domain(guest, None, 1500)
        known = f"{domain_xml(replace(spec, console=''))}{_boot()}"
        cache = packages.cache_directory()
        path = cache / f"booted-{hashlib.sha256(known.encode()).hexdigest()[:12]}.save"
        with (cache / ".booted.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one boots it, others wait for that
            if path.exists():
                os.utime(path)
            else:
                _forget_old(cache)
                with guests:
                    guests.boot(spec, guest)
                    part = path.with_suffix(".part")
                    with suppress(FileNotFoundError):
                        part.unlink()
                    guests.hypervisor.save(guest.netns, str(part))
                    part.chmod(0o644)
                    part.rename(path)
        return read(path)
    except OSError as error:
        raise PlanewiseError(
            f"a guest cannot be kept in {packages.cache_directory()}: {error.strerror}",
            remedy="make room, or point XDG_CACHE_HOME elsewhere",
        ) from error
    finally:
        host.close()


def saved_for(host: Host, ours: VmPlatform, options: VmOptions) -> Saved | None:
    """A guest to wake on `host` instead of booting it; None where a boot is the better way.

    That is where CPUs are not emulated, and on servers, whose clocks go at another rate.

    Raises:
        PlanewiseError: the guest does not boot here, or cannot be copied there.
    """
    here = isinstance(host, LocalHost)
    if ours.accelerator.name == "kvm" or not (here or host.place.startswith("lab:")):
        return None
    if here:
        return prepare(ours, options)
    kept = prepare(replace(ours, image=image_here(options.programs)), options)
    return replace(kept, path=Path(host.program(str(kept.path))))


def _forget_old(cache: Path) -> None:
    """Removes guests that nobody asked for of late; a run that goes on may still wake others."""
    for old in cache.glob("booted-*.save"):
        with suppress(FileNotFoundError):
            if time.time() - old.stat().st_mtime > _KEPT_S:
                old.unlink()


def _boot() -> str:
    """Changes when this machine boots, and when it is another."""
    return Path("/proc/sys/kernel/random/boot_id").read_text() + os.uname().release
