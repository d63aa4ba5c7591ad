"""Stamps of one packet at several points: joined, late ones told, and parts of the RTT."""

from __future__ import annotations

import polars as pl
import pytest

from planewise.measure.trials.stamps import join_stamps, late_stamps, parts_ns, read_packets


@pytest.mark.parametrize(
    ("kernel_tx_ns", "late"),
    [([100, 200], 0.0), ([100, 990], 0.5), ([980, 990], 1.0), ([None, 200], 0.0)],
)
def test_a_packet_back_before_the_responder_let_go_of_it_was_stamped_late(
    kernel_tx_ns: list[int | None], late: float
) -> None:
    packets = pl.DataFrame(
        {
            "kernel_tx_ns": kernel_tx_ns,
            "kernel_rx_ns": [1000, 1000],
            # Of the responder's clock, which is another.
            "responder_nic_request_ns": [70_000, 70_000],
            "responder_nic_reply_ns": [70_050, 70_050],
        }
    )
    assert late_stamps(packets) == late
    assert late_stamps(packets.drop("responder_nic_reply_ns")) is None


def test_files_of_packets_are_joined_where_one_or_both_have_no_packet() -> None:
    # On a machine that stood still nothing was sent in time, and numbers were taken for texts.
    ping = "seq,scheduled_ns,user_tx_ns,kernel_tx_ns,kernel_rx_ns,user_rx_ns,flags\n"
    tap = "proto,id,seq,sender_nic_request_ns,sender_nic_reply_ns\n"
    for rows, captured in (("", ""), ("", "icmp,7,0,15,18\n"), ("0,5,10,12,20,22,\n", "")):
        sent = read_packets((ping + rows).encode())
        packets = join_stamps(sent, read_packets((tap + captured).encode()))
        assert len(packets) == len(rows.splitlines())
        assert parts_ns(packets) == {}
    parts = parts_ns(join_stamps(sent, read_packets(f"{tap}icmp,7,0,15,18\n".encode())))
    assert parts["overhead"].tolist() == [(22 - 10) - (18 - 15)]
