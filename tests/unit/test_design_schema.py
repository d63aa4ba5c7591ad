"""The JSON Schema of designs: shipped as it is, and true of every design that we ship."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema_rs
import pytest
from ruamel.yaml import YAML

from planewise.measure.designs.campaign import curves_of
from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.design_file import DIALECT, design_schema, load_any

ROOT = Path(__file__).parents[2]
SHIPPED = sorted((ROOT / "experiments").rglob("*.yaml"))


def test_the_shipped_schema_is_current() -> None:
    shipped = json.loads((ROOT / "docs/reference/design.schema.json").read_text())
    assert shipped == design_schema(), (
        "make it anew: planewise run --schema > docs/reference/design.schema.json"
    )
    assert shipped["$schema"] == DIALECT
    jsonschema_rs.meta.validate(shipped)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_design_is_good_and_keeps_to_the_schema(path: Path) -> None:
    design = load_any(path)
    assert cells_of(design) if isinstance(design, Design) else curves_of(design)
    jsonschema_rs.validate(design_schema(), YAML(typ="safe").load(path.read_text()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"factors": {}},
        {"factors": {"plane": []}},
        {"factors": {"plane": "veth", "background_guests": "8"}},
        {"factors": {"plane": "veth", "guest": "vms"}},
        {"factors": {"plane": "veth"}, "blocks": 0},
        {"factors": {"plane": "veth"}, "block": 3},
        {"factors": {"plane": "veth"}, "sweep": {"offered_pps": "all"}},
        {"factors": {"plane": "veth"}, "constraints": [{"exclude": {"plan": "veth"}}]},
        {"sut": "switch"},
        {"sut": "router", "factors": {"plane": "veth"}},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses_in_one_key(wrong: object) -> None:
    with pytest.raises(jsonschema_rs.ValidationError):
        jsonschema_rs.validate(design_schema(), wrong)
