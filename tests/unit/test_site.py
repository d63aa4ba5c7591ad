"""The documentation site: built without a warning, whole, and read from a disk, with no network."""

from __future__ import annotations

import html.parser
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from planewise.testbed.vfs.nic import find_planewised
from tests.browser import ACCESSIBILITY, look, needs_browser
from tests.documents import ROOT


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site. mkdocs holds links and anchors of the sources; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mkdocs", "build", "--strict"),
            *("-f", str(ROOT / "packaging" / "site" / "mkdocs.yml"), "-d", str(folder)),
        ],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


@dataclass
class Page(html.parser.HTMLParser):
    """Where a page leads to and what it loads."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = {name: value or "" for name, value in attrs}
        self.ids |= {told[name] for name in ("id", "name") if name in told}
        if tag == "a" and told.get("href"):
            self.links.append(told["href"])
        elif "src" in told:
            self.loads.append(told["src"])
        elif tag == "link" and told.get("rel") != "canonical":
            self.loads.append(told.get("href", ""))


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    read = {}
    for file in sorted(site.rglob("*.html")):
        read[file] = Page()
        read[file].feed(file.read_text())
    return read


def test_every_link_leads_to_a_page_and_an_anchor_that_exist(pages: dict[Path, Page]) -> None:
    broken = []
    followed = 0
    for file, page in pages.items():
        if file.name == "404.html":
            continue  # its links are absolute: it is shown at any address
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link.startswith("//"):
                continue
            target = (file.parent / unquote(parts.path)).resolve() if parts.path else file
            target = target / "index.html" if target.is_dir() else target
            followed += 1
            anchors = pages[target].ids if target in pages else {unquote(parts.fragment)}
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append((str(file.name), link))
    assert broken == []
    assert followed > 1000


def test_nothing_is_loaded_from_elsewhere(site: Path, pages: dict[Path, Page]) -> None:
    for file, page in pages.items():
        if file.name != "404.html":
            for source in page.loads:
                assert not urlsplit(source).scheme or source.startswith("data:"), source
                assert (file.parent / urlsplit(source).path).exists(), (file.name, source)
    for style in site.rglob("*.css"):
        remote = re.findall(r"url\(['\"]?(https?:)?//[^)]*", style.read_text())
        assert remote == [], style.name


def test_the_index_of_the_search_is_part_of_the_site(site: Path) -> None:
    documents = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert any("quarantined" in one["text"] for one in documents)


def test_every_document_and_every_commands_help_is_on_the_site(site: Path) -> None:
    for document in (ROOT / "docs").rglob("*.md"):
        page = site / document.relative_to(ROOT / "docs").with_suffix(".html")
        assert page.is_file(), document.name
        assert page.name in (site / "index.html").read_text() or page.name == "index.html"
    told = (site / "reference" / "planewise.html").read_text()
    for words in ("planewise alloc drain", "--require-good", "--bundle"):
        assert words in told
    said = subprocess.run([find_planewised(), "vf", "--help"], capture_output=True, text=True)
    for name in set(re.findall(r"^  ([a-z]+) ", said.stdout, flags=re.MULTILINE)) - {"help"}:
        assert f"planewised vf {name}" in (site / "reference" / "planewised.html").read_text()


def test_the_api_is_shown_with_all_its_paths(site: Path) -> None:
    described = json.loads((site / "reference" / "openapi.json").read_text())
    shown = re.sub(r"<[^>]+>", "", (site / "reference" / "api.html").read_text())
    assert len(described["paths"]) > 8
    for path in described["paths"]:
        assert path in shown
    # Tabs and folds whose extension is missing stand there as they were written.
    assert re.findall(r"^\s*(=== |\?\?\? |```)", shown, flags=re.MULTILINE) == []


FRAME = """<!doctype html><title>frame</title><body style="margin:0"><pre id="out"></pre>
<script>
FINDINGS
async function look(address, width, fresh) {
  const page = document.createElement("iframe");
  page.style = `border:0;width:${width}px;height:900px`;
  const loaded = new Promise(done => page.onload = done);
  page.src = address;
  document.body.append(page);
  await loaded;
  await new Promise(done => setTimeout(done, 300));
  const inner = page.contentDocument, root = inner.documentElement;
  const scrolled = "pre, .md-typeset__scrollwrap, .md-sidebar, .md-search, .md-skip";
  const wide = [...inner.querySelectorAll(".md-main *")].filter(one =>
    !one.closest(scrolled) && one.getBoundingClientRect().right > root.clientWidth + 1);
  const seen = {
    content: root.scrollWidth, width: root.clientWidth,
    wide: wide.map(one => one.outerHTML.slice(0, 80)),
    loaded: page.contentWindow.performance.getEntriesByType("resource").map(one => one.name)
      .filter(name => !name.startsWith("file:") && !name.startsWith("data:")),
  };
  if (width == 360 && fresh) seen.findings = await findings(page, true);
  page.remove();
  return seen;
}
(async () => {
  const seen = {};
  for (const width of [360, 1100])
    for (const [address, fresh] of PAGES)
      seen[`${address} at ${width} px`] = await look(address, width, fresh);
  document.getElementById("out").textContent = JSON.stringify(seen);
})();
</script>"""


SEARCH = """<!doctype html><title>frame</title><pre id="out"></pre><iframe src="PAGE"></iframe>
<script>
const page = document.querySelector("iframe");
page.onload = async () => {
  const inner = page.contentDocument, query = inner.querySelector(".md-search__input");
  query.focus();
  query.value = "quarantined";
  query.dispatchEvent(new Event("keyup", {bubbles: true}));
  const results = () => [...inner.querySelectorAll(".md-search-result__link")];
  for (let i = 0; i < 100 && !results().length; i++)
    await new Promise(done => setTimeout(done, 100));
  document.getElementById("out").textContent = JSON.stringify(results().map(one => one.href));
};
</script>"""


@needs_browser
def test_the_search_answers_on_pages_read_from_a_disk(site: Path, tmp_path: Path) -> None:
    frame = tmp_path / "frame.html"
    frame.write_text(SEARCH.replace("PAGE", (site / "guide" / "install.html").as_uri()))
    found = look(frame, tmp_path / "profile").found
    assert any("operate.html" in address for address in found), found


@pytest.mark.timeout(700)  # 54 pages twice, with the CPU time that others leave
@needs_browser
def test_every_page_fits_a_phone_and_a_desk_and_axe_finds_nothing_serious(
    site: Path, tmp_path: Path
) -> None:
    addresses, known = [], set[str]()
    for page in sorted(site.rglob("*.html")):
        if page.name != "404.html":
            # mkdocs makes all pages of the same parts: axe looks at those with a new tag or class.
            classes = set(re.findall(r'<\w+(?: class="[^"]*")?', page.read_text()))
            addresses.append((page.as_uri(), bool(classes - known)))
            known |= classes
    frame = tmp_path / "frame.html"
    frame.write_text(
        FRAME.replace("FINDINGS", ACCESSIBILITY).replace("PAGES", json.dumps(addresses))
    )
    seen = look(frame, tmp_path / "profile", budget_s=600).found
    assert len(seen) == 2 * len(addresses)
    assert {page: one["wide"] for page, one in seen.items() if one["wide"]} == {}
    assert [page for page, one in seen.items() if one["content"] > one["width"]] == []
    assert [one["loaded"] for one in seen.values() if one["loaded"]] == []
    assert {page: one["findings"] for page, one in seen.items() if one.get("findings")} == {}
