"""Account of every frame that a chain was sent, by counters along its path. Pure but for a wait.

The counters are read before the first frame is sent and once no frame is in flight, counted at one
place and not yet at the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from planewise.store.models import FrameAccount
from planewise.testbed.chains.model import Chain

_POLL_S = 0.05
_SENT = "sent"

FramePath = Mapping[str, int]
"""Frames that have passed each place on the way from the generator back to it, in that order; first
those that the generator sent."""


def frame_path(
    chain: Chain,
    sent: int,
    received: int,
    functions: Mapping[str, tuple[int, int]],
    switch: tuple[int, int] | None = None,
) -> FramePath:
    """A chain's counters in the order in which frames pass them. Pure.

    Args:
        chain: whose counters.
        sent: frames that the generator sent.
        received: frames that came back to it.
        functions: by name, frames that reached the function and that left it.
        switch: frames that entered and left the switch by its uplink, where it has one.
    """
    counts: list[tuple[str, int]] = []
    if chain.through:
        for name in chain.names:
            reached, left = functions[name]
            counts += [(f"to {name}", reached), (f"in {name}", left)]
        back = f"from {chain.names[-1]}"
    else:
        several = chain.vnfs > 1
        first_place = "to the functions" if several else "to vnf1"
        back = "from the functions" if several else "from vnf1"
        counts.append((first_place, sum(reached for reached, _ in functions.values())))
        left = counts[-1][1]
        for name in chain.names:
            left += functions[name][1] - functions[name][0]
            counts.append((f"in {name}", left))
    if switch is None:
        counts.append((back, received))
    else:
        counts = [
            ("into the switch", switch[0]),
            *counts,
            (back, switch[1]),
            ("out of the switch", received),
        ]
    return {_SENT: sent, **dict(counts)}


def account(before: FramePath, after: FramePath, foreign: int | None = None) -> FrameAccount:
    """The account of the frames sent between two readings, both at rest. Pure.

    Interfaces also count foreign frames, which the generator did not send, such as multicast.
    `foreign` are those that reached its end, by their content; None: unknown. On the way their
    number is unknown: no place has more of the generator's frames than the previous one, and none
    has fewer than came back.
    """
    passed = {place: frames - before[place] for place, frames in after.items()}
    sent = passed.pop(_SENT)
    *_, (end, arrived) = passed.items()
    passed[end] = received = max(0, min(arrived - (foreign or 0), sent))
    lost: dict[str, int] = {}
    remaining = sent
    for place, frames in passed.items():
        frames_left = max(frames, received)
        if frames_left < remaining:
            lost[place] = remaining - frames_left
            remaining = frames_left
    return FrameAccount(sent=sent, received=received, lost=lost, foreign=arrived - received)


def at_rest(read: Callable[[], FramePath], limit_s: float) -> FramePath:
    """The counters once none of them changes any more, or after `limit_s`."""
    deadline = time.monotonic() + limit_s
    earlier = read()
    while True:
        time.sleep(_POLL_S)
        path = read()
        if path == earlier or time.monotonic() > deadline:
            return path
        earlier = path
