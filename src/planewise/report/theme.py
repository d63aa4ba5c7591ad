"""Colours, fonts and number formats of the figures and tables.

A figure names its colours as CSS variables: the page's style sheet gives each a value for light and
for dark, and a file that is saved takes the light one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from itertools import cycle

FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
"""Fonts with the same metrics, so that a label's width is known when a figure is laid out."""

FONT_SIZE = 12

# The Okabe-Ito palette, darkened where it falls below 3:1 on white, and Tol's muted one for the
# planes of virtual machines: people with any of the common colour blindnesses tell them apart.
PLANES: dict[str, tuple[str, str]] = {
    "veth": ("#0072b2", "#56b4e9"),
    "host": ("#6b6b6b", "#b5b5b5"),
    "routed": ("#3f6f12", "#93c75e"),
    "pasta": ("#8a5a00", "#e0b860"),
    "slirp4netns": ("#4b6e5c", "#9fcab3"),
    "netkit": ("#5f7d95", "#aac4d8"),
    "bridge": ("#c04d00", "#ff9d5c"),
    "ovs": ("#5b3a1e", "#c79a72"),
    "ovs-dpdk": ("#7d5a3c", "#dcb894"),
    "macvlan": ("#00805e", "#2fd0a5"),
    "ipvlan": ("#b0578d", "#eea3cf"),
    "vxlan": ("#7a4fa3", "#c3a1e6"),
    "geneve": ("#a34f6e", "#e6a1bb"),
    "docker-bridge": ("#9a6b00", "#f0c04a"),
    "vf": ("#3d3a9e", "#a5a2ff"),
    "e1000-bridge": ("#882255", "#e07fb0"),
    "virtio-bridge": ("#6f6f1d", "#cfcf6a"),
    "virtio-ovs": ("#b3475d", "#f0899c"),
    "virtio-routed": ("#44607a", "#9dbbd8"),
    "macvtap-bridge": ("#8f3a8c", "#de92db"),
    "macvtap-vf": ("#21786c", "#6fd3c5"),
    "vf-passthrough": ("#332288", "#9a90ee"),
    "vhost-user": ("#661100", "#e0886f"),
}
"""Colour of each plane on white and on black; the same in every figure of every report."""

_FREE = ("vhost-user", "docker-bridge", "vf", "ipvlan", "macvtap-vf", "virtio-bridge", "veth")
"""Planes whose colours a plane without its own takes, while they are not in the run."""

COLOURS: dict[str, tuple[str, str]] = {
    "ink": ("#1c1c22", "#ececf1"),
    "muted": ("#5c5c66", "#a9a9b6"),
    "paper": ("#ffffff", "#17171c"),
    "raised": ("#f5f5f8", "#212128"),
    "line": ("#dcdce2", "#3a3a44"),
    "accent": ("#0b57a4", "#8ab8f0"),
    "alert": ("#b3261e", "#ff8a80"),
    "good": ("#1b6e3a", "#6fdc98"),
    "bad": ("#b3261e", "#ff8a80"),
    "undecided": ("#7a5800", "#f0c04c"),
    "instrument": ("#b9b9c2", "#6b6b78"),
    "sender": ("#27476e", "#86b6f2"),
    "wire": ("#8aa4c4", "#4c6a92"),
    "responder": ("#b9671f", "#f2b06b"),
    "sender-stack": ("#5d9c8c", "#8fd0bf"),
    "between": ("#7c7f8a", "#a2a5b0"),
    "responder-stack": ("#d9a441", "#f0c87a"),
    "interrupts": ("#4f8a8b", "#7fd1d2"),
    "stolen": ("#8c2f5e", "#f08cc0"),
    **PLANES,
}
"""Every colour of the page and its figures."""

VERDICTS = ("GOOD", "BAD", "UNDECIDED")


def var(name: str) -> str:
    """A colour of `COLOURS` as a CSS variable."""
    return f"var(--{name})"


def style() -> str:
    """The style sheet's variables, for light and for dark."""

    def rules(shade: int) -> str:
        return "".join(f"--{name}:{colour[shade]};" for name, colour in COLOURS.items())

    dark = f"@media screen and (prefers-color-scheme: dark) {{ :root {{ {rules(1)} }} }}"
    return f":root {{ {rules(0)} }}\n{dark}\n"


def printed(text: str) -> str:
    """`text` with the colours of variables on white: for files, which have no style sheet."""
    return re.sub(r"var\(--([a-z0-9-]+)\)", lambda name: COLOURS[name[1]][0], text)


def colours_of(series: Iterable[str]) -> dict[str, str]:
    """The colour of each plane; planes without a colour take free ones.

    Of two series of one plane (`all on vf`, `vf, others on bridge`) the first has its colour.
    """
    planes = {label: label.removeprefix("all on ").partition(", ")[0] for label in series}
    free = [name for name in _FREE if name not in planes.values()]
    spare = cycle(free or _FREE)
    colours: dict[str, str] = {}
    for label, plane in planes.items():
        own = var(plane)
        is_free = plane in PLANES and own not in colours.values()
        colours[label] = own if is_free else var(next(spare))
    return colours


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
        return values[:: math.ceil(len(values) / most)]
    span = (high - low) / max(1, most)
    if span <= 0:
        return [low]
    magnitude = 10.0 ** math.floor(math.log10(span))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= span * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [place * step for place in range(first, math.floor(high / step + 1e-9) + 1)]
