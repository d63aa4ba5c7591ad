"""A campaign of a router: which curves it has, what is refused, how it goes on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from planewise import campaigns
from planewise.errors import BadInputError, PlanewiseError
from planewise.measure.designs.campaign import CampaignDesign, curves_of, unavailable_reason
from planewise.measure.designs.design_file import load_any, load_design
from planewise.measure.runs.sut import RouterUnderTest
from planewise.store.rundir import RunReader, RunWriter
from planewise.sweeps import SweepPlan, reachable
from planewise.testbed.switches.router import plan_router
from tests.unit.made_up_run import MadeUp, write

SMALL = {
    "sut": "router",
    "factors": {"ip_version": [4, 6], "forwarding": ["kernel", "bridge"], "runs": 2},
    "repetitions": 2,
}


def campaign(**factors: object) -> CampaignDesign:
    return CampaignDesign.model_validate({"sut": "router", "factors": factors})


def test_every_configuration_is_measured_once_a_repetition_in_an_order_of_its_own() -> None:
    design = CampaignDesign.model_validate(SMALL)
    curves = curves_of(design)
    assert curves == curves_of(design)
    assert len({curve.name for curve in curves}) == len(curves) == 8
    halves = [[tuple(curve.levels.items()) for curve in half] for half in (curves[:4], curves[4:])]
    assert set(halves[0]) == set(halves[1])
    assert Counter(curve.repetition for curve in curves) == {1: 4, 2: 4}
    orders = {
        tuple(curve.name for curve in curves_of(design.model_copy(update={"seed": seed})))
        for seed in range(5)
    }
    assert len(orders) == 5


def test_a_cell_names_every_factor_and_that_of_a_router_alone_stays_as_it_was() -> None:
    (curve, _) = curves_of(campaign(forwarding="xdp", duration_s=1.0, runs=3))
    assert curve.levels == {
        "plane": "router",
        "ip_version": 6,
        "forwarding": "xdp",
        "irq_pinning": "spread",
        "platform": "namespace",
        "duration_s": 1.0,
        "runs": 3,
        "size_bytes": 84,
    }
    assert RouterUnderTest(6).cell == {"plane": "router", "ip_version": 6}


@pytest.mark.parametrize(
    ("factors", "receivers", "said"),
    [
        ({"nic_ring": 512}, (1,), "a router in a namespace has veth pairs"),
        (
            {"nic_ring": 512, "platform": ["vm", "container"]},
            (1,),
            "router in a container has veth",
        ),
        ({"nic_ring": [512, 4096], "platform": "vm"}, (1,), "256, 512, 1024, not 4096"),
        ({"nic_ring": [256, 1024], "platform": "vm"}, (1,), ""),
        ({"platform": ["namespace", "vm"]}, (1,), ""),
        ({"platform": "vm", "forwarding": ["kernel", "xdp"]}, (1,), "only forwards by its kernel"),
        ({"irq_pinning": ["two"]}, (1,), "two takes three CPUs"),
        ({"irq_pinning": ["one", "spread"]}, (1,), "are the same on a machine with two CPUs"),
        ({"irq_pinning": ["one"]}, None, "receive work cannot be moved here"),
        ({"irq_pinning": ["none", "one", "two", "spread"]}, (1, 2), ""),
        ({"irq_pinning": "none"}, None, ""),
    ],
)
def test_a_factor_that_this_machine_cannot_vary_is_refused_with_the_reason(
    factors: dict[str, object], receivers: tuple[int, ...] | None, said: str
) -> None:
    reason = unavailable_reason(campaign(**factors), receivers)
    assert said in reason
    assert bool(said) == bool(reason)


def test_a_router_in_a_container_is_a_configuration_of_its_own_where_there_is_docker() -> None:
    design = campaign(platform=["namespace", "container"])
    assert unavailable_reason(design, (1,)) == ""
    assert {curve.levels["platform"] for curve in curves_of(design)} == {"namespace", "container"}
    reason = unavailable_reason(design, (1,), "there is none on this machine")
    assert reason.startswith("factors.platform: a router that is a container needs Docker")


def test_where_there_can_be_no_virtual_machine_a_router_that_is_one_is_refused() -> None:
    reason = unavailable_reason(campaign(platform="vm"), (1,), no_machines="there is no QEMU")
    assert reason == "factors.platform: a router that is a virtual machine: there is no QEMU"
    assert unavailable_reason(campaign(), (1,), no_machines="there is no QEMU") == ""


def test_each_ring_of_a_virtual_machines_nic_is_a_configuration_of_its_own() -> None:
    curves = curves_of(campaign(platform="vm", nic_ring=[256, 1024], ip_version=[4, 6]))
    cells = {(curve.levels["nic_ring"], curve.levels["ip_version"]) for curve in curves}
    assert cells == {(256, 4), (256, 6), (1024, 4), (1024, 6)}


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("sut: switch\n", 1, "sut"),
        ("sut: router\nfactors:\n  forwardin: xdp\n", 3, "unknown key `forwardin`"),
        ("sut: router\nfactors: {size_bytes: 64}\n", 2, "frames of IPv6"),
        ("sut: router\nfactors: {runs: [1, 1]}\n", 2, "runs names a level twice"),
        ("sut: router\nfactors: {nic_ring: 0}\n", 2, "nic_ring"),
        ("sut: router\nrepetitions: 1000\nfactors: {runs: [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]}\n",
         1, "11,000 curves"),
    ],
)  # fmt: skip
def test_a_campaign_that_makes_no_sense_is_one_sentence_with_its_line(
    text: str, line: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(text)
    with pytest.raises(BadInputError) as refused:
        load_any(path)
    assert said in refused.value.what
    assert str(refused.value.where).endswith(f":{line}")


def test_where_a_design_of_planes_is_wanted_a_campaign_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text("title: x\nsut: router\n")
    assert isinstance(load_any(path), CampaignDesign)
    with pytest.raises(BadInputError, match="a campaign of a router"):
        load_design(path)


def test_a_bridge_has_no_addresses_and_an_xdp_router_those_of_the_kernels() -> None:
    def lines(forwarding: str) -> list[str]:
        return "\n".join(map(str, plan_router("0badcafe", forwarding=forwarding))).splitlines()  # type: ignore[arg-type]

    assert not any(" address add " in line for line in lines("bridge"))
    assert sum(" master br0" in line for line in lines("bridge")) == 2
    kernel, xdp = lines("kernel"), lines("xdp")
    assert [line for line in xdp if line not in kernel] == [
        line for line in xdp if "router.bpf.o" in line
    ]
    assert len(xdp) == len(kernel) + 2


def test_a_router_that_is_a_virtual_machine_is_the_third_port_of_a_bridge_that_never_floods() -> (
    None
):
    lines = "\n".join(map(str, plan_router("0badcafe", platform="vm"))).splitlines()
    assert sum(" master br0" in line for line in lines) == 3
    entries = [line.split()[5] for line in lines if " fdb replace " in line]
    assert len(set(entries)) == 3
    of_ports = {word for line in lines if " veth " in line for word in line.split()[-3:]}
    assert not of_ports & set(entries[2:]), "a port's own address is the host's"
    assert not any(" address add " in line or "forwarding" in line for line in lines)
    tap = next(place for place, line in enumerate(lines) if "tuntap add" in line)
    assert tap > max(place for place, line in enumerate(lines) if line.startswith("while"))


class Silent:
    """Progress that is kept."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def begin(self, what: str, total_s: float) -> None: ...

    def step(self, what: str, done_s: float) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[SweepPlan]:
    """Every sweep that is asked for; each leaves a finished run, or fails where its load is 7."""
    plans: list[SweepPlan] = []

    def sweep(plan: SweepPlan, out: Path, *_: object) -> None:
        plans.append(plan)
        if plan.loads_pps == (7.0,):
            raise PlanewiseError("the generator limited them all")
        write(out, MadeUp(planes=("veth",), load_types=("none",), blocks=0, load_blocks=1))

    monkeypatch.setattr(campaigns, "sweep", sweep)
    return plans


def test_repetitions_have_the_ladder_of_the_first_and_a_second_call_measures_what_is_missing(
    asked: list[SweepPlan], tmp_path: Path
) -> None:
    design, out = CampaignDesign.model_validate(SMALL), tmp_path / "out"
    runs = campaigns.run_campaign(design, out, None, Silent())  # type: ignore[arg-type]
    assert len(runs) == len(asked) == 8
    assert [plan.loads_pps is None for plan in asked] == [True] * 4 + [False] * 4
    assert all(plan.within_reach for plan in asked)
    cut = RunReader(runs[2]).info.model_copy(update={"status": "interrupted"})
    with RunWriter.resume(runs[2]) as writer:
        writer.finish(cut)
    asked.clear()
    again = campaigns.run_campaign(design, out, None, Silent())  # type: ignore[arg-type]
    assert again == runs
    assert len(asked) == 1
    assert runs[2].with_name(f".{runs[2].name}.cut-short-1").exists()


def test_loads_of_an_earlier_ladder_that_the_generator_cannot_send_now_are_left_out() -> None:
    progress = Silent()
    assert reachable((1e5, 2e5, 4.6e5), 4.5e5, progress) == (1e5, 2e5)
    assert progress.notes == ["left out, because the generator sends 450 kpps now: 460 kpps"]
    assert reachable((1e5, 2e5), 4.5e5, progress) == (1e5, 2e5)
    assert len(progress.notes) == 1


def test_the_folder_of_another_campaign_is_refused(asked: list[SweepPlan], tmp_path: Path) -> None:
    design, out = CampaignDesign.model_validate(SMALL), tmp_path / "out"
    campaigns.run_campaign(design, out, None, Silent())  # type: ignore[arg-type]
    other = design.model_copy(update={"loads": 4})
    with pytest.raises(BadInputError, match="another campaign's curves"):
        campaigns.run_campaign(other, out, None, Silent())  # type: ignore[arg-type]


def test_three_curves_in_a_row_that_fail_end_the_campaign_with_the_cause(
    asked: list[SweepPlan], tmp_path: Path
) -> None:
    design = CampaignDesign.model_validate({**SMALL, "offered_pps": [7.0]})
    progress = Silent()
    with pytest.raises(PlanewiseError, match="the generator limited them all"):
        campaigns.run_campaign(design, tmp_path / "out", None, progress)  # type: ignore[arg-type]
    assert len(asked) == 3
    assert sum("failed: the generator" in note for note in progress.notes) == 3
