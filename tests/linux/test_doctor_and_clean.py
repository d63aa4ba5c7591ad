"""`planewise doctor` and `planewise clean`, as a person or a program runs them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from planewise.store.models import Fingerprint
from planewise.testbed.hosts import netns
from planewise.testbed.hosts.ledger import sweep
from planewise.testbed.planes import plane_names
from tests.command import planewise

pytestmark = [pytest.mark.linux, pytest.mark.apart]


def test_the_doctor_tries_every_plane_and_leaves_nothing() -> None:
    ran = planewise("doctor", "--json")
    assert ran.returncode == 0, ran.stderr
    host = Fingerprint.model_validate_json(ran.stdout)
    assert [plane.plane for plane in host.planes] == list(plane_names())
    assert any(plane.available for plane in host.planes)
    for plane in host.planes:
        assert plane.available == (plane.reason == "")
        assert plane.available or plane.remedy
    assert host.cpus >= 1


def test_the_doctor_speaks_plainly_first() -> None:
    lines = planewise("doctor").stdout.splitlines()
    assert lines[0].startswith("This host can compare ")
    assert "disturb a measurement" in lines[1]


def test_where_user_namespaces_are_forbidden_one_sentence_says_so_and_the_way_out() -> None:
    # A user namespace of its own in which no further one may be made, and which owns no mounts.
    if not shutil.which("unshare"):
        pytest.skip("there is no unshare; install util-linux")
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces && exec "$@"'
    inside = ("unshare", "--user", "--map-root-user", "sh", "-c", forbid, "sh")
    if subprocess.run([*inside, "true"], capture_output=True).returncode != 0:
        pytest.skip("the limit on user namespaces cannot be set here")
    ran = planewise("doctor", "--json", before=inside)
    assert ran.returncode == 0, ran.stderr
    host = Fingerprint.model_validate_json(ran.stdout)
    assert not any(plane.available for plane in host.planes)
    assert "user.max_user_namespaces is 0" in host.planes[0].reason
    assert "sudo" in host.planes[0].remedy


def test_clean_says_what_it_would_remove_then_removes_it() -> None:
    sweep()
    name = "pw-11111111-s"
    netns.prepare_run()
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        would = json.loads(planewise("clean", "--dry-run", "--json").stdout)
        assert would["dry_run"] is True
        assert [name] in [one["namespaces"] for one in would["leftovers"]]
        assert name in netns.names()
        said = planewise("clean").stdout
        assert "Removed a testbed: 1 namespaces (pw-11111111-…)" in said
        assert name not in netns.names()
        assert "pw-11111111" not in planewise("clean").stdout
    finally:
        netns.remove(name)


def test_what_a_killed_test_or_bench_made_is_a_leftover_like_any_other() -> None:
    code = "from tests.linux.probe import relay\nwith relay():\n    print(flush=True)\n    input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        alive = set(netns.names())
        process.kill()
    gone = {name for found in sweep() for name in found.namespaces}
    assert len(gone) == 3
    assert gone <= alive
    assert not gone & set(netns.names())
