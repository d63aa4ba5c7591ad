"""A download beside an allocator's requests: what iperf3 prints, and what is reported of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import cast

import pytest

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.measure.designs.design_file import load_design
from planewise.measure.trials.alloc import AllocTrial
from planewise.measure.trials.allocation import download_command, download_of, figures_of
from planewise.measure.trials.applications import IPERF, iperf_connects
from planewise.measure.trials.tcp import parse_iperf
from planewise.report import html
from planewise.report.data import RunData
from planewise.report.sections.allocation import sections
from planewise.store.models import Download, DownloadInterval, TrialRecord
from planewise.store.rundir import RunReader, RunWriter
from planewise.testbed.hosts.host import FinishedProcess, HostProcess, LocalHost
from planewise.testbed.model import Guest
from tests.command import invoked
from tests.unit import made_up_run
from tests.unit.made_up_allocation import trial
from tests.unit.vega_schema import fits_schema

ROOT = Path(__file__).parents[2]
DESIGNS = ("flexvf-download-lab.yaml", "flexvf-download-beaten-lab.yaml")


def total(end: float, size: int, seconds: float) -> dict[str, float]:
    rate = {"bytes": size, "bits_per_second": 8 * size / seconds, "retransmits": 3}
    return {"start": end - seconds, "end": end, "seconds": seconds, **rate}


REPORT = {
    "start": {},
    "intervals": [
        {"streams": [], "sum": total(1.0, 1_000_000, 1.0)},
        {"streams": [], "sum": total(1.5, 250_000, 0.5)},
    ],
    "end": {"sum_sent": total(1.6, 1_250_000, 1.6), "sum_received": total(1.5, 1_250_000, 1.5)},
}


def finished(text: str, exit_code: int = 0) -> FinishedProcess:
    return FinishedProcess(("iperf3",), exit_code, text, "")


def test_the_clients_intervals_and_its_own_sum_tell_the_download() -> None:
    download = download_of("guest3", cast("HostProcess", Sending(json.dumps(REPORT))))
    assert (download.guest, download.bytes, download.seconds) == ("guest3", 1_250_000, 1.5)
    told = [(one.end_s, one.bps) for one in download.intervals]
    assert told == [(1.0, 8e6), (1.5, 4e6)]
    figure = figures_of(download)["download"]
    assert (figure.value, figure.unit, figure.lower_is_better) == (1.5e9, "ns", True)
    assert figures_of(None) == {}


def test_what_iperf3_says_of_its_failure_is_the_error_and_other_text_is_refused() -> None:
    with pytest.raises(PlanewiseError, match="unable to connect"):
        parse_iperf(finished('{"error": "unable to connect"}', 1))
    with pytest.raises(UnsupportedError, match="iperf3 did not print"):
        parse_iperf(finished('{"end": {}}'))


def test_a_client_that_was_stopped_in_its_midst_has_not_failed() -> None:
    told = json.dumps(REPORT | {"error": "interrupt - the client has terminated"})
    assert parse_iperf(finished(told, 1), stopped=True).end.sum_sent.seconds == 1.6
    with pytest.raises(PlanewiseError, match="has terminated"):
        parse_iperf(finished(told, 1))
    with pytest.raises(PlanewiseError, match="unable to connect"):
        parse_iperf(finished('{"error": "unable to connect"}', 1), stopped=True)


class Sending:
    """A client that still runs, or has printed what it had to say."""

    def __init__(self, text: str | None) -> None:
        self.running = text is None
        self._text = text

    def wait(self, timeout_s: float | None = None) -> FinishedProcess:
        return finished(self._text or "")


class Sockets(LocalHost):
    """A guest whose port has a socket in each of these states, look by look."""

    def __init__(self, *states: str) -> None:
        super().__init__("guest")
        self.states = list(states)

    def read_text(self, path: str, *, netns: str | None = None) -> str:
        state = self.states.pop(0)
        return f"  sl  local_address\n   0: 0100C6C6:1451 0200C6C6:8000 {state} 0:0\n"


def test_a_client_has_connected_only_once_the_servers_port_has_a_connection() -> None:
    waiting, ended = (cast("HostProcess", Sending(text)) for text in (None, ""))
    host = Sockets("0A", "03", "01", "0A")
    assert iperf_connects(host, "pw-x", "198.198.0.1", waiting)
    assert host.states == ["0A"], "it looked three times"
    assert not iperf_connects(Sockets(), "pw-x", "198.198.0.1", ended)


def test_the_client_asks_the_guest_to_send_and_outliving_the_trial_is_told_by_keys() -> None:
    server = Guest(
        "responder", "responder", "background", 3, "bridge",
        "pw-x-responder", "eth0", "02:70:77:00:00:03", "198.19.0.3", "2001:2:0:2::3",
    )  # fmt: skip
    argv = download_command(server, 8)
    assert "--reverse" in argv
    assert argv[argv.index("-n") + 1] == "8M"
    assert argv[argv.index("-c") + 1] == server.ipv4
    with pytest.raises(PlanewiseError, match="did not end with the trial") as refused:
        download_of("responder", cast("HostProcess", Sending(None)))
    assert "alloc.download_mib" in (refused.value.remedy or "")


@pytest.mark.parametrize("name", DESIGNS)
def test_a_designs_last_guest_is_the_file_server_and_belongs_to_the_slow_group(name: str) -> None:
    design = load_design(ROOT / "experiments" / name)
    part = design.alloc
    assert part is not None
    assert part.download_mib
    (guests,) = design.factors.background_guests
    assert part.group_pps[(guests - 1) % len(part.group_pps)] == min(part.group_pps)
    assert IPERF in AllocTrial.programs(design)


def downloaded(policy: str, block: int, seconds: float) -> TrialRecord:
    record = trial(policy, block, 4.0, 4.0, "guest3")  # type: ignore[arg-type]
    assert record.alloc is not None
    download = Download(
        guest="guest3",
        bytes=8 << 20,
        seconds=seconds,
        intervals=tuple(DownloadInterval(end_s=n, bps=1e6) for n in range(1, int(seconds) + 1)),
    )
    alloc = record.alloc.model_copy(update={"download": download})
    return record.model_copy(update={"alloc": alloc, "figures": figures_of(download)})


def test_the_report_draws_a_line_a_trial_and_compares_policies_by_completion_time(
    tmp_path: Path,
) -> None:
    path = tmp_path / "run"
    info = made_up_run.info("Downloads", emulated="made up")
    with RunWriter.create(path, info) as writer:
        for block in range(6):
            for policy, seconds in (("fair", 8.0), ("activity", 4.0 + block / 100)):
                writer.append(downloaded(policy, block, seconds))
    reader = RunReader(path)
    section = next(one for one in sections(RunData(reader)) if one.anchor == "download")
    lead = section.figures[0].lead
    assert lead == "Median duration of the whole download: fair 8 s, activity 4.03 s."
    rows = section.figures[0].table.rows
    assert [row[0] for row in rows] == ["fair", "activity"]
    drawn = str(section.figures[0].panels)
    assert "{'series': 'fair', 'value': 1000000.0, 'trial': 'fair 0', 'x': 0.0}" in drawn
    assert len(section.figures) == 2, "throughput, and the policies compared once, not by group"
    assert all(fits_schema(figure.whole()) for figure in section.figures)
    arguments = ["compare", str(path), "--factor", "policy", "--metric", "download"]
    result = invoked(*arguments)
    assert result.exit_code == 0, result.output
    assert "activity is better than fair" in " ".join(result.output.split())
    html.write(reader, path / "report.html")
    assert "Duration of a download" in (path / "report.html").read_text()
