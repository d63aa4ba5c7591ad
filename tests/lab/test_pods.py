"""Pods of a real kubelet on a lab's host: a VF of the emulated igb moves between them as they run.

The API server and etcd run on this machine, and the lab's host reaches them by its ssh connection;
kubelet, containerd, CNI, pods and the agent run on the lab's host.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from planewise.testbed.hosts.remote import LabHost
from planewise.testbed.vfs.nic import find_planewised
from tests.fleet.cluster import ADMIN, Cluster, NodeView, Object, binaries, wait_for
from tests.fleet.conftest import PROGRAM, crds
from tests.fleet.kubelet import PROBE, SCRIPT, NodeFiles, why_not

from .conftest import UpLab
from .moving import (
    DIRECTORY,
    FIRST,
    PATIENCE_S,
    SETTINGS,
    STEPS,
    Guest,
    ask,
    assert_whole_after_kills,
    configure,
    followed,
    holder,
    judge,
    running,
    shell,
    until,
)

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not os.environ.get("PLANEWISE_PODS"),
        reason="a kubelet in the lab takes minutes: `make fleet-test`, or PLANEWISE_PODS=1",
    ),
]

NODE = "/run/pw-kube"
"""The node's files on the lab's host."""
NAMESPACE = "shop"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
AGENT = "/tmp/pw-planewised-kubernetes"

SET_UP = f"""
mkdir -p {DIRECTORY}/state {NODE}
tar -x -C {NODE} -f /tmp/pw-node.tar
modprobe bonding
/tmp/pw-planewised vf setup pf1 --count 1 --owner test >/dev/null
ip link add pwbr type bridge mcast_snooping 0
ip link set pwbr up
ethtool -G pf1 rx 4096
ip link set pf1 up master pwbr
"""

TEAR_DOWN = f"""
for name in kubelet containerd; do kill -9 $(cat {NODE}/$name.pid) || true; done
for shim in $(pidof containerd-shim-runc-v2); do kill -9 $shim || true; done
for group in $(find /sys/fs/cgroup/kubepods -depth -type d); do
    echo 1 >$group/cgroup.kill || true
    for i in $(seq 50); do rmdir $group && break; sleep 0.1; done
done 2>/dev/null
for netns in /run/netns/cni-*; do ip netns del ${{netns##*/}} || true; done
for i in $(seq 600); do [ -e /sys/bus/pci/devices/*/physfn/virtfn0/net ] && break; sleep 0.1; done
ip link del pwbr || true
for mount in $(grep -oE ' (/var/lib/kubelet|/run/pw-node)[^ ]*' /proc/mounts | sort -r); do
    umount -l $mount
done
bridge fdb show dev pf1 | sed -n 's/ .*self.*permanent//p' | grep -v '^01:\\|^33:' |
    while read -r mac; do bridge fdb del $mac dev pf1 self || true; done
/tmp/pw-planewised vf restore --owner test || echo 0 >/sys/class/net/pf1/device/sriov_numvfs
rm -rf {DIRECTORY} {NODE} /run/pw-node /var/lib/kubelet
"""


@dataclass(frozen=True)
class Field:
    """Both hosts, the cluster, and three pods on host a; a policy selects the first two."""

    a: LabHost
    b: LabHost
    cluster: Cluster
    pods: tuple[Guest, ...]

    @property
    def node(self) -> NodeView:
        """Host a as the cluster tells of it."""
        return NodeView(self.cluster, "lab-a")


@pytest.fixture(scope="module")
def field(up: UpLab, tmp_path_factory: pytest.TempPathFactory, said: list[str]) -> Iterator[Field]:
    if reason := why_not():
        pytest.skip(reason)
    if not os.access(PROGRAM, os.X_OK):
        pytest.skip(f"{PROGRAM.name} is not kept here: `make fleet-test` builds it")
    folder = tmp_path_factory.mktemp("pods")
    (folder / "server").mkdir()
    (folder / "node").mkdir()
    # Behind the bridge, at the far end of the PF's cable, is host b.
    files = NodeFiles("lab-a", "198.18.7.0/24", gateway="198.18.7.1")
    with ExitStack() as stack:
        a, b = LabHost("t", "a", name="sender"), LabHost("t", "b", name="responder")
        stack.callback(b.close)
        stack.callback(a.close)
        cluster = Cluster(binaries(), folder / "server", [])
        stack.callback(cluster.stop)
        for item in crds():
            cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", item)
        files.write(folder / "node", NODE)
        access = cluster.kubeconfig(ADMIN).read_text()
        (folder / "node/kubeconfig").write_text(access)
        (folder / "node/node.sh").write_text(SCRIPT.read_text())
        subprocess.run(["tar", "-C", folder / "node", "-cf", folder / "node.tar", "."], check=True)
        # The host reaches this machine's port at its own loopback.
        a.forward("-R", f"127.0.0.1:{cluster.port}:127.0.0.1:{cluster.port}")
        a.put(folder / "node.tar", "/tmp/pw-node.tar")
        a.put(Path(find_planewised()), "/tmp/pw-planewised")
        shell(a, f"ln -sf {PROGRAM} {AGENT}")
        stack.callback(shell, a, TEAR_DOWN)
        shell(a, SET_UP)
        begun = time.monotonic()
        address = a.run(["ip", "-4", "-o", "address", "show", "dev", "mgmt0"]).stdout.split()[3]
        environment = {
            "DIRECTORY": NODE,
            "BIN": str(binaries()),
            "NODE": "lab-a",
            "ADDRESS": address.partition("/")[0],
        }
        words = [f"{name}={value}" for name, value in environment.items()]
        stack.enter_context(a.start(["env", *words, "sh", f"{NODE}/node.sh"]))
        setup_b = "ethtool -G pf1 rx 4096; ip link set pf1 up"
        shell(b, f"{setup_b}; ip address replace 198.18.7.1/24 dev pf1")
        stack.callback(shell, b, "ip address del 198.18.7.1/24 dev pf1")
        node = "/api/v1/nodes/lab-a"

        def ready() -> bool:
            conditions = (cluster.get(node) or {}).get("status", {}).get("conditions", [])
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        try:
            wait_for("the kubelet's node is ready", ready, PATIENCE_S)
            up_s = time.monotonic() - begun
            cluster.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
            policy = {
                "apiVersion": "planewise.io/v1alpha1",
                "kind": "VfPolicy",
                "metadata": {"name": "all"},
                "spec": {"podSelector": {"matchLabels": {"managed": "yes"}}},
            }
            policies = f"/apis/planewise.io/v1alpha1/namespaces/{NAMESPACE}/vfpolicies"
            cluster.create(policies, policy)
            pods = tuple(
                run(a, cluster, name, **{"managed": "yes"} if managed else {})
                for name, managed in (("web", True), ("db", True), ("other", False))
            )
        except AssertionError as error:
            logs = a.run(["sh", "-c", f"tail -n 20 {NODE}/*.log"]).stdout
            raise AssertionError(f"{error}\n{logs}") from None
        said.append(
            f"pods: on an emulated host a kubelet's node is ready after {up_s:.0f} s, "
            f"its three pods run after {time.monotonic() - begun:.0f} s"
        )
        yield Field(a, b, cluster, pods)


def run(a: LabHost, cluster: Cluster, name: str, **labels: str) -> Guest:
    """Has the kubelet run a pod that answers packets; its address and namespace."""
    body: Object = {
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "nodeName": "lab-a",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": PROBE}],
        },
    }
    uid = cluster.create(PODS, body)["metadata"]["uid"]

    def address() -> str:
        status = cluster.get(f"{PODS}/{name}")["status"]
        runs = [one["state"] for one in status.get("containerStatuses", [])]
        return str(status["podIP"]) if runs and "running" in runs[0] else ""

    there = wait_for(f"pod {name} runs", address, PATIENCE_S)
    process = f"$(grep -ls 'pod{uid}' /proc/[0-9]*/cgroup | cut -d/ -f3 | sort -n | sed 1q)"
    netns = shell(a, f"ip netns identify {process}").strip()
    assert netns.startswith("cni-"), netns
    return Guest(f"{NAMESPACE}/{name}", netns, there)


def text(field: Field, sample_s: float, interval_s: float, **stances: str) -> str:
    """What the agent is told, with the stance of each pod."""
    told = SETTINGS.format(sample_s=sample_s, interval_s=interval_s)
    told += f'[kubernetes]\nnode = "lab-a"\nkubeconfig = "{NODE}/kubeconfig"\n'
    for name, stance in stances.items():
        told += f'[guests."{NAMESPACE}/{name}"]\nstance = "{stance}"\n'
    return told


@contextmanager
def paused(a: LabHost) -> Iterator[None]:
    """Stops kubelet and containerd: emulated, they take the CPU from packets that pass neither."""
    processes = f"$(cat {NODE}/kubelet.pid) $(cat {NODE}/containerd.pid)"
    shell(a, f"kill -STOP {processes}")
    try:
        yield
    finally:
        shell(a, f"kill -CONT {processes}")


def test_a_vf_follows_the_traffic_of_two_pods_and_no_packet_is_lost_in_the_switch(
    field: Field, said: list[str]
) -> None:
    a, b, node = field.a, field.b, field.node
    told = text(field, 0.5, 1.0, web="free", db="free") + FIRST
    with running(a, configure(a, told), AGENT) as agent:
        until(a, f"[ $(ls {DIRECTORY}/state/pods | wc -l) = 2 ]")
        with paused(a):
            rounds = followed(a, b, "pods", field.pods, said, reflecting=True)
        names = {guest.id for guest in field.pods[:2]}
        assert {one["id"] for one in ask(a, "/status")["guests"]} == names
        # At most 10 s later the cluster knows what the node knows.
        wait_for("the pool tells who", lambda: node.holders() == {holder(a)}, PATIENCE_S)
        assert (node.pool["vfs"], node.pool["pods"], node.pool["waiting"]) == (1, 2, 1)
        assert node.ready() == ("True", "AllUsable")
        shell(a, f"kill -TERM {agent.pid}")
        assert agent.wait(PATIENCE_S).exit_code == 0
    judge(rounds, said[-1])


def test_a_kill_of_the_agent_at_any_step_leaves_nothing_that_a_restart_does_not_put_right(
    field: Field, said: list[str]
) -> None:
    web, db, _ = field.pods
    for wanted, excluded in (("web", "db"), ("db", "web")):
        netns = {"web": web.netns, "db": db.netns}[wanted]
        stances = {wanted: "pinned", excluded: "excluded"}
        configure(field.a, text(field, 0.1, 0.2, **stances), f"{netns}.toml")
    begun = time.monotonic()
    assert_whole_after_kills(field.a, AGENT, field.pods)
    said.append(f"pods: killed at {len(STEPS)} steps in {time.monotonic() - begun:.0f} s")


def assert_once(field: Field) -> None:
    """The one VF is in one place, and nobody's address twice."""
    script = 'for n in "$@"; do ip -n $n -o link show; done | grep -c " pw-vf[:@]" || true'
    words = ["sh", "-c", script, "sh", *(pod.netns for pod in field.pods)]
    inside = int(field.a.run(words).stdout)
    home = "ls /sys/class/net/pf1/device/virtfn0/net 2>/dev/null | wc -l"
    assert inside + int(shell(field.a, home)) == 1


@pytest.mark.parametrize("moment", ["give/attach/after", "take/prefer/after", "take/reset/after"])
def test_kubelet_and_api_server_killed_in_the_middle_of_a_move_with_the_agent_cost_no_pod_its_path(
    field: Field, moment: str
) -> None:
    a, b = field.a, field.b
    configs = {
        wanted: configure(
            a, text(field, 0.1, 0.2, **{wanted: "pinned", other: "excluded"}), f"{wanted}.toml"
        )
        for wanted, other in (("web", "db"), ("db", "web"))
    }
    with running(a, configs["web"], AGENT) as agent:
        wait_for("web has the VF", lambda: holder(a) == f"{NAMESPACE}/web", PATIENCE_S)
        shell(a, f"kill -TERM {agent.pid}")
        assert agent.wait(PATIENCE_S).exit_code == 0
    kill = ["env", f"PLANEWISE_TEST_KILL_AT={moment}", AGENT]
    killed = a.run([*kill, "daemon", "--config", configs["db"]], timeout_s=PATIENCE_S)
    assert f"killed at {moment}" in killed.stderr, killed.stderr
    shell(a, f"kill -9 $(cat {NODE}/kubelet.pid)")
    field.cluster.kill_server()
    assert_once(field)
    for pod in field.pods:
        until(b, f"ping -c 1 -W 1 {pod.address} >/dev/null")
    # Without an API server the agent knows the pods that it had, and what was begun.
    with running(a, configs["db"], AGENT) as agent:
        time.sleep(5)
        assert_once(field)
        field.cluster.start_server()
        wait_for("db has the VF", lambda: holder(a) == f"{NAMESPACE}/db", PATIENCE_S)
        assert_once(field)
        for pod in field.pods:
            until(b, f"ping -c 1 -W 1 {pod.address} >/dev/null")
        node = field.node
        wait_for("the pool says so", lambda: node.holders() == {holder(a)}, PATIENCE_S)
        shell(a, f"kill -TERM {agent.pid}")
        assert agent.wait(PATIENCE_S).exit_code == 0


def test_the_vf_of_a_pod_that_is_deleted_goes_to_another_one(field: Field, said: list[str]) -> None:
    a, b, cluster = field.a, field.b, field.cluster
    config = configure(a, text(field, 0.2, 0.5, late="pinned", web="free", db="free"))
    with running(a, config, AGENT) as agent:
        begun = time.monotonic()
        late = run(a, cluster, "late", managed="yes")
        wait_for("it has the VF", lambda: holder(a) == late.id, PATIENCE_S)
        said.append(f"pods: a new one has the VF after {time.monotonic() - begun:.1f} s")
        until(b, f"ping -c 1 -W 1 {late.address} >/dev/null")
        # Its first process ends without a word, as when its node's memory is full: a sandbox anew.
        group = f"pod{cluster.get(f'{PODS}/late')['metadata']['uid']}"
        pause = f"$(grep -ls '{group}' /proc/[0-9]*/cgroup | cut -d/ -f3 | sort -n | sed 1q)"
        shell(a, f"kill -9 {pause}")
        until(a, f"[ ! -e /run/netns/{late.netns} ]")
        wait_for("another sandbox has it", lambda: holder(a) == late.id, PATIENCE_S)
        cluster.delete(f"{PODS}/late")
        heir = {f"{NAMESPACE}/web", f"{NAMESPACE}/db"}
        wait_for("another one has the VF", lambda: holder(a) in heir, PATIENCE_S)
        assert_once(field)
        errors = [error["what"] for error in ask(a, "/status")["errors"]]
        shell(a, f"kill -TERM {agent.pid}")
        assert agent.wait(PATIENCE_S).exit_code == 0
    assert errors == []
    assert field.node.condition(NAMESPACE, "web") == ("", "", "")
