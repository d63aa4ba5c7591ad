"""The lab's values and judgements, on made-up machines."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise import lab
from planewise.boot import packages
from planewise.boot.model import Accelerator, Kernel
from planewise.boot.process import read_process
from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.lab import checks, initramfs, qemu, state
from planewise.lab.model import LabPaths, LabPlatform, LabSpec
from planewise.lab.state import HostRecord, LabRecord
from planewise.lab.watch import diagnose, last_lines, refusal
from planewise.targets import lab_mib
from planewise.testbed.hosts import ledger
from tests.command import invoked

HERE = Path("/run/planewise/lab-t")


@pytest.mark.parametrize(
    ("available_mib", "expected_mib"),
    [(0, 2048), (5000, 2048), (7000, 2800), (10_240, 4096), (200_000, 4096)],
)
def test_a_runs_own_lab_takes_more_memory_where_there_is_more(
    available_mib: int, expected_mib: int
) -> None:
    assert lab_mib(available_mib) == expected_mib


def a_platform(name: str = "tcg") -> LabPlatform:
    return LabPlatform(
        qemu=Path("/usr/bin/qemu-system-x86_64"),
        qemu_version=(10, 0),
        kernel=Kernel("6.12", Path("/boot/vmlinuz-6.12"), Path("/lib/modules/6.12"), "machine"),
        accelerator=Accelerator("kvm" if name == "kvm" else "tcg", "said so"),
        cache=Path("/var/cache/planewise/lab"),
        base_initrd=Path("/var/cache/planewise/lab/base.initrd"),
    )


def a_record(name: str = "t") -> LabRecord:
    return LabRecord(
        name=name,
        pfs=1,
        memory_mib=512,
        cpus=1,
        accelerator="tcg",
        accelerator_reason="said so",
        kernel="6.12",
        qemu="10.0",
        created_s=0.0,
        boot_limit_s=60.0,
        hosts={"a": HostRecord(port=1, host_key="k"), "b": HostRecord(port=2, host_key="k")},
    )


@pytest.fixture
def state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLANEWISE_LAB_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(packages, "cache_directory", lambda: tmp_path / "cache")
    return tmp_path / "state"


def command_line(host: lab.HostId, spec: LabSpec | None = None, name: str = "tcg") -> list[str]:
    return qemu.command_line(a_platform(name), spec or LabSpec("t"), LabPaths(HERE), host, 2222)


def values(argv: list[str], option: str) -> list[str]:
    return [value for key, value in itertools.pairwise(argv) if key == option]


def test_a_host_can_be_found_again_by_the_first_words_of_its_command_line() -> None:
    argv = command_line("a")
    assert argv[1:5] == ["-name", "pw-lab-t-a", "-pidfile", f"{HERE}/a.pid"]


def test_each_pf_has_a_root_port_a_mac_and_a_cable_of_its_own() -> None:
    spec = LabSpec("t", pfs=3)
    a, b = command_line("a", spec), command_line("b", spec)
    for argv in (a, b):
        ports = [value for value in values(argv, "-device") if value.startswith("pcie-root-port")]
        assert len({port.partition("chassis=")[2] for port in ports}) == 3
    nics = [v for argv in (a, b) for v in values(argv, "-device") if v.startswith("igb,")]
    assert len({nic.partition("mac=")[2] for nic in nics}) == 6
    for index in range(3):
        (one,) = [v for v in values(a, "-netdev") if v.startswith(f"dgram,id=wire{index},")]
        (other,) = [v for v in values(b, "-netdev") if v.startswith(f"dgram,id=wire{index},")]
        assert f"local.path={HERE}/a{index}.cable" in one
        assert f"remote.path={HERE}/a{index}.cable" in other
        assert f"local.path={HERE}/b{index}.cable" in other
        assert f"remote.path={HERE}/b{index}.cable" in one


def test_a_host_is_reached_over_loopback_only_and_reaches_nobody() -> None:
    (network,) = [value for value in values(command_line("a"), "-netdev") if "user" in value]
    assert "restrict=on" in network
    assert "hostfwd=tcp:127.0.0.1:2222-" in network


def test_the_outer_root_is_shared_read_only() -> None:
    shares = values(command_line("a"), "-virtfs")
    assert len(shares) == 2
    assert all("readonly=on" in share for share in shares)


def test_a_root_of_its_own_takes_the_place_of_the_outer_one(tmp_path: Path) -> None:
    spec = LabSpec("t", root=str(tmp_path))
    outer, cache = values(command_line("a", spec), "-virtfs")
    assert f"path={tmp_path},mount_tag=outer" in outer
    assert "readonly=on" in outer
    assert "path=/var/cache/planewise/lab," in cache
    with pytest.raises(BadInputError, match="has no /usr/lib/systemd/systemd") as raised:
        checks.root(spec)
    assert "mmdebstrap" in raised.value.remedy
    for file in ("lib/systemd/systemd", "sbin/sshd"):
        (tmp_path / "usr" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "usr" / file).touch()
    checks.root(spec)


def test_the_systemd_of_a_root_starts_the_labs_sshd_and_not_its_own() -> None:
    def archive(**how: bool) -> bytes:
        return initramfs.personal("a", (), b"", b"", "/bin", "", "", **how)

    own, outer = archive(systemd=True), archive()
    for name in (b"lab/units/pw-lab-sshd.service", b"lab/units/ssh.socket"):
        assert name in own
        assert name not in outer
    assert b"mount -t cgroup2" in outer
    assert b"mount -t cgroup2" not in own


def test_the_accelerator_chooses_the_cpu_model() -> None:
    assert values(command_line("a"), "-accel") == ["tcg,thread=single"]
    assert values(command_line("a", name="kvm"), "-accel") == ["kvm"]
    assert values(command_line("a", name="kvm"), "-cpu") == ["host"]


def test_a_comma_in_a_path_stays_part_of_the_path() -> None:
    argv = qemu.command_line(a_platform(), LabSpec("t"), LabPaths(Path("/run/x,y")), "a", 1)
    assert values(argv, "-chardev") == ["file,id=console,path=/run/x,,y/a.log"]


@pytest.mark.parametrize(
    ("name", "pfs", "memory", "cpus"),
    [
        ("", 1, 1024, 1),
        ("Upper", 1, 1024, 1),
        ("a/b", 1, 1024, 1),
        ("x" * 25, 1, 1024, 1),
        ("t", 0, 1024, 1),
        ("t", 9, 1024, 1),
        ("t", 1, 100, 1),
        ("t", 1, 1024, 0),
    ],
)
def test_a_lab_that_cannot_be_is_refused(name: str, pfs: int, memory: int, cpus: int) -> None:
    with pytest.raises(BadInputError):
        LabSpec(name, pfs, memory, cpus)


def test_the_hosts_accounts_have_sshd_and_a_root_with_a_home_of_its_own() -> None:
    accounts = initramfs.accounts_inside("root:x:0:0:root:/root:/bin/zsh\nme:x:1:1::/home/me:\n")
    lines = {line.split(":")[0]: line for line in accounts.splitlines()}
    assert list(lines) == ["root", "sshd", "me"]
    assert ":/run/home:" in lines["root"]


PANIC = """\
[    0.044000] Kernel panic - not syncing: timer doesn't work through Interrupt-remapped IO-APIC\r
[    0.044000] CPU: 0 UID: 0 PID: 0 Comm: swapper/0 Not tainted\r
[    0.044000] Rebooting in 1 seconds..\r
"""
STALL = "[   90.1] watchdog: BUG: soft lockup - CPU#1 stuck for 26s! [kworker/1:1:45]\r\n"


def judge(log: str = "", **changes: object) -> tuple[str, str]:
    facts = {"alive": True, "answers": False, "age_s": 5.0, "boot_limit_s": 60.0}
    facts |= {"was_ready": False, "log": log} | changes
    finding = diagnose(**facts)  # type: ignore[arg-type]
    return finding.state, finding.reason


def test_a_panic_in_the_log_is_the_cause_of_death() -> None:
    why = "kernel panic: timer doesn't work through Interrupt-remapped IO-APIC"
    assert judge(PANIC, alive=False) == ("dead", why)
    assert judge(PANIC) == ("dead", why)
    failed = f"{initramfs.FAILED}there is no /usr/sbin/sshd\r\n"
    assert judge(failed, alive=False) == ("dead", "there is no /usr/sbin/sshd")
    assert judge("", alive=False) == ("dead", "its QEMU process is gone")


def test_a_host_boots_until_it_answers_and_hangs_when_that_takes_too_long() -> None:
    assert judge() == ("booting", "")
    assert judge(answers=True) == ("running", "")
    assert judge(age_s=61.0) == ("hung", "its boot did not end within 60 s")
    assert judge(f"{initramfs.READY}\n", age_s=61.0)[1].startswith("its sshd never answered")


def test_a_host_that_answered_before_and_does_not_now_hangs() -> None:
    assert judge(was_ready=True) == ("hung", "its sshd does not answer any more")
    state_, reason = judge(STALL, was_ready=True)
    assert state_ == "hung"
    assert reason.startswith("watchdog: BUG: soft lockup - CPU#1")
    assert judge(STALL, was_ready=True, answers=True)[0] == "running"


def test_a_log_is_shown_without_control_characters() -> None:
    log = "\x1bc\x1b[?7l\x1b[2JSeaBIOS (version 1.16.3)\r\n\r\n\x1b[0mone\r\ntwo\x07\r\n"
    assert last_lines(log, 2) == ("one", "two")


@given(st.text())
def test_any_log_can_be_judged(log: str) -> None:
    assert judge(log)[0] in ("booting", "dead")
    last_lines(log)


def test_the_state_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    where = LabPaths(tmp_path / "lab-t")
    state.make_directory(where)
    assert state.read(where) is None
    state.write(where, a_record())
    assert state.read(where) == a_record()
    assert where.directory.stat().st_mode & 0o777 == 0o700
    where.record.write_text('{"format": 1, "name"')
    assert state.read(where) is None


def test_a_path_too_long_for_sockets_is_said(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="too long a path for sockets"):
        state.make_directory(LabPaths(tmp_path / ("x" * 90) / "lab-t"))


def test_the_lock_ends_with_the_program_that_held_it(tmp_path: Path) -> None:
    where = LabPaths(tmp_path / "lab-t")
    state.make_directory(where)
    script = (
        "import sys, pathlib\n"
        "from planewise.lab import state\n"
        "from planewise.lab.model import LabPaths\n"
        "with state.lock(LabPaths(pathlib.Path(sys.argv[1])), exclusive=False) as mine:\n"
        "    print(mine, flush=True); input()\n"
    )
    argv = [sys.executable, "-c", script, str(where.directory)]
    user = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert user.stdout is not None
    assert user.stdout.readline() == "True\n"
    with state.lock(where, exclusive=False) as mine:
        assert mine
    with state.lock(where, exclusive=True) as mine:
        assert not mine
    user.kill()
    user.communicate()
    with state.lock(where, exclusive=True) as mine:
        assert mine


@pytest.fixture
def impostor(state_directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that looks as a host's QEMU does."""
    where = state.paths("t")
    state.make_directory(where)
    qemu_like = state_directory.parent / "qemu-system-x86_64"
    shutil.copy("/bin/sh", qemu_like)
    name = ["-name", "pw-lab-t-a", "-pidfile", str(where.host("a").pidfile)]
    # It starts nothing: what it starts would look like it until it is another program.
    argv = [str(qemu_like), "-c", "read forever", *name]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_what_nobody_uses_is_a_leftover_and_what_somebody_uses_is_none(
    state_directory: Path, impostor: subprocess.Popen[bytes]
) -> None:
    where = state.paths("t")
    state.write(where, a_record())
    with state.lock(where, exclusive=False):
        assert lab.leftovers() == ()
    (found,) = lab.leftovers()
    assert (found.name, found.processes) == ("t", (impostor.pid,))
    assert found.directory == str(where.directory)
    assert [one.name for one in lab.leftovers(remove=True)] == ["t"]
    assert impostor.wait(5) != 0
    assert not state_directory.exists()
    assert lab.leftovers() == ()


def test_a_host_whose_lab_has_no_directory_any_more_is_found(
    state_directory: Path, impostor: subprocess.Popen[bytes]
) -> None:
    shutil.rmtree(state.paths("t").directory)
    (found,) = lab.leftovers(remove=True)
    assert (found.name, found.processes) == ("t", (impostor.pid,))
    assert impostor.wait(5) != 0


def test_a_host_whose_directory_only_we_do_not_see_is_nobodys_leftover(
    state_directory: Path, impostor: subprocess.Popen[bytes]
) -> None:
    hide = 'mount -t tmpfs none "$1" && shift && exec "$@"'
    apart = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", hide, "sh")
    look = (sys.executable, "-c", "from planewise import lab; print(lab.leftovers(remove=True))")
    done = subprocess.run([*apart, state_directory, *look], capture_output=True, text=True)
    if "unshare" in done.stderr or "mount" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.stdout == "()\n", done.stderr
    assert impostor.poll() is None


def test_clean_says_and_removes_a_lab_that_nobody_uses(
    state_directory: Path, impostor: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only labs here: a test must not sweep the testbeds of this machine.
    monkeypatch.setattr(ledger, "leftovers", lambda: ())
    monkeypatch.setattr(ledger, "sweep", lambda **_: ())

    def clean(*flags: str) -> str:
        done = invoked("clean", *flags, raising=True)
        assert done.exit_code == 0
        return done.stdout

    state.write(state.paths("t"), a_record())
    (found,) = json.loads(clean("--dry-run", "--json"))["labs"]
    assert (found["name"], found["processes"]) == ("t", [impostor.pid])
    assert "Removed the lab t." in clean()
    assert impostor.wait(5) != 0
    assert not state_directory.exists()


def test_down_ends_a_lab_that_was_never_written_down(
    state_directory: Path, impostor: subprocess.Popen[bytes]
) -> None:
    assert lab.down("t")
    assert impostor.wait(5) != 0
    assert not state_directory.exists()
    assert not lab.down("t")


def test_down_does_not_interrupt_somebody_who_brings_the_lab_up(state_directory: Path) -> None:
    where = state.paths("t")
    state.make_directory(where)
    with state.lock(where, exclusive=True), pytest.raises(PlanewiseError, match="being started"):
        lab.down("t")


def test_a_lab_that_is_not_up_cannot_be_used(state_directory: Path) -> None:
    with pytest.raises(PlanewiseError, match="there is no lab `t`"), lab.using("t"):
        pass


def test_a_dead_host_is_said_with_the_end_of_its_log(state_directory: Path) -> None:
    where = state.paths("t")
    state.make_directory(where)
    state.write(where, a_record())
    where.host("a").serial_log.write_text(PANIC)
    status = lab.status("t")
    assert status is not None
    assert status.state == "dead"
    said = "host a of the lab `t` is dead: kernel panic: timer"
    with pytest.raises(PlanewiseError, match=said), lab.using("t"):
        pass


@pytest.mark.parametrize(
    ("said", "sentence", "way_out"),
    [
        ("qemu-system-x86_64: -m 9T: cannot set up guest memory 'ram'", "9000 MiB", "--memory"),
        ("Could not set up host forwarding rule 'tcp:1'", "port 22 .* was taken", "again"),
        ("qemu-system-x86_64: -accel kvm: failed", "does not start: -accel kvm", "--dry-run"),
    ],
)
def test_what_qemu_complains_of_becomes_a_sentence(said: str, sentence: str, way_out: str) -> None:
    error = refusal(said, LabSpec("t", memory_mib=9000), 22)
    with pytest.raises(PlanewiseError, match=sentence):
        raise error
    assert way_out in error.remedy


def test_too_little_memory_is_said_before_anything_starts(state_directory: Path) -> None:
    with pytest.raises(UnsupportedError, match="two hosts of 1000000 MiB need 2000000 MiB"):
        checks.memory(LabSpec("t", memory_mib=1_000_000))


def test_a_process_is_told_apart_from_a_later_one_with_its_id() -> None:
    seen = read_process(os.getpid())
    assert seen is not None
    assert seen.pid == os.getpid()
    assert seen.started_at_s > 0
    assert read_process(1 << 30) is None


def test_status_without_a_lab_says_so(state_directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planewise", "lab", "status", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == {"labs": []}


def test_a_wrong_host_is_refused_with_exit_code_2(state_directory: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "planewise", "lab", "run", "--host", "c", "--", "true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "'c' is not one of 'a', 'b'" in done.stderr
