"""The report in a real browser: on a desk, on a phone of 360 px, in the dark. Skips without one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from planewise.report import html, theme
from planewise.store.rundir import RunReader
from tests import browser
from tests.browser import Seen
from tests.unit import made_up_run
from tests.unit.made_up_run import MadeUp

pytestmark = browser.needs_browser

FRAME = """<!doctype html><title>frame</title><body style="margin:0"><pre id="out"></pre>
<iframe src="{page}" style="border:0;width:{width}px;height:900px"></iframe>
<script>
document.querySelector("iframe").onload = event => {{
  const inner = event.target.contentDocument, win = event.target.contentWindow;
  const root = inner.documentElement;
  const all = (query, from = inner) => [...from.querySelectorAll(query)];
  all("details").forEach(one => one.open = {opened});
  const place = one => one.getBoundingClientRect();
  const shown = all("svg").filter(one => place(one).width);
  const drawn = all(".panels svg").filter(one => place(one).width);
  const sizes = drawn.map(one => 12 * place(one).width / one.viewBox.baseVal.width);
  const beyond = all("*", inner.body).filter(one => !one.closest(".table, svg, .skip")
    && place(one).right > root.clientWidth + 0.5);
  const box = inner.querySelector('svg [fill="{colour}"]');
  document.getElementById("out").textContent = JSON.stringify({{
    width: root.clientWidth,
    content: root.scrollWidth,
    figures: drawn.length,
    titles: drawn.filter(one => one.querySelector("title")).length,
    smallest_text: Math.min(...sizes),
    wide: beyond.map(one => one.outerHTML.slice(0, 80)),
    paper: win.getComputedStyle(inner.body).backgroundColor,
    box: win.getComputedStyle(box).fill,
    requests: win.performance.getEntriesByType("resource").length,
  }});
}};
</script>"""


def look(page: Path, width: int, *flags: str, opened: bool = False) -> Seen:
    """Loads the page in a frame of `width` px; `opened` unfolds everything."""
    frame = page.with_name(f"frame-{width}-{len(flags)}-{opened}.html")
    frame.write_text(
        FRAME.format(
            page=page.as_uri(),
            width=width,
            opened=str(opened).lower(),
            colour=theme.var("veth"),
        )
    )
    return browser.look(frame, page.parent / "profile", *flags, budget_s=10)


LONG_NAMES = MadeUp(
    planes=("veth", "a-plane-with-a-name-that-is-far-too-long-to-be-printed"),
    blocks=2,
    packets=200,
    hosts=("sender", "responder"),
    loaded=("none", "cpu"),
)


def written(folder: Path, wanted: MadeUp) -> Path:
    html.write(RunReader(made_up_run.write(folder / "run", wanted)), folder / "report.html")
    return folder / "report.html"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with long names and every kind of figure."""
    return written(tmp_path_factory.mktemp("report"), LONG_NAMES)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with fewer marks: axe-core looks at each for a while."""
    wanted = replace(
        LONG_NAMES, blocks=1, packets=20, load_types=("none", "cpu"), load_blocks=1,
        ladder=(0.3, 0.9, 1.6),
    )  # fmt: skip
    return written(tmp_path_factory.mktemp("short"), wanted)


@pytest.mark.parametrize("width", [360, 800, 1200])
@pytest.mark.parametrize("opened", [False, True], ids=["folded", "unfolded"])
def test_the_page_fits_its_window_and_its_text_can_be_read(
    page: Path, width: int, opened: bool
) -> None:
    seen = look(page, width, opened=opened)
    assert seen.console == []
    assert seen.found["width"] >= width - 20  # a scroll bar may take its part
    assert seen.found["content"] <= seen.found["width"]
    assert seen.found["wide"] == []
    assert seen.found["smallest_text"] >= 9.5
    assert seen.found["figures"] >= 5
    assert seen.found["requests"] == 0


def test_marks_say_their_numbers_on_hover(page: Path) -> None:
    seen = look(page, 1200)
    assert seen.found["titles"] == seen.found["figures"]


def test_light_and_dark_follow_the_reader_and_the_figures_follow_the_page(page: Path) -> None:
    def rgb(colour: str) -> str:
        return f"rgb({int(colour[1:3], 16)}, {int(colour[3:5], 16)}, {int(colour[5:], 16)})"

    light = look(page, 1200).found
    assert (light["paper"], light["box"]) == ("rgb(255, 255, 255)", rgb(theme.PLANES["veth"][0]))
    dark = look(page, 1200, "--blink-settings=preferredColorScheme=0").found
    assert (dark["paper"], dark["box"]) == ("rgb(23, 23, 28)", rgb(theme.PLANES["veth"][1]))


AXE_FRAME = """<!doctype html><title>frame</title><pre id="out"></pre>
<iframe src="PAGE" style="border:0;width:WIDTHpx;height:900px"></iframe>
<script>
FINDINGS
const page = document.querySelector("iframe");
page.onload = async event => {
  page.contentDocument.querySelectorAll("details").forEach(one => one.open = true);
  document.getElementById("out").textContent = JSON.stringify(await findings(page, COLOURS));
};
</script>"""


@pytest.mark.parametrize("width", [360, 1200])
def test_axe_finds_nothing_serious_in_the_unfolded_page(short: Path, width: int) -> None:
    # The page permits no script, so that of the checker needs a copy without that rule.
    copy = short.with_name("open.html")
    rule = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
    text, found = rule.subn("", short.read_text())
    assert found == 1
    copy.write_text(text)
    frame = short.with_name("axe.html")
    frame.write_text(
        AXE_FRAME.replace("FINDINGS", browser.ACCESSIBILITY)
        .replace("PAGE", copy.as_uri())
        .replace("WIDTH", str(width))
        .replace("COLOURS", str(width == 360).lower())  # they are the same at any width
    )
    assert browser.look(frame, short.parent / "profile").found == []
