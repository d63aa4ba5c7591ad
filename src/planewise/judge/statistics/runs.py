"""Several runs looked at together: their labels, and what differs between them. Reads no file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from planewise.judge.statistics.metrics import RunSample
from planewise.store.allocations import by_groups
from planewise.store.models import Fingerprint, Level, RunInfo, TrialRecord

RUN = "run"
"""The factor that tells runs apart."""

_AS_FACTORS = (
    "hostname",
    "kernel",
    "distribution",
    "cpu_model",
    "virtualisation",
    "clocksource",
    "governor",
    "smt",
)
"""Fields of a fingerprint that become factors where runs differ in them."""
_COUNTS = ("cpus", "memory_bytes")


@dataclass(frozen=True)
class RunDifference:
    """Something in which runs differ."""

    what: str
    """A fingerprint's field (with its host where there are two), `planewise`, or `design.…`."""
    values: Mapping[str, str]
    """By run."""

    @property
    def sentence(self) -> str:
        """For people."""
        values = ", ".join(f"{run} {value}" for run, value in self.values.items())
        return f"The runs differ in {self.what}: {values}."


def join(runs: Sequence[tuple[Path, RunInfo, Sequence[TrialRecord]]]) -> tuple[RunSample, ...]:
    """The runs as samples; of several, with the factor `run` and those in which hosts differ.

    An allocator's trial is one for each of its groups.
    """
    runs = [(path, info, by_groups(trials)) for path, info, trials in runs]
    labels = _labels([path for path, _, _ in runs], [info for _, info, _ in runs])
    if len(runs) == 1:
        return (RunSample(labels[0], runs[0][1], runs[0][2]),)
    infos = dict(zip(labels, (info for _, info, _ in runs), strict=True))
    extra: dict[str, dict[str, Level]] = {label: {RUN: label} for label in labels}
    for difference in differences(infos):
        if difference.what in _AS_FACTORS:
            for label, value in difference.values.items():
                extra[label][difference.what] = value
    return tuple(
        RunSample(label, info, trials, extra[label])
        for label, (_, info, trials) in zip(labels, runs, strict=True)
    )


def differences(infos: Mapping[str, RunInfo]) -> tuple[RunDifference, ...]:
    """Everything in which the runs' hosts, designs and versions differ."""
    if len(infos) < 2:
        return ()
    described = {label: dict(_described(info)) for label, info in infos.items()}
    names = dict.fromkeys(name for facts in described.values() for name in facts)
    different = []
    for name in names:
        values = {label: facts.get(name, "none") for label, facts in described.items()}
        if len(set(values.values())) > 1:
            different.append(RunDifference(name, values))
    return tuple(different)


def _described(info: RunInfo) -> Iterator[tuple[str, str]]:
    yield "planewise", info.planewise
    if info.emulated:
        yield "emulation", info.emulated
    several = len(info.hosts) > 1 and len({repr(host) for host in info.hosts.values()}) > 1
    for role, host in info.hosts.items():
        prefix = f"{role}: " if several else ""
        for name, value in described_host(host):
            yield f"{prefix}{name}", value
    for name, value in _flat("design", info.design):
        if not name.startswith(("design.ladders", "design.title", "design.seed")):
            yield name, value


_NO_FACTS = ("name", "generator")
"""Of a NIC: fields that do not distinguish hosts."""


def described_host(host: Fingerprint) -> Iterator[tuple[str, str]]:
    """Yields what distinguishes hosts, as names and values."""
    for name in (*_AS_FACTORS, *_COUNTS):
        yield name, str(getattr(host, name))
    for name, state in host.mitigations.items():
        yield f"mitigation {name}", state
    for nic in host.nics:
        facts = " ".join(f"{key} {value}" for key, value in nic.items() if key not in _NO_FACTS)
        yield f"NIC {nic.get('name', '')}", facts


def _flat(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield from _flat(f"{prefix}.{name}", part)
    elif isinstance(value, list | tuple):
        yield prefix, ", ".join(str(part) for part in value)
    else:
        yield prefix, str(value)


def _labels(paths: Sequence[Path], infos: Sequence[RunInfo]) -> list[str]:
    """Short and unique: the directories' names, else with what is above, else the runs' names."""
    for depth in (1, 2):
        names = ["/".join(path.absolute().parts[-depth:]) for path in paths]
        if len(set(names)) == len(names):
            return names
    return [f"{info.run} ({number})" for number, info in enumerate(infos, start=1)]
