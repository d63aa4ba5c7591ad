"""Setting `irq`: interrupts of real VFs go to other CPUs and come back, also after a kill.

In a lab of its own, whose hosts have a second CPU for them.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest

from planewise import lab
from planewise.commands.clean import clean
from planewise.errors import PlanewiseError
from planewise.testbed import settings
from planewise.testbed.hosts.pair import Targets, remote_pair
from planewise.testbed.hosts.remote import LabHost
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.testbed import Testbed
from planewise.testbed.vfs.nic import Tool

from .conftest import Silence

pytestmark = pytest.mark.timeout(900)

VF = "/sys/class/net/pf0/device/virtfn0"
FIRST_ON_0 = f"""
ip link set pf0 up
ip link set $(ls {VF}/net) up
echo 0 >/proc/irq/$(ls -v {VF}/msi_irqs | sed 1q)/smp_affinity_list
ip link set $(ls {VF}/net) down
"""
LOOK = """
for one in /sys/class/net/pf0/device /sys/class/net/pf0/device/virtfn0; do
    for irq in $(ls -v $one/msi_irqs); do
        echo ${one##*/} $(cat /proc/irq/$irq/smp_affinity_list)
    done
done
"""


@pytest.fixture(scope="module")
def hosts(state_directory: Path) -> Iterator[dict[str, LabHost]]:
    """Two hosts whose administrator made a VF, and moved one of its interrupts."""
    lab.up(lab.LabSpec("irq", memory_mib=768, cpus=2), Silence())
    try:
        with ExitStack() as stack:
            opened = {
                name: stack.enter_context(closing(LabHost("irq", name, name=name)))
                for name in lab.HOSTS
            }
            for host in opened.values():
                Tool.on(host).run("setup", "pf0", "--count", "1", "--owner", "test")
                host.run(["sh", "-ec", FIRST_ON_0]).check()
            yield opened
    finally:
        lab.down("irq")


def interrupts(hosts: dict[str, LabHost]) -> dict[str, list[str]]:
    """The CPUs of each interrupt of a host's PF and VF."""
    return {
        name: host.run(["sh", "-ec", LOOK]).check().stdout.splitlines()
        for name, host in hosts.items()
    }


@contextmanager
def built() -> Iterator[Arrangement]:
    """A guest with the VF on each host."""
    setting = Setting("namespace", "vf", "vf", 0, "north-south")
    with remote_pair(Targets("lab:irq/a", "lab:irq/b")) as pair, Testbed(pair, 1500) as testbed:
        assert testbed.check([setting]) == {}
        with testbed.arrange(setting) as arrangement:
            yield arrangement


VICTIM = """
import os
from planewise.testbed import settings
from tests.lab.test_interrupts import built
with built() as arrangement, settings.applied("irq=1", arrangement):
    os.kill(os.getpid(), 9)
"""


def test_interrupts_of_vfs_go_where_asked_and_come_back_also_after_a_kill(
    hosts: dict[str, LabHost],
) -> None:
    before = interrupts(hosts)
    for lines in before.values():
        assert {"virtfn0 0", "virtfn0 0-1"} <= set(lines)
    moved = {
        name: ["virtfn0 1" if line.startswith("virtfn0") else line for line in lines]
        for name, lines in before.items()
    }
    with built() as arrangement:
        with settings.applied("irq=1", arrangement):
            assert interrupts(hosts) == moved
        assert interrupts(hosts) == before
        with (
            pytest.raises(PlanewiseError, match="cannot be set to 7: there is no such CPU"),
            settings.applied("irq=7", arrangement),
        ):
            pass
    assert interrupts(hosts) == before
    victim = subprocess.run([sys.executable, "-c", VICTIM], capture_output=True, check=False)
    assert victim.returncode == -signal.SIGKILL, victim.stderr
    assert interrupts(hosts) == moved
    clean(dry_run=False, json_=False)
    assert interrupts(hosts) == before
