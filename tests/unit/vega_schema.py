"""Checks a figure against Vega-Lite's schema, which Altair brings along."""

from __future__ import annotations

from typing import Any

import altair as alt


def fits_schema(figure: dict[str, Any]) -> bool:
    """True; altair.SchemaValidationError, which names the part, where it does not fit."""
    alt.Chart.from_dict(figure).to_dict(validate=True)
    return True
