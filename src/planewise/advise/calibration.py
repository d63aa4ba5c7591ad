"""A profile fitted to measured chains, and how well it predicts them."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from planewise.advise.model.capacity import WORDS, Prediction, predict
from planewise.advise.model.fit import HeldOut, Measured, fit
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


@dataclass(frozen=True)
class Calibration:
    """The fitted profile, and the measurements that it was compared with."""

    profile: Profile
    rows: tuple[PredictedChain, ...]
    fitted: Errors
    left_out: tuple[HeldOut, ...]
    open: tuple[str, ...]
    """What the rows cannot tell and the measurement that would, in sentences."""

    def lines(self) -> list[str]:
        """How well the fit describes and predicts each plane, a sentence each."""
        lines = []
        for plane in dict.fromkeys(chain.row.plane for chain in self.rows):
            own = [chain for chain in self.rows if chain.row.plane == plane]
            limits = Counter(chain.prediction.bottleneck.name for chain in own if chain.prediction)
            words = ", ".join(f"{name} in {times}" for name, times in limits.most_common())
            lines.append(f"{plane}: the bottleneck is the {words} of {count_text(len(own), 'row')}")
        for part in self.left_out:
            errors = [abs(math.expm1(error)) for error in part.errors]
            lines.append(
                f"{part.plane}, each {WORDS[part.dimension]} left out in turn: "
                f"{count_text(len(errors), 'row')}, off by "
                f"{percent_text(statistics.median(errors))} in the median, "
                f"{percent_text(statistics.fmean(errors))} in the mean, "
                f"{percent_text(max(errors))} at worst"
            )
        return lines


def calibrate_rows(
    start: Profile,
    rows: Sequence[Measured],
    *,
    source: str,
    name: str | None = None,
    emulated: bool = False,
) -> Calibration:
    """Fits `start` to the rows. What is fitted to an `emulated` host is emulated.

    Raises:
        BadInputError: there are no such rows.
    """
    found = fit(start, rows, source)
    profile = found.profile.model_copy(
        update={"name": name or source, "emulated": emulated or start.emulated}
    )
    chains = tuple(PredictedChain(row, predict(profile, row.plane, row.chain)) for row in rows)
    return Calibration(profile, chains, errors(chains), found.left_out, found.open)


def predict_chains(
    calibration: Calibration, rows: Sequence[Measured]
) -> tuple[PredictedChain, ...]:
    """The chains of another run, each with its prediction; those that were not fitted to first.

    Raises:
        BadInputError: the model knows the plane of none.
    """
    fitted = {(chain.row.plane, chain.row.chain) for chain in calibration.rows}
    chains = [
        PredictedChain(
            row,
            predict(calibration.profile, row.plane, row.chain),
            (row.plane, row.chain) in fitted,
        )
        for row in rows
    ]
    if not chains:
        raise BadInputError(
            "there are no chains to compare predictions with",
            remedy=f"measure chains on {', '.join(PLANES)}",
        )
    return tuple(sorted(chains, key=lambda chain: chain.fitted))


def predicted_lines(chains: Sequence[PredictedChain]) -> list[str]:
    """A sentence for the chains that a profile was not fitted to, and one for the others."""
    lines = []
    for fitted, words in ((False, "not fitted to"), (True, "also fitted to")):
        group = [chain for chain in chains if chain.fitted == fitted]
        known = [abs(chain.off) for chain in group if chain.prediction]
        if not group:
            continue
        inside = [chain.inside for chain in group if chain.inside is not None]
        figures = (
            f"off by {percent_text(statistics.median(known))} in the median, "
            f"{percent_text(max(known))} at worst"
            if known
            else "without a prediction"
        )
        lines.append(
            f"{words}: {count_text(len(group), 'chain')}, {figures}; "
            f"{sum(inside)} of {len(inside)} lie in their intervals"
        )
    return lines


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


def table(chains: Sequence[PredictedChain]) -> str:
    """Measured and predicted rates [Mpps] and the bottleneck, as a Markdown table."""
    lines = [
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
        lines.append(
            f"| {one.row.plane} | {chain.pattern} | {chain.vnfs} | {chain.chains} | "
            f"{chain.switch_cores} | {chain.frame_bytes} | {one.row.pps / 1e6:.2f} | {figures} |"
        )
    return "\n".join(lines)
