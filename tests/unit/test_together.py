"""Several calls at a time: results, the first error, and an end before the calls' own."""

import threading

import pytest

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.signals import together


def test_results_come_in_the_order_of_the_calls() -> None:
    first_may_end = threading.Event()

    def first() -> int:
        assert first_may_end.wait(10)
        return 1

    def second() -> int:
        first_may_end.set()
        return 2

    assert together([first, second]) == [1, 2]
    assert together([lambda: 3]) == [3]
    assert together([]) == []


def test_the_first_error_is_raised_once_all_have_ended() -> None:
    failed, ended = threading.Event(), threading.Event()

    def fails() -> None:
        failed.set()
        raise PlanewiseError("the guest died")

    def lasts() -> None:
        assert failed.wait(10)
        ended.set()

    with pytest.raises(PlanewiseError, match="the guest died"):
        together([fails, lasts])
    assert ended.is_set()


def test_who_stops_waits_for_no_call_that_hangs_and_begins_no_other() -> None:
    hangs, both, begun = threading.Event(), threading.Barrier(2), list[str]()

    def interrupted() -> None:
        both.wait(10)
        raise KeyboardInterrupt  # stands for the signal, which reaches the thread that waits

    def hung() -> None:
        both.wait(10)
        assert hangs.wait(10), "nobody made it fail"
        begun.append("hung")
        raise PlanewiseError("the guest is gone")

    def late() -> None:
        begun.append("late")

    with pytest.raises(KeyboardInterrupt):
        together([interrupted, hung, *20 * [late]], workers=2, abort=hangs.set)
    assert "hung" in begun
