"""Figures as the report draws them."""

from __future__ import annotations

import json
import re

import vl_convert

from planewise.report import vega
from planewise.report.vega import Spec


def svg_of(figure: Spec) -> str:
    """A whole figure as SVG text; no file and no network."""
    return str(vl_convert.vegalite_to_svg(json.dumps(figure)))


def texts_of(panel: Spec) -> str:
    """All texts in the drawing of a panel."""
    return " ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg_of(vega.alone(panel))))
