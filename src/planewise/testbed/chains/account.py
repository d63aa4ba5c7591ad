"""Where every frame went that a chain was sent: counters along its way. Pure but for a wait.

The counters are read before the first frame is sent and once all frames are at rest, so that none
is on its way and none is counted at one place and not yet at the next.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planewise.store.models import FrameAccount
from planewise.testbed.chains.model import Chain

_POLL_S = 0.05


@dataclass(frozen=True)
class Stretch:
    """A part of the frames' way, with the counters at both of its ends."""

    place: str
    entered: int
    left: int


Way = tuple[Stretch, ...]
"""From the generator and back to it; a stretch begins where the one before ends."""


def way(
    chain: Chain,
    sent: int,
    received: int,
    functions: Mapping[str, tuple[int, int]],
    switch: tuple[int, int] | None = None,
) -> Way:
    """A chain's counters in the order in which frames pass them. Pure.

    Args:
        chain: whose they are.
        sent: frames that the generator sent.
        received: frames that came back to it.
        functions: by name, frames that reached the function and that left it.
        switch: frames that entered and left the switch by its uplink, where it has one.
    """
    counts: list[tuple[str, int]] = []
    if chain.pattern == "east-west":
        for name in chain.names:
            reached, left = functions[name]
            counts += [(f"to {name}", reached), (f"in {name}", left)]
        back = f"from {chain.names[-1]}"
    else:
        several = chain.vnfs > 1
        there = "to the functions" if several else "to vnf1"
        back = "from the functions" if several else "from vnf1"
        counts.append((there, sum(reached for reached, _ in functions.values())))
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
    stretches = []
    for place, passed in counts:
        stretches.append(Stretch(place, sent, passed))
        sent = passed
    return tuple(stretches)


def account(before: Sequence[Stretch], after: Sequence[Stretch]) -> FrameAccount:
    """What became of the frames that were sent between two looks, both at rest. Pure.

    A NIC also gets frames that the generator did not send, as its neighbours' multicast: what
    leaves a stretch beyond what entered it ends at the next that loses frames.
    """
    lost: dict[str, int] = {}
    strangers = 0
    for first, last in zip(before, after, strict=True):
        missing = (last.entered - first.entered) - (last.left - first.left) - strangers
        strangers = max(0, -missing)
        lost[last.place] = max(0, missing)
    if strangers:  # they came out at the end, and all stretches but the last passed them on
        lost[after[-1].place] -= strangers
    return FrameAccount(
        sent=after[0].entered - before[0].entered,
        received=after[-1].left - before[-1].left,
        lost={place: frames for place, frames in lost.items() if frames},
    )


def at_rest(look: Callable[[], Way], limit_s: float) -> Way:
    """The counters once none of them moves any more, or after `limit_s`."""
    deadline = time.monotonic() + limit_s
    before = look()
    while True:
        time.sleep(_POLL_S)
        now = look()
        if now == before or time.monotonic() > deadline:
            return now
        before = now
