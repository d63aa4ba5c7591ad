"""A host's gain as a file: `planewise boost` writes it, `planewised` reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt

from planewise.advise.gain import Gain, Interval, SizeMatters
from planewise.errors import BadInputError
from planewise.store.models import Fingerprint, RunInfo


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProfileHost(_Part):
    """Where it was measured: a daemon elsewhere refuses the profile."""

    cpu_model: str
    cpus: PositiveInt
    kernel: str
    """Release; another one is told of, not refused."""
    virtualisation: str


class CurvePoint(_Part):
    """What each packet saves at a guest's packet rate."""

    pps: PositiveFloat
    """Packets a second that the guest's interface counts, both directions."""
    saved_us: NonNegativeFloat
    low_us: float | None = None
    """95 % interval; left out where it is open."""
    high_us: float | None = None


class MeasuredRow(_Part):
    """One packet rate and frame size, as measured."""

    round_trips_pps: PositiveFloat
    size_bytes: PositiveInt
    blocks: PositiveInt
    slow_us: float
    fast_us: float
    boost_percent: float
    boost_low_percent: float | None = None
    boost_high_percent: float | None = None
    boost_p99_percent: float | None = None


class SwitchPrice(_Part):
    """What a switch takes here: it stands for the daemon's own measurements until it has some."""

    gives: PositiveInt
    """Moves that were measured."""
    takes: PositiveInt
    plug_s: NonNegativeFloat
    """From the order to plug until the guest sends by its VF, mean."""
    unplug_s: NonNegativeFloat
    """From the order to unplug until the VF is back in its pool, mean."""


class GainProfile(_Part):
    """The file."""

    format: Literal[1, 2] = 2
    kind: Literal["gain"] = "gain"
    planewise: str
    run: str
    slow: str
    """The plane without a VF."""
    fast: str
    size_matters: SizeMatters
    emulated: str = ""
    """Why its times are not those of hardware; empty where they are."""
    host: ProfileHost
    curve: Annotated[tuple[CurvePoint, ...], Field(min_length=1)]
    measured: tuple[MeasuredRow, ...] = ()
    switch: SwitchPrice | None = None
    """None where it was not measured, and in files of format 1."""


def switch_price(gives_s: Sequence[float], takes_s: Sequence[float]) -> SwitchPrice:
    """The price of a switch from how long completed moves took [s].

    Raises:
        BadInputError: there is no move of one direction.
    """
    if not gives_s or not takes_s:
        raise BadInputError(
            f"{len(gives_s)} VFs were given and {len(takes_s)} taken back to the end: "
            "a switch is one of each",
            remedy="let the daemon move VFs to and fro (`planewise alloc pin GUEST`, then "
            "`planewise alloc free GUEST`), and ask it again",
        )
    return SwitchPrice(
        gives=len(gives_s), takes=len(takes_s), plug_s=fmean(gives_s), unplug_s=fmean(takes_s)
    )


def profile_of(gain: Gain, info: RunInfo, switch: SwitchPrice | None = None) -> GainProfile:
    """The gain with the host of the run's sender, whose fingerprint it carries."""
    host = _host(info)
    return GainProfile(
        planewise=info.planewise,
        run=info.run,
        slow=gain.slow,
        fast=gain.fast,
        size_matters=gain.size_matters,
        emulated=info.emulated,
        host=ProfileHost(
            cpu_model=host.cpu_model,
            cpus=host.cpus,
            kernel=host.kernel,
            virtualisation=host.virtualisation,
        ),
        curve=tuple(
            CurvePoint(
                pps=point.pps,
                saved_us=point.saved_us,
                low_us=_closed(point.low_us),
                high_us=_closed(point.high_us),
            )
            for point in gain.curve
        ),
        measured=tuple(
            MeasuredRow(
                round_trips_pps=row.frequency_pps,
                size_bytes=row.size_bytes,
                blocks=row.blocks,
                slow_us=row.slow_ns.value / 1e3,
                fast_us=row.fast_ns.value / 1e3,
                boost_percent=100 * row.boost.value,
                boost_low_percent=_closed(100 * row.boost.low),
                boost_high_percent=_closed(100 * row.boost.high),
                boost_p99_percent=_p99(row.boost_p99),
            )
            for row in gain.rows
        ),
        switch=switch,
    )


def _host(info: RunInfo) -> Fingerprint:
    return info.hosts.get("sender") or info.hosts.get("shared") or next(iter(info.hosts.values()))


def _closed(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _p99(interval: Interval) -> float | None:
    return _closed(100 * interval.value)
