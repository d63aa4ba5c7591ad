"""`planewise alloc simulate` hands over to `planewised` and turns its errors into ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planewise.commands.alloc import POLICIES, show
from planewise.errors import BadInputError
from tests.command import invoked


def test_a_simulation_is_printed_as_json() -> None:
    arguments = ["alloc", "simulate", "flapping", "--duration", "120", "--unbounded", "--json"]
    done = invoked(*arguments, raising=True)
    assert done.exit_code == 0
    outcomes = {one["player"]: one for one in json.loads(done.stdout)["outcomes"]}
    policies = [name for name in POLICIES if name != "static"]
    assert list(outcomes) == ["paravirtual", "random", *policies]
    assert outcomes["paravirtual"]["moves_per_h"] == 0
    assert outcomes["benefit"]["mean_latency_us"] < outcomes["paravirtual"]["mean_latency_us"]


def test_shards_that_are_merged_are_the_whole(tmp_path: Path) -> None:
    fleet = ["alloc", "simulate", "flapping", "--hosts", "2", "--duration=60", "--seed", "3"]
    files = [tmp_path / f"{number}.json" for number in (1, 2)]
    for number, file in enumerate(files, start=1):
        file.write_text(invoked(*fleet, "--shard", f"{number}/2", raising=True).stdout)
    merged = invoked("alloc", "simulate", "--merge", *files, "--json", raising=True)
    whole = invoked(*fleet, "--json", raising=True)
    assert json.loads(merged.stdout)["outcomes"] == json.loads(whole.stdout)["outcomes"]


def test_a_scenario_that_makes_no_sense_is_refused_with_its_line(tmp_path: Path) -> None:
    scenario = tmp_path / "host.toml"
    scenario.write_text("vfs = 1\nnosuch = 2\n")
    with pytest.raises(BadInputError, match=r"host\.toml:2: unknown field `nosuch`"):
        invoked("alloc", "simulate", "--file", scenario, raising=True)
    with pytest.raises(BadInputError, match="there is no scenario"):
        invoked("alloc", "simulate", "nosuch", raising=True)


def test_words_that_planewised_does_not_take_are_said_as_all_errors_are(tmp_path: Path) -> None:
    trace = ["alloc", "simulate", "--trace", str(tmp_path / "trace.csv")]
    with pytest.raises(BadInputError, match="how many VFs"):
        invoked(*trace, raising=True)
    with pytest.raises(BadInputError) as raised:
        invoked(*trace, "--vfs", "1", "--mix", "64:x", raising=True)
    assert str(raised.value).startswith("invalid value '64:x' for '--mix")


@pytest.mark.parametrize(("moves", "words"), [(1, "decided: 1 move"), (2, "decided: 2 moves")])
def test_watch_counts_moves_in_words(moves: int, words: str) -> None:
    sentence = show.event("event", {"event": "decided", "moves": moves})
    assert sentence is not None
    assert sentence.endswith(words)
