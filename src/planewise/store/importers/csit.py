"""CSIT's test case results (`*.info.json`): a search's bounds, or the rates of MRR's trials.

Followed: FD.io CSIT, docs/model/current/schema/test_case.info.schema.yaml, 1.0.1 to 1.5.1, and
resources/libraries/python/model/ExportResult.py. `result.type` is `ndrpdr` (lower and upper bound
of NDR and PDR, none of the search's trials), `mrr` (the receive rate of each trial), `soak` (bounds
of the critical rate) or `hoststack` (one bandwidth).
"""

from __future__ import annotations

from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields, number
from planewise.store.importers.text import values
from planewise.store.readings import Collected, Readings

NAME = "csit"
MARKS = (
    (0.9, '"test_id"', '"dut_type"|"ndrpdr"|"mrr"|"soak"|"hoststack"'),
    (0.5, '"ndrpdr"', '"lower"'),
)

_BOUNDS = {
    "ndrpdr": {"ndr": "NDR", "pdr": "PDR"},
    "soak": {"critical_rate": "critical rate"},
}
"""By type, the fields that have a lower and an upper bound, with their names."""


def parse(text: str, path: Path) -> list[Readings]:
    """NDR and PDR, or MRR, of each test case. BadInputError for a test without either."""
    found = Collected(path, NAME)
    why = "the list of test cases is empty"
    for line, value in values(text, path):
        case = Fields(value, "a test case", f"{path}:{line}")
        kind, name = case.text("result.type"), case.text("test_id")
        if kind == "mrr":
            rates = case.get("result.receive_rate.rate.values")
            _require_pps("the receive rate", case.get("result.receive_rate.rate.unit"), case.where)
            found.add(
                "MRR (receive rate at line rate)",
                "pps",
                "run",
                [
                    number(rate, "a receive rate", case.where)
                    for rate in (rates if isinstance(rates, list) else [None])
                ],
                name,
            )
        elif kind == "hoststack":
            bps = case.number("result.bandwidth.value")
            found.add("throughput", "bit/s", "run", [bps], name)
        elif kind in _BOUNDS:
            for part, title in _BOUNDS[kind].items():
                rate = case.inner(f"result.{part}")
                low = rate.number("lower.rate.value")
                _require_pps(part, rate.get("lower.rate.unit"), case.where)
                high = rate.loose("upper.rate.value")
                found.add_number(title, "pps", low, name, low=low, high=high)
        elif case.get("passed") is False:
            reason = " ".join(case.text("message").split())[:150]
            why = f"the test failed: {reason or 'no reason given'}"
        else:
            raise BadInputError(
                f"a test case of type {kind[:30]!r} has no rate"
                if kind
                else "no result.type: not a test case of CSIT's model 1.x",
                where=case.where,
                remedy="give the .info.json of an ndrpdr, mrr, soak or hoststack test",
            )
    return found.finish(why)


def _require_pps(name: str, unit: object, where: str) -> None:
    if unit != "pps":
        raise BadInputError(
            f"{name} is given in {str(unit)[:20]}, not in pps",
            where=where,
            remedy="only packet rates can be compared",
        )
