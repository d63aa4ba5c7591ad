"""What hosted testbeds decide before anything exists: shortages, scripts, crews, control groups."""

from __future__ import annotations

import errno
import io
import sys
import tarfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.testbed import script
from planewise.testbed.guests.docker import Container, cgroup_files, image, join_command, last_words
from planewise.testbed.hosts import ledger, programs
from planewise.testbed.hosts.host import FinishedProcess, LocalHost
from planewise.testbed.hosts.ledger import HostNote, Ownership
from planewise.testbed.hosts.machine import Resources
from planewise.testbed.hosts.pair import Targets
from planewise.testbed.loads.crew import CrewProcess, ShellCrew
from planewise.testbed.model import Guest
from planewise.testbed.plan import (
    accept_address,
    add_bridge,
    new_namespace,
    set_address,
    set_sysctl,
    set_up,
)
from planewise.testbed.setting import Setting
from planewise.testbed.testbed import impossible, shortage

LAB = Resources("lab:a", "pf0", "igb", vfs=7, free_mib=1200, dockerd=True)


def setting(
    plane: str = "vf", background: str = "vf", guests: int = 0, path: str = "north-south"
) -> Setting:
    return Setting("container", plane, background, guests, path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (setting(guests=6), ""),
        (setting(guests=7), "needs 8 VFs on lab:a, and pf0 has 7"),
        (setting("bridge", guests=7), ""),
        (setting(guests=2, path="east-west"), ""),
        (setting(guests=3, path="east-west"), "needs 8 VFs on lab:a, and pf0 has 7"),
        (setting("bridge", guests=3, path="east-west"), ""),
        (setting("bridge", "bridge", 15), ""),
        (
            setting("bridge", "bridge", 16),
            "needs 17 MAC addresses behind pf0 of lab:a, and igb takes 16 beside its VFs",
        ),
        (setting("bridge", "bridge", 16, "east-west"), ""),
        (
            setting("bridge", "bridge", 30, "east-west"),
            "62 containers on lab:a need about 1368 MiB, and 1200 MiB are free",
        ),
    ],
)
def test_what_a_host_lacks_is_said_with_numbers(wanted: Setting, said: str) -> None:
    assert shortage(wanted, LAB, with_vfs=True) == said


def test_a_host_without_sriov_or_docker_is_told_from_one_with_too_little() -> None:
    bare = Resources("ssh://one", "eth1", "e1000e", vfs=0, free_mib=8000, dockerd=False)
    assert shortage(setting(), bare, with_vfs=False) == "there is no Docker on ssh://one"
    namespace = Setting("namespace", "vf", "vf", 0, "north-south")
    assert shortage(namespace, bare, with_vfs=False) == "eth1 of ssh://one has no SR-IOV"


def test_two_switches_cannot_both_have_the_nic() -> None:
    assert setting("vf", "vf", 1).switches == ()
    assert setting("macvlan", "bridge", 1).switches == ("bridge",)
    assert setting("docker-bridge", "vf", 1).switches == ("docker-bridge",)
    both = setting("bridge", "docker-bridge", 1)
    assert impossible(both) == "bridge and docker-bridge cannot share the NIC"
    assert impossible(setting("bridge", "docker-bridge", 0)) == ""


def test_steps_of_one_namespace_go_to_one_process() -> None:
    groups = script.grouped(
        (
            add_bridge("", "pw-b", "02:70:77:30:00:00", 1500),
            set_up("", "pw-b"),
            *new_namespace("g"),
            set_address("g", "eth0", "198.18.0.1/15"),
            set_sysctl("g", "net/ipv4/ip_forward", "1"),
            accept_address("", "pf0", "02:70:77:00:00:01"),
        )
    )
    assert [(group.level, group.command) for group in groups] == [
        (0, "ip -batch -"),
        (1, "nsenter --net=/run/netns/g sh"),
        (1, "bridge -batch -"),
        (2, "ip -n g -batch -"),
        (3, "nsenter --net=/run/netns/g sh"),
    ]
    assert [step.words for step in groups[0].steps] == [
        "link add pw-b address 02:70:77:30:00:00 mtu 1500 "
        "type bridge stp_state 0 mcast_snooping 0 ageing_time 360000",
        "link set pw-b up",
        "netns add g",
    ]


def test_a_nic_without_room_for_an_address_is_said_so() -> None:
    from planewise.testbed.script import explain

    step = accept_address("", "pf0", "02:70:77:00:00:01")
    assert "no further MAC address" in explain(step, errno.ENOMEM, "").what


def test_a_process_joins_the_groups_of_every_hierarchy_that_is_mounted() -> None:
    second = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"
    assert cgroup_files("0::/pw-1/abc\n", second) == ("/sys/fs/cgroup/pw-1/abc/cgroup.procs",)
    first = (
        "cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n"
        "cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n"
    )
    text = "3:cpu,cpuacct:/d/x\n2:memory:/d/x\n1:name=systemd:/d/x\n"
    files = cgroup_files(text, first)
    assert files == (
        "/sys/fs/cgroup/cpu,cpuacct/d/x/cgroup.procs",
        "/sys/fs/cgroup/memory/d/x/cgroup.procs",
    )
    words = join_command(Container("pw-1-sm1", 1, "", files), ["pw-probe", "cpu"])
    assert words[-2:] == ["pw-probe", "cpu"]
    assert words[2].index("cgroup.procs") < words[2].index("--net=/run/netns/pw-1-sm1")


def test_the_image_holds_the_probe_and_nothing_else(tmp_path: Path) -> None:
    probe = tmp_path / "pw-probe"
    probe.write_bytes(b"static")
    with tarfile.open(fileobj=io.BytesIO(image(probe))) as archive:
        (only,) = archive.getmembers()
        assert (only.name, only.mode, only.size) == ("pw-probe", 0o755, 6)


@pytest.mark.parametrize(
    ("logged", "words"),
    [
        ('time="t" level=fatal msg="no space left on device"\n', "no space left on device"),
        ("dockerd: not found\n", "dockerd: not found"),
        ("", "exit code 1"),
    ],
)
def test_dockerds_last_words_are_the_reason(logged: str, words: str) -> None:
    assert last_words(FinishedProcess(("dockerd",), 1, "", logged)) == words


NOBODY = Guest("n", "sender", "background", 0, "veth", "", "lo", "", "", "")


class NoGuests(LocalHost):
    """This machine, whose guests are itself."""

    def entering(self, argv: Sequence[str], netns: str) -> list[str]:
        return list(argv)


def test_a_crew_starts_ends_and_tells_what_each_member_left() -> None:
    host = NoGuests("here")
    try:
        talk = "trap 'echo done $0; exit 3' TERM; while :; do sleep 0.05; done"
        members = [CrewProcess(NOBODY, ("sh", "-c", talk, str(n))) for n in range(3)]
        crew = ShellCrew(host, members, "blast")
        crew.await_ready(60)
        assert crew.ended == ()
        # A member that has not set its trap yet would end without a word.
        host.run(["sleep", "0.5"])
        crew.interrupt()
        ended = crew.end()
        assert [(one.exit_code, one.stdout) for one in ended] == [
            (3, f"done {n}\n") for n in range(3)
        ]
    finally:
        host.close()


def _crew_at_work(host: LocalHost) -> ShellCrew:
    # A shell of its own name, so that the crew never takes it for a probe that got to work.
    busy = ("sh", "-c", "trap 'exit 0' TERM; while :; do :; done")
    crew = ShellCrew(host, [CrewProcess(NOBODY, busy), CrewProcess(NOBODY, busy)], "burn")
    wanted = f"{host.directory}/burn/pids"
    host.run(["timeout", "60", "sh", "-c", f"until [ -s {wanted} ]; do sleep 0.05; done"]).check()
    return crew


def test_a_burning_crew_tells_the_cpu_time_that_its_members_got_so_far() -> None:
    host = NoGuests("here")
    try:
        crew = _crew_at_work(host)
        first = crew.done()["n"].value
        deadline = time.monotonic() + 60
        while (later := crew.done()["n"].value) <= first and time.monotonic() < deadline:
            time.sleep(0.05)
        assert later > first
        crew.interrupt()
        crew.end()
        with pytest.raises(PlanewiseError, match="stopped unexpectedly"):
            crew.done()
    finally:
        host.close()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("lab:a", "lab:a"), "both lab:a"),
        (("ssh://one", "ssh://two"), "which NIC of ssh://one"),
    ],
)
def test_hosts_that_make_no_pair_are_refused(arguments: tuple[str, str], said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        Targets(*arguments)


def test_what_is_lent_from_other_hosts_is_noted_and_kept_where_it_cannot_be_removed(
    tmp_path: Path,
) -> None:
    note = HostNote("ssh://gone", "eth1", ("ip link set eth1 up",), "labs")
    owned = Ownership.take("a test", tmp_path, [note])
    assert ledger.leftovers(tmp_path, namespaces=False) == ()
    owned.abandon()
    (left,) = ledger.leftovers(tmp_path, namespaces=False)
    assert left.hosts == (note,)

    def unreachable(_: ledger.DeadRun) -> None:
        raise PlanewiseError("ssh://gone cannot be reached")

    with pytest.raises(PlanewiseError, match="cannot be reached"):
        ledger.sweep(tmp_path, unreachable, namespaces=False)
    assert len(ledger.leftovers(tmp_path, namespaces=False)) == 1
    assert len(ledger.sweep(tmp_path, lambda _: None, namespaces=False)) == 1
    assert ledger.leftovers(tmp_path, namespaces=False) == ()


@pytest.mark.parametrize("program", ["planewised", "pw-probe"])
def test_a_host_without_our_programs_is_told_where_they_come_from(
    program: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnsupportedError, match=f"{program} is not installed"):
        programs.find(program)
