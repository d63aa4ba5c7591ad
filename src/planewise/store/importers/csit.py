"""CSIT's test case results (`*.info.json`): a search's bounds, or the rates of MRR's trials.

Followed: FD.io CSIT, docs/model/current/schema/test_case.info.schema.yaml, 1.0.1 to 1.5.1, and
resources/libraries/python/model/ExportResult.py. `result.type` is `ndrpdr` (lower and upper bound
of NDR and PDR, none of the search's trials), `mrr` (the receive rate of each trial), `soak` (bounds
of the critical rate) or `hoststack` (one bandwidth).
"""

from __future__ import annotations

from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields, LooseNumber, LooseText, Number, at, check
from planewise.store.importers.text import values
from planewise.store.readings import Collected, Readings

NAME = "csit"


class _Case(Fields):
    type: LooseText = at("result", "type", default=None)
    test_id: LooseText = None
    passed: object = None
    message: LooseText = None


class _Bounds(Fields):
    lower: Number = at("lower", "rate", "value")
    upper: LooseNumber = at("upper", "rate", "value", default=None)
    unit: object = at("lower", "rate", "unit", default=None)


class _Search(Fields):
    ndr: object = at("result", "ndr", default=None)
    pdr: object = at("result", "pdr", default=None)
    critical_rate: object = at("result", "critical_rate", default=None)


class _Mrr(Fields):
    values: list[Number] = at("result", "receive_rate", "rate", "values")
    unit: object = at("result", "receive_rate", "rate", "unit", default=None)


class _HostStack(Fields):
    bps: Number = at("result", "bandwidth", "value")


def recognise(head: bytes, path: Path) -> float:
    """`test_id` beside the model's other names."""
    types = (b'"ndrpdr"', b'"mrr"', b'"soak"', b'"hoststack"')
    if b'"test_id"' in head and (b'"dut_type"' in head or any(one in head for one in types)):
        return 0.9
    return 0.5 if b'"ndrpdr"' in head and b'"lower"' in head else 0.0


def parse(text: str, path: Path) -> list[Readings]:
    """NDR and PDR, or MRR, of each test case. BadInputError for a test without either."""
    found = Collected(path, NAME)
    why = "the list of test cases is empty"
    for line, value in values(text, path):
        where = f"{path}:{line}"
        case = check(_Case, value, "a test case", where)
        name = case.test_id or ""
        if case.type == "mrr":
            mrr = check(_Mrr, value, "a test case", where)
            _require_pps("the receive rate", mrr.unit, where)
            found.add("MRR (receive rate at line rate)", "pps", "run", mrr.values, name)
        elif case.type == "hoststack":
            stack = check(_HostStack, value, "a test case", where)
            found.add("throughput", "bit/s", "run", [stack.bps], name)
        elif case.type in ("ndrpdr", "soak"):
            search = check(_Search, value, "a test case", where)
            parts = ("ndr", "pdr") if case.type == "ndrpdr" else ("critical_rate",)
            for part in parts:
                bounds = check(_Bounds, getattr(search, part), part, where, f"result.{part}.")
                _require_pps(part, bounds.unit, where)
                title = part.upper() if part != "critical_rate" else "critical rate"
                found.add_number(
                    title, "pps", bounds.lower, name, low=bounds.lower, high=bounds.upper
                )
        elif case.passed is False:
            why = f"the test failed: {' '.join((case.message or 'no reason given').split())[:150]}"
        else:
            raise BadInputError(
                "no result.type: not a test case of CSIT's model 1.x"
                if case.type is None
                else f"a test case of type {case.type[:30]!r} has no rate",
                where=where,
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
