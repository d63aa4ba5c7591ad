"""Virtual machines on given hosts, as values: what a host lacks, VFs, and guests kept in files."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.measure.designs.design import Design
from planewise.measure.trials import vm_options
from planewise.testbed.guests.vms.domain import Nic, Passthrough, nic_xml
from planewise.testbed.guests.vms.guests import read
from planewise.testbed.hosts.host import FinishedProcess
from planewise.testbed.hosts.machine import Machine, MachineState, Resources
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.model import HOSTS, Guest, Site, make_guest
from planewise.testbed.plan import await_up
from planewise.testbed.planes import PLANES, VmPlane, vhost_user, vm_plane
from planewise.testbed.refusals import shortage
from planewise.testbed.script import grouped
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.testbed import Testbed

if TYPE_CHECKING:
    from planewise.testbed.hosts.host import Host

VM_PLANES = [plane.name for plane in PLANES if isinstance(plane, VmPlane)]

HOST = Resources(
    "ssh://a", "eth4", "ixgbe", 63, 32_000, False, ovs=True, dpdk=True, huge_pages=True, cpus=8
)
SITE = Site("sender", "", "eth4", 1500, "eth4", "pw-0-b")


def setting(plane: str, background: str = "virtio-bridge", guests: int = 0) -> Setting:
    return Setting("vm", plane, background, guests, "north-south")


def guest(plane: str) -> Guest:
    return replace(make_guest("0" * 8, "sender", "main", 0, plane), port="pw00000000001")


@pytest.mark.parametrize("plane", VM_PLANES)
def test_a_host_that_has_all_lacks_nothing(plane: str) -> None:
    assert shortage(setting(plane, plane, 8), HOST, True) == ""


@pytest.mark.parametrize(
    ("plane", "guests", "found", "said"),
    [
        ("macvtap-vf", 0, replace(HOST, vfs=0), "eth4 of ssh://a has no SR-IOV"),
        ("macvtap-vf", 63, HOST, "needs 64 VFs on ssh://a, and eth4 has 63"),
        (
            "vf-passthrough",
            1,
            replace(HOST, vfs=1, used=("eth4/0 is moved to the namespace x",)),
            "needs 2 VFs on ssh://a, and eth4 has 1 free (eth4/0 is moved to the namespace x)",
        ),
        ("vf-passthrough", 0, replace(HOST, iommu=False), "has no IOMMU"),
        ("virtio-bridge", 16, replace(HOST, driver="igb", vfs=7), "needs 17 MAC addresses behind"),
        ("macvtap-vf", 4, replace(HOST, free_mib=600), "5 virtual machines on ssh://a need about"),
        ("vhost-user", 0, replace(HOST, dpdk=False), "no Open vSwitch with DPDK on ssh://a"),
        (
            "vhost-user",
            0,
            replace(HOST, huge_pages=False),
            "the kernel of ssh://a has no huge pages",
        ),
        (
            "vhost-user",
            0,
            replace(HOST, free_mib=800),
            "1 virtual machines on ssh://a with a DPDK switch need about 842 MiB",
        ),
    ],
)
def test_what_a_host_lacks_is_one_sentence(
    plane: str, guests: int, found: Resources, said: str
) -> None:
    assert said in shortage(setting(plane, plane, guests), found, True)


def test_a_vf_without_an_iommu_still_serves_a_macvtap() -> None:
    assert shortage(setting("macvtap-vf"), replace(HOST, iommu=False), True) == ""


def test_a_macvtap_on_a_vf_has_all_of_it_and_its_address() -> None:
    plane = vm_plane("macvtap-vf")
    (add, *_) = plane.attach(replace(SITE, nic="eth4v0"), guest("macvtap-vf"))
    assert add.words.startswith("link add link eth4v0 name pw00000000001 index ")
    assert add.words.endswith(" type macvtap mode passthru")
    assert " address " not in str(add)


def test_a_guest_that_drives_its_vf_itself_is_seen_nowhere_on_the_host() -> None:
    def arranged(plane: str) -> Arrangement:
        mains = {"sender": guest(plane), "responder": guest(plane)}
        nics = {"sender": "eth4v0", "responder": "eth4v1"}
        sites = {role: replace(SITE, nic=nic) for role, nic in nics.items()}
        ports = {role: vm_plane(plane).host_interface(main) for role, main in mains.items()}
        return Arrangement(setting(plane), {}, mains, {}, sites, ports)  # type: ignore[arg-type]

    through = arranged("vf-passthrough")
    assert [point.name for point in through.capture_points] == ["sender_inside", "responder_inside"]
    assert through.counter_points == ()
    assert set(through.not_measurable) == {"overhead", "response"}
    assert all("cannot see them" in why for why in through.not_measurable.values())
    seen = arranged("macvtap-vf")
    assert not seen.not_measurable
    assert [point.name for point in seen.capture_points] == [
        "sender_inside",
        "sender_guest",
        "sender_nic",
        "responder_nic",
        "responder_guest",
        "responder_inside",
    ]
    assert seen.capture_points[2].interface == "eth4v0"


def test_a_machine_on_vhost_user_listens_where_the_port_of_its_switch_connects() -> None:
    plane, site = vm_plane("vhost-user"), replace(SITE, directory="/tmp/x/pw-0")
    machine = guest("vhost-user")
    (added,) = plane.attach(site, machine)
    socket = "/tmp/x/pw-0-ovs-dpdk/pw00000000001.sock"
    assert plane.socket(site, machine) == socket
    assert "--db=unix:/tmp/x/pw-0-ovs-dpdk/db.sock" in str(added)
    assert f'options:vhost-server-path="{socket}"' in str(added)
    assert "add-port pw-0-bu pw00000000001 " in str(added)
    device = ElementTree.fromstring(nic_xml(Nic("virtio", machine.mac, socket=socket, queues=2)))
    source, driver = device.find("source"), device.find("driver")
    assert source is not None
    assert driver is not None
    assert (source.get("path"), source.get("mode")) == (socket, "server")
    assert driver.get("queues") == "2"


class Quiet:
    """A host on which everything succeeds."""

    directory = "/scratch"

    def __init__(self) -> None:
        self.ran: list[list[str]] = []

    def run(self, argv: list[str], **_: object) -> FinishedProcess:
        self.ran.append(argv)
        return FinishedProcess(tuple(argv), 0, "2", "")


def test_a_polling_switch_that_does_not_start_leaves_neither_pages_nor_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pages: list[str] = []

    @contextmanager
    def reserved(*_: object) -> Iterator[None]:
        pages.append("taken")
        yield
        pages.append("returned")

    def fail(*_: object, **__: object) -> None:
        raise UnsupportedError("Open vSwitch could not start DPDK")

    monkeypatch.setattr(vhost_user.hugepages, "reserved", reserved)
    monkeypatch.setattr(vhost_user, "RunningDpdkSwitch", fail)
    host = Quiet()
    state = MachineState(Machine(cast("Host", host), "eth4", "b", "d"), "sender", "0" * 8)
    for _ in range(2):
        with pytest.raises(UnsupportedError, match="could not start DPDK"):
            vhost_user.PLANE.switch.create(state, SITE)
    assert pages == ["taken", "returned"] * 2
    directory = "/scratch/pw-00000000-ovs-dpdk"
    assert host.ran.count(["mkdir", "-p", directory]) == 2
    assert host.ran.count(["rm", "-rf", directory]) == 2


def test_a_host_without_a_switch_that_is_a_program_makes_no_directory_for_one() -> None:
    class Spare(Quiet):
        @property
        def directory(self) -> str:
            raise AssertionError("nobody needs it")

    machine = Machine(cast("Host", Spare()), "eth4", "b", "d")
    state = MachineState(machine, "sender", "0" * 8)
    assert state.directory == ""


def test_frames_that_the_device_of_a_polling_switch_does_not_take_are_refused() -> None:
    machines = {role: Machine(cast("Host", None), "eth4", "b", "d") for role in HOSTS}
    testbed = Testbed(Pair(machines, "0" * 8, separate=True), 9000)
    wanted = setting("vhost-user")
    (said,) = testbed.check([wanted]).values()
    assert said.startswith("the plane vhost-user has frames of up to 1518 bytes, the limit")


def test_machines_on_vhost_user_are_seen_at_the_nic_and_within_them_alone() -> None:
    plane = vm_plane("vhost-user")
    mains = {role: guest("vhost-user") for role in HOSTS}
    ports = {role: plane.host_interface(main) for role, main in mains.items()}
    sites = {role: replace(SITE, host=role, uplink="pw-0-bu") for role in HOSTS}
    seen = Arrangement(setting("vhost-user"), {}, mains, {}, sites, ports)
    names = ["sender_inside", "sender_nic", "responder_nic", "responder_inside"]
    assert [point.name for point in seen.capture_points] == names
    assert not seen.not_measurable
    assert {point.interface for point in seen.counter_points} == {"eth4"}


def test_all_guests_of_a_design_with_vhost_user_share_their_memory() -> None:
    def options(**factors: object) -> bool:
        design = {"factors": {"guest": "vm", **factors}, "rtt": {}}
        return vm_options(Design.model_validate(design)).shared_memory

    assert options(plane=["virtio-bridge", "vhost-user"])
    assert options(plane="virtio-bridge", background_plane=["same", "vhost-user"])
    assert not options(plane="virtio-bridge")


def test_a_function_is_passed_through_by_its_address() -> None:
    device = ElementTree.fromstring(nic_xml(Passthrough("0000:01:10.2")))
    assert (device.tag, device.get("managed")) == ("hostdev", "no")
    address = device.find("source/address")
    assert address is not None
    assert address.attrib == {"domain": "0x0000", "bus": "0x01", "slot": "0x10", "function": "0x2"}


def test_one_interface_is_awaited_where_others_are_somebody_elses() -> None:
    (group,) = grouped((await_up("", "eth4v0"),))
    assert "link show dev eth4v0 up" in group.command


def saved_file(directory: Path, xml: str, cookie: bytes, stream: bytes) -> Path:
    text = xml.encode() + b"\0"
    at = len(text) if cookie else 0
    numbers = struct.pack("<19I", 2, len(text) + len(cookie), 1, 0, at, *[0] * 14)
    path = directory / "kept.save"
    path.write_bytes(b"LibvirtQemudSave" + numbers + text + cookie + stream)
    return path


@pytest.mark.parametrize("cookie", [b"", b"<cookie/>\0"])
def test_a_kept_guest_wakes_under_another_name_with_the_same_memory(
    tmp_path: Path, cookie: bytes
) -> None:
    kept = read(saved_file(tmp_path, "<domain><name>kept</name></domain>", cookie, b"memory"))
    assert kept.path.read_bytes()[kept.stream_at :] == b"memory"
    xml = "<domain><name>pw-1-sm1</name></domain>"
    again = tmp_path / "again.save"
    again.write_bytes(kept.header(xml) + b"memory")
    woken = read(again)
    content = again.read_bytes()
    assert content[woken.stream_at :] == b"memory"
    assert content[: woken.stream_at].endswith(f"{xml}\0".encode())


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader_of_kept_guests(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "kept.save"
        path.write_bytes(content)
        if not content.startswith(b"LibvirtQemudSave"):
            with pytest.raises(PlanewiseError, match="holds no guest"):
                read(path)


def designs() -> Iterator[tuple[dict[str, object], str]]:
    yield {"vcpus": 2, "queues": 4}, "a queue needs a virtual CPU"
    yield {"vcpus": 0}, "greater than or equal to 1"
    yield {"memory_mib": 1}, "greater than or equal to 64"
    yield {"pinned": 1}, "Extra inputs"


@pytest.mark.parametrize(("part", "said"), list(designs()))
def test_options_of_a_design_that_no_machine_can_have_are_refused(
    part: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        Design.model_validate({"factors": {"plane": "virtio-bridge", "guest": "vm"}, "vm": part})


def test_a_design_says_how_its_virtual_machines_are_built() -> None:
    part = {"vcpus": 2, "queues": 2, "vhost": False, "offloads": True, "main_cpus": [0, 1]}
    design = Design.model_validate(
        {"factors": {"plane": "virtio-bridge", "guest": "vm"}, "vm": {**part, "memory_mib": 128}}
    )
    options = vm_options(design)
    assert (options.vcpus, options.queues, options.vhost, options.offloads) == (2, 2, False, True)
    assert (options.main_cpus, options.background_cpus, options.memory_mib) == ((0, 1), (), 128)
