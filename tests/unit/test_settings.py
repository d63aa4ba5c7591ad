"""Settings as levels of a design: what they are called, and where they exist."""

from __future__ import annotations

from pathlib import Path

import pytest

from planewise.errors import BadInputError
from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.matrix import settings_table
from planewise.measure.designs.sense import find_problem
from planewise.testbed import settings
from planewise.testbed.planes import PLANES

ROOT = Path(__file__).parents[2]


def design(*levels: str, **factors: object) -> Design:
    return Design.model_validate({"factors": {"plane": "veth", "setting": list(levels), **factors}})


def test_a_level_may_join_several_settings() -> None:
    pairs = settings.parsed("offload.tso=off + qdisc=tbf rate 1gbit burst 64kb")
    assert [(setting.name, level) for setting, level in pairs] == [
        ("offload.tso", "off"), ("qdisc", "tbf rate 1gbit burst 64kb"),
    ]  # fmt: skip
    assert settings.parsed(settings.DEFAULT) == ()


@pytest.mark.parametrize(
    ("level", "what"),
    [("ofload.tso=off", "did you mean offload.tso?"), ("mtu=9000000", "1280 to 9000")],
)
def test_an_unknown_level_is_refused_with_the_known_ones(level: str, what: str) -> None:
    with pytest.raises(BadInputError) as error:
        settings.parsed(level)
    assert what in error.value.remedy
    problem = find_problem(design("default", level))
    assert problem is not None
    assert problem.place == ("factors", "setting", 1)


def test_designs_without_settings_keep_the_names_of_their_cells() -> None:
    (plain,) = cells_of(Design.model_validate({"factors": {"plane": "veth"}}))
    assert "setting" not in plain.levels()
    default, changed = cells_of(design("default", "mtu=9000"))
    assert (default.levels()["setting"], changed.levels()["setting"]) == ("default", "mtu=9000")


def test_chains_have_no_settings() -> None:
    chains = {"factors": {"plane": "bridge", "guest": "process", "vnfs": 1, "setting": "mtu=9000"}}
    problem = find_problem(Design.model_validate({**chains, "chain": {}}))
    assert problem is not None
    assert "chains" in problem.what


def test_every_setting_exists_on_some_plane_or_says_why_not() -> None:
    for name, by_plane in settings_table().items():
        assert set(by_plane.values()) != {"no"}, name
        setting = settings.SETTINGS[name]
        for plane in PLANES:
            for kind in plane.guests:
                reason = setting.refusal(plane.name, kind)
                assert not reason or reason.startswith(f"{name}: ")


def test_a_setting_is_one_small_file_and_a_line_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference" / "designs.md").read_text()
    for name in settings.SETTINGS:
        assert {f"`{name}`", f"`{name.partition('.')[2]}`"} & set(reference.split()), name
    folder = ROOT / "src" / "planewise" / "testbed" / "settings"
    for file in folder.glob("*.py"):
        if file.stem not in ("__init__", "host_setting"):
            assert len(file.read_text().splitlines()) <= 60, file.name
