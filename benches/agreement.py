"""Do `rr` and `loaded` agree with sockperf, irtt and iperf3 on the same plane in the same run?

Round after round in turn: an `rr` trial by UDP and sockperf at the same rate, then a `loaded` trial
and irtt beside iperf3 at the same rate of probes. Shows medians over rounds. A bench shows figures;
it neither passes nor fails. Needs root, or a user namespace.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import time
from pathlib import Path

from planewise.measure.designs.cells import Cell
from planewise.measure.designs.design import Design
from planewise.measure.runs.stations import Stations
from planewise.measure.station import Place, Station
from planewise.measure.trials.applications import IPERF, IPERF_PORT, iperf_connects, iperf_server
from planewise.measure.trials.loaded import LoadedPart, LoadedTrial
from planewise.measure.trials.rr import RrPart, RrTrial
from planewise.testbed.hosts.privilege import ensure
from planewise.testbed.hosts.scratch import scratch

PORT = 47_100


def sockperf(station: Station, per_s: float, seconds: float) -> float:
    """Median round-trip time of open-loop requests by UDP [ns]."""
    client, server = station.ends["sender"], station.ends["responder"]
    at = ("-i", server.address, "-p", str(PORT))
    with scratch() as folder, server.host.start(["sockperf", "server", *at], netns=server.netns):
        time.sleep(0.5)
        log, rate = folder / "log", ("--mps", f"{per_s:g}", "--reply-every", "1")
        argv = ["sockperf", "under-load", *at, *rate, "-t", f"{seconds:g}", "--full-log", str(log)]
        client.host.run(argv, netns=client.netns, timeout_s=60).check()
        rows = re.findall(r"^\d+, ([0-9.]+), ([0-9.]+), ", log.read_text(), re.MULTILINE)
    return statistics.median((float(received) - float(sent)) * 1e9 for sent, received in rows)


def irtt(station: Station, per_s: float, seconds: float) -> float:
    """Median round-trip time by irtt while iperf3 saturates the path [ns]."""
    client, server = station.ends["sender"], station.ends["responder"]
    answering = ["irtt", "server", "-i", "0", "-b", f"{server.address}:{PORT}"]
    sending = [IPERF, "-c", server.address, "-p", str(IPERF_PORT), "-t", "60"]
    with (
        scratch() as folder,
        server.host.start(answering, netns=server.netns),
        iperf_server(server.host, server.netns, server.address),
        client.host.start(sending, netns=client.netns) as tcp,
    ):
        assert iperf_connects(server.host, server.netns, server.address, tcp)
        time.sleep(0.5)
        pace = ("-i", f"{1e6 / per_s:g}us", "-d", f"{seconds:g}s", "-l", "82")
        argv = ["irtt", "client", *pace, "-o", str(folder / "irtt.json")]
        client.host.run(
            [*argv, f"{server.address}:{PORT}"], netns=client.netns, timeout_s=60
        ).check()
        tcp.stop()
        found = json.loads((folder / "irtt.json").read_text())
    return float(found["stats"]["rtt"]["median"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--planes", nargs="+", default=["veth", "bridge"])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--per-s", type=float, default=2000.0)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each trial")
    parser.add_argument("--json", type=Path, default=Path("runs/bench/agreement.json"))
    options = parser.parse_args()
    ensure()
    rate, seconds = options.per_s, options.seconds
    rr = RrTrial("rr", RrPart(per_s=rate, duration_s=seconds))
    loaded = LoadedTrial("loaded", LoadedPart(frequency_pps=rate / 4, duration_s=seconds))
    results: dict[str, dict[str, list[float]]] = {}
    for plane in options.planes:
        cell, found = Cell(plane), dict[str, list[float]]()
        design = Design.model_validate({"factors": {"plane": plane}, "rtt": {}, "tcp": {}})
        with Stations(design) as stations:
            if reason := stations.unavailable([cell]).get(cell):
                print(f"{plane}: {reason}")
                continue
            for number in range(options.rounds):
                with stations.station(cell) as station:
                    place = Place(f"r{number}", cell.levels(), 0, number)
                    figures = station.measure(rr, place, lambda _: None).record.figures
                    found.setdefault("rr", []).append(figures["rr_udp"].value)
                    found.setdefault("sockperf", []).append(sockperf(station, rate, seconds))
                    figures = station.measure(loaded, place, lambda _: None).record.figures
                    found.setdefault("loaded", []).append(figures["loaded_rtt"].value)
                    found.setdefault("irtt + iperf3", []).append(irtt(station, rate / 4, seconds))
        results[plane] = found
        for ours, other in (("rr", "sockperf"), ("loaded", "irtt + iperf3")):
            mine, theirs = statistics.median(found[ours]), statistics.median(found[other])
            print(
                f"{plane}: {ours} {mine / 1e3:.1f} µs, {other} {theirs / 1e3:.1f} µs: "
                f"{mine / theirs - 1:+.1%}"
            )
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
