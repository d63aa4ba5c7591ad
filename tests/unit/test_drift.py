"""Drift of the machine: told when it was planted, silent when there was none."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from planewise.judge.drift import find_drift
from planewise.store.models import HostState, Latency, RunInfo, Session, TrialRecord
from tests.unit import made_up_run
from tests.unit.test_run_directory import make_info

START = datetime(2026, 3, 14, 9, 0, tzinfo=UTC)
CELLS = 6


def latency(median_ns: float) -> Latency:
    whole = int(median_ns)
    return Latency(
        count=100, min_ns=whole, mean_ns=median_ns, p50_ns=median_ns, p90_ns=median_ns,
        p99_ns=median_ns, p999_ns=median_ns, max_ns=whole,
    )  # fmt: skip


def trials(
    blocks: int = 6,
    seed: int = 1,
    factor: Callable[[int, float], float] = lambda block, place: 1.0,
    state: Callable[[int], HostState] = lambda order: HostState(),
) -> list[TrialRecord]:
    """Cells in random order in blocks; `factor(block, place)` slows a trial, place 0 to 1."""
    rng = np.random.default_rng(seed)
    made = []
    for block in range(blocks):
        for number in rng.permutation(CELLS):
            order = len(made)
            place = order / (blocks * CELLS - 1)
            own = 10_000 * (1 + int(number))
            median = own * factor(block, place) * rng.lognormal(0, 0.02)
            made.append(
                made_up_run.trial(
                    f"rtt:{number}#r{block}",
                    "rtt",
                    {"plane": f"p{number}"},
                    block,
                    order=order,
                    started=START + timedelta(seconds=2 * order),
                    latency={"rtt_kernel": latency(median)},
                    host={"shared": state(order)},
                )
            )
    return made


def codes(made: list[TrialRecord], info: RunInfo | None = None) -> list[str]:
    return [one.code for one in find_drift(made, info)]


def test_a_steady_machine_is_rarely_said_to_drift() -> None:
    assert sum(bool(codes(trials(seed=seed))) for seed in range(200)) <= 4


def test_a_planted_trend_is_found_with_its_size() -> None:
    (found,) = find_drift(trials(factor=lambda _, place: 1 + 0.3 * place))
    assert found.code == "results"
    assert "rose by" in found.sentence
    assert float(found.evidence["low"]) < 0.3 < float(found.evidence["high"])
    assert float(found.evidence["change"]) == pytest.approx(0.3, abs=0.06)


def test_the_order_of_the_file_does_not_matter() -> None:
    made = trials(factor=lambda _, place: 1 + 0.3 * place)
    assert find_drift(made[::-1]) == find_drift(made)


def test_a_block_that_was_disturbed_is_named() -> None:
    (found,) = find_drift(trials(factor=lambda block, _: 1.5 if block == 2 else 1.0))
    assert found.code == "block"
    assert found.sentence.startswith("Block 3 was ")
    assert float(found.evidence["off"]) == pytest.approx(0.5, abs=0.05)


def test_one_block_or_failed_trials_alone_tell_nothing() -> None:
    assert codes(trials(blocks=1)) == []
    failed = [one.model_copy(update={"status": "failed"}) for one in trials()]
    assert codes(failed) == []
    assert find_drift([]) == ()


@pytest.mark.parametrize(
    ("state", "code", "words"),
    [
        (lambda n: HostState(governor="performance" if n < 9 else "powersave"), "governor",
         "performance then powersave"),
        (lambda n: HostState(cpu_mhz=3000 if n < 15 else 2500), "clock", "3000 MHz"),
        (lambda n: HostState(temperature_c=40 + n), "heat", "°C"),
        (lambda n: HostState(throttled=int(n == 7)), "throttled", "in 1 of 36 trials"),
        (lambda n: HostState(steal=0.2 if n % 3 == 0 else 0.0), "steal",
         "more than 1 % of all CPUs' time to others in 12 of 36 trials (up to 20 %)"),
        (lambda n: HostState(foreign_cpu=0.5), "foreign_cpu", "in 36 of 36 trials (up to 50 %)"),
        (lambda n: HostState(offloads={"eth0": "gro" if n < 9 else ""}), "offloads", "eth0"),
    ],
)  # fmt: skip
def test_what_happened_to_the_host_is_told(
    state: Callable[[int], HostState], code: str, words: str
) -> None:
    (found,) = find_drift(trials(state=state))
    assert found.code == code
    assert words in found.sentence


def test_what_a_machine_does_not_tell_is_no_drift() -> None:
    half_known = trials(state=lambda n: HostState(steal=0.0 if n % 2 else None, cpu_mhz=None))
    assert codes(half_known) == []


def test_a_run_continued_on_a_changed_system_says_so() -> None:
    session = Session(started=START, first_order=12, changed=("kernel: 6.1 is now 6.2",))
    info = make_info().model_copy(update={"sessions": (session,)})
    (found,) = find_drift(trials(), info)
    assert "kernel: 6.1 is now 6.2" in found.sentence
