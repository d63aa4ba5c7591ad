"""Names of cells: the plane and the other factor levels, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from planewise.store.models import Level, TrialRecord
from planewise.units import rate_text

Factors = tuple[tuple[str, Level], ...]
"""Factor levels of a cell without its plane, in the order of `FACTORS`."""

FACTORS = (
    "load_type",
    "load_location",
    "background_guests",
    "background_plane",
    "guest",
    "forwarder",
    "path",
    "setting",
    "size_bytes",
    "frequency_pps",
    "pattern",
    "protocol",
    "rx_usecs",
    "vnfs",
    "message_bytes",
)
LOAD_FACTORS = ("load_type", "load_location", "background_plane")
"""Factors that have no meaning without background guests."""

NO_PLANE = "system under test"
ALL_TRIALS = "all trials"
"""Words for no level at all."""
SAME = "same"
"""Level of `background_plane`: the plane of the main guests."""

_PLAIN = {
    ("background_plane", SAME),
    ("path", "north-south"),
    ("guest", "namespace"),
    ("platform", "namespace"),
}
"""Default levels, which are left out of names."""


APPLICATIONS: Mapping[str, str] = {"redis": "Redis"}
"""Names of applications, by the level of `protocol` that sends them requests."""


class Sending(NamedTuple):
    """How probes were sent. Times of different sendings are never averaged together."""

    frequency_pps: float | None
    """None where rates are compared."""
    pattern: str = ""
    """Empty in runs without this factor, and where patterns are compared."""
    application: str = ""
    """The application that answered; empty for kernel and reflector, and where protocols are
    compared."""

    @property
    def words(self) -> str:
        """As `at 1 Mpps in bursts of 100 every 10 ms`, or `at 1 kpps, answered by Redis`."""
        rate = "" if self.frequency_pps is None else f"at {rate_text(self.frequency_pps)}"
        way = self.pattern if self.pattern in ("", "steady") else f"in {self.pattern}"
        text = f"{rate}, steady" if rate and way == "steady" else f"{rate} {way}".strip()
        return f"{text}, answered by {self.application}" if self.application else text


def sending_of(cell: Mapping[str, Level]) -> Sending | None:
    """The sending of a cell's probes; None where the cell has no rate."""
    frequency = cell.get("frequency_pps")
    if frequency is None:
        return None
    application = APPLICATIONS.get(str(cell.get("protocol", "")), "")
    return Sending(float(frequency), str(cell.get("pattern", "")), application)


class Naming:
    """Names the cells of one run.

    Where background guests are on another plane than the main ones in some cells only, a series is
    a pair of planes: `bridge, others on vf` and `all on vf`.
    """

    def __init__(self, cells: Iterable[Mapping[str, Level]]) -> None:
        """All cells of the run."""
        pairs = {
            (plane_of(cell), _background(cell)) for cell in cells if _background(cell) is not None
        }
        backgrounds = {background for _, background in pairs}
        self._paired = len(backgrounds) > 1 and any(plane != other for plane, other in pairs)
        self._in_factors = not self._paired and len(backgrounds) == 1
        self._labels = {
            self._label(plane, background): plane for plane, background in sorted(pairs, key=str)
        }

    def series(self, cell: Mapping[str, Level]) -> str:
        """The cell's series: its plane, with that of the background guests if that varies.

        A cell without background guests belongs to all series of its plane (`like`).
        """
        return self._label(plane_of(cell), _background(cell))

    def factors(self, cell: Mapping[str, Level]) -> Factors:
        """The cell's other factors."""
        return tuple(
            pair for pair in factors_of(cell) if pair[0] != "background_plane" or self._in_factors
        )

    def like(self, series: str) -> tuple[str, ...]:
        """All series of the plane that `series` names."""
        labels = tuple(label for label, plane in self._labels.items() if plane == series)
        return labels if self._paired and labels else (series,)

    def plane(self, series: str) -> str:
        """The plane of the main guests."""
        return self._labels.get(series, series)

    def _label(self, plane: str, background: str | None) -> str:
        if not self._paired or background is None:
            return plane
        return f"all on {plane}" if background == plane else f"{plane}, others on {background}"


def by_series(
    trials: Sequence[TrialRecord], naming: Naming, factor: str = "plane"
) -> list[TrialRecord]:
    """The trials with their series as level of `factor`, where the background's planes vary.

    A trial without background guests is repeated in every series of its plane.
    """
    result = []
    for trial in trials:
        label = naming.series(trial.cell)
        if factor == "plane" and naming.like(label) == (label,) == (naming.plane(label),):
            result.append(trial)
            continue
        other_levels = {
            name: level
            for name, level in trial.cell.items()
            if name not in ("plane", "background_plane")
        }
        result += [
            trial.model_copy(update={"cell": other_levels | {factor: series}})
            for series in naming.like(label)
        ]
    return result


def plane_of(cell: Mapping[str, Level]) -> str:
    """The cell's plane; `NO_PLANE` in a run without that factor."""
    return str(cell.get("plane", NO_PLANE))


def _background(cell: Mapping[str, Level]) -> str | None:
    if "background_plane" not in cell or cell.get("background_guests", 1) == 0:
        return None
    level = str(cell["background_plane"])
    return plane_of(cell) if level == SAME else level


def factors_of(cell: Mapping[str, Level]) -> Factors:
    """The cell's other factors, those of `FACTORS` first, without meaningless ones.

    These are the location of no load, and the plane of no background guests.
    """
    ordered = [name for name in FACTORS if name in cell]
    extra = sorted(set(cell) - set(ordered) - {"plane"})
    meaningless = set()
    if cell.get("load_type", "none") == "none":
        meaningless.add("load_location")
    if cell.get("background_guests", 1) == 0:
        meaningless.add("background_plane")
    return tuple((name, cell[name]) for name in (*ordered, *extra) if name not in meaningless)


def common_factors(cells: Iterable[Factors]) -> Factors:
    """The levels that all of `cells` share, to be left out of their labels."""
    cells = list(cells)
    if not cells:
        return ()
    shared = set(cells[0]).intersection(*(set(cell) for cell in cells))
    # Cells without load have no location: the cells that have one must agree.
    for name in ("load_location", "background_plane"):
        levels = {pair for cell in cells for pair in cell if pair[0] == name}
        if len(levels) == 1:
            shared |= levels
    # The load is in every label: readers look for it first.
    return tuple(sorted((pair for pair in shared if pair[0] != "load_type"), key=_place))


def _place(pair: tuple[str, Level]) -> tuple[int, str]:
    name = pair[0]
    return (FACTORS.index(name) if name in FACTORS else len(FACTORS), name)


@lru_cache(maxsize=4096)
def words(factors: Factors, without: Factors = ()) -> str:
    """Factor levels in plain words: `CPU load at the responder, 8 background guests`."""
    levels = dict(factors)
    parts = []
    load = levels.get("load_type")
    if load is not None:
        name = level_words("load_type", load)
        location = ("load_location", levels.get("load_location"))
        if load != "none" and location[1] is not None and location not in without:
            name += f" at the {location[1]}"
        parts.append(name)
    elif "load_location" in levels:
        parts.append(level_words("load_location", levels["load_location"]))
    for pair in factors:
        if pair[0] in ("load_type", "load_location") or pair in without or pair in _PLAIN:
            continue
        parts.append(level_words(*pair))
    return ", ".join(parts) or ALL_TRIALS


_WORDS: Mapping[str, str] = {
    "load_type": "{} load",
    "load_location": "load at the {}",
    "background_plane": "background guests on {}",
    "guest": "{}s",
    "forwarder": "forwarded by {}",
    "forwarding": "{}",
    "ip_version": "IPv{}",
    "duration_s": "trials of {} s",
    "runs": "{} runs a load",
    "irq_pinning": "receive CPUs: {}",
    "nic_ring": "receive ring of {} packets",
    "host": "{} host",
    "path": "{} traffic",
    "size_bytes": "{}-byte frames",
    "message_bytes": "messages of {} bytes",
    "pattern": "{}",
    "rx_usecs": "interrupts after {} µs",
    "setting": "{}",
}
_WORDS_OF_LEVEL: Mapping[tuple[str, str], str] = {
    ("load_type", "none"): "no load",
    ("load_type", "cpu"): "CPU load",
    ("background_plane", SAME): "background guests on the same plane",
    ("guest", "vm"): "virtual machines",
    ("guest", "process"): "processes",
    ("forwarding", "kernel"): "kernel routing",
    ("forwarding", "xdp"): "XDP program",
    ("size_bytes", "imix"): "IMIX",
    ("pattern", "steady"): "steady rate",
    ("setting", "default"): "default settings",
}
"""Words for levels that are not made from the level's name."""


def level_words(name: str, level: Level) -> str:
    """One factor level in words: `8 background guests`."""
    if name == "background_guests":
        return f"{level} background guest{'' if level == 1 else 's'}"
    if name == "vnfs":
        return f"{level} function{'' if level == 1 else 's'}"
    if name == "frequency_pps" and isinstance(level, int | float):
        return f"at {rate_text(level)}"
    if name == "protocol" and isinstance(level, str):
        return f"requests to {APPLICATIONS[level]}" if level in APPLICATIONS else level.upper()
    if words := _WORDS_OF_LEVEL.get((name, str(level))):
        return words
    return _WORDS[name].format(level) if name in _WORDS else f"{name} {level}"


NAMES: Mapping[str, str] = {
    "background_guests": "background guests",
    "frequency_pps": "probe packets a second",
    "size_bytes": "frame size in bytes",
    "rx_usecs": "µs before an interrupt",
    "load_type": "load",
    "load_location": "loaded host",
    "background_plane": "plane of the background guests",
    "vnfs": "functions",
    "message_bytes": "bytes of a message",
}
"""Title of an axis along a factor."""


def short(name: str, level: Level) -> str:
    """A factor level on an axis whose title names the factor."""
    if name == "frequency_pps" and isinstance(level, int | float):
        return rate_text(level)
    if name == "load_type":
        return level_words(name, level)
    return str(level)


def level_rank(level: Level) -> tuple[int, float, str]:
    """Sort key of levels: loads from idle on, then numbers, then names."""
    position = {"none": 0, "cpu": 1, "network": 2, "cache": 3, "memory": 4}.get(str(level))
    if position is not None:
        return (0, float(position), "")
    if isinstance(level, int | float):
        return (1, float(level), "")
    return (2, 0.0, str(level))


def rank(factors: Factors) -> tuple[tuple[int, float, str], ...]:
    """Sort key of contexts, by `level_rank`."""
    return tuple(level_rank(level) for _, level in factors)
