"""CSIT's test case results (`*.info.json`): bounds that a search found. Knows that schema alone.

Followed: FD.io CSIT's model, docs/model/current/schema/test_case.info.schema.yaml, version 1.0.1
(`result.type` of `ndrpdr`, `mrr`, `soak`). The model keeps no trial of a search: only the
lower and upper bound of NDR and PDR. They become `reported` values without trials.
"""

from __future__ import annotations

from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.fields import Fields, LooseText, Number, at, check
from planewise.store.importers.text import values
from planewise.store.loads import LoadTrials, TrialColumns

NAME = "csit"


class _Case(Fields):
    type: LooseText = at("result", "type", default=None)
    test_id: LooseText = None
    dut_type: LooseText = None
    dut_version: LooseText = None
    test_type: LooseText = None
    tg_type: LooseText = None
    start_time: LooseText = None


class _Bounds(Fields):
    ndr_pps: Number = at("result", "ndr", "lower", "rate", "value")
    ndr_unit: object = at("result", "ndr", "lower", "rate", "unit", default=None)
    pdr_pps: Number = at("result", "pdr", "lower", "rate", "value")
    pdr_unit: object = at("result", "pdr", "lower", "rate", "unit", default=None)


def recognise(head: bytes, path: Path) -> float:
    """`test_id` beside `dut_type` or a result type of the model."""
    if b'"test_id"' in head and (b'"dut_type"' in head or b'"ndrpdr"' in head):
        return 0.9
    if path.name.endswith((".info.json", ".info.json.gz")) and b'"result"' in head:
        return 0.7
    return 0.5 if b'"ndrpdr"' in head and b'"lower"' in head else 0.0


def parse(text: str, path: Path) -> list[LoadTrials]:
    """A curve without trials for each test case. BadInputError for a test that is no search."""
    curves = []
    for line, value in values(text, path):
        where = f"{path}:{line}"
        case = check(_Case, value, "a test case", where)
        _require_search(case.type, where)
        bounds = check(_Bounds, value, "a test case", where)
        _require_pps("ndr", bounds.ndr_unit, where)
        _require_pps("pdr", bounds.pdr_unit, where)
        info = case.model_dump(exclude={"type"}, exclude_none=True)
        curves.append(
            TrialColumns(path).finish(
                format_name=NAME,
                curve=info.get("test_id", ""),
                info=info,
                reported={"ndr_pps": bounds.ndr_pps, "pdr_pps": bounds.pdr_pps},
                notes=[
                    "CSIT's model keeps the bounds that the search found and none of its trials: "
                    "the numbers are as reported (lower bounds) and nothing can be judged"
                ],
            )
        )
    if not curves:
        raise BadInputError("the list of test cases is empty", where=str(path))
    return curves


def _require_search(kind: str | None, where: str) -> None:
    if kind == "ndrpdr":
        return
    raise BadInputError(
        "no result.type: not a test case of CSIT's model 1.x"
        if kind is None
        else f"a test case of type {kind!r}: only searches (ndrpdr) report loss",
        where=where,
        remedy="give the .info.json of an ndrpdr test, or the search's trials (format mlrsearch)",
    )


def _require_pps(name: str, unit: object, where: str) -> None:
    if unit != "pps":
        raise BadInputError(
            f"{name} is given in {str(unit)[:20]}, not in pps",
            where=where,
            remedy="only packet rates can be judged",
        )
