"""A host's gain as a file: `planewise boost` writes it, `planewised` and `advise` read it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Annotated, Literal, Self

import numpy as np
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    NonNegativeFloat,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from planewise.advise.toml_text import read_toml
from planewise.errors import BadInputError

SizeMatters = Literal["yes", "no", "not known"]

_ROUNDING = 1e-3
"""The file has four significant digits."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProfileHost(_Part):
    """Where it was measured: a daemon elsewhere refuses the profile."""

    cpu_model: str
    cpus: PositiveInt
    kernel: str
    """Release; another one is reported, not refused."""
    virtualisation: str


class CurvePoint(_Part):
    """What each packet saves at a guest's packet rate."""

    pps: PositiveFloat
    """Packets a second that the guest's interface counts, both directions."""
    saved_us: Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]
    low_us: FiniteFloat | None = None
    """95 % interval; left out where it is open."""
    high_us: FiniteFloat | None = None


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
    """Price of a switch on this host, until the daemon has measurements of its own."""

    gives: PositiveInt
    """Moves that were measured."""
    takes: PositiveInt
    plug_s: NonNegativeFloat
    """From the order to plug until the guest sends by its VF, mean."""
    unplug_s: NonNegativeFloat
    """From the order to unplug until the VF is back in its pool, mean."""


class GainProfile(_Part):
    """Contents of a gain profile."""

    format: Literal[1, 2]
    kind: Literal["gain"]
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

    @model_validator(mode="after")
    def _rises(self) -> Self:
        for lower, higher in pairwise(self.curve):
            if higher.pps <= lower.pps:
                raise ValueError(f"curve: {higher.pps:g} packets/s come after {lower.pps:g}")
            if higher.pps * higher.saved_us < lower.pps * lower.saved_us * (1 - _ROUNDING):
                raise ValueError(
                    f"curve: the gain falls from {lower.pps:g} to {higher.pps:g} packets/s: "
                    "a guest that sends more cannot gain less"
                )
        return self

    def saved_us(self, pps: float) -> CurvePoint:
        """What each packet saves at this rate [packets/s]: between two points by a straight line,
        beyond the outermost a constant, as in the daemon. No interval where an end is open."""
        rates = [point.pps for point in self.curve]

        def at(values: Sequence[float | None]) -> float | None:
            if None in values:
                return None
            return float(np.interp(pps, rates, np.array(values, dtype=float)))

        return CurvePoint(
            pps=pps,
            saved_us=at([point.saved_us for point in self.curve]) or 0.0,
            low_us=at([point.low_us for point in self.curve]),
            high_us=at([point.high_us for point in self.curve]),
        )


def read_gain(path: Path) -> GainProfile:
    """The gain in a file.

    Raises:
        BadInputError: it is no gain profile, of another format, or its rates do not rise.
        PlanewiseError: it cannot be read.
    """
    writes = "planewise boost RUN -o FILE"
    remedy = f"`{writes}` writes one; docs/reference/gain-profile.md lists its keys"
    return read_toml(path, GainProfile, writes, lambda _: remedy)


def gain_sentence(gain: GainProfile, pps: float | None) -> str:
    """What the fast plane saves a guest.

    Args:
        gain: the host's.
        pps: the guest's packets, both directions; None: as far as was measured [packets/s].
    """
    if gain.emulated:
        return (
            f"Whether packets are faster on {gain.fast} than on {gain.slow} was measured where "
            f"times are no hardware's ({gain.emulated}): no figure."
        )
    rates = (gain.curve[0].pps, gain.curve[-1].pps)
    shown = dict.fromkeys(rates) if pps is None else (pps,)
    measured = " and ".join(
        f"{_saving(gain.saved_us(rate))} at {rate:,.0f} packets a second" for rate in shown
    )
    outside = (
        ""
        if pps is None or rates[0] <= pps <= rates[1]
        else f", which lies outside of what was measured ({rates[0]:,.0f} to {rates[1]:,.0f})"
    )
    return (
        f"{gain.fast} saves each of a guest's packets {measured}{outside}, against {gain.slow}"
        f"{_SIZES[gain.size_matters]}."
    )


_SIZES: dict[SizeMatters, str] = {
    "yes": "; it matters how long they are",
    "no": "",
    "not known": "; whether it matters how long they are is not known",
}


def _saving(point: CurvePoint) -> str:
    if point.low_us is None or point.high_us is None:
        return f"{point.saved_us:.3g} µs"
    return f"{point.saved_us:.3g} µs ({point.low_us:.3g} to {point.high_us:.3g})"


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
