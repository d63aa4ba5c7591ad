"""The JSON Schema of a design, for editors and for programs that write designs. Pure.

It says what a key may hold; what several keys say together (`measure.designs.sense`) it cannot.
"""

from __future__ import annotations

from typing import Any

from planewise.measure.designs.campaign import CampaignDesign
from planewise.measure.designs.file_model import FILE_MODEL

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def design_schema() -> dict[str, Any]:
    """The schema in `docs/reference/design.schema.json`."""
    planes, campaign = FILE_MODEL.model_json_schema(), CampaignDesign.model_json_schema()
    parts = {**campaign.pop("$defs"), **planes.pop("$defs")}
    # Functions of chains may name the planes in its place.
    parts["Factors"].pop("required", None)
    planes["properties"].pop("others")
    planes["anyOf"] = [
        {"required": ["functions"]},
        {"properties": {"factors": {"required": ["plane"]}}},
    ]
    return {
        "$schema": DIALECT,
        "title": "A Planewise design",
        "description": "What `planewise run` measures. docs/reference/designs.md explains it.",
        "if": {"required": ["sut"]},
        "then": {"$ref": "#/$defs/CampaignDesign"},
        "else": {"$ref": "#/$defs/Design"},
        "$defs": {**parts, "CampaignDesign": campaign, "Design": planes},
    }
