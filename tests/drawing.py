"""Figures as the report draws them."""

from __future__ import annotations

from planewise.report import renderer
from planewise.report.figures import base
from planewise.report.figures.vega import Spec


def svg_of(figure: Spec) -> str:
    """The figure as SVG text; no file and no network."""
    return renderer.svg(base.text(figure))
