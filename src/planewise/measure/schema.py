"""The JSON Schema of a design, for editors and for programs that write designs. Pure.

It says what a key may hold; what several keys say together (`measure.sense`) it cannot.
"""

from __future__ import annotations

from typing import Any

from planewise.measure.design import Design

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def design_schema() -> dict[str, Any]:
    """As `docs/reference/design.schema.json` has it."""
    schema = Design.model_json_schema()
    # Functions of chains may name the planes in its place.
    schema["$defs"]["Factors"].pop("required", None)
    schema["anyOf"] = [
        {"required": ["functions"]},
        {"properties": {"factors": {"required": ["plane"]}}},
    ]
    return {
        "$schema": DIALECT,
        **schema,
        "title": "A Planewise design",
        "description": "What `planewise run` measures. docs/reference/designs.md explains it.",
    }
