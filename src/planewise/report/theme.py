"""Colours, fonts and formats of shares and axes of every figure and table. Knows no data.

Each colour that a figure may use stands here once, with its partner for dark backgrounds: the
report's style sheet recolours the figures by it, so that one drawing serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import cycle

from planewise.units import percent_text

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""Fonts of one metric, so that a label's width is known when a figure is laid out."""

FONT_SIZE = 12


@dataclass(frozen=True)
class Colour:
    """A colour on white and its partner on black, both as `#rrggbb`."""

    light: str
    dark: str


INK = Colour("#1c1c22", "#ececf1")
MUTED = Colour("#5c5c66", "#a9a9b6")
GRID = Colour("#e1e1e6", "#3a3a44")
PAPER = Colour("#fffffe", "#17171c")
ALERT = Colour("#b3261e", "#ff8a80")

# The Okabe-Ito palette, darkened where it falls below 3:1 on white, and Tol's muted one for the
# planes of virtual machines: hues that people with any of the common colour blindnesses tell
# apart. A plane has the same colour in every figure of every report.
PLANES: dict[str, Colour] = {
    "veth": Colour("#0072b2", "#56b4e9"),
    "routed": Colour("#3f6f12", "#93c75e"),
    "bridge": Colour("#c04d00", "#ff9d5c"),
    "ovs": Colour("#5b3a1e", "#c79a72"),
    "macvlan": Colour("#00805e", "#2fd0a5"),
    "ipvlan": Colour("#b0578d", "#eea3cf"),
    "docker-bridge": Colour("#9a6b00", "#f0c04a"),
    "vf": Colour("#3d3a9e", "#a5a2ff"),
    "e1000-bridge": Colour("#882255", "#e07fb0"),
    "virtio-bridge": Colour("#6f6f1d", "#cfcf6a"),
    "virtio-ovs": Colour("#b3475d", "#f0899c"),
    "virtio-routed": Colour("#44607a", "#9dbbd8"),
    "macvtap-bridge": Colour("#8f3a8c", "#de92db"),
    "macvtap-vf": Colour("#21786c", "#6fd3c5"),
    "vf-passthrough": Colour("#332288", "#9a90ee"),
    "vhost-user": Colour("#661100", "#e0886f"),
}

# Parts of a bar: the nearer to the measured program, the darker.
PARTS: dict[str, Colour] = {
    "instrument": Colour("#b9b9c2", "#6b6b78"),
    "sender": Colour("#27476e", "#86b6f2"),
    "wire": Colour("#8aa4c4", "#4c6a92"),
    "responder": Colour("#b9671f", "#f2b06b"),
    "sender_stack": Colour("#5d9c8c", "#8fd0bf"),
    "between": Colour("#7c7f8a", "#a2a5b0"),
    "responder_stack": Colour("#d9a441", "#f0c87a"),
}

MODES: dict[str, Colour] = {
    "programs": Colour("#27476f", "#86b6f3"),
    "kernel": Colour("#b9671e", "#f2b06a"),
    "interrupts": Colour("#4f8a8b", "#7fd1d2"),
    "stolen": Colour("#8c2f5e", "#f08cc0"),
    "waiting": Colour("#b9b9c3", "#6b6b79"),
}

# Colours for planes that have none: usable while the named plane is not in the run.
_FALLBACKS: dict[str, Colour] = {
    "vhost-user": Colour("#661101", "#e08870"),
    "docker-bridge": Colour("#9a6b01", "#f0c04b"),
    "vf": Colour("#3d3a9f", "#a5a2fe"),
    "ipvlan": Colour("#b0578e", "#eea3d0"),
    "macvtap-vf": Colour("#21786d", "#6fd3c6"),
    "virtio-bridge": Colour("#6f6f1e", "#cfcf6b"),
    "veth": Colour("#0072b3", "#56b4ea"),
    "bridge": Colour("#c04d01", "#ff9d5d"),
    "macvlan": Colour("#00805f", "#2fd0a6"),
}

VERDICTS: dict[str, Colour] = {
    "GOOD": Colour("#1b6e3a", "#6fdc98"),
    "BAD": Colour("#b3261f", "#ff8a81"),
    "UNDECIDED": Colour("#7a5800", "#f0c04c"),
}


def every_colour() -> tuple[Colour, ...]:
    """All colours that may occur in a figure."""
    named = (INK, MUTED, GRID, PAPER, ALERT)
    groups = (PLANES, PARTS, MODES, VERDICTS, _FALLBACKS)
    return (*named, *(colour for group in groups for colour in group.values()))


def colours_of(planes: Iterable[str]) -> dict[str, str]:
    """The colour on white of each plane; planes without a colour take free ones.

    Of two series of one plane (`all on vf`, `vf, others on bridge`; `bridge, process`, `bridge,
    container`) the first has its colour.
    """
    planes = list(planes)
    named = [_plane_in(plane) for plane in planes]
    free = [colour for plane, colour in _FALLBACKS.items() if plane not in named]
    fallbacks = cycle(free or _FALLBACKS.values())
    colours: dict[str, str] = {}
    used = set()
    for label, plane in zip(planes, named, strict=True):
        own_colour = plane in PLANES and plane not in used
        colours[label] = (PLANES[plane] if own_colour else next(fallbacks)).light
        used.add(plane)
    return colours


def _plane_in(label: str) -> str:
    return label.removeprefix("all on ").partition(", ")[0]


def recolouring(selector: str) -> str:
    """CSS that turns the figures below `selector` from light to dark."""
    rules = []
    for colour in every_colour():
        for attribute in ("fill", "stroke"):
            rules.append(f'{selector} [{attribute}="{colour.light}"]{{{attribute}:{colour.dark}}}')
    return "\n".join(rules)


def share(value: float) -> str:
    """A ratio as per cent."""
    return percent_text(value)


def interval(low: str, high: str) -> str:
    """Both ends, without a line break."""
    return f"{low}\u00a0–\u2060\u00a0{high}".replace(" ", "\u00a0")


def count(value: float) -> str:
    """A whole number in groups of three: `12 000`."""
    return f"{value:,.0f}".replace(",", "\u202f")


def ticks(low: float, high: float, *, log: bool, most: int) -> list[float]:
    """Round values between `low` and `high` (both included), at most about `most` of them."""
    if log:
        for steps in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 3, 5), (1, 2, 5), (1, 3), (1,)):
            first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
            values = [
                step * 10.0**power
                for power in range(first, last + 1)
                for step in steps
                if low <= step * 10.0**power <= high * (1 + 1e-9)
            ]
            if len(values) <= most:
                return values
        stride = math.ceil(len(values) / most)
        return values[::stride]
    span = (high - low) / max(1, most)
    if span <= 0:
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(span))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= span * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]
