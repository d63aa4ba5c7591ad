"""Account of every frame that a chain was sent, by counters along its path. Pure but for a wait.

The counters are read before the first frame is sent and once no frame is in flight, counted at one
place and not yet at the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planewise.store.models import FrameAccount
from planewise.testbed.chains.model import Chain

_POLL_S = 0.05


@dataclass(frozen=True)
class PathSection:
    """A section of the frames' path, with the counters at both of its ends."""

    place: str
    entered: int
    left: int


FramePath = tuple[PathSection, ...]
"""From the generator back to it; each section starts where the previous one ends."""


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
    sections = []
    for place, passed in counts:
        sections.append(PathSection(place, sent, passed))
        sent = passed
    return tuple(sections)


def account(
    before: Sequence[PathSection], after: Sequence[PathSection], foreign: int | None = None
) -> FrameAccount:
    """The account of the frames sent between two readings, both at rest. Pure.

    Interfaces also count foreign frames, which the generator did not send, such as multicast.
    `foreign` are those that reached its end, by their content; None: unknown. On the way their
    number is unknown: no place has more of the generator's frames than the previous one, and none
    has fewer than came back.
    """
    sent = after[0].entered - before[0].entered
    passed = [last.left - first.left for first, last in zip(before, after, strict=True)]
    arrived = passed[-1]
    passed[-1] = received = max(0, min(arrived - (foreign or 0), sent))
    lost: dict[str, int] = {}
    remaining = sent
    for section, frames in zip(after, passed, strict=True):
        frames_left = max(frames, received)
        if frames_left < remaining:
            lost[section.place] = remaining - frames_left
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
