"""Functions of chains by forwarder, guest and plane; accounts of frames; a switch's uplink."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.boot import initramfs
from planewise.boot.model import Kernel
from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.measure.designs.cells import cells_of
from planewise.measure.designs.design import Design
from planewise.measure.designs.design_file import load_design
from planewise.measure.runs.chains import Chains
from planewise.measure.trials.chain_readings import ReadingDelta, result
from planewise.store.models import FrameAccount
from planewise.testbed.chains import describe, ends
from planewise.testbed.chains.account import account, at_rest, frame_path
from planewise.testbed.chains.dpdk import memory_bytes, uplinks
from planewise.testbed.chains.ends import CABLES
from planewise.testbed.chains.forwarders import GUEST_PROGRAMS, Pollers, _remarks
from planewise.testbed.chains.functions import Function, parse_port
from planewise.testbed.chains.generator import came_back, commands
from planewise.testbed.chains.model import GENERATOR, SWITCH, Chain, Placement, assign_cpus
from planewise.testbed.chains.reading import VnfCounters
from planewise.testbed.chains.routing import function_guests, peers
from planewise.testbed.chains.testbed import _missing
from planewise.testbed.guests.kernel import Namespaces
from planewise.testbed.guests.kind import PlacedGuest
from planewise.testbed.guests.vms import image
from planewise.testbed.guests.vms.domain import Nic, nic_xml
from planewise.testbed.hosts.counters import HostCounters
from planewise.testbed.hosts.host import FinishedProcess, Host
from planewise.testbed.hosts.machine import MachineState
from planewise.testbed.model import Forwarder, GuestKind
from planewise.testbed.planes import plane as plane_called
from planewise.testbed.switches.dpdk_switch import SWITCH_BYTES
from planewise.testbed.vfs.nic import Config, ListedVf
from tests.unit import test_chains as tc


def loaded(tmp_path: Path, text: str) -> Design:
    path = tmp_path / "design.yaml"
    path.write_text(text)
    return load_design(path)


def test_one_design_holds_functions_of_several_forwarders_guests_and_planes(tmp_path: Path) -> None:
    design = loaded(
        tmp_path,
        "functions:\n"
        "  - {forwarder: testpmd, plane: vhost-user}\n"
        "  - {forwarder: kernel, plane: bridge}\n"
        "  - {forwarder: kernel, guest: vm, plane: virtio-bridge}\n"
        "factors: {path: east-west, vnfs: 2}\nchain: {}\n",
    )
    assert [(cell.plane, cell.guest) for cell in cells_of(design)] == [
        ("vhost-user", "process"),
        ("bridge", "process"),
        ("virtio-bridge", "vm"),
    ]
    # What forwards by itself is not a level: such cells are those of designs without `functions`.
    assert not any("forwarder" in cell.levels() for cell in cells_of(design))
    # Where one function does not, all say what they forward by: like is compared with like.
    brief = loaded(
        tmp_path,
        "functions:\n"
        "  - {forwarder: testpmd, plane: [vf, vhost-user]}\n"
        "  - {forwarder: kernel, guest: vm, plane: virtio-bridge}\n"
        "factors: {path: east-west, vnfs: 2}\nchain: {uplink: af_packet}\n",
    )
    assert [cell.levels()["forwarder"] for cell in cells_of(brief)] == [
        "testpmd",
        "testpmd",
        "kernel",
    ]


def test_functions_are_crossed_with_planes_and_what_cannot_be_says_why(tmp_path: Path) -> None:
    design = loaded(
        tmp_path,
        "functions: [{forwarder: testpmd}, {forwarder: kernel}]\n"
        "factors: {plane: [vhost-user, bridge], path: east-west, vnfs: 2}\nchain: {}\n",
    )
    refused = Chains(design).unavailable(cells_of(design))
    assert {
        (cell.plane, cell.forwarder): why for cell, why in refused.items() if cell.forwarder
    } == {
        ("vhost-user", "kernel"): "such a function has a ring in shared memory, and no interface "
        "that a kernel could route on (on vhost-user, processes)",
        ("bridge", "testpmd"): "dpdk-testpmd polls a device of its own, and the interface "
        "of such a function is a kernel's (on bridge, processes)",
    }


@pytest.mark.parametrize(
    ("functions", "line", "words"),
    [
        ("[{forwarder: kernel, plane: vhost-user}]", 1, "a ring in shared memory"),
        ("[{forwarder: testpmd, plane: bridge}]", 1, "dpdk-testpmd polls a device"),
        ("[{forwarder: xdp, plane: vhost-user}]", 1, "no interface that could have an XDP"),
        ("[{forwarder: kernel, plane: macvlan}]", 1, "no chain is built on the plane macvlan"),
        ("[{forwarder: kernel, guest: vm, plane: bridge}]", 1, "on bridge cannot be virtual"),
        ("[{forwarder: kernel, plane: nowhere}]", 2, "no plane called 'nowhere'"),
        ("[{forwarder: kernle, plane: bridge}]", 1, "forwarder"),
        ("[{plane: bridge}]", 1, "forwarder"),
    ],
)
def test_a_function_that_cannot_be_is_refused_with_its_line(
    functions: str, line: int, words: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInputError) as caught:
        loaded(
            tmp_path, f"functions: {functions}\nfactors: {{path: east-west, vnfs: 2}}\nchain: {{}}"
        )
    assert f"design.yaml:{line}: " in caught.value.what
    assert words in caught.value.what


# --- what became of every frame -----------------------------------------------------------------


def test_every_frame_that_is_not_received_is_lost_at_a_place() -> None:
    chain = Chain("vhost-user", "east-west", 2)
    before = frame_path(chain, 10, 5, {"vnf1": (9, 8), "vnf2": (7, 6)}, (10, 5))
    after = frame_path(chain, 110, 65, {"vnf1": (99, 98), "vnf2": (87, 76)}, (110, 66))
    found = account(before, after)
    assert (found.sent, found.received) == (100, 60)
    assert found.lost == {
        "to vnf1": 10,
        "to vnf2": 10,
        "in vnf2": 10,
        "from vnf2": 9,
        "out of the switch": 1,
    }
    north = Chain("bridge", "north-south", 2)
    counted = frame_path(north, 100, 80, {"vnf1": (50, 45), "vnf2": (45, 40)})
    nothing = frame_path(north, 0, 0, {"vnf1": (0, 0), "vnf2": (0, 0)})
    assert account(nothing, counted).lost == {
        "to the functions": 5,
        "in vnf1": 5,
        "in vnf2": 5,
        "from the functions": 5,
    }


def test_a_frame_of_somebody_else_that_the_switch_drops_is_no_frame_won_and_none_lost() -> None:
    """Seen in the lab: a NIC's multicast came in by the uplink, and no flow took it."""
    chain = Chain("vhost-user", "east-west", 1)
    before = frame_path(chain, 0, 0, {"vnf1": (0, 0)}, (0, 0))
    after = frame_path(chain, 100, 90, {"vnf1": (100, 95)}, (103, 90))
    found = account(before, after)
    assert (found.sent, found.received) == (100, 90)
    assert found.lost == {"in vnf1": 5, "from vnf1": 5}


def test_a_frame_of_somebody_else_at_the_end_hides_no_loss_and_is_counted_apart() -> None:
    """Seen on virtio-ovs: a guest's multicast reached the end, and -1 was lost on the way there."""
    chain = Chain("virtio-ovs", "east-west", 1, "vm")
    before = frame_path(chain, 0, 0, {"vnf1": (0, 0)})
    whole = frame_path(chain, 100, 101, {"vnf1": (100, 101)})
    for foreign in (1, None):
        found = account(before, whole, foreign)
        assert (found.sent, found.received, found.lost, found.foreign) == (100, 100, {}, 1)
    # One of ours was lost, and one of somebody else's came: the counters alone say that all came.
    found = account(before, frame_path(chain, 100, 100, {"vnf1": (100, 100)}), 1)
    assert (found.received, found.lost, found.foreign) == (99, {"from vnf1": 1}, 1)


def test_what_came_back_was_lost_nowhere_on_its_way_whatever_a_counter_says_yet() -> None:
    chain = Chain("virtio-ovs", "east-west", 1, "vm")
    before = frame_path(chain, 0, 0, {"vnf1": (0, 0)})
    found = account(before, frame_path(chain, 100, 100, {"vnf1": (100, 98)}), 0)
    assert (found.received, found.lost, found.foreign) == (100, {}, 0)


def test_streams_whose_frames_are_far_apart_leave_the_cpu_to_functions_in_between() -> None:
    chain = Chain("vhost-user", "north-south", 4, "container", "testpmd")
    macs = {number: f"02:00:00:00:00:0{number}" for number in range(1, 5)}

    def sleeps(pps: float) -> list[bool]:
        given = commands(chain, "imix", 1.0, pps, ends=("eth0@a", "eth0@b"), macs=macs)
        return ["af_packet" in arguments for arguments in given]

    assert sleeps(2_000) == [True] * 12
    # 7 : 4 : 1 of 10 kpps a function: those of 1518 bytes are 833 a second.
    assert sleeps(40_000) == [False, True, True] * 4
    assert not any(sleeps(1e6))


def test_what_a_probe_saw_of_its_frames_is_told_by_their_content() -> None:
    report = {
        "received": 7,
        "late": 1,
        "duplicate": 3,
        "foreign": 5,
        "warmup": {"sent": 2, "received": True, "arrived": 2},
        "sink": {"backend": "af_packet", "packets": 18, "dropped": 4},
    }
    assert came_back(report) == 14


@given(
    st.lists(st.integers(0, 10**9), min_size=6, max_size=6),
    st.booleans(),
    st.none() | st.integers(0, 10**9),
)
def test_frames_lost_by_place_add_up_to_those_that_did_not_come_back(
    counts: list[int], through: bool, foreign: int | None
) -> None:
    chain = Chain("bridge", "east-west" if through else "north-south", 2)
    sent, received, *own = counts
    functions = {"vnf1": (own[0], own[1]), "vnf2": (own[2], own[3])}
    nothing = frame_path(chain, 0, 0, {"vnf1": (0, 0), "vnf2": (0, 0)})
    found = account(nothing, frame_path(chain, sent, received, functions), foreign)
    assert found.sent == sent
    assert all(frames > 0 for frames in found.lost.values())
    assert found.received + found.foreign == received


def test_counters_are_read_once_no_frame_is_on_its_way() -> None:
    chain = Chain("bridge", "north-south", 1)
    looks = iter([frame_path(chain, 9, left, {"vnf1": (9, left)}) for left in (3, 8, 9, 9, 1)])
    assert at_rest(lambda: next(looks), 60.0)["from vnf1"] == 9


# --- a switch's uplink --------------------------------------------------------------------------


def test_a_paced_generator_behind_an_uplink_is_the_limit_where_nothing_is_lost() -> None:
    first = replace(tc.START, uplink=(0, 0))
    end = replace(tc.after(had=0.3).last, uplink=(4_000_000, 4_000_000))
    whole = ReadingDelta.of(first, end)
    assert result(whole, tc.ALONE, 64.0).limit == "generator"
    # What was lost by the account of all frames counts, not the two looks at running counters.
    told = FrameAccount(sent=100, received=50, lost={"to vnf1": 50})
    assert result(whole, tc.ALONE, 64.0, told).limit == "shared core"


def test_packets_lost_on_the_way_into_an_idle_switch_are_the_uplinks() -> None:
    end = replace(tc.after().last, offered=8_000_000, uplink=(4_000_000, 4_000_000))
    found = result(ReadingDelta.of(replace(tc.START, uplink=(0, 0)), end), tc.ALONE, 64.0)
    assert found.limit == "uplink"
    assert found.why == (
        "50 % of the packets were lost between generator and switch, whose core had 50 % of its "
        "time left"
    )


def test_a_switch_is_fed_by_two_cables_or_by_the_only_nic() -> None:
    first, last = uplinks("af_packet", CABLES.nics, (0, 1))
    assert (first.cpu, last.cpu) == (0, 1)
    assert "net_af_packet0,iface=up0," in first.options["dpdk-devargs"]
    (only,) = uplinks("af_xdp", ("eth9", "eth9"), (0, 1))
    assert only.options["dpdk-devargs"] == "net_af_xdp0,iface=eth9"
    placement = assign_cpus((SWITCH, GENERATOR, "vnf1", "vnf2"), range(4), {})
    said = describe.steps(Chain("vhost-user", "north-south", 2), placement, uplink="af_packet")
    assert any("net_af_packet1,iface=up1" in one for one in said)


# --- functions that poll VFs ---------------------------------------------------------------------


def test_functions_that_poll_send_to_the_next_or_to_the_end() -> None:
    east = Chain("vf", "east-west", 3, forwarder="testpmd")
    guests = function_guests("t", east)
    found = {number: replace(guest, mac="?abc"[number]) for number, guest in guests.items()}
    assert peers(east, found, "end") == {1: "b", 2: "c", 3: "end"}
    north = Chain("vf", "north-south", 3, forwarder="testpmd")
    assert set(peers(north, found, "end").values()) == {"end"}
    one = Chain("vf", "north-south", 1, forwarder="testpmd")
    lines = describe.steps(one, Placement({0: ("vnf1",)}), "eth9")
    (command,) = [line for line in lines if "dpdk-testpmd" in line]
    assert "--eth-peer=0,<MAC of the receiving end>" in command


PORT = """
  ######################## NIC statistics for port 0  ########################
  RX-packets: {rx}       RX-missed: 7          RX-bytes:  60
  RX-errors: 0
  RX-nombuf:  0
  TX-packets: {tx}       TX-errors: 0          TX-bytes:  120
"""


@dataclass
class Answering:
    """A function that answers what it is told to."""

    answers: list[tuple[int, int]]
    name: str = "vnf1"
    alive: bool = True

    def port_stats(self) -> VnfCounters:
        rx, tx = self.answers.pop(0)
        return parse_port(PORT.format(rx=rx, tx=tx))


NOTHING = HostCounters(0.0, "", {}, {})


def pollers_of(function: Answering) -> Pollers:
    chain = Chain("vf", "north-south", 1, forwarder="testpmd")
    state = cast("MachineState", SimpleNamespace(token="t"))
    vf = ListedVf(index=0, address="0000:01:10.0", driver="ixgbevf", config=Config(mac="m"))
    site = ends.site_of("br0", CABLES.nics)
    placed = {1: PlacedGuest(function_guests("t", chain)[1], site, vf=vf)}
    made = Pollers(chain, Placement({0: chain.names}), Namespaces(state), placed, ExitStack())
    made._functions[1] = cast("Function", function)
    return made


def test_a_vfs_counters_are_read_with_what_found_its_ring_full() -> None:
    (sent,) = pollers_of(Answering([(3, 2)])).read(NOTHING).values()
    assert (sent.received, sent.packets, sent.bytes, sent.dropped) == (3, 2, 120, 7)


@pytest.mark.parametrize("now", [(2**32 - 1, 10), (0, 0)])
def test_a_pf_that_went_down_and_up_below_a_function_is_said(now: tuple[int, int]) -> None:
    pollers = pollers_of(Answering([(10, 10), now]))
    pollers.read(NOTHING)
    with pytest.raises(PlanewiseError, match="its PF went down and up"):
        pollers.read(NOTHING)


def test_a_function_that_died_is_named() -> None:
    with pytest.raises(PlanewiseError, match="vnf1 ended while it was measured"):
        pollers_of(Answering([], alive=False)).read(NOTHING)


# --- virtual machines on vhost-user --------------------------------------------------------------


def test_a_vhost_user_nic_is_a_socket_at_which_the_virtual_machine_listens() -> None:
    xml = nic_xml(Nic("virtio", "02:70:77:42:00:01", socket="/run/vnf1.sock")).replace("'", '"')
    assert 'type="vhostuser"' in xml
    assert 'path="/run/vnf1.sock" mode="server"' in xml
    assert 'csum="off"' in xml


def test_functions_that_route_behind_a_dpdk_switch_take_no_huge_pages_and_want_an_uplink(
    tmp_path: Path,
) -> None:
    chain = Chain("vhost-user", "east-west", 2, "vm")
    assert memory_bytes(chain) == SWITCH_BYTES
    placement = assign_cpus((SWITCH, GENERATOR, "vnf1", "vnf2"), range(4), {})
    steps = describe.steps(chain, placement, uplink="af_packet")
    assert any("-v2 on CPU 3, with shared memory and a vhost-user NIC" in one for one in steps)
    design = loaded(
        tmp_path,
        "functions: [{forwarder: kernel, guest: vm, plane: vhost-user}]\n"
        "factors: {path: east-west, vnfs: 2}\nchain: {}\n",
    )
    (why,) = Chains(design).unavailable(cells_of(design)).values()
    assert why == "functions that route need IP traffic from outside: give `chain.uplink` a driver"


# --- functions that poll in virtual machines -----------------------------------------------------


@pytest.mark.parametrize("plane", ["vhost-user", "virtio-bridge"])
def test_a_machine_that_polls_is_given_its_nic_and_no_huge_pages_of_the_host(plane: str) -> None:
    chain = Chain(plane, "east-west", 2, "vm", "testpmd")
    assert memory_bytes(chain) == (SWITCH_BYTES if plane == "vhost-user" else 0)
    placement = assign_cpus((SWITCH, GENERATOR, "vnf1", "vnf2"), range(4), {})
    steps = describe.steps(chain, placement, uplink="af_packet")
    told = [one for one in steps if "-v1: " in one]
    assert told[0].endswith("bind it to uio_pci_generic")
    assert "dpdk-testpmd" in told[1]
    assert "--eth-peer=0,02:70:77:0f:00:02 " in told[1]
    # Nothing routes in it.
    assert not any("ip route" in one for one in steps)


def test_machines_that_poll_need_no_ip_from_outside(tmp_path: Path) -> None:
    design = loaded(
        tmp_path,
        "functions: [{forwarder: testpmd, guest: vm, plane: vhost-user}]\n"
        "factors: {path: east-west, vnfs: 2}\nchain: {}\n",
    )
    refused = Chains(design).unavailable(cells_of(design)).values()
    assert not any("want IP" in why for why in refused)


def test_what_machines_that_poll_behind_a_bridge_lose_is_no_rings_of_a_switch() -> None:
    """No switch polls there, and QEMU has the function's core, too."""
    first = replace(tc.START, polling=None, machines=True)
    end = replace(tc.after().last, offered=8_000_000, polling=None, machines=True)
    found = result(ReadingDelta.of(first, end), tc.ALONE, 64.0)
    assert found.limit == "VNF core"
    assert "QEMU" in found.why
    whole = replace(end, offered=end.delivered)
    assert result(ReadingDelta.of(first, whole), tc.ALONE, 64.0).limit == "generator"


def test_a_machine_that_polls_is_given_what_the_program_loads_by_itself(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib/x/dpdk/pmds-23.0/librte_net_virtio.so"
    with pytest.raises(UnsupportedError, match="dpdk-testpmd has no /usr/lib/"):
        initramfs._plug_ins("dpdk-testpmd", tmp_path)
    library.parent.mkdir(parents=True)
    for name in ("mempool_ring", "net_virtio", "net_e1000", "net_iavf"):
        (library.parent / f"librte_{name}.so").touch()
    assert library in initramfs._plug_ins("dpdk-testpmd", tmp_path)
    assert initramfs._plug_ins("iperf3", tmp_path) == []


def test_a_kernel_that_cannot_lend_a_nic_to_a_program_is_refused(tmp_path: Path) -> None:
    found = Kernel("6.1.0-cloud", tmp_path / "vmlinuz", tmp_path, "machine")
    (tmp_path / "modules.dep").write_text("kernel/drivers/net/virtio_net.ko:\n")
    (tmp_path / "modules.builtin").write_text("")
    assert image._modules(found, ("iperf3",)) == image.MODULES
    with pytest.raises(UnsupportedError, match="has no module uio_pci_generic, which dpdk-testpmd"):
        image._modules(found, GUEST_PROGRAMS["testpmd"])
    (tmp_path / "modules.dep").write_text("kernel/drivers/uio/uio_pci_generic.ko: uio.ko\n")
    assert image._modules(found, GUEST_PROGRAMS["testpmd"])[-1] == "uio_pci_generic"


# --- functions whose interface has an XDP program ------------------------------------------------


@pytest.mark.parametrize(
    ("plane", "kind"),
    [
        ("bridge", "process"),
        ("ovs", "container"),
        ("vf", "process"),
        ("vf", "container"),
        ("vf-passthrough", "vm"),
        ("vhost-user", "vm"),
        ("virtio-bridge", "vm"),
        ("virtio-ovs", "vm"),
    ],
)
def test_an_xdp_program_is_attached_where_a_kernel_would_route(plane: str, kind: GuestKind) -> None:
    nic = "eth9" if plane.startswith("vf") else ""
    placement = assign_cpus((SWITCH, GENERATOR, "vnf1", "vnf2"), range(4), {})

    def steps(forwarder: Forwarder) -> list[str]:
        chain = Chain(plane, "east-west", 2, kind, forwarder)
        return list(describe.steps(chain, placement, nic, "af_packet"))

    routed, program = steps("kernel"), steps("xdp")
    more = [one for one in program if one not in routed]
    assert [one for one in program if one not in more] == routed
    attached = [one for one in more if "xdp" in one and "router.bpf.o" in one]
    assert [("-v1" in one, "-v2" in one) for one in attached] == [(True, False), (False, True)]
    # A veth pair has XDP of its own; of the driver of a VF or of a guest nobody knows yet.
    assert all((" xdpdrv " in one) == (plane in ("bridge", "ovs")) for one in attached)
    # A veth interface takes what its peer's program sends only where it has one itself.
    rest = [one for one in more if one not in attached]
    assert all(f"dev pw00000000f{n} xdpdrv" in one for n, one in enumerate(rest, 1))
    assert len(rest) == (2 if plane in ("bridge", "ovs") else 0)


def test_xdp_has_no_huge_pages_wants_ip_from_outside_and_is_a_factor_of_its_own(
    tmp_path: Path,
) -> None:
    assert memory_bytes(Chain("vhost-user", "east-west", 2, "vm", "xdp")) == SWITCH_BYTES
    design = loaded(
        tmp_path,
        "functions:\n  - {forwarder: kernel, plane: bridge}\n"
        "  - {forwarder: xdp, plane: bridge}\n"
        "  - {forwarder: xdp, guest: vm, plane: vhost-user}\n"
        "factors: {path: east-west, vnfs: 2}\nchain: {}\n",
    )
    assert [cell.levels()["forwarder"] for cell in cells_of(design)] == ["kernel", "xdp", "xdp"]
    refused = Chains(design).unavailable(cells_of(design))
    assert "functions that route need IP traffic from outside: give `chain.uplink` a driver" in (
        refused.values()
    )


class Refusing:
    """A host whose iproute2 says so."""

    place = "lab:b"

    def __init__(self, words: str) -> None:
        self.words = words

    def program(self, local: str) -> str:
        return local

    def run(self, argv: Sequence[str], **_: object) -> FinishedProcess:
        refused = argv[0] == "unshare" and self.words
        return FinishedProcess(tuple(argv), int(bool(refused)), "", self.words)


def test_a_host_that_loads_no_xdp_program_is_refused_by_one_sentence() -> None:
    chain = Chain("bridge", "east-west", 2, forwarder="xdp")
    told = _missing(chain, cast("Host", Refusing("libbpf: x\nError: No ELF library support.\n")))
    assert told == "iproute2 on lab:b loads no XDP program (Error: No ELF library support.)"
    assert _missing(chain, cast("Host", Refusing(""))) == ""
    # In a virtual machine it is the guest's kernel that loads it.
    machine = Chain("virtio-bridge", "east-west", 2, "vm", "xdp")
    assert _missing(machine, cast("Host", Refusing("no"))) == ""


def test_an_xdp_program_that_no_driver_runs_is_said() -> None:
    native = "2: eth0: <UP> mtu 1500 xdp qdisc mq\n    prog/xdp id 7"
    generic = "2: eth0: <UP> mtu 1500 xdpgeneric qdisc mq\n    prog/xdp id 8"
    assert _remarks([native, native]) == ()
    assert _remarks([native, generic]) == (
        "the kernel runs the XDP program of vnf2 (generic XDP): the NIC's driver has no XDP",
    )


def test_no_two_interfaces_of_a_chains_host_have_one_index() -> None:
    chain, token = Chain("bridge", "east-west", 3), "0" * 8
    site, plane = ends.site_of("br0", CABLES.nics), plane_called(chain.plane)
    guests = function_guests(token, chain).values()
    ports = [step for guest in guests for step in plane.attach(site, guest)]
    steps = (*ends.cables(token), *ports)
    indices = [
        step.words.split(" index ")[1].split()[0] for step in steps if " index " in step.words
    ]
    assert len(set(indices)) == len(indices) == 5
