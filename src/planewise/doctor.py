"""A host's fingerprint, and what would disturb a measurement on it. Knows no measurement.

Reads the files of /proc and /sys below a root that is a parameter; every judgement is a pure
function of their text. `examine` gathers; `diagnose` also tries the planes.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from planewise import procfs
from planewise.errors import UnsupportedError
from planewise.store.models import Disturbance, Fingerprint, PlaneAvailability
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.privilege import capable
from planewise.testbed.hosts.scratch import scratch
from planewise.testbed.hosts.stamps import stamps_of
from planewise.testbed.hosts.state import generator_of, offloads_of
from planewise.testbed.hosts.steering import may_steer
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
    cpuinfo = _read(root / "proc/cpuinfo")
    host = Fingerprint(
        hostname=_read(root / "proc/sys/kernel/hostname") or "unknown",
        kernel=_read(root / "proc/sys/kernel/osrelease") or "unknown",
        distribution=os_name(_read(root / "etc/os-release")),
        cpu_model=procfs.cpu_model(cpuinfo),
        cpus=procfs.count_online(_read(root / _CPU / "online"), cpuinfo),
        memory_bytes=procfs.memory(_read(root / "proc/meminfo")).get("MemTotal", 0),
        virtualisation=hypervisor(
            cpuinfo,
            " ".join(
                _read(root / "sys/class/dmi/id" / name) for name in ("sys_vendor", "product_name")
            ),
            _read(root / "sys/hypervisor/type"),
            _read(root / "sys/devices/system/clocksource/clocksource0/available_clocksource"),
        ),
        clocksource=_read(root / "sys/devices/system/clocksource/clocksource0/current_clocksource")
        or "unknown",
        governor=_governor(root),
        smt=smt_state(_read(root / _CPU / "smt/active"), _read(root / _CPU / "smt/control")),
        mitigations={path.name: _read(path) for path in _entries(root / _CPU / "vulnerabilities")},
        nics=tuple(_nics(root)),
        planes=tuple(planes),
    )
    disturbances = (
        *from_cpus(host.cpus),
        *from_virtualisation(host.virtualisation, activity.steal_share),
        *from_activity(activity),
        *from_clocksource(host.clocksource),
        *from_governor(host.governor),
        *from_turbo(
            _read(root / _CPU / "intel_pstate/no_turbo"), _read(root / _CPU / "cpufreq/boost")
        ),
        *from_smt(host.smt),
        *from_idle_states(_idle_states(root)),
        *from_mitigations(host.mitigations),
        *from_nics(host.nics),
        *from_irqbalance(
            "irqbalance" in (_read(path / "comm") for path in root.glob("proc/[0-9]*"))
        ),
        *from_cpu_quota(_read(root / "sys/fs/cgroup/cpu.max")),
        *from_battery(
            [_read(path / "online") for path in _entries(root / "sys/class/power_supply")
             if _read(path / "type") == "Mains"]
        ),
        *from_plain_user(_read(root / "proc/self/status"), _read(root / "proc/self/uid_map")),
        *from_timer_slack(_read(root / "proc/self/timerslack_ns")),
    )  # fmt: skip
    ordered = sorted(disturbances, key=lambda disturbance: disturbance.severity != "warning")
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


def _busy(ticks: procfs.CpuTicks) -> int:
    return ticks.not_idle - ticks.steal


def activity_between(before: str, after: str, busiest: Iterable[str] = ()) -> Activity:
    """CPU use between two readings of /proc/stat."""
    first, last = (procfs.cpu_ticks(stat).get(procfs.ALL) for stat in (before, after))
    if first is None or last is None or last.total <= first.total:
        return Activity(0, 0)
    total = last.total - first.total
    return Activity(
        busy_share=max(0.0, (_busy(last) - _busy(first)) / total),
        steal_share=max(0.0, (last.steal - first.steal) / total),
        busiest=tuple(busiest),
    )


# Disturbances and their remedies. Pure.


def _disturbance(
    name: str, value: str, severity: str, why: str, remedy: str
) -> tuple[Disturbance, ...]:
    return (
        Disturbance.model_validate(
            {"name": name, "value": value, "severity": severity, "why": why, "remedy": remedy}
        ),
    )


def from_cpus(cpus: int) -> tuple[Disturbance, ...]:
    """Too few CPUs for generator, hosts and sink."""
    if cpus >= FEW_CPUS:
        return ()
    return _disturbance(
        "few CPUs",
        f"{cpus}",
        "warning",
        "generator, both hosts and sink share them, so load trials measure their sum",
        f"measure on a machine with {FEW_CPUS} CPUs or more; compare planes only within one run",
    )


def from_virtualisation(name: str, steal_share: float) -> tuple[Disturbance, ...]:
    """A hypervisor, and the CPU time that it steals."""
    if name == "none":
        return ()
    disturbance = _disturbance(
        "virtual machine",
        name,
        "warning",
        "the hypervisor schedules this machine's CPUs: all times here are virtualised times",
        "compare planes with each other here; take absolute times on hardware",
    )
    if steal_share > STEAL_SHARE:
        disturbance += _disturbance(
            "stolen CPU time",
            percent_text(steal_share),
            "warning",
            "other virtual machines take CPU time from this one, at unknown moments",
            "move to a dedicated host, or repeat until the report shows no stolen time",
        )
    return disturbance


def from_activity(activity: Activity) -> tuple[Disturbance, ...]:
    """Other processes that use CPU time."""
    if activity.busy_share <= BUSY_SHARE:
        return ()
    names = f" ({', '.join(activity.busiest)})" if activity.busiest else ""
    return _disturbance(
        "busy CPUs",
        f"{percent_text(activity.busy_share)}{names}",
        "warning",
        "other processes delay packets, and every figure includes that",
        "end those processes, or wait for them",
    )


def from_clocksource(clocksource: str) -> tuple[Disturbance, ...]:
    """A clock that is slow or coarse to read."""
    if clocksource in (*_GOOD_CLOCKS, "unknown"):
        return ()
    if clocksource in _PARAVIRTUAL_CLOCKS:
        return _disturbance(
            "virtualised clock",
            clocksource,
            "info",
            "the hypervisor corrects this clock, and a correction may fall into a measurement",
            "where the CPU's counter is invariant: echo tsc > /sys/devices/system/clocksource/"
            "clocksource0/current_clocksource",
        )
    return _disturbance(
        "slow clock",
        clocksource,
        "warning",
        "reading it takes microseconds, and every packet needs two readings",
        "boot with tsc=reliable where the CPU's counter is invariant (constant_tsc, nonstop_tsc)",
    )


def from_governor(governor: str) -> tuple[Disturbance, ...]:
    """A clock frequency that follows the load."""
    if governor in ("none", "performance"):
        return ()
    return _disturbance(
        "frequency governor",
        governor,
        "warning",
        "the CPU's clock follows the load, so an idle plane looks slower than a busy one",
        "sudo cpupower frequency-set -g performance",
    )


def from_turbo(no_turbo: str, boost: str) -> tuple[Disturbance, ...]:
    """A clock frequency above the nominal one."""
    if no_turbo != "0" and boost != "1":
        return ()
    path = "intel_pstate/no_turbo" if no_turbo == "0" else "cpufreq/boost"
    return _disturbance(
        "turbo",
        "on",
        "info",
        "the clock depends on temperature and on how many CPUs are busy",
        f"echo {1 if no_turbo == '0' else 0} | sudo tee /{_CPU}/{path}",
    )


def from_smt(smt: str) -> tuple[Disturbance, ...]:
    """Two logical CPUs on one core."""
    if smt != "on":
        return ()
    return _disturbance(
        "SMT",
        "on",
        "info",
        "two logical CPUs share a core: work on one slows the other",
        f"echo off | sudo tee /{_CPU}/smt/control",
    )


def from_idle_states(states: Sequence[tuple[str, int]]) -> tuple[Disturbance, ...]:
    """Sleep states (name, exit latency in microseconds) that are enabled."""
    deep = max(states, key=lambda state: state[1], default=("", 0))
    if deep[1] <= DEEP_SLEEP_US:
        return ()
    return _disturbance(
        "deep sleep states",
        f"{deep[0]}, {deep[1]} µs to wake",
        "warning",
        "a packet that finds the CPU asleep waits for it; rare packets look slower than many",
        f"sudo cpupower idle-set -D {DEEP_SLEEP_US}",
    )


def from_mitigations(mitigations: dict[str, str]) -> tuple[Disturbance, ...]:
    """Mitigations that cost time at every system call or branch."""
    active = sorted(name for name, value in mitigations.items() if "Mitigation" in value)
    if not active:
        return ()
    return _disturbance(
        "CPU mitigations",
        f"{len(active)} active ({', '.join(active)})",
        "info",
        "they cost time at every system call: planes that make more calls pay more",
        "keep them (guests need them); compare only runs whose fingerprints have the same",
    )


def from_nics(nics: Sequence[dict[str, str]]) -> tuple[Disturbance, ...]:
    """Offloads that merge packets before they are timestamped."""
    merging = [
        nic["name"] for nic in nics if {"rx-gro", "rx-lro"} & set(nic.get("offloads", "").split())
    ]
    if not merging:
        return ()
    return _disturbance(
        "receive offloads",
        f"on ({', '.join(merging)})",
        "info",
        "GRO and LRO merge packets before the kernel stamps them; the testbed of namespaces "
        "does not use these NICs",
        f"when you measure through them: ethtool -K {merging[0]} gro off lro off",
    )


def from_irqbalance(running: bool) -> tuple[Disturbance, ...]:
    """A daemon that moves interrupts between CPUs."""
    if not running:
        return ()
    return _disturbance(
        "irqbalance",
        "running",
        "warning",
        "it moves the NICs' interrupts between CPUs in the middle of a measurement",
        "sudo systemctl stop irqbalance",
    )


def from_cpu_quota(cpu_max: str) -> tuple[Disturbance, ...]:
    """A control group that stops its processes when their quota is used up."""
    quota, _, period = cpu_max.partition(" ")
    if not quota.isdigit() or not period.strip().isdigit():
        return ()
    return _disturbance(
        "CPU quota",
        f"{int(quota) / int(period):.1f} CPUs",
        "warning",
        "the kernel stops this container for milliseconds whenever its quota is used up",
        "start the container without --cpus",
    )


def from_battery(mains: Sequence[str]) -> tuple[Disturbance, ...]:
    """A laptop without its cable. `mains`: the `online` files of its power supplies."""
    if not mains or "1" in mains:
        return ()
    return _disturbance(
        "on battery",
        "yes",
        "warning",
        "firmware and kernel save power, with clocks that differ from minute to minute",
        "plug the machine in",
    )


def from_plain_user(status: str, uid_map: str) -> tuple[Disturbance, ...]:
    """A user who builds testbeds in a user namespace. Texts of /proc/self."""
    if not status or (capable(status) and may_steer(uid_map)):
        return ()
    return _disturbance(
        "plain user",
        "yes",
        "warning",
        "in a user namespace receive work cannot be moved to other CPUs than the sender's: load "
        "trials reach the generator's limit before the plane's",
        "run as root to sweep planes to their limits; RTT trials are as good",
    )


def from_timer_slack(slack_ns: str) -> tuple[Disturbance, ...]:
    """How late the kernel may wake a sleeper beyond the usual 50 µs."""
    if not slack_ns.isdigit() or int(slack_ns) <= 50_000:
        return ()
    return _disturbance(
        "timer slack",
        f"{int(slack_ns) // 1000} µs",
        "info",
        "the kernel may wake this shell's sleepers that late",
        "start from a shell that was not started with a larger slack",
    )


# Reads files and the clock.


def watch(root: Path, sample_s: float) -> Activity:
    """Samples CPU use for `sample_s` seconds."""
    stat_path, before = root / "proc/stat", _process_ticks(root)
    first = _read(stat_path)
    time.sleep(sample_s)
    last, after = _read(stat_path), _process_ticks(root)
    used = {
        pid: (ticks - before[pid][1], name)
        for pid, (name, ticks) in after.items()
        if pid in before and ticks > before[pid][1]
    }
    used.pop(os.getpid(), None)
    return activity_between(first, last, [name for _, name in sorted(used.values())[:-4:-1]])


def _process_ticks(root: Path) -> dict[int, tuple[str, int]]:
    ticks = {}
    for path in _entries(root / "proc"):
        if path.name.isdigit():
            # The name is in parentheses and may itself contain some.
            head, _, numbers = _read(path / "stat").rpartition(") ")
            fields = numbers.split()
            if len(fields) > 12:
                ticks[int(path.name)] = (head.partition("(")[2], int(fields[11]) + int(fields[12]))
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
            nic["generator"] = generator_of(path.name, nic["driver"])
            nic["stamps"] = stamps_of(path.name)
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

    Empty where the device tells none: no PCIe capability, a virtual function (its link is the
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
