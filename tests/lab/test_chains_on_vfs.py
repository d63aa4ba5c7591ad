"""Chains on the lab's hosts: functions on VFs, fed over the cable, and nothing left of them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.remote import LabHost
from planewise.testbed.vfs.nic import Tool
from tests.lengths import either

from .conftest import LAB, Run
from .test_hosted import HOSTS, states

pytestmark = pytest.mark.timeout(900)

# A paced generator: an emulated NIC that is flooded keeps its host from everything else.
DESIGN = """
title: chains on VFs in the lab
functions:
  - {forwarder: kernel, plane: vf}
  - {forwarder: kernel, guest: container, plane: vf}
  - {forwarder: xdp, plane: vf}
  - {forwarder: testpmd, plane: vhost-user}
factors: {path: [north-south, east-west], vnfs: 2}
constraints:
  - when: {guest: container}
    require: {path: east-west}
chain: {duration_s: 1, warmup_s: 0, offered_pps: 300}
blocks: 1
"""


PATHS = ("east-west", "north-south")
BRIEFLY = {("kernel", "container", "east-west"), ("xdp", "process", "north-south")}
ALL = {*BRIEFLY, *product(("kernel", "xdp"), ("process",), PATHS)}
LESS = DESIGN.replace("  - {forwarder: kernel, plane: vf}\n", "").replace(
    "chain:", "  - when: {guest: process}\n    require: {path: north-south}\nchain:"
)


@either("text wanted", (LESS, BRIEFLY), (DESIGN, ALL))
def test_functions_on_vfs_pass_on_what_comes_over_the_cable_and_leave_nothing(
    hosts: dict[str, LabHost],
    planewise: Run,
    tmp_path: Path,
    text: str,
    wanted: set[tuple[str, str, str]],
) -> None:
    before = states(hosts)
    (tmp_path / "chains.yaml").write_text(text)
    out = tmp_path / "run"
    argv = ("run", str(tmp_path / "chains.yaml"), *HOSTS, "--out", str(out))
    done = planewise(*argv, timeout_s=800, report=False)
    assert done.returncode == 0, done.stderr
    info = json.loads((out / "run.json").read_text())
    assert "QEMU machines" in info["emulated"]
    assert {one["cell"]["plane"] for one in info["skipped"]} == {"vhost-user"}
    trials = [json.loads(line) for line in (out / "trials.jsonl").read_text().splitlines()]
    names = ("forwarder", "guest", "path")
    assert sorted(tuple(one["cell"][name] for name in names) for one in trials) == sorted(wanted)
    for trial in trials:
        assert not trial.get("reason"), trial
        chain = trial["chain"]
        # East-west what the second sent came from the first, through the NIC's own switch.
        assert [one["name"] for one in chain["vnfs"]] == ["vnf1", "vnf2"]
        assert all(one["tx_packets"] > 0 for one in chain["vnfs"])
        assert trial["counts"]["received"] > 0
        assert chain["limit"] in ("generator", "NIC", "kernel", "shared core", "unknown")
        assert {task for core in chain["cores"] for task in core["tasks"]} == {"vnf1", "vnf2"}
    lines = (out / "kpis.jsonl").read_text().splitlines()
    assert {name for line in lines for name in json.loads(line)["cpu"]} == {
        f"responder {cpu}" for cpu in range(LAB.cpus)
    }
    assert states(hosts) == before


def test_vfs_that_a_process_of_another_user_holds_are_never_taken_away(
    hosts: dict[str, LabHost],
) -> None:
    host, before = hosts["b"], states(hosts)
    tool = Tool.on(host)
    tool.run("setup", "pf0", "--count", "2", "--owner", "held")
    tool.run("bind", "pf0/0", "vfio-pci", "--owner", "held")
    link = host.run(["readlink", "/sys/class/net/pf0/device/virtfn0/iommu_group"])
    file = f"/dev/vfio/{link.check().stdout.strip().rpartition('/')[2]}"
    host.run(["chown", "65534", file]).check()
    hold = f"exec 9<>{file}; echo holds >&2; exec sleep 600"
    holder = host.start(["setpriv", "--reuid", "65534", "--clear-groups", "sh", "-c", hold])
    try:
        holder.wait_ready("holds", 60)
        # The kernel would wait for the holder for ever, and the host with it.
        for argv in (("setup", "pf0", "--count", "0", "--force"), ("restore",)):
            with pytest.raises(PlanewiseError, match=f"holds {file}"):
                tool.run(*argv, "--owner", "held")
    finally:
        holder.stop()
        tool.run("restore", "--owner", "held")
    assert states(hosts) == before
