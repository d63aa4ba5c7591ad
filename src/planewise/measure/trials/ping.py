"""Probes from one end of a trial to the other and back, by `pw-probe ping`."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from planewise.errors import PlanewiseError
from planewise.measure.station import Place, Station
from planewise.measure.trials.load import check_arrival
from planewise.measure.trials.probe import PingOutput, parse
from planewise.testbed.hosts.host import HostProcess, ProcessTimeoutError

_CHECK_S = 2.0
"""How often guests are checked while packets are late."""
_ATTEMPTS = 2
"""Probes of 100 µs may get no CPU time at all: they are then sent again."""


def ping(
    station: Station,
    place: Place,
    protocol: str,
    rate_pps: float,
    size_bytes: int,
    expected_s: float,
    *options: str,
) -> PingOutput:
    """Probes from the sender's end to the responder's, which take `expected_s` to send.

    `size_bytes` is the Ethernet frame with FCS, `options` are further ones of `pw-probe ping`.

    Raises:
        PlanewiseError: it failed, none could be sent, or none came back.
    """
    end = station.ends["sender"]
    argv = [
        *(end.host.probe, "ping", station.ends["responder"].address, "--proto", protocol),
        *("--rate", f"{rate_pps:g}", "--size", str(size_bytes)),
        *("--patience", f"{station.patience_s:g}", *options),
    ]
    try:
        for _ in range(_ATTEMPTS):
            with end.host.start(argv, netns=end.netns, expected_s=expected_s) as process:
                await_late_end(process, station.check, expected_s, station.patience_s)
                finished = process.wait(120 + 10 * station.patience_s + 2 * expected_s)
            output = parse(finished, PingOutput)
            if output.interrupted:
                raise KeyboardInterrupt
            if output.counts.sent and not output.counts.received:
                raise PlanewiseError(
                    f"none of {output.counts.sent} {protocol} probes came back to {end.name}",
                    remedy="see whether something filters the testbed's packets (`nft list "
                    "ruleset`)",
                )
            if output.counts.sent:
                return output
        raise PlanewiseError(
            f"no {protocol} probe was sent: pw-probe got no CPU time",
            remedy="stop other work on the machine, or let trials send more packets",
        )
    except PlanewiseError:
        station.check()
        check_arrival(station, place, size_bytes)
        raise


def await_late_end(
    process: HostProcess, check: Callable[[], None], expected_s: float, late_s: float
) -> None:
    """Waits for a process up to `late_s` longer than expected, and calls `check` now and then.

    Returns also when it still runs after that.
    """
    deadline = time.monotonic() + expected_s + late_s
    pause_s = expected_s + _CHECK_S
    while time.monotonic() < deadline:
        with suppress(ProcessTimeoutError):
            process.wait(pause_s)
            return
        check()
        pause_s = _CHECK_S
