"""A generator's limit is never taken for the system's."""

from __future__ import annotations

import json
from pathlib import Path

from planewise.judge.curve import Curve, Run
from planewise.judge.verdict import judge
from tests.command import invoked


def runs(offered: float, received: float, limited: bool) -> list[Run]:
    return [
        Run(
            sent=int(offered) * 1000,
            received=round(received * 1000 * (1 - n % 4 * 1e-5)),
            duration_s=1,
            limited=limited,
        )
        for n in range(24)
    ]


def test_loads_that_only_the_generator_limited_change_nothing_but_a_warning() -> None:
    ladder = (1000, 1500, 2000, 2500, 3000, 3200, 4000, 5000)
    own = {load: runs(load, min(load, 3000), False) for load in ladder}
    beyond = own | {load: runs(load, load, True) for load in (6000, 7000)}
    alone = judge(Curve.from_runs("own", own))
    together = judge(Curve.from_runs("with limited", beyond))
    assert together.verdict == alone.verdict == "GOOD"
    assert together.pdr == alone.pdr
    assert together.headroom == alone.headroom
    (warning,) = [w for w in together.warnings if w.code == "loads-left-out"]
    assert warning.evidence == {"loads": 2, "lowest_pps": 6000, "highest_pps": 7000}


def test_a_system_that_no_trial_tested_is_undecided() -> None:
    curve = Curve.from_runs(
        "never", {load: runs(load, min(load, 3000), True) for load in (1000, 3000, 4000, 5000)}
    )
    verdict = judge(curve)
    assert verdict.verdict == "UNDECIDED"
    assert "nothing is known" in verdict.reason
    numbers = (verdict.pdr, verdict.ndr, verdict.first_crossing, verdict.saturation)
    assert numbers == (None, None, None, None)
    assert verdict.no_pdr == verdict.no_ndr == "no trial was limited by the system itself"
    assert verdict.headroom is None
    assert verdict.next_loads == ()


def test_a_first_load_that_loses_too_much_is_told_from_a_system_that_was_not_tested() -> None:
    verdict = judge(
        Curve.from_runs("late", {load: runs(load, 2000, False) for load in (3000, 4000, 5000)})
    )
    assert verdict.tested
    assert verdict.pdr is None
    assert verdict.no_pdr == "the first load already loses more"


def test_no_table_has_a_number_for_a_system_that_no_trial_tested(tmp_path: Path) -> None:
    file = tmp_path / "limited.csv"
    rows = [f"{load},{load},{min(load, 3000)},1,1" for load in (1000, 3000, 4000, 5000)] * 3
    file.write_text("\n".join(["offered_pps,sent,received,duration_s,limited", *rows]))
    told = invoked("judge", file)
    assert told.exit_code == 0, told.output
    assert (
        "PDR at 0.5 % loss is not known: no trial was limited by the system itself" in told.stdout
    )
    (row,) = [line for line in told.stdout.splitlines() if "limited.csv" in line]
    assert "pps" not in row
    (answer,) = json.loads(invoked("judge", file, "--json").stdout)
    assert answer["verdict"] == "UNDECIDED"
    assert [answer[key] for key in ("pdr_pps", "ndr_pps", "saturation_pps")] == [None] * 3
