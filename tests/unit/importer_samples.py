"""Small valid results in every tool's own schema, made from one list of trials."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Trial:
    """One trial as all the tools see it."""

    offered_pps: int
    sent: int
    received: int
    duration_s: float = 10.0


COARSE = (400_000, 600_000, 800_000, 1_000_000, 1_200_000)
FINE = (250_000, 400_000, 500_000, 600_000, 700_000, *COARSE[2:])
"""What GOOD takes: from a third of PDR on, a fifth of it apart at most."""


def trials(runs: int = 3, loads: Sequence[int] = COARSE) -> list[Trial]:
    """A system of 800 kpps: no loss, then all above its capacity lost."""
    return [
        Trial(load, load * 10, min(load * 10, 8_000_000 - 1_000 * run))
        for load in loads
        for run in range(runs)
    ]


def pastrami(of: list[Trial], cpu: bool = False) -> str:
    """A line a load; the discard counter runs on from 1000."""
    lines = []
    for load in dict.fromkeys(trial.offered_pps for trial in of):
        counter = 1000
        line: list[list[int]] = [[load, counter]]
        for trial in of:
            if trial.offered_pps == load:
                counter += max(0, trial.sent - trial.received)
                line.append([trial.sent, trial.received, counter, *([37] if cpu else [])])
        lines.append(json.dumps(line))
    return "\n".join(lines) + "\n"


def trex_statistics(trial: Trial) -> dict[str, Any]:
    """What STLClient.get_stats() returns, as JSON makes it: port numbers become strings."""
    port = {"ibytes": 0, "ierrors": 0, "obytes": 0, "oerrors": 0, "rx_bps": 0.0, "tx_bps": 0.0}
    return {
        "0": {**port, "opackets": trial.sent, "ipackets": 0, "tx_pps": trial.offered_pps * 1.002},
        "1": {**port, "opackets": 0, "ipackets": trial.received, "tx_pps": 0.0},
        "flow_stats": {"global": {"rx_err": {}, "tx_err": {}}},
        "global": {
            "active_flows": 0.0,
            "cpu_util": 12.5,
            "queue_full": 0,
            "rx_pps": 0.0,
            "tx_expected_pps": 0.0,
            "tx_pps": trial.offered_pps * 1.002,
        },
        "latency": {"global": {"bad_hdr": 0, "old_flow": 0}},
        "total": {
            **port,
            "ipackets": trial.received,
            "opackets": trial.sent,
            "tx_pps": trial.offered_pps * 1.002,
        },
    }


def trex(of: list[Trial]) -> str:
    """A line a trial, each wrapped with its intended load."""
    return "".join(
        json.dumps(
            {
                "rate_pps": trial.offered_pps,
                "duration_s": trial.duration_s,
                "stats": trex_statistics(trial),
            }
        )
        + "\n"
        for trial in of
    )


def trex_benchmark(rate_pps: float = 812_345.6, lost_percent: float = 0.25) -> dict[str, Any]:
    """What stl_ndr_bench_tool.py prints with -o json."""
    return {
        "results": {
            "title": "router",
            "total_iterations": 7,
            "queue_full_percentage": 0.0,
            "drop_rate_percentage": lost_percent,
            "valid_latency": True,
            "rate_tx_bps": rate_pps * 512,
            "rate_rx_bps": rate_pps * 512,
            "tx_util": 5.4,
            "latency": {},
            "cpu_util": 11.0,
            "tx_pps": rate_pps,
            "rx_pps": rate_pps,
            "bw_per_core": 3.1,
            "rate_p": 54.6,
            "max_rate_bps": 7.6e8,
            "iteration": 6,
            "ndr_points": [4.1e8],
            "Elapsed Time": 311.0,
        },
        "config": {
            "iteration_duration": 40.0,
            "q_full_resolution": 2.0,
            "first_run_duration": 40.0,
            "pdr": 0.5,
            "pdr_error": 1.0,
            "ports": [0, 1],
            "bi_dir": False,
            "title": "router",
        },
    }


def nfvbench(of: list[Trial]) -> str:
    """An NDR/PDR search over one chain and one frame size."""
    iterations = [
        {
            "total_tx_pps": round(trial.sent / trial.duration_s),
            "tx_pps": trial.offered_pps,
            "tx_pkts": trial.sent,
            "rx_pps": trial.offered_pps * trial.received / trial.sent,
            "rx_pkts": trial.received,
            "drop_pct": trial.sent - trial.received,
            "drop_percentage": 100 * (trial.sent - trial.received) / trial.sent,
            "time_ms": 1_700_000_000_000 + 11_000 * place,
        }
        for place, trial in enumerate(of)
    ]
    found = {
        "rate_pps": 800_000,
        "rate_bps": 5.4e8,
        "rate_percent": 5.4,
        "l2frame_size": "64",
        "duration_sec": 10,
        "load_percent_per_direction": 2.7,
        "time_taken_sec": 160.0,
        "timestamp_sec": 1_700_000_160.0,
        "stats": {"overall": {"tx_pkts": 8_000_000, "rx_pkts": 8_000_000, "drop_pct": 0}},
    }
    return json.dumps(
        {
            "benchmarks": {
                "network": {
                    "service_chain": {
                        "PVP": {
                            "result": {
                                "bidirectional": True,
                                "compute_nodes": {},
                                "flow_count": 10_000,
                                "profile": "traffic_profile_64B",
                                "service_chain_count": 1,
                                "result": {
                                    "64": {
                                        "ndr": found,
                                        "pdr": {**found, "rate_pps": 804_000},
                                        "iteration_stats": {"ndr_pdr": iterations},
                                    }
                                },
                            }
                        }
                    },
                    "versions": {},
                }
            },
            "config": {"ndr_run": True, "pdr_run": True},
            "date": "2026-01-01 00:00:00",
            "nfvbench_version": "5.0.4",
            "openstack_spec": {},
        }
    )


def mlrsearch(of: list[Trial]) -> str:
    """A list of MeasurementResult, as dataclasses.asdict gives them."""
    return json.dumps(
        [
            {
                "intended_duration": trial.duration_s,
                "intended_load": float(trial.offered_pps),
                "offered_count": trial.sent,
                "loss_count": trial.sent - trial.received,
                "forwarding_count": trial.received,
                "offered_duration": trial.duration_s,
                "duration_with_overheads": trial.duration_s + 0.5,
                "intended_count": trial.sent,
            }
            for trial in of
        ],
        indent=1,
    )


def mlrsearch_log(of: list[Trial]) -> str:
    """The same as a search's log has it."""
    return "".join(
        f"20260101 00:00:{place:02d} - DEBUG - MeasurementResult(intended_duration="
        f"{trial.duration_s}, intended_load={float(trial.offered_pps)}, "
        f"offered_count={trial.sent}, loss_count={trial.sent - trial.received}, "
        f"forwarding_count={trial.received}, offered_duration={trial.duration_s}, "
        f"duration_with_overheads={trial.duration_s}, intended_count={trial.sent})\n"
        for place, trial in enumerate(of)
    )


def csit(ndr: float = 1_000_000.0, pdr: float = 1_200_000.0) -> str:
    """A test case of CSIT's model with the bounds of a search."""

    def bounds(lower: float) -> dict[str, Any]:
        return {
            "lower": {"rate": {"value": lower, "unit": "pps"}},
            "upper": {"rate": {"value": lower * 1.005, "unit": "pps"}},
        }

    return json.dumps(
        {
            "version": "1.6.0",
            "dut_type": "VPP",
            "dut_version": "24.06-rc0",
            "duration": 220.0,
            "hosts": ["198.18.0.2"],
            "log": [],
            "message": "",
            "passed": True,
            "result": {"type": "ndrpdr", "ndr": bounds(ndr), "pdr": bounds(pdr)},
            "start_time": "2026-01-01T00:00:00.0Z",
            "test_id": "tests.vpp.perf.ip6.64b-1c-ethip6-ip6base-ndrpdr",
            "test_type": "ndrpdr",
            "tg_type": "TREX",
        }
    )


def csv_rows(of: list[Trial]) -> str:
    """The documented CSV."""
    rows = [f"{trial.offered_pps},{trial.sent},{trial.received},{trial.duration_s}" for trial in of]
    return "\n".join(["offered_pps,sent,received,duration_s", *rows]) + "\n"


def every(of: list[Trial]) -> dict[str, bytes]:
    """Every format's name -> a valid file of it. CSIT's has no trials in it."""
    return {
        "pastrami": pastrami(of).encode(),
        "trex": trex(of).encode(),
        "nfvbench": nfvbench(of).encode(),
        "mlrsearch": mlrsearch(of).encode(),
        "csit": csit().encode(),
        "csv": csv_rows(of).encode(),
    }
