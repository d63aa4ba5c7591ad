"""A machine of libvirt's, nested in a lab's host, whose VF the daemon plugs and unplugs.

Under traffic from the other host, and with the daemon killed in between.
"""

from __future__ import annotations

import gzip
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from planewise import lab
from planewise.boot import cpio, kernel, packages, tools
from planewise.boot.initramfs import busybox_entries, module_entries
from planewise.errors import PlanewiseError
from planewise.testbed.guests.vms.hypervisor import Libvirt
from planewise.testbed.guests.vms.platform import VmPlatform, check, platform_of
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.remote import LabHost
from planewise.testbed.vfs.nic import find_planewised

from .conftest import NESTED, UpLab

pytestmark = [pytest.mark.timeout(2400), NESTED]

GUEST, MAC = "198.18.0.10", "52:54:00:12:34:10"
PEER = "198.18.0.2"
WAIT_S = 900.0
"""For conditions that are waited for: a machine in a machine, both emulated, is slow."""

PREPARE = """
modprobe vfio-pci
modprobe vfio_iommu_type1
ip link set pf0 up
ip link add br0 type bridge
ip link set br0 type bridge stp_state 0
ip link set pf0 master br0
ip link set br0 up
ip tuntap add tap0 mode tap
ip link set tap0 master br0
ip link set tap0 up
mkdir -p /run/m
/tmp/planewised vf setup pf0 --count 2 --owner test >/dev/null
"""

TEAR_DOWN = """
ip link del tap0
ip link del br0
/tmp/planewised vf restore --owner test
rm -rf /run/m
"""

INIT = """#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module"; done </modules/order
echo ready
until [ -e /proc/sys/net/ipv4/conf/eth0 ]; do $b sleep 1; done
$b ip link set eth0 up
$b ip addr add ADDRESS/24 dev eth0
while :; do $b sleep 1000000; done
"""

DOMAIN = """
<domain type='qemu'>
  <name>web</name>
  <memory unit='MiB'>112</memory>
  <vcpu>1</vcpu>
  <metadata><p:managed xmlns:p='urn:planewise:libvirt:1' class='1'/></metadata>
  <os>
    <type arch='x86_64' machine='q35'>hvm</type>
    <kernel>KERNEL</kernel><initrd>INITRD</initrd>
    <cmdline>console=ttyS0 quiet panic=-1 net.ifnames=0 random.trust_cpu=on no_timer_check
      tsc=reliable rcupdate.rcu_expedited=1 mitigations=off audit=0 selinux=0 apparmor=0
      kfence.sample_interval=0 percpu_alloc=page nohugevmalloc cryptomgr.notests nr_cpus=1</cmdline>
  </os>
  <features><acpi/><tcg><tb-cache unit='MiB'>64</tb-cache></tcg></features>
  <cpu mode='maximum'/>
  <on_poweroff>destroy</on_poweroff><on_reboot>destroy</on_reboot><on_crash>destroy</on_crash>
  <devices>
    <emulator>EMULATOR</emulator>
    <controller type='pci' index='0' model='pcie-root'/>
    <controller type='pci' index='1' model='pcie-root-port'/>
    <controller type='pci' index='2' model='pcie-root-port'/>
    <controller type='pci' index='3' model='pcie-root-port'/>
    <serial type='file'><source path='CONSOLE'/><target type='isa-serial' port='0'/></serial>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""

NIC = f"""
<interface type='ethernet'>
  <mac address='{MAC}'/>
  <target dev='tap0' managed='no'/>
  <model type='virtio'/>
  <teaming type='persistent'/>
  <alias name='ua-net0'/>
  <rom enabled='no'/>
</interface>
"""

CONFIGURATION = """
socket = "/run/m/sock"
state_directory = "/run/m/state"
sample_s = 0.5
step_timeout_s = 300.0
[pool]
pfs = ["pf0"]
[containers]
docker = ""
[machines]
sockets = ["LIBVIRT"]
[alloc]
policy = "static"
interval_s = 0.5
min_residency_s = 0.0
[guests.web]
stance = "STANCE"
"""

START = """
echo $$ >/run/m/pid
exec env PLANEWISE_TEST_KILL_AT="$1" /tmp/planewised daemon --config /run/m/config
"""


class Stage:
    """The hosts, the machine's libvirt, and the daemon."""

    def __init__(self, here: LabHost, peer: LabHost, libvirt: Libvirt) -> None:
        self.here, self.peer, self.libvirt = here, peer, libvirt

    def wish(self, stance: str) -> None:
        """Has the daemon, if it runs, take the VF from the machine (excluded) or give it one."""
        socket = f"{self.libvirt.directory}/sock/libvirt-sock"
        text = CONFIGURATION.replace("LIBVIRT", socket).replace("STANCE", stance)
        script = f"cat >/run/m/config <<'E'\n{text}E\nkill -HUP $(cat /run/m/pid) 2>/dev/null || :"
        self.here.run(["sh", "-c", script]).check()

    def start(self, kill_at: str = "") -> Any:
        return self.here.start(["sh", "-c", START, "sh", kill_at])

    def status(self) -> dict[str, Any]:
        argv = ["curl", "-sS", "--unix-socket", "/run/m/sock", "http://planewised/status"]
        answer: dict[str, Any] = json.loads(self.here.run(argv, timeout_s=120).check().stdout)
        return answer

    def await_vf(self, held: bool, daemon: Any) -> dict[str, Any]:
        """Waits until the machine has a VF, or none."""
        deadline = time.monotonic() + WAIT_S
        while True:
            assert time.monotonic() < deadline, self.here.read_text("/run/m/log")
            assert daemon.running, daemon.wait(0).stderr
            try:
                status = self.status()
            except PlanewiseError:  # it does not listen yet
                continue
            guests = [one for one in status["guests"] if not one["moving"]]
            if [one["vf"] is not None for one in guests] == [held]:
                return status

    def vfs(self) -> list[dict[str, Any]]:
        done = self.here.run(["/tmp/planewised", "vf", "list", "pf0", "--json"], timeout_s=120)
        (pf,) = json.loads(done.check().stdout)["pfs"]
        return list(pf["vfs"])

    def check(self, held: bool) -> None:
        """No VF is lost, held twice or has the machine's address for nothing; it is reached."""
        assert self.reached()
        vfs = self.vfs()
        assert len(vfs) == 2
        assert [vf["config"]["mac"] for vf in vfs].count(MAC) == held, vfs
        assert sum(vf["driver"] == "vfio-pci" for vf in vfs) == held, vfs
        assert sum(vf["used_by"] is not None for vf in vfs) == held, vfs

    def pf_takes_it(self) -> bool:
        """Whether the machine's address is in the PF's filter."""
        return MAC in self.here.run(["bridge", "fdb", "show", "dev", "pf0", "self"]).check().stdout

    def reached(self) -> bool:
        argv = ["sh", "-c", f"ping -n -c 200 -i 0.2 -w 120 {GUEST} | grep -m 3 -c 'bytes from'"]
        return self.peer.run(argv, timeout_s=300).stdout.strip() == "3"


@pytest.fixture(scope="module")
def stage(up: UpLab, tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Iterator[Stage]:
    with closing(LocalHost("machine")) as machine:
        try:
            check(machine)
            ours = platform_of(machine)
        except PlanewiseError as error:
            pytest.skip(f"{error.what}: {error.remedy}")
    saved, console = booted(ours, tmp_path_factory.mktemp("machine"))
    here, peer = (LabHost("t", name, name=name) for name in lab.HOSTS)
    try:
        here.put(Path(find_planewised()), "/tmp/planewised")
        here.run(["sh", "-ec", PREPARE], timeout_s=300).check()
        peer.run(["sh", "-ec", f"ip link set pf0 up; ip addr add {PEER}/24 dev pf0"]).check()
        with Libvirt(here) as libvirt:
            standing = Stage(here, peer, libvirt)
            begun = time.monotonic()
            libvirt.restore(str(saved), "web")
            libvirt.attach("web", NIC)
            while not standing.reached():
                assert time.monotonic() - begun < WAIT_S, here.read_text(str(console))
            took_s = time.monotonic() - begun
            said.append(f"a machine in a machine up after {took_s:.0f} s")
            yield standing
    finally:
        here.run(["sh", "-c", TEAR_DOWN], timeout_s=300)
        peer.run(["ip", "address", "del", f"{PEER}/24", "dev", "pf0"])
        here.close()
        peer.close()


def booted(ours: VmPlatform, directory: Path) -> tuple[Path, Path]:
    """The machine, booted here and kept in a file, and where its console is.

    One emulated CPU inside another boots in minutes.
    """
    initrd, console, kept = (directory / name for name in ("initrd", "console", "kept"))
    initrd.write_bytes(gzip.compress(guest(GUEST), 1))
    words = {
        "KERNEL": str(ours.image.kernel),
        "INITRD": str(initrd),
        "EMULATOR": ours.qemu,
        "CONSOLE": str(console),
    }
    xml = re.sub("|".join(words), lambda found: words[found.group()], DOMAIN)
    host = LocalHost("machine")
    try:
        with Libvirt(host) as libvirt:
            libvirt.start(xml, "web")
            begun = time.monotonic()
            while not console.exists() or "ready" not in console.read_text():
                assert time.monotonic() - begun < WAIT_S, console.read_text()
                time.sleep(0.05)
            libvirt.save("web", str(kept))
    finally:
        host.close()
    return kept, console


def guest(address: str) -> bytes:
    """The archive that the machine boots: drivers, this address, and nothing else."""
    cache = packages.cache_directory()
    return cpio.archive(
        [
            *busybox_entries(tools.find(cache).busybox),
            cpio.directory("proc"),
            cpio.file("init", INIT.replace("ADDRESS", address).encode(), 0o755),
            *module_entries(kernel.find(cache), ("virtio_pci", "virtio_net", "igbvf")),
        ]
    )


def test_a_machines_vf_is_plugged_and_unplugged_under_traffic_and_a_killed_daemon_recovers(
    stage: Stage, said: list[str]
) -> None:
    # Guests on VFs reach what the PF asks for: a machine, too, that never had a VF.
    stage.wish("excluded")
    with stage.start() as daemon:
        stage.await_vf(False, daemon)
        deadline = time.monotonic() + WAIT_S
        while not stage.pf_takes_it():
            assert time.monotonic() < deadline
        daemon.interrupt()
        assert daemon.wait(WAIT_S).exit_code in (0, 128 + 2)
    stage.wish("free")
    # Killed when the device is in the guest and nothing is known of its path.
    assert stage.start("give/await-path/before").wait(WAIT_S).exit_code == 128 + 9
    with stage.start("take/clear-mac/before") as daemon:
        stage.await_vf(True, daemon)
        stage.check(held=True)
        # Killed when the guest has let the device go and the VF still has its address.
        stage.wish("excluded")
        assert daemon.wait(WAIT_S).exit_code == 128 + 9
    with stage.start() as daemon:
        stage.await_vf(False, daemon)
        stage.check(held=False)
        for stance, held in (("free", True), ("excluded", False)):
            said.append(under_traffic(stage, lambda: stage.wish(stance), held, daemon))  # noqa: B023
            stage.check(held=held)
        # A machine that ends takes no VF with it.
        stage.wish("free")
        stage.await_vf(True, daemon)
        stage.libvirt.destroy("web")
        deadline = time.monotonic() + WAIT_S
        while not at_home(stage):
            assert time.monotonic() < deadline, stage.vfs()
        assert stage.status()["guests"] == []
        daemon.interrupt()
        assert daemon.wait(WAIT_S).exit_code in (0, 128 + 2)


def at_home(stage: Stage) -> bool:
    return all(vf["driver"] == "igbvf" and vf["config"]["mac"] != MAC for vf in stage.vfs())


def under_traffic(stage: Stage, do: Callable[[], None], held: bool, daemon: Any) -> str:
    """What a move costs 10 packets a second from the other host, as a sentence.

    At 50 a second the VF's interrupts, emulated twice, left the machine no time to let it go: 103 s
    in one run, not within 300 s in another.
    """
    with stage.peer.start(["ping", "-n", "-D", "-i", "0.1", "-W", "1", GUEST]) as ping:
        while stage.peer.run(["ping", "-n", "-c", "1", "-W", "5", GUEST]).exit_code != 0:
            assert ping.running
        do()
        status = stage.await_vf(held, daemon)
        assert stage.reached()
        ping.interrupt()
        said = ping.wait(WAIT_S).stdout
    seen = [
        (float(at), int(number)) for at, number in re.findall(r"\[([\d.]+)\].*icmp_seq=(\d+)", said)
    ]
    lost = max(number for _, number in seen) - len({number for _, number in seen})
    gap_s = max(after - before for (before, _), (after, _) in pairwise(seen))
    took_ms = status["moves"][-1]["duration_ms"]
    kind = "plugged" if held else "unplugged"
    return (
        f"a nested machine's VF {kind} in {took_ms / 1e3:.1f} s under traffic: {lost} packets of "
        f"{len(seen) + lost} lost at 10 pps, longest silence {gap_s:.1f} s"
    )
