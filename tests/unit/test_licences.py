"""Licences and bills of materials of what is released."""

from __future__ import annotations

import sys

import pytest

from tests.documents import ROOT


@pytest.fixture
def packaging(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the programs of packaging/ importable, which are no part of the package."""
    monkeypatch.setattr(sys, "path", [str(ROOT / "packaging"), *sys.path])


@pytest.mark.usefixtures("packaging")
def test_everything_that_is_linked_has_a_licence_and_a_text_of_it() -> None:
    from licences import linked, written

    parts = linked()
    assert {"rustls", "tokio", "GNU C Library"} <= {part.name for part in parts}
    text = written(parts)
    assert all(f"{part.name} {part.version}: {part.licence}\n" in text for part in parts)
    # Once in the list, once above a text.
    assert all(text.count(f"{part.name} {part.version}") > 1 for part in parts)


@pytest.mark.usefixtures("packaging")
def test_a_python_package_is_listed_by_a_licence_and_not_by_whose_it_is() -> None:
    from materials import wheels

    licences = {part.name: part.licence for part in wheels()}
    assert licences["polars"] == "MIT License"
    assert not [one for one in licences.values() if not one or one.startswith("Copyright")]
