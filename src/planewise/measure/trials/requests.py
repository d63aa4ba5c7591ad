"""Requests to many guests at a time, each at a rate of its own, and their answers. Pure.

One shell on the sender's host starts all probes and prints what they wrote: on a host that is
reached by ssh each process costs a channel.
"""

from __future__ import annotations

import io
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from hdrh.histogram import HdrHistogram

from planewise.errors import PlanewiseError
from planewise.measure.trials.stamps import distribution
from planewise.store.models import Counts, Latency
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import Guest

if TYPE_CHECKING:
    from planewise.measure.trials.alloc import AllocTrial

PATIENCE_S = 60.0
"""How long the first answer of all may take. A lab's hosts stand still for seconds, machines on
them for tens of seconds, and each SYN is sent again only after twice as long."""
_MARK = "\x1e"


@dataclass(frozen=True)
class RequestStream:
    """The requests to one guest."""

    guest: str
    address: str
    netns: str
    """Of its client."""
    steady_pps: float
    changed_pps: float
    """After the change of load."""


def streams_of(
    guests: Sequence[Guest], clients: Sequence[Guest], group_pps: Sequence[float]
) -> tuple[RequestStream, ...]:
    """Guests dealt out to groups in turn; after the change the groups are the other way round."""
    opposite = tuple(reversed(group_pps))
    return tuple(
        RequestStream(
            guest.name,
            guest.ipv4,
            client.netns,
            group_pps[number % len(group_pps)],
            opposite[number % len(opposite)],
        )
        for number, (guest, client) in enumerate(zip(guests, clients, strict=True))
    )


def script_of(
    streams: Sequence[RequestStream], trial: AllocTrial, sender: Host, directory: str
) -> str:
    """The shell script that sends all requests and prints their packets. Pure.

    Its stdout holds, for each file, a mark, the file's name and a newline, and its content.
    """
    part = trial.part
    steady_s = part.warmup_s + part.duration_s
    lines = [f"rm -rf {directory}; mkdir -p {directory} && cd {directory} || exit 1"]

    def ping(stream: RequestStream, pps: float, seconds: float, name: str) -> str:
        argv = [
            *(sender.probe, "ping", stream.address, "--proto", trial.protocol, "--no-watch"),
            *("--with-parent", "--rate", f"{pps:g}", "--duration", f"{seconds:g}"),
            *("--size", str(trial.size_bytes), "--patience", f"{PATIENCE_S:g}"),
            *("--packets", f"{directory}/{name}.csv"),
        ]
        command = shlex.join(sender.entering(argv, stream.netns))
        return f"{command} >{name}.json 2>{name}.err"

    for number, stream in enumerate(streams):
        lines.append(f"{ping(stream, stream.steady_pps, steady_s, f'{number}.steady')} &")
        if part.change_s:
            later = ping(stream, stream.changed_pps, part.change_s, f"{number}.changed")
            lines.append(f"{{ sleep {steady_s:g}; {later}; }} &")
    lines += [
        "echo READY >&2",
        "wait",
        "for file in *; do",
        f"    printf '{_MARK}%s\\n' \"$file\"",
        # Stamps of the sender's program alone: scheduled, sent, answered.
        '    case $file in *.csv) cut -d, -f2,3,6 "$file" ;; *.err) cat "$file" ;; esac',
        "done",
        f"cd / && rm -rf {directory}",
    ]
    return "\n".join(lines)


@dataclass(frozen=True)
class SentRequests:
    """The packets of all guests: columns `guest`, `phase` (`steady` or `changed`), `scheduled_ns`,
    `user_tx_ns`, `user_rx_ns` (null where no answer came), by the sender's clock."""

    packets: pl.DataFrame

    @property
    def begun_ns(self) -> int:
        """When the last of the guests was sent its first request."""
        first = self._of("steady").group_by("guest").agg(pl.col("scheduled_ns").min())
        return int(first["scheduled_ns"].max())  # type: ignore[arg-type]

    @property
    def changed_ns(self) -> int | None:
        """When the first request at a changed rate was sent; None where there was none."""
        changed = self._of("changed")
        if changed.is_empty():
            return None
        return int(changed["scheduled_ns"].min())  # type: ignore[arg-type]

    def window(self, warmup_s: float, duration_s: float) -> tuple[int, int]:
        """What counts [ns]: from the end of the warm-up until the load of some guest ends."""
        begin = self.begun_ns + round(warmup_s * 1e9)
        last = self._of("steady").group_by("guest").agg(pl.col("scheduled_ns").max())
        until = int(last["scheduled_ns"].min())  # type: ignore[arg-type]
        return begin, min(begin + round(duration_s * 1e9), until)

    def steady(self, window: tuple[int, int]) -> pl.DataFrame:
        """The packets that were due in a window."""
        at = pl.col("scheduled_ns")
        return self._of("steady").filter((at >= window[0]) & (at < window[1]))

    def _of(self, phase: str) -> pl.DataFrame:
        return self.packets.filter(pl.col("phase") == phase)


def parse_sent(text: str, streams: Sequence[RequestStream]) -> SentRequests:
    """What the script printed. Pure.

    Raises:
        PlanewiseError: a probe failed, or nothing was sent to some guest.
    """
    files = dict(part.split("\n", 1) for part in text.split(_MARK)[1:])
    stamps = dict.fromkeys(("scheduled_ns", "user_tx_ns", "user_rx_ns"), pl.Int64)
    tables = []
    for number, stream in enumerate(streams):
        for phase in ("steady", "changed"):
            name = f"{number}.{phase}"
            if phase == "changed" and f"{name}.csv" not in files:
                continue
            table = pl.DataFrame()
            if rows := files.get(f"{name}.csv", "").strip():
                table = pl.read_csv(io.StringIO(rows), schema_overrides=stamps)
            if table.is_empty():
                lines = files.get(f"{name}.err", "").strip().splitlines()
                reason = lines[-1] if lines else "it printed nothing"
                raise PlanewiseError(f"nothing was sent to {stream.guest}: {reason}")
            tables.append(
                table.select(
                    pl.lit(stream.guest).alias("guest"), pl.lit(phase).alias("phase"), *stamps
                )
            )
    return SentRequests(pl.concat(tables))


def latency_of(packets: pl.DataFrame) -> Latency | None:
    """The round-trip times of these packets, with their histogram; None where none came back."""
    times = packets.select(pl.col("user_rx_ns") - pl.col("user_tx_ns")).to_series().drop_nulls()
    if times.is_empty():
        return None
    histogram = HdrHistogram(1, 3_600_000_000_000, 3)
    for value in times:
        histogram.record_value(value)
    encoded = histogram.encode()
    text = encoded.decode() if isinstance(encoded, bytes) else str(encoded)
    return distribution(np.asarray(times)).model_copy(update={"hdr": text})


def rate_pps(packets: pl.DataFrame) -> float:
    """The rate at which the packets were really sent; 0 of a single one."""
    sent_ns = packets["user_tx_ns"].drop_nulls().sort()
    if sent_ns.len() < 2:
        return 0.0
    return float((sent_ns.len() - 1) / (int(sent_ns[-1]) - int(sent_ns[0])) * 1e9)


def counts_of(packets: pl.DataFrame) -> Counts:
    """Counts of requests sent and of answers."""
    lost = packets["user_rx_ns"].null_count()
    sent = packets.height
    return Counts(sent=sent, received=sent - lost, lost=lost)
