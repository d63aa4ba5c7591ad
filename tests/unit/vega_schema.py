"""Checks a figure against Vega-Lite's schema, which Altair brings along."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

import altair
import jsonschema_rs


def fits_schema(figure: dict[str, Any]) -> bool:
    """True; jsonschema_rs.ValidationError, which names the part, where it does not fit."""
    _validator().validate(figure)
    return True


@cache
def _validator() -> jsonschema_rs.Validator:
    schema = Path(altair.__file__).parent / "vegalite" / "v6" / "schema" / "vega-lite-schema.json"
    return jsonschema_rs.validator_for(json.loads(schema.read_text(), object_hook=_with_uri))


def _with_uri(part: dict[str, Any]) -> dict[str, Any]:
    """Its references name types of TypeScript (`Dict<A|B>`), which are no URIs unless quoted."""
    if isinstance(part.get("$ref"), str):
        return {**part, "$ref": quote(part["$ref"], safe="#/")}
    return part
