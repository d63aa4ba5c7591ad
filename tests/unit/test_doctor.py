"""The doctor judges the files of /proc and /sys, here made-up ones."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise import doctor, procfs
from planewise.errors import UnsupportedError
from planewise.store.models import Disturbance, PlaneAvailability
from planewise.testbed.availability import explain_needs, missing, try_planes
from planewise.testbed.hosts.privilege import capable, explain_refusal
from planewise.testbed.hosts.xdp import generator_text, xdp_features
from planewise.testbed.planes import PLANES, Plane

CPU = "sys/devices/system/cpu"
CLOCK = "sys/devices/system/clocksource/clocksource0"

SERVER: dict[str, str] = {
    "proc/sys/kernel/hostname": "server\n",
    "proc/sys/kernel/osrelease": "6.1.0-18-amd64\n",
    "etc/os-release": 'NAME="Debian"\nPRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\n',
    "proc/cpuinfo": "processor\t: 0\nmodel name\t: Xeon Bronze 3204\nflags\t\t: fpu tsc\n",
    "proc/meminfo": "MemTotal:       65536000 kB\nMemFree: 1 kB\n",
    "proc/stat": "cpu  100 0 100 800 0 0 0 0 0 0\n",
    f"{CPU}/online": "0-5,8-9\n",
    f"{CPU}/smt/active": "0\n",
    f"{CPU}/smt/control": "off\n",
    f"{CPU}/cpu0/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/cpu1/cpufreq/scaling_governor": "performance\n",
    f"{CPU}/vulnerabilities/meltdown": "Not affected\n",
    f"{CLOCK}/current_clocksource": "tsc\n",
    f"{CLOCK}/available_clocksource": "tsc hpet acpi_pm\n",
    "sys/class/dmi/id/sys_vendor": "Supermicro\n",
}
"""A machine with nothing to complain about."""


def machine(root: Path, changed: Mapping[str, str] = {}) -> Path:
    for name, text in {**SERVER, **changed}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def found(root: Path, changed: Mapping[str, str]) -> dict[str, Disturbance]:
    host = doctor.examine(machine(root, changed), sample_s=0)
    return {one.name: one for one in host.disturbances}


def test_a_quiet_server_is_described_and_nothing_is_held_against_it(tmp_path: Path) -> None:
    host = doctor.examine(machine(tmp_path), sample_s=0)
    assert host.hostname == "server"
    assert host.kernel == "6.1.0-18-amd64"
    assert host.distribution == "Debian GNU/Linux 12 (bookworm)"
    assert host.cpu_model == "Xeon Bronze 3204"
    assert host.cpus == 8
    assert host.memory_bytes == 65536000 * 1024
    assert host.virtualisation == "none"
    assert host.clocksource == "tsc"
    assert host.governor == "performance"
    assert host.smt == "off"
    assert host.disturbances == ()


def test_a_machine_without_any_file_is_unknown_and_not_an_error(tmp_path: Path) -> None:
    host = doctor.examine(tmp_path, sample_s=0)
    assert (host.hostname, host.cpu_model, host.clocksource) == ("unknown",) * 3
    assert host.cpus == 0
    assert host.governor == "none"


@pytest.mark.parametrize(
    ("changed", "name", "severity", "remedy"),
    [
        ({f"{CPU}/online": "0-1"}, "few CPUs", "warning", "4 CPUs"),
        (
            {f"{CPU}/cpu1/cpufreq/scaling_governor": "powersave"},
            "frequency governor",
            "warning",
            "performance",
        ),
        ({f"{CPU}/smt/active": "1", f"{CPU}/smt/control": "on"}, "SMT", "info", "smt/control"),
        ({f"{CPU}/intel_pstate/no_turbo": "0"}, "turbo", "info", "echo 1"),
        ({f"{CPU}/cpufreq/boost": "1"}, "turbo", "info", "echo 0"),
        ({f"{CLOCK}/current_clocksource": "hpet"}, "slow clock", "warning", "tsc"),
        ({f"{CLOCK}/current_clocksource": "kvm-clock"}, "virtualised clock", "info", "tsc"),
        ({"sys/class/dmi/id/sys_vendor": "QEMU"}, "virtual machine", "warning", "hardware"),
        (
            {"proc/cpuinfo": "flags : fpu hypervisor tsc\n", f"{CLOCK}/available_clocksource": ""},
            "virtual machine",
            "warning",
            "hardware",
        ),
        ({f"{CPU}/vulnerabilities/mds": "Mitigation: Clear"}, "CPU mitigations", "info", "same"),
        ({"proc/77/comm": "irqbalance"}, "irqbalance", "warning", "systemctl stop"),
        ({"sys/fs/cgroup/cpu.max": "150000 100000"}, "CPU quota", "warning", "--cpus"),
        (
            {
                "sys/class/power_supply/AC/type": "Mains",
                "sys/class/power_supply/AC/online": "0",
                "sys/class/power_supply/BAT0/type": "Battery",
            },
            "on battery",
            "warning",
            "plug",
        ),
        (
            {
                f"{CPU}/cpu0/cpuidle/state1/name": "C1",
                f"{CPU}/cpu0/cpuidle/state1/latency": "2",
                f"{CPU}/cpu0/cpuidle/state2/name": "C6",
                f"{CPU}/cpu0/cpuidle/state2/latency": "133",
            },
            "deep sleep states",
            "warning",
            "idle-set",
        ),
        (
            {
                "proc/self/status": "CapEff:\t0000000000000000",
                "proc/self/uid_map": "0 0 4294967295",
            },
            "plain user",
            "warning",
            "root",
        ),
        (
            {"proc/self/status": "CapEff:\t000001ffffffffff", "proc/self/uid_map": "0 1000 1"},
            "plain user",
            "warning",
            "root",
        ),
        ({"proc/self/timerslack_ns": "1000000"}, "timer slack", "info", "shell"),
    ],
)
def test_what_disturbs_is_named_with_a_remedy(
    tmp_path: Path, changed: dict[str, str], name: str, severity: str, remedy: str
) -> None:
    seen = found(tmp_path, changed)
    assert set(seen) == {name}
    assert seen[name].severity == severity
    assert remedy in seen[name].remedy
    assert seen[name].why


def test_root_of_the_machine_is_no_plain_user(tmp_path: Path) -> None:
    assert not found(
        tmp_path,
        {"proc/self/status": "CapEff:\t000001ffffffffff", "proc/self/uid_map": " 0  0 4294967295"},
    )


def test_one_cpu_with_another_governor_is_seen(tmp_path: Path) -> None:
    seen = found(tmp_path, {f"{CPU}/cpu1/cpufreq/scaling_governor": "schedutil"})
    assert seen["frequency governor"].value == "performance, schedutil"


def test_a_sleep_state_that_is_switched_off_disturbs_nobody(tmp_path: Path) -> None:
    state = f"{CPU}/cpu0/cpuidle/state2"
    assert not found(
        tmp_path, {f"{state}/name": "C6", f"{state}/latency": "133", f"{state}/disable": "1"}
    )


@pytest.mark.parametrize(
    "files",
    [
        {
            "proc/self/cgroup": "0::/pod/app",
            "sys/fs/cgroup/pod/cpu.max": "40000 100000",
            "sys/fs/cgroup/pod/app/cpu.max": "max 100000",
        },
        {
            "proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/1",
            "sys/fs/cgroup/cpu/docker/1/cpu.cfs_quota_us": "40000",
            "sys/fs/cgroup/cpu/docker/1/cpu.cfs_period_us": "100000",
        },
    ],
)
def test_a_quota_of_a_group_above_ours_counts_in_both_versions_of_control_groups(
    tmp_path: Path, files: dict[str, str]
) -> None:
    assert found(tmp_path, files)["CPU quota"].value == "0.4 CPUs"


def test_only_cpus_that_the_process_may_use_are_counted(tmp_path: Path) -> None:
    status = "CapEff:\t000001ffffffffff\nCpus_allowed_list:\t0\n"
    host = doctor.examine(machine(tmp_path, {"proc/self/status": status}), sample_s=0)
    assert host.cpus == 1


def test_our_own_processes_are_not_what_keeps_the_cpus_busy() -> None:
    named = "open('/proc/self/comm', 'w').write('pw-own-work'); print(flush=True)"
    argv = [sys.executable, "-c", f"{named}\nwhile True: pass"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as working:
        try:
            assert working.stdout is not None
            working.stdout.readline()
            activity = doctor.watch(Path("/"), 0.1)
        finally:
            working.kill()
    assert "pw-own-work" not in activity.busiest


def test_a_quota_of_max_is_none(tmp_path: Path) -> None:
    assert not found(tmp_path, {"sys/fs/cgroup/cpu.max": "max 100000"})


def test_warnings_come_before_remarks(tmp_path: Path) -> None:
    host = doctor.examine(
        machine(tmp_path, {f"{CPU}/smt/active": "1", "proc/9/comm": "irqbalance"}), sample_s=0
    )
    assert [one.severity for one in host.disturbances] == ["warning", "info"]


def test_busy_and_stolen_time_are_shares_of_the_time_that_passed(tmp_path: Path) -> None:
    before = "cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 1 1 1\n"
    after = "cpu  130 0 120 830 10 0 0 10 0 0\n"
    activity = doctor.activity_between(before, after)
    assert activity.busy_share == pytest.approx(0.5)
    assert activity.steal_share == pytest.approx(0.1)
    host = doctor.examine(machine(tmp_path), sample_s=0)
    host = host.model_copy(update={"virtualisation": "kvm"})
    seen = {one.name: one.value for one in doctor.disturbances(host, activity, tmp_path)}
    assert seen == {"virtual machine": "kvm", "stolen CPU time": "10 %", "busy CPUs": "50 %"}
    assert doctor.activity_between(before, after, own_ticks=20).busy_share == pytest.approx(0.3)


def test_a_clock_that_stood_still_or_a_missing_file_is_no_activity() -> None:
    same = "cpu  100 0 100 800 0 0 0 0\n"
    assert doctor.activity_between(same, same) == doctor.Activity(0, 0)
    assert doctor.activity_between("", same) == doctor.Activity(0, 0)


@given(st.text(), st.text())
def test_no_text_of_proc_stat_breaks_the_doctor(before: str, after: str) -> None:
    activity = doctor.activity_between(before, after)
    assert activity.busy_share >= 0


@given(st.sets(st.integers(0, 500), min_size=1))
def test_a_kernel_list_of_cpus_is_counted(cpus: set[int]) -> None:
    assert procfs.count_online(",".join(str(cpu) for cpu in sorted(cpus))) == len(cpus)


@pytest.mark.parametrize(("text", "count"), [("0-3", 4), ("0", 1), ("0-1,4-7\n", 6)])
def test_ranges_of_cpus_are_counted(text: str, count: int) -> None:
    assert procfs.count_online(text) == count


def test_without_a_list_the_processors_are_counted() -> None:
    assert procfs.count_online("", "processor\t: 0\n\nprocessor\t: 1\n") == 2


@pytest.mark.parametrize(
    ("vendor", "clocks", "name"),
    [
        ("VMware, Inc. VMware7,1", "tsc", "vmware"),
        ("Microsoft Corporation Virtual Machine", "tsc", "hyper-v"),
        ("", "tsc kvm-clock acpi_pm", "kvm"),
        ("", "xen tsc", "xen"),
        ("", "tsc", "unknown hypervisor"),
    ],
)
def test_a_hypervisor_is_known_by_its_vendor_or_its_clock(
    vendor: str, clocks: str, name: str
) -> None:
    assert doctor.hypervisor("flags : fpu hypervisor\n", vendor, "", clocks) == name


def test_a_laptop_from_a_vendor_of_hypervisors_is_no_virtual_machine() -> None:
    assert doctor.hypervisor("flags : fpu\n", "Microsoft Corporation Surface", "", "tsc") == "none"


def test_a_nic_is_what_has_a_device_behind_it(tmp_path: Path) -> None:
    changed = {
        "sys/class/net/lo/operstate": "unknown",
        "sys/class/net/eno1/operstate": "up",
        "sys/class/net/eno1/mtu": "1500",
        "sys/class/net/eno1/speed": "10000",
        "sys/class/net/eno1/device/sriov_totalvfs": "63",
    }
    (nic,) = doctor.examine(machine(tmp_path, changed), sample_s=0).nics
    assert nic["name"] == "eno1"
    assert nic["speed_mbps"] == "10000"
    assert nic["sriov_totalvfs"] == "63"


def configuration_space(control: int, status: int) -> bytes:
    """A device with a power management capability and then PCI Express."""
    space = bytearray(256)
    space[0x34] = 0x40
    space[0x40:0x42] = (0x01, 0x70)
    space[0x70:0x72] = (0x10, 0x00)
    space[0x78:0x7A] = control.to_bytes(2, "little")
    space[0x82:0x84] = status.to_bytes(2, "little")
    return bytes(space)


def test_the_link_of_a_nic_is_read_from_its_configuration_space(tmp_path: Path) -> None:
    # Payload 256 bytes (001), read requests of 512 (010); 8 GT/s, 8 lanes.
    space = configuration_space(2 << 12 | 1 << 5, 8 << 4 | 3)
    wanted = {
        "pcie_generation": "3",
        "pcie_lanes": "8",
        "pcie_mps_bytes": "256",
        "pcie_mrrs_bytes": "512",
    }
    assert doctor.pcie_link(space) == wanted
    device = machine(tmp_path, {"sys/class/net/eno1/device/vendor": "0x8086"})
    (device / "sys/class/net/eno1/device/config").write_bytes(space)
    (nic,) = doctor.examine(device, sample_s=0).nics
    assert wanted.items() <= nic.items()
    assert doctor.pcie_link(configuration_space(0, 0)) == {}
    assert doctor.pcie_link(space[:64]) == {}


def test_a_plain_user_sees_speed_and_width_of_a_link(tmp_path: Path) -> None:
    changed = {
        "sys/class/net/eno1/device/current_link_speed": "8.0 GT/s PCIe",
        "sys/class/net/eno1/device/current_link_width": "8",
    }
    (nic,) = doctor.examine(machine(tmp_path, changed), sample_s=0).nics
    assert (nic["pcie_generation"], nic["pcie_lanes"]) == ("3", "8")
    assert "pcie_mps_bytes" not in nic


@given(st.binary(max_size=300))
def test_no_configuration_space_ends_in_a_traceback(content: bytes) -> None:
    assert set(doctor.pcie_link(content)) in (
        set(),
        {"pcie_generation", "pcie_lanes", "pcie_mps_bytes", "pcie_mrrs_bytes"},
    )


def test_receive_offloads_are_a_remark(tmp_path: Path) -> None:
    nics = ({"name": "a", "offloads": "rx-checksum rx-gro"}, {"name": "b", "offloads": "unknown"})
    host = doctor.examine(machine(tmp_path), sample_s=0).model_copy(update={"nics": nics})
    (remark,) = doctor.disturbances(host, doctor.Activity(0, 0), tmp_path)
    assert (remark.severity, remark.value) == ("info", "on (a)")


def test_nothing_is_promised_where_not_even_a_namespace_can_be_made() -> None:
    refused = UnsupportedError("namespaces are not allowed here", remedy="run as root")
    answers = try_planes({"sriov": "no NIC with SR-IOV"}, refused)
    assert not [answer.plane for answer in answers if answer.available]


def test_nothing_is_promised_where_the_simplest_testbed_could_not_be_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(plane: Plane) -> PlaneAvailability:
        return PlaneAvailability(plane=plane.name, available=False, reason="read-only /proc/sys")

    monkeypatch.setattr("planewise.testbed.availability.try_plane", refuse)
    answers = try_planes({"sriov": "no NIC with SR-IOV"})
    assert not [answer.plane for answer in answers if answer.available]
    assert {"read-only /proc/sys"} < {answer.reason for answer in answers}


def test_a_plane_that_needs_hardware_says_what_is_missing(tmp_path: Path) -> None:
    lacking = missing(tmp_path, which=lambda name: None)
    for plane in (one for one in PLANES if one.needs):
        answer = explain_needs(plane, lacking)
        assert not answer.available
        assert answer.reason
        assert answer.remedy
    (vf,) = (plane for plane in PLANES if plane.name == "vf")
    assert explain_needs(vf, lacking).reason == "no NIC with SR-IOV"
    (tmp_path / "sys/class/net/eno1/device").mkdir(parents=True)
    (tmp_path / "sys/class/net/eno1/device/sriov_totalvfs").write_text("63\n")
    assert "sriov" not in missing(tmp_path, which=lambda name: None)
    assert not explain_needs(vf, missing(tmp_path, which=lambda name: None)).available


@pytest.mark.parametrize("name", ["docker-bridge", "vhost-user"])
def test_a_plane_whose_programs_are_installed_can_be_measured_here(
    tmp_path: Path, name: str
) -> None:
    (plane,) = (plane for plane in PLANES if plane.name == name)
    lacking = missing(tmp_path, which=lambda program: f"/usr/bin/{program}")
    assert explain_needs(plane, lacking).available
    refused = explain_needs(plane, lacking, whole_machine=False)
    assert not refused.available
    assert "root" in refused.remedy


@pytest.mark.parametrize(
    ("setting", "value", "word"),
    [
        ("user/max_user_namespaces", "0", "max_user_namespaces"),
        ("kernel/unprivileged_userns_clone", "0", "unprivileged_userns_clone"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "AppArmor"),
        ("kernel/hostname", "box", "container"),
    ],
)
def test_a_refused_user_namespace_names_the_setting_and_the_way_out(
    tmp_path: Path, setting: str, value: str, word: str
) -> None:
    path = tmp_path / "proc/sys" / setting
    path.parent.mkdir(parents=True)
    path.write_text(value + "\n")
    refusal = explain_refusal(tmp_path)
    assert word in refusal.what
    assert "root" in refusal.remedy or "sudo" in refusal.remedy


@pytest.mark.parametrize(
    ("mask", "enough"),
    [("000001ffffffffff", True), ("0000000000203000", True), ("0000000000003000", False)],
)
def test_privilege_is_what_the_kernel_says_it_is(mask: str, enough: bool) -> None:
    assert capable(f"Name:\tx\nCapEff:\t{mask}\n") is enough
    assert not capable("")


@pytest.mark.parametrize(
    ("features", "said"),
    [
        (None, "not known: Linux says it from 6.3 on"),
        (0, "live frames through the network stack (live-skb): igb has no XDP of its own"),
        (3, "live frames once an XDP program is attached (igb takes none before)"),
        (15, "live frames"),
    ],
)
def test_a_nics_driver_says_which_generators_can_send_by_it(
    features: int | None, said: str
) -> None:
    assert generator_text("igb", features) == said


def test_the_loopback_interface_has_no_xdp_of_a_driver_and_a_missing_one_is_not_known() -> None:
    assert xdp_features("lo") in {0, None}
    assert xdp_features("pw-none") is None


@pytest.mark.parametrize("version", [1, 2])
def test_too_few_threads_are_refused_before_anything_is_measured(
    tmp_path: Path, version: int
) -> None:
    top = tmp_path / "sys/fs/cgroup" / ("pids" if version == 1 else "")
    (top / "pod/app").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    line = "5:pids:/pod/app" if version == 1 else "0::/pod/app"
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    (top / "pod/app/pids.max").write_text("max\n")
    doctor.check_limits(tmp_path)
    (top / "pod/pids.max").write_text("20\n")

    with pytest.raises(UnsupportedError, match="only 20 processes and threads") as refused:
        doctor.check_limits(tmp_path)

    assert "--pids-limit" in refused.value.remedy


def test_too_little_address_space_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4 << 30, 4 << 30))

    with pytest.raises(UnsupportedError, match=r"limited to 4\.0 GiB \(ulimit -v\)"):
        doctor.check_limits()
