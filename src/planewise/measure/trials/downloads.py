"""A large download from one guest beside the requests to all, as from FlexVF's file server.

iperf3 stands in for that (section 6.4): the guest sends so many bytes to its client by one TCP
stream. Knows no policy.
"""

from __future__ import annotations

from contextlib import ExitStack

from planewise.errors import PlanewiseError
from planewise.measure.trials.applications import IPERF, IPERF_PORT
from planewise.measure.trials.tcp import parse_iperf
from planewise.store.allocations import DOWNLOAD_METRIC
from planewise.store.models import Download, DownloadInterval, Figure
from planewise.testbed.hosts.host import FinishedProcess, Host
from planewise.testbed.model import Guest

_SLACK_S = 5.0
"""For the end of a download that has all its bytes."""


class RunningDownload:
    """A download; it begins where it is made, and ends with `stack` at the latest."""

    def __init__(self, sender: Host, client: Guest, guest: Guest, size_mib: int, stack: ExitStack):
        self._guest = guest.name
        argv = [
            *(IPERF, "-c", guest.ipv4, "-4", "-p", str(IPERF_PORT), "--json"),
            *("--reverse", "-n", f"{size_mib}M", "-i", "1"),
        ]
        self._process = stack.enter_context(sender.start(argv, netns=client.netns))

    def result(self) -> Download:
        """The finished download.

        Raises:
            PlanewiseError: it failed, or still runs.
        """
        if self._process.running:
            raise PlanewiseError(
                f"the download from {self._guest} did not end with the trial",
                remedy="give `alloc.duration_s` more time, or a smaller `alloc.download_mib`",
            )
        return download_of(self._guest, self._process.wait(_SLACK_S))


def download_of(guest: str, finished: FinishedProcess) -> Download:
    """From what the client printed; errors as `parse_iperf`. Pure."""
    report = parse_iperf(finished)
    received = report.end.sum_received
    return Download(
        guest=guest,
        bytes=received.bytes,
        seconds=received.seconds,
        intervals=tuple(
            DownloadInterval(end_s=interval.sum.end, bps=interval.sum.bits_per_second)
            for interval in report.intervals
        ),
    )


def figures_of(download: Download | None) -> dict[str, Figure]:
    """The figure that policies are compared by. Pure."""
    if download is None:
        return {}
    return {
        DOWNLOAD_METRIC: Figure(
            title="completion time of the download",
            unit="ns",
            lower_is_better=True,
            value=download.seconds * 1e9,
            resolution=1e3,
        )
    }
