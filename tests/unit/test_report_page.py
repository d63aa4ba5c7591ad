"""The report's page: what stands on it, that it is safe, and that it needs no network."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.report import html, theme
from planewise.report.data import RunData
from planewise.report.left_out import LIMITS
from planewise.report.sections import compared, schedule
from planewise.store.models import HostState, TrialRecord
from planewise.store.rundir import RUN_FILE, TRIALS_FILE, RunReader
from tests.unit import made_up_run
from tests.unit.made_up_run import HIDDEN_REASON, MadeUp

NBSP = "\u00a0"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunReader:
    """The default made-up run."""
    return RunReader(made_up_run.write(tmp_path_factory.mktemp("run") / "run"))


@pytest.fixture(scope="module")
def page(run: RunReader) -> str:
    """Its report."""
    return html.render(run)


def small(path: Path, **changes: object) -> RunReader:
    """A run that is written and drawn quickly."""
    wanted: dict[str, object] = {
        "planes": ("veth", "bridge"),
        "load_types": ("none",),
        "blocks": 2,
        "load_blocks": 0,
        "packets": 60,
        "hidden": (),
        "failed": 0,
    }
    made = MadeUp(**(wanted | changes))  # type: ignore[arg-type]
    return RunReader(made_up_run.write(path / "run", made))


def test_every_column_has_the_rule_that_shows_its_name_on_a_narrow_page(page: str) -> None:
    named = set(re.findall(r"--c(\d+):&#34;", page))
    ruled = set(re.findall(r"--c:var\(--c(\d+)\)", page))
    assert len(named) > 10
    assert named - ruled == {"1"}  # the first is the row's heading


class Outline(HTMLParser):
    """Collects tags with their attributes and checks that they nest."""

    EMPTY = frozenset({"meta", "br", "link", "input", "img", "hr", "path", "line", "rect"})

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.EMPTY:
            assert self.open.pop() == tag


def outline(page: str) -> Outline:
    parser = Outline()
    parser.feed(page)
    assert parser.open == []
    return parser


def test_the_answer_the_planes_and_three_reservations_come_first(page: str) -> None:
    body = page[page.index("<header>") :]
    # Three blocks, however clear they look, tell nothing apart.
    headline = body.index("are needed to put a confidence on it")
    holds = body.index("Holds for: load at the responder, 8 background guests")
    planes, reservations = body.index('class="planes"'), body.index("Reservations</h2>")
    assert headline < holds < planes < reservations < body.index('id="rtt"')
    shown = body[reservations : body.index("more below</summary>")]
    assert shown[: shown.index("</ul>")].count("<li>") == 3


def test_planes_are_ranked_with_bars_their_intervals_and_verdicts(run: RunReader) -> None:
    titles, rows = html.planes(RunData(run))
    assert titles == (
        "Median round-trip time, less is better",
        "Forwarding rate at the best load, more is better",
    )
    assert rows[0].plane == "veth"
    latencies = [row.bars[0] for row in rows]
    assert all(bar is not None and bar.low <= bar.to <= bar.high for bar in latencies)
    assert max(bar.to for bar in latencies if bar is not None) <= 100
    assert {verdict for row in rows for verdict in row.verdicts} <= {"GOOD", "BAD", "UNDECIDED"}


def test_sections_come_in_the_order_in_which_a_person_asks(page: str) -> None:
    anchors = ["rtt", "compared", "tail", "parts", "lost", "loss", "cpu", "schedule"]
    anchors += ["statistics", "host", "left-out"]
    places = [page.index(f'<h2 id="{anchor}">') for anchor in anchors]
    assert places == sorted(places)


def test_every_tag_is_closed_and_every_id_is_unique(page: str) -> None:
    ids = [attributes["id"] for _, attributes in outline(page).tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_links_lead_to_sections_that_exist(page: str) -> None:
    tags = outline(page).tags
    ids = {attributes.get("id") for _, attributes in tags}
    links = [str(attributes["href"]) for tag, attributes in tags if tag == "a"]
    assert len(links) >= 8
    assert {link.removeprefix("#") for link in links} <= ids


def test_nothing_is_loaded_from_anywhere_and_nothing_runs(page: str) -> None:
    for tag, attributes in outline(page).tags:
        assert tag not in ("script", "link", "iframe", "object", "embed", "img")
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert str(attributes.get("href", "#")).startswith("#")
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)
    assert "http://" not in page
    assert "https://" not in page


def test_names_from_the_run_are_text_and_never_markup(tmp_path: Path) -> None:
    evil = "<script>alert('x')</script>"
    run = small(
        tmp_path, planes=(evil, "veth"), title=evil, hidden=(evil,), load_blocks=3, failed=0
    )
    page = html.render(run)
    assert all(tag != "script" for tag, _ in outline(page).tags)
    assert page.count("&lt;script&gt;") > 10
    assert 'x")</' not in page


def test_sentences_of_the_run_are_escaped_and_commands_in_them_are_code() -> None:
    said = html.sentence("use <b>this</b>: `planewise doctor`, or --minutes 10 & wait")
    assert said == (
        "Use &lt;b&gt;this&lt;/b&gt;: <code>planewise doctor</code>, or <code>--minutes</code> "
        "10 &amp; wait."
    )


def test_a_single_replicate_is_not_said_to_have_no_drift(tmp_path: Path) -> None:
    run = small(tmp_path, blocks=1)
    assert all(visit.relative is None for visit in schedule.visits(RunData(run)))
    assert "No cell has two RTT trials, so drift is unknown." in html.render(run)


def test_every_figure_has_alternative_text_a_caption_and_its_numbers(page: str) -> None:
    figures = re.findall(r"<figure.*?</figure>", page, flags=re.DOTALL)
    assert len(re.findall(r'id="figure-compared-', page)) == 8
    assert len(figures) == 8 + 14
    for figure in figures:
        labels = re.findall(r'role="img" aria-label="([^"]+)"', figure)
        assert labels
        assert all(len(label) > 30 for label in labels)
        assert re.search(r"<figcaption>.{40,}</figcaption>", figure, flags=re.DOTALL)
        table = figure[figure.index("<details>") :]
        assert table.count("<tr>") > 1


def test_figures_use_only_colours_that_the_style_sheet_has(page: str) -> None:
    used = set()
    for drawing in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        used |= set(re.findall(r'(?:fill|stroke)="([^"]+)"', drawing))
    known = {theme.var(name) for name in theme.COLOURS}
    assert len(used & known) > 10
    assert used <= known | {"none", "transparent"}
    for name in theme.COLOURS:
        assert page.count(f"--{name}:#") == 2, "light and dark"


def test_a_saved_figure_has_the_colours_of_a_white_page() -> None:
    assert theme.printed(f'"{theme.var("vf")}"') == '"#3d3a9e"'


def test_a_plane_has_the_same_colour_in_every_run() -> None:
    alone, among = theme.colours_of(["bridge"]), theme.colours_of(["veth", "x", "bridge", "y"])
    assert alone["bridge"] == among["bridge"]
    assert len(set(among.values())) == 4


def test_a_plane_without_a_colour_of_its_own_is_told_from_the_others() -> None:
    def distance(one: str, other: str) -> int:
        pairs = [(int(one[i : i + 2], 16), int(other[i : i + 2], 16)) for i in (1, 3, 5)]
        return sum(abs(a - b) for a, b in pairs)

    named = theme.colours_of(["veth", "bridge", "macvlan", "mine", "yours"]).values()
    colours = [theme.printed(colour) for colour in named]
    for place, one in enumerate(colours):
        assert all(distance(one, other) > 60 for other in colours[:place])


def test_drawings_say_small_shares_in_full(page: str) -> None:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", page)
    assert f"≤ 0.0001{NBSP}%" in texts
    assert f"0.001{NBSP}%" in texts


def test_axes_count_in_units_and_never_in_powers_of_ten(page: str) -> None:
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", page)
    assert any(text == f"50{NBSP}µs" for text in texts)
    assert any(text.endswith("kpps") for text in texts)
    assert not [text for text in texts if re.search(r"\de[-+]?\d|×10", text)]


def test_what_cannot_be_measured_is_said_with_its_reason_and_never_zero(page: str) -> None:
    parts = page[page.index('<figure id="figure-parts"') :]
    parts = parts[: parts.index("</figure>")]
    row = next(
        row for row in re.findall(r"<tr>.*?</tr>", parts, flags=re.DOTALL) if ">macvlan</td>" in row
    )
    assert len(re.findall(rf'class="missing"[^>]*>not measurable: {HIDDEN_REASON}</td>', row)) == 6
    assert "<data" not in row
    assert left_out(page)["Sender overhead, macvlan"] == [
        ("9", "no", f"not measurable: {HIDDEN_REASON}")
    ]


def left_out(page: str) -> dict[str, list[tuple[str, ...]]]:
    """The rows of the table of what was left out: number, whether it counts, why."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for row in re.findall(r"<tr>.*?</tr>", page[page.index('id="left-out"') :], flags=re.DOTALL):
        what, *cells = re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, flags=re.DOTALL)
        texts = (re.sub(r"<[^>]+>", "", cell).replace(NBSP, " ") for cell in cells)
        rows.setdefault(what, []).append(tuple(texts))
    return rows


def test_failed_and_limited_trials_and_warnings_are_named_with_their_reason(page: str) -> None:
    rows = left_out(page)
    said = {(what, *row) for what, of_row in rows.items() for row in of_row}
    assert any(row[-1].startswith("failed: the responder stopped answering") for row in said)
    assert any(
        what.startswith("Load trials") and (counts, why) == ("no", LIMITS["generator"])
        for what, _, counts, why in said
    )
    assert any("steal time was" in row[-1] for row in said)


def test_an_rtt_trial_that_its_generator_limited_counts_if_it_kept_its_rate(
    tmp_path: Path,
) -> None:
    run = small(tmp_path)
    change_trials(run, lambda one: {"limits": ("generator",)})
    page = html.render(run)
    assert left_out(page)["RTT trials, veth"] == [("2", "yes", LIMITS["generator"])]
    assert "All 4 trials count." in page


def test_the_judges_warnings_stand_below_each_curve(run: RunReader, page: str) -> None:
    curves = RunData(run).curves
    assert any(item.verdict.warnings for item in curves)
    for item in curves:
        for caution in item.verdict.warnings:
            assert str(html.sentence(caution.text)) in page.replace(NBSP, " ")


def test_the_machine_its_warnings_and_the_missing_planes_are_shown(page: str) -> None:
    host = page[page.index('<h2 id="host">') : page.index('<h2 id="left-out">')]
    for said in ("AMD EPYC 7B13", "6.1.0-18-amd64", "virtual clock: kvm-clock", "(warning)"):
        assert said in host
    assert "ipvlan</strong>: this kernel has no ipvlan. Use a kernel with" in host


def machine(page: str) -> str:
    found = re.sub(r"\s+", " ", page[page.index('<h2 id="host">') :]).replace(NBSP, " ")
    return found.partition('<h2 id="left-out">')[0]


def test_what_changed_on_the_host_is_told_and_what_it_has_no_counter_for(tmp_path: Path) -> None:
    def state(order: int) -> HostState:
        return HostState(governor="performance" if order < 3 else "powersave", steal=0.0)

    run = small(tmp_path, blocks=4, drift=0.0)
    change_trials(run, lambda one: {"host": {"shared": state(one.order)}})
    told = machine(html.render(run))
    assert "<h3>Changes during the run</h3>" in told
    assert "The host's frequency governor changed during the run: performance then" in told.replace(
        "&#39;", "'"
    )
    assert "Watched around every trial: frequency governor, steal time" in told
    assert (
        "Not known, as this host has no counter for it: CPU clock, temperature, throttling" in told
    )
    change_trials(run, lambda one: {"host": {"shared": HostState(steal=0.0)}})
    assert "None of what was watched changed." in machine(html.render(run))


def test_cells_that_could_not_run_are_named_with_their_reason(tmp_path: Path) -> None:
    run = small(tmp_path)
    skipped = [{"cell": {"plane": "ipvlan", "background_guests": n}, "reason": "no ipvlan here"}
               for n in (0, 8)]  # fmt: skip
    file = run.path / RUN_FILE
    file.write_text(json.dumps(json.loads(file.read_text()) | {"skipped": skipped}))
    page = html.render(RunReader(run.path))
    assert left_out(page)["Cells of ipvlan"] == [
        ("2", "no", "not possible on this host: no ipvlan here")
    ]


def test_a_warning_that_differs_in_its_figures_alone_is_said_once(tmp_path: Path) -> None:
    run = small(tmp_path)
    change_trials(run, lambda one: {"warnings": (f"CPU load got {one.order + 10} % of the CPUs",)})
    assert left_out(html.render(run))["Warning during a trial"] == [
        ("4", "yes", "for example: CPU load got 10 % of the CPUs")
    ]


def change_trials(run: RunReader, change: Callable[[TrialRecord], dict[str, object]]) -> None:
    """Writes the run's trials anew, each with what `change` says of it."""
    changed = [one.model_copy(update=change(one)) for one in run.trials()]
    lines = [one.model_dump_json(exclude_defaults=True) + "\n" for one in changed]
    (run.path / TRIALS_FILE).write_text("".join(lines))


def test_times_of_a_virtual_machine_have_one_badge(page: str) -> None:
    assert page.count('class="badge"') == 1
    assert ">Virtualised times</span>" in page


def test_times_of_hardware_carry_no_badge(tmp_path: Path) -> None:
    assert 'class="badge"' not in html.render(small(tmp_path, virtualisation="none"))


def test_an_emulated_run_says_why(tmp_path: Path) -> None:
    page = html.render(small(tmp_path, emulated="the lab's NIC is emulated by QEMU"))
    assert ">Emulated times</span>" in page
    assert 'title="the lab&#39;s NIC is emulated by QEMU"' in page


def test_without_a_recommendation_the_page_does_not_make_one_up(tmp_path: Path) -> None:
    run = small(tmp_path, with_recommendation=False)
    said = html.headline(RunData(run))
    assert said.startswith("This run has no recommendation. Its lowest median RTT is ")
    assert said in html.render(run).replace(NBSP, " ")


def test_a_run_without_trials_says_so(tmp_path: Path) -> None:
    run = small(tmp_path, with_recommendation=False)
    (run.path / "trials.jsonl").write_text("")
    page = html.render(RunReader(run.path))
    assert "This run has no finished trial yet" in page
    assert '<h2 id="host">' in page
    assert "<figure" not in page


def test_a_run_of_which_every_trial_failed_says_so(tmp_path: Path) -> None:
    run = small(tmp_path, with_recommendation=False)
    changes = {"status": "failed", "reason": "no answer"}
    failed = [trial.model_copy(update=changes) for trial in run.trials()]
    (run.path / "trials.jsonl").write_text("".join(t.model_dump_json() + "\n" for t in failed))
    page = html.render(RunReader(run.path))
    assert "All 4 trials of this run failed: there is nothing to compare." in page
    rows = [row for of_row in left_out(page).values() for row in of_row]
    assert [row for row in rows if row[2] == "failed: no answer"] == [
        ("2", "no", "failed: no answer")
    ] * 2


def test_a_cut_last_trial_is_noted_and_the_others_are_shown(tmp_path: Path) -> None:
    run = small(tmp_path)
    trials = run.path / "trials.jsonl"
    trials.write_bytes(trials.read_bytes()[:-40])
    page = html.render(RunReader(run.path))
    assert "The last trial is missing." in page
    assert "<figure" in page


def test_lost_packets_files_are_noted_and_the_histograms_stand_in(tmp_path: Path) -> None:
    run = small(tmp_path)
    before = {(cell.plane, cell.factors): cell for cell in RunData(run).rtt}
    for file in (run.path / "packets").iterdir():
        file.unlink()
    data = RunData(RunReader(run.path))
    assert len(data.rtt) == len(before)
    for cell in data.rtt:
        exact = before[cell.plane, cell.factors]
        assert cell.rtt.median_ns == pytest.approx(exact.rtt.median_ns, rel=0.05)
        assert exact.parts_ns
        assert cell.no_parts == "its packets were not kept"
    notes = [note for note in data.left_out if "cannot be read" in note.why]
    assert len(notes) == len(before)
    assert "come from the trials&#39; histograms" in html.render(RunReader(run.path))


def test_a_broken_packets_file_is_no_traceback(tmp_path: Path) -> None:
    run = small(tmp_path)
    next((run.path / "packets").iterdir()).write_bytes(b"PAR1 this is no parquet file PAR1")
    page = html.render(RunReader(run.path))
    assert "cannot be read" in page


def test_stamps_that_no_packet_of_a_trial_has_do_not_spoil_the_others(tmp_path: Path) -> None:
    run = small(tmp_path)
    first = next((run.path / "packets").glob("*veth*"))
    packets = pl.read_parquet(first)
    nothing = pl.lit(None, dtype=pl.String)
    packets.with_columns(nothing.alias("kernel_rx_ns"), nothing.alias("kernel_tx_ns")).drop(
        "responder_nic_reply_ns"
    ).write_parquet(first)
    cells = RunData(RunReader(run.path)).rtt
    assert [cell.rtt.packets for cell in cells] == [120, 120]
    assert all(cell.parts_ns for cell in cells)


def test_an_interrupted_run_is_labelled(tmp_path: Path) -> None:
    page = html.render(small(tmp_path, status="interrupted"))
    assert "This run is not complete." in page


def test_a_damaged_recommendation_is_noted_and_not_fatal(tmp_path: Path) -> None:
    run = small(tmp_path)
    (run.path / "recommendation.json").write_text('{"plane": ')
    page = html.render(run)
    assert "This run has no recommendation." in page
    assert "the recommendation cannot be read" in page


def test_a_run_of_load_trials_only_has_a_report(tmp_path: Path) -> None:
    page = html.render(small(tmp_path, blocks=0, load_blocks=3, with_recommendation=False))
    assert "its load-loss curves are below" in page
    assert '<h2 id="rtt">' not in page
    assert '<h2 id="loss">' in page


def test_of_a_large_design_few_figures_are_drawn_and_the_tables_have_every_cell(
    tmp_path: Path,
) -> None:
    run = small(
        tmp_path,
        load_types=("cpu", "network"),
        locations=("sender", "responder"),
        guests=(8, 32),
        frequencies_pps=(1000.0, 1e6),
        sizes_bytes=(64, 512, 1518),
        packets=20,
        blocks=1,
    )
    page = html.render(run)
    drawn = re.findall(r'<figure id="figure-(rtt-\d+)"', page)
    assert drawn == [f"rtt-{number}" for number in range(1, len(drawn) + 1)]
    assert "<code>planewise report RUN --figures DIR</code> draws" in page
    table = page[page.index("Round-trip time of every cell (96 rows)") :]
    assert table[: table.index("</table>")].count("<tr>") == 97
    assert len(page.encode()) < 6_000_000


@given(st.floats(1e-9, 1e9), st.floats(1.0001, 1e6), st.booleans(), st.integers(3, 12))
def test_ticks_lie_on_the_axis_and_rise(low: float, factor: float, log: bool, most: int) -> None:
    values = theme.ticks(low, low * factor, log=log, most=most)
    assert all(low * (1 - 1e-6) <= value <= low * factor * (1 + 1e-6) for value in values)
    assert values == sorted(set(values))
    assert len(values) <= most + 2


@given(st.floats(1.32, 100))
def test_an_axis_of_ratios_names_some_on_both_sides_of_one(reach: float) -> None:
    named = compared._ticks(1 / reach, reach, ratio=True)
    assert 3 <= len(named) <= 12
    assert named[0] < 1 < named[-1]
    assert 1 in named
