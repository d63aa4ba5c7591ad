"""Measures a fleet's pairs: round by round, several at a time, each in a process of its own.

A pair's process is `planewise fleet run --resume FLEET --index N`, as in a pod of an Indexed Job.
So a pair that fails or is killed does not affect others.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass

from planewise.errors import PlanewiseError
from planewise.fleet.plan import Fleet
from planewise.fleet.tournament import Match
from planewise.testbed.hosts.host import HostProcess, LocalHost, ProcessTimeoutError

_POLL_S = 1.0
_STOP_S = 60.0
"""Longest time for a pair's process to tear its testbed down."""

Measure = Callable[[Fleet, Match, threading.Event], str]
"""Measures one pair into its run directory; returns why it failed, empty when it did not."""


@dataclass(frozen=True)
class SessionResult:
    """Result of one session of a fleet."""

    measured: int
    failed: tuple[tuple[Match, str], ...]
    left: int
    """Pairs that are still to be measured."""


def run(
    fleet: Fleet, measure: Measure, note: Callable[[str], None], *, parallel: int = 1
) -> SessionResult:
    """Measures every pair that is not done, in the order of the rounds.

    Matches of a round share no node, so `parallel` of them are measured at a time; a round begins
    when the one before has ended. A pair that fails is noted, and the others continue.
    """
    measured = 0
    failed: list[tuple[Match, str]] = []
    stop = threading.Event()
    todo = [match for match in fleet.matches if fleet.state(match) != "done"]

    def run_match(match: Match) -> tuple[Match, str]:
        if stop.is_set():
            return match, "stopped"
        return match, measure(fleet, match, stop)

    with ThreadPoolExecutor(parallel) as pool:
        try:
            for number in dict.fromkeys(match.round for match in todo):
                matches = [match for match in todo if match.round == number]
                for match, why in pool.map(run_match, matches):
                    sender, responder = names(fleet, match)
                    place = f"pair {match.index} ({sender}, {responder})"
                    if why:
                        fleet.record_failure(match, why)
                        failed.append((match, why))
                        note(f"{place} was not measured: {why}")
                    else:
                        fleet.clear_failure(match)
                        measured += 1
                        note(f"{place} is measured; {len(todo) - measured - len(failed)} left")
        except BaseException:
            stop.set()
            raise
    return SessionResult(measured, tuple(failed), len(todo) - measured)


def names(fleet: Fleet, match: Match) -> tuple[str, str]:
    """Sender and responder of a pair."""
    nodes = fleet.plan.nodes
    return nodes[match.sender], nodes[match.responder]


def in_a_process(fleet: Fleet, match: Match, stop: threading.Event) -> str:
    """Measures a pair (see `Measure`) in a process that dies with this one."""
    pair = ("--resume", str(fleet.path), "--index", str(match.index))
    argv = (sys.executable, "-m", "planewise", "--quiet", "fleet", "run", *pair)
    with closing(LocalHost("fleet")) as host, host.start(argv) as process:
        while True:
            try:
                ended = process.wait(_POLL_S)
            except ProcessTimeoutError:
                if stop.is_set():
                    return _stopped(process)
                continue
            if ended.exit_code == 0:
                return ""
            words = [
                line.removeprefix("error: ")
                for line in ended.stderr.splitlines()
                if line.startswith("error: ")
            ]
            return words[-1] if words else f"its process ended with {ended.ending}"


def _stopped(process: HostProcess) -> str:
    process.interrupt()
    try:
        process.wait(_STOP_S)
    except ProcessTimeoutError:
        process.stop()
    return "stopped"


def match_of(fleet: Fleet, index: int) -> Match:
    """The pair of this index. PlanewiseError where there is none."""
    if not 0 <= index < len(fleet.matches):
        raise PlanewiseError(
            f"there is no pair {index}: the fleet has {len(fleet.matches)}, from 0",
            remedy="set the Job's completions to that number",
        )
    return fleet.matches[index]


def wait_for_budget(fleet: Fleet, match: Match, note: Callable[[str], None]) -> None:
    """Waits until the budget of time allows to measure both nodes."""
    wait_s = fleet.rest_s(match, time.time())
    if wait_s > 0:
        note(f"the nodes rest for {wait_s:.0f} s, by the budget of time")
        time.sleep(wait_s)
