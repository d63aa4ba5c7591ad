"""planewised under its unit beside the host's own libvirt: two machines that hold VFs."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Iterator
from itertools import pairwise

import pytest

from planewise.boot import kernel, packages
from tests.lab.test_machines import DOMAIN, guest

from .stage import BESIDE_ADDRESS, PATIENCE_S, Stage

MACHINES = {"vm0": "198.18.8.20", "vm1": "198.18.8.21"}
IMAGES = "/var/lib/libvirt/images"

NIC = """
<interface type='bridge'>
  <mac address='52:54:00:12:34:2NUMBER'/>
  <source bridge='pwbr'/>
  <model type='virtio'/>
  <teaming type='persistent'/>
  <alias name='ua-net0'/>
  <rom enabled='no'/>
</interface>
"""

CPU = "<cpu mode='maximum'><feature policy='disable' name='cx16'/></cpu>"
"""Debian 12's QEMU (7.2) now and then faults where a guest's kernel uses cmpxchg16b."""

STEP_TIMEOUT_S = 60


def domain(name: str) -> str:
    """The machine's definition: of tests/lab/test_machines.py, with a NIC on the host's bridge."""
    words = {
        "KERNEL": f"{IMAGES}/vmlinuz",
        "INITRD": f"{IMAGES}/{name}.initrd",
        "EMULATOR": "/usr/bin/qemu-system-x86_64",
        "CONSOLE": f"/var/log/libvirt/qemu/{name}.console",
        "<cpu mode='maximum'/>": CPU,
        "<name>web</name>": f"<name>{name}</name>",
        "</devices>": NIC.replace("NUMBER", name[-1]) + "</devices>",
    }
    return re.sub("|".join(words), lambda found: words[found.group()], DOMAIN)


@pytest.fixture(scope="module")
def machines(
    stage: Stage, tmp_path_factory: pytest.TempPathFactory, said: list[str]
) -> Iterator[Stage]:
    """Both machines up, each with a VF."""
    scratch = tmp_path_factory.mktemp("machines")
    stage.a.put(kernel.find(packages.cache_directory()).image, f"{IMAGES}/vmlinuz")
    stage.shell(
        f"sed -i 's/^step_timeout_s = .*/step_timeout_s = {STEP_TIMEOUT_S}.0/' "
        "/etc/planewise/planewised.toml; systemctl restart planewised"
    )
    stage.settle()
    begun = time.monotonic()
    try:
        for name, address in MACHINES.items():
            initrd, xml = scratch / f"{name}.initrd", scratch / f"{name}.xml"
            initrd.write_bytes(gzip.compress(guest(address), 1))
            xml.write_text(domain(name))
            stage.a.put(initrd, f"{IMAGES}/{initrd.name}")
            stage.a.put(xml, f"/tmp/{xml.name}")
            stage.shell(f"virsh -q define /tmp/{xml.name}; virsh -q start {name}")
            # Emulated twice, it boots for minutes, and for many more while VFs come and go.
            stage.wish_when_up(name, "excluded")
        for name, address in MACHINES.items():
            stage.until(f"{name} to answer", lambda: reached(stage, address))  # noqa: B023
            stage.move(name, "pinned")
            stage.wish(name, "free")
        said.append(f"two machines of libvirt's have VFs after {time.monotonic() - begun:.0f} s")
        yield stage
    finally:
        for name in MACHINES:
            stage.shell(f"virsh -q destroy {name} || :; virsh -q undefine {name} || :")
        stage.until("the machines to be forgotten", lambda: len(stage.status().guests) == 2)


def reached(stage: Stage, address: str) -> bool:
    argv = ["ping", "-q", "-n", "-c", "3", "-i", "0.3", "-w", "20", address]
    return stage.b.run(argv, timeout_s=120).exit_code == 0


def assert_machines_whole(stage: Stage, moment: str, *holding: str) -> None:
    """These machines hold one VF each, by libvirt's word, the PF's and the daemon's."""
    vfs = stage.vfs()
    for name in MACHINES:
        mac = f"52:54:00:12:34:2{name[-1]}"
        held = [vf for vf in vfs if vf["config"]["mac"] == mac]
        hostdevs = stage.shell(f"virsh dumpxml {name} | grep -c '<hostdev' || :").strip()
        assert (len(held), hostdevs) == ((1, "1") if name in holding else (0, "0")), (moment, vfs)
    macs = [vf["config"]["mac"] for vf in vfs]
    assert len(set(macs)) == len(macs), (moment, macs)
    stage.assert_whole(moment)


class Pings:
    """10 packets a second from the other host to each address, until they are ended."""

    def __init__(self, stage: Stage, *addresses: str) -> None:
        ping = ["ping", "-n", "-D", "-i", "0.1", "-W", "1"]
        self._running = {address: stage.b.start([*ping, address]) for address in addresses}

    def end(self) -> str:
        """What they saw."""
        for running in self._running.values():
            running.interrupt()
        ended = {address: one.wait(PATIENCE_S) for address, one in self._running.items()}
        return "; ".join(f"{address} {silence(one.stdout)}" for address, one in ended.items())


def silence(text: str) -> str:
    """What a ping printed, in short."""
    seen = [(float(at), int(n)) for at, n in re.findall(r"\[([\d.]+)\].*icmp_seq=(\d+)", text)]
    lost = max(number for _, number in seen) - len({number for _, number in seen})
    gap_s = max(after - before for (before, _), (after, _) in pairwise(seen))
    return f"{lost} of {lost + len(seen)} lost, {gap_s:.1f} s silent at most"


def test_a_machine_that_lets_go_late_gives_its_vf_back_and_one_that_restarts_meanwhile_gets_one(
    machines: Stage, said: list[str]
) -> None:
    stage = machines
    assert_machines_whole(stage, "before", *MACHINES)
    pings = Pings(stage, MACHINES["vm0"], BESIDE_ADDRESS)
    stage.shell("virsh -q suspend vm0")
    stage.wish("vm0", "excluded")
    stage.until("vm0 to be moved", lambda: stage.is_moving("vm0"))
    begun = time.monotonic()
    # Another's machine is destroyed and started while vm0's move is blocked.
    stage.shell("virsh -q destroy vm1; virsh -q start vm1")
    stage.until("vm1 to have a VF again", lambda: stage.holds("vm1"))
    blocked = "still blocked" if stage.is_moving("vm0") else "ended by then"
    stage.until("vm0 to be given up", lambda: not stage.is_moving("vm0"))
    gave_up_s = time.monotonic() - begun
    time.sleep(1)
    stage.shell("virsh -q resume vm0")
    stage.until("vm0's VF to be taken back", lambda: stage.holds("vm0", vf=False))
    late_s = time.monotonic() - begun
    assert_machines_whole(stage, "after a late unplug", "vm1")
    assert reached(stage, MACHINES["vm0"])
    said.append(
        f"vm1 destroyed and started while vm0's move was blocked ({blocked} when vm1 had a VF); "
        f"vm0 given up after {gave_up_s:.0f} s (limit {STEP_TIMEOUT_S}), its VF back after "
        f"{late_s:.0f} s; at 10 packets/s {pings.end()}"
    )
    # What it was marked for is over.
    assert next(one for one in stage.status().guests if one.id == "vm0").marked is None
    stage.wish("vm0", "free")
    stage.until("vm0 to have a VF again", lambda: stage.holds("vm0"))
    assert_machines_whole(stage, "after all", *MACHINES)


def test_while_libvirt_is_stopped_its_machines_keep_what_they_have(
    machines: Stage, said: list[str]
) -> None:
    stage = machines
    before = {guest.id: guest.vf for guest in stage.status().guests}
    pings = Pings(stage, *MACHINES.values())
    units = "libvirtd.socket libvirtd-ro.socket libvirtd-admin.socket libvirtd.service"
    stage.shell(f"systemctl stop {units}")
    try:
        begun = time.monotonic()
        while time.monotonic() - begun < 20:
            held = [vf["config"]["mac"] for vf in stage.vfs()]
            assert {f"52:54:00:12:34:2{name[-1]}" for name in MACHINES} <= set(held), held
            time.sleep(2)
    finally:
        stage.shell(f"systemctl start {units}")
    stage.until("all to be as before", lambda: now(stage) == before)
    seen = pings.end()
    assert_machines_whole(stage, "after libvirtd was away", *MACHINES)
    said.append(f"libvirtd stopped for 20 s and started, at 10 packets/s: {seen}")


def now(stage: Stage) -> dict[str, str | None]:
    return {guest.id: guest.vf for guest in stage.status().guests}
