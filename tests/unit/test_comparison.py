"""Comparisons of levels: which replicates make a pair, and what may be said of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from scipy import stats

from planewise.errors import BadInputError
from planewise.judge.statistics.comparison import Family, compare_levels, turned
from planewise.judge.statistics.flips import least_blocks
from planewise.judge.statistics.kendall import tau_b
from planewise.judge.statistics.metrics import Metric, Observation, Observed, RunSample, observe
from planewise.judge.statistics.ranking import check_ranking
from planewise.judge.statistics.sentences import sentence, summary
from planewise.report.sections.compared import outcome_text
from planewise.store.models import Counts, Level, OfferedLoad, TrialRecord
from tests.unit import made_up_run
from tests.unit.test_run_directory import make_info

RTT = Metric("rtt", "median round-trip time", "ns", True)
RATE = Metric("throughput", "forwarding rate at the best load", "pps", False)
CPU = Metric("cpu:shared", "CPU, busy", "share", True)


def observed(
    value: Callable[[Mapping[str, Level], int], float],
    cells: list[dict[str, Level]],
    blocks: int,
    metric: Metric = RTT,
    at_least: Callable[[Mapping[str, Level]], bool] = lambda cell: False,
    resolution: float = 1.0,
) -> Observed:
    return Observed(
        metric,
        tuple(
            Observation(
                value(cell, block), resolution, at_least(cell), run="run", block=block, cell=cell
            )
            for block in range(blocks)
            for cell in cells
        ),
    )


def observed_loss(plane: str, block: int, lost: int, sent: int) -> Observation:
    return Observation(
        lost / sent, 1 / sent, counts=(lost, sent), run="run", block=block, cell={"plane": plane}
    )


def planes(*names: str, **others: Level) -> list[dict[str, Level]]:
    return [{"plane": name, **others} for name in names]


def noise(seed: int, size: float = 0.02) -> Callable[[], float]:
    rng = np.random.default_rng(seed)
    return lambda: math.exp(rng.normal(0, size))


def outcome(family: Family, a: Level, b: Level, stratum: str = "overall") -> str:
    found = family.find(a, b, stratum)
    assert found is not None
    return found.outcome


def test_drift_that_all_levels_share_does_not_hide_a_difference() -> None:
    # The host gets ten times slower over the run; bridge is 8 % slower than veth throughout.
    wobble = noise(1, 0.005)
    found = observed(
        lambda cell, block: (
            10_000 * 1.3**block * (1.08 if cell["plane"] == "bridge" else 1) * wobble()
        ),
        planes("veth", "bridge"),
        10,
    )
    family = compare_levels(found, "plane")
    comparison = family.find("bridge", "veth")
    assert comparison is not None
    assert comparison.outcome == "worse"
    assert comparison.change == pytest.approx(0.08, abs=0.01)
    assert comparison.rank_biserial == 1
    assert comparison.blocks == 10


def test_higher_is_better_where_it_is() -> None:
    found = observed(
        lambda cell, block: (2e6 if cell["plane"] == "vf" else 1e6) * (1 + 0.001 * block),
        planes("vf", "bridge"),
        8,
        RATE,
    )
    assert outcome(compare_levels(found, "plane"), "vf", "bridge") == "better"


def test_a_certain_difference_within_the_margin_is_practically_the_same() -> None:
    found = observed(
        lambda cell, block: 10_000 + 100 * block + (200 if cell["plane"] == "bridge" else 0),
        planes("veth", "bridge"),
        10,
    )
    comparison = compare_levels(found, "plane").find("bridge", "veth")
    assert comparison is not None
    assert comparison.p_family < 0.01
    assert comparison.outcome == "practically the same"
    narrow = compare_levels(found, "plane", margin=0.001).find("bridge", "veth")
    assert narrow is not None
    assert narrow.outcome == "worse"


def test_the_margin_is_never_finer_than_the_instrument() -> None:
    # CPU 2.0 and 2.3 %: 15 % apart, but a tick of the kernel's clock is half a point here.
    found = observed(
        lambda cell, block: 0.023 if cell["plane"] == "vf" else 0.020,
        planes("vf", "bridge"),
        10,
        CPU,
        resolution=0.005,
    )
    comparison = compare_levels(found, "plane").find("vf", "bridge")
    assert comparison is not None
    assert (comparison.scale, comparison.margin) == ("difference", 0.005)
    assert comparison.change == pytest.approx(0.003)
    assert comparison.outcome == "practically the same"


def test_noise_is_not_distinguishable_and_says_why() -> None:
    wobble = noise(2, 0.3)
    found = observed(lambda cell, block: 1e4 * wobble(), planes("veth", "bridge"), 6)
    comparison = compare_levels(found, "plane").find("veth", "bridge")
    assert comparison is not None
    assert comparison.outcome == "not distinguishable"
    assert "both no change and a meaningful one" in comparison.why


def test_a_single_block_tells_nothing() -> None:
    found = observed(lambda cell, block: 9.0 if cell["plane"] == "a" else 1.0, planes("a", "b"), 1)
    comparison = compare_levels(found, "plane").find("a", "b")
    assert comparison is not None
    assert comparison.outcome == "too few blocks"
    assert comparison.why == "6 blocks are needed to put a confidence on it"


def test_all_comparisons_of_a_metric_are_one_family() -> None:
    wobble = noise(3, 0.1)
    cells = [
        {"plane": plane, "load_type": load}
        for plane in ("a", "b", "c", "d")
        for load in ("none", "cpu", "network")
    ]
    family = compare_levels(observed(lambda cell, block: 1e4 * wobble(), cells, 8), "plane")
    assert family.strata == ("idle", "cpu", "network", "overall")
    assert len(family.comparisons) == 6 * 4
    alone = compare_levels(
        observed(lambda cell, block: 1e4 * wobble(), planes("a", "b"), 8), "plane"
    )
    assert alone.strata == ("overall",)


@pytest.mark.parametrize("blocks", [2, 3, 5])
def test_few_blocks_call_nothing_different_however_clear_and_whatever_their_loads(
    blocks: int,
) -> None:
    # Nine loads of a block see one state of the host: they are no nine replicates.
    cells = [
        {"plane": plane, "load_type": "cpu", "background_guests": guests}
        for plane in ("a", "b")
        for guests in range(1, 10)
    ]
    found = observed(
        lambda cell, block: 1e4 * (3 if cell["plane"] == "b" else 1) + block, cells, blocks
    )
    family = compare_levels(found, "plane", by="background_guests")
    assert {one.outcome for one in family.comparisons} == {"too few blocks"}
    assert all(math.isinf(one.low) and math.isinf(one.high) for one in family.comparisons)


def test_two_blocks_with_three_of_500_lost_against_none_are_too_few() -> None:
    lost = {"a": 0, "b": 3}
    found = Observed(
        Metric("loss", "loss of probe packets", "share", True),
        tuple(
            observed_loss(plane, block, count, 500)
            for block in range(2)
            for plane, count in lost.items()
        ),
    )
    assert outcome(compare_levels(found, "plane"), "a", "b") == "too few blocks"


def test_no_loss_at_all_is_no_interval_without_width() -> None:
    found = Observed(
        Metric("loss", "loss of probe packets", "share", True),
        tuple(observed_loss(plane, block, 0, 400) for block in range(12) for plane in ("a", "b")),
    )
    family = compare_levels(found, "plane")
    comparison, value = family.find("a", "b"), family.value("a")
    assert comparison is not None
    assert value is not None
    assert comparison.low < 0 < comparison.high
    assert value.low == 0
    # Not one of 4800, even if packets are lost one by one: at most 3.7 of them (Garwood).
    assert value.high is not None
    assert value.high >= 3.68 / 4800
    assert comparison.outcome == "not known"
    assert "rare events" in comparison.why


def test_packets_of_the_cell_without_load_count_once_however_many_loads_there_are() -> None:
    def loss(*loads: str) -> Family:
        cells = [{"plane": "a", "load_type": load} for load in ("none", *loads)]
        lost = (
            Observation(0.0, 1 / 400, counts=(0, 400), run="run", block=block, cell=cell)
            for block in range(8)
            for cell in cells
        )
        metric = Metric("loss", "loss of probe packets", "share", True)
        return compare_levels(Observed(metric, tuple(lost)), "load_type")

    one, two = loss("cpu").value("none"), loss("cpu", "network").value("none")
    assert one is not None
    assert two is not None
    assert one.high == two.high


def test_equivalence_counts_its_errors_over_the_family() -> None:
    # Each of the pairs differs by a little more than the margin; ten of them are looked at.
    rng = np.random.default_rng(40)
    names = "abcde"
    false = 0
    for _ in range(30):
        found = observed(
            lambda cell, _: 1e4 * 1.052 ** names.index(str(cell["plane"])) * rng.lognormal(0, 0.03),
            planes(*names),
            10,
        )
        words = [one.outcome for one in compare_levels(found, "plane").comparisons]
        false += "practically the same" in words
    assert false <= 0.05 * 30


def test_a_conclusion_stays_when_the_run_is_extended_without_it() -> None:
    def value(cell: Mapping[str, Level], block: int) -> float:
        later = 2e3 if block < 8 else -2e3 + 100 * block
        return 1e4 + 300 * block + (later if cell["plane"] == "b" else 0)

    found = observed(value, planes("a", "b"), 16)
    assert outcome(compare_levels(found, "plane"), "b", "a") == "not distinguishable"
    extended = dataclasses.replace(found, ends={"run": (8, 12)})
    comparison = compare_levels(extended, "plane").find("b", "a")
    assert comparison is not None
    assert comparison.outcome == "worse"
    assert comparison.low > 0


def test_an_extension_decides_by_what_is_left_of_the_error() -> None:
    wobble = noise(13, 0.002)
    found = observed(
        lambda cell, block: (1.1e4 if cell["plane"] == "b" else 1e4) * wobble(),
        planes("a", "b"),
        8,
    )
    assert [least_blocks(look) for look in range(4)] == [6, 9, 10, 11]
    assert outcome(compare_levels(found, "plane"), "b", "a") == "worse"
    # Three blocks could decide nothing, so that they spent nothing; six would have.
    after_three = dataclasses.replace(found, ends={"run": (3,)})
    assert outcome(compare_levels(after_three, "plane"), "b", "a") == "worse"
    unsettled = observed(
        lambda cell, block: (
            (1.1e4 if cell["plane"] == "b" and block != 2 else 1e4 + block) * wobble()
        ),
        planes("a", "b"),
        8,
    )
    after_six = dataclasses.replace(unsettled, ends={"run": (6,)})
    assert outcome(compare_levels(after_six, "plane"), "b", "a") == "not distinguishable"


def test_few_blocks_that_agree_are_told_with_what_confidence_takes() -> None:
    found = observed(
        lambda cell, block: 30e6 + 20e6 * block if cell["plane"] == "vhost" else 1e6,
        planes("vhost", "bridge"),
        3,
        RATE,
    )
    family = compare_levels(dataclasses.replace(found, block_s=140), "plane")
    assert summary(family) == [
        "vhost carried 30 to 70 times as much as bridge in all 3 blocks; 6 blocks are needed to "
        "put a confidence on it (about 7 min more: `planewise run --resume RUN --blocks 3`)."
    ]
    slower = observed(
        lambda cell, block: 1e4 * (1.1 + block / 100 if cell["plane"] == "b" else 1),
        planes("a", "b"),
        2,
    )
    (text,) = summary(compare_levels(slower, "plane"))
    assert text.startswith(
        "a's median round-trip time was 9.1 to 9.9 % lower than b's in both blocks; 6 blocks"
    )
    mixed = observed(
        lambda cell, block: 1e4 * (1 + block * (cell["plane"] == "b") - block / 2), planes(*"ab"), 3
    )
    (text,) = summary(compare_levels(mixed, "plane"))
    assert "not distinguishable" not in text or "changes sign between blocks" in text


def test_blocks_that_resemble_their_neighbours_are_reported() -> None:
    rng = np.random.default_rng(5)
    states = np.repeat(rng.normal(0, 0.2, (5, 2)), 4, axis=0)
    kept = observed(
        lambda cell, block: float(1e4 * np.exp(states[block, "ab".index(str(cell["plane"]))])),
        planes("a", "b"),
        20,
    )
    assert any("lag-1 correlation" in note for note in compare_levels(kept, "plane").notes)
    wobble = noise(14)
    anew = observed(lambda cell, block: 1e4 * wobble(), planes("a", "b"), 20)
    assert not compare_levels(anew, "plane").notes


def test_trials_of_one_visit_count_as_one_pair() -> None:
    cells = [
        {"plane": plane, "load_type": "cpu", "background_guests": guests, "size_bytes": size}
        for plane in ("a", "b")
        for guests in (8, 32)
        for size in (64, 1518)
    ]
    wobble = noise(4)
    family = compare_levels(observed(lambda cell, block: 1e4 * wobble(), cells, 7), "plane")
    comparison = family.find("a", "b")
    assert comparison is not None
    assert comparison.blocks == 7
    by_size = compare_levels(observed(lambda cell, block: 1e4 * wobble(), cells, 7), "size_bytes")
    comparison = by_size.find(64, 1518)
    assert comparison is not None
    assert comparison.blocks == 7


def test_a_replicate_without_partner_is_left_out_and_told() -> None:
    whole = observed(lambda cell, block: 1e4 + block, planes("a", "b"), 8)
    cut = Observed(RTT, whole.observations[1:])
    family = compare_levels(cut, "plane")
    comparison = family.find("a", "b")
    assert comparison is not None
    assert comparison.blocks == 7
    (note,) = [note for note in family.notes if "no counterpart" in note]
    assert "1 of 8 of b against a" in note


def test_levels_that_were_never_measured_alike_are_not_compared() -> None:
    found = observed(
        lambda cell, block: 1e4,
        [{"plane": "a", "size_bytes": 64}, {"plane": "b", "size_bytes": 128}],
        8,
    )
    family = compare_levels(found, "plane")
    assert family.comparisons == ()
    assert any("never measured in the same block" in note for note in family.notes)


def test_background_guests_on_the_same_plane_pair_with_those_on_that_plane_by_name() -> None:
    # All on bridge, all on vf, and vf for the main guests only.
    cost = {("bridge", "same"): 30_000, ("vf", "same"): 10_000, ("vf", "bridge"): 15_000}
    cells: list[dict[str, Level]] = [
        {"plane": plane, "background_plane": behind, "load_type": "cpu"} for plane, behind in cost
    ]
    wobble = noise(3, 0.002)

    def value(cell: Mapping[str, Level], _: int) -> float:
        return cost[str(cell["plane"]), str(cell["background_plane"])] * wobble()

    family = compare_levels(observed(value, cells, 8), "plane", by="background_plane")
    assert family.strata == ("bridge", "same", "overall")
    alone, all_on_one = (family.find("vf", "bridge", name) for name in ("bridge", "same"))
    assert alone is not None
    assert all_on_one is not None
    assert alone.change == pytest.approx(-0.5, abs=0.01)
    assert all_on_one.change == pytest.approx(-2 / 3, abs=0.01)
    assert not family.notes


def test_same_and_its_name_are_one_level_when_something_else_is_compared() -> None:
    cells: list[dict[str, Level]] = [
        {"plane": "veth", "background_plane": "same", "load_type": "cpu"},
        {"plane": "veth", "background_plane": "veth", "load_type": "network"},
    ]
    wobble = noise(4)
    family = compare_levels(observed(lambda *_: 10_000 * wobble(), cells, 8), "load_type", by="")
    (comparison,) = family.comparisons
    assert comparison.blocks == 8
    value = family.value("cpu")
    assert value is not None
    assert value.replicates == 8


def test_a_lower_bound_may_be_greater_but_never_less() -> None:
    def family(bounded: str) -> Family:
        return compare_levels(
            observed(
                lambda cell, block: (2e6 if cell["plane"] == "fast" else 1e6) + block,
                planes("fast", "slow"),
                8,
                RATE,
                at_least=lambda cell: cell["plane"] == bounded,
            ),
            "plane",
        )

    assert outcome(family("fast"), "fast", "slow") == "better"
    assert outcome(family("slow"), "fast", "slow") == "not known"
    (unknown,) = family("slow").comparisons
    assert outcome_text(unknown, family("slow")) == "not known, at most +100 %"
    nothing = dataclasses.replace(unknown, bound="unbounded")
    assert outcome_text(nothing, family("slow")) == "not known", (
        "once, though its change is not either"
    )
    (change,) = family("fast").comparisons
    assert outcome_text(change, family("fast")) == "better, at least +100 %"
    assert change.bound == "at least"
    assert turned(change).bound == "at most"
    assert "its forwarding rate at the best load is at least 100 % higher (8 blocks)" in sentence(
        change, family("fast")
    )
    # Turned round it is 50 % lower, at least again.
    assert "its forwarding rate at the best load is at least 50 % lower (8 blocks)" in sentence(
        turned(change), family("fast")
    )


def test_every_level_can_be_compared_with_a_baseline_alone() -> None:
    wobble = noise(5)
    found = observed(lambda cell, block: 1e4 * wobble(), planes("a", "b", "c"), 8)
    family = compare_levels(found, "plane", baseline="b")
    assert [(one.a, one.b) for one in family.comparisons] == [("a", "b"), ("c", "b")]
    with pytest.raises(BadInputError, match="no level nope"):
        compare_levels(found, "plane", baseline="nope")


def test_without_load_a_cell_is_the_zero_of_every_load() -> None:
    cells: list[dict[str, Level]] = [
        {"plane": "a", "load_type": "none", "load_location": "sender", "background_guests": 0}
    ]
    cells += [
        {"plane": "a", "load_type": load, "load_location": where, "background_guests": number}
        for load in ("cpu", "network")
        for where in ("sender", "responder")
        for number in (8, 64)
    ]
    found = observed(
        lambda cell, block: 1e4 + 100 * float(cell["background_guests"]) + block, cells, 12
    )
    guests = compare_levels(found, "background_guests")
    for stratum in ("sender", "responder", "overall"):
        assert outcome(guests, 0, 64, stratum) == "better"
    loads = compare_levels(found, "load_type")
    assert outcome(loads, "none", "cpu", "responder") == "better"
    assert outcome(loads, "cpu", "network", "responder") == "practically the same"
    # One cell without load a block: however many cells it stands for, it is one.
    comparison = guests.find(0, 64)
    assert comparison is not None
    assert comparison.blocks == 12


def test_a_metric_that_does_not_exist_for_a_level_is_named_with_the_reason() -> None:
    found = observed(lambda cell, block: 1e4 + block, planes("a", "b"), 8)
    hidden = Observed(RTT, found.observations, (({"plane": "vf"}, "no stamps"),))
    family = compare_levels(hidden, "plane")
    assert family.not_measurable == {"vf": "no stamps"}
    assert family.levels == ("a", "b")


def test_turning_a_comparison_round_inverts_it() -> None:
    wobble = noise(6, 0.1)
    found = observed(
        lambda cell, block: (1e4 if cell["plane"] == "a" else 2e4) * wobble(), planes("a", "b"), 8
    )
    one = compare_levels(found, "plane").find("a", "b")
    assert one is not None
    back = turned(one)
    assert (one.outcome, back.outcome) == ("better", "worse")
    assert (1 + one.change) * (1 + back.change) == pytest.approx(1)
    assert back.low <= back.change <= back.high
    again = turned(back)
    assert again.change == pytest.approx(one.change)


def test_a_ranking_that_changes_with_load_is_found_with_its_place() -> None:
    cells = [
        {"plane": plane, "load_type": load} for plane in ("a", "b") for load in ("none", "cpu")
    ]

    def value(cell: Mapping[str, Level], block: int) -> float:
        swapped = cell["load_type"] == "cpu"
        return 1e4 * (1.5 if (cell["plane"] == "a") == swapped else 1.0) + block

    check = check_ranking(observed(value, cells, 10), "plane")
    assert check is not None
    (change,) = check.changes
    assert (change.a, change.b) == ("a", "b")
    assert change.better_at == ("idle",)
    assert change.worse_at == ("cpu load at its host",)
    assert "the ranking changes with load: a is better than b at idle" in check.sentence
    assert [ranking.order for ranking in check.loads] == [("a", "b"), ("b", "a")]


def test_a_ranking_that_noise_turns_over_is_no_change() -> None:
    wobble = noise(7, 0.2)
    cells = [
        {"plane": plane, "load_type": load}
        for plane in ("a", "b", "c")
        for load in ("none", "cpu", "network")
    ]
    check = check_ranking(observed(lambda cell, block: 1e4 * wobble(), cells, 8), "plane")
    assert check is not None
    assert check.changes == ()
    assert "No change of the ranking by " in check.sentence


def test_kendalls_tau_b_is_scipys() -> None:
    rng = np.random.default_rng(8)
    indicator = rng.integers(0, 2, 80)
    values = rng.integers(0, 12, 80) + 2 * indicator
    found = tau_b(indicator, values, range(80))
    assert found is not None
    assert found.tau == pytest.approx(stats.kendalltau(indicator, values).statistic)
    assert found.low <= found.tau <= found.high


def test_the_interval_of_kendalls_tau_covers_the_truth_for_values_in_clusters() -> None:
    rng = np.random.default_rng(9)
    truth = (2 * stats.norm.cdf(0.5 / 2) - 1) * math.sqrt(20 * 20 / (40 * 39 / 2))
    covered = 0
    runs = 400
    for _ in range(runs):
        common = rng.normal(0, 1, 20)
        inside, outside = common + rng.normal(0.5, 1, 20), common + rng.normal(0, 1, 20)
        found = tau_b([1] * 20 + [0] * 20, [*inside, *outside], [*range(20)] * 2)
        assert found is not None
        covered += found.low <= truth <= found.high
    assert covered / runs >= 0.93


def test_kendalls_tau_without_two_groups_or_differences_does_not_exist() -> None:
    assert tau_b([1, 1], [1.0, 2.0], [0, 1]) is None
    assert tau_b([1, 0], [1.0, 1.0], [0, 1]) is None


def test_under_no_difference_a_family_claims_one_in_at_most_five_percent() -> None:
    rng = np.random.default_rng(10)
    cells = [
        {"plane": plane, "load_type": load}
        for plane in ("a", "b", "c")
        for load in ("none", "cpu", "network")
    ]
    runs, false = 100, 0
    for _ in range(runs):
        drift = np.cumsum(rng.normal(0, 0.05, 6))
        found = observed(
            lambda cell, block: float(1e4 * np.exp(drift[block] + rng.normal(0, 0.05))),  # noqa: B023
            cells,
            6,
        )
        words = [one.outcome for one in compare_levels(found, "plane").comparisons]
        false += bool({"better", "worse"} & set(words))
    assert false / runs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / runs)


def ladder(lost: Mapping[float, float], blocks: int = 6) -> list[TrialRecord]:
    """Load trials: share lost by load, the same in every block."""
    return [
        made_up_run.trial(
            f"t{block}-{load:g}",
            "load",
            {"plane": "veth"},
            block,
            replicate=0,
            order=block * len(lost) + step,
            load=OfferedLoad(intended_pps=load, achieved_pps=load, size_bytes=64),
            counts=Counts(sent=int(load), received=int(load * (1 - share)), lost=int(load * share)),
        )
        for block in range(blocks)
        for step, (load, share) in enumerate(lost.items())
    ]


@pytest.mark.parametrize("metric", ["throughput", "ndr"])
def test_an_interval_reaches_up_to_the_next_load_where_all_blocks_agree(metric: str) -> None:
    lossless = ladder({100_000: 0.0, 150_000: 0.0, 200_000: 0.3})
    found = observe([RunSample("run", make_info(), lossless)], metric)
    [value] = compare_levels(found, "plane").values
    assert value.value == pytest.approx(150_000)
    assert (value.low, value.high) == (pytest.approx(150_000), pytest.approx(200_000))


def test_a_rate_at_which_packets_were_lost_leaves_no_room_above() -> None:
    saturated = ladder({100_000: 0.0, 200_000: 0.25})
    found = observe([RunSample("run", make_info(), saturated)], "throughput")
    [value] = compare_levels(found, "plane").values
    assert value.value == value.high == pytest.approx(150_000)


def test_the_throughput_is_that_of_the_best_load_not_of_each_blocks_luckiest_trial() -> None:
    # Two loads beyond saturation: noise makes now one, now the other the greater in a block.
    rates = [(393, 400), (420, 380), (385, 401), (424, 379), (390, 399), (391, 403)]
    trials = [
        trial.model_copy(update={"block": block})
        for block, (first, second) in enumerate(rates)
        for trial in ladder({500.0: 1 - first / 500, 600.0: 1 - second / 600}, 1)
    ]
    found = observe([RunSample("run", make_info(), trials)], "throughput")
    values = [observation.value for observation in found.observations]
    assert values == pytest.approx([first for first, _ in rates], abs=1.5)
