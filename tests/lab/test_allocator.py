"""The allocating daemon on real igb, igbvf and bonding: containers of a lab's host."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from planewise.testbed.hosts.remote import LabHost
from planewise.testbed.hosts.remote_host import RemoteProcess
from planewise.testbed.vfs.nic import find_planewised
from tests.lengths import either

from .conftest import UpLab
from .moving import (
    DIRECTORY,
    FIRST,
    NAMESPACES,
    PATIENCE_S,
    PPS,
    SETTINGS,
    STEPS,
    ask,
    assert_whole_after_kills,
    configure,
    followed,
    holder,
    judge,
    running,
    shell,
    until,
)

pytestmark = pytest.mark.timeout(900)

SET_UP = f"""
mkdir -p {DIRECTORY}/state
modprobe bonding
/tmp/pw-planewised vf setup pf1 --count 1 --owner test >/dev/null
ip link add pwbr type bridge mcast_snooping 0
ip link set pwbr up
ethtool -G pf1 rx 4096
ip link set pf1 up master pwbr
for i in 0 1 2; do
    ip netns add pwg$i
    ip link add pwv$i type veth peer name eth0 netns pwg$i
    ip -n pwg$i link set eth0 address 02:70:77:00:01:1$i
    ip link set pwv$i up master pwbr
    ip -n pwg$i link set lo up
    ip -n pwg$i link set eth0 up
    ip -n pwg$i address add 198.18.7.1$i/24 dev eth0
    ip -n pwg$i route add default via 198.18.7.1
done
"""

TEAR_DOWN = f"""
for i in 0 1 2; do ip netns del pwg$i || true; done
ip link del pwbr || true
# A namespace ends a little later, and sends its VF home.
for i in $(seq 600); do [ -e /sys/bus/pci/devices/*/physfn/virtfn0/net ] && break; sleep 0.1; done
for entry in $(bridge fdb show dev pf1 | grep -o '^02:70:77:00:01:1[0-9]'); do
    bridge fdb del $entry dev pf1 self || true
done
/tmp/pw-planewised vf restore --owner test || echo 0 >/sys/class/net/pf1/device/sriov_numvfs
rm -rf {DIRECTORY}
"""


def settings(sample_s: float, interval_s: float, guests: dict[str, str]) -> str:
    """What the daemon is told, with these guests and the stance of each."""
    text = SETTINGS.format(sample_s=sample_s, interval_s=interval_s) + '[containers]\ndocker = ""\n'
    for guest, stance in guests.items():
        text += f'[containers.namespaces.{guest}]\n[guests.{guest}]\nstance = "{stance}"\n'
    return text


@pytest.fixture(scope="module")
def hosts(up: UpLab) -> Iterator[tuple[LabHost, LabHost]]:
    """Host a with three guests on a bridge and one VF; host b at the other end of the cable."""
    a, b = LabHost("t", "a", name="sender"), LabHost("t", "b", name="responder")
    a.put(Path(find_planewised()), "/tmp/pw-planewised")
    shell(a, SET_UP)
    shell(b, "ethtool -G pf1 rx 4096; ip link set pf1 up; ip address replace 198.18.7.1/24 dev pf1")
    for i in range(3):
        until(b, f"ping -c 1 -W 1 198.18.7.1{i} >/dev/null")
    yield a, b
    shell(b, "ip address del 198.18.7.1/24 dev pf1")
    shell(a, TEAR_DOWN)
    a.close()
    b.close()


def test_a_vf_follows_the_traffic_of_two_waiters_and_no_packet_is_lost_in_the_switch(
    hosts: tuple[LabHost, LabHost], said: list[str]
) -> None:
    a, b = hosts
    config = configure(a, settings(0.5, 1.0, {"pwg0": "free", "pwg1": "free"}) + FIRST)
    with running(a, config) as daemon:
        # Being taken in interrupts a guest once.
        until(a, "[ $(ls /run/pw-alloc/state/guests | wc -l) = 2 ]")
        rounds = followed(a, b, "containers", NAMESPACES, said)
        # On the VF the guest's own interface counts, on the bridge the host's.
        assert {one["rate"]["source"] for one in ask(a, "/status")["guests"]} == {"host-side"}
        shell(a, f"kill -TERM {daemon.pid}")
        left = daemon.wait(PATIENCE_S)
        assert left.exit_code == 0
        # The traffic has ended: who holds the VF by now is anybody's guess, that it is said is not.
        assert re.search(r"ends; .*guests", left.stderr), left.stderr
    # The daemon is gone, the guests are not.
    shell(b, "ping -c 3 -i 0.2 -W 5 198.18.7.10; ping -c 3 -i 0.2 -W 5 198.18.7.11")
    judge(rounds, said[-1])


def test_what_the_nic_delivers_for_others_does_not_make_a_guest_on_a_vf_busy(
    hosts: tuple[LabHost, LabHost], said: list[str]
) -> None:
    a, b = hosts
    config = configure(a, settings(0.2, 0.5, {"pwg0": "pinned"}))
    received = "ip netns exec pwg0 cat /sys/class/net/pw-vf/statistics/rx_packets"
    with running(a, config) as daemon:
        begun = time.monotonic()
        while holder(a) != "pwg0":
            assert time.monotonic() - begun < PATIENCE_S
            time.sleep(0.2)
        before, rates_pps, duration_s = int(shell(a, received)), [], 10
        with a.start([a.probe, "reflect", "--poll-us", "0"], netns="pwg2") as reflector:
            reflector.wait_ready("ready", PATIENCE_S)
            ping = [b.probe, "ping", "198.18.7.12", "--proto", "stamp", "--no-watch"]
            with b.start([*ping, "--rate", str(PPS), "--duration", str(duration_s)]) as stream:
                while stream.running:
                    guest = next(one for one in ask(a, "/status")["guests"] if one["id"] == "pwg0")
                    rates_pps.append(guest["rate"]["pps"] or 0.0)
                    time.sleep(0.2)
                counts = json.loads(stream.wait(PATIENCE_S).stdout)["counts"]
        delivered = int(shell(a, received)) - before
        answered = counts["sent"] - counts["lost"]
        let_go(a, daemon)
    said.append(
        f"containers: of {2 * answered} packets for and of another guest the VF heard {delivered}; "
        f"its guest counted as {max(rates_pps):.0f} packets/s"
    )
    if delivered < answered:
        pytest.skip("this emulated NIC delivers to a VF only what is for it")
    assert max(rates_pps) < 0.3 * delivered / duration_s


@either("steps", (STEPS[1::4],), (STEPS,))
def test_a_kill_at_any_step_of_a_containers_move_leaves_nothing_that_a_restart_does_not_put_right(
    hosts: tuple[LabHost, LabHost], said: list[str], steps: tuple[str, ...]
) -> None:
    a, _ = hosts
    for wanted, other in (("pwg0", "pwg1"), ("pwg1", "pwg0")):
        guests = {wanted: "pinned", other: "excluded", "pwg2": "excluded"}
        configure(a, settings(0.1, 0.2, guests), f"{wanted}.toml")
    begun = time.monotonic()
    assert_whole_after_kills(a, "/tmp/pw-planewised", NAMESPACES, steps)
    said.append(f"containers: killed at {len(steps)} steps in {time.monotonic() - begun:.0f} s")


ADOPTION = ("bond", "veth", "address", "route", "taken-over")
"""The moments of an adoption, in their order."""

MORE = """
ip -n pwg2 address add 198.18.10.12/24 dev eth0
ip -n pwg2 route add 198.18.9.0/24 via 198.18.7.11
ip -n pwg2 route add 198.18.11.0/24 via 198.18.10.1 metric 7 proto static
ip -n pwg2 route add 198.18.13.0/24 dev eth0 scope global src 198.18.10.12 proto 42
ip -n pwg2 route add 198.18.12.0/24 via 198.18.14.1 dev eth0 onlink proto dhcp
# A router that only a route leads to: told first by the kernel, it must be added last.
ip -n pwg2 route add 198.18.15.0/24 via 198.18.10.77
ip -n pwg2 route add 198.18.5.0/24 via 198.18.16.1 dev eth0 onlink
"""


def reach_of(a: LabHost, guest: str) -> list[str]:
    """The addresses and routes that a guest has by eth0, as iproute2 says them."""
    told = shell(
        a, f"ip -n {guest} -4 -br address show dev eth0 | sed 's/.* UP *//'; ip -n {guest} route"
    )
    return sorted(line.strip() for line in told.splitlines())


def test_a_kill_at_every_moment_of_an_adoption_leaves_the_guest_all_its_addresses_and_routes(
    hosts: tuple[LabHost, LabHost],
) -> None:
    a, _ = hosts
    # Other tests leave their guests taken over, as a daemon that ends does.
    with running(a, configure(a, settings(0.2, 0.5, {}))) as daemon:
        let_go(a, daemon)
    shell(a, MORE)
    before = reach_of(a, "pwg2")
    assert len(before) == 10, before
    config = configure(a, settings(0.2, 0.5, {"pwg2": "excluded"}))
    # Each start goes on with what the last one left, and gets one moment further.
    for moment in ADOPTION:
        kill = ["env", f"PLANEWISE_TEST_KILL_AT=adopt/{moment}", "timeout", "90"]
        killed = a.run([*kill, "/tmp/pw-planewised", "daemon", "--config", config], timeout_s=120)
        assert f"killed at adopt/{moment}" in killed.stderr, killed.stderr
    with running(a, config) as daemon:
        until(a, f"grep -q '\"taken_over\": *true' {DIRECTORY}/state/guests/pwg2.json")
        until(a, "ip -n pwg2 -d -o link show eth0 | grep -q bond")
        assert reach_of(a, "pwg2") == before
        let_go(a, daemon)
    assert reach_of(a, "pwg2") == before
    shell(a, "ip -n pwg2 address del 198.18.10.12/24 dev eth0")
    shell(a, "ip -n pwg2 route del 198.18.9.0/24")


BEFORE = """
ip -n pwg0 -o address show dev eth0
ip -n pwg0 route
ip -n pwg0 -o link show eth0
"""


def test_a_guest_that_is_let_go_has_what_it_had_before(hosts: tuple[LabHost, LabHost]) -> None:
    a, _ = hosts
    config = configure(a, settings(0.2, 0.5, {"pwg0": "pinned"}))
    with running(a, config) as daemon:
        until(a, "ip -n pwg0 -o link show | grep -q pw-vf")
        # A second daemon on the same state is refused in a sentence.
        second = a.run(["/tmp/pw-planewised", "daemon", "--config", config], timeout_s=PATIENCE_S)
        assert second.exit_code == 1
        assert "another planewised manages this host's VFs" in second.stderr
        assert "another planewised" in second.stderr
        # Nobody asks for the guest any more: SIGHUP.
        configure(a, settings(0.2, 0.5, {}))
        shell(a, f"kill -HUP {daemon.pid}")
        until(a, "ip -n pwg0 -d -o link show eth0 | grep -q veth")
        until(a, '[ -z "$(ls /run/pw-alloc/state/guests)" ]')
        shell(a, f"kill -TERM {daemon.pid}")
        assert daemon.wait(PATIENCE_S).exit_code == 0
    told = shell(a, BEFORE)
    assert "198.18.7.10/24" in told
    assert "default via 198.18.7.1 dev eth0" in told
    assert "ether 02:70:77:00:01:10" in told
    assert "pw-" not in shell(a, "ip -n pwg0 link show")


def let_go(a: LabHost, daemon: RemoteProcess) -> None:
    """Has the daemon give all guests back, and end."""
    configure(a, settings(0.2, 0.5, {}))
    shell(a, f"kill -HUP {daemon.pid}")
    until(a, f'[ -z "$(ls {DIRECTORY}/state/guests)" ]')
    shell(a, f"kill -TERM {daemon.pid}")
    assert daemon.wait(PATIENCE_S).exit_code == 0


def test_a_guest_takes_no_address_but_its_own_on_a_vf_whose_pf_was_told_to_trust_it(
    hosts: tuple[LabHost, LabHost],
) -> None:
    a, _ = hosts
    stolen = "02:70:77:00:01:99"
    take = f"ip -n pwg0 link set pw-vf address {stolen} 2>&1 || true"
    told_of_vf = "ip link show pf1 | grep 'vf 0 '"
    base = settings(0.2, 0.5, {"pwg0": "pinned"})
    for enforced in (False, True):
        shell(a, "ip link set pf1 vf 0 trust on spoofchk off")
        text = base if enforced else base.replace("docker", "enforce_mac = false\ndocker")
        config = configure(a, text)
        with running(a, config) as daemon:
            until(a, "ip netns exec pwg0 grep -q 'Active Slave: pw-vf' /proc/net/bonding/eth0")
            begun = time.monotonic()
            while holder(a) != "pwg0":
                assert time.monotonic() - begun < PATIENCE_S
                time.sleep(0.2)
            vf = shell(a, told_of_vf)
            assert "spoof checking on" in vf, vf
            assert "trust off" in vf, vf
            refused = shell(a, take)
            vf = shell(a, told_of_vf)
            # Without the setting the NIC sends it that address's frames.
            has = "02:70:77:00:01:10" if enforced else stolen
            assert f"{has} " in vf, (refused, vf)
            assert bool(refused) == enforced, refused
            let_go(a, daemon)


def test_a_guest_with_somebody_elses_address_is_refused_and_no_table_learns_of_it(
    hosts: tuple[LabHost, LabHost],
) -> None:
    a, _ = hosts
    theirs = a.read_text("/sys/class/net/pf1/address").strip()
    own = "02:70:77:00:01:12"
    shell(a, f"ip -n pwg2 link set eth0 address {theirs}")
    given = settings(0.2, 0.5, {"pwg0": "excluded", "pwg2": "excluded"})
    given = given.replace("namespaces.pwg0]", 'namespaces.pwg0]\nmac = "02:70:77:00:01:77"')
    config = configure(a, given)
    with running(a, config) as daemon:
        begun = time.monotonic()
        wanted = (
            f"pwg2 cannot be managed: its address {theirs} is not its own: it is the host's "
            "interface pf1's",
            "pwg0 cannot be managed: its address 02:70:77:00:01:10 is not its own: it was given "
            "02:70:77:00:01:77",
        )
        while not set(wanted) <= (seen := {one["what"] for one in ask(a, "/status")["errors"]}):
            assert time.monotonic() - begun < PATIENCE_S, seen
            time.sleep(0.2)
        assert "sticky" not in shell(a, "bridge fdb show br pwbr")
        assert shell(a, f"ls {DIRECTORY}/state/guests 2>/dev/null || true") == ""
        # With its own address it is taken in.
        shell(a, f"ip -n pwg2 link set eth0 address {own}")
        until(a, f"bridge fdb show br pwbr | grep '{own}.*pwv2' | grep -q sticky")
        let_go(a, daemon)


DOCKERD = f"""
mkdir -p {DIRECTORY}/docker
mount -t tmpfs pw-docker {DIRECTORY}/docker
exec dockerd --data-root {DIRECTORY}/docker/root --exec-root {DIRECTORY}/docker/exec \\
    --pidfile {DIRECTORY}/docker/pid --host unix://{DIRECTORY}/docker/socket --bridge none \\
    --exec-opt native.cgroupdriver=cgroupfs --iptables=false --ip6tables=false \\
    --ip-forward=false --ip-masq=false --userland-proxy=false
"""

DOCKER = f"docker --host unix://{DIRECTORY}/docker/socket"

NETWORK = f"""
tar -C "$(dirname "$1")" -c "$(basename "$1")" |
    {DOCKER} import --change 'ENTRYPOINT ["/pw-probe"]' - pw
{DOCKER} network create --driver bridge --subnet 198.18.8.0/24 --gateway 198.18.8.1 \\
    --opt com.docker.network.bridge.name=pwbr pw
"""

RUN = f"""
{DOCKER} run --detach --name web --network pw --ip 198.18.8.10 --label planewise.managed=true \\
    --label planewise.stance=pinned pw reflect --poll-us 0
"""


def test_a_labelled_container_of_docker_is_found_moved_live_and_leaves_its_vf_when_it_is_killed(
    hosts: tuple[LabHost, LabHost], said: list[str]
) -> None:
    a, b = hosts
    if a.run(["sh", "-c", "command -v dockerd"]).exit_code:
        pytest.skip("Docker is not installed")
    text = settings(0.5, 1.0, {}).replace('docker = ""', f'docker = "{DIRECTORY}/docker/socket"')
    config = configure(a, text)
    begun = time.monotonic()

    def holds(wanted: str | None) -> None:
        begun = time.monotonic()
        # A VF counts as held while it is on its way, too.
        while holder(a) != wanted or any(one["moving"] for one in ask(a, "/status")["guests"]):
            assert time.monotonic() - begun < PATIENCE_S, ask(a, "/status")
            time.sleep(0.2)

    shell(b, "ip address add 198.18.8.2/24 dev pf1")
    try:
        with a.start(["sh", "-ec", DOCKERD]) as docker, running(a, config) as daemon:
            until(a, f"{DOCKER} version")  # its socket is there before it answers
            a.run(["sh", "-ec", NETWORK, "sh", a.probe], timeout_s=PATIENCE_S).check()
            started = time.monotonic()
            # Docker says that it runs; nobody else does.
            shell(a, RUN)
            holds("web")
            found_s = time.monotonic() - started
            guest = next(one for one in ask(a, "/status")["guests"] if one["id"] == "web")
            assert (guest["kind"], guest["stance"]) == ("container", "pinned")
            pid = shell(a, f"{DOCKER} inspect --format '{{{{.State.Pid}}}}' web").strip()
            bond = a.read_text(f"/proc/{pid}/net/bonding/eth0")
            assert "Bonding Mode: fault-tolerance (active-backup)" in bond
            assert "Currently Active Slave: pw-vf" in bond
            ping = [b.probe, "ping", "198.18.8.10", "--proto", "stamp", "--no-watch"]
            with b.start([*ping, "--rate", "100", "--duration", "5"]) as stream:
                ask(a, "/guests/web/stance", "PUT", {"stance": "excluded"})
                holds(None)
                ask(a, "/guests/web/stance", "PUT", {"stance": "pinned"})
                holds("web")
                done = stream.wait(PATIENCE_S)
            assert "Slave: pw-vf\n" in a.read_text(f"/proc/{pid}/net/bonding/eth0")
            shell(b, "ping -c 3 -i 0.2 -W 5 198.18.8.10")
            # On a busy machine Docker may be late with an answer, and is asked again.
            late = "Docker does not answer"
            errors = [error["what"] for error in ask(a, "/status")["errors"]]
            assert [what for what in errors if not what.startswith(late)] == []
            # It ends with the VF in its hands.
            shell(a, f"{DOCKER} kill web")
            until(a, "[ -e /sys/class/net/pf1/device/virtfn0/net ]")
            begun_s = time.monotonic()
            while (status := ask(a, "/status"))["guests"] or status["vfs"][0]["place"] != "pool":
                assert time.monotonic() - begun_s < PATIENCE_S, json.dumps(status)
                time.sleep(0.2)
            # Another one of that name is another guest.
            shell(a, f"{DOCKER} rm web && {RUN}")
            holds("web")
            shell(b, "ping -c 3 -i 0.2 -W 5 198.18.8.10")
            shell(a, f"kill -TERM {daemon.pid}")
            assert daemon.wait(PATIENCE_S).exit_code == 0
            shell(a, f"{DOCKER} rm --force web; {DOCKER} network rm pw")
            until(a, "[ -e /sys/class/net/pf1/device/virtfn0/net ]")
            shell(a, f"kill -TERM $(cat {DIRECTORY}/docker/pid)")
            docker.wait(PATIENCE_S)
    finally:
        shell(b, "ip address del 198.18.8.2/24 dev pf1")
        shell(a, f"umount -l {DIRECTORY}/docker || true")
    # A host too busy to answer at all is none that a loss could be told of.
    counts = json.loads(done.stdout)["counts"] if done.exit_code == 0 else None
    lost = f"{counts['lost']} of {counts['sent']} lost" if counts else "nothing told"
    said.append(
        f"Docker: a container has a VF {found_s:.1f} s after `docker run`; taken and given again "
        f"under 200 packets/s: {lost}; {time.monotonic() - begun:.0f} s in all"
    )
