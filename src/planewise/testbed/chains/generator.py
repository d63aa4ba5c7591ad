"""A chain's generator: one probe a stream of frames, on this machine or another host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from planewise.testbed.chains.model import Chain, FrameSize, frames_of
from planewise.testbed.chains.routing import SOURCE, TARGET, target
from planewise.testbed.chains.streams import Streams
from planewise.testbed.host import Host

MIXED = 0.7
"""Share of what a generator sends of one size that several probes together keep up."""

OVERLOAD_PPS = 3_000_000
"""More than one CPU sends through packet sockets: as much as the generator can."""

_PORT = 4862
_RING_MIB = 8
_CALIBRATE_S = 120.0


def commands(
    chain: Chain,
    size: FrameSize,
    limit_s: float,
    pps: float,
    *,
    ends: tuple[str, str],
    macs: Mapping[int, str],
    max_pps: float = 0.0,
    options: Sequence[str] = (),
) -> Iterator[tuple[str, ...]]:
    """Arguments of pw-probe for each stream; together they send `pps` frames a second. Pure.

    Each keeps account of every frame of `limit_s`, and ends by itself after that.

    Args:
        chain: what is sent into.
        size: of the frames, or a mix.
        limit_s: how long at most [s].
        pps: of all streams [packet/s].
        ends: where frames leave and where they come back, as pw-probe takes interfaces.
        macs: of the functions, by number.
        max_pps: the generator's own maximum [packet/s]; 0: what each is to send.
        options: further ones of `pw-probe trial`.
    """
    frames = frames_of(size)
    total = sum(count for _, count in frames)
    through = chain.pattern == "east-west"
    entries = range(1, len(chain.entries) + 1)
    streams = [(entry, *frame) for entry in entries for frame in frames]
    for number, (entry, frame_bytes, count) in enumerate(streams):
        rate = f"{pps * count / total / len(entries):.0f}"
        yield (
            *("trial", "--tx", ends[0], "--rx", ends[1], "--src", SOURCE),
            *("--dst", TARGET if through else target(entry), "--dst-port", str(_PORT + number)),
            *("--dst-mac", macs[entry], "--size", str(frame_bytes), "--rate", rate),
            *("--max-pps", f"{max_pps:.0f}" if max_pps else rate, "--duration", f"{limit_s:g}"),
            *("--ring-mib", str(_RING_MIB), *options),
        )


def generator_pps(host: Host, options: Sequence[str] = ()) -> float:
    """What a host sends of the smallest frames where nothing limits it [packet/s].

    Raises:
        PlanewiseError: it cannot be measured.
    """
    argv = [host.probe, "trial", "--calibrate-only", "--size", "64", *options]
    finished = host.run(argv, timeout_s=_CALIBRATE_S, expected_s=1.0)
    return float(finished.json()["max_pps"])


class LocalGenerator:
    """The generator of a chain on this machine: probes that share one CPU.

    Args:
        host: where they run.
        cpu: theirs.
        ends: where frames leave and where they come back, as pw-probe takes interfaces.
        offered_pps: of all streams [packet/s]; None: as much as it can.
    """

    def __init__(
        self, host: Host, cpu: int, ends: tuple[str, str], offered_pps: float | None
    ) -> None:
        self._host = host
        self._options = ("--tx-cpu", str(cpu), "--rx-cpu", str(cpu))
        self._ends = ends
        self._offered_pps = offered_pps
        self._most_pps = 0.0
        self.streams = Streams()

    def start(self, chain: Chain, size: FrameSize, limit_s: float, macs: Mapping[int, str]) -> None:
        """Sends until `streams.stop()`; keeps account of every frame of `limit_s`, and ends then.

        Raises:
            PlanewiseError: what it can send is not known, and cannot be measured.
        """
        pps = self._offered_pps or OVERLOAD_PPS
        if len(frames_of(size)) > 1 and not self._offered_pps:
            # Programs of one CPU share it by time, not by frames: a mix must be paced.
            self._most_pps = self._most_pps or generator_pps(self._host, self._options[:2])
            pps = MIXED * self._most_pps
        for arguments in commands(
            chain,
            size,
            limit_s,
            pps,
            ends=self._ends,
            macs=macs,
            max_pps=OVERLOAD_PPS,
            options=("--with-parent", *self._options),
        ):
            self.streams.add(self._host.start((self._host.probe, *arguments)))
