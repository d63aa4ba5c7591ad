"""The host on which planewised runs under its unit: its set-up, what is seen and done there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.remote import LabHost
from planewise.testbed.vfs.alloc_client import Client, GuestStatus, Status, guest_path
from tests.lab.moving import PPS, shell

SOCKET = "/run/planewise/planewised.sock"
PATIENCE_S = 600.0
"""Nothing of this takes a tenth of it on a quiet machine."""

DAEMON_JSON = {
    "bip": "198.18.100.1/24",
    "default-address-pools": [{"base": "198.18.128.0/17", "size": 24}],
    "live-restore": True,
}
"""Docker's settings: containers outlive its daemon, addresses are of the benchmarking range."""

MANAGED = {"web": "198.18.8.10", "batch": "198.18.8.11"}
"""Containers that hold one VF each, and their addresses."""

BESIDE, BESIDE_ADDRESS = "still", "198.18.8.12"
"""A container that the daemon is not told of; it is never moved."""

PEER = "198.18.8.2"
"""The other host's address in the containers' network."""

HOST, HOST_ADDRESS = "the host", "198.18.9.1"
"""The host's own address on its other NIC, which no guest has a path to."""

ADDRESSES = MANAGED | {BESIDE: BESIDE_ADDRESS, HOST: HOST_ADDRESS}

VFS = 4
"""VFs of pf0: one a managed container, two for virtual machines."""

SET_UP_PF = f"""
ethtool -G pf0 rx 4096
ip link set pf0 up master pwbr
planewised vf setup pf0 --count {VFS} >/dev/null
"""

SET_UP = f"""
printf '%s\\n' bonding vfio-pci vfio_iommu_type1 >/etc/modules-load.d/planewise.conf
modprobe -a bonding vfio-pci vfio_iommu_type1
ip link add pwbr type bridge mcast_snooping 0
ip link set pwbr up
{SET_UP_PF}
planewised vf setup pf1 --count 1 --driver vfio-pci >/dev/null
tar -C /usr/bin -c pw-probe | docker import --change 'ENTRYPOINT ["/pw-probe"]' - pw >/dev/null
docker network create --driver bridge --subnet 198.18.8.0/24 --gateway 198.18.8.1 \\
    --opt com.docker.network.bridge.name=pwbr pw >/dev/null
for guest in {BESIDE}={BESIDE_ADDRESS} {" ".join(f"{k}={v}" for k, v in MANAGED.items())}; do
    labels="--label planewise.managed=true --label planewise.stance=pinned"
    [ "${{guest%=*}}" != {BESIDE} ] || labels=
    docker run --detach --name ${{guest%=*}} --network pw --ip ${{guest#*=}} $labels pw \\
        reflect --poll-us 0 >/dev/null
done
ip link set pf1 up
ip address add {HOST_ADDRESS}/24 dev pf1
systemd-run --quiet --unit reflector pw-probe reflect --poll-us 0
"""

DPDK = """
useradd --system dpdk
echo 64 >/proc/sys/vm/nr_hugepages
vf=$(basename "$(readlink /sys/class/net/pf1/device/virtfn0)")
chown dpdk "/dev/vfio/$(basename "$(readlink /sys/bus/pci/devices/$vf/iommu_group)")"
systemd-run --quiet --unit testpmd --uid dpdk -p LimitMEMLOCK=infinity \\
    -p RuntimeDirectory=testpmd sh -c "sleep infinity | exec dpdk-testpmd --lcores 0@0,1@0 \\
    --in-memory --no-telemetry --file-prefix t -m 64 -a $vf -- --no-mlockall -i \\
    --total-num-mbufs=4096"
"""
"""A process of another user that holds pf1's VF; it waits for commands: polling takes the CPU."""

HELD = """
pid=$(pgrep -x -u dpdk dpdk-testpmd) || exit 0
ls -l /proc/$pid/fd | grep '/dev/vfio/[0-9]' || :
"""

CONFIGURE = """
sed -i 's/^pfs = \\[\\]/pfs = ["pf0", "pf1"]/; s/^sample_s = .*/sample_s = 0.5/' \\
    /etc/planewise/planewised.toml
sed -i 's/^min_residency_s = .*/min_residency_s = 0.0/; s/^retry_most_s = .*/retry_most_s = 8.0/' \\
    /etc/planewise/planewised.toml
systemctl enable --now planewised
"""


SUM_UP = """
awk -F, 'NR > 1 && !/unsent/ {
    sent++
    if (latest && $3 - latest > silence) silence = $3 - latest
    if ($6 == "") next
    answered++
    if (latest && $6 - latest > silence) silence = $6 - latest
    if ($6 > latest) latest = $6
} END { print sent + 0, answered + 0, silence / 1e9 }' '/tmp/GUEST.csv'
"""
"""Packets sent and answered, and the longest time between two answers or until the end [s]."""


@dataclass(frozen=True)
class Stream:
    """What a probe of a guest saw."""

    guest: str
    sent: int
    lost: int
    silence_s: float
    """The longest time between two answers."""

    def __str__(self) -> str:
        return (
            f"{self.guest} {self.lost} of {self.sent} lost, {self.silence_s:.2f} s silent at most"
        )


class Stage:
    """Host a, which is disturbed, and host b, which probes it."""

    def __init__(self, a: LabHost, b: LabHost) -> None:
        self.a, self.b = a, b
        self.testpmd = ""
        """Its process id, once it holds its VF."""

    def install(self, package: Path) -> None:
        """Installs the package as an operator would, and starts the unit."""
        self.a.put(package, f"/tmp/{package.name}")
        self.shell(f"apt-get install -y -qq /tmp/{package.name} 2>&1")
        self.shell(SET_UP)
        self.shell(DPDK)
        self.until("testpmd to hold its VF", lambda: self.shell(HELD))
        self.testpmd = self.shell("pgrep -x -u dpdk dpdk-testpmd").strip()
        shell(
            self.b,
            f"ethtool -G pf0 rx 4096; ip address add {PEER}/24 dev pf0;"
            "ip link set pf1 up; ip address add 198.18.9.2/24 dev pf1",
        )
        self.b.put(package, f"/tmp/{package.name}")
        shell(self.b, f"apt-get install -y -qq /tmp/{package.name} 2>&1")
        self.shell(CONFIGURE)

    def shell(self, script: str) -> str:
        """What a script prints on host a; it must succeed."""
        return shell(self.a, script, PATIENCE_S)

    def until(self, what: str, holds: Callable[[], object]) -> None:
        """Waits until a condition holds; where it does not come, the daemon's words are told."""
        begun = time.monotonic()
        while not holds():
            if time.monotonic() - begun > PATIENCE_S:
                raise AssertionError(f"in vain: {what}\n{self.log()}")
            time.sleep(0.3)

    def log(self, lines: int = 40) -> str:
        """The end of what the daemon and the unit have said."""
        return self.shell(f"journalctl -q -u planewised -o short-monotonic -n {lines} --no-pager")

    @property
    def client(self) -> Client:
        return Client(Path(self.a.socket(SOCKET)))

    def status(self) -> Status:
        """What the daemon knows; it is waited for while it starts."""
        begun = time.monotonic()
        while True:
            try:
                return self.client.status()
            except PlanewiseError:
                if time.monotonic() - begun > PATIENCE_S:
                    raise
                time.sleep(0.3)

    def guest(self, name: str) -> GuestStatus | None:
        """What the daemon says of a guest; None where it knows none of that name."""
        return next((guest for guest in self.status().guests if guest.id == name), None)

    def holdings(self) -> dict[str, tuple[str | None, int]]:
        """Each guest's VF, and since when it has it or has none [ms since 1970]."""
        return {guest.id: (guest.vf, guest.since_unix_ms) for guest in self.status().guests}

    def holds(self, name: str, *, vf: bool = True) -> bool:
        """Whether a guest has a VF, or has none, and is not being moved."""
        guest = self.guest(name)
        return guest is not None and not guest.moving and (guest.vf is not None) == vf

    def wish(self, name: str, stance: str) -> None:
        self.client.order("PUT", guest_path(name, "stance"), {"stance": stance})

    def wish_when_up(self, name: str, stance: str) -> None:
        """Orders a stance of a daemon that may just be starting."""
        self.until(f"{name} to be known", lambda: self.guest(name))
        self.wish(name, stance)

    def move(self, name: str, stance: str) -> None:
        """Has a guest get a VF (pinned) or give it back (excluded), and waits until it has."""
        self.wish_when_up(name, stance)
        self.until(f"{name} to be {stance}", lambda: self.holds(name, vf=stance == "pinned"))

    def is_moving(self, name: str) -> bool:
        guest = self.guest(name)
        return guest is not None and guest.moving

    def moves_of(self, name: str) -> int:
        """How many moves of a guest have ended since the host booted, as the unit's log says."""
        log = "journalctl -q -u planewised -o cat --no-pager"
        return int(self.shell(f"{log} | grep -c 'direction=.* guest={name} ' || :"))

    def settle(self) -> None:
        """Waits until both guests hold a VF by which they send, and the journal is at rest."""
        for name in MANAGED:
            self.until(f"{name} to have a VF", lambda: self.holds(name))  # noqa: B023
            self.until(f"{name} to send by it", lambda: self.sends_by(name) == "pw-vf")  # noqa: B023

    def life(self) -> str:
        """The daemon's process, how often its unit started it again, and its panics."""
        return self.shell(
            "systemctl show -p MainPID,NRestarts planewised;"
            "journalctl -q -u planewised -o cat --no-pager | grep panicked || :"
        )

    def pid(self, container: str) -> str:
        return self.shell(f"docker inspect --format '{{{{.State.Pid}}}}' {container}").strip()

    def sends_by(self, container: str) -> str:
        """The active member of a container's bond."""
        bond = f"/proc/$(docker inspect --format '{{{{.State.Pid}}}}' {container})/net/bonding/eth0"
        return self.shell(f"sed -n 's/^Currently Active Slave: //p' {bond} || :").strip()

    def vfs(self, pf: str = "pf0") -> list[dict[str, Any]]:
        """The VFs of a PF, as the kernel has them."""
        (found,) = json.loads(self.shell(f"planewised vf list {pf} --json"))["pfs"]
        return list(found["vfs"])

    def assert_whole(self, moment: str) -> None:
        """No VF is lost or used twice, no address is there twice, every guest is reached."""
        vfs = self.vfs()
        assert len(vfs) == VFS, (moment, vfs)
        macs = [vf["config"]["mac"] for vf in vfs]
        assert len(set(macs)) == len(macs), (moment, macs)
        inodes = {}
        for name in MANAGED:
            inode = self.shell(f"stat -Lc %i /proc/{self.pid(name)}/ns/net")
            inodes[int(inode)] = name
        guests = self.status().guests
        own = {guest.id: guest.mac for guest in guests}
        holders = {guest.vf: guest.id for guest in guests}
        for index, vf in enumerate(vfs):
            holder, mac = holders.get(f"pf0/{index}"), vf["config"]["mac"]
            assert mac == own[holder] if holder else mac not in own.values(), (moment, vf, own)
            if holder is not None and holder not in MANAGED:
                assert vf["driver"] == "vfio-pci", (moment, holder, vf)
                assert vf["used_by"] is not None, (moment, holder, vf)
                continue
            netns = vf["netdev"]["netns"]
            user = inodes.get(netns["inode"], "a stranger") if netns else None
            assert user == holder, (moment, vf, holder)
        self.assert_testpmd_has_its_vf(moment)
        for address in (*MANAGED.values(), BESIDE_ADDRESS):
            shell(self.b, f"ping -q -n -c 3 -i 0.3 -w 30 {address}")

    def assert_testpmd_has_its_vf(self, moment: str) -> None:
        """The other user's process holds pf1's VF, is named as its user, and keeps it."""
        (vf,) = self.vfs("pf1")
        assert vf["driver"] == "vfio-pci", (moment, vf)
        assert f"process {self.testpmd} (dpdk-testpmd)" in str(vf["used_by"]), (moment, vf)
        known = next(one for one in self.status().vfs if one.id == "pf1/0")
        assert known.holder is None, (moment, known)
        assert "(dpdk-testpmd)" in str(known.why), (moment, known)

    def probed(
        self, what: str, do: Callable[[], None], guests: Sequence[str], said: list[str]
    ) -> list[Stream]:
        """Does something while the other host probes guests; tells what the probes saw."""
        with ExitStack() as stack:
            streams = []
            for guest in guests:
                ping = ["pw-probe", "ping", ADDRESSES[guest], "--proto", "stamp", "--no-watch"]
                ping += ["--rate", str(PPS), "--duration", "3600", "--patience", "60"]
                ping += ["--timeout", "5", "--packets", f"/tmp/{guest}.csv"]
                streams.append(stack.enter_context(self.b.start(ping)))
            time.sleep(3.0)
            do()
            time.sleep(3.0)
            for stream in streams:
                stream.interrupt()
            for stream in streams:
                stream.wait(PATIENCE_S).check()
        seen = [self._stream(guest) for guest in guests]
        said.append(f"{what}, at {2 * PPS} packets/s: {'; '.join(map(str, seen))}")
        return seen

    def _stream(self, guest: str) -> Stream:
        sent, answered, silence_s = shell(self.b, SUM_UP.replace("GUEST", guest), 120).split()
        return Stream(guest, int(sent), int(sent) - int(answered), float(silence_s))
