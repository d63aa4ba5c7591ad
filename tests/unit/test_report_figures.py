"""Figures whose values lie orders of magnitude apart, and words that a reader can read."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from planewise.advise.model.capacity import ChainWorkload
from planewise.report import html, theme, vega
from planewise.report.data import RunData
from planewise.report.sections import chains, rtt
from planewise.report.vega import Span
from planewise.store.rundir import RunReader
from planewise.testbed.planes import plane_names
from tests.drawing import texts_of
from tests.unit import made_up_chains, made_up_run
from tests.unit.made_up_run import MadeUp
from tests.unit.vega_schema import fits_schema


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
    figure = next(chains.chain_figures(chains.chain_cells(RunData(run))))
    assert "The axis is logarithmic" in figure.caption
    assert fits_schema(figure.whole())
    assert Span.of(rates.values(), log_from=12).place(140e3) > 0.02


def test_bars_of_one_magnitude_share_an_axis_and_longer_ones_get_their_own(
    tmp_path: Path,
) -> None:
    wanted = MadeUp(load_types=("none",), load_blocks=0, failed=0, hidden=())
    data = RunData(RunReader(made_up_run.write(tmp_path / "run", wanted)))
    near = rtt._parts_figure(data, rtt.by_condition(data))
    assert len(near.panels) == 1
    for name in data.rtt[0].parts_ns:
        data.rtt[0].parts_ns[name] *= 100  # type: ignore[index]
    far = rtt._parts_figure(data, rtt.by_condition(data))
    assert len(far.panels) == 2
    assert "(its own axis)" in texts_of(far.panels[1])
    assert fits_schema(far.whole())


def test_names_at_the_ends_of_lines_do_not_touch_and_stay_in_the_plot() -> None:
    colours = theme.colours_of(["veth", "bridge", "macvlan"])
    ends = [("veth", 149.0), ("bridge", 149.0), ("macvlan", 2.0)]
    labels = vega.end_labels(ends, colours, x=0, height=150)
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


def test_what_all_trials_share_says_whom_the_answer_is_for(emulated: str) -> None:
    assert "Holds for: " in emulated


def test_every_plane_has_a_colour_of_its_own_on_light_and_dark_pages() -> None:
    assert set(plane_names()) <= set(theme.PLANES)
    for shade in (0, 1):
        planes = [colour[shade] for colour in theme.PLANES.values()]
        assert len(set(planes)) == len(planes)
