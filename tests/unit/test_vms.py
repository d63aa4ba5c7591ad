"""Virtual machines as values: domains, images, layouts; and processes of a guest that answers."""

from __future__ import annotations

import base64
import gzip
import json
import stat
import struct
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from planewise.boot.initramfs import program_entries
from planewise.boot.model import Accelerator
from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.measure.station import End, Station
from planewise.measure.trials.load import LoadTrial
from planewise.measure.trials.load_two_ended import send_command
from planewise.measure.trials.ping import await_late_end
from planewise.testbed.guests.vms import agent, image
from planewise.testbed.guests.vms.agent import GuestAgent
from planewise.testbed.guests.vms.domain import Nic, VmOptions, domain_xml, nic_xml
from planewise.testbed.guests.vms.guests import last_words
from planewise.testbed.guests.vms.hypervisor import AgentSilentError, GuestGoneError
from planewise.testbed.guests.vms.image import GuestImage
from planewise.testbed.guests.vms.platform import VmPlatform, differences
from planewise.testbed.hosts.host import (
    FinishedProcess,
    Host,
    LocalHost,
    LocalProcess,
    ProcessTimeoutError,
)
from planewise.testbed.hosts.machine import Resources
from planewise.testbed.model import HOSTS, Guest, HostRole, IpVersion, Site, make_guest
from planewise.testbed.planes import PLANES, VmPlane, vm_plane
from planewise.testbed.refusals import impossible, shortage
from planewise.testbed.setting import Arrangement, Setting

HOST_PLANES = [
    plane.name for plane in PLANES if isinstance(plane, VmPlane) and plane.device and not plane.vfs
]
"""Planes that attach a virtual machine without help from hardware."""

NIC = Nic("virtio", "02:70:77:00:00:00", "tap-m0", vhost=False, queues=1, offloads=False)
IMAGE = GuestImage(Path("/k"), Path("/i"), "6.12", 80)


QEMU = {"qemu": "http://libvirt.org/schemas/domain/qemu/1.0"}


def platform(name: str, vhost: bool) -> VmPlatform:
    accelerator = Accelerator("kvm" if name == "kvm" else "tcg", "it was tried")
    return VmPlatform("/usr/bin/qemu", accelerator, vhost, IMAGE)


GUEST = make_guest("0", "sender", "main", 0, "virtio-bridge")
DOMAIN = domain_xml(GUEST, platform("tcg", vhost=False), VmOptions(), "/c")


def test_a_receive_ring_is_the_devices_own_and_only_where_one_is_asked_for() -> None:
    def driver(nic: Nic) -> dict[str, str]:
        found = ElementTree.fromstring(nic_xml(nic)).find("driver")
        assert found is not None
        return found.attrib

    assert driver(replace(NIC, ring_packets=1024))["rx_queue_size"] == "1024"
    assert "rx_queue_size" not in driver(NIC)


def test_an_emulated_domain_says_so_and_bounds_what_qemu_keeps() -> None:
    domain = ElementTree.fromstring(DOMAIN)
    assert domain.get("type") == "qemu"
    assert domain.findtext("features/tcg/tb-cache") == "32"
    timer = domain.find("clock/timer")
    assert timer is not None
    assert timer.attrib == {"name": "hpet", "present": "no"}
    port = domain.find("devices/controller[@type='virtio-serial']")
    assert port is not None
    assert port.get("ports") == "2"
    arguments = [one.get("value") for one in domain.findall("qemu:commandline/qemu:arg", QEMU)]
    assert arguments == ["-global", "virtio-net-device.guest_announce=off"]
    assert str(domain.findtext("os/cmdline")).endswith("nr_cpus=1")
    assert {domain.findtext(f"on_{event}") for event in ("poweroff", "reboot", "crash")} == {
        "destroy"
    }


def test_a_virtio_nic_has_its_offloads_off_unless_they_are_asked_for() -> None:
    driver = ElementTree.fromstring(nic_xml(NIC)).find("driver")
    assert driver is not None
    assert driver.get("name") == "qemu"
    assert {child.tag: child.get("csum") for child in driver} == {"host": "off", "guest": "off"}


def test_a_domain_opens_the_port_that_the_plan_made() -> None:
    interface = ElementTree.fromstring(nic_xml(NIC))
    assert interface.get("type") == "ethernet"
    target = interface.find("target")
    assert target is not None
    assert target.attrib == {"dev": "tap-m0", "managed": "no"}


@given(st.binary(max_size=4096))
def test_no_bytes_break_the_readers_of_kernels(content: bytes) -> None:
    image.unpacked(content)
    image.starts_by_pvh(content)
    image.starts_by_pvh(b"\x7fELF\x02\x01" + content)


def test_a_kernel_is_unpacked_and_its_entry_found() -> None:
    note = struct.pack("<III4sI", 4, 4, 18, b"Xen\0", 0x1000000)
    elf = b"\x7fELF\x02\x01" + bytes(58) + note
    assert image.starts_by_pvh(elf)
    assert not image.starts_by_pvh(elf.replace(note, note.replace(b"\x12", b"\x11")))
    assert not image.starts_by_pvh(note)
    payload = gzip.compress(b"kernel")
    bzimage = bytearray(1024) + payload
    bzimage[0x1F1] = 1
    bzimage[0x202:0x206] = b"HdrS"
    struct.pack_into("<II", bzimage, 0x248, 0, len(payload))
    assert image.unpacked(bytes(bzimage)) == b"kernel"


def guests(token: str, plane: str, count: int) -> list[Guest]:
    """The first guests of a testbed, of both roles and on both hosts."""
    return [
        make_guest(token, role, "background", slot, plane, slot, away=lives_on != role)
        for role in HOSTS
        for lives_on in HOSTS
        for slot in range(count)
    ]


@pytest.mark.parametrize("plane", HOST_PLANES)
def test_no_two_ports_share_a_name_on_a_host_or_an_index_on_the_machine(plane: str) -> None:
    made = guests("0123abcd", plane, 1000)
    ports = {vm_plane(plane).host_interface(guest) for guest in made}
    assert len(ports) == 4000
    assert all(len(port) <= 15 for port in ports)
    indexes = {guest.port_index for guest in made}
    assert len(indexes) == 4000
    assert all(0 < index < 1 << 31 for index in indexes)
    for name in ("netns", "mac", "ipv4", "ipv6"):
        assert len({getattr(guest, name) for guest in made}) == 4000, name


@example(304, 312)
@given(st.integers(0, 0xFFFF), st.integers(0, 0xFFFF))
def test_testbeds_whose_tokens_differ_early_share_no_index(one: int, other: int) -> None:
    def indexes(number: int) -> set[int]:
        return {guest.port_index for guest in guests(f"{number:04x}0000", "macvtap-bridge", 2)}

    assert one == other or not indexes(one) & indexes(other)


@pytest.mark.parametrize("role", HOSTS)
def test_planes_beside_a_switch_sit_on_it(role: HostRole) -> None:
    for switched, switch in (("virtio-bridge", "bridge"), ("virtio-ovs", "ovs")):
        mixed = Setting("vm", "macvtap-bridge", switched, 1, "north-south")
        assert [request.switch for request in mixed.requests(role)] == [switch, switch]
    alone = Setting("vm", "macvtap-bridge", "macvtap-bridge", 1, "north-south")
    assert [request.switch for request in alone.requests(role)] == ["", ""]


def test_two_switches_that_want_the_nic_at_a_time_are_refused() -> None:
    both = Setting("vm", "virtio-bridge", "virtio-ovs", 1, "north-south")
    assert both.conflict == "bridge and ovs cannot share the NIC"


def test_a_host_without_open_vswitch_is_said_where_a_plane_wants_it() -> None:
    here = Resources("this machine", "wire0", "", 0, 8000, False, cpus=2, hosts=2)
    for plane, others in (("virtio-ovs", "virtio-ovs"), ("macvtap-bridge", "virtio-ovs")):
        setting = Setting("vm", plane, others, 1, "north-south")
        assert shortage(setting, here, False) == "there is no Open vSwitch on this machine"
        assert not shortage(setting, replace(here, ovs=True), False)


def test_guests_of_a_host_that_routes_send_to_its_tap_and_others_to_each_other() -> None:
    mains = {role: make_guest("0123abcd", role, "main", 0, "p") for role in HOSTS}
    hops = {}
    for plane in ("virtio-routed", "virtio-bridge"):
        setting = Setting("vm", plane, plane, 0, "north-south")
        sites = {role: Site(role, "", "wire0", 1500) for role in HOSTS}
        hops[plane] = Arrangement(setting, {}, mains, {}, sites, {}).next_hop_mac()
    assert hops["virtio-bridge"] == mains["responder"].mac
    _, tap = vm_plane("virtio-routed").attach(sites["sender"], mains["sender"])[:2]
    assert f"address {hops['virtio-routed']} " in tap.words
    assert hops["virtio-routed"] != mains["sender"].mac


def test_a_plane_that_virtual_machines_cannot_have_here_is_said() -> None:
    setting = Setting("vm", "vf-passthrough", "vf-passthrough", 0, "north-south")
    assert "vf-passthrough cannot be built on one machine" in impossible(setting, local=True)
    with pytest.raises(BadInputError, match="virtual machines have no plane veth"):
        vm_plane("veth")


def test_differences_say_why_there_is_no_vhost() -> None:
    words = " ".join(differences("virtio-bridge", platform("tcg", False), VmOptions()))
    assert "without vhost-net: it needs KVM" in words
    words = " ".join(differences("virtio-bridge", platform("kvm", False), VmOptions()))
    assert "/dev/vhost-net" in words
    words = " ".join(differences("virtio-bridge", platform("kvm", True), VmOptions()))
    assert "the kernel serves the NIC" in words
    assert "emulated" in " ".join(differences("e1000-bridge", platform("kvm", True), VmOptions()))


def test_only_emulated_guests_make_a_run_emulated() -> None:
    assert platform("kvm", True).emulated == ""
    assert "TCG" in platform("tcg", False).emulated


def test_options_that_no_machine_can_have_are_refused() -> None:
    with pytest.raises(BadInputError, match="queues 2"):
        VmOptions(queues=2)
    with pytest.raises(BadInputError, match="vcpus 0"):
        VmOptions(vcpus=0)


@pytest.mark.parametrize(
    ("console", "word"),
    [
        ("", []),
        ("a\nb\n", ["a", "b"]),
        ("x\npw-guest: failed: no interface\nreboot: Power down\n", ["no interface"]),
        ("[1.0] Kernel panic - not syncing: oops\n[1.1] CPU: 0\n", None),
    ],
)
def test_last_words_are_the_failure_where_there_is_one(
    console: str, word: list[str] | None
) -> None:
    said = last_words(console)
    assert said == word if word is not None else "Kernel panic" in said[0]


class FakeHypervisor:
    """A guest whose processes end at once, or that is gone."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.gone = False
        self.silent = False

    def agent(
        self, name: str, execute: str, arguments: Mapping[str, object] | None = None
    ) -> object:
        if self.gone:
            raise GuestGoneError(f"{name} ended")
        if self.silent:
            raise AgentSilentError("nothing")
        self.asked.append(json.dumps(arguments))
        wanted = dict(arguments or {})
        if execute == "guest-exec":
            words = [str(word) for word in wanted["arg"]]  # type: ignore[attr-defined]
            if words[0] == "-c" and len(words) > 5:
                directory, _, new = words[3:6]
                self.files[f"{directory}/{new}.out"] = " ".join(words[6:]).encode()
                self.files[f"{directory}/{new}.err"] = b"ready: go\n"
            return {"pid": 7}
        if execute == "guest-exec-status":
            return {"exited": True, "signal": 2}
        if execute == "pw-read":
            content = self.files.get(str(wanted["path"]))
            if content is None:
                raise PlanewiseError("cannot be read")
            return {"buf-b64": base64.b64encode(content).decode(), "eof": True}
        return {}


def agent_of(fake: FakeHypervisor) -> GuestAgent:
    why = GuestGoneError("the virtual machine main ended; its console is empty", remedy="look")
    return GuestAgent(fake, "pw-0-sm0", "/tmp/d", lambda: why)  # type: ignore[arg-type]


def test_a_process_of_a_guest_tells_what_it_wrote_and_its_end() -> None:
    process = agent_of(FakeHypervisor()).start(["pw-probe", "ping"])
    process.wait_ready("ready", 1)
    finished = process.wait(1)
    assert (finished.stdout, finished.exit_code) == ("pw-probe ping", 130)


def test_a_process_of_a_guest_that_is_gone_was_killed() -> None:
    fake = FakeHypervisor()
    process = agent_of(fake).start(["pw-probe", "burn"])
    fake.gone = True
    process.interrupt()
    finished = process.stop()
    assert finished.exit_code == 137
    assert "its console is empty" in finished.stderr
    with pytest.raises(GuestGoneError, match="its console is empty"):
        agent_of(fake).read("/proc/uptime")


def test_a_process_of_a_guest_is_not_asked_for_its_end_while_it_is_expected_to_run() -> None:
    fake = FakeHypervisor()
    process = agent_of(fake).start(["iperf3", "-c"], expected_s=1000)
    fake.asked.clear()
    assert process.running
    assert not fake.asked
    assert process.stop().exit_code == 130


def test_a_guest_that_is_slow_to_answer_gets_longer_to_end_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Slow(FakeHypervisor):
        looks = 0

        def agent(
            self, name: str, execute: str, arguments: Mapping[str, object] | None = None
        ) -> object:
            time.sleep(0.02)
            words = (arguments or {}).get("arg")
            if execute == "guest-exec" and isinstance(words, list) and len(words) == 5:
                assert words[3] != "KILL", "killed although it was about to end"
                return {"pid": 8}
            if execute == "guest-exec-status" and (arguments or {})["pid"] == 7:
                self.looks += 1
                return {"exited": self.looks > 2, "exitcode": 0}
            return super().agent(name, execute, arguments)

    monkeypatch.setattr(agent, "GRACE_S", 0.01)
    assert agent_of(Slow()).start(["pw-probe", "flood"]).stop().exit_code == 0


def test_a_program_comes_into_a_guest_with_its_loader_and_libraries() -> None:
    entries = program_entries(["sh"])
    paths = [entry.path for entry in entries]
    files = {entry.path for entry in entries if stat.S_ISREG(entry.mode)}
    assert "bin/sh" in files
    assert any("/libc." in path for path in files)
    assert any("/ld-" in path for path in files)
    for path in files - {"bin/sh"}:  # the kernel unpacks no file whose directory is not there
        for parent in (str(one) for one in Path(path).parents if str(one) != "."):
            assert paths.index(parent) < paths.index(path)


def test_a_program_that_this_machine_lacks_is_named_before_a_guest_boots() -> None:
    with pytest.raises(UnsupportedError, match="no pw-nothing on this machine"):
        program_entries(["pw-nothing"])


@pytest.mark.parametrize(("ip_version", "source"), [(4, "198.18.0.1"), (6, "2001:2:0:1::1")])
def test_load_between_guests_has_the_ip_version_that_is_asked_for(
    ip_version: IpVersion, source: str
) -> None:
    mains = {role: make_guest("0a1b2c3d", role, "main", 0, "virtio-bridge") for role in HOSTS}
    hosts: dict[HostRole, Host] = {role: LocalHost(role) for role in HOSTS}
    setting = Setting("vm", "virtio-bridge", "virtio-bridge", 0, "north-south")
    sites = {role: Site(role, "", "br0", 1500) for role in HOSTS}
    standing = Arrangement(setting, hosts, mains, {}, sites, dict.fromkeys(HOSTS, ""))
    ends = {
        role: End(hosts[role], guest.netns, guest.name, guest.interface, guest.ipv4, machine=True)
        for role, guest in mains.items()
    }
    station = Station(hosts, ends, path=standing.trial_path(), ip_version=ip_version)
    argv = send_command(station, LoadTrial("load", 100, 84, 1.0), first=1, max_pps=1e6)
    assert argv[argv.index("--src") + 1] == source
    assert argv[argv.index("--dst") + 1] == mains["responder"].address(ip_version)
    assert argv[argv.index("--tx") + 1] == mains["sender"].interface


def test_an_agent_that_is_silent_is_not_ready_and_no_error() -> None:
    fake = FakeHypervisor()
    assert agent_of(fake).ready()
    fake.silent = True
    assert not agent_of(fake).ready()


class LateProbe(LocalProcess):
    """A process that ends when it is waited for once more than `late` times."""

    def __init__(self, late: int) -> None:
        self.waits: list[float | None] = []
        self._late = late

    def wait(self, timeout_s: float | None = None) -> FinishedProcess:
        self.waits.append(timeout_s)
        if len(self.waits) <= self._late:
            raise ProcessTimeoutError("it still runs")
        return FinishedProcess(("pw-probe",), 0, "", "")


def test_a_guest_that_ended_is_noticed_while_the_other_waits_for_its_answer() -> None:
    def gone() -> None:
        raise PlanewiseError("the virtual machine ended")

    in_time, waiting, slow = LateProbe(0), LateProbe(99), LateProbe(2)
    await_late_end(in_time, gone, expected_s=4.0, late_s=60.0)
    with pytest.raises(PlanewiseError, match="the virtual machine ended"):
        await_late_end(waiting, gone, expected_s=4.0, late_s=60.0)
    assert in_time.waits == waiting.waits
    assert waiting.waits[0] is not None
    assert 4.0 < waiting.waits[0] < 10.0
    await_late_end(slow, lambda: None, expected_s=4.0, late_s=60.0)
    assert len(slow.waits) == 3


def test_a_probe_that_hangs_is_left_to_its_limit() -> None:
    hanging = LateProbe(1_000_000_000)
    await_late_end(hanging, lambda: None, expected_s=0.0, late_s=0.05)
