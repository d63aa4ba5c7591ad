"""How well a profile predicts measured chains: figures, sentences and a table."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass

from planewise.advise.model.capacity import WORDS, Prediction, predict
from planewise.advise.model.fit import HeldOut, Measured
from planewise.advise.model.profile import PLANES, Profile
from planewise.errors import BadInputError
from planewise.units import count_text, percent_text

_DIFFERENT = 0.10
"""Planes whose throughput differs by less count as equal."""


@dataclass(frozen=True)
class Errors:
    """Predictions against measurements; relative, without sign."""

    rows: int
    median: float
    mean: float
    worst: float
    pairs: int
    """Chains measured on two planes with more than 10 % between them."""
    wrong: int
    """Pairs whose faster plane the model predicts to be slower."""


@dataclass(frozen=True)
class PredictedChain:
    """A measured chain beside its prediction."""

    row: Measured
    prediction: Prediction | None
    """None where the profile knows nothing about the plane."""
    fitted: bool = True
    """Whether the profile was fitted to this very chain."""

    @property
    def off(self) -> float:
        """Predicted over measured, less one."""
        return self.prediction.pps / self.row.pps - 1 if self.prediction else math.nan

    @property
    def inside(self) -> bool | None:
        """Whether it lies in its interval; None where there is none."""
        if self.prediction is None or self.prediction.interval is None:
            return None
        low, high = self.prediction.interval
        return low <= self.row.pps <= high

    def as_json(self) -> dict[str, object]:
        """The row, its prediction and the bottleneck for JSON."""
        low, high = (self.prediction and self.prediction.interval) or (None, None)
        return {
            "plane": self.row.plane,
            **asdict(self.row.chain),
            "fitted": self.fitted,
            "measured_pps": self.row.pps,
            "predicted_pps": self.prediction and self.prediction.pps,
            "low_pps": low,
            "high_pps": high,
            "inside": self.inside,
            "bottleneck": self.prediction and self.prediction.bottleneck.name,
        }


def predicted(
    profile: Profile, rows: Sequence[Measured], fitted_to: Iterable[Measured]
) -> list[PredictedChain]:
    """Each row beside its prediction; chains that the profile was not fitted to come first.

    Raises:
        BadInputError: there are no rows.
    """
    if not rows:
        raise BadInputError(
            "there are no chains to compare predictions with",
            remedy=f"measure chains on {', '.join(PLANES)}",
        )
    known = {(row.plane, row.chain) for row in fitted_to}
    chains = [
        PredictedChain(row, predict(profile, row.plane, row.chain), (row.plane, row.chain) in known)
        for row in rows
    ]
    return sorted(chains, key=lambda chain: chain.fitted)


def errors(chains: Sequence[PredictedChain]) -> Errors:
    """How far the model is from the measurements, at least one."""
    deviations = [abs(chain.off) for chain in chains]
    pairs = wrong = 0
    for index, one in enumerate(chains):
        for other in chains[:index]:
            fast, slow = sorted((one, other), key=lambda chain: -chain.row.pps)
            alike = fast.row.pps <= (1 + _DIFFERENT) * slow.row.pps
            if one.row.chain != other.row.chain or one.row.plane == other.row.plane or alike:
                continue
            pairs += 1
            wrong += fast.row.pps * (1 + fast.off) <= slow.row.pps * (1 + slow.off)
    median, mean = statistics.median(deviations), statistics.fmean(deviations)
    return Errors(len(chains), median, mean, max(deviations), pairs, wrong)


def lines(
    chains: Sequence[PredictedChain], left_out: Sequence[HeldOut], unknown: Sequence[str]
) -> list[str]:
    """How well a fit describes and predicts each plane, and what is not known, a sentence each."""
    found = errors(chains)
    texts = [f"fitted to {count_text(found.rows, 'row')}: {_off(chain.off for chain in chains)}"]
    if found.pairs:
        texts.append(
            f"{found.pairs - found.wrong} of {found.pairs} pairs of planes that differ by more "
            "than 10 % are ranked right"
        )
    for plane in dict.fromkeys(chain.row.plane for chain in chains):
        own = [chain for chain in chains if chain.row.plane == plane]
        limits = Counter(chain.prediction.bottleneck.name for chain in own if chain.prediction)
        words = ", ".join(f"{name} in {times}" for name, times in limits.most_common())
        texts.append(f"{plane}: the bottleneck is the {words} of {count_text(len(own), 'row')}")
    texts += [
        f"{part.plane}, each {WORDS[part.dimension]} left out in turn: "
        f"{count_text(len(part.errors), 'row')}, {_off(map(math.expm1, part.errors))}"
        for part in left_out
    ]
    return [*texts, *(f"not known: {line}" for line in unknown)]


def _off(relative: Iterable[float]) -> str:
    sizes = [abs(error) for error in relative]
    return (
        f"off by {percent_text(statistics.median(sizes))} in the median, "
        f"{percent_text(statistics.fmean(sizes))} in the mean, {percent_text(max(sizes))} at worst"
    )


def predicted_lines(chains: Sequence[PredictedChain]) -> list[str]:
    """A sentence for the chains that a profile was not fitted to, and one for the others."""
    texts = []
    for fitted, words in ((False, "not fitted to"), (True, "also fitted to")):
        group = [chain for chain in chains if chain.fitted == fitted]
        known = [chain.off for chain in group if chain.prediction]
        inside = [chain.inside for chain in group if chain.inside is not None]
        if group:
            texts.append(
                f"{words}: {count_text(len(group), 'chain')}, "
                f"{_off(known) if known else 'without a prediction'}; "
                f"{sum(inside)} of {len(inside)} lie in their intervals"
            )
    return texts


def table(chains: Sequence[PredictedChain]) -> str:
    """Measured and predicted rates [Mpps] and the bottleneck, as a Markdown table."""
    rows = [
        "| plane | pattern | functions | chains | switch cores | frame [bytes] | measured [Mpps] "
        "| predicted [Mpps] | interval [Mpps] | off | bottleneck |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for one in chains:
        chain, prediction = one.row.chain, one.prediction
        interval = (
            f"{prediction.interval[0] / 1e6:.3g} to {prediction.interval[1] / 1e6:.3g}"
            if prediction and prediction.interval
            else "not known"
        )
        figures = (
            f"{prediction.pps / 1e6:.2f} | {interval}{', outside' * (one.inside is False)} | "
            f"{100 * one.off:+.1f} % | {prediction.bottleneck.name}"
            if prediction
            else "not known | | | not known"
        )
        rows.append(
            f"| {one.row.plane} | {chain.pattern} | {chain.vnfs} | {chain.chains} | "
            f"{chain.switch_cores} | {chain.frame_bytes} | {one.row.pps / 1e6:.2f} | {figures} |"
        )
    return "\n".join(rows)
