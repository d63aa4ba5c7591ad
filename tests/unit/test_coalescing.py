"""Interrupt coalescing of NICs: read, set where it differs, given back, refused elsewhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planewise.errors import PlanewiseError
from planewise.measure.designs.cells import Cell, expand
from planewise.measure.designs.design import Design
from planewise.measure.designs.sense import find_problem
from planewise.measure.runs.stations import Stations
from planewise.measure.trials.rtt import RttTrial
from planewise.testbed.hosts import pair
from planewise.testbed.hosts.coalescing import read_rx_usecs, set_rx_usecs
from planewise.testbed.hosts.host import FinishedProcess, LocalHost

# As ethtool 6.1 prints it of the lab's igb, and of a driver that has the call but not this value.
IGB = """Coalesce parameters for pf0:
Adaptive RX: n/a  TX: n/a
stats-block-usecs:\tn/a
rx-usecs:\t3
rx-frames:\tn/a
rx-usecs-irq:\tn/a
tx-usecs:\t3
"""
OTHER = IGB.replace("rx-usecs:\t3", "rx-usecs:\tn/a")


class Server(LocalHost):
    """A host whose NIC says `told`, and whose ethtool notes what it sets."""

    def __init__(self, told: str, directory: Path) -> None:
        super().__init__("server")
        self._path = directory
        (directory / "told").write_text(told)
        (directory / "done").touch()
        program = directory / "ethtool"
        program.write_text(
            f'#!/bin/sh\ncd {directory}\n[ $1 = -c ] && cat told || echo "$@" >>done\n'
        )
        program.chmod(0o755)

    def run(self, argv: Sequence[str], **named: Any) -> FinishedProcess:
        return super().run(["env", f"PATH={self._path}:{os.environ['PATH']}", *argv], **named)

    @property
    def done(self) -> list[str]:
        return (self._path / "done").read_text().splitlines()


@pytest.mark.parametrize(("told", "usecs"), [(IGB, 3), (OTHER, None), ("", None)])
def test_what_a_driver_does_not_tell_is_not_taken_for_none(
    told: str, usecs: int | None, tmp_path: Path
) -> None:
    with closing(Server(told, tmp_path)) as server:
        assert read_rx_usecs(server, "pf0") == usecs


def test_interrupts_are_set_where_they_differ_alone(tmp_path: Path) -> None:
    with closing(Server(IGB, tmp_path)) as server:
        set_rx_usecs(server, "pf0", 3)
        assert server.done == []
        set_rx_usecs(server, "pf0", 100)
        assert server.done == ["-C pf0 rx-usecs 100"]


@pytest.mark.parametrize("flags", [["UP", "PROMISC"], ["BROADCAST"]])
def test_a_server_gets_back_its_nic_and_the_settings_that_a_run_may_change(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flags: list[str]
) -> None:
    key = "net/bridge/bridge-nf-call-iptables"
    with closing(Server(IGB, tmp_path)) as server:
        server.place = "ssh://server"
        link = json.dumps([{"flags": flags, "mtu": 1400}])
        asked = FinishedProcess(("ip",), 0, link, "")
        with monkeypatch.context() as patch:
            run = server.run
            patch.setattr(server, "run", lambda argv, **n: asked if argv[0] == "ip" else run(argv))
            values = {f"/proc/sys/{key}": "1\n", "/proc/sys/net/ipv4/conf/pf0/forwarding": "0\n"}
            patch.setattr(server, "read_text", _files(values))
            note = pair._note(server, "pf0")
        assert (note.host, note.nic) == ("ssh://server", "pf0")
        words = ["down promisc off", "up promisc on"][len(flags) - 1]
        assert note.restore[:3] == (
            f"ip link set pf0 mtu 1400 {words}",
            "echo 0 >/proc/sys/net/ipv4/conf/pf0/forwarding",
            f"echo 1 >/proc/sys/{key}",
        )
        (tmp_path / "told").write_text(IGB.replace("rx-usecs:\t3", "rx-usecs:\t90"))
        lines = [line for line in note.restore if "ethtool" in line]
        pair.return_nics([server], [replace(note, restore=tuple(lines))])
        assert server.done == ["-C pf0 rx-usecs 3"]
        with pytest.raises(PlanewiseError, match="pf0 of ssh://server could not be restored: no"):
            pair.return_nics([server], [replace(note, restore=("echo no >&2; false",))])


def _files(texts: Mapping[str, str]) -> Callable[[str], str]:
    def read(path: str) -> str:
        if path not in texts:
            raise PlanewiseError(f"{path} cannot be read")
        return texts[path]

    return read


def design(levels: object, **more: object) -> Design:
    factors = {"plane": ["bridge"], "rx_usecs": levels}
    return Design.model_validate({"factors": factors, **({"rtt": {}} | more)})


def test_each_level_is_a_trial_of_its_own_and_no_level_stays_as_runs_from_before_have_it() -> None:
    (traffic,) = expand(design([0, 100])).values()
    assert [one["rx_usecs"] for one in traffic["rtt"]] == [0, 100]
    assert RttTrial("t", 1000, 64, 10, rx_usecs=100).traffic()["rx_usecs"] == 100
    assert "rx_usecs" not in RttTrial("t", 1000, 64, 10).traffic()


def test_veth_pairs_have_no_interrupts_and_other_trials_no_say_in_them() -> None:
    with Stations(design([0, 100])) as stages:
        cell = Cell(plane="bridge")
        assert "has no interrupts" in stages.unavailable([cell])[cell]
    problem = find_problem(design(100, sweep={}))
    assert problem is not None
    assert "not in those of `sweep`" in problem.what
    with pytest.raises(ValueError, match="cannot be combined"):
        design(["as-is", 100])
