"""An allocator's trial: what is told to whom, what came of it, and what is reported of it."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import polars as pl
import pytest
from hdrh.histogram import HdrHistogram

from planewise.advise.recommend import recommend
from planewise.commands.alloc import POLICIES
from planewise.errors import PlanewiseError
from planewise.judge.policies import policy_families
from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design import AllocPart, Design, Policy
from planewise.measure.designs.design_file import load_design
from planewise.measure.designs.schedule import make_schedule
from planewise.measure.trials.alloc import AllocTrial
from planewise.measure.trials.allocation import (
    ClockOffset,
    hold_times,
    offset_of,
    parse_metrics,
    phases_of,
    reaction_of,
    settings_of,
)
from planewise.measure.trials.requests import SentRequests, parse_sent, script_of, streams_of
from planewise.publications.answers import answers, best
from planewise.publications.claims import publications
from planewise.publications.evidence import read_run
from planewise.report import html
from planewise.report.data import RunData
from planewise.report.sections import allocation as allocations
from planewise.report.sections.allocation import hold_intervals, sections, timeline
from planewise.store.allocations import by_groups
from planewise.store.levels import keeps_levels
from planewise.store.models import GuestMove, TrialRecord
from planewise.store.rundir import RunReader, RunWriter
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.hosts.machine import Resources
from planewise.testbed.model import Guest
from planewise.testbed.vfs.allocator import AllocatorSettings, configuration, shortage
from planewise.testbed.vfs.nic import Config, ListedVf, Pf
from tests.command import invoked
from tests.unit import made_up_run
from tests.unit.made_up_allocation import BEGIN_MS, PART, STREAMS, move, sent, trial
from tests.unit.vega_schema import fits_schema

ROOT = Path(__file__).parents[2]


def guest(number: int, role: str = "responder") -> Guest:
    return Guest(
        f"{role}-background{number}", role, "background", number, "bridge",  # type: ignore[arg-type]
        f"pw-x-{role[0]}b{number}", "eth0", f"02:70:77:00:00:{number:02x}",
        f"198.19.0.{number}", f"2001:2:0:2::{number:x}", f"pwx{number}", 100 + number,
    )  # fmt: skip


GUESTS = tuple(guest(number) for number in range(8))


def wanted(policy: str, part: AllocPart = PART, draw: int = 0) -> AllocTrial:
    return AllocTrial("alloc:x", policy, 64, "icmp", part, draw)  # type: ignore[arg-type]


def test_designs_and_reports_have_every_policy_of_the_allocator() -> None:
    assert {*get_args(Policy)} == {*POLICIES, "none", "switch"}
    assert {*allocations.POLICIES} == {*POLICIES, "none"}


def test_the_policies_of_a_design_take_turns_on_the_guests_of_one_visit() -> None:
    design = load_design(ROOT / "experiments/flexvf-groups.yaml")
    visits = make_schedule(design, {}, {}).visits
    assert len(visits) == design.blocks == 8
    for visit in visits:
        named = [one.policy for one in visit.trials if isinstance(one, AllocTrial)]
        assert sorted(named) == sorted(design.factors.policy)
    orders = {tuple(one.name.split("#")[0] for one in visit.trials) for visit in visits}
    assert len(orders) > 1, "the policies come in a random order"
    assert design.trials_upper_bound() == 5 * 8
    (cell,) = cells_of(design)
    assert "policy" not in cell.levels(), "no guest is built anew for a policy"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"plane": "macvlan"}, "not on macvlan"),
        ({"background_guests": 2}, "leave nothing to choose"),
        ({"path": "east-west"}, "requests from another host"),
    ],
)
def test_a_design_whose_guests_no_allocator_can_serve_is_refused_by_key(
    tmp_path: Path, change: dict[str, object], said: str
) -> None:
    factors = {"plane": "bridge", "background_guests": 8} | change
    file = tmp_path / "design.yaml"
    lines = [f"  {name}: {value}" for name, value in factors.items()]
    file.write_text("factors:\n" + "\n".join(lines) + "\nalloc: {vfs: 2}\n")
    with pytest.raises(PlanewiseError, match=said):
        load_design(file)


def test_guests_are_dealt_out_to_groups_in_turn_and_the_rates_are_turned_round_later() -> None:
    clients = tuple(guest(number, "sender") for number in range(8))
    streams = streams_of(GUESTS, clients, (1.0, 2.0, 3.0))
    assert [one.steady_pps for one in streams] == [1, 2, 3, 1, 2, 3, 1, 2]
    assert [one.changed_pps for one in streams] == [3, 2, 1, 3, 2, 1, 3, 2]
    assert streams[5].netns == clients[5].netns


def test_without_a_policy_nobody_may_have_a_vf_and_at_random_the_same_guests_of_a_block() -> None:
    names = [one.name for one in GUESTS]
    nobody = settings_of(wanted("none"), names).stances
    assert set(nobody.values()) == {"excluded"}
    part = AllocPart(vfs=3)
    drawn = [settings_of(wanted("static", part, draw), names).stances for draw in (1, 1, 2, 3, 4)]
    assert drawn[0] == drawn[1]
    assert len({tuple(one.items()) for one in drawn}) > 2
    assert all(list(one.values()).count("pinned") == 3 for one in drawn)
    assert settings_of(wanted("fair"), names) == AllocatorSettings(
        "fair", {}, PART.interval_s, PART.max_moves, PART.min_residency_s, PART.fair_turn_s
    )


def test_the_daemons_configuration_names_every_guest_and_the_one_pf() -> None:
    settings = AllocatorSettings("activity", {GUESTS[1].name: "excluded"}, interval_s=2)
    told = tomllib.loads(configuration(settings, GUESTS, "/run/x", "pf0"))
    assert told["pool"]["pfs"] == ["pf0"]
    assert told["sample_s"] == told["alloc"]["interval_s"] == 2.0
    assert told["recording"] == "/run/x/recording"
    assert told["containers"]["docker"] == "", "nobody's containers but the testbed's"
    namespaces = told["containers"]["namespaces"]
    assert {one["netns"] for one in namespaces.values()} == {one.netns for one in GUESTS}
    stances = [told["guests"][one.name]["stance"] for one in GUESTS]
    assert stances == ["free", "excluded", *["free"] * 6]


def resources(driver: str = "igb", vfs: int = 7) -> Resources:
    return Resources("lab:b", "pf0", driver, vfs, 900, dockerd=False)


def pf(vfs: int = 0) -> Pf:
    own = [
        ListedVf(index=n, address=f"0:1.{n}", driver="igbvf", config=Config(mac=""))
        for n in range(vfs)
    ]
    return Pf(address="0:0", total_vfs=7, num_vfs=vfs, vfs=tuple(own))


def test_what_a_host_lacks_is_said_with_the_numbers() -> None:
    assert shortage(resources(), pf(), 4, 16) == ""
    assert shortage(resources(), pf(4), 4, 16) == ""
    assert "no SR-IOV" in shortage(resources(vfs=0), None, 4, 16)
    assert "needs 9 VFs" in shortage(resources(), pf(), 9, 16)
    assert "37 MAC addresses" in shortage(resources(), pf(), 7, 28)
    assert shortage(resources("i40e"), pf(), 7, 28) == ""
    assert "all of these" in shortage(resources(), pf(7), 4, 16)


def test_the_script_sends_each_guest_its_rate_and_later_the_other_one() -> None:
    part = AllocPart(vfs=1, group_pps=(10.0, 40.0), duration_s=10, warmup_s=2, change_s=5)
    host = LocalHost("sender")
    try:
        lines = script_of(STREAMS, wanted("fair", part), host, "/tmp/x").splitlines()
    finally:
        host.close()
    pings = [line for line in lines if " ping " in line]
    assert len(pings) == 8
    assert "--rate 10 --duration 12" in pings[0]
    assert pings[1].startswith("{ sleep 12; ")
    assert "--rate 40 --duration 5" in pings[1]
    assert all("client" in line for line in pings)


CSV = "scheduled_ns,user_tx_ns,user_rx_ns\n"


def test_what_was_printed_is_read_back_by_guest_and_phase() -> None:
    text = "noise"
    for place in range(len(STREAMS)):
        rows = f"{CSV}1000,1010,1500\n2000,2010,\n"
        text += f"\x1e{place}.steady.csv\n{rows}\x1e{place}.steady.err\n\x1e{place}.steady.json\n"
    text += f"\x1e2.changed.csv\n{CSV}9000,9010,9500\n"
    found = parse_sent(text, STREAMS)
    assert found.packets.height == 9
    assert found.packets["user_rx_ns"].null_count() == 4
    assert (found.begun_ns, found.changed_ns) == (1000, 9000)
    with pytest.raises(PlanewiseError, match="nothing was sent to guest3: no route"):
        parse_sent(
            text.replace("\x1e3.steady.err\n", "\x1e3.steady.err\nno route\n").replace(
                f"\x1e3.steady.csv\n{CSV}1000,1010,1500\n2000,2010,\n", ""
            ),
            STREAMS,
        )


def test_a_vf_counts_as_held_from_the_end_of_its_giving_to_the_beginning_of_its_taking() -> None:
    moves = [
        move("give", "early", -3.0, 1.0, 1),
        move("take", "early", 2.0, 0.5, 2),
        move("give", "late", 2.5, 1.5, 3),
        move("give", "never", 9.0, None, 4),
        move("give", "after", 9.5, 2.0, 5),
    ]
    held = hold_times(["early"], moves, BEGIN_MS, BEGIN_MS + 10_000)
    assert held["early"] == (2.0, 0)
    assert held["late"] == (6.0, 1)
    assert "never" not in held
    assert "after" not in held
    # A giving that spans the beginning, and a taking that spans the end.
    moves = [move("give", "x", -1.0, 3.0, 1), move("take", "x", 8.0, 5.0, 2)]
    assert hold_times([], moves, BEGIN_MS, BEGIN_MS + 10_000)["x"][0] == 6.0
    # One that is being taken when the time begins holds none any more, for all that is known.
    moves = [move("take", "y", -1.0, 3.0, 1)]
    assert hold_times(["y"], moves, BEGIN_MS, BEGIN_MS + 10_000)["y"][0] == 0.0


def test_the_quickest_look_at_a_clock_counts_and_says_how_far_it_may_be_off() -> None:
    looks = [(0, 5_000_000, 900), (1000, 5_001_050, 1100), (2000, 4_000_000, 3000)]
    assert offset_of(looks) == ClockOffset(5_000_000, 50)


def test_the_reaction_is_the_time_from_the_change_to_the_end_of_a_giving() -> None:
    # The sender's clock is 5 s ahead of here, the daemon's 1000 s (its moves begin there).
    daemon = ClockOffset(995_000_000_000, 3_000_000)
    changed_ns = 5_000_000_000 + 12_000_000_000
    moves = [
        move("give", "a", 3.0, 1.0, 1),
        move("take", "a", 13.0, 0.5, 2),
        move("give", "b", 14.0, 1.0, 3),
        move("give", "c", 16.0, 2.0, 4),
    ]
    found = reaction_of(moves, changed_ns, daemon)
    assert found is not None
    assert (found.first_s, found.last_s) == (3.0, 6.0)
    assert found.error_s == pytest.approx(0.003)
    before = reaction_of(moves[:2], changed_ns, daemon)
    assert before is not None
    assert before.first_s is None
    assert reaction_of(moves, None, daemon) is None


METRICS = """
process_cpu_seconds_total 1.5
process_resident_memory_bytes 10485760
planewise_daemon_duration_seconds_sum{work="decision"} 0.5
planewise_daemon_duration_seconds_count{work="decision"} 10
planewise_daemon_duration_seconds_sum{work="sample"} 2.5
planewise_daemon_duration_seconds_count{work="sample"} 5
# EOF
"""


def test_the_daemons_metrics_are_read_and_one_that_is_missing_is_named() -> None:
    found = parse_metrics(METRICS)
    assert (found.cpu_s, found.memory_bytes) == (1.5, 10 << 20)
    assert found.spent == {"decision": (0.5, 10.0), "sample": (2.5, 5.0)}
    with pytest.raises(PlanewiseError, match="process_resident_memory_bytes"):
        parse_metrics(METRICS.replace("process_resident", "other"))


def test_a_trial_tells_latency_by_guest_and_group_who_held_vfs_and_what_the_daemon_took() -> None:
    record = trial("activity", 0, busy_ms=2.0, quiet_ms=7.0, holder="guest1")
    result = record.alloc
    assert result is not None
    assert set(result.groups) == {"10", "40"}
    assert result.groups["10"].p50_ns == pytest.approx(7e6, rel=1e-3)
    assert result.groups["40"].count == 2 * 400, "10 s of two guests, without the warm-up"
    histogram = HdrHistogram.decode(result.groups["40"].hdr)
    assert histogram.get_total_count() == 800
    assert result.guests["guest1"].held_s == 10.0
    assert result.guests["guest0"].held_s == 0.0
    assert result.guests["guest3"].sent_pps == pytest.approx(40.0)
    assert result.daemon.cpu == pytest.approx(0.01)
    assert result.daemon.decision_s == pytest.approx(0.01)
    assert result.daemon.sample_s == pytest.approx(0.2)


def test_requests_that_did_not_run_together_for_half_of_the_time_are_no_trial() -> None:
    short = sent({stream.guest: 1.0 for stream in STREAMS}, seconds=5.0)
    with pytest.raises(PlanewiseError, match=r"together for 2\.9 s only"):
        trial("fair", 0, 1.0, 1.0, packets=short)


def test_lost_requests_are_counted_and_not_averaged() -> None:
    losing = sent({stream.guest: 1.0 for stream in STREAMS}, lost_every=10)
    record = trial("fair", 0, 1.0, 1.0, packets=losing)
    assert record.counts is not None
    assert record.counts.lost == round(0.1 * record.counts.sent)
    for one in by_groups([record]):
        assert one.counts is not None
        assert one.counts.sent == one.counts.lost + one.latency["rtt_user"].count


def test_groups_are_compared_apart_and_one_that_missed_its_rate_counts_for_nothing() -> None:
    record = trial("fair", 0, busy_ms=2.0, quiet_ms=7.0)
    quiet, busy = by_groups([record])
    assert (quiet.cell["frequency_pps"], busy.cell["frequency_pps"]) == (10.0, 40.0)
    assert keeps_levels(quiet)
    assert record.alloc is not None
    slow = record.alloc.guests["guest1"].model_copy(update={"sent_pps": 36.0})
    guests = {**record.alloc.guests, "guest1": slow}
    alloc = record.alloc.model_copy(update={"guests": guests})
    quiet, busy = by_groups([record.model_copy(update={"alloc": alloc})])
    assert keeps_levels(quiet)
    assert not keeps_levels(busy)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunReader:
    """Nine blocks in which activity helps the busy guests, and fair all of them a little."""
    path = tmp_path_factory.mktemp("runs") / "run"
    info = made_up_run.info("Who should hold the VFs", emulated="made up")
    with RunWriter.create(path, info) as writer:
        for block in range(9):
            noise = 1 + 0.01 * (block % 3)
            writer.append(trial("none", block, 4.0 * noise, 4.0 / noise))
            fair = trial("fair", block, 3.5 * noise, 3.5 / noise, "guest0")
            writer.append(fair, recording=b'{"began":{}}\n')
            writer.append(trial("activity", block, 2.0 * noise, 4.0 / noise, "guest1"))
    return RunReader(path)


def test_a_recording_is_kept_beside_the_trial_that_names_it(run: RunReader) -> None:
    named = {
        record.cell["policy"]: record.alloc.recording for record in run.trials() if record.alloc
    }
    assert named["none"] is None
    assert named["fair"] is not None
    assert (run.path / named["fair"]).read_bytes() == b'{"began":{}}\n'


def test_the_busiest_guests_decide_what_heads_the_report(run: RunReader) -> None:
    advice = recommend(run.trials(), run.info)
    assert advice.plane is None
    assert advice.headline.startswith("activity is better than fair: its median round-trip time")
    assert "at 40 pps" in advice.headline
    assert "at 10 pps" in advice.reasons[0]
    busy = policy_families(run.trials(), run.info)[0]
    compared = busy.find("activity", "none")
    assert compared is not None
    assert compared.outcome == "better"
    assert compared.low <= -0.5 <= compared.high


def test_compare_takes_the_policy_for_a_factor_of_the_groups_latency(run: RunReader) -> None:
    arguments = ["compare", str(run.path), "--factor", "policy", "--metric", "rtt"]
    result = invoked(*arguments)
    assert result.exit_code == 0, result.output
    assert "activity is better than none" in " ".join(result.output.split())


def test_the_report_draws_latency_by_group_and_who_held_what(run: RunReader) -> None:
    data = RunData(run)
    (section,) = sections(data)
    names = [figure.name for figure in section.figures]
    assert names[:2] == ["policies", "policies-held"]
    assert len(section.figures) == 2 + 2 * 2, "median and tail of two groups"
    shares = dict(section.tables)["Share of the time in which guests held a VF"]
    told = {row[0]: [getattr(entry, "raw", None) for entry in row[1:]] for row in shares.rows}
    assert told == {"none": [0.0, 0.0], "fair": [0.5, 0.0], "activity": [0.0, 0.5]}
    assert all(fits_schema(figure.whole()) for figure in section.figures)
    page = run.path / "report.html"
    html.write(run, page)
    text = page.read_text()
    assert "Latency of guests by policy" in text
    assert "Order of the trials" not in text


def test_a_bar_of_the_timeline_ends_where_the_vf_was_taken(run: RunReader) -> None:
    record = trial("activity", 0, 1.0, 1.0, "guest1")
    assert record.alloc is not None
    (bar,) = hold_intervals(record.alloc, 10.0)
    assert bar == ("guest1", -0.5, 10.0)
    drawn = timeline([("activity", record.alloc)])
    assert "guest1" in str(drawn.panels)


def test_a_design_of_the_allocator_is_no_load_of_a_fleet() -> None:
    design = Design.model_validate(
        {"factors": {"plane": "bridge", "background_guests": 8}, "alloc": {"vfs": 2}}
    )
    assert design.rtt is None
    assert design.alloc is not None


def switched(alloc_moves: Sequence[GuestMove]) -> tuple[TrialRecord, SentRequests]:
    """A trial in which guest0 is quicker while it holds the VF; its packets' time is 2 s ahead."""
    record = trial("switch", 0, 4.0, 4.0)
    times = sent({stream.guest: 4.0 for stream in STREAMS})
    quick = (pl.col("guest") == "guest0") & pl.col("scheduled_ns").is_between(6e9, 8e9)
    answer = pl.col("user_tx_ns") + pl.when(quick).then(1_000_000).otherwise(4_000_000)
    packets = SentRequests(times.packets.with_columns(user_rx_ns=answer.cast(pl.Int64)))
    assert record.alloc is not None
    alloc = record.alloc.model_copy(update={"moves": tuple(alloc_moves)})
    return record.model_copy(update={"alloc": alloc}), packets


GIVEN = GuestMove(
    at_s=3.0, direction="give", guest="guest0", vf="v", duration_s=1.0, ending="completed"
)
TAKEN = GuestMove(
    at_s=6.0, direction="take", guest="guest0", vf="v", duration_s=0.5, ending="completed"
)


def test_what_a_switch_does_is_told_before_during_and_after_and_of_the_guests_beside(
    tmp_path: Path, run: RunReader
) -> None:
    record, packets = switched((GIVEN, TAKEN))
    assert record.alloc is not None
    phases = phases_of(record.alloc, "guest0", packets)
    assert [(one.name, one.begin_s, one.end_s) for one in phases] == [
        ("before", 0.0, 3.0),
        ("being given", 3.0, 4.0),
        ("on the VF", 4.0, 6.0),
        ("being taken", 6.0, 6.5),
        ("after", 6.5, 10.0),
    ]
    medians = [one.rtt and round(one.rtt.p50_ns / 1e6) for one in phases]
    assert medians == [4, 4, 1, 4, 4]
    assert [one.counts.sent for one in phases] == [30, 10, 20, 5, 35]
    assert all(one.beside and round(one.beside.p99_ns / 1e6) == 4 for one in phases)
    with pytest.raises(PlanewiseError, match="not taken from guest0"):
        phases_of(switched((GIVEN,))[0].alloc, "guest0", packets)  # type: ignore[arg-type]
    alloc = record.alloc.model_copy(update={"switch": phases, "clock_error_s": 0.01})
    record = record.model_copy(update={"alloc": alloc})
    path = tmp_path / "switch"
    with RunWriter.create(path, run.info) as writer:
        writer.append(record, packets.packets)
    reader = RunReader(path)
    (section,) = sections(RunData(reader))
    assert section.anchor == "switch"
    assert "on the VF 1 ms (1 ms)" in section.figures[0].lead
    assert fits_schema(section.figures[0].whole())
    advice = recommend(reader.trials(), reader.info)
    assert advice.headline == (
        "One guest was given a VF and lost it again: of 100 requests 0 were lost."
    )
    assert advice.reasons == (
        "Median (99th percentile): before 4 ms (4 ms), being given 4 ms (4 ms), on the VF 1 ms "
        "(1 ms), being taken 4 ms (4 ms), after 4 ms (4 ms); 0 of 100 requests lost.",
    )
    html.write(reader, path / "report.html")


def test_what_flexvf_claims_of_the_busiest_guests_is_asked_of_a_run(run: RunReader) -> None:
    (flexvf,) = (one for one in publications() if one.key == "flexvf")
    asked = read_run(run.path)
    told = {one.id: best(one, answers(one, [asked])) for one in flexvf.claims}
    assert told["F4"].word == "held"
    assert told["F4"].measured.startswith("activity is better than none")
    assert told["F5"].word == "held"
    assert told["F5"].measured.startswith("activity is better than fair")
    assert (told["F6"].word, told["F6"].source) == ("needs hardware", "")
