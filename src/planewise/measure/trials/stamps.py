"""The stamps of every packet of an RTT trial: where the time of a round trip goes. Pure.

With t(point, request) and t(point, reply) the kernel stamps of one packet at a capture point, all
by the clock of one host (publication K, section 4):

    RTT           user stamps at the sender's guest
    overhead      RTT − (t(sender_nic, reply) − t(sender_nic, request))
    response      t(responder_nic, reply) − t(responder_nic, request)
    wire          RTT − overhead − response: what remains, between the two NICs

The same between a guest and its own interface, each by that guest's clock:

    sender_stack     RTT − (t(sender_inside, reply) − t(sender_inside, request)), of the overhead
    responder_stack  t(responder_inside, reply) − t(responder_inside, request), of the response
"""

from __future__ import annotations

import numpy as np
import polars as pl

from planewise.store.models import Latency, Metric

_TEXTS = ("proto", "id", "flags")
"""Text columns of the probe's files; all others are numbers, also where a file has no row."""


def read_packets(file: bytes) -> pl.DataFrame:
    """What `ping` or `tap` wrote: a row a packet, stamps [ns]; maybe no row."""
    names = pl.read_csv(file, n_rows=0).columns
    numbers = {name: pl.Int64 for name in names if name not in _TEXTS}
    return pl.read_csv(file, schema_overrides=numbers)


def join_stamps(packets: pl.DataFrame, captured: pl.DataFrame) -> pl.DataFrame:
    """Adds a tap's columns to the packets that were sent, by sequence number."""
    stamps = [name for name in captured.columns if name.endswith(("_request_ns", "_reply_ns"))]
    once = captured.unique(subset="seq", keep="first").select("seq", *stamps)
    return packets.join(once, on="seq", how="left", maintain_order="left")


def parts_ns(packets: pl.DataFrame) -> dict[Metric, np.ndarray]:
    """The parts [ns] of a round trip, of every packet whose stamps are complete.

    `packets` has the columns of docs/reference/formats.md; a part whose capture point is missing is
    left out.
    """
    rtt = pl.col("user_rx_ns") - pl.col("user_tx_ns")

    def at(point: str) -> pl.Expr:
        return pl.col(f"{point}_reply_ns") - pl.col(f"{point}_request_ns")

    formulas: dict[Metric, tuple[str, pl.Expr]] = {
        "overhead": ("sender_nic", rtt - at("sender_nic")),
        "response": ("responder_nic", at("responder_nic")),
        "sender_stack": ("sender_inside", rtt - at("sender_inside")),
        "responder_stack": ("responder_inside", at("responder_inside")),
    }
    parts: dict[Metric, np.ndarray] = {}
    for metric, (point, formula) in formulas.items():
        if f"{point}_reply_ns" in packets.columns:
            values = packets.select(formula.cast(pl.Int64)).to_series().drop_nulls().to_numpy()
            if len(values):
                parts[metric] = values
    return parts


def late_stamps(packets: pl.DataFrame) -> float | None:
    """Share of packets that, by the sender's kernel stamps, were away for less time than the
    responder had them: they were stamped after they were sent. None: unknown.

    Some drivers stamp a frame that is already on its way (igbvf in Linux 6.12 does).
    """
    shares = [
        packets.select(
            pl.col("kernel_rx_ns") - pl.col("kernel_tx_ns") < pl.col(reply) - pl.col(request)
        )
        .to_series()
        .mean()
        for point in ("responder_nic", "responder_guest", "responder_inside")
        if {request := f"{point}_request_ns", reply := f"{point}_reply_ns"} <= {*packets.columns}
    ]
    numbers = [float(share) for share in shares if isinstance(share, float)]
    return max(numbers, default=None)


def distribution(values_ns: np.ndarray) -> Latency:
    """The distribution of a part, which may be negative (hence no histogram)."""
    p50, p90, p99, p999 = np.quantile(values_ns, [0.5, 0.9, 0.99, 0.999])
    return Latency(
        count=len(values_ns),
        min_ns=int(values_ns.min()),
        mean_ns=float(values_ns.mean()),
        p50_ns=float(p50),
        p90_ns=float(p90),
        p99_ns=float(p99),
        p999_ns=float(p999),
        max_ns=int(values_ns.max()),
    )
