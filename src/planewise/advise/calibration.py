"""A profile fitted to measured chains, and how well it predicts them. Prints nothing."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from planewise.advise.model.capacity import ChainWorkload, Prediction, predict
from planewise.advise.model.fit import HeldOut, Measured, fit
from planewise.advise.model.profile import Profile
from planewise.advise.throughput import ThroughputRow
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
    """Chains measured on both planes with more than 10 % between them."""
    wrong: int
    """… of which the model has the wrong plane ahead."""
    inside: int
    """Rows that lie in their prediction's 95 % interval."""

    def as_json(self) -> dict[str, float | int]:
        """The fields for JSON, by name."""
        return asdict(self)


@dataclass(frozen=True)
class Calibration:
    """The fitted profile, and the measurements that it was compared with."""

    profile: Profile
    rows: tuple[Measured, ...]
    fitted: Errors
    left_out: tuple[HeldOut, ...]
    """Rows that were left out of a fit, by plane and by what was left out."""

    def left_out_lines(self) -> list[str]:
        """A sentence for each."""
        return [
            f"{part.plane}, each {part.kind} left out in turn: {len(part.errors)} rows off by "
            f"{percent_text(statistics.median(part.errors))} in the median, "
            f"{percent_text(statistics.fmean(part.errors))} in the mean, "
            f"{percent_text(max(part.errors))} at worst; "
            f"{percent_text(part.inside)} lie in the intervals that the others give"
            for part in self.left_out
        ]


@dataclass(frozen=True)
class PredictedChain:
    """A chain that was measured in another run, beside what the fitted profile predicts of it."""

    row: Measured
    prediction: Prediction
    fitted: bool
    """Whether the profile was fitted to this very chain, too."""

    @property
    def off(self) -> float:
        """Predicted over measured, less one."""
        return self.prediction.pps / self.row.pps - 1

    @property
    def inside(self) -> bool:
        """Whether it lies in its interval; never where the prediction has none."""
        low, high = self.prediction.low_pps, self.prediction.high_pps
        return self.prediction.has_interval and low <= self.row.pps <= high

    def as_json(self) -> dict[str, object]:
        """The fields for JSON, by name."""
        chain, prediction = self.row.chain, self.prediction
        return {
            "plane": self.row.plane,
            "pattern": chain.pattern,
            "vnfs": chain.vnfs,
            "frame_bytes": chain.frame_bytes,
            "fitted": self.fitted,
            "measured_pps": self.row.pps,
            "predicted_pps": prediction.pps,
            "low_pps": prediction.low_pps if prediction.has_interval else None,
            "high_pps": prediction.high_pps if prediction.has_interval else None,
            "inside": self.inside if prediction.has_interval else None,
            "bottleneck": prediction.bottleneck.name,
        }


def predict_chains(
    calibration: Calibration, rows: Sequence[ThroughputRow]
) -> tuple[PredictedChain, ...]:
    """The chains of another run, each with its prediction; those that were not fitted to first.

    Raises:
        BadInputError: the model knows the plane of none.
    """
    fitted = {(row.plane, row.chain) for row in calibration.rows}
    chains = [
        PredictedChain(row, _predicted(calibration.profile, row), (row.plane, row.chain) in fitted)
        for row in _measured(rows)
    ]
    if not chains:
        raise BadInputError(
            "there is nothing to hold the predictions against",
            remedy="measure chains on vf-passthrough or vhost-user",
        )
    return tuple(sorted(chains, key=lambda chain: chain.fitted))


def predicted_lines(chains: Sequence[PredictedChain]) -> list[str]:
    """A sentence for the chains that a profile was not fitted to, and one for the others."""
    lines = []
    for fitted, words in ((False, "not fitted to"), (True, "fitted to, too")):
        group = [chain for chain in chains if chain.fitted == fitted]
        if not group:
            continue
        off = [abs(chain.off) for chain in group]
        bounded = [chain for chain in group if chain.prediction.has_interval]
        inside = sum(chain.inside for chain in bounded)
        lines.append(
            f"{words}: {count_text(len(group), 'chain')}, off by "
            f"{percent_text(statistics.median(off))} in the median, {percent_text(max(off))} at "
            f"worst; {inside} of {len(bounded)} lie in their intervals"
        )
    return lines


def predicted_table(chains: Sequence[PredictedChain]) -> str:
    """Measured and predicted rates with their intervals [Mpps], as a Markdown table."""
    lines = [
        "| plane | pattern | functions | frame [bytes] | fitted to | measured [Mpps] "
        "| predicted [Mpps] | interval [Mpps] | off |",
        "| --- | --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for predicted in chains:
        chain, prediction = predicted.row.chain, predicted.prediction
        interval = f"{prediction.low_pps / 1e6:.3f} to {prediction.high_pps / 1e6:.3f}"
        outside = "" if predicted.inside or not prediction.has_interval else ", outside"
        lines.append(
            f"| {predicted.row.plane} | {chain.pattern} | {chain.vnfs} | {chain.frame_bytes} | "
            f"{'yes' if predicted.fitted else 'no'} | {predicted.row.pps / 1e6:.3f} | "
            f"{prediction.pps / 1e6:.3f} | {interval if prediction.has_interval else 'none'} | "
            f"{100 * predicted.off:+.1f} %{outside} |"
        )
    return "\n".join(lines)


def calibrate_rows(
    start: Profile,
    rows: Sequence[ThroughputRow],
    *,
    source: str,
    name: str | None = None,
    emulated: bool = False,
) -> Calibration:
    """Fits `start` to the rows of the planes that the model knows.

    What is fitted to an `emulated` host is emulated.

    Raises:
        BadInputError: the rows do not suffice.
    """
    measured = tuple(_measured(rows))
    fitted = fit(start, measured, source)
    profile = fitted.profile.model_copy(
        update={
            "name": name or f"{start.name}, fitted to {source}",
            "emulated": emulated or start.emulated,
        }
    )
    return Calibration(profile, measured, errors(profile, measured), fitted.left_out)


def _measured(rows: Sequence[ThroughputRow]) -> list[Measured]:
    measured = []
    for row in rows:
        chain = ChainWorkload(row.pattern, row.vnfs, row.packet_bytes)
        if row.plane == "vf-passthrough":
            measured.append(Measured("vf-passthrough", chain, row.tx_mpps * 1e6))
        elif row.plane == "vhost-user":
            measured.append(Measured("vhost-user", chain, row.tx_mpps * 1e6))
    return measured


def errors(profile: Profile, rows: Sequence[Measured]) -> Errors:
    """How far the model lies from `rows`, at least one."""
    predicted = [(row, _predicted(profile, row)) for row in rows]
    deviations = [abs(prediction.pps / row.pps - 1) for row, prediction in predicted]
    inside = sum(
        prediction.low_pps <= row.pps <= prediction.high_pps for row, prediction in predicted
    )
    pairs = wrong = 0
    by_chain = {(row.plane, row.chain): row for row in rows}
    for row in rows:
        vhost = by_chain.get(("vhost-user", row.chain))
        if row.plane != "vf-passthrough" or vhost is None:
            continue
        if abs(row.pps - vhost.pps) > _DIFFERENT * min(row.pps, vhost.pps):
            pairs += 1
            ahead = _predicted(profile, row).pps > _predicted(profile, vhost).pps
            wrong += ahead != (row.pps > vhost.pps)
    median, mean = statistics.median(deviations), statistics.fmean(deviations)
    return Errors(len(rows), median, mean, max(deviations), pairs, wrong, inside)


def _predicted(profile: Profile, row: Measured) -> Prediction:
    return predict(profile, row.plane, row.chain)


def table(calibration: Calibration) -> str:
    """Measured and predicted rates [Mpps] and what binds, as a Markdown table."""
    lines = [
        "| plane | pattern | functions | frame [bytes] | measured [Mpps] | predicted [Mpps] "
        "| off | what binds |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |",
    ]
    for row in calibration.rows:
        prediction = _predicted(calibration.profile, row)
        chain = row.chain
        lines.append(
            f"| {row.plane} | {chain.pattern} | {chain.vnfs} | {chain.frame_bytes} | "
            f"{row.pps / 1e6:.2f} | {prediction.pps / 1e6:.2f} | "
            f"{100 * (prediction.pps / row.pps - 1):+.1f} % | {prediction.bottleneck.name} |"
        )
    return "\n".join(lines)
