"""CSIT's test case results (`*.info.json`): bounds that a search found. Knows that schema alone.

Followed: FD.io CSIT's model, docs/model/current/schema/test_case.info.schema.yaml, version 1.0.1
(`result.type` of `ndrpdr`, `mrr`, `soak`). The model keeps no trial of a search: only the
lower and upper bound of NDR and PDR. They are handed on as reported, with no trials to judge.
"""

from __future__ import annotations

from pathlib import Path

from planewise.errors import BadInputError
from planewise.store.importers.text import mapping, number, read_text, values
from planewise.store.loads import LoadTrials, TrialColumns

NAME = "csit"
TITLE = "FD.io CSIT: a test case's .info.json (bounds without trials)"

_INFO = ("test_id", "dut_type", "dut_version", "test_type", "tg_type", "start_time")


def recognise(head: bytes, path: Path) -> float:
    """`test_id` beside `dut_type` or a result type of the model."""
    if b'"test_id"' in head and (b'"dut_type"' in head or b'"ndrpdr"' in head):
        return 0.9
    if path.name.endswith((".info.json", ".info.json.gz")) and b'"result"' in head:
        return 0.7
    return 0.5 if b'"ndrpdr"' in head and b'"lower"' in head else 0.0


def read(path: Path) -> list[LoadTrials]:
    """A curve without trials a test case. BadInputError when the test is not of a search."""
    return parse(read_text(path), path)


def parse(text: str, path: Path) -> list[LoadTrials]:
    """The same from the file's text; `path` only names it."""
    curves = []
    for line, value in values(text, path):
        where = f"{path}:{line}"
        test = mapping(value, "a test case", where)
        result = mapping(test.get("result"), "result", where)
        kind = result.get("type")
        if kind != "ndrpdr":
            raise BadInputError(
                f"a test case of type {kind!r}: only searches (ndrpdr) say anything of loss"
                if isinstance(kind, str)
                else "no result.type: not a test case of CSIT's model 1.x",
                where=where,
                remedy="give the .info.json of an ndrpdr test, or the search's trials "
                "(format mlrsearch)",
            )
        reported = {
            "ndr_pps": _lower(result.get("ndr"), "ndr", where),
            "pdr_pps": _lower(result.get("pdr"), "pdr", where),
        }
        info = {key: str(test[key]) for key in _INFO if isinstance(test.get(key), str)}
        curves.append(
            TrialColumns(path).finish(
                format_name=NAME,
                curve=info.get("test_id", ""),
                info=info,
                reported=reported,
                notes=[
                    "CSIT's model keeps the bounds that the search found and none of its trials: "
                    "the numbers are as reported (lower bounds) and nothing can be judged"
                ],
            )
        )
    if not curves:
        raise BadInputError("the list of test cases is empty", where=str(path))
    return curves


def _lower(bounds: object, name: str, where: str) -> float:
    rate = mapping(
        mapping(mapping(bounds, name, where).get("lower"), f"{name}.lower", where).get("rate"),
        f"{name}.lower.rate",
        where,
    )
    if rate.get("unit") != "pps":
        raise BadInputError(
            f"{name} is given in {str(rate.get('unit'))[:20]}, not in pps",
            where=where,
            remedy="only packet rates can be judged",
        )
    return number(rate.get("value"), f"{name}.lower.rate.value", where)
