"""A path on which nothing arrives: the sentence, from counters before and after."""

from __future__ import annotations

import pytest

from planewise.measure.trials.silence import Counters, nothing_arrived
from planewise.testbed.model import TrialPath

PATH = TrialPath("a", "tx0", "b", "rx0", "", "", "198.18.2.1", "", "")
BEFORE: Counters = {
    "tx0@a": (0, 0),
    "r0@r": (5, 5),
    "r1@r": (0, 0),
    "rx0@b": (0, 0),
    "busy": (0, 0),
    "r0@r on lab:b": (0, 0),
}


@pytest.mark.parametrize(
    ("after", "words", "remedy"),
    [
        ({"r0@r": (515, 5)}, "beyond tx0@a: received by r0@r)", "ip netns exec r sysctl"),
        (
            {"r0@r": (515, 5), "r1@r": (0, 510)},
            "received by r0@r and sent on by r1@r)",
            "ip netns exec r ip route get 198.18.2.1",
        ),
        (
            {"r0@r": (517, 5), "busy": (90_000, 0)},
            "received by r0@r and received by busy)",
            "see why r0@r goes no further",
        ),
        ({}, "no other interface counted them", "--dst-mac"),
        (
            {"r0@r on lab:b": (510, 0)},
            "received by r0@r on lab:b)",
            "see on lab:b why r0@r goes no further: `ip netns exec r ip route get 198.18.2.1`",
        ),
        ({"rx0@b": (510, 0)}, "rx0@b received frames, but not to 198.18.2.1", "--dst-mac"),
    ],
)
def test_the_interfaces_that_counted_the_frames_are_named(
    after: Counters, words: str, remedy: str
) -> None:
    error = nothing_arrived(PATH, "198.18.2.1", 510, BEFORE, BEFORE | after)

    assert "nothing arrived at rx0@b: all of 510 frames that tx0@a sent" in error.what
    assert words in error.what
    assert remedy in error.remedy
