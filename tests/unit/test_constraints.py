"""Factors and constraints: which cells there are, and which designs cannot be."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import BadInputError
from planewise.measure.designs.cells import Cell, cells_of, expand
from planewise.measure.designs.design import Design
from planewise.measure.designs.design_file import load_design
from planewise.measure.designs.sense import find_problem
from planewise.testbed.planes import GUESTS_OF, planes_of

DOCKER = """\
factors:
  guest: container
  plane: [bridge, vf]
  background_plane: [bridge, vf]
  background_guests: [0, 8]
  load_type: [cpu, network]
  load_location: [sender, responder]
  frequency_pps: [1000, 1000000]
rtt: {packets: 100}
"""

KVM = """\
factors:
  guest: vm
  plane: [virtio-bridge, macvtap-vf, vf-passthrough]
  background_plane: [virtio-bridge, macvtap-vf, vf-passthrough]
  background_guests: [0, 8, 128]
  load_type: cpu
constraints:
  - when: {background_plane: [macvtap-vf, vf-passthrough]}
    exclude: {background_guests: 128}
  - when: {plane: macvtap-vf}
    exclude: {background_plane: vf-passthrough}
  - when: {plane: vf-passthrough}
    exclude: {background_plane: macvtap-vf}
"""


def read(tmp_path: Path, text: str) -> Design:
    path = tmp_path / "design.yaml"
    path.write_text(text)
    return load_design(path)


def test_without_background_guests_there_is_one_cell_a_plane(tmp_path: Path) -> None:
    cells = cells_of(read(tmp_path, DOCKER))
    alone = [cell for cell in cells if cell.background_guests == 0]
    assert alone == [
        Cell("bridge", "none", "sender", 0, "container", "bridge"),
        Cell("vf", "none", "sender", 0, "container", "bridge"),
    ]
    assert len(cells) == 2 + 2 * 2 * 2 * 2


def test_a_cells_traffic_is_every_frequency_size_and_protocol(tmp_path: Path) -> None:
    text = "factors: {plane: veth, size_bytes: [128, 512], protocol: [icmp, stamp]}\n"
    (traffic,) = expand(read(tmp_path, text)).values()
    seen = [(one["frequency_pps"], one["size_bytes"], one["protocol"]) for one in traffic["rtt"]]
    assert seen == [*product((1000.0,), (128, 512), ("icmp", "stamp"))]
    assert set(traffic) == {"rtt"}


def test_constraints_leave_out_what_they_say_and_no_more(tmp_path: Path) -> None:
    cells = cells_of(read(tmp_path, KVM))
    pairs = {(c.plane, c.background, c.background_guests) for c in cells if c.background_guests}
    bridge, macvtap, whole = "virtio-bridge", "macvtap-vf", "vf-passthrough"
    assert pairs == {
        *((plane, bridge, guests) for plane in (bridge, macvtap, whole) for guests in (8, 128)),
        (bridge, macvtap, 8),
        (bridge, whole, 8),
        (macvtap, macvtap, 8),
        (whole, whole, 8),
    }
    assert sum(cell.background_guests == 0 for cell in cells) == 3


def test_a_planes_name_also_means_same_where_that_stands_for_it(tmp_path: Path) -> None:
    text = KVM.replace("background_plane: [virtio", "background_plane: [same, virtio")
    for cell in cells_of(read(tmp_path, text)):
        if cell.background_guests == 128:
            assert cell.background == "virtio-bridge"


def test_a_constraint_on_frequency_says_nothing_of_load_trials(tmp_path: Path) -> None:
    text = """\
factors: {plane: [veth, bridge], frequency_pps: [10, 1000], size_bytes: [64, 512]}
constraints:
  - when: {plane: veth}
    require: {frequency_pps: 10}
  - exclude: {frequency_pps: 10, size_bytes: 512}
rtt: {}
sweep: {}
"""
    veth, bridge = expand(read(tmp_path, text)).values()
    (one,) = veth["rtt"]
    assert (one["frequency_pps"], one["size_bytes"], one["protocol"]) == (10, 64, "icmp")
    assert len(bridge["rtt"]) == 3
    assert veth["sweep"] == bridge["sweep"] == ({"size_bytes": 64}, {"size_bytes": 512})


LEVELS = {
    "plane": ["veth", "bridge", "macvlan"],
    "background_guests": [0, 4, 8],
    "load_type": ["none", "cpu", "network"],
    "frequency_pps": [10.0, 1000.0],
    "size_bytes": [64, 128],
}


def wheres() -> st.SearchStrategy[dict[str, object]]:
    some = {
        name: st.lists(st.sampled_from(levels), min_size=1, unique=True)
        for name, levels in LEVELS.items()
    }
    return st.fixed_dictionaries({}, optional=some).filter(bool)


def constraints() -> st.SearchStrategy[dict[str, object]]:
    said = st.one_of(*(st.fixed_dictionaries({key: wheres()}) for key in ("require", "exclude")))
    return st.tuples(st.none() | wheres(), said).map(
        lambda pair: pair[1] if pair[0] is None else {"when": pair[0], **pair[1]}
    )


@given(some=st.lists(constraints(), max_size=4))
def test_what_is_measured_keeps_every_constraint_and_what_is_refused_names_its_place(
    some: list[dict[str, object]],
) -> None:
    design = Design.model_validate({"factors": LEVELS, "constraints": some, "rtt": {}})
    problem = find_problem(design)
    expanded = expand(design)
    if problem is not None:
        assert problem.place[0] in ("factors", "constraints")
        assert problem.what
        assert problem.remedy
        return
    free = Design.model_validate({"factors": LEVELS, "rtt": {}})
    everything = expand(free)
    assert set(expanded) <= set(everything)
    for name, levels in LEVELS.items():
        if name in ("plane", "background_guests"):
            assert {getattr(cell, name) for cell in expanded} == set(levels)
    for cell, traffic in expanded.items():
        assert traffic["rtt"]
        # A cell with guests and load stands for itself alone: every constraint holds in it.
        if cell.load_type != "none":
            for one in traffic["rtt"]:
                levels_of = cell.levels() | one
                assert all(constraint.allows(levels_of) for constraint in design.constraints)


BASE = """\
factors:
  guest: [namespace]
  plane: [veth, bridge, macvlan]
  background_plane: [veth, bridge]
  background_guests: [4, 8]
constraints:
  - when: {plane: veth}
    require: {background_plane: veth}
"""


@pytest.mark.parametrize(
    ("text", "line", "words", "remedy"),
    [
        (BASE.replace("bridge, macvlan", "brigde, macvlan"), 3, "'brigde'", "mean bridge?"),
        (BASE.replace("veth, bridge]", "veth, docker]"), 4, "'docker'", "docker-bridge"),
        (
            BASE.replace("macvlan", "docker-bridge"),
            3,
            "a network namespace cannot have the plane docker-bridge: it is one of containers",
            "set `factors.guest` to container",
        ),
        (
            BASE.replace("[namespace]", "[namespace, container]").replace(
                "macvlan", "docker-bridge"
            ),
            3,
            "a network namespace cannot have",
            "`constraints: [{when: {guest: namespace}, exclude: {plane: docker-bridge}}]`",
        ),
        (
            BASE.replace("[namespace]", "vm"),
            3,
            "a virtual machine cannot have the plane veth",
            "e1000-bridge",
        ),
        (
            BASE + "  - when: {background_plane: veth}\n    require: {plane: bridge}\n",
            3,
            "leave no cell with plane veth (it is named by constraint 1 and 2)",
            "loosen a constraint",
        ),
        (
            BASE + "  - exclude: {background_guests: 4}\n",
            5,
            "leave no cell with background_guests 4",
            "leave the level out",
        ),
        (BASE + "  - exclude: {background_guests: 5}\n", 9, "5 is not a level", "its levels: 4, 8"),
        (BASE + "  - exclude: {}\n", 9, "`exclude` names no factor", ""),
        (BASE + "  - when: {plane: veth}\n", 9, "either `require` or `exclude`", ""),
        (BASE + "  - exclude: {plan: veth}\n", 9, "unknown key `plan`", "mean `plane`?"),
        (BASE + "  - excludes: {plane: veth}\n", 9, "unknown key `excludes`", "mean `exclude`?"),
        (BASE + "rtt: {frequency_pps: 10}\n", 9, "unknown key", "`factors.frequency_pps`"),
        (
            BASE.replace("factors:", "factors:\n  protocol: stamp"),
            2,
            "a frame of 64 bytes cannot carry a STAMP packet",
            "at least 90",
        ),
        (
            BASE.replace("factors:", "factors:\n  protocol: redis"),
            2,
            "a frame of 64 bytes cannot carry a request to Redis",
            "at least 107",
        ),
        (
            BASE.replace("factors:", "factors:\n  protocol: redis\n  size_bytes: 1092"),
            3,
            "no request to Redis makes a frame of exactly 1092 bytes",
            "give 1093",
        ),
        (BASE.replace("[4, 8]", "[4, '8']"), 5, "the text `8` is not a whole number", ""),
        (BASE.replace("[4, 8]", "[4, yes]"), 5, "the text `yes` is not a whole number", ""),
        (BASE.replace("[4, 8]", "[4, true]"), 5, "`true` is not a whole number", ""),
    ],
)
def test_a_design_that_cannot_be_is_refused_with_line_cause_and_way_out(
    tmp_path: Path, text: str, line: int, words: str, remedy: str
) -> None:
    with pytest.raises(BadInputError) as caught:
        read(tmp_path, text)
    assert f"design.yaml:{line}: " in caught.value.what
    assert words in caught.value.what
    assert remedy in caught.value.remedy


def test_two_levels_that_want_each_other_are_no_circle(tmp_path: Path) -> None:
    text = BASE + "  - when: {background_plane: veth}\n    require: {plane: veth}\n"
    pairs = {(cell.plane, cell.background) for cell in cells_of(read(tmp_path, text))}
    assert pairs == {("veth", "veth"), ("bridge", "bridge"), ("macvlan", "bridge")}


def test_ten_to_the_twelve_cells_are_refused_without_listing_them(tmp_path: Path) -> None:
    thousand = ", ".join(str(n) for n in range(64, 1064))
    text = f"""\
factors:
  plane: [veth, bridge]
  background_guests: [{", ".join(str(n) for n in range(1000))}]
  frequency_pps: [{thousand}]
  size_bytes: [{thousand}]
  load_type: [none, cpu]
"""
    with pytest.raises(BadInputError, match=r"design.yaml:1: factors: about 10\^9 combinations"):
        read(tmp_path, text)


def test_every_plane_exists_for_some_guest_and_every_guest_has_a_plane() -> None:
    assert all(GUESTS_OF.values())
    for kind in ("namespace", "container", "vm"):
        assert planes_of(kind)  # type: ignore[arg-type]
