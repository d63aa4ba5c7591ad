"""`planewise report`: what it writes, and one clear sentence for everything that goes wrong."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from planewise.errors import BadInputError, PlanewiseError
from planewise.judge.curve import Curve, Run
from planewise.judge.verdict import judge
from planewise.report import figure, html, vega
from planewise.report.sections.load import curve_figure
from planewise.store.rundir import RunReader
from tests import command
from tests.command import invoked
from tests.drawing import svg_of
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp
from tests.unit.vega_schema import fits_schema

SMALL = MadeUp(
    planes=("veth", "bridge"), load_types=("none",), blocks=2, load_blocks=3, packets=60, hidden=()
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A small run directory."""
    return made_up_run.write(tmp_path / "run", SMALL)


def planewise(*arguments: str) -> tuple[int, str, str]:
    """The command line as a user calls it: exit code, stdout, stderr."""
    done = command.planewise(*arguments)
    return done.returncode, done.stdout, done.stderr


def test_the_page_is_written_into_the_run_directory_by_default(run: Path) -> None:
    result = invoked("--quiet", "report", run)
    assert result.exit_code == 0
    assert result.stdout == f"{run}/report.html\n"
    assert (run / "report.html").read_text().startswith("<!doctype html>")


def test_page_and_figures_are_written_where_the_user_says(run: Path, tmp_path: Path) -> None:
    page, drawn = tmp_path / "new" / "page.html", tmp_path / "figures"
    arguments = ["--quiet", "report", str(run), "-o", str(page), "--figures", str(drawn)]
    result = invoked(*arguments)
    assert result.exit_code == 0
    assert page.exists()
    assert not (run / "report.html").exists()
    assert sorted(result.stdout.split()) == sorted(map(str, [page, *drawn.iterdir()]))
    names = {file.stem for file in drawn.iterdir()}
    assert {"rtt", "parts", "cpu", "schedule", "loss-no-load"} <= names
    for name in names:
        assert (drawn / f"{name}.svg").read_text().startswith("<svg")
        assert (drawn / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert (drawn / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_no_run_directory_is_named_with_a_way_out(tmp_path: Path) -> None:
    code, out, err = planewise("report", str(tmp_path))
    assert code == 2
    assert out == ""
    assert err.startswith(f"error: {tmp_path}: not a run directory")
    assert "hint: " in err
    assert "Traceback" not in err


def test_a_damaged_trial_line_is_named_by_file_and_number(run: Path) -> None:
    with (run / "trials.jsonl").open("a") as trials:
        trials.write('{"trial": 7}\n')
    with pytest.raises(BadInputError, match=r"trials\.jsonl:\d+: not a trial record"):
        html.render(RunReader(run))


def test_an_unknown_format_is_refused_before_anything_is_written(run: Path, tmp_path: Path) -> None:
    code, out, err = planewise(
        "report", str(run), "--figures", str(tmp_path / "figures"), "--format", "svg,gif"
    )
    assert code == 2
    assert out == ""
    assert "error: --format: 'gif' is not a figure format" in err
    assert not (run / "report.html").exists()


def test_a_page_that_cannot_be_written_is_an_error_with_the_path(run: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(PlanewiseError, match=r"cannot write .*file/report\.html") as caught:
        html.write(RunReader(run), tmp_path / "file" / "report.html")
    assert "-o" in caught.value.remedy


def test_a_full_disk_is_named_and_the_old_page_stays_whole(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = run / "report.html"
    page.write_text("the old page")

    def full(self: Path, data: bytes) -> int:
        with self.open("wb") as handle:
            handle.write(data[:10])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(PlanewiseError, match=r"no space left to write .*report\.html"):
        html.write(RunReader(run), page)
    assert page.read_text() == "the old page"
    assert [file.name for file in run.iterdir() if file.name.endswith(".new")] == []


def curve() -> Curve:
    """A curve of four loads that saturates."""
    runs = {
        load * 1e5: [Run(100_000, min(100_000, round(100_000 * 5 / load)) - k) for k in range(4)]
        for load in (3, 4, 6, 8)
    }
    return Curve.from_runs("router", runs)


def test_a_judged_curve_fits_vega_lites_schema_and_can_be_saved(
    tmp_path: Path,
) -> None:
    verdict = judge(curve())
    chart = curve_figure(curve(), verdict, title="router", name="router").whole()
    assert fits_schema(chart)
    files = figure.save(chart, tmp_path / "a.b", ("svg", "html"))
    assert [file.name for file in files] == ["a.b.svg", "a.b.html"]
    drawn = files[0].read_text()
    assert f"router: {verdict.verdict}" in drawn
    assert "0.5 % lost" in drawn
    assert "PDR" in drawn


def test_an_interactive_figure_holds_its_scripts(tmp_path: Path) -> None:
    drawn = curve_figure(curve(), judge(curve()), title="router", name="router")
    (file,) = figure.save(drawn.whole(), tmp_path / "x", ("html",))
    text = file.read_text()
    assert "<script src" not in text
    assert "<link" not in text


def test_every_figure_of_a_report_fits_vega_lites_schema(run: Path) -> None:
    drawn = html.all_figures(RunReader(run))
    assert len(drawn) >= 15
    assert all(fits_schema(one.whole()) for one in drawn)


@pytest.mark.parametrize("runs", [1, 2])
def test_curves_with_few_runs_or_a_single_load_can_be_drawn(runs: int) -> None:
    one = Curve.from_runs("one load", {1e5: [Run(1000, 990)] * runs})
    none = Curve.from_runs("no loss", {load: [Run(1000, 1000)] * runs for load in (1e3, 1e4, 1e6)})
    all_lost = Curve.from_runs("all lost", {load: [Run(1000, 0)] * runs for load in (1e3, 1e4)})
    for drawn in (one, none, all_lost):
        for panel in curve_figure(drawn, judge(drawn), title="x", name="x").panels:
            assert svg_of(vega.alone(panel)).count("<path") > 3


def test_both_panels_of_a_load_loss_curve_name_their_loads() -> None:
    drawn = curve_figure(curve(), judge(curve()), title="router", name="router")
    assert svg_of(drawn.whole()).count(">offered load<") == 2
