"""Figures whose values lie orders of magnitude apart, and words that a reader can read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from planewise.advise.model import ChainWorkload
from planewise.report import html, theme
from planewise.report.data import RunData
from planewise.report.figures import base, chains, stacked, vega
from planewise.report.figures.stacked import Bar, Layout
from planewise.report.figures.vega import Span
from planewise.store.rundir import RunReader
from planewise.testbed.planes import plane_names
from tests.unit import made_up_chains, made_up_run
from tests.unit.made_up_run import MadeUp
from tests.unit.vega_schema import fits_schema

LAYOUT = Layout({"sender": "#000000"}, quantity="duration", axis="time")


def bar(plane: str, ns: float) -> Bar:
    return Bar(plane, "no load", {"sender": ns}, f"{ns:g} ns", {"sender": plane})


def test_a_plane_that_carries_a_twentieth_of_another_is_not_drawn_on_the_zero_line(
    tmp_path: Path,
) -> None:
    rates = {"vhost-user": 3.35e6, "bridge": 140e3}
    run = made_up_chains.write(
        tmp_path / "run",
        [
            made_up_chains.trial(plane, ChainWorkload("north-south", vnfs, 64), pps)
            for plane, pps in rates.items()
            for vnfs in (1, 2)
        ],
    )
    figure = chains.figures(RunData(run).chains, list(rates))[0]
    assert "The axis is logarithmic" in figure.caption
    assert fits_schema(figure.draw(base.NARROW))
    span = Span.of(rates.values(), log_from=12)
    assert vega.height_of(140e3, span, 150) < 150 - 4


def test_bars_of_one_magnitude_share_an_axis_and_longer_ones_get_their_own() -> None:
    near = [bar("veth", 10_000), bar("bridge", 60_000)]
    assert len(stacked.scales(near, LAYOUT)) == 1
    far = [*near, bar("virtio-bridge", 500_000), bar("macvtap-bridge", 900_000)]
    assert [end for end, _ in stacked.scales(far, LAYOUT)] == [60_000, 900_000]
    drawn = stacked.draw(far, LAYOUT, base.WIDE)
    assert fits_schema(drawn)
    assert len(drawn["vconcat"]) == 3  # the key, and a panel for each axis


def test_names_at_the_ends_of_lines_do_not_touch_and_stay_in_the_plot() -> None:
    colours = theme.colours_of(["veth", "bridge", "macvlan"])
    ends = [("veth", 149.0), ("bridge", 149.0), ("macvlan", 2.0)]
    labels = vega.end_labels(ends, colours, x=0, height=150, room=100)
    heights = sorted(row["y"] for row in labels["data"]["values"])
    assert heights[0] >= 0
    assert heights[-1] <= 150
    assert min(b - a for a, b in pairwise(heights)) >= 14


@pytest.fixture(scope="module")
def emulated(tmp_path_factory: pytest.TempPathFactory) -> str:
    wanted = MadeUp(
        planes=("veth", "bridge"),
        load_types=("none",),
        blocks=2,
        packets=50,
        load_blocks=0,
        emulated="the guests' CPUs are emulated (`-accel tcg`)",
    )
    path = tmp_path_factory.mktemp("report") / "run"
    made_up_run.write(path, wanted)
    return html.render(RunReader(path))


def test_nothing_on_the_page_stands_between_raw_back_quotes(emulated: str) -> None:
    assert "<code>-accel tcg</code>" in emulated
    assert "`" not in emulated


def test_what_all_trials_share_is_a_sentence(emulated: str) -> None:
    assert ". The same in all of them: " in emulated


def test_every_plane_has_a_colour_of_its_own_on_light_and_dark_pages() -> None:
    assert set(plane_names()) <= set(theme.PLANES)
    for shade in ("light", "dark"):
        colours = [getattr(colour, shade) for colour in theme.every_colour()]
        planes = [getattr(colour, shade) for colour in theme.PLANES.values()]
        assert len(set(planes)) == len(planes)
        assert [plane for plane in planes if colours.count(plane) > 1] == []
