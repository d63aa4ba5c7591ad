"""A path on which nothing arrives: how far the frames got, by the interfaces' own counters."""

from __future__ import annotations

from collections.abc import Sequence

from planewise.errors import PlanewiseError
from planewise.measure.station import Station
from planewise.testbed.hosts import netns
from planewise.testbed.hosts.counters import read_host
from planewise.testbed.model import TrialPath
from planewise.units import count_text, list_text

Counters = dict[str, tuple[int, int]]
"""Packets received and sent, by interface: `eth0@netns`, of two servers `eth0@netns on server`."""
MOST_LISTED = 3
_SHARE = 0.95
"""Of the frames sent, that an interface must have counted to have seen them."""


def counters(station: Station) -> Counters:
    """Of the station's hosts; of two servers, only of the namespaces that frames pass."""
    assert station.generator is not None
    found: Counters = {}
    hosts = {"": station.generator.host} if not station.separate else {**station.hosts}
    for role, host in hosts.items():
        names = netns.names()
        if station.separate:
            names = tuple({p.netns for p in station.counter_points if p.host == role})
        for name, interfaces in read_host(host, {}, ("", *names)).interfaces.items():
            for interface, counts in interfaces.items():
                place = _place(interface, name, host.place if station.separate else "")
                found[place] = counts["rx_packets"], counts["tx_packets"]
    return found


def along(station: Station) -> list[str]:
    """The interfaces that are known to lie on the path, in its order."""
    places = {str(role): host.place for role, host in station.hosts.items() if station.separate}
    return [_place(p.interface, p.netns, places.get(p.host, "")) for p in station.counter_points]


def _place(interface: str, name: str, server: str = "") -> str:
    return f"{interface}{name and f'@{name}'}{server and f' on {server}'}"


def nothing_arrived(
    path: TrialPath,
    destination: str,
    sent: int,
    before: Counters,
    after: Counters,
    along: Sequence[str] = (),
) -> PlanewiseError:
    """The error: what was sent, where frames were counted last, and how to find out why. Pure."""
    tx, rx = _place(path.tx_interface, path.tx_netns), _place(path.rx_interface, path.rx_netns)
    rises = [
        (-along.index(place) if place in along else 1, now[way] - before[place][way], way, place)
        for place, now in after.items()
        for way in (0, 1)
        if place in before and place.partition(" on ")[0] != tx
    ]
    # The furthest along the path come first. Other traffic counts, too: of interfaces that may
    # not be on the path, the nearest to what was sent come first.
    near = sorted(rise for rise in rises if rise[1] >= _SHARE * sent)[:MOST_LISTED]
    received = [place for _, _, way, place in near if way == 0]
    arrived = [place for place in received if place.partition(" on ")[0] == rx]
    seen = [
        f"{('received', 'sent on')[way]} by {place}"
        for _, _, way, place in near
        if place not in arrived
    ]
    last = list_text(seen) or "no other interface counted them"
    if arrived:
        last = f"{rx} received frames, but not to {destination} as they were sent"
    stop, _, server = next((p for p in received if p not in arrived), "").partition(" on ")
    inside = f"ip netns exec {stop.partition('@')[2]} " if "@" in stop else ""
    return PlanewiseError(
        f"nothing arrived at {rx}: all of {count_text(sent, 'frame')} that {tx} sent to "
        f"{destination} were lost (beyond {tx}: {last})",
        remedy=(
            f"see{server and f' on {server}'} why {stop} goes no further: "
            f"`{inside}ip route get {destination}`, "
            f"`{inside}sysctl net.ipv4.ip_forward net.ipv4.conf.all.rp_filter`, "
            f"`{inside}nft list ruleset`"
            if stop and not arrived
            else f"check --dst, --dst-mac and --size, and watch {rx} with `tcpdump -eni`"
        ),
    )
