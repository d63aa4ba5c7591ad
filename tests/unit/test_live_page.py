"""The daemon's live page in a real browser, with made-up guests. Skips without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit import live_page
from tests.unit.live_page import look, made_up


def a_minute() -> Iterator[tuple[str, Any]]:
    for second in range(60):
        yield "status", made_up(seconds=second)
    yield "event", {"event": "link", "pf": "enp1s0f1", "up": False}
    yield "missed", {"missed": 7}


@pytest.mark.parametrize("width", [360, 1200])
def test_the_page_fits_its_window_and_says_everything(tmp_path: Path, width: int) -> None:
    seen = look(
        tmp_path,
        told=a_minute,
        width=width,
        ready="text('#events li').join().includes('lost its link')"
        " && text('#notices').join().includes('7 events')",
        asked="({rows: text('#guests tbody tr'), pools: text('#pools tbody tr'),"
        " moves: all('#moves tbody tr').length, steps: all('#moves .steps i').length,"
        " errors: text('#errors li'), tiles: text('#tiles div'),"
        " sparks: all('#guests .spark path').map(one => one.getAttribute('d').length)})",
    )
    assert seen.console == []
    assert seen.found["content"] <= seen.found["width"]
    assert seen.found["wide"] == []
    assert seen.found["smallest"] >= 12
    assert seen.found["outside"] == []
    asked = seen.found["asked"]
    rows = "\n".join(asked["rows"])
    assert len(asked["rows"]) == 40
    assert "<b onclick=alert(1)>" in asked["rows"][0], "a name is text, whatever it holds"
    for said in ("nobody counts", "marked", "pinned", "class 2", "paravirtual path down"):
        assert said in rows
    assert "guest-reported" in rows
    assert "not counted for 1 min 30 s" in rows
    assert "no link" in asked["pools"][1]
    assert "1 quarantined" in asked["pools"][1]
    assert (asked["moves"], asked["steps"]) == (12, 48)
    assert asked["errors"][0].endswith("enp1s0f1 has no linklook at its cable")
    assert asked["tiles"][0] == "guests40 1 marked"
    # Guest 2's rate is unknown: it has no line. All others have a minute of theirs.
    assert sorted(asked["sparks"])[0] == 0
    assert sorted(asked["sparks"])[1] > 400


def test_a_reader_sorts_and_filters_and_a_thousand_guests_are_not_all_drawn(tmp_path: Path) -> None:
    seen = look(
        tmp_path,
        told=lambda: iter([("status", made_up(1000))]),
        ready="all('#guests tbody tr').length > 1",
        asked="""(async () => {
          const first = () => text('#guests tbody tr')[0];
          const head = by => all(`#guests [data-by=${by}]`)[0];
          const sort = by => head(by).querySelector('button').click();
          const found = {all: all('#guests tbody tr').length, shown: text('#shown')[0]};
          sort('pps'); found.busiest = first();
          sort('pps'); found.idlest = first();
          found.said = head('pps').getAttribute('aria-sort');
          const filter = all('#filter')[0];
          filter.value = 'guest-77'; filter.dispatchEvent(new Event('input'));
          found.filtered = text('#guests tbody th').length;
          filter.value = 'nobody'; filter.dispatchEvent(new Event('input'));
          found.none = first();
          return found;
        })()""",
    )
    assert seen.console == []
    asked = seen.found["asked"]
    assert asked["all"] == 250
    assert asked["shown"] == "250 of 1000: type to find others"
    assert "5.00 Mpps" in asked["busiest"]
    assert "unknown" in asked["idlest"]
    assert asked["said"] == "ascending"
    assert asked["filtered"] == 11
    assert asked["none"] == "No guest matches."


def test_the_page_follows_the_reader_into_the_dark(tmp_path: Path) -> None:
    def paper(*flags: str) -> str:
        seen = look(tmp_path, *flags, told=lambda: iter([("status", made_up())]))
        assert seen.console == []
        return str(seen.found["paper"])

    assert paper() == "rgb(255, 255, 254)"
    assert paper("--blink-settings=preferredColorScheme=0") == "rgb(23, 23, 28)"


def test_an_empty_host_is_told_in_words(tmp_path: Path) -> None:
    empty = {**made_up(0), "pools": [], "vfs": [], "moves": [], "errors": [], "draining": True}
    seen = look(
        tmp_path,
        told=lambda: iter([("status", empty)]),
        asked="({notices: text('#notices'), words: text('.empty')})",
    )
    assert seen.console == []
    assert "Draining" in seen.found["asked"]["notices"][0]
    assert "No PF with VFs is managed." in seen.found["asked"]["words"]
    assert "Nothing has been moved yet." in seen.found["asked"]["words"]


def test_the_page_is_where_the_daemon_takes_it_from() -> None:
    assert live_page.PAGE.is_file()
