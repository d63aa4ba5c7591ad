"""Machines and containers that an allocator gives VFs to: designs, refusals, configuration."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import cast
from xml.etree import ElementTree

import pytest

from planewise.boot.model import Accelerator
from planewise.errors import PlanewiseError, UnsupportedError
from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design_file import load_design
from planewise.measure.designs.schedule import make_schedule
from planewise.measure.runs import stations
from planewise.measure.runs.stations import Allocators
from planewise.measure.trials import vm_options
from planewise.measure.trials.alloc import AllocTrial
from planewise.testbed.guests.vms.domain import VmOptions, domain_xml, nic_xml
from planewise.testbed.guests.vms.guests import nic_of
from planewise.testbed.guests.vms.image import GuestImage
from planewise.testbed.guests.vms.managed import managed_guests
from planewise.testbed.guests.vms.platform import VmPlatform
from planewise.testbed.hosts.host import FinishedProcess, LocalHost
from planewise.testbed.hosts.machine import Resources
from planewise.testbed.hosts.pair import Pair
from planewise.testbed.model import make_guest
from planewise.testbed.testbed import Testbed
from planewise.testbed.vfs import allocator, nic
from planewise.testbed.vfs.allocator import Allocator, AllocatorSettings, configuration
from planewise.testbed.vfs.nic import Pf
from tests.command import invoked

ROOT = Path(__file__).parents[2]
SWITCHES = MappingProxyType(
    {
        "flexvf-switch-lab.yaml": "namespace",
        "flexvf-switch-container-lab.yaml": "container",
        "flexvf-switch-vm-lab.yaml": "vm",
    }
)
PLATFORM = VmPlatform(
    "/usr/bin/qemu",
    Accelerator("tcg", "made up"),
    False,
    GuestImage(Path("/k"), Path("/i"), "6", 80),
)


@pytest.mark.parametrize(("name", "kind"), SWITCHES.items())
def test_a_switch_is_measured_in_guests_of_each_kind(name: str, kind: str) -> None:
    design = load_design(ROOT / "experiments" / name)
    (cell,) = cells_of(design)
    assert cell.guest == kind
    (first, *_) = make_schedule(design, {}, {}).visits
    (trial,) = first.trials
    assert isinstance(trial, AllocTrial)
    assert trial.policy == "switch"
    result = invoked("run", ROOT / "experiments" / name, "--dry-run")
    assert "run it with --lab" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("guest", "plane", "more", "said"),
    [
        ("vm", "bridge", "", "virtual machines on virtio-bridge, not on bridge"),
        ("container", "virtio-bridge", "", "containers on bridge, not on virtio-bridge"),
        ("vm", "vf-passthrough", "", "not on vf-passthrough"),
        ("vm", "virtio-bridge", "rtt: {}", "by `alloc` alone, not by `rtt`"),
        ("process", "vhost-user", "", "gives no VFs to guests that are"),
    ],
)
def test_guests_and_planes_that_planewised_does_not_manage_are_refused(
    tmp_path: Path, guest: str, plane: str, more: str, said: str
) -> None:
    file = tmp_path / "design.yaml"
    factors = f"{{guest: {guest}, plane: {plane}, background_guests: 2}}"
    file.write_text(f"factors: {factors}\nalloc: {{vfs: 1}}\n{more}\n")
    with pytest.raises(PlanewiseError) as raised:
        load_design(file)
    assert said in str(raised.value)


def test_a_machine_is_named_to_the_daemon_by_its_domain_and_its_libvirt_by_the_socket() -> None:
    guests = managed_guests("ab12", 2)
    settings = AllocatorSettings("static", {guests[0].name: "excluded"})
    told = tomllib.loads(configuration(settings, guests, "/run/x", "pf0", "/run/x/libvirt-sock"))
    assert told["machines"]["sockets"] == ["/run/x/libvirt-sock"]
    assert "namespaces" not in told["containers"]
    assert told["step_timeout_s"] == allocator.MACHINE_S
    assert {name: own["stance"] for name, own in told["guests"].items()} == {
        guests[0].netns: "excluded",
        guests[1].netns: "free",
    }


def test_machines_share_no_name_and_no_address_with_the_namespaces_beside_them() -> None:
    machines = managed_guests("ab12", 8)
    beside = [make_guest("ab12", "responder", "background", n, "bridge", n + 1) for n in range(64)]
    for of in ("netns", "mac", "ipv4", "ipv6"):
        values = [getattr(guest, of) for guest in (*machines, *beside)]
        assert len(set(values)) == len(values), of


def test_a_machine_that_is_managed_has_the_mark_slots_for_a_vf_and_a_nic_that_makes_way() -> None:
    options = VmOptions(managed=True)
    (guest,) = managed_guests("ab12", 1)
    nic = nic_of("virtio", guest, "tap0", PLATFORM, options)
    plain = domain_xml(guest, PLATFORM, VmOptions(), "/c") + nic_xml(replace(nic, standby=False))
    domain = ElementTree.fromstring(domain_xml(guest, PLATFORM, options, "/c"))
    assert domain.findtext("name") == guest.name
    assert domain.find("metadata/{urn:planewise:libvirt:1}managed") is not None
    machine = domain.find("os/type")
    assert machine is not None
    assert machine.get("machine") == "q35"
    ports = domain.findall("devices/controller[@model='pcie-root-port']")
    assert len(ports) >= 3, "its NIC, its agent's channel, and a VF"
    teaming = ElementTree.fromstring(nic_xml(nic)).find("teaming")
    assert teaming is not None
    assert teaming.attrib == {"type": "persistent"}
    assert not any(word in plain for word in ("teaming", "planewise", "q35", "pcie"))


class Written(LocalHost):
    """A host on which nothing is done; what it was told is kept."""

    def __init__(self, told: list[str]) -> None:
        super().__init__("test")
        self.told = told

    def run(
        self,
        argv: Sequence[str],
        *,
        netns: str | None = None,
        timeout_s: float = 60.0,
        stdin: bytes | None = None,
        expected_s: float = 0.0,
    ) -> FinishedProcess:
        self.told.append(" ".join(argv))
        return FinishedProcess(tuple(argv), 0, "", "")


def test_machines_start_once_there_are_vfs_and_end_before_these_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []
    host = Written(told)

    monkeypatch.setattr(nic, "find_planewised", lambda: "planewised")
    monkeypatch.setattr(nic.Tool, "restore", lambda *_: told.append("restore"))
    monkeypatch.setattr(nic.Tool, "pf", lambda *_: Pf(address="0", total_vfs=7, num_vfs=0, vfs=()))

    @contextmanager
    def starting() -> Iterator[str]:
        told.append("machines start")
        yield "/sock"
        told.append("machines end")

    try:
        guests = managed_guests("ab12", 2)
        assert [guest.name for guest in guests] == ["pw-ab12-rb512", "pw-ab12-rb513"]
        with Allocator(host, "pf0", "ab12", 1, guests, starting()):
            pass
    finally:
        host.close()
    order = [
        next(n for n, line in enumerate(told) if line.startswith(word))
        for word in (
            "modprobe -a vfio-pci",
            "planewised vf setup pf0",
            "machines start",
            "machines end",
            "restore",
        )
    ]
    assert order == sorted(order), told
    assert not any("bonding" in line for line in told)


def test_what_a_host_lacks_for_machines_is_said_before_anything_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    design = load_design(ROOT / "experiments/flexvf-switch-vm-lab.yaml")
    (cell,) = cells_of(design)
    assert design.alloc is not None
    machine = SimpleNamespace(host=None, nic="pf0")
    pair = SimpleNamespace(machines={"responder": machine}, token="ab12", separate=True)
    made = Allocators(design.alloc, vm_options(design), cast("Pair", pair))
    setting = made.setting(cell)
    assert (setting.kind, setting.planes) == ("namespace", {"bridge"})
    at_nic: list[int] = []

    def shortage(*args: object) -> str:
        at_nic.append(cast("int", args[-1]))
        return ""

    def why(free_mib: int = 4096, group: int | None = 3) -> str:
        found = Resources("lab:b", "pf0", "igb", 7, free_mib, dockerd=False)
        pf = Pf(address="0:0", total_vfs=7, num_vfs=0, vfs=(), iommu_group=group)
        monkeypatch.setattr(nic.Tool, "on", lambda _: SimpleNamespace(pf=lambda _: pf))
        return made.shortage(cast("Testbed", SimpleNamespace(resources=lambda _: found)), cell)

    def refuses(*_: object) -> VmPlatform:
        raise UnsupportedError("there is no libvirtd on lab:b, and virtual machines need it")

    monkeypatch.setattr(stations, "shortage", shortage)
    monkeypatch.setattr(stations, "platform_of", lambda *_: PLATFORM)
    assert why() == ""
    assert at_nic == [2 * cell.background_guests]
    assert made.platform == PLATFORM
    assert "2 virtual machines on lab:b need about" in why(free_mib=500)
    assert "no IOMMU" in why(group=None)
    monkeypatch.setattr(stations, "platform_of", refuses)
    assert "no libvirtd" in why()
