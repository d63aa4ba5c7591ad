"""The systemd unit, as far as systemd's own tools judge it without a running systemd."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from planewise.testbed.vfs.nic import find_planewised

UNIT = Path(__file__).parents[2] / "crates" / "planewised" / "planewised.service"
ANALYZE = shutil.which("systemd-analyze")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(ANALYZE is None, reason="no systemd-analyze on this machine")
def test_systemd_finds_no_mistake_and_little_exposure_in_the_unit(tmp_path: Path) -> None:
    copy = tmp_path / UNIT.name
    text = UNIT.read_text()
    assert "/usr/local/bin/planewised daemon --config" in text
    copy.write_text(text.replace("/usr/local/bin/planewised", find_planewised()))
    verified = run("systemd-analyze", "verify", str(copy))
    if "Failed to initialize" in verified.stderr or "unknown verb" in verified.stderr.lower():
        pytest.skip(f"systemd-analyze does not run here: {verified.stderr.strip()}")
    # Other units of this machine may have mistakes of their own.
    own = [line for line in verified.stderr.splitlines() if UNIT.name in line]
    assert (verified.returncode, own) == (0, []), verified.stderr
    judged = run("systemd-analyze", "security", "--offline=true", "--threshold=40", str(copy))
    if "unrecognized option" in judged.stderr:
        pytest.skip("systemd-analyze is older than 250: it judges no files")
    assert judged.returncode == 0, judged.stdout[-200:] + judged.stderr


def test_the_unit_names_a_configuration_and_a_command_that_the_daemon_has() -> None:
    words = next(line for line in UNIT.read_text().splitlines() if line.startswith("ExecStart="))
    helped = run(find_planewised(), words.split()[1], "--help")
    assert helped.returncode == 0
    assert "--config" in helped.stdout


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("udevadm") is None, reason="needs root and udevadm"
)
@pytest.mark.parametrize("is_vf", [True, False])
def test_network_managers_are_kept_off_vfs_and_off_nothing_else(is_vf: bool) -> None:
    rules = UNIT.with_name("planewise-vf.rules").read_text()
    assert 'TEST=="device/physfn"' in rules
    # A veth has this file; a VF has the other one.
    rules = rules.replace("device/physfn", "address") if is_vf else rules
    script = """
mount -t sysfs s /sys && mount -t tmpfs t /usr/lib/udev/rules.d
printf %s "$1" >/usr/lib/udev/rules.d/85-planewise-vf.rules
ip link add x type veth peer y && udevadm test --action=add /sys/class/net/x
"""
    done = run("unshare", "-mn", "sh", "-ec", script, "sh", rules)
    if "Reading rules file" not in done.stderr or "Failed to open device" in done.stderr:
        pytest.skip(f"udevadm does not run here: {done.stderr[-200:]}")
    assert ("NM_UNMANAGED=1" in done.stdout) == is_vf, done.stderr
    network = UNIT.with_name("planewise-vf.network").read_text()
    named = next(line for line in network.splitlines() if line.startswith("Property="))
    assert (named.removeprefix("Property=") in done.stdout) == is_vf
