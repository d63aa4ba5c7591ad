"""Draws the pairs of a fleet as rounds of a tournament. Pure; knows no host."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np

from planewise.errors import BadInputError
from planewise.judge.statistics.nodes import determined
from planewise.units import count_text

_DRAWS = 10
"""Attempts: with few pairs no draw determines all nodes, with two a node nearly every one does."""
MEETINGS = 4
"""Meetings of a node that are needed to estimate it apart from its partners."""


@dataclass(frozen=True)
class Match:
    """One pair of the design."""

    index: int
    """Its place in the design: the index of an Indexed Job's pod."""
    round: int
    """Matches of a round share no node, so they can be measured at the same time."""
    sender: int
    responder: int
    """Numbers of nodes."""


def tournament(nodes: int, pairs: int, seed: int) -> tuple[Match, ...]:
    """`pairs` different pairs of `nodes` nodes, round by round; every node meets equally many, ±1.

    Rounds of the circle method (all of them pair every two nodes once), in an order drawn from
    `seed`, as are the nodes' places: neighbouring rounds would form long chains along which errors
    add up. Rounds are drawn again where they do not determine all nodes. Senders alternate.

    Raises:
        BadInputError: fewer than two nodes, no pairs, or more pairs than there are.
    """
    if nodes < 2:
        raise BadInputError(
            "a pair needs two nodes", where="--nodes", remedy="name two nodes or more"
        )
    most = nodes * (nodes - 1) // 2
    if not 1 <= pairs <= most:
        raise BadInputError(
            f"{nodes} nodes make {count_text(most, 'pair')} at most, not {pairs}",
            where="--pairs",
            remedy=f"--pairs {min(most, -(-nodes * MEETINGS // 2))}, or name more nodes",
        )
    drawn = (_draw(nodes, pairs, random.Random(seed + attempt)) for attempt in range(_DRAWS))
    best: tuple[Match, ...] = ()
    most_determined = -1
    for matches in drawn:
        ends = np.array([(match.sender, match.responder) for match in matches], dtype=np.intp)
        count = int(determined(nodes, ends).sum())
        if count > most_determined:
            best, most_determined = matches, count
        if most_determined == nodes:
            break
    return best


def _draw(nodes: int, pairs: int, draw: random.Random) -> tuple[Match, ...]:
    places = list(range(nodes))
    draw.shuffle(places)
    size = nodes + nodes % 2
    """Even: with an odd number of nodes, the node that meets the empty place pauses."""
    rounds = list(range(size - 1))
    draw.shuffle(rounds)
    sent = [0] * nodes
    matches: list[Match] = []
    for number, turn in enumerate(rounds):
        if len(matches) == pairs:
            break
        met = [(places[a], places[b]) for a, b in _circle(size, turn) if a < nodes and b < nodes]
        draw.shuffle(met)
        for a, b in met[: pairs - len(matches)]:
            sender, responder = (a, b) if (sent[a], draw.random()) <= (sent[b], 0.5) else (b, a)
            sent[sender] += 1
            matches.append(Match(len(matches), number, sender, responder))
    return tuple(matches)


def _circle(size: int, turn: int) -> list[tuple[int, int]]:
    """Round `turn` of the circle method for an even number of places."""
    ring = size - 1
    pairs = [(turn, ring)]
    pairs += [((turn + step) % ring, (turn - step) % ring) for step in range(1, size // 2)]
    return pairs


def meetings_of(nodes: int, matches: tuple[Match, ...]) -> tuple[int, ...]:
    """Number of meetings of each node."""
    met = [0] * nodes
    for match in matches:
        met[match.sender] += 1
        met[match.responder] += 1
    return tuple(met)
