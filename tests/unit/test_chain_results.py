"""A run of chains as data: what is recommended, compared and reported of it."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from planewise.advise.evidence import one_kind
from planewise.advise.recommend import recommend
from planewise.report import html
from planewise.report.data import RunData
from planewise.report.sections import schedule
from planewise.report.sections.chains import chain_cells, chain_figures, frames_table
from planewise.store.models import (
    ChainResult,
    CoreUse,
    Counts,
    FrameAccount,
    KpiSample,
    Level,
    Limit,
    TcpResult,
    Throughput,
    TrialRecord,
    VnfTotal,
)
from planewise.store.rundir import KPIS_FILE, RunReader, RunWriter
from planewise.units import bits_text
from tests.command import invoked
from tests.kpis import kpis
from tests.unit import made_up_run

STARTED = datetime(2026, 3, 14, 9, 26, 53, tzinfo=UTC)
BLOCKS = 9
WHY = {
    "PMD core": "the switch spent 99 % of its core's time on packets",
    "shared core": "CPU 1 was shared by vnf1 and vnf2, each of which polls",
    "kernel": "CPU 1, on which vnf1 forwarded, did so for 98 % of the time",
}


def chain(plane: str, path: str, vnfs: int, size: int | str, pps: float, block: int) -> TrialRecord:
    """One trial; `bridge` is bound by the kernel, a chain of three shares a core."""
    limit: Limit = "kernel" if plane == "bridge" else "PMD core"
    if vnfs == 3:
        limit = "shared core"
    pps *= 1 + block / 1000
    frame_bytes = 361.8 if size == "imix" else float(size)
    bps = pps * 8 * (frame_bytes - 4)
    each = [
        VnfTotal(name=f"vnf{number + 1}", tx_packets=1, tx_pps=pps / vnfs, tx_bps=bps / vnfs)
        for number in range(vnfs)
    ]
    cell: dict[str, Level] = {
        "plane": plane,
        "guest": "process",
        "path": path,
        "vnfs": vnfs,
        "size_bytes": size,
    }
    return made_up_run.trial(
        f"chain:{plane},process,{path},{vnfs},{size}#r{block}",
        "chain",
        cell,
        block,
        started=STARTED + timedelta(minutes=block),
        duration_s=2,
        counts=Counts(sent=30, received=10, lost=20),
        chain=ChainResult(
            offered_pps=3 * pps,
            delivered_pps=pps,
            tx_pps=pps,
            tx_bps=bps,
            frame_bytes=frame_bytes,
            vnfs=tuple(each),
            cores=(CoreUse(cpu=0, tasks=("switch",), used=1, ours=0.99, working=0.98),),
            limit=limit,
            why=WHY[limit],
        ),
        limits=() if limit == "shared core" else ("sut",),
    )


def write(path: Path, trials: list[TrialRecord]) -> RunReader:
    info = made_up_run.info("Chains")
    with RunWriter.create(path, info) as writer:
        for order, trial in enumerate(trials):
            writer.append(trial.model_copy(update={"order": order}))
        writer.recommend(recommend(trials, info))
    return RunReader(path)


@pytest.fixture
def run(tmp_path: Path) -> RunReader:
    """The bridge carries more north-south, vhost-user east-west."""
    rates = {
        ("bridge", "north-south"): 9e6,
        ("vhost-user", "north-south"): 7e6,
        ("bridge", "east-west"): 2e6,
        ("vhost-user", "east-west"): 8e6,
    }
    return write(
        tmp_path / "run",
        [
            chain(plane, path, vnfs, size, pps, block)
            for block in range(BLOCKS)
            for (plane, path), pps in rates.items()
            for vnfs in (2, 3)
            for size in (64, "imix")
        ],
    )


def test_the_answer_tells_the_paths_apart_and_what_bounds_each_plane(run: RunReader) -> None:
    advice = run.recommendation()
    assert advice is not None
    assert advice.plane is None
    assert "East-west: use vhost-user" in advice.headline
    assert "north-south: use bridge" in advice.headline
    assert (
        "what bound vhost-user: the switch's polling core in 36, cores that were shared in 36"
        in (" ".join(advice.reasons))
    )
    assert "in 72 of 144 trials tasks that poll shared a core" in advice.reservations[0]
    assert not any("round-trip" in one for one in (advice.headline, *advice.reasons))


def test_chains_are_compared_by_what_they_transmit(run: RunReader) -> None:
    told = invoked("compare", run.path, "--by", "path", "--metric", "all", "--json")
    assert told.exit_code == 0, told.output
    found = {one["metric"]: one for one in json.loads(told.stdout)["families"]}
    assert set(found) == {"transmitted", "transmitted_bits"}
    plain = invoked("compare", run.path, "--by", "path")
    assert "packets that all functions transmit" in plain.stdout


def test_the_report_draws_every_chain_and_says_what_bounds_it(run: RunReader) -> None:
    page = html.render(run)
    assert "Throughput of chains" in page
    for words in (*WHY.values(), "IMIX", "figure-chains-pps", "figure-chains-bps"):
        assert words in page.replace("\u00a0", " ").replace("&#39;", "'"), words


def test_functions_of_several_kinds_on_one_plane_are_told_apart(tmp_path: Path) -> None:
    trials = [
        one.model_copy(update={"trial": f"{kind}{one.trial}", "cell": {**one.cell, "guest": kind}})
        for kind, rate in (("process", 2e6), ("container", 1e6))
        for one in (chain("bridge", "east-west", vnfs, 64, rate, 0) for vnfs in (1, 2))
    ]
    trials.append(chain("vhost-user", "east-west", 2, 64, 3e6, 0))
    data = RunData(write(tmp_path / "run", trials))
    assert {(cell.plane, round(cell.pps[0])) for cell in chain_cells(data) if cell.vnfs == 2} == {
        ("bridge, process", 2_000_000),
        ("bridge, container", 1_000_000),
        ("vhost-user", 3_000_000),
    }
    packets, *_ = chain_figures(chain_cells(data))
    drawn = json.dumps(packets.whole())
    assert all(label in drawn for label in ("bridge, process", "bridge, container", "vhost-user"))


def test_goodput_is_reported_by_message_size(tmp_path: Path) -> None:
    trials = [
        made_up_run.trial(
            f"tcp:{plane},{message}#r{block}",
            "tcp",
            {"plane": plane, "path": "north-south", "message_bytes": message},
            block,
            duration_s=2,
            tcp=TcpResult(goodput_bps=rate * message, message_bytes=message, retransmits=3),
        )
        for block in range(BLOCKS)
        for plane, rate in (("veth", 2e5), ("bridge", 1e5))
        for message in (64, 65536)
    ]
    run = write(tmp_path / "run", trials)
    advice = run.recommendation()
    assert advice is not None
    assert advice.plane == "veth"
    assert bits_text(2e5 * 65536) in " ".join(advice.reasons)
    page = html.render(run)
    assert "TCP throughput" in page
    data = RunData(run)
    order = schedule.figure(schedule.visits(data), data)
    assert {row[4] for row in order.table.rows} == {"TCP"}
    assert "65536 bytes" in page


def test_goodput_of_guests_of_several_kinds_is_compared_kind_by_kind(tmp_path: Path) -> None:
    """The best plane of all and the next may have met nowhere: VMs have planes of their own."""
    rates = {
        "namespace": {"macvlan": 3e5, "veth": 2e5},
        "vm": {"e1000-bridge": 2e4, "virtio-bridge": 1e4},
    }
    trials = [
        made_up_run.trial(
            f"tcp:{plane},{message}#r{block}",
            "tcp",
            {"guest": guest, "plane": plane, "path": "north-south", "message_bytes": message},
            block,
            duration_s=2,
            tcp=TcpResult(goodput_bps=rate * message, message_bytes=message, retransmits=3),
        )
        for block in range(BLOCKS)
        for guest, planes in rates.items()
        for plane, rate in planes.items()
        for message in (64, 65536)
    ]
    advice = write(tmp_path / "run", trials).recommendation()
    assert advice is not None
    assert advice.plane is None
    namespaces, machines = advice.headline.split("; ")
    assert namespaces.startswith("Namespaces: use macvlan: it carries ")
    assert machines.startswith("virtual machines: use e1000-bridge: it carries ")


def test_seconds_of_a_trial_measured_twice_are_those_of_the_second_time(
    run: RunReader, tmp_path: Path
) -> None:
    trial = run.trials()[0]
    rate = Throughput(tx_pps=1, tx_bps=2)

    def sample(at: datetime) -> KpiSample:
        return KpiSample(
            at=at, trial=trial.trial, cell=trial.cell, interval_s=1, vnfs={"vnf1": rate},
            total=rate, cpu={"0": 1.0},
        )  # fmt: skip

    with RunWriter.resume(run.path) as writer:
        writer.sample(sample(trial.started - timedelta(seconds=5)))
        writer.sample(sample(trial.started + timedelta(seconds=1)))
    with (run.path / KPIS_FILE).open("a") as file:
        file.write('{"at": "2026-')  # torn by a kill
    assert len(kpis(run.path)) == 2
    assert [one.at for one in kpis(run.path, trial)] == [trial.started + timedelta(seconds=1)]


def test_what_routes_beside_an_xdp_program_is_the_planes_evidence() -> None:
    """Where all cells name what forwards, nothing was evidence but what polls."""
    trial = chain("bridge", "east-west", 2, 64, 1e5, 0)
    kernel, xdp, plain = (
        trial.model_copy(update={"cell": trial.cell | more})
        for more in ({"forwarder": "kernel"}, {"forwarder": "xdp"}, {})
    )
    assert one_kind([kernel, xdp]) == [kernel]
    assert one_kind([plain]) == [plain]
    assert one_kind([xdp]) == []


def test_frames_of_others_have_a_column_where_some_came_to_the_end(tmp_path: Path) -> None:
    for foreign in (0, 7):
        trial = chain("bridge", "north-south", 2, 64, 1e6, 0)
        frames = FrameAccount(sent=30, received=29, lost={"to vnf1": 1}, foreign=foreign)
        assert trial.chain is not None
        result = trial.chain.model_copy(update={"frames": frames})
        reader = write(tmp_path / str(foreign), [trial.model_copy(update={"chain": result})])
        table = frames_table(chain_cells(RunData(reader)))
        (row,) = table.rows
        told = dict(zip(table.columns, map(str, row), strict=True))
        assert told["Lost, by place"] == "1 to vnf1"
        assert ("Other frames at the end" in told) == bool(foreign)
        assert not foreign or "7" in told["Other frames at the end"]
