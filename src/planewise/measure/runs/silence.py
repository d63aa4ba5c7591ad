"""A path on which nothing arrives: how far the frames got, by the interfaces' own counters."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.counters import read_host
from planewise.testbed.hosts.host import Host
from planewise.testbed.model import TrialPath
from planewise.units import count_text, list_text

Counters = dict[str, tuple[int, int]]
"""Packets received and sent, by interface as `eth0@netns`."""
MOST_LISTED = 3
_SHARE = 0.95
"""Of the frames sent, that an interface must have counted to have seen them."""


def counters(host: Host, namespaces: Sequence[str]) -> Counters:
    """Of the host's own interfaces and those in its named namespaces."""
    found = read_host(host, {}, ("", *namespaces)).interfaces
    return {
        f"{name}@{netns}" if netns else name: (counts["rx_packets"], counts["tx_packets"])
        for netns, interfaces in found.items()
        for name, counts in interfaces.items()
    }


def nothing_arrived(
    path: TrialPath, destination: str, sent: int, before: Counters, after: Counters
) -> PlanewiseError:
    """The error: what was sent, where frames were counted, and how to find out why. Pure."""
    tx, rx = (
        f"{interface}@{netns}" if netns else interface
        for interface, netns in (
            (path.tx_interface, path.tx_netns),
            (path.rx_interface, path.rx_netns),
        )
    )
    rises = [
        (now[way] - before[place][way], way, place)
        for place, now in after.items()
        for way in (0, 1)
        if place in before and place != tx
    ]
    # Other traffic counts, too: the nearest to what was sent come first.
    near = sorted(rise for rise in rises if rise[0] >= _SHARE * sent)[:MOST_LISTED]
    received = [place for _, way, place in near if way == 0]
    seen = [f"{('received', 'sent on')[way]} by {place}" for _, way, place in near if place != rx]
    last = list_text(seen) or "no other interface of this machine counted them"
    if rx in received:
        last = f"{rx} received frames, but not to {destination} as they were sent"
    stop = next((place for place in received if place != rx), "")
    netns = stop.partition("@")[2]
    inside = f"ip netns exec {netns} " if netns else ""
    return PlanewiseError(
        f"nothing arrived at {rx}: all of {count_text(sent, 'frame')} that {tx} sent to "
        f"{destination} were lost (beyond {tx}: {last})",
        remedy=(
            f"see why {stop} goes no further: `{inside}ip route get {destination}`, "
            f"`{inside}sysctl net.ipv4.ip_forward net.ipv4.conf.all.rp_filter`, "
            f"`{inside}nft list ruleset`"
            if stop and rx not in received
            else f"check --dst, --dst-mac and --size, and watch {rx} with `tcpdump -eni`"
        ),
    )
