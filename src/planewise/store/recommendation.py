"""A run's recommendation, the content of recommendation.json (docs/reference/formats.md)."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from planewise.store.models import Record


class RankedPlane(Record):
    """One plane's place in one ranking, with its evidence."""

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
    """Relative difference to the best plane of this ranking, from the comparison of the two: 0.25
    is 25 % worse. None for the best plane."""
    effect_low: float | None = None
    """95 % confidence sequence of `effect`; None where it is open."""
    effect_high: float | None = None
    effect_bound: Literal["exact", "at least", "at most", "unbounded"] = "exact"
    """Whether `effect` is exact or a bound; nothing is known of an unbounded one."""
    note: str = ""
    """A remark in one sentence: a tie, a limit, a verdict."""
    frequency_pps: float | None = None
    """Rate of the probes, where the run has several rates: each has rankings of its own."""
    pattern: str = ""
    """Pattern of the probes, where the run has several patterns."""
    application: str = ""
    """The application that answered the probes, where the run has one, too."""
    bound: Literal["exact", "at least", "at most", "unbounded"] = "exact"
    """`at least`: something else was the limit, or the ladder ended before. `at most`: the plane
    does `value` or less."""

    @model_validator(mode="before")
    @classmethod
    def _older(cls, data: object) -> object:
        """Converts `at_least`, which older runs have in place of `bound`."""
        if isinstance(data, dict) and "at_least" in data:
            older = dict(data)
            older.setdefault("bound", "at least" if older.pop("at_least") else "exact")
            return older
        return data


class Recommendation(Record):
    """recommendation.json: the recommendation in words, with its reasons."""

    plane: str | None
    """None where no plane is known to be the best."""
    headline: str
    """The answer in one sentence."""
    reasons: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()
    ranking: tuple[RankedPlane, ...] = ()
    """Best first within each `metric` and `load_type`."""
