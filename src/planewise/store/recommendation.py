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
    """`rtt_p50` and `rtt_p99` of RTT trials in ns; `forwarded` the forwarding rate at the best load
    in packet/s; `cpu` kernel CPU time per forwarded packet in ns."""
    value: float
    low: float | None = None
    """95 % interval, over blocks; None: too few blocks, or open."""
    high: float | None = None
    effect: float | None = None
    """Relative difference to the best plane: 0.25 is 25 % worse. Missing for the best."""
    effect_low: float | None = None
    """95 % interval of `effect`; missing where it is open."""
    effect_high: float | None = None
    effect_bound: Literal["exact", "at least", "at most", "unbounded"] = "exact"
    note: str = ""
    """A remark: a tie, a limit, a verdict."""
    frequency_pps: float | None = None
    """Rate, pattern and application of the probes, where the run has several."""
    pattern: str = ""
    application: str = ""
    bound: Literal["exact", "at least", "at most", "unbounded"] = "exact"
    """`at least`: something else was the limit, or the ladder ended too early."""

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
    """The recommendation in words, with its reasons."""

    plane: str | None
    """None: no plane is known to be the best."""
    headline: str
    """The answer in one sentence."""
    reasons: tuple[str, ...] = ()
    reservations: tuple[str, ...] = ()
    ranking: tuple[RankedPlane, ...] = ()
    """Best first within each `metric` and `load_type`."""
