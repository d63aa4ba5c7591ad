"""Service chains as values: who sends to whom, who runs where, what bounds a trial, huge pages."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.errors import BadInputError, UnsupportedError
from planewise.measure.designs.cells import cells_of, expand
from planewise.measure.designs.design import Design
from planewise.measure.designs.design_file import load_design
from planewise.measure.trials.chain_readings import ReadingDelta, counts, kpi, result
from planewise.store.models import Limit
from planewise.testbed.chains import describe, dpdk
from planewise.testbed.chains.ends import CABLES
from planewise.testbed.chains.functions import parse_busy
from planewise.testbed.chains.model import (
    GENERATOR,
    IMIX,
    SWITCH,
    Chain,
    Placement,
    assign_cpus,
    mean_bytes,
)
from planewise.testbed.chains.reading import (
    ChainReading,
    CpuTime,
    PmdCycles,
    VnfCounters,
    cpu_times,
)
from planewise.testbed.chains.routing import function_guests, router_script, routing
from planewise.testbed.hosts import hugepages
from planewise.testbed.hosts.host import LocalHost, LocalProcess
from planewise.testbed.model import GuestKind
from planewise.testbed.switches.dpdk_switch import parse_cycles, parse_ports

# --- chains -------------------------------------------------------------------------------------


def test_north_south_every_function_sends_back_and_east_west_on_to_the_next() -> None:
    north = Chain("vhost-user", "north-south", 2)
    assert north.hops == (
        (GENERATOR, "vnf1"),
        ("vnf1", GENERATOR),
        (GENERATOR, "vnf2"),
        ("vnf2", GENERATOR),
    )
    assert north.entries == ("vnf1", "vnf2")
    east = Chain("vhost-user", "east-west", 3)
    assert east.hops == (
        (GENERATOR, "vnf1"),
        ("vnf1", "vnf2"),
        ("vnf2", "vnf3"),
        ("vnf3", GENERATOR),
    )
    assert east.entries == ("vnf1",)


@pytest.mark.parametrize(("plane", "kind"), [("bridge", "vm"), ("vf-passthrough", "container")])
def test_a_function_that_cannot_have_its_plane_is_refused(plane: str, kind: GuestKind) -> None:
    with pytest.raises(BadInputError, match=f"on {plane} cannot be "):
        Chain(plane, "east-west", 2, kind)


def test_the_mean_of_the_mix_is_that_of_the_simple_imix() -> None:
    assert mean_bytes("imix") == pytest.approx((7 * 64 + 4 * 594 + 1518) / 12)
    assert mean_bytes(512) == 512


def test_a_mix_is_spread_evenly_over_frames_of_the_benchmarking_addresses() -> None:
    sizes = dpdk.mixed(IMIX)
    assert sorted(sizes) == sorted([64] * 7 + [594] * 4 + [1518])
    assert max(len(run) for run in "".join("s" if s == 64 else " " for s in sizes).split()) <= 3
    file = dpdk.pcap(sizes)
    assert len(file) == 24 + sum(16 + size - 4 for size in sizes)
    one = dpdk.frame(594)
    assert len(one) == 590
    assert int.from_bytes(one[16:18]) == 590 - 14  # IPv4's total length
    assert (one[26:30], one[30:34]) == (bytes([198, 18, 0, 2]), bytes([198, 19, 0, 2]))
    words = [int.from_bytes(one[at : at + 2]) for at in range(14, 34, 2)]
    assert sum(words) % 0xFFFF == 0  # the header's checksum is right


# --- placement ----------------------------------------------------------------------------------

TASKS = (SWITCH, "vnf1", "vnf2", "vnf3")


def test_the_switch_has_a_core_to_itself_and_the_functions_go_round_on_the_others() -> None:
    assert assign_cpus(TASKS, [0, 1], {}).tasks == {0: (SWITCH,), 1: ("vnf1", "vnf2", "vnf3")}
    four = assign_cpus(TASKS, [3, 2, 1, 0], {})
    assert [four.cpu(task) for task in TASKS] == [0, 1, 2, 3]
    wanted = assign_cpus(TASKS, range(4), {SWITCH: (2, 3), "vnf": (0,)})
    assert wanted.cpus(SWITCH) == (2, 3)
    assert wanted.tasks[0] == ("vnf1", "vnf2", "vnf3")


@given(st.sets(st.integers(0, 200), min_size=2, max_size=20), st.integers(1, 8))
def test_every_task_has_a_core_that_may_be_used(cpus: set[int], vnfs: int) -> None:
    tasks = (SWITCH, *Chain("vhost-user", "north-south", vnfs).names)
    placed = assign_cpus(tasks, cpus, {})
    assert sorted(task for own in placed.tasks.values() for task in own) == sorted(tasks)
    assert set(placed.tasks) <= cpus
    assert placed.tasks[placed.cpu(SWITCH)] == (SWITCH,)


def test_one_core_or_one_that_is_not_ours_is_refused_with_the_way_out() -> None:
    with pytest.raises(UnsupportedError, match="needs two CPUs"):
        assign_cpus(TASKS, [5], {})
    with pytest.raises(UnsupportedError, match=r"CPU 7 of `cpus.vnf`"):
        assign_cpus(TASKS, [0, 1], {"vnf": (7,)})


# --- plans --------------------------------------------------------------------------------------


def test_the_steps_of_a_vhost_user_chain_say_what_is_taken_and_started() -> None:
    chain = Chain("vhost-user", "east-west", 2)
    said = describe.steps(chain, assign_cpus((SWITCH, *chain.names), [0, 1], {}))
    own = [one for one in said if not one.startswith(("ip ", "while "))]
    assert own[0] == "take 384 MiB of huge pages from the kernel"
    assert own[1] == "start ovs-vswitchd-dpdk with 256 MiB, polling on CPU 0"
    assert own[3].startswith("dpdk-testpmd --lcores 0@1,1@1 --in-memory")
    assert "--forward-mode=mac" in own[3]
    assert own[-1] == "forward generator to vnf1, vnf1 to vnf2, vnf2 to generator"


@pytest.mark.parametrize("kind", ["process", "container", "vm"])
def test_the_steps_of_a_kernel_chain_keep_to_the_benchmarking_addresses(kind: GuestKind) -> None:
    for pattern in ("north-south", "east-west"):
        chain = Chain("virtio-bridge" if kind == "vm" else "bridge", pattern, 8, kind)
        said = "\n".join(describe.steps(chain, assign_cpus((GENERATOR, *chain.names), [0, 1], {})))
        assert "198.18." in said
        for word in said.replace("/", " ").split():
            if word.count(".") == 3 and word.replace(".", "").isdigit():
                assert word.startswith(("198.18.", "198.19.")), word


def test_a_virtual_machine_is_told_the_way_on_and_back() -> None:
    chain = Chain("virtio-bridge", "east-west", 3, "vm")
    guests = function_guests("t", chain)

    def scripts(chain: Chain) -> dict[int, tuple[str, ...]]:
        steps = routing(chain, guests, CABLES.macs)
        return {number: router_script(steps, guest.netns) for number, guest in guests.items()}

    east = scripts(chain)
    assert "ip route replace 198.19.0.0/16 via 198.18.1.3 dev eth0" in east[2]
    assert f"arp -i eth0 -s 198.18.1.3 {guests[3].mac}" in east[2]
    assert "ip route replace 198.18.0.0/24 via 198.18.1.1 dev eth0" in east[2]
    north = scripts(Chain("virtio-bridge", "north-south", 3, "vm"))
    # The same destinations, so that what was told before is replaced.
    assert "ip route replace 198.19.0.0/16 dev eth0" in north[2]
    assert f"arp -i eth0 -s 198.19.2.2 {CABLES.macs[1]}" in north[2]
    assert all(lines[0] == "echo 1 >/proc/sys/net/ipv4/ip_forward" for lines in north.values())


@pytest.mark.parametrize(("plane", "kind"), [("virtio-bridge", "vm"), ("bridge", "container")])
def test_the_steps_of_guests_that_are_no_namespaces_are_said_in_their_order(
    plane: str, kind: GuestKind
) -> None:
    chain = Chain(plane, "east-west", 2, kind)
    said = describe.steps(chain, assign_cpus((GENERATOR, *chain.names), [0, 1], {}))
    starts = [n for n, one in enumerate(said) if one.startswith(("start the", "docker run"))]
    ports = [n for n, one in enumerate(said) if "f1 " in f"{one} " and "link" in one]
    ways_on = [n for n, one in enumerate(said) if "198.19.0.0/16" in one]
    assert len(starts) == 2
    # A virtual machine opens a port that is there, a container is there when it gets its port.
    assert (max(ports) < min(starts)) == (kind == "vm")
    assert max(ways_on) > max(*starts, *ports)
    made = [one for one in said if one.startswith("ip netns add")]
    assert not [one for one in made if "-v" in one]


# --- what the programs print --------------------------------------------------------------------

PORTS = """\
netdev@ovs-netdev:
  lookups: hit:26 missed:2 lost:1
  flows: 2
  port 0: ovs-netdev (tap)
    RX packets:0 errors:0 dropped:0 overruns:0 frame:0
    TX packets:0 errors:0 dropped:9 aborted:0 carrier:0
    collisions:0
    RX bytes:0  TX bytes:0
  port 3: vnf1 (dpdkvhostuserclient: configured_rx_queues=1, mtu=1500)
    RX packets:474240 errors:0 dropped:0 overruns:? frame:?
    TX packets:477024 errors:0 dropped:12735616 aborted:? carrier:?
    collisions:?
    RX bytes:28454400 (27.1 MiB)  TX bytes:28621440 (27.3 MiB)
"""

CYCLES = """\
pmd thread numa_id 0 core_id 0:
  packets received: 100
  idle cycles: 300 (75.00%)
  processing cycles: 100 (25.00%)
pmd thread numa_id 0 core_id 2:
  idle cycles: 1 (1.00%)
  processing cycles: 99 (99.00%)
main thread:
  packets received: 7
"""

FORWARDED = """\

  ---------------------- Forward statistics for port 0  ----------------------
  RX-packets: 614848         RX-dropped: 0             RX-total: 614848
  TX-packets: 613696         TX-dropped: 1152          TX-total: 614848
  ----------------------------------------------------------------------------

  +++++++++++++++ Accumulated forward statistics for all ports+++++++++++++++
  RX-packets: 614848         RX-dropped: 0             RX-total: 614848
  TX-packets: 613696         TX-dropped: 1152          TX-total: 614848
  ++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++++

  CPU cycles/packet=6646.41 (total cycles=5200000000 / total mac packets=614848) at 2600 MHz Clock
"""


def test_a_port_whose_function_is_gone_has_no_counters_and_hides_no_other() -> None:
    lost = PORTS.replace(
        "  port 0:", "  port 9: gone (dpdk: mtu=1500)\n, could not retrieve stats (x)  port 0:"
    )
    assert parse_ports(lost) == parse_ports(PORTS)


def test_counters_are_read_as_the_switch_and_its_functions_print_them() -> None:
    ports = parse_ports(PORTS)
    assert list(ports) == ["ovs-netdev", "vnf1"]
    assert (ports["vnf1"].rx_packets, ports["vnf1"].tx_dropped) == (474240, 12735616)
    assert ports["vnf1"].rx_bytes == 28454400
    assert parse_cycles(CYCLES) == PmdCycles(idle=301, busy=199)
    assert parse_busy(FORWARDED) == pytest.approx(2.0)
    assert parse_busy("") == 0


@given(st.text(max_size=400))
def test_what_no_program_prints_is_read_as_nothing(text: str) -> None:
    parse_ports(text)
    parse_cycles(text)
    parse_busy(text)


def test_cpu_time_is_that_of_proc_stat_with_guests_counted_once() -> None:
    text = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu3 100 0 200 300 50 10 40 0 100 0\nintr 5\n"
    assert cpu_times(text) == {3: CpuTime(7.0, 3.5, 0.5)}


# --- what bounds a trial ------------------------------------------------------------------------

ALONE = Placement({0: (SWITCH,), 1: ("vnf1",), 2: ("vnf2",)})
START = ChainReading(
    at_s=100.0,
    vnfs={"vnf1": VnfCounters(0, 0, 0), "vnf2": VnfCounters(0, 0, 0)},
    offered=0,
    delivered=0,
    cpus={cpu: CpuTime(0.0, 0.0, 0.0) for cpu in range(3)},
    tasks_s={SWITCH: 0.0, "vnf1": 0.0, "vnf2": 0.0},
    busy_s={"vnf1": 0.0, "vnf2": 0.0},
    polling=PmdCycles(0, 0),
)


def after(
    *,
    dropped: int = 0,
    switch_busy: float = 0.5,
    vnf_busy: float = 0.5,
    had: float = 1.0,
    seconds: float = 2.0,
) -> ReadingDelta:
    """Two seconds of a million packets a second through each of two functions."""
    end = replace(
        START,
        at_s=100.0 + seconds,
        vnfs={name: VnfCounters(2_000_000, 120_000_000, dropped) for name in ("vnf1", "vnf2")},
        offered=4_000_000 + 2 * dropped,
        delivered=4_000_000,
        cpus={cpu: CpuTime(seconds, 0.0, 0.0) for cpu in range(3)},
        tasks_s=dict.fromkeys((SWITCH, "vnf1", "vnf2"), had * seconds),
        busy_s=dict.fromkeys(("vnf1", "vnf2"), vnf_busy * seconds),
        polling=PmdCycles(idle=round(1000 * (1 - switch_busy)), busy=round(1000 * switch_busy)),
    )
    return ReadingDelta.of(START, end)


@pytest.mark.parametrize(
    ("between", "limit", "words"),
    [
        (after(switch_busy=1.0), "PMD core", "the switch spent 100 % of its core's time"),
        (after(switch_busy=1.0, vnf_busy=1.0, dropped=10**6), "VNF core", "vnf1 and vnf2 spent"),
        (after(switch_busy=1.0, dropped=10**6), "PMD core", "found its ring full"),
        (after(), "generator", "nothing was lost"),
        (after(dropped=10**6), "unknown", "no core was busy"),
        (after(had=0.6, switch_busy=1.0), "shared core", "other programs had 40 % of CPU 0"),
    ],
)
def test_what_bounds_a_chain_is_named_with_what_shows_it(
    between: ReadingDelta, limit: Limit, words: str
) -> None:
    found = result(between, ALONE, 64.0)
    assert found.limit == limit
    assert words in found.why


def test_functions_that_share_a_core_are_said_to_wait_for_one_another() -> None:
    shared = Placement({0: (SWITCH,), 1: ("vnf1", "vnf2")})
    between = after(switch_busy=1.0)
    end = replace(between.last, tasks_s={SWITCH: 2.0, "vnf1": 1.0, "vnf2": 1.0})
    found = result(ReadingDelta.of(START, end), shared, 64.0)
    assert found.limit == "shared core"
    assert found.why == "CPU 1 was shared by vnf1 and vnf2, each of which polls"
    assert found.cores[1].ours == 1.0


def test_throughput_is_what_all_functions_transmit_without_the_fcs() -> None:
    between = after(dropped=5)
    found = result(between, ALONE, 64.0)
    assert found.tx_pps == pytest.approx(2e6)
    assert found.tx_bps == pytest.approx(2e6 * 60 * 8)
    assert found.frame_bytes == pytest.approx(64)
    assert found.offered_pps == pytest.approx(2_000_005)
    assert [one.dropped for one in found.vnfs] == [5, 5]
    assert counts(between).lost == 10
    sample = kpi(between, datetime(2026, 1, 1, tzinfo=UTC), "t", {"vnfs": 2})
    assert sample.total.tx_pps == pytest.approx(2e6)
    assert sample.cpu == {"0": 1.0, "1": 1.0, "2": 1.0}


KERNEL = Placement({0: (GENERATOR,), 1: ("vnf1", "vnf2")})


@pytest.mark.parametrize(
    ("idle_s", "forwarding_s", "lost", "limit"),
    [
        (0.0, 2.0, 10**6, "kernel"),
        (0.0, 1.2, 10**6, "shared core"),
        (1.0, 1.0, 10**6, "unknown"),
        (1.0, 1.0, 0, "generator"),
    ],
)
def test_what_bounds_the_kernel_is_told_from_the_core_that_forwards(
    idle_s: float, forwarding_s: float, lost: int, limit: Limit
) -> None:
    start = replace(START, tasks_s={}, busy_s={}, polling=None, kernel_s={0: 0.0, 1: 0.0})
    end = replace(
        start,
        at_s=102.0,
        vnfs=after().last.vnfs,
        offered=4_000_000 + lost,
        delivered=4_000_000,
        cpus={0: CpuTime(2.0, 0.0, 0.0), 1: CpuTime(2.0, idle_s, 0.0)},
        kernel_s={0: 0.1, 1: forwarding_s},
    )
    between = ReadingDelta.of(start, end)
    assert result(between, KERNEL, 64.0).limit == limit
    guests = replace(between, last=replace(end, machines=True, host="responder"))
    found = result(guests, KERNEL, 64.0)
    assert found.limit == ("VNF core" if limit == "kernel" else limit)
    sample = kpi(guests, datetime(2026, 1, 1, tzinfo=UTC), "t", {"vnfs": 2})
    assert list(sample.cpu) == ["responder 0", "responder 1"]


def test_a_function_that_was_read_at_other_moments_has_a_rate_of_its_own() -> None:
    between = after()
    late = {name: replace(one, at_s=0.0) for name, one in between.first.vnfs.items()}
    late["vnf2"] = between.first.vnfs["vnf2"]
    last = {**between.last.vnfs, "vnf1": replace(between.last.vnfs["vnf1"], at_s=4.0)}
    found = result(
        ReadingDelta.of(replace(between.first, vnfs=late), replace(between.last, vnfs=last)),
        ALONE,
        64.0,
    )
    assert [one.tx_pps for one in found.vnfs] == pytest.approx([0.5e6, 1e6])
    assert found.tx_pps == pytest.approx(1.5e6)


# --- huge pages ---------------------------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """A root directory with a pool of 100 pages of 2 MiB, 40 of them in use."""
    (tmp_path / "proc/sys/vm").mkdir(parents=True)
    (tmp_path / "proc/sys/vm/nr_hugepages").write_text("100\n")
    (tmp_path / "proc/meminfo").write_text(
        "MemAvailable: 8000000 kB\nHugePages_Free: 60\nHugePages_Rsvd: 0\nHugepagesize: 2048 kB\n"
    )
    return tmp_path


def pages_in(machine: Path) -> int:
    # Empty while the shell that sets it has truncated it.
    return int((machine / "proc/sys/vm/nr_hugepages").read_text() or 0)


@pytest.fixture
def host() -> Iterator[LocalHost]:
    with closing(LocalHost("here")) as opened:
        yield opened


def test_huge_pages_are_added_and_given_back_even_when_others_took_some_meanwhile(
    machine: Path, host: LocalHost
) -> None:
    with hugepages.reserved(host, 64 << 20, str(machine)):
        assert pages_in(machine) == 132
        (machine / "proc/sys/vm/nr_hugepages").write_text("182\n")
    assert pages_in(machine) == 150


def test_a_killed_runs_huge_pages_are_given_back_by_their_keeper(
    machine: Path, host: LocalHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[LocalProcess] = []
    start = LocalHost.start

    def noted(self: LocalHost, *args: Any, **words: Any) -> LocalProcess:
        started.append(start(self, *args, **words))
        return started[-1]

    monkeypatch.setattr(LocalHost, "start", noted)
    with hugepages.reserved(host, 64 << 20, str(machine)):
        started[0].kill()
        started[0].wait()
        deadline = time.monotonic() + 10
        while pages_in(machine) != 100:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_runs_that_come_and_go_at_once_leave_the_pool_as_it_was(machine: Path) -> None:
    def take(_: int) -> None:
        with (
            closing(LocalHost("here")) as host,
            hugepages.reserved(host, 2 << 20, str(machine)),
        ):
            pass

    with ThreadPoolExecutor(4) as threads:
        for _ in threads.map(take, range(8)):
            pass
    assert pages_in(machine) == 100


def test_pages_that_are_free_already_serve_where_the_kernel_gives_no_more(
    machine: Path, host: LocalHost
) -> None:
    (machine / "proc/sys/vm/nr_hugepages").chmod(0o444)
    pool = machine / "proc/sys/vm/nr_hugepages"
    pool.unlink()
    pool.symlink_to("/dev/null")  # takes what is written and gives nothing
    with hugepages.reserved(host, 64 << 20, str(machine)):
        pass
    with (
        pytest.raises(UnsupportedError, match="needs 128 huge pages of 2 MiB on this machine"),
        hugepages.reserved(host, 256 << 20, str(machine)),
    ):
        pass


def test_too_little_memory_is_said_before_anything_is_taken(machine: Path, tmp_path: Path) -> None:
    why = hugepages.unavailable_reason(64 << 30, machine)
    assert why.startswith("it needs 65536 MiB of huge pages, and 7812 MiB")
    (tmp_path / "proc/meminfo").write_text("MemAvailable: 8000000 kB\n")
    assert "CONFIG_HUGETLBFS" in hugepages.unavailable_reason(1, tmp_path)


# --- designs ------------------------------------------------------------------------------------


def chain_design(**factors: object) -> Design:
    return Design.model_validate(
        {"factors": {"plane": "vhost-user", "guest": "process", **factors}, "chain": {}}
    )


def test_a_chain_of_one_function_is_one_cell_whatever_its_path() -> None:
    design = chain_design(path=["north-south", "east-west"], vnfs=[1, 2], size_bytes=[64, "imix"])
    assert [(cell.path, cell.vnfs) for cell in cells_of(design)] == [
        ("north-south", 1),
        ("north-south", 2),
        ("east-west", 2),
    ]
    sizes = ({"size_bytes": 64}, {"size_bytes": "imix"})
    assert all(traffic == {"chain": sizes} for traffic in expand(design).values())
    assert cells_of(design)[0].levels() == {
        "plane": "vhost-user",
        "guest": "process",
        "path": "north-south",
        "vnfs": 1,
    }


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("factors:\n  plane: vhost-user\n  guest: process\n  vnfs: 0\nchain: {}", 4, "1 to 8"),
        (
            "factors:\n  plane: vhost-user\n  guest: process\n  vnfs: 9\nchain: {}",
            4,
            "`9` must be at most 8",
        ),
        (
            "factors:\n  plane: bridge\n  vnfs: 2\nchain: {}",
            1,
            "on bridge are processes or containers, not network namespaces",
        ),
        (
            "factors:\n  plane: virtio-bridge\n  guest: container\n  vnfs: 2\nchain: {}",
            2,
            "a container cannot have the plane virtio-bridge",
        ),
        (
            "factors:\n  plane: [vf, vf-passthrough]\n  guest: [process, vm]\n  vnfs: 2\nchain: {}",
            2,
            "a virtual machine cannot have the plane vf",
        ),
        (
            "factors:\n  plane: macvtap-bridge\n  guest: vm\n  vnfs: 2\nchain: {}",
            2,
            "no chain is built on the plane macvtap-bridge",
        ),
        ("factors:\n  plane: bridge\n  guest: process\nrtt: {}", 3, "`vnfs` is 0"),
        ("factors:\n  plane: bridge\n  size_bytes: imix", 3, "imix is for chains"),
        (
            "factors: {plane: bridge, guest: process, vnfs: 1}\nchain: {}\nsweep: {}",
            3,
            "not in one design with `chain`",
        ),
        (
            "factors:\n  plane: bridge\n  guest: process\n  vnfs: 2\ntcp: {}",
            5,
            "goes through all functions",
        ),
        (
            "factors: {plane: bridge, guest: process, vnfs: 1, size_bytes: 9000}\nchain: {}",
            1,
            "1518",
        ),
        ("factors: {plane: bridge}\nchain:\n  cpus: {vfn: 1}", 3, "unknown key `vfn`"),
    ],
)
def test_what_no_chain_can_be_is_refused_with_its_line(
    text: str, line: int, words: str, tmp_path: Path
) -> None:
    path = tmp_path / "design.yaml"
    path.write_text(text)
    with pytest.raises(BadInputError) as caught:
        load_design(path)
    assert f"{path}:{line}: " in caught.value.what
    assert words in caught.value.what
    assert caught.value.remedy
