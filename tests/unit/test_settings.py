"""Settings as levels of a design: what they are called, and where they exist."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from planewise.commands import doctor
from planewise.errors import BadInputError
from planewise.judge.effects import effects
from planewise.judge.statistics.metrics import RunSample
from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.matrix import settings_table
from planewise.measure.designs.sense import find_problem
from planewise.report import html
from planewise.store.models import Figure
from planewise.store.rundir import RunReader, RunWriter
from planewise.testbed import settings
from planewise.testbed.planes import PLANES
from tests.unit.made_up_run import info, trial

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


def test_more_queues_than_virtual_cpus_are_refused_before_anything_is_built() -> None:
    problem = find_problem(design("queues=2", plane="virtio-bridge", guest="vm"))
    assert problem is not None
    assert (problem.place, problem.what) == (
        ("factors", "setting", 0), "virtual machines with queues 2 are not possible",
    )  # fmt: skip
    two = Design.model_validate(
        {
            "factors": {"plane": "virtio-bridge", "guest": "vm", "setting": "queues=2"},
            "vm": {"vcpus": 2}, "rtt": {},
        }
    )  # fmt: skip
    assert find_problem(two) is None
    assert cells_of(two)[0].testbed.vm_options == (("queues", 2),)


def test_every_setting_exists_on_some_plane_or_says_why_not() -> None:
    for name, by_plane in settings_table().items():
        assert set(by_plane.values()) != {"no"}, name
        setting = settings.SETTINGS[name]
        for plane in PLANES:
            for kind in plane.guests:
                reason = setting.refusal(plane.name, kind)
                assert not reason or reason.startswith(f"{name}: ")


def test_interrupts_of_vfs_have_cpus_where_the_host_serves_them() -> None:
    irq = settings.SETTINGS["irq"]
    assert all(map(irq.accepts, ["0", "12", "0-3", "0,2-3"]))
    assert not any(map(irq.accepts, ["", "on", "-1", "0,", "0 1"]))
    assert not irq.refusal("vf", "namespace")
    assert not irq.refusal("macvtap-vf", "vm")
    assert irq.refusal("bridge", "container") == "irq: the guest's interface on bridge is no VF"
    assert "own kernel" in irq.refusal("vf-passthrough", "vm")


def test_a_setting_is_one_small_file_and_a_line_in_the_reference() -> None:
    reference = (ROOT / "docs" / "reference" / "designs.md").read_text()
    for name in settings.SETTINGS:
        assert {f"`{name}`", f"`{name.partition('.')[2]}`"} & set(reference.split()), name
    folder = ROOT / "src" / "planewise" / "testbed" / "settings"
    own = [file for file in folder.glob("*.py") if file.stem not in ("__init__", "host_setting")]
    assert len(own) >= 10
    for file in own:
        assert len(file.read_text().splitlines()) <= 60, file.name


def effects_run(path: Path) -> Path:
    """Two planes in eight blocks; without GRO a connection takes 30 % longer, a placebo nothing."""
    noise = random.Random(1)
    records = [
        trial(
            f"{plane}{level}{block}", "other", {"plane": plane, "setting": level}, block,
            figures={"connect": Figure(
                title="median time to connect", unit="ns", lower_is_better=True, resolution=1,
                value=50_000 * noise.gauss(1, 0.01) * (1.3 if level == "offload.gro=off" else 1),
            )},
        )
        for block in range(8)
        for plane in ("veth", "bridge")
        for level in ("default", "offload.gro=off", "mtu=1500")
    ]  # fmt: skip
    about = info("settings").model_copy(
        update={"design": {"blocks": 8, "factors": {"setting": ["default", "mtu=1500"]}}}
    )
    with RunWriter.create(path, about) as writer:
        for record in records:
            writer.append(record)
        writer.finish(about)
    return path


def test_the_largest_effect_of_a_plane_comes_first_and_a_placebo_has_none(tmp_path: Path) -> None:
    reader = RunReader(effects_run(tmp_path / "runs" / "one"))
    found = effects(RunSample("run", reader.info, reader.trials()))
    assert [(one.plane, one.setting) for one in found] == [
        (plane, level) for plane in ("bridge", "veth") for level in ("offload.gro=off", "mtu=1500")
    ]
    assert [one.comparison.outcome for one in found[::2]] == ["worse", "worse"]
    assert not {one.comparison.outcome for one in found[1::2]} & {"better", "worse"}
    assert found[0].text.startswith("+30")


def test_the_report_and_the_doctor_say_what_settings_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = effects_run(tmp_path / "runs" / "one")
    assert "What each setting does" in html.render(RunReader(run))
    monkeypatch.chdir(tmp_path)
    line = "Better than the default settings in runs/one: nothing."
    assert doctor._better_settings() == line
