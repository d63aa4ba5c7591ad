"""The report of factorial experiments: what lies where, what the numbers are, what is not there."""

from __future__ import annotations

import multiprocessing
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from planewise.report import facets, html, rtt_cell, vega
from planewise.report.data import RunData
from planewise.report.facets import Item
from planewise.report.figure import Figure, Missing, PrintedNumber, Table, latex, markdown
from planewise.report.rtt_cell import RttCell
from planewise.report.sections import choose, rtt
from planewise.store.cells import Naming
from planewise.store.rundir import RunReader
from tests.drawing import svg_of, texts_of
from tests.unit import made_up_run
from tests.unit.made_up_run import HIDDEN_REASON, MadeUp
from tests.unit.vega_schema import fits_schema

DESIGN = MadeUp(
    planes=("bridge", "macvlan", "vf"),
    load_types=("cpu", "network"),
    locations=("sender", "responder"),
    guests=(0, 8, 32),
    frequencies_pps=(1000.0, 1_000_000.0),
    hosts=("sender", "responder"),
    hidden=("vf",),
    blocks=2,
    packets=300,
    load_blocks=0,
    failed=0,
)
"""Publication K's factors at a small scale: 3 planes x (1 + 2 loads x 2 places x 2 numbers) x 2."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> RunData:
    """A factorial run."""
    return RunData(RunReader(made_up_run.write(tmp_path_factory.mktemp("run") / "run", DESIGN)))


@pytest.fixture(scope="module")
def drawn(data: RunData) -> dict[str, Figure]:
    """All its figures by name."""
    figures = (figure for section in choose(data) for figure in section.figures)
    return {part.name: part for figure in figures for part in figure.parts()}


def items_of(data: RunData) -> list[Item[RttCell]]:
    return [Item(cell.plane, cell.factors, cell) for cell in data.rtt]


def raw(entry: object) -> float:
    assert isinstance(entry, PrintedNumber)
    return entry.raw


def test_guests_lie_along_the_axis_and_other_factors_make_panels(data: RunData) -> None:
    found = facets.split(items_of(data), data.naming)
    assert found.axis == "background guests"
    assert len(found.panels) == 8, "two loads at two places at two frequencies"
    assert {row.band for panel in found.panels for row in panel.rows} == {"0", "8", "32"}


def test_every_cell_has_a_panel_and_the_idle_one_is_beside_every_load(data: RunData) -> None:
    found = facets.split(items_of(data), data.naming)
    assert set(map(id, facets.contents(found.panels))) == set(map(id, data.rtt))
    assert found.shared_idle
    for panel in found.panels:
        assert [row.label for row in panel.rows if row.band == "0"] == [
            "bridge, 0",
            "macvlan, 0",
            "vf, 0",
        ]
        assert len(panel.rows) == 9


def test_a_run_with_one_condition_has_one_panel() -> None:
    cell = {"plane": "veth", "load_type": "none", "background_guests": 0}
    naming = Naming([cell])
    assert len(facets.split([Item("veth", naming.factors(cell), 1)], naming).panels) == 1
    assert facets.split([], naming).panels == ()


@pytest.mark.parametrize("part", ["overhead", "response"])
def test_overhead_and_response_are_those_of_the_packets(
    data: RunData, drawn: dict[str, Figure], part: str
) -> None:
    cell = {
        "plane": "macvlan",
        "load_type": "network",
        "load_location": "sender",
        "background_guests": 32,
        "frequency_pps": 1000.0,
    }
    files = [
        data.run.path / str(trial.packets)
        for trial in data.done
        if cell.items() <= trial.cell.items()
    ]
    assert len(files) == 2

    def times_of(p: pl.DataFrame) -> np.ndarray:
        nic = p["sender_nic_reply_ns"] - p["sender_nic_request_ns"]
        response = p["responder_nic_reply_ns"] - p["responder_nic_request_ns"]
        overhead = (p["user_rx_ns"] - p["user_tx_ns"]) - nic
        return (overhead if part == "overhead" else response).to_numpy()

    replicates = [times_of(pl.read_parquet(file).drop_nulls()) for file in files]
    times = np.concatenate(replicates)
    table = drawn[part].table
    row = next(
        row
        for row in table.rows
        if row[:2] == ("network load at the sender, 32 background guests, at 1 kpps", "macvlan")
    )
    entries = dict(zip(table.columns, row, strict=True))
    for column, quantile in (("5 %", 5), ("25 %", 25), ("75 %", 75), ("95 %", 95)):
        assert raw(entries[column]) == pytest.approx(np.percentile(times, quantile))
    medians = [np.median(replicate) for replicate in replicates]
    assert raw(entries["Median"]) == pytest.approx(np.median(medians))
    assert raw(entries["Packets"]) == len(times)


def test_what_the_host_cannot_see_is_said_in_the_drawing_and_never_drawn_as_zero(
    drawn: dict[str, Figure],
) -> None:
    for name in ("overhead", "response"):
        figure = drawn[name]
        rows = [row for row in figure.table.rows if row[1] == "vf"]
        assert rows
        for row in rows:
            assert Missing(f"not measurable: {HIDDEN_REASON}") in row
            assert not any(isinstance(entry, PrintedNumber) for entry in row)
        assert texts_of(figure.panels[0]).count("not measurable: ") == 3
        assert figure.notes == (f"vf: not measurable: {HIDDEN_REASON}",)


def test_all_trials_lost_packets_are_counted_and_said(data: RunData) -> None:
    section = next(section for section in choose(data) if section.anchor == "lost")
    lost = sum(trial.counts.lost for trial in data.done if trial.counts)
    assert lost > 0
    assert section.intro.startswith(f"{lost} of ")
    column = section.figures[0].table.columns.index("Lost")
    assert sum(raw(row[column]) for row in section.figures[0].table.rows) == lost


def test_a_scatter_says_how_many_of_how_many_packets_it_draws(drawn: dict[str, Figure]) -> None:
    figure = drawn["scatter"]
    said = re.search(r"Shows ([\d\u202f]+) of ([\d\u202f]+) packets", figure.caption)
    assert said is not None
    dots, of = (int(number.replace("\u202f", "")) for number in said.groups())
    assert of == sum(raw(row[-1]) for row in figure.table.rows)
    circles = sum(svg_of(vega.alone(panel)).count('opacity="0.55"') for panel in figure.panels)
    # The idle cells stand beside every load, so there are some more circles than packets.
    assert dots <= circles <= dots * 1.5


def test_cumulative_curves_are_the_packets_quantiles_as_far_as_packets_tell(data: RunData) -> None:
    cell = data.rtt[0]
    assert cell.distribution is not None
    shares = rtt_cell.meaningful(cell.distribution.packets)
    assert 1 / cell.distribution.packets <= shares[0]
    assert shares[-1] <= 1 - 1 / cell.distribution.packets + 1e-9
    assert list(cell.distribution.quantiles_ns) == sorted(cell.distribution.quantiles_ns)
    middle = cell.distribution.quantiles_ns[shares.index(0.5)]
    packets = rtt_cell.read(
        data.run.path, [t for t in data.counted if t.kind == "rtt" and data.key(t)[0] == cell.plane
                        and data.key(t)[1] == cell.factors], "rtt_user"
    )  # fmt: skip
    assert isinstance(packets, dict)
    assert middle == pytest.approx(np.nanmedian(packets["rtt"]))


def test_packets_read_together_are_those_read_one_by_one(data: RunData) -> None:
    trials = [trial for trial in data.done if trial.cell["plane"] == "bridge"][:3]
    together = rtt_cell.read(data.run.path, trials, "rtt_user")
    assert isinstance(together, dict)
    alone = [rtt_cell.read(data.run.path, [trial], "rtt_user") for trial in trials]
    for name in ("rtt", "kernel", "sender_nic", "responder_nic"):
        each = [one[name] for one in alone if isinstance(one, dict)]
        np.testing.assert_array_equal(together[name], np.concatenate(each))


def test_every_saved_figure_says_that_its_host_is_virtual(data: RunData) -> None:
    saved = html.all_figures(data.run)
    assert len(saved) >= 10
    for figure in saved:
        assert "Virtualised times: measured in a virtual machine (kvm)." in figure.lead
        assert figure.table.rows or "(1 of" not in figure.title
    kendall = next(figure for figure in saved if figure.name == "kendall-1")
    assert "Virtualised" in svg_of(kendall.whole())


def test_every_figure_of_an_experiment_fits_vega_lites_schema(drawn: dict[str, Figure]) -> None:
    for name in ("rtt", "overhead", "lost", "cpu-1", "tail", "scatter", "kendall-1"):
        assert fits_schema(drawn[name].whole())


def test_no_panel_is_drawn_wider_than_it_may_be(drawn: dict[str, Figure]) -> None:
    for name in ("rtt", "overhead", "cpu-1", "tail", "kendall-1", "compared-rtt"):
        for panel in drawn[name].panels:
            found = re.search(r'<svg [^>]*?width="([\d.]+)"', svg_of(vega.alone(panel)))
            assert found is not None
            assert float(found[1]) <= vega.WIDTH * 1.05, name


def test_many_levels_are_rows_that_can_be_read(tmp_path: Path) -> None:
    wanted = MadeUp(
        planes=("veth", "bridge"),
        load_types=("cpu",),
        guests=tuple(range(1, 41)),
        blocks=1,
        packets=20,
        load_blocks=0,
        failed=0,
        hidden=(),
    )
    data = RunData(RunReader(made_up_run.write(tmp_path / "run", wanted)))
    figure = next(section for section in choose(data) if section.anchor == "rtt").figures[0]
    assert len(figure.table.rows) == 80
    (panel,) = figure.panels
    assert panel["height"] >= 80 * 20
    assert "veth, 40" in texts_of(panel)


def test_planes_of_the_background_make_series_of_their_own() -> None:
    cells = [
        {"plane": plane, "background_plane": other, "background_guests": 8, "load_type": "cpu"}
        for plane, other in (("bridge", "same"), ("bridge", "vf"), ("vf", "same"))
    ]
    idle = {"plane": "bridge", "background_plane": "same", "background_guests": 0}
    naming = Naming([*cells, idle])
    names = [naming.series(cell) for cell in cells]
    assert names == ["all on bridge", "bridge, others on vf", "all on vf"]
    assert naming.series(idle) == "bridge"
    assert set(naming.like("bridge")) == {"all on bridge", "bridge, others on vf"}
    assert {naming.plane(name) for name in names[:2]} == {"bridge"}
    assert Naming(cells[:1]).series(cells[0]) == "bridge"


def test_series_of_background_planes_are_drawn_and_compared(tmp_path: Path) -> None:
    wanted = MadeUp(
        planes=("bridge", "vf"),
        background_planes=("bridge", "vf"),
        load_types=("cpu",),
        guests=(0, 8, 32, 64),
        blocks=3,
        packets=60,
        load_blocks=0,
        failed=0,
        hidden=(),
    )
    data = RunData(RunReader(made_up_run.write(tmp_path / "run", wanted)))
    series = {"all on bridge", "bridge, others on vf", "all on vf", "vf, others on bridge"}
    assert set(data.planes) == series
    figures = {figure.name: figure for section in choose(data) for figure in section.figures}
    named = [row.series for row in rtt.by_condition(data).panels[0].rows]
    assert set(named) == series
    pairs = {str(row[2]) for row in figures["compared-rtt"].table.rows}
    assert len(pairs) == 6


def test_tables_are_written_as_markdown_and_latex(data: RunData, tmp_path: Path) -> None:
    files = html.write_tables(data.run, tmp_path / "tables")
    assert sorted(file.name for file in files) == [
        "comparisons.md",
        "comparisons.tex",
        "correlations.md",
        "correlations.tex",
        "values.md",
        "values.tex",
    ]
    lines = (tmp_path / "tables" / "comparisons.md").read_text().splitlines()
    assert "virtualised" in lines[0]
    assert len({line.count("|") for line in lines[2:]}) == 1
    assert any("not measurable" in line for line in lines)
    latex = (tmp_path / "tables" / "comparisons.tex").read_text()
    assert latex.count(r"\begin{longtable}") == latex.count(r"\end{longtable}") == 1
    rows = [line for line in latex.splitlines() if line.endswith(r"\\") and "&" in line]
    assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    assert not re.search(r"(?<!\\)%", latex.split("\n", 1)[1])


def test_a_run_of_one_plane_has_no_comparisons(tmp_path: Path) -> None:
    wanted = MadeUp(planes=("veth",), blocks=2, packets=50, load_blocks=0, failed=0)
    run = RunReader(made_up_run.write(tmp_path / "run", wanted))
    assert html.write_tables(run, tmp_path / "tables") == []
    assert not (tmp_path / "tables").exists()
    assert '<h2 id="compared">' not in html.render(run)


def test_signs_of_markdown_and_latex_in_names_are_text() -> None:
    table = Table(
        ("a|b", "n"), (("x_1 & 50 % #", PrintedNumber("1 µs", 1000.0)), ("…", Missing("why")))
    )
    assert markdown(table, "c*").splitlines()[2] == "| a\\|b | n |"
    text = latex(table, "100 %", "t")
    assert r"x\_1 \& 50 \% \#" in text
    assert r"\caption{100 \%}" in text


def test_a_pool_draws_what_is_drawn_here(data: RunData) -> None:
    figures = [section.figures[0] for section in choose(data) if section.anchor in ("rtt", "tail")]
    here = [list(panels) for _, panels in html.drawn(figures)]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        assert [list(panels) for _, panels in html.drawn(figures, pool.map)] == here
    ids = re.findall(r' id="([^"]*)"', "".join(here[1]))
    assert ids
    assert len(set(ids)) == len(ids)
    assert all(name.startswith("tail-") for name in ids)


def test_the_sentence_of_a_figure_holds_for_its_cells(data: RunData) -> None:
    contexts: dict[object, list[RttCell]] = {}
    for cell in data.rtt:
        contexts.setdefault(cell.factors, []).append(cell)
    wins = [min(own, key=lambda cell: cell.rtt.median_ns).plane for own in contexts.values()]
    best = max(set(wins), key=wins.count)
    lead = next(section for section in choose(data) if section.anchor == "rtt").figures[0].lead
    times = wins.count(best)
    often = f"all {times}" if times == len(wins) else f"{times} of {len(wins)}"
    assert f"{best} has the lowest median round-trip time in {often} conditions" in lead
