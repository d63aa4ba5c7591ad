"""What a run advises, as recommendation.json holds it (docs/reference/formats.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from planewise.store.models import Record


class RankedPlane(Record):
    """One plane's place in one ranking, with what it rests on."""

    plane: str
    load_type: str
    """Under which load (`none`, `cpu`, `network`, `all`)."""
    metric: Literal["rtt_p50", "rtt_p99", "forwarded", "cpu"]
    """`rtt_p50` and `rtt_p99` of RTT trials in ns; `forwarded` the highest forwarding rate of a
    block's load trials in packet/s; `cpu` kernel CPU time per forwarded packet in ns."""
    value: float
    low: float | None = None
    """95 % interval, over blocks; None where there are too few, and where it is open."""
    high: float | None = None
    effect: float | None = None
    """Relative difference to the best plane of this ranking: 0.25 is 25 % worse. None: it is
    the best one. That of the comparison of the two, as its interval."""
    effect_low: float | None = None
    """95 % confidence sequence of `effect`; None where it is open."""
    effect_high: float | None = None
    effect_bound: Literal["exact", "at least", "at most", "unbounded"] = "exact"
    """Whether `effect` is but a bound; of an unbounded one nothing is known."""
    note: str = ""
    """What a reader should know of this place, one sentence: a tie, a limit, a verdict."""
    frequency_pps: float | None = None
    """Rate of the probes, where the run has RTT trials at several: each has rankings of its own."""
    pattern: str = ""
    """How they followed one another, where the run has several patterns."""
    application: str = ""
    """What answered them, where the run asked an application, too."""
    bound: Literal["exact", "at least", "at most", "unbounded"] = "exact"
    """Whether the plane does just `value`, or that or more (something else was the limit, or the
    ladder ended before), or that or less."""

    @model_validator(mode="before")
    @classmethod
    def _older(cls, data: object) -> object:
        """Runs of before this field said `at_least`."""
        if isinstance(data, dict) and "at_least" in data:
            older = dict(data)
            older.setdefault("bound", "at least" if older.pop("at_least") else "exact")
            return older
        return data


class Recommendation(Record):
    """recommendation.json: what the run advises, in words, with what it rests on."""

    plane: str | None
    """None when the data do not tell the planes apart."""
    headline: str
    """The answer in one sentence."""
    reasons: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()
    ranking: tuple[RankedPlane, ...] = ()
    """Best first within each `metric` and `load_type`."""
