"""Checks a figure against Vega-Lite's schema, which Altair brings along."""

from __future__ import annotations

from typing import Any

import altair as alt


def fits_schema(figure: dict[str, Any]) -> bool:
    """True; altair.SchemaValidationError, which names the part, where it does not fit.

    Of each mark's rows only two are looked at: the schema asks no more of a row than to be an
    object, and thousands of them take minutes.
    """
    alt.Chart.from_dict(_with_two_rows(figure)).to_dict(validate=True)
    return True


def _with_two_rows(part: Any) -> Any:
    if isinstance(part, list):
        return [_with_two_rows(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: {**value, "values": value["values"][:2]} if key == "data" else _with_two_rows(value)
        for key, value in part.items()
    }
