"""A host's fingerprint, and what would disturb a measurement on it.

Reads files of /proc and /sys below a given root. `examine` gathers; `diagnose` also tries planes.
"""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from planewise import procfs
from planewise.errors import UnsupportedError
from planewise.store.models import Disturbance, Fingerprint, PlaneAvailability
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.privilege import capable
from planewise.testbed.hosts.scratch import scratch
from planewise.testbed.hosts.state import offloads_of
from planewise.testbed.hosts.steering import may_steer
from planewise.testbed.hosts.xdp import generator_text, xdp_features
from planewise.units import percent_text

FEW_CPUS = 4
"""A generator, two hosts and a sink want a CPU each."""
BUSY_SHARE = 0.10
STEAL_SHARE = 0.005
DEEP_SLEEP_US = 10
"""A CPU that takes longer to wake adds that to the time of a packet that woke it."""

_CPU = "sys/devices/system/cpu"
_GOOD_CLOCKS = ("tsc", "arch_sys_counter", "timebase", "tod", "riscv_clocksource")
_PARAVIRTUAL_CLOCKS = {
    "kvm-clock": "kvm",
    "xen": "xen",
    "hyperv_clocksource_tsc_page": "hyper-v",
    "hyperv_clocksource_msr": "hyper-v",
}
_VENDORS = (
    ("QEMU", "kvm"),
    ("KVM", "kvm"),
    ("Amazon EC2", "kvm (Amazon EC2)"),
    ("Google", "kvm (Google)"),
    ("VMware", "vmware"),
    ("innotek", "virtualbox"),
    ("VirtualBox", "virtualbox"),
    ("Microsoft Corporation", "hyper-v"),
    ("Xen", "xen"),
    ("Parallels", "parallels"),
    ("Apple Virtualization", "apple"),
)


@dataclass(frozen=True)
class Activity:
    """CPU use during a short sample."""

    busy_share: float
    steal_share: float
    busiest: tuple[str, ...] = ()
    """Names of the processes that used most, busiest first."""


def examine(
    root: Path = Path("/"),
    *,
    sample_s: float = 0.3,
    planes: Sequence[PlaneAvailability] = (),
) -> Fingerprint:
    """The host's fingerprint, with what would disturb a measurement on it.

    `sample_s` is how long CPU use is sampled; 0 leaves that out. Missing files read as `unknown`
    or `none`.
    """
    activity = watch(root, sample_s) if sample_s > 0 else Activity(0, 0)
    cpuinfo, clock = _read(root / "proc/cpuinfo"), "sys/devices/system/clocksource/clocksource0"
    dmi = (_read(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name"))
    host = Fingerprint(
        hostname=_read(root / "proc/sys/kernel/hostname") or "unknown",
        kernel=_read(root / "proc/sys/kernel/osrelease") or "unknown",
        distribution=os_name(_read(root / "etc/os-release")),
        cpu_model=procfs.cpu_model(cpuinfo),
        cpus=usable_cpus(_read(root / "proc/self/status"), _read(root / _CPU / "online"), cpuinfo),
        memory_bytes=procfs.memory(_read(root / "proc/meminfo")).get("MemTotal", 0),
        virtualisation=hypervisor(
            cpuinfo,
            " ".join(dmi),
            _read(root / "sys/hypervisor/type"),
            _read(root / clock / "available_clocksource"),
        ),
        clocksource=_read(root / clock / "current_clocksource") or "unknown",
        governor=_governor(root),
        smt=smt_state(_read(root / _CPU / "smt/active"), _read(root / _CPU / "smt/control")),
        mitigations={path.name: _read(path) for path in _entries(root / _CPU / "vulnerabilities")},
        nics=tuple(_nics(root)),
        planes=tuple(planes),
    )
    ordered = sorted(disturbances(host, activity, root), key=lambda d: d.severity != "warning")
    return host.model_copy(update={"disturbances": tuple(ordered)})


_FILES = (
    "/proc/cpuinfo /proc/meminfo /proc/sys/kernel/hostname /proc/sys/kernel/osrelease "
    "/etc/os-release /sys/hypervisor/type /sys/class/dmi/id/sys_vendor "
    "/sys/class/dmi/id/product_name /sys/devices/system/clocksource/clocksource0/* "
    "/sys/devices/system/cpu/online /sys/devices/system/cpu/smt/* "
    "/sys/devices/system/cpu/vulnerabilities/* /sys/devices/system/cpu/intel_pstate/no_turbo "
    "/sys/devices/system/cpu/cpufreq/boost "
    "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
)
"""Files that `examine` reads of a remote host."""

_MARK = "==> pw "


def examine_host(host: Host) -> Fingerprint:
    """The fingerprint of a remote host, read by one command there.

    Without CPU activity and NICs.
    """
    script = f'for file in {_FILES}; do echo "{_MARK}$file"; cat "$file" 2>/dev/null; echo; done'
    output = host.run(["sh", "-c", script]).stdout
    with scratch() as root:
        for part in output.split(_MARK)[1:]:
            name, _, content = part.partition("\n")
            file = root / name.lstrip("/")
            if content.strip() and "*" not in name:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(content)
        return examine(root, sample_s=0)


def diagnose(sample_s: float = 0.3) -> Fingerprint:
    """`examine` for this machine, and whether each plane can be built on it.

    A plain user is moved into a user namespace (see `testbed.privilege.ensure`): call it before
    any thread is started.
    """
    from planewise.testbed.availability import missing, try_planes
    from planewise.testbed.hosts.privilege import ensure

    # First: inside, this machine's NICs and daemons are out of sight.
    host, lacking = examine(sample_s=sample_s), missing()
    refused: UnsupportedError | None = None
    try:
        ensure()
    except UnsupportedError as error:
        refused = error
    return host.model_copy(update={"planes": try_planes(lacking, refused)})


# Parsers of these texts. Pure.


def os_name(os_release: str) -> str:
    """PRETTY_NAME of an os-release file; empty when it has none."""
    match = re.search(r'^PRETTY_NAME=(["\']?)(.*)\1$', os_release, re.MULTILINE)
    return match[2] if match else ""


def hypervisor(cpuinfo: str, vendor: str, kind: str, clocksources: str) -> str:
    """`none`, or the hypervisor's name as far as CPU flags, DMI and clocks show it."""
    flagged = re.search(r"^flags\s*:.*\bhypervisor\b", cpuinfo, re.MULTILINE) is not None
    if kind:
        return kind
    for mark, name in _VENDORS:
        # Some of these vendors also make real machines, whose CPUs lack the flag.
        if mark in vendor and (flagged or mark in ("QEMU", "KVM", "Amazon EC2", "Apple Virt")):
            return name if "metal" not in vendor else "none"
    for clock, name in _PARAVIRTUAL_CLOCKS.items():
        if clock in clocksources.split():
            return name
    return "unknown hypervisor" if flagged else "none"


def smt_state(active: str, control: str) -> str:
    """`on`, `off`, `not supported` or `unknown`."""
    if active == "1":
        return "on"
    if control == "notsupported":
        return "not supported"
    return "off" if active == "0" else "unknown"


def usable_cpus(status: str, online: str, cpuinfo: str) -> int:
    """CPUs that this process may use (affinity, cpuset); without /proc/self/status those online."""
    allowed = re.search(r"^Cpus_allowed_list:\s*(\S+)$", status, re.MULTILINE)
    return procfs.count_online(allowed[1] if allowed else online, cpuinfo)


def activity_between(
    before: str, after: str, busiest: Iterable[str] = (), own_ticks: int = 0
) -> Activity:
    """CPU use of others between two readings of /proc/stat; `own_ticks` is what we used."""
    first, last = (procfs.cpu_ticks(stat).get(procfs.ALL) for stat in (before, after))
    if first is None or last is None or last.total <= first.total:
        return Activity(0, 0)
    total = last.total - first.total
    stolen = last.steal - first.steal
    busy = last.not_idle - first.not_idle - stolen - own_ticks
    return Activity(max(0.0, busy / total), max(0.0, stolen / total), tuple(busiest))


def _of_groups(root: Path, controller: str, files: Sequence[str], file: str) -> Iterator[str]:
    """What our control group and those above it say: in `files` (version 1), or in `file`."""
    for line in _read(root / "proc/self/cgroup").splitlines() or ["0::/"]:
        _, controllers, name = (*line.split(":", 2), "", "")[:3]
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = top / name.lstrip("/")
        for directory in {top, group, *(path for path in group.parents if top in path.parents)}:
            yield " ".join(_read(directory / one) for one in (files if controllers else (file,)))


def cpu_quota(root: Path) -> float | None:
    """The smallest CPU quota [CPUs] of our control group and those above it; None without one."""
    quotas = []
    for text in _of_groups(root, "cpu", ("cpu.cfs_quota_us", "cpu.cfs_period_us"), "cpu.max"):
        quota, _, period = text.partition(" ")
        if quota.isdigit() and period.isdigit() and int(period):
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


LEAST_THREADS = 64
"""Processes and threads that a measurement needs."""
LEAST_ADDRESS_SPACE = 16 << 30
"""Bytes of address space (hardly any of it memory) that the libraries reserve."""


def check_limits(root: Path = Path("/")) -> None:
    """UnsupportedError where so few threads or so little address space cannot do for a run."""
    most = [text for text in _of_groups(root, "pids", ("pids.max",), "pids.max") if text.isdigit()]
    threads = min(map(int, most), default=LEAST_THREADS)
    if threads < LEAST_THREADS:
        raise UnsupportedError(
            f"only {threads} processes and threads are allowed here (pids.max), and a measurement "
            f"needs {LEAST_THREADS}",
            remedy="raise the limit, as with `docker run --pids-limit 256` or TasksMax=",
        )
    space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if space != resource.RLIM_INFINITY and space < LEAST_ADDRESS_SPACE:
        raise UnsupportedError(
            f"the address space is limited to {space / 2**30:.1f} GiB (ulimit -v), and the "
            f"libraries reserve {LEAST_ADDRESS_SPACE >> 30} GiB, little of it memory",
            remedy="ulimit -v unlimited",
        )


def disturbances(host: Fingerprint, activity: Activity, root: Path) -> Iterator[Disturbance]:
    """What would disturb a measurement on this host, with the reason and the remedy."""

    def warning(name: str, value: str, why: str, remedy: str) -> Disturbance:
        return Disturbance(name=name, value=value, severity="warning", why=why, remedy=remedy)

    def remark(name: str, value: str, why: str, remedy: str) -> Disturbance:
        return Disturbance(name=name, value=value, severity="info", why=why, remedy=remedy)

    if host.cpus < FEW_CPUS:
        yield warning(
            "few CPUs",
            f"{host.cpus}",
            "generator, both hosts and sink share them, so load results include all of them",
            f"measure on a machine with {FEW_CPUS} CPUs or more; compare planes only within one "
            "run",
        )
    if (quota := cpu_quota(root)) is not None:
        yield warning(
            "CPU quota",
            f"{quota:.1f} CPUs",
            "the kernel stops these processes for milliseconds whenever the quota is used up",
            "start the container without --cpus, the pod without a CPU limit",
        )
    if host.virtualisation != "none":
        yield warning(
            "virtual machine",
            host.virtualisation,
            "the hypervisor schedules this machine's CPUs: treat absolute times with caution",
            "compare planes with each other here; take absolute times on hardware",
        )
        if activity.steal_share > STEAL_SHARE:
            yield warning(
                "stolen CPU time",
                percent_text(activity.steal_share),
                "other virtual machines take CPU time from this one, at unknown moments",
                "move to a dedicated host, or repeat until the report shows no stolen time",
            )
    if activity.busy_share > BUSY_SHARE:
        names = f" ({', '.join(activity.busiest)})" if activity.busiest else ""
        yield warning(
            "busy CPUs",
            f"{percent_text(activity.busy_share)}{names}",
            "other processes delay packets, and every figure includes that",
            "stop those processes, or wait for them",
        )
    if host.clocksource in _PARAVIRTUAL_CLOCKS:
        yield remark(
            "virtualised clock",
            host.clocksource,
            "the hypervisor corrects this clock, and a correction may fall into a measurement",
            "where the CPU's counter is invariant: echo tsc > /sys/devices/system/clocksource/"
            "clocksource0/current_clocksource",
        )
    elif host.clocksource not in (*_GOOD_CLOCKS, "unknown"):
        yield warning(
            "slow clock",
            host.clocksource,
            "reading it takes microseconds, and every packet needs two readings",
            "boot with tsc=reliable where the CPU's counter is invariant (constant_tsc, "
            "nonstop_tsc)",
        )
    if host.governor not in ("none", "performance"):
        yield warning(
            "frequency governor",
            host.governor,
            "the CPU's clock follows the load, so an idle plane looks slower than a busy one",
            "sudo cpupower frequency-set -g performance",
        )
    for path, on, off in (("intel_pstate/no_turbo", "0", "1"), ("cpufreq/boost", "1", "0")):
        if _read(root / _CPU / path) == on:
            yield remark(
                "turbo",
                "on",
                "the clock depends on temperature and on how many CPUs are busy",
                f"echo {off} | sudo tee /{_CPU}/{path}",
            )
            break
    if host.smt == "on":
        yield remark(
            "SMT",
            "on",
            "two logical CPUs share a core: work on one slows the other",
            f"echo off | sudo tee /{_CPU}/smt/control",
        )
    name, wake_us = max(_idle_states(root), key=lambda state: state[1], default=("", 0))
    if wake_us > DEEP_SLEEP_US:
        yield warning(
            "deep sleep states",
            f"{name}, {wake_us} µs to wake",
            "a packet that finds the CPU asleep waits for it; rare packets look slower than many",
            f"sudo cpupower idle-set -D {DEEP_SLEEP_US}",
        )
    if active := sorted(name for name, text in host.mitigations.items() if "Mitigation" in text):
        yield remark(
            "CPU mitigations",
            f"{len(active)} active ({', '.join(active)})",
            "they cost time at every system call: planes that make more calls pay more",
            "keep them (guests need them); compare only runs with the same mitigations",
        )
    merging = [
        nic["name"]
        for nic in host.nics
        if {"rx-gro", "rx-lro"} & set(nic.get("offloads", "").split())
    ]
    if merging:
        yield remark(
            "receive offloads",
            f"on ({', '.join(merging)})",
            "GRO and LRO merge packets before the kernel stamps them; the testbed of namespaces "
            "does not use these NICs",
            f"when you measure through them: ethtool -K {merging[0]} gro off lro off",
        )
    if any(_read(path / "comm") == "irqbalance" for path in root.glob("proc/[0-9]*")):
        yield warning(
            "irqbalance",
            "running",
            "it moves the NICs' interrupts between CPUs in the middle of a measurement",
            "sudo systemctl stop irqbalance",
        )
    mains = [
        _read(path / "online")
        for path in _entries(root / "sys/class/power_supply")
        if _read(path / "type") == "Mains"
    ]
    if mains and "1" not in mains:
        yield warning(
            "on battery",
            "yes",
            "firmware and kernel save power, with clocks that differ from minute to minute",
            "plug the machine in",
        )
    status, uid_map = _read(root / "proc/self/status"), _read(root / "proc/self/uid_map")
    if uid_map and not (capable(status) and may_steer(uid_map)):
        yield warning(
            "plain user",
            "yes",
            "in a user namespace, receive work can't be moved off the sender's CPU: load trials "
            "reach the generator's limit before the plane's",
            "run as root to sweep planes to their limits; RTT trials are not affected",
        )
    slack_ns = _read(root / "proc/self/timerslack_ns")
    if slack_ns.isdigit() and int(slack_ns) > 50_000:
        yield remark(
            "timer slack",
            f"{int(slack_ns) // 1000} µs",
            "the kernel may wake this shell's sleepers that late",
            "start from a shell without the larger slack",
        )


# Reads files and the clock.


def watch(root: Path, sample_s: float) -> Activity:
    """Samples for `sample_s` seconds how busy processes other than our session keep the CPUs."""
    stat_path, before = root / "proc/stat", _process_ticks(root)
    first = _read(stat_path)
    time.sleep(sample_s)
    last, after = _read(stat_path), _process_ticks(root)
    used = {
        pid: (ticks - before[pid][2], name, session)
        for pid, (name, session, ticks) in after.items()
        if pid in before and ticks > before[pid][2]
    }
    ours = os.getsid(0)
    busiest = [name for _, name, session in sorted(used.values(), reverse=True) if session != ours]
    own_ticks = sum(ticks for ticks, _, session in used.values() if session == ours)
    return activity_between(first, last, busiest[:3], own_ticks)


def _process_ticks(root: Path) -> dict[int, tuple[str, int, int]]:
    """Name, session and CPU ticks by process."""
    ticks = {}
    for path in _entries(root / "proc"):
        if path.name.isdigit():
            # The name is in parentheses and may itself contain some.
            head, _, numbers = _read(path / "stat").rpartition(") ")
            fields = numbers.split()
            if len(fields) > 12:
                used = int(fields[11]) + int(fields[12])
                ticks[int(path.name)] = (head.partition("(")[2], int(fields[3]), used)
    return ticks


def _governor(root: Path) -> str:
    paths = (root / _CPU).glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = {_read(path) for path in paths} - {""}
    return ", ".join(sorted(governors)) or "none"


def _idle_states(root: Path) -> list[tuple[str, int]]:
    states = []
    for path in _entries(root / _CPU / "cpu0/cpuidle"):
        latency = _read(path / "latency")
        if latency.isdigit() and _read(path / "disable") != "1":
            states.append((_read(path / "name"), int(latency)))
    return states


def _nics(root: Path) -> Iterable[dict[str, str]]:
    local = root == Path("/")
    for path in _entries(root / "sys/class/net"):
        device = path / "device"
        if not device.exists():
            continue  # made by software: no NIC
        nic = {
            "name": path.name,
            "driver": (device / "driver").resolve().name if (device / "driver").exists() else "",
            "state": _read(path / "operstate"),
            "mtu": _read(path / "mtu"),
        }
        speed = _read(path / "speed")
        if speed.isdigit():
            nic["speed_mbps"] = speed
        if functions := _read(device / "sriov_totalvfs"):
            nic["sriov_totalvfs"] = functions
        nic |= _pcie(device)
        if local:
            nic["offloads"] = offloads_of(path.name)
            nic["generator"] = generator_text(nic["driver"], xdp_features(path.name))
        yield nic


def _pcie(device: Path) -> dict[str, str]:
    """A NIC's PCIe link, from its configuration space; only root can read all of that."""
    config = b""
    with suppress(OSError):
        config = (device / "config").read_bytes()
    if link := pcie_link(config):
        return link
    width = _read(device / "current_link_width")
    # "8.0 GT/s PCIe"
    generation = _GENERATIONS.get(_read(device / "current_link_speed").partition(" ")[0])
    if generation is None or not width.isdigit() or width == "0":
        return {}
    return {"pcie_generation": generation, "pcie_lanes": width}


_GENERATIONS = {"2.5": "1", "5.0": "2", "8.0": "3", "16.0": "4", "32.0": "5"}
"""PCIe generation by giga-transfers a second and lane."""

_MOST_CAPABILITIES = 48


def pcie_link(config: bytes) -> dict[str, str]:
    """Generation, lanes, maximum payload and read request size [bytes] from configuration space.

    Empty where the device reports none: no PCIe capability, a virtual function (its link is the
    physical one's), or only the first 64 bytes, which is what a plain user may read. Pure. (PCI
    Express Base Specification 5.0, sections 7.5.3.4 and 7.5.3.8.)
    """
    at = config[0x34] if len(config) > 0x40 else 0
    for _ in range(_MOST_CAPABILITIES):
        if at < 0x40 or at + 0x14 > len(config):
            return {}
        if config[at] == 0x10:
            control = int.from_bytes(config[at + 0x08 : at + 0x0A], "little")
            status = int.from_bytes(config[at + 0x12 : at + 0x14], "little")
            generation, lanes = status & 0xF, status >> 4 & 0x3F
            if not generation or not lanes:
                return {}
            return {
                "pcie_generation": str(generation),
                "pcie_lanes": str(lanes),
                "pcie_mps_bytes": str(128 << (control >> 5 & 7)),
                "pcie_mrrs_bytes": str(128 << (control >> 12 & 7)),
            }
        at = config[at + 1] & 0xFC
    return {}


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except OSError:
        return []


def _read(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""
