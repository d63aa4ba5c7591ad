"""A chain's generator: one probe a stream of frames, on this machine or another host."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from planewise.errors import PlanewiseError
from planewise.testbed.chains.model import Chain, FrameSize, frames_of
from planewise.testbed.chains.routing import SOURCE, TARGET, target
from planewise.testbed.hosts.host import Host, HostProcess

_MIXED = 0.7
"""Share of a single probe's maximum that several probes together keep up."""
_OVERLOAD = 1.5
"""Overload: the generator is asked for this times its maximum."""

_SLEEPS_PPS = 5_000
"""Up to this rate of a probe, a generator in user space sleeps between frames. One in the kernel
never does, and would leave functions on its CPU a share of it only."""

PORT = 4862
"""UDP destination port of the first stream."""
_RING_MIB = 8


def commands(
    chain: Chain,
    size: FrameSize,
    limit_s: float,
    pps: float,
    *,
    ends: tuple[str, str],
    macs: Mapping[int, str],
    options: Sequence[str] = (),
) -> Iterator[tuple[str, ...]]:
    """Arguments of pw-probe for each stream; together they send `pps` frames a second. Pure.

    Each accounts for every frame of `limit_s`, and ends by itself after that.

    Args:
        chain: the chain to send into.
        size: of the frames, or a mix.
        limit_s: how long at most [s].
        pps: of all streams [packet/s].
        ends: where frames leave and where they come back, as pw-probe takes interfaces.
        macs: of the functions, by number.
        options: further ones of `pw-probe trial`.
    """
    frames = frames_of(size)
    total = sum(count for _, count in frames)
    entries = range(1, len(chain.entries) + 1)
    streams = [(entry, *frame) for entry in entries for frame in frames]
    for number, (entry, frame_bytes, count) in enumerate(streams):
        rate_pps = pps * count / total / len(entries)
        rate = f"{rate_pps:.0f}"
        yield (
            *("trial", "--tx", ends[0], "--rx", ends[1], "--src", SOURCE),
            *(
                "--dst",
                TARGET if chain.through else target(entry),
                "--dst-port",
                str(PORT + number),
            ),
            *("--dst-mac", macs[entry], "--size", str(frame_bytes), "--rate", rate),
            *("--max-pps", rate, "--duration", f"{limit_s:g}"),
            *(("--backend", "af_packet") if rate_pps <= _SLEEPS_PPS else ()),
            *("--ring-mib", str(_RING_MIB), *options),
        )


class ChainGenerator:
    """The probes that send into a chain; none runs before `start`.

    Args:
        host: where they run.
        ends: where frames leave and where they come back, as pw-probe takes interfaces.
        offered_pps: of all streams [packet/s]; None: as much as it can.
        max_pps: its own maximum [packet/s], called where `offered_pps` is None.
        cpu: of the probes, on this machine; None: they have a host of their own.
    """

    def __init__(
        self,
        host: Host,
        ends: tuple[str, str],
        offered_pps: float | None,
        max_pps: Callable[[], float],
        cpu: int | None,
    ) -> None:
        self._host = host
        self._ends = ends
        self._offered_pps = offered_pps
        self._max_pps = max_pps
        self._options: tuple[str, ...] = ()
        if cpu is not None:
            self._options = ("--with-parent", "--tx-cpu", str(cpu), "--rx-cpu", str(cpu))
        self._probes: list[HostProcess] = []

    @property
    def sending(self) -> bool:
        """Whether it was started."""
        return bool(self._probes)

    def start(self, chain: Chain, size: FrameSize, limit_s: float, macs: Mapping[int, str]) -> None:
        """Sends until `stop`; accounts for every frame of `limit_s`, and ends then.

        Raises:
            PlanewiseError: its maximum cannot be measured.
        """
        # The probes of a mix share a CPU by time, not by frames: they must be paced.
        share = _OVERLOAD if len(frames_of(size)) == 1 else _MIXED
        pps = self._offered_pps or share * self._max_pps()
        for arguments in commands(
            chain, size, limit_s, pps, ends=self._ends, macs=macs, options=self._options
        ):
            self._probes.append(self._host.start((self._host.probe, *arguments)))

    def check(self) -> None:
        """Checks that all probes still send.

        Raises:
            PlanewiseError: one has failed, with its message.
        """
        for probe in self._probes:
            if not probe.running:
                probe.wait().check()

    def stop(self) -> int | None:
        """Ends all probes at the same time; returns the number of their frames that came back, by
        content. None: unknown. Idempotent."""
        for probe in self._probes:
            probe.interrupt()
        ended = [probe.stop() for probe in self._probes]
        self._probes.clear()
        with suppress(PlanewiseError, KeyError):
            return sum(came_back(probe.json()) for probe in ended)
        return None


def came_back(report: Mapping[str, Any]) -> int:
    """Frames of a probe that reached its sink, by the probe's report. Pure."""
    received: int = report["received"] + report["late"] + report["warmup"]["arrived"]
    return received + int(report["sink"]["dropped"])
