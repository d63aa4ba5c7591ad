"""A generator's limit is never taken for the system's."""

from __future__ import annotations

from planewise.judge.curve import Curve, Run
from planewise.judge.verdict import judge


def runs(offered: float, received: float, limited: bool) -> list[Run]:
    return [
        Run(sent=int(offered), received=int(received) - n, duration_s=1, limited=limited)
        for n in range(4)
    ]


def test_loads_that_only_the_generator_limited_change_nothing_but_a_warning() -> None:
    own = {load: runs(load, min(load, 3000), False) for load in (1000, 2000, 3000, 4000, 5000)}
    beyond = own | {load: runs(load, load, True) for load in (6000, 7000)}
    alone = judge(Curve.from_runs("own", own))
    together = judge(Curve.from_runs("with limited", beyond))
    assert together.verdict == alone.verdict == "GOOD"
    assert together.pdr == alone.pdr
    assert together.probability_good == alone.probability_good
    (warning,) = [w for w in together.warnings if w.code == "loads-left-out"]
    assert warning.evidence == {"loads": 2, "lowest_pps": 6000, "highest_pps": 7000}


def test_a_system_that_no_trial_tested_is_undecided() -> None:
    curve = Curve.from_runs(
        "never", {load: runs(load, min(load, 3000), True) for load in (1000, 3000, 4000, 5000)}
    )
    verdict = judge(curve)
    assert verdict.verdict == "UNDECIDED"
    assert "nothing is known" in verdict.reason
