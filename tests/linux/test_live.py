"""`planewise run --live`: what guests send, by the second, on the page, and kept with the run."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from pathlib import Path

import pytest

from planewise.testbed.hosts.gauges import Gauge, Gauges
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.model import HOSTS
from tests.command import UNREPORTED
from tests.kpis import kpis
from tests.linux.testbeds import here

DESIGN = """
title: A live look
factors:
  plane: [veth]
  load_type: [none, network]
  background_guests: [2]
background:
  rate_pps: 2000
rtt:
  packets: 4000
blocks: 1
"""
NAMES = ("main", "background0", "background1")
LONG_S = 240.0


@pytest.fixture
def loopback() -> None:
    """Inside a user namespace nobody has brought it up yet."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def test_a_run_is_shown_by_the_second_while_it_goes_on_and_kept(
    tmp_path: Path, loopback: None
) -> None:
    design = tmp_path / "design.yaml"
    design.write_text(DESIGN)
    out = tmp_path / "run"
    said = tmp_path / "stderr"
    command = [*UNREPORTED, "run", str(design), "--out", str(out), "--live"]
    with said.open("wb") as stderr:
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        deadline = time.monotonic() + LONG_S
        url, seen = "", None
        while not seen:
            assert running.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.1)
            found = re.search(r"http://127\.0\.0\.1:\d+/", said.read_text())
            if found:
                url = found[0]
                with urllib.request.urlopen(f"{url}state.json", timeout=30) as answer:
                    state = json.load(answer)
                seen = next((one for one in state["samples"] if one["trial"]), None)
        assert state["title"] == "A live look"
        assert running.wait(LONG_S) == 0, said.read_text()
    finally:
        running.kill()
        running.wait()
    # The page went with the run.
    with pytest.raises(OSError):
        urllib.request.urlopen(url, timeout=30)
    kept = kpis(out)
    assert any(one.trial == seen["trial"] for one in kept)
    guests = {f"{host}-{one}" for host in ("sender", "responder") for one in NAMES}
    assert all(set(one.vnfs) == guests for one in kept)
    assert all(one.cpu for one in kept)
    # Probes go to and fro; background guests send where the cell has network load, only there.
    for one in kept:
        if not one.trial:
            continue
        background = [one.vnfs[f"sender-background{n}"].tx_pps for n in range(2)]
        if one.cell["load_type"] == "none":
            assert sum(background) < 200  # no more than kernels say by themselves
    loaded = [one for one in kept if one.cell.get("load_type") == "network"]
    assert any(one.vnfs["sender-background0"].tx_pps > 0 for one in loaded)
    assert any(one.vnfs["responder-main"].tx_pps > 0 for one in kept)


def test_other_hosts_are_read_as_this_machine_is() -> None:
    """By commands instead of by a thread in the namespace; here this machine stands for both."""
    with here("veth", None, 1) as testbed:
        guests = [
            guest for host in HOSTS for guest in (testbed.main(host), *testbed.background(host))
        ]
        watched = [Gauge(one.name, one.host, one.netns, one.interface) for one in guests]
        watched.append(Gauge("gone", "sender", "pw-nowhere", "eth0"))
        local = Gauges(watched)
        there = Gauges(watched, {role: LocalHost(role) for role in HOSTS})
        try:
            before, remote, after = local.read(), there.read(), local.read()
        finally:
            local.close()
    assert set(remote.sent) == set(before.sent) == {one.name for one in guests}
    for name, (packets, size) in remote.sent.items():
        assert before.sent[name][0] <= packets <= after.sent[name][0]
        assert before.sent[name][1] <= size <= after.sent[name][1]
    assert {f"{role} {cpu}" for role in HOSTS for cpu in before.cpus} == set(remote.cpus)
