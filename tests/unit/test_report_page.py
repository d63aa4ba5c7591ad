"""The report's page: what stands on it, that it is safe, and that it needs no network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planewise.report import html
from planewise.store.rundir import RunReader
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The report of the default made-up run."""
    run = made_up_run.write(tmp_path_factory.mktemp("run") / "run")
    return html.render(RunReader(run))


def test_the_recommendation_is_the_first_sentence(page: str) -> None:
    body = page[page.index("<header>") :]
    assert body.index("Give each guest a veth") < body.index("<h2")


def test_nothing_is_loaded_from_anywhere(page: str) -> None:
    assert "<script" not in page
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)""", page)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "http://" not in page
    assert "https://" not in page


def test_names_from_the_run_are_text_and_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>"
    wanted = MadeUp(planes=(evil, "veth"), title=evil, hidden=(evil,), blocks=2, packets=50)
    page = html.render(RunReader(made_up_run.write(tmp_path / "run", wanted)))
    assert "<script" not in page
    assert "&lt;script&gt;" in page
