"""A figure's SVG as part of a page: ids of its own, words on hover, no stray attributes."""

from __future__ import annotations

import re

from planewise.report import theme

_ID = re.compile(r'\bid="([^"]+)"')
_USE = re.compile(r'(url\(#|href="#)([^)"]+)')
_LABELLED = re.compile(r'<path ([^>]*?)aria-label="([^"]*)"([^>]*?)/>')
_ARIA = re.compile(
    r' (?:role|aria-roledescription|aria-hidden|aria-label|class|pointer-events)="[^"]*"'
)
_LONG = re.compile(r"(?<=\d\.\d)\d+")
_DOT = re.compile(
    r'<path transform="translate\((-?[\d.]+),(-?[\d.]+)\)" d="M([\d.]+),0A[-\d.,A]*"'
    r' fill="([^"]+)" stroke-width="[\d.]+"( opacity="[\d.]+")/>'
)
_DOTS = re.compile(
    r'(?:<path transform="translate\([^"]*\)" d="M[\d.]+,0A[-\d.,A]*"'
    r' fill="[^"]+" stroke-width="[\d.]+" opacity="[\d.]+"/>){8,}'
)
_FONT = f' font-family="{theme.FONT}"'
_FONT_SIZE = f' font-size="{theme.FONT_SIZE}px"'
_TEXT = re.compile(r"(>[^<]+<)")
_IDLE = re.compile(r' (?:stroke-miterlimit="10"|opacity="1"|transform="translate\(0,0\)")')
_SIZE = re.compile(r'<svg [^>]*?width="([\d.]+)" height="([\d.]+)" viewBox="([^"]+)"[^>]*>')


def inline(text: str, prefix: str) -> str:
    """A whole SVG `text` as an element to be put in a page.

    `prefix` makes its ids unique. Marks that carry a description get it as `<title>`, which a
    browser shows on hover without any script. It is hidden from assistive technology: the page
    gives the figure's text beside it.
    """
    text = _ID.sub(lambda match: f'id="{prefix}-{match[1]}"', text)
    text = _USE.sub(lambda match: f"{match[1]}{prefix}-{match[2]}", text)
    text = _LABELLED.sub(
        lambda match: f"<path {match[1]}{match[3]}><title>{match[2]}</title></path>", text
    )
    text = _IDLE.sub("", _ARIA.sub("", text)).replace("<path  ", "<path ")
    text = text.replace(_FONT, "").replace(_FONT_SIZE, "")
    # Digits beyond a tenth of a pixel are cut off in the markup, not in texts.
    pieces = _TEXT.split(text)
    pieces[::2] = [_LONG.sub("", piece) for piece in pieces[::2]]
    text = "".join(pieces)
    text = _DOTS.sub(_merged_dots, text)
    return _SIZE.sub(
        lambda match: (
            f'<svg viewBox="{match[3]}" style="max-width:{float(match[1]) * 1.25:.0f}px"'
            f"{_FONT}{_FONT_SIZE}"
            ' aria-hidden="true" focusable="false">'
        ),
        text,
        count=1,
    )


def _merged_dots(dots: re.Match[str]) -> str:
    """Many dots as one path a colour: points drawn with round line caps."""
    places: dict[tuple[str, ...], list[str]] = {}
    for x, y, radius, fill, opacity in _DOT.findall(dots[0]):
        places.setdefault((radius, fill, opacity), []).append(f"M{x},{y}h0")
    return "".join(
        f'<path d="{"".join(points)}" stroke="{fill}" stroke-width="{2 * float(radius):g}"'
        f'{opacity} stroke-linecap="round"/>'
        for (radius, fill, opacity), points in places.items()
    )
