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


def nfvbench_without_iterations() -> str:
    """What an older version kept of a search."""
    result = json.loads(nfvbench(trials()))
    (chain,) = result["benchmarks"]["network"]["service_chain"].values()
    del chain["result"]["result"]["64"]["iteration_stats"]
    return json.dumps(result)


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
    """The name of every format with trials -> a valid file of it."""
    return {
        "pastrami": pastrami(of).encode(),
        "trex": trex(of).encode(),
        "nfvbench": nfvbench(of).encode(),
        "mlrsearch": mlrsearch(of).encode(),
        "csv": csv_rows(of).encode(),
    }


def iperf3(rates: Sequence[float] = (9.41e9, 9.38e9, 9.40e9), *, udp: bool = False) -> str:
    """A client's run, its first interval omitted."""

    def part(rate: float, omitted: bool = False) -> dict[str, Any]:
        packets = {"packets": 8_000} if udp else {"retransmits": 3}
        return {"start": 0, "end": 1.0, "seconds": 1.0, "bytes": rate / 8, "bits_per_second": rate,
                "omitted": omitted, "sender": True, **packets}  # fmt: skip

    mean = sum(rates) / len(rates)
    end: dict[str, Any] = {"sum_sent": part(mean), "sum_received": part(mean)}
    if udp:
        lost = {"jitter_ms": 0.02, "lost_packets": 80, "packets": 8_000, "lost_percent": 1.0}
        end = {"sum": {**part(mean), **lost}}
    sums = [{"streams": [part(rate)], "sum": part(rate)} for rate in rates]
    return json.dumps(
        {
            "start": {
                "connected": [{"socket": 5, "local_host": "198.18.0.1", "local_port": 40000}],
                "version": "iperf 3.12",
                "system_info": "Linux",
                "test_start": {"protocol": "UDP" if udp else "TCP", "num_streams": 1},
            },
            "intervals": [{"streams": [], "sum": part(1e9, omitted=True)}, *sums],
            "end": {**end, "cpu_utilization_percent": {"host_total": 12.5}},
        },
        indent="\t",
    )


def iperf3_stream(rates: Sequence[float] = (9.41e9, 9.38e9)) -> str:
    """The same from --json-stream."""
    run = json.loads(iperf3(rates))
    events = [("start", run["start"]), *(("interval", one) for one in run["intervals"])]
    return "".join(
        json.dumps({"event": name, "data": data}) + "\n"
        for name, data in [*events, ("end", run["end"])]
    )


NETPERF = """\
MIGRATED TCP STREAM TEST from 0.0.0.0 (0.0.0.0) port 0 AF_INET to 198.18.0.2 () : demo
Recv   Send    Send
Socket Socket  Message  Elapsed
Size   Size    Size     Time     Throughput
bytes  bytes   bytes    secs.    10^6bits/sec

131072  16384  16384    10.00    9412.57
MIGRATED UDP STREAM TEST from 0.0.0.0 (0.0.0.0) port 0 AF_INET to 198.18.0.2 () port 0 AF_INET
Socket  Message  Elapsed      Messages
Size    Size     Time         Okay Errors   Throughput
bytes   bytes    secs            #      #   10^6bits/sec

212992   65507   10.00       18192      0     953.35
212992           10.00       18100            948.10

MIGRATED TCP REQUEST/RESPONSE TEST from 0.0.0.0 () port 0 AF_INET to 198.18.0.2 () port 0 AF_INET
Local /Remote
Socket Size   Request  Resp.   Elapsed  Trans.
Send   Recv   Size     Size    Time     Rate
bytes  Bytes  bytes    bytes   secs.    per sec

16384  131072 1        1       10.00    58764.13
16384  131072
"""
NETPERF_CSV = """\
MIGRATED TCP REQUEST/RESPONSE TEST from 0.0.0.0 () port 0 AF_INET to 198.18.0.2 () : first burst 0
Throughput,Throughput Units,Mean Latency Microseconds,99th Percentile Latency Microseconds
21004.10,Trans/s,47.20,66
"""
NETPERF_KEYS = """\
MIGRATED TCP STREAM TEST from 0.0.0.0 () port 0 AF_INET to 198.18.0.2 () port 0 AF_INET : demo
Interim result: 9400.10 10^6bits/s over 1.001 seconds ending at 1377579676.901
THROUGHPUT=3180.24
THROUGHPUT_UNITS=10^6bits/s
P99_LATENCY=123
"""
SOCKPERF = """\
sockperf: == version #3.10-no.git ==
sockperf: [Total Run] RunTime=10.000 sec; Warm up time=400 msec; SentMessages=9; ReceivedMessages=9
sockperf: ====> avg-latency=21.323 (std-dev=14.741, std-error=0.018, 99.0% ci=[21.277, 21.369])
sockperf: Summary: Latency is 21.323 usec
sockperf: ---> <MAX> observation = 4943.790
sockperf: ---> percentile 99.000 =   51.281
sockperf: ---> percentile 50.000 =   19.867
"""


def sockperf_log(rtts_us: Sequence[float], *, old: bool = False) -> str:
    """A full log; old versions have two columns."""
    head = "txTime, rxTime" if old else "packet, txTime(sec), rxTime(sec), latency(usec)"
    rows = [
        (f"{place / 1e3:.9f}, {place / 1e3 + rtt / 1e6:.9f}" if old else
         f"{place}, {place / 1e3:.9f}, {place / 1e3 + rtt / 1e6:.9f}, {rtt / 2:.3f}")
        for place, rtt in enumerate(rtts_us)
    ]  # fmt: skip
    rule = "-" * 30
    about = "test was performed using the following parameters: --mps=1000 --burst=1 --msg-size=64"
    return "\n".join([rule, about, rule, head, *rows, rule, ""])


def irtt(rtts_us: Sequence[float]) -> str:
    """Packets; the second one was lost."""
    trips = [
        {"seqno": place, "lost": "true" if place == 1 else "false",
         "delay": {} if place == 1 else {"receive": 10, "rtt": round(rtt * 1e3), "send": 20}}
        for place, rtt in enumerate(rtts_us)
    ]  # fmt: skip
    return json.dumps(
        {
            "version": {"irtt": "0.9.1", "protocol": 1, "json_format": 1},
            "config": {"remote_address": "198.18.0.2:2112"},
            "stats": {"packet_loss_percent": 100 / len(trips), "rtt": {"median": 120_000}},
            "round_trips": trips,
        }
    )


def flent() -> str:
    """A test of two series."""
    return json.dumps(
        {
            "metadata": {
                "NAME": "rrul",
                "DATA_FILENAME": "rrul.flent.gz",
                "SERIES_META": {"Ping (ms) ICMP": {"UNITS": "ms"}, "TCP up": {"UNITS": "Mbits/s"}},
            },
            "version": 4,
            "x_values": [0.0, 0.2, 0.4, 0.6],
            "results": {
                "Ping (ms) ICMP": [0.11, None, 0.12, 0.13],
                "TCP up": [None, 940.1, 939.8, 941.0],
            },
        }
    )


def k8s_netperf(mbps: float = 2702.23) -> str:
    """Two scenarios of three runs, as JSON."""
    return json.dumps(
        [
            {
                "uuid": "k8s-netperf",
                "hostNetwork": host,
                "driver": "netperf",
                "parallelism": 1,
                "profile": "TCP_STREAM",
                "duration": 10,
                "service": False,
                "local": False,
                "samples": 3,
                "messageSize": 1024,
                "throughput": mbps * (1.1 if host else 1),
                "latency": 71.3,
                "tputMetric": "Mb/s",
                "ltcyMetric": "usec",
                "confidence": [mbps * 0.96, mbps * 1.04],
                "metadata": {"sdn": "OVNKubernetes"},
            }
            for host in (False, True)
        ]
    )


def k8s_netperf_csv(mbps: float = 873.6, half: float = 11.67) -> str:
    """The same as CSV, one scenario."""
    return (
        "Driver,Profile,Same node,Host Network,Service,External Server,Duration,Parallelism,"
        "# of Samples,Message Size,Confidence metric - low,Confidence metric - high,Avg Throughput,"
        "Throughput Metric,99%tile Observed Latency,Latency Metric\n"
        f"netperf,TCP_STREAM,false,false,false,false,10,1,3,1024,{mbps - half},{mbps + half},"
        f"{mbps},Mb/s,3.33,usec\n"
    )


def show_port_stats(rates: Sequence[int] = (14_880_952, 14_880_100)) -> str:
    """Two ports shown several times, then stopped."""
    shown = "".join(
        f"""
  ######################## NIC statistics for port {port}  ########################
  RX-packets: 1000       RX-missed: 0          RX-bytes:  64000
  RX-errors: 0
  TX-packets: 1000       TX-errors: 0          TX-bytes:  64000

  Throughput (since last show)
  Rx-pps:     {rate}          Rx-bps:   7618
  Tx-pps:     {rate}          Tx-bps:   7618
  ############################################################################
"""
        for rate in rates
        for port in (0, 1)
    )
    return f"""testpmd> show port stats all
{shown}
testpmd> stop
  ---------------------- Forward statistics for port 0  ----------------------
  RX-packets: 7139974RX-dropped: 0 RX-total: 7139974
  TX-packets: 6699967TX-dropped: 0 TX-total: 6699967

  +++++++++++++++ Accumulated forward statistics for all ports+++++++++++++++
  RX-packets: 990            RX-dropped: 0             RX-total: 990
  TX-packets: 990            TX-dropped: 10            TX-total: 1000
"""


def pktgen(rates: Sequence[int] = (148_042, 148_044)) -> str:
    """A page drawn again each second."""
    return "".join(
        f"""\x1b[1;1H/ Ports 0-1 of 2   <Main Page>  Copyright (c) <2010-2021>, Intel Corporation
  Flags:Port        : P------Single      :0 P------Single      :1
Link State          :          <UP-1000-FD>          <UP-1000-FD>      ---Total Rate---
Pkts/s Max/Rx       :                   0/0      150000/{rate}      150000/{rate}
       Max/Tx       :       150208/{rate + 2}                 0/0      150208/{rate + 2}
MBits/s Rx/Tx       :                 99/99                 99/99
Broadcast           :                     0                     0
Total Rx Pkts       :                     0                   990
      Tx Pkts       :                  1000                     0
"""
        for rate in rates
    )


def trex_console() -> str:
    """Two ports and their total."""
    return """
Port Statistics

   port    |         0         |         1         |       total
-----------+-------------------+-------------------+------------------
owner      |              root |              root |
Tx bps L2  |       297.89 Mbps |        180.39 bps |       297.89 Mbps
Tx pps     |       581.81 Kpps |          0.49 pps |       581.81 Kpps
Line Util. |            2.39 % |               0 % |
Rx pps     |          0.49 pps |        581.8 Kpps |        581.8 Kpps
----       |                   |                   |
opackets   |              1000 |                 0 |              1000
ipackets   |                 0 |               995 |               995
tx-pkts    |        85.5 Mpkts |           19 pkts |        85.5 Mpkts
"""


def mrr(values: Sequence[float] = (9.1e6, 9.2e6, 9.15e6)) -> str:
    """An MRR test of CSIT's model 1.5.1."""
    case = json.loads(csit())
    rate = {"avg": 0.0, "stdev": 0.0, "unit": "pps", "values": list(values)}
    return json.dumps(
        {**case, "version": "1.5.1", "result": {"type": "mrr", "receive_rate": {"rate": rate}}}
    )


def readings() -> dict[str, list[str]]:
    """The name of every format without trials -> valid files of it."""
    rtts = [100 + place % 7 for place in range(200)]
    return {
        "csit": [csit(), mrr()],
        "iperf3": [iperf3(), iperf3(udp=True), iperf3_stream()],
        "netperf": [NETPERF, NETPERF_CSV, NETPERF_KEYS],
        "sockperf": [sockperf_log(rtts[:20]), sockperf_log(rtts, old=True), SOCKPERF],
        "irtt": [irtt(rtts[:12])],
        "flent": [flent()],
        "k8s-netperf": [k8s_netperf(), k8s_netperf_csv()],
        "testpmd": [show_port_stats()],
        "pktgen": [pktgen()],
        "trex-console": [trex_console()],
    }
