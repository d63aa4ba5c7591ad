"""pw-probe trial on real namespaces: every frame is accounted for, every limit has its name."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from planewise.testbed.hosts.host import find_probe
from tests.linux import faults
from tests.linux.probe import (
    Network,
    Outcome,
    Running,
    eventually,
    forwarder,
    ip,
    run,
    without_ipv6,
)

pytestmark = pytest.mark.linux

KNOWN_MAX = ("--max-pps", "10M")
"""Spares a trial the measurement of the generator."""


def trial(network: Network, *args: str, ipv6: bool = False) -> Outcome:
    destination = network.b.ipv6 if ipv6 else network.b.ipv4
    path = ("--tx", network.a.spec, "--rx", network.b.spec, "--dst", destination)
    return run("trial", *path, *KNOWN_MAX, *args)


def check_account(output: dict[str, Any]) -> None:
    """Every frame is somewhere. On a busy machine the kernel itself loses some, and says so."""
    assert output["sent"] == output["received"] + output["lost"]
    explained = sum(part["count"] for part in output["loss"])
    assert output["unexplained"] == output["lost"] - explained
    assert output["sent"] > 0


@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
def test_a_trial_over_a_cable_loses_nothing_that_no_counter_explains(
    netns_pair: Network, ipv6: bool
) -> None:
    done = trial(netns_pair, "--rate", "2k", "--duration", "0.5", "--flows", "7", ipv6=ipv6)
    assert done.code == 0, done.stderr
    output = done.output
    check_account(output)
    assert output["planned"] == 1000
    assert output["unexplained"] == 0
    assert (output["duplicate"], output["reordered"]) == (0, 0)
    assert output["size_bytes"] == (84 if ipv6 else 64)
    assert output["latency"]["count"] == output["received"]
    assert output["latency"]["min_ns"] > 0
    assert output["warmup"]["received"]
    assert 1 <= output["warmup"]["arrived"] <= output["warmup"]["sent"]
    cpus = sorted(os.sched_getaffinity(0))
    assert output["generator"]["cpu"] == (cpus[-1] if len(cpus) > 1 else None)
    assert sum(output["cpu"]["all"].values()) == pytest.approx(1)
    sink = next(place for place in output["counters"] if place["role"] == "rx")
    assert sink["after"]["rx_packets"] - sink["before"]["rx_packets"] >= output["received"]


def test_loss_duplicates_and_reordering_of_a_forwarder_are_counted_exactly(
    netns_relay: Network,
) -> None:
    with forwarder(netns_relay.middle, drop=3, twice=5, hold=7):
        done = trial(netns_relay, "--rate", "500", "--duration", "1", "--drain", "4")
    assert done.code == 0, done.stderr
    output = done.output
    assert output["warmup"]["received"]
    sent = output["sent"]
    # A frame that is held when the last one has passed stays where it is.
    kept = 1 if sent % 10 == 8 else 0
    assert output["lost"] == len(range(3, sent, 10)) + kept
    assert output["duplicate"] == len(range(5, sent, 10))
    assert output["reordered"] == len(range(7, sent, 10)) - kept
    check_account(output)
    # The forwarder keeps no counter: nobody explains the loss.
    assert output["unexplained"] == output["lost"]
    assert ("sut" in output["limits"]) != ("generator" in output["limits"])


def halves(network: Network, first: int, count: int, *args: str) -> tuple[Outcome, Outcome]:
    """A trial by two processes: what the sender and what the receiver say."""
    numbers = ("--first", str(first))
    receiver = Running("receive", "--rx", network.b.spec, *numbers, "--count", str(count))
    with receiver as listening:
        listening.wait_ready()
        path = ("--tx", network.a.spec, "--dst", network.b.ipv4)
        sent = run("send", *path, *numbers, *KNOWN_MAX, *args)
        return sent, listening.stop()


def test_two_processes_account_for_frames_as_one_does(netns_relay: Network) -> None:
    with forwarder(netns_relay.middle, drop=3, twice=5, hold=7):
        done, got = halves(netns_relay, 7000, 500, "--rate", "500", "--duration", "1")
    assert done.code == 0, done.stderr
    assert got.code == 0, got.stderr
    sent, received = done.output["sent"], got.output
    assert sent > 250
    kept = 1 if sent % 10 == 8 else 0
    # What the forwarder has not passed on yet when the receiver ends is lost, too.
    late = sent - len(range(3, sent, 10)) - kept - received["received"]
    assert late >= 0
    if not late:
        assert received["duplicate"] == len(range(5, sent, 10))
        assert received["reordered"] == len(range(7, sent, 10)) - kept
    assert received["warmup_received"] >= 1
    assert received["foreign"] == 0
    assert done.output["drops"] == []
    assert "generator" in done.output["limits"] or done.output["sent"] == 500
    assert sum(done.output["cpu"]["all"].values()) == pytest.approx(1)


def test_a_receiver_takes_no_frame_of_another_trial_for_its_own(netns_pair: Network) -> None:
    with Running(
        *("receive", "--rx", netns_pair.b.spec, "--first", "7000", "--count", "100")
    ) as listening:
        listening.wait_ready()
        path = ("--tx", netns_pair.a.spec, "--dst", netns_pair.b.ipv4, *KNOWN_MAX)
        done = run("send", *path, "--first", "90000", "--rate", "1k", "--duration", "0.1")
        got = listening.stop()
    assert done.code == 0, done.stderr
    assert (got.output["received"], got.output["warmup_received"]) == (0, 0)
    assert got.output["foreign"] + got.output["sink"]["dropped"] >= done.output["sent"]


def test_a_sender_that_knows_no_receiver_cannot_ask_for_its_address(netns_pair: Network) -> None:
    path = ("--tx", netns_pair.a.spec, "--dst", netns_pair.b.ipv4, "--dst-mac", "rx")
    refused = run("send", *path, "--first", "1", "--rate", "1k")
    assert refused.code == 2
    assert "give the MAC address itself" in refused.stderr


def test_frames_that_a_queue_drops_are_explained_by_its_counter(netns_relay: Network) -> None:
    middle = netns_relay.middle
    without_ipv6(netns_relay.a.netns, netns_relay.b.netns, middle)
    ip("-n", middle, "link", "add", "joint", "type", "bridge")
    for interface in ("left", "right"):
        ip("-n", middle, "link", "set", interface, "master", "joint")
    ip("-n", middle, "link", "set", "joint", "up")
    shape = ("tbf", "rate", "100kbit", "burst", "2kb", "limit", "2kb")
    shaped = subprocess.run(
        ["tc", "-n", middle, "qdisc", "add", "dev", "right", "root", *shape],
        capture_output=True,
        text=True,
        check=False,
    )
    if shaped.returncode:
        pytest.skip(f"this kernel has no tbf: {shaped.stderr.strip()}")
    done = trial(netns_relay, "--rate", "1k", "--duration", "1", "--counter", f"right@{middle}")
    assert done.code == 0, done.stderr
    output = done.output
    assert output["lost"] > 100
    check_account(output)
    assert output["unexplained"] == 0
    assert output["excess_drops"] <= 5
    queue = [part for part in output["loss"] if part["where"] == f"right@{middle}"]
    assert [part["counter"] for part in queue] == ["qdisc_drops"]


def test_a_late_frame_counts_as_lost_and_says_so(netns_relay: Network) -> None:
    # Each held frame waits for its successor, 20 ms later; 5 ms is the limit here.
    with forwarder(netns_relay.middle, hold=7):
        done = trial(netns_relay, "--rate", "50", "--duration", "1", "--drain", "0.005")
    output = done.output
    assert output["late"] >= 3
    check_account(output)
    assert {"where": netns_relay.b.spec, "counter": "late", "count": output["late"]} in output[
        "loss"
    ]


def test_the_accounts_balance_when_the_sink_cannot_keep_up(netns_pair: Network) -> None:
    # Generator and sink share one CPU and a small ring: some or much may be lost there.
    packets = ("--backend", "af_packet", "--sink", "af_packet")
    one_cpu = (*packets, "--tx-cpu", "0", "--rx-cpu", "0", "--ring-mib", "1")
    done = trial(netns_pair, "--rate", "300k", "--duration", "0.3", *one_cpu)
    output = done.output
    assert output["sent"] == output["received"] + output["lost"]
    assert output["unexplained"] == 0
    assert ("sink" in output["limits"]) == (output["sink"]["dropped"] > 0)
    assert "sut" not in output["limits"]


def test_a_rate_beyond_the_generator_is_its_limit_and_not_the_suts(netns_pair: Network) -> None:
    network = netns_pair
    path = ("--tx", network.a.spec, "--rx", network.b.spec, "--dst", network.b.ipv4)
    output = run("trial", *path, "--rate", "100M", "--duration", "0.1").output
    assert output["generator"]["max_pps"] < 100e6
    assert output["generator"]["max_pps_from"] == "private veth pair"
    assert output["achieved_pps"] < output["intended_pps"]
    assert "generator" in output["limits"]
    assert "sut" not in output["limits"]
    assert output["sent"] == output["received"] + output["lost"]


def test_the_generator_can_be_measured_alone() -> None:
    done = run("trial", "--calibrate-only", "--size", "128")
    assert done.code == 0, done.stderr
    assert done.output["size_bytes"] == 128
    assert done.output["max_pps"] > 1000


def test_the_generator_can_be_measured_with_jumbo_frames() -> None:
    done = run("trial", "--calibrate-only", "--size", "9000")
    assert done.code == 0, done.stderr
    assert done.output["size_bytes"] == 9000


def test_the_sinks_namespace_answers_no_frame(netns_pair: Network) -> None:
    def unreachables() -> int:
        lines = netns_pair.b.run("cat", "/proc/net/snmp").splitlines()
        names, values = [line.split() for line in lines if line.startswith("Icmp:")]
        return int(values[names.index("OutDestUnreachs")])

    before = unreachables()
    output = trial(netns_pair, "--rate", "1k", "--duration", "1").output
    assert output["received"] > 100
    assert unreachables() == before


def test_nothing_of_a_trial_stays_in_the_sinks_namespace(netns_pair: Network) -> None:
    for _ in range(2):
        assert trial(netns_pair, "--rate", "1k", "--duration", "0.1").code == 0


def test_an_interface_that_vanishes_is_named_and_what_was_counted_is_kept(
    netns_pair: Network,
) -> None:
    path = ("--tx", netns_pair.a.spec, "--rx", netns_pair.b.spec, "--dst", netns_pair.b.ipv4)
    with Running("trial", *path, *KNOWN_MAX, "--rate", "1k", "--duration", "20") as running:
        eventually(lambda: netns_pair.b.counter("rx_packets") > 200)
        ip("-n", netns_pair.a.netns, "link", "del", netns_pair.a.interface)
        done = running.finish()
    assert done.code == 1
    assert netns_pair.a.spec in done.stderr or netns_pair.b.spec in done.stderr
    assert "vanished" in done.stderr
    assert done.output["error"]["what"] in done.stderr
    assert done.output["received"] > 100
    assert done.output["sent"] == done.output["received"] + done.output["lost"]


def test_an_interrupted_trial_prints_what_it_has(netns_pair: Network) -> None:
    path = ("--tx", netns_pair.a.spec, "--rx", netns_pair.b.spec, "--dst", netns_pair.b.ipv4)
    with Running("trial", *path, *KNOWN_MAX, "--rate", "1k", "--duration", "20") as running:
        eventually(lambda: netns_pair.b.counter("rx_packets") > 200)
        done = running.stop()
    assert done.code == 0
    assert done.output["interrupted"] is True
    assert 100 < done.output["received"] <= done.output["sent"] < 20_000
    assert done.output["unexplained"] == 0


KERNEL = ("--backend", "live", "--sink", "xdp-native")


def needs_kernel_backends(network: Network) -> None:
    """Skips where this user or kernel may not run them."""
    done = trial(network, "--rate", "100", "--duration", "0.1", *KERNEL)
    if done.code:
        pytest.skip(f"no generator in the kernel: {done.stderr.strip()}")


def attached(network: Network) -> str:
    """The programs on the ends' interfaces, as `ip link` prints them."""
    ends = (network.a, network.b)
    return "".join(end.run("ip", "-d", "link", "show", end.interface) for end in ends)


@pytest.mark.parametrize("ipv6", [False, True], ids=["IPv4", "IPv6"])
@pytest.mark.parametrize(
    ("generator", "sink"),
    [
        ("live", "xdp-native"),
        ("live-skb", "tc-ingress"),
        ("af_packet", "tc-ingress"),
    ],
)
def test_every_backend_accounts_for_every_frame(
    netns_pair: Network, generator: str, sink: str, ipv6: bool
) -> None:
    needs_kernel_backends(netns_pair)
    load = ("--rate", "20k", "--duration", "0.5", "--flows", "7")
    done = trial(netns_pair, *load, "--backend", generator, "--sink", sink, ipv6=ipv6)
    assert done.code == 0, done.stderr
    output = done.output
    check_account(output)
    assert (output["generator"]["backend"], output["sink"]["backend"]) == (generator, sink)
    assert output["unexplained"] == 0
    assert (output["duplicate"], output["reordered"], output["foreign"]) == (0, 0, 0)
    assert output["latency"]["count"] == output["received"] > 0
    assert output["latency"]["min_ns"] > 0


def test_a_generator_that_is_asked_for_too_much_still_accounts_for_every_frame(
    netns_pair: Network,
) -> None:
    needs_kernel_backends(netns_pair)
    load = ("--rate", "9M", "--duration", "0.3", "--backend", "live-skb", "--sink", "xdp-native")
    done = trial(netns_pair, *load)
    assert done.code == 0, done.stderr
    output = done.output
    assert output["sent"] == output["received"] + output["lost"] < 0.9 * output["planned"]
    assert output["unexplained"] == 0, output["loss"]


def test_the_kernels_account_of_a_forwarder_is_exact(netns_relay: Network) -> None:
    with forwarder(netns_relay.middle, drop=3, twice=5, hold=7):
        load = ("--rate", "500", "--duration", "1", "--drain", "4")
        done = trial(netns_relay, *load, "--backend", "live-skb", "--sink", "xdp-native")
    if "may not load BPF" in done.stderr or "Linux 6.6" in done.stderr:
        pytest.skip(f"no generator in the kernel: {done.stderr.strip()}")
    assert done.code == 0, done.stderr
    output = done.output
    sent = output["sent"]
    kept = 1 if sent % 10 == 8 else 0
    assert output["lost"] == len(range(3, sent, 10)) + kept
    assert output["duplicate"] == len(range(5, sent, 10))
    assert output["reordered"] == len(range(7, sent, 10)) - kept


def test_planted_faults_are_counted_to_the_frame_inside_the_kernel(netns_relay: Network) -> None:
    if reason := faults.lacking():
        pytest.skip(reason)
    with faults.planted(netns_relay, 100):
        load = ("--rate", "200k", "--duration", "0.5", "--dst-mac", "rx")
        done = trial(netns_relay, *load, *KERNEL)
    if "may not load BPF" in done.stderr or "Linux 6.6" in done.stderr:
        pytest.skip(f"no generator in the kernel: {done.stderr.strip()}")
    assert done.code == 0, done.stderr
    assert done.output["sent"] > 10_000
    assert faults.counted(done.output) == faults.expected(done.output, 100) or (
        done.output["first_sequence"] % 100 == 8
    )


def test_bursts_leave_at_their_rate_and_as_many_as_are_due(netns_pair: Network) -> None:
    needs_kernel_backends(netns_pair)
    bursts = ("--rate", "1M", "--burst", "100", "--interval", "0.01", "--duration", "0.5")
    output = trial(netns_pair, *bursts, *KERNEL).output
    assert output["planned"] == 5000
    assert output["intended_pps"] == pytest.approx(10_000)
    check_account(output)
    assert output["unexplained"] == 0


def test_nothing_of_the_kernels_backends_survives_a_kill(netns_pair: Network) -> None:
    needs_kernel_backends(netns_pair)
    path = ("--tx", netns_pair.a.spec, "--rx", netns_pair.b.spec, "--dst", netns_pair.b.ipv4)
    with Running("trial", *path, *KNOWN_MAX, *KERNEL, "--rate", "1k", "--duration", "20") as live:
        eventually(lambda: "xdp" in attached(netns_pair))
        live.process.kill()
        live.process.wait()
    eventually(lambda: "xdp" not in attached(netns_pair))


@pytest.mark.parametrize("change", [("set", "down"), ("del",)], ids=["down", "gone"])
def test_an_interface_that_goes_down_or_away_under_the_kernels_generator_is_named(
    netns_pair: Network, change: tuple[str, ...]
) -> None:
    needs_kernel_backends(netns_pair)
    path = ("--tx", netns_pair.a.spec, "--rx", netns_pair.b.spec, "--dst", netns_pair.b.ipv4)
    with Running("trial", *path, *KNOWN_MAX, *KERNEL, "--rate", "3M", "--duration", "20") as live:
        eventually(lambda: netns_pair.b.counter("rx_packets") > 100_000)
        verb, *state = change
        ip("-n", netns_pair.a.netns, "link", verb, netns_pair.a.interface, *state)
        done = live.finish()
    assert done.code == 1
    assert "vanished or was set down" in done.stderr


def test_a_second_sink_on_an_interface_is_refused_in_one_sentence(netns_pair: Network) -> None:
    needs_kernel_backends(netns_pair)
    listen = ("--rx", netns_pair.b.spec, "--first", "7000", "--count", "10")
    with Running("receive", *listen, "--sink", "xdp-native") as first:
        first.wait_ready()
        other = ("--dst-port", "4863", "--duration", "0.1", "--sink", "xdp-native")
        second = run("receive", *listen, *other)
        first.stop()
    assert second.code == 1
    assert "another XDP program is attached" in second.stderr


def test_a_peer_that_takes_no_xdp_frames_is_refused_before_anything_is_sent(
    netns_pair: Network,
) -> None:
    needs_kernel_backends(netns_pair)
    load = ("--rate", "1k", "--duration", "0.1")
    done = trial(netns_pair, *load, "--backend", "live", "--sink", "tc-ingress")
    assert done.code == 1
    assert "takes no XDP frames" in done.stderr
    assert "gro on" in done.stderr


def test_frames_for_a_peer_that_lost_its_napi_are_explained_though_no_interface_counts_them(
    netns_pair: Network,
) -> None:
    needs_kernel_backends(netns_pair)
    far = netns_pair.b
    far.run("ethtool", "-K", far.interface, "gro", "on")
    path = ("--tx", netns_pair.a.spec, "--rx", far.spec, "--dst", far.ipv4, *KNOWN_MAX)
    chosen = ("--backend", "live", "--sink", "tc-ingress", "--rate", "10k", "--duration", "1.5")
    with Running("trial", *path, *chosen) as live:
        eventually(lambda: far.counter("rx_packets") > 1000)
        far.run("ethtool", "-K", far.interface, "gro", "off")
        done = live.finish()
    assert done.code == 0, done.stderr
    check_account(done.output)
    lost = {part["counter"]: part["count"] for part in done.output["loss"]}
    assert 0 < lost["xdp_redirect_err"] <= done.output["lost"]
    assert done.output["unexplained"] == 0


def test_two_generators_on_one_interface_account_for_their_own_frames(netns_pair: Network) -> None:
    needs_kernel_backends(netns_pair)
    path = ("--tx", netns_pair.a.spec, "--rx", netns_pair.b.spec, "--dst", netns_pair.b.ipv4)
    other = ("--dst-port", "4863", "--sink", "tc-ingress")
    load = ("--rate", "20k", "--backend", "live")
    with Running("trial", *path, *KNOWN_MAX, *load, "--duration", "1.5", *KERNEL[2:]) as first:
        eventually(lambda: netns_pair.b.counter("rx_packets") > 100)
        same_sink = trial(netns_pair, "--rate", "1k", "--dst-port", "4863", *KERNEL)
        done = trial(netns_pair, *load, "--duration", "0.3", *other)
        outcome = first.finish()
    assert same_sink.code == 1
    assert "another XDP program is attached" in same_sink.stderr
    for output in (done.output, outcome.output):
        check_account(output)
        assert (output["unexplained"], output["duplicate"]) == (0, 0)


def test_another_cpu_carries_frames_and_loses_none_that_no_counter_explains(
    netns_pair: Network,
) -> None:
    needs_kernel_backends(netns_pair)
    cpus = [str(cpu) for cpu in sorted(os.sched_getaffinity(0))]
    if len(cpus) < 2:
        pytest.skip("one CPU carries what it makes")
    chosen = ("--backend", "live-skb", "--tx-cpu", cpus[0], "--carrier-cpu", cpus[-1])
    kept = trial(netns_pair, "--rate", "20k", "--duration", "0.3", *chosen)
    assert kept.output["generator"]["backend"] == "live-carried"
    assert kept.output["received"] > 0
    flooded = trial(netns_pair, "--rate", "5M", "--duration", "0.3", *chosen)
    check_account(flooded.output)
    assert {part["counter"] for part in flooded.output["loss"]} == {"xdp_cpumap_enqueue"}
    assert kept.output["unexplained"] == flooded.output["unexplained"] == 0


@contextmanager
def control_group(controller: str, **limits: str) -> Iterator[list[str]]:
    """A command's beginning that runs it in a control group with these limits."""
    root = Path("/sys/fs/cgroup")
    group = (root / controller if (root / controller).is_dir() else root) / "pw-test-limits"
    try:
        group.mkdir()
        for name, value in limits.items():
            (group / f"{controller}.{name}").write_text(value)
    except OSError as error:
        with suppress(OSError):
            group.rmdir()
        pytest.skip(f"no control group with {controller}: {error}")
    try:
        yield ["sh", "-c", f'echo $$ >{group}/cgroup.procs && exec "$@"', "sh"]
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_a_cpu_quota_does_not_keep_the_kernels_generator_running(netns_pair: Network) -> None:
    needs_kernel_backends(netns_pair)
    v1 = Path("/sys/fs/cgroup/cpu").is_dir()
    quota = {"cfs_period_us": "100000", "cfs_quota_us": "40000"} if v1 else {"max": "40000 100000"}
    ends = ("--tx", netns_pair.a.spec, "--rx", netns_pair.b.spec, "--dst", netns_pair.b.ipv4)
    load = ("--rate", "2354687", "--duration", "0.2", "--max-pps", "2354688", "--tx-cpu", "0")
    with control_group("cpu", **quota) as limited:
        for _ in range(6):
            command = [*limited, find_probe(), "trial", *ends, *load, "--drain", "0.1"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
            assert json.loads(done.stdout)["duration_s"] < 1


def test_too_few_threads_are_named_in_a_sentence(netns_pair: Network) -> None:
    ends = ("--tx", netns_pair.a.spec, "--rx", netns_pair.b.spec, "--dst", netns_pair.b.ipv4)
    with control_group("pids", max="1") as limited:
        command = [*limited, find_probe(), "trial", *ends, "--rate", "100"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "cannot start a thread" in done.stderr
    assert "--pids-limit" in done.stderr
    assert "panicked" not in done.stderr


def test_bursts_longer_than_their_interval_are_refused(netns_pair: Network) -> None:
    done = trial(netns_pair, "--rate", "1k", "--burst", "100", "--interval", "0.01")
    assert done.code == 2
    assert "--interval 0.1" in done.stderr


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--tx", "none@{a}"), 2, ("no interface none@{a}", "ip link")),
        (("--tx", "veth0@pwt-none"), 2, ("pwt-none", "ip netns")),
        (("--tx", "veth0@pid:1000000000"), 2, ("pid:1000000000",)),
        (("--dst", "198.18.9.9"), 1, ("no route to 198.18.9.9", "veth0@{a}")),
        (("--dst", "198.18.0.77"), 1, ("ARP for 198.18.0.77", "--dst-mac")),
        (("--size", "63"), 2, ("64 to 65535",)),
        (("--size", "9000"), 2, ("MTU", "1518")),
        (("--dst", "2001:2::2", "--size", "64"), 2, ("84 to 65535",)),
        (("--dst", "2001:2::2", "--ip", "4"), 2, ("--ip 4",)),
        (("--tx-cpu", "1000"), 2, ("CPU 1000",)),
        (("--counter", "none@{b}"), 2, ("no interface none@{b}",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_bad_input_gets_one_clear_sentence_and_the_way_out(
    netns_pair: Network, args: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    names = {"a": netns_pair.a.netns, "b": netns_pair.b.netns}
    defaults = {"--tx": netns_pair.a.spec, "--rx": netns_pair.b.spec, "--dst": netns_pair.b.ipv4}
    given = dict(zip(args[::2], args[1::2], strict=True))
    options = defaults | {"--rate": "100", "--duration": "0.1"} | given
    flat = [part.format(**names) for pair in options.items() for part in pair]
    done = run("trial", *KNOWN_MAX, *flat)
    assert done.code == code, done.stderr
    for word in words:
        assert word.format(**names) in done.stderr
    assert "panicked" not in done.stderr


def test_missing_privileges_are_named_with_the_way_out(netns_pair: Network) -> None:
    if not os.access("/etc/shadow", os.R_OK):
        pytest.skip("only root can give up its privileges here")
    drop = ("setpriv", "--reuid", "65534", "--clear-groups", "--inh-caps=-all")
    ends = ("--tx", netns_pair.a.interface, "--rx", netns_pair.a.interface)
    path = (*ends, "--dst", "198.18.0.2", "--rate", "10")
    done = subprocess.run(
        ["ip", "netns", "exec", netns_pair.a.netns, *drop, find_probe(), "trial", *path],
        capture_output=True,
        text=True,
        check=False,
    )
    if "Permission denied" in done.stderr or "failed to execute" in done.stderr:
        pytest.skip("nobody may run the binary where it lies")
    assert done.returncode == 1
    assert "CAP_NET_RAW" in done.stderr
    assert "unshare" in done.stderr
