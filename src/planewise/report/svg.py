"""A figure's SVG as part of a page: ids of its own, words on hover, no stray attributes."""

from __future__ import annotations

import re

from planewise.report.figures import base
from planewise.report.figures.base import Spec

_ID = re.compile(r'\bid="([^"]+)"')
_USE = re.compile(r'(url\(#|href="#)([^)"]+)')
_LABELLED = re.compile(r'<path ([^>]*?)aria-label="([^"]*)"([^>]*?)/>')
_ARIA = re.compile(
    r' (?:role|aria-roledescription|aria-hidden|aria-label|class|pointer-events)="[^"]*"'
)
_LONG = re.compile(r"(\d+\.\d\d)\d+")
_TAG = re.compile(r"<[^>]+>")
_IDLE = re.compile(r' (?:stroke-miterlimit="10"|opacity="1"|transform="translate\(0,0\)")')
_SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)" viewBox="([^"]+)"[^>]*>')


def inline(figure: Spec, prefix: str) -> str:
    """The figure as an SVG element to be put in a page.

    `prefix` makes its ids unique. Marks that carry a description get it as `<title>`, which a
    browser shows on hover without any script. It is hidden from assistive technology: the page
    gives the figure's text beside it.
    """
    text = base.svg(figure)
    text = _ID.sub(lambda match: f'id="{prefix}-{match[1]}"', text)
    text = _USE.sub(lambda match: f"{match[1]}{prefix}-{match[2]}", text)
    text = _LABELLED.sub(
        lambda match: f"<path {match[1]}{match[3]}><title>{match[2]}</title></path>", text
    )
    text = _IDLE.sub("", _ARIA.sub("", text)).replace("<path  ", "<path ")
    text = _TAG.sub(lambda match: _LONG.sub(r"\1", match[0]), text)  # in tags: not what is said
    return _SIZE.sub(
        lambda match: (
            f'<svg viewBox="{match[3]}" style="max-width:{float(match[1]) * 1.25:.0f}px"'
            ' aria-hidden="true" focusable="false">'
        ),
        text,
        count=1,
    )
