"""planewised under its unit while its NIC's driver goes, its disk is full, and it is killed."""

from __future__ import annotations

import json
import time
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate, takewhile, zip_longest

import pytest

from planewise.errors import PlanewiseError
from tests.lab.moving import STEPS

from .stage import BESIDE, SET_UP_PF, Stage

REBIND = f"""
device=$(basename "$(readlink -f /sys/class/net/pf0/device)")
echo "$device" >/sys/bus/pci/drivers/igb/unbind
sleep 3
echo "$device" >/sys/bus/pci/drivers/igb/bind
ip link set "$(ls "/sys/bus/pci/devices/$device/net")" name pf0
{SET_UP_PF}
"""
"""The PF's driver goes and comes again; then the operator sets the PF up as before."""


@pytest.mark.parametrize("moment", ["idle", "while a VF is taken", "while a VF is given"])
def test_a_pf_that_is_unbound_and_bound_has_its_vfs_given_again(
    stage: Stage, said: list[str], moment: str
) -> None:
    stage.settle()
    if moment == "while a VF is given":
        stage.move("web", "excluded")

    def rebind() -> None:
        if moment != "idle":
            stage.wish("web", "excluded" if "taken" in moment else "pinned")
            stage.until("web to be moved", lambda: stage.is_moving("web"))
        stage.shell(REBIND)
        stage.wish("web", "pinned")
        stage.settle()

    stage.probed(f"PF unbound for 3 s and bound, {moment}", rebind, ("web", BESIDE), said)
    stage.assert_whole(f"after the PF was unbound and bound, {moment}")


DISK = """
systemctl stop planewised
truncate -s 512K /run/pw-disk.img
mkfs.ext2 -q -b 1024 -m 0 /run/pw-disk.img
mkdir -p /run/pw-disk
mount -o loop /run/pw-disk.img /run/pw-disk
cp -a /var/lib/planewise/. /run/pw-disk
mount --move /run/pw-disk /var/lib/planewise || mount -o loop /run/pw-disk.img /var/lib/planewise
stat -c %i /var/lib/planewise/journal
systemctl start planewised
"""
"""The daemon's state on a disk of 512 KiB, whose blocks are small: some lines of the journal.

Prints the journal's inode."""

PUT_BACK = """
systemctl stop planewised
mkdir -p /run/pw-kept
cp -a /var/lib/planewise/. /run/pw-kept
rm -rf /run/pw-kept/lost+found
umount /var/lib/planewise
find /var/lib/planewise -mindepth 1 -delete
cp -a /run/pw-kept/. /var/lib/planewise
rm -rf /run/pw-kept /run/pw-disk.img
systemctl start planewised
"""

FILL = """
cd /var/lib/planewise
ln -f wishes.json kept
dd if=/dev/zero of=filler bs=1024 2>/dev/null || :
truncate -s -$((1024 * (BLOCKS + ($(stat -c %s wishes.json) + 1023) / 1024))) filler
"""
"""Leaves so many blocks once an order is written: in a new file, while the old one is `kept`."""

BLOCK_BYTES = 1024


@pytest.fixture
def small_disk(stage: Stage) -> Iterator[None]:
    """The daemon's state on a disk that is soon full."""
    stage.settle()
    copied = stage.shell(DISK).split()[-1]
    # A daemon that starts writes its journal anew once it has looked at everything.
    stage.until("the journal to be written anew", lambda: inode(stage) != copied)
    stage.settle()
    yield
    stage.shell("cd /var/lib/planewise; rm -f filler kept")
    stage.shell(PUT_BACK)
    stage.settle()


def inode(stage: Stage) -> str:
    """The journal's, which changes where all of it is written anew."""
    return stage.shell("stat -c %i /var/lib/planewise/journal").strip()


def journal(stage: Stage) -> list[str]:
    return stage.shell("cat /var/lib/planewise/journal").splitlines(keepends=True)


def name_of(line: str) -> str:
    """What a line of the journal announces or says: `begin`, `intent attach`, `done`, …"""
    entry = json.loads(line[9:])
    step = entry.get("step", {}).get("step", "") if isinstance(entry.get("step"), dict) else ""
    return f"{entry['entry']} {step}".strip()


@pytest.mark.usefixtures("small_disk")
def test_a_disk_that_is_full_at_any_step_of_a_move_stops_it_there_until_there_is_room(
    stage: Stage, said: list[str]
) -> None:
    lengths: dict[str, list[int]] = {}
    wanted: dict[str, set[int]] = {}
    for stance in ("excluded", "pinned"):
        before = len(journal(stage))
        stage.move("web", stance)
        lines = journal(stage)[before:]
        lengths[stance] = [len(line) for line in lines]
        wanted[stance] = {i for i, line in enumerate(lines) if name_of(line).startswith("intent")}
    steps = sum(map(len, wanted.values()))
    begun, attempts = time.monotonic(), 0
    # Where a block ends in the journal, and so which step meets the full disk, is chance.
    while any(wanted.values()) and attempts < 30 * steps:
        stance = "pinned" if attempts % 2 else "excluded"
        attempts += 1
        before = len("".join(journal(stage)))
        room = -before % BLOCK_BYTES
        blocks = blocks_to_leave(lengths[stance], room, wanted[stance])
        if blocks is None:
            stage.move("web", stance)
            continue
        stage.shell(FILL.replace("BLOCKS", str(blocks)))
        stage.wish("web", stance)
        stage.until("the move to meet the full disk", lambda: is_stopped(stage, before))  # noqa: B023
        stopped = where_vfs_are(stage)
        time.sleep(3)
        assert where_vfs_are(stage) == stopped, "it went on without room"
        new = "".join(journal(stage))[before:].splitlines(keepends=True)
        place = len([*takewhile(lambda line: name_of(line) != "recover", new)])
        wanted[stance].discard(place)
        stage.shell("rm /var/lib/planewise/filler /var/lib/planewise/kept")
        stage.move("web", stance)
        stage.assert_whole(f"after a disk that was full at line {place} of a move to {stance}")
    stage.move("web", "pinned")
    left = sum(map(len, wanted.values()))
    said.append(
        f"a full disk at {steps - left} of {steps} steps of a take and a give, in {attempts} "
        f"moves, {time.monotonic() - begun:.0f} s"
    )
    assert left == 0, wanted


def where_vfs_are(stage: Stage) -> list[object]:
    """Each VF's driver, settings and namespace: all but what it has carried."""
    return [
        (vf["driver"], vf["config"], vf["netdev"] and vf["netdev"]["netns"]) for vf in stage.vfs()
    ]


def blocks_to_leave(lengths: list[int], room: int, wanted: set[int]) -> int | None:
    """How many free blocks end with a line of `wanted` as the first without room; None: none do."""
    ends = list(accumulate(lengths))
    for blocks in range(ends[-1] // BLOCK_BYTES + 1):
        if bisect_right(ends, room + blocks * BLOCK_BYTES) in wanted:
            return blocks
    return None


def is_stopped(stage: Stage, before: int) -> bool:
    """Whether a move was begun, and its journal has no room for what comes next."""
    free = int(stage.shell("stat -f -c %f /var/lib/planewise"))
    begun = len("".join(journal(stage))) > before
    return free == 0 and begun and not stage.is_moving("web")


DROP_IN = """
mkdir -p /run/systemd/system/planewised.service.d
cat >/run/systemd/system/planewised.service.d/kill.conf <<'E'
[Service]
EnvironmentFile=-/run/pw-kill
ExecStartPost=+/bin/rm -f /run/pw-kill
E
systemctl daemon-reload
"""
"""The next start of the unit, and no later one, is killed at the moment that /run/pw-kill names."""


@pytest.fixture
def killable(stage: Stage) -> Iterator[None]:
    """A unit that can be started so that it is killed."""
    stage.settle()
    stage.shell(DROP_IN)
    yield
    stage.shell(
        "rm -rf /run/systemd/system/planewised.service.d /run/pw-kill; systemctl daemon-reload;"
        "systemctl reset-failed planewised; systemctl restart planewised"
    )
    stage.settle()


def restarts(stage: Stage) -> int:
    return int(stage.shell("systemctl show -p NRestarts --value planewised"))


@pytest.mark.usefixtures("killable")
def test_a_daemon_that_is_killed_at_any_step_is_started_by_its_unit_and_puts_all_right(
    stage: Stage, said: list[str]
) -> None:
    takes = [step for step in STEPS if step.startswith("take") or step.endswith(("veth", "detach"))]
    gives = [step for step in STEPS if step not in takes]
    assert len(takes) > len(gives)
    moves = stage.moves_of("batch")
    begun = time.monotonic()

    def killed_at(moment: str, stance: str) -> None:
        stage.shell(
            f"echo PLANEWISE_TEST_KILL_AT={moment} >/run/pw-kill;"
            "systemctl reset-failed planewised; systemctl restart planewised"
        )
        before = restarts(stage)
        with suppress(PlanewiseError):  # it may be killed before it has answered
            stage.wish_when_up("web", stance)
        stage.until(f"a kill at {moment}", lambda: restarts(stage) > before)
        stage.move("web", stance)
        stage.assert_whole(f"after a kill at {moment}")

    def kill() -> None:
        for take, give in zip_longest(takes, gives):
            killed_at(take, "excluded")
            if give is None:
                stage.move("web", "pinned")
            else:
                killed_at(give, "pinned")

    stage.probed(f"killed at {len(STEPS)} steps", kill, ("web", BESIDE), said)
    assert stage.moves_of("batch") == moves
    said.append(f"killed at {len(STEPS)} steps in {time.monotonic() - begun:.0f} s")
