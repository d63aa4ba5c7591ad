"""planewised under its unit on a Debian host, beside Docker and DPDK of another user."""

from __future__ import annotations

import time

from .stage import BESIDE, MANAGED, Stage


def test_under_its_unit_the_daemon_gives_two_containers_vfs_and_names_who_else_has_one(
    stage: Stage, said: list[str]
) -> None:
    begun = time.monotonic()
    stage.settle()
    took_s = time.monotonic() - begun
    stage.assert_whole("after the start")
    shown = stage.shell(
        "systemctl show -p MainPID,FragmentPath,NRestarts planewised;"
        "readlink /proc/$(systemctl show -p MainPID --value planewised)/exe;"
        "grep CapBnd /proc/$(systemctl show -p MainPID --value planewised)/status"
    )
    assert "FragmentPath=/lib/systemd/system/planewised.service" in shown, shown
    assert "NRestarts=0" in shown, shown
    assert "/usr/bin/planewised" in shown, shown
    # CAP_CHOWN, CAP_DAC_READ_SEARCH, CAP_NET_ADMIN, CAP_SYS_PTRACE, CAP_SYS_ADMIN.
    assert "CapBnd:\t0000000000281005" in shown, shown
    said.append(
        f"two containers have their VFs {took_s:.0f} s after the unit's start; testpmd is process "
        f"{stage.testpmd}"
    )


def test_a_container_that_restarts_at_once_loses_its_vf_and_gets_one_again_and_nobody_else_does(
    stage: Stage, said: list[str]
) -> None:
    stage.settle()
    other = stage.holdings()["batch"]
    before = stage.shell("docker inspect --format '{{.State.StartedAt}}' web")

    def restart() -> None:
        for _ in range(3):
            stage.shell("docker restart -t0 web >/dev/null")
            stage.settle()
            stage.assert_whole("after docker restart -t0")

    stage.probed("docker restart -t0, three times", restart, ("web", BESIDE), said)
    assert stage.shell("docker inspect --format '{{.State.StartedAt}}' web") != before
    assert stage.holdings()["batch"] == other


def test_while_docker_is_stopped_its_containers_keep_what_they_have(
    stage: Stage, said: list[str]
) -> None:
    stage.settle()
    before = stage.holdings()

    def stop_and_start() -> None:
        stage.shell("systemctl stop docker.socket docker.service")
        begun = time.monotonic()
        while time.monotonic() - begun < 20:
            assert stage.holdings() == before
            time.sleep(1)
        stage.shell("systemctl start docker.socket docker.service")
        stage.settle()

    stage.probed("dockerd stopped for 20 s and started", stop_and_start, ("web", BESIDE), said)
    stage.assert_whole("after dockerd was away")
    assert stage.holdings() == before
    assert set(before) == set(MANAGED)


FORGE = """
import socket
port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
port.bind(("eth0", 0))
for number in range(1000):
    source = bytes((0x02, 0x66, 0, 0, number >> 8, number & 255))
    port.send(b"\\xff" * 6 + source + b"\\x88\\xb5" + bytes(46))
"""


def test_a_thousand_forged_addresses_fill_no_filters_and_disturb_nobody(
    stage: Stage, said: list[str]
) -> None:
    stage.settle()
    filters = "bridge fdb show dev pf0 | grep -c '^02:66:.* self' || :"
    learned = "bridge fdb show br pwbr | grep -c '^02:66:' || :"
    seen = 0

    def forge() -> None:
        nonlocal seen
        enter = f"nsenter -t {stage.pid(BESIDE)} -n python3 -c '{FORGE}'"
        stage.shell(enter)
        seen = int(stage.shell(learned))
        time.sleep(5)
        stage.wish("web", "excluded")
        stage.until("web to be without a VF", lambda: stage.holds("web", vf=False))
        stage.wish("web", "pinned")
        stage.settle()

    stage.probed("1 000 forged addresses and a move there and back", forge, ("web", BESIDE), said)
    asked = int(stage.shell(filters))
    assert seen >= 500, f"the bridge learned {seen} of 1000 forged addresses: too few to tell"
    assert asked <= 4, f"pf0 asks for {asked} forged addresses"
    said.append(f"of 1 000 forged addresses the bridge learned {seen}, pf0 asks for {asked}")
    stage.assert_whole("after forged addresses")
