"""A figure's SVG as part of a page: ids of its own, words on hover, no stray attributes."""

from __future__ import annotations

import re

from planewise.report.figures import base
from planewise.report.figures.base import Chart

_ID = re.compile(r'\bid="([^"]+)"')
_USE = re.compile(r'(url\(#|href="#)([^)"]+)')
_LABELLED = re.compile(r'<path ([^>]*?)aria-label="([^"]*)"([^>]*?)/>')
_ARIA = re.compile(
    r' (?:role|aria-roledescription|aria-hidden|aria-label|class|pointer-events)="[^"]*"'
)
_SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)" viewBox="([^"]+)"[^>]*>')


def inline(chart: Chart, prefix: str) -> str:
    """The chart as an SVG element to be put in a page.

    `prefix` makes its ids unique. Marks that carry a description get it as `<title>`, which a
    browser shows on hover without any script. It is hidden from assistive technology: the page
    gives the figure's text beside it.
    """
    text = base.svg(chart)
    text = _ID.sub(lambda match: f'id="{prefix}-{match[1]}"', text)
    text = _USE.sub(lambda match: f"{match[1]}{prefix}-{match[2]}", text)
    text = _LABELLED.sub(
        lambda match: f"<path {match[1]}{match[3]}><title>{match[2]}</title></path>", text
    )
    text = _ARIA.sub("", text)
    return _SIZE.sub(
        lambda match: (
            f'<svg viewBox="{match[3]}" style="max-width:{float(match[1]) * 1.25:.0f}px"'
            ' aria-hidden="true" focusable="false">'
        ),
        text,
        count=1,
    )
