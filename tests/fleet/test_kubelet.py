"""The node agent on a real node: a kubelet with containerd and a bridge CNI.

Its VFs are made up, as this machine has none; pods, their processes and namespaces are real.
tests/lab/test_pods.py has real VFs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from planewise.errors import PlanewiseError
from planewise.testbed.hosts.remote import open_host
from tests.fleet.cluster import ADMIN, Cluster, Object, binaries, wait_for
from tests.fleet.conftest import PROGRAM, crds
from tests.fleet.kubelet import BUSYBOX, LocalAgent, LocalNode, node_of_a_cluster, why_not

pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 120
NAMESPACE = "shop"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, LocalNode]]:
    """A cluster of one node, and a namespace whose pods are managed if they say so."""
    if reason := why_not():
        pytest.skip(reason)
    if not os.access(PROGRAM, os.X_OK):
        pytest.skip(f"{PROGRAM.name} is not kept here: `make fleet-test` builds it")
    with node_of_a_cluster(tmp_path_factory.mktemp("kubelet")) as (cluster, node):
        for item in crds():
            cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", item)
        new_namespace(cluster, NAMESPACE)
        policies = f"/apis/planewise.io/v1alpha1/namespaces/{NAMESPACE}/vfpolicies"
        wait_for("our kinds are served", lambda: cluster.get(policies))
        policy = {
            "apiVersion": "planewise.io/v1alpha1",
            "kind": "VfPolicy",
            "metadata": {"name": "all"},
            "spec": {"podSelector": {"matchLabels": {"managed": "yes"}}},
        }
        cluster.create(policies, policy)
        yield cluster, node


def new_namespace(cluster: Cluster, name: str) -> None:
    """Makes a namespace in which pods can be made: no controller gives it its account here."""
    cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
    path = f"/api/v1/namespaces/{name}/serviceaccounts"
    cluster.create(path, {"metadata": {"name": "default"}})


@pytest.fixture(scope="module")
def cluster(both: tuple[Cluster, LocalNode]) -> Cluster:
    """Its API server."""
    return both[0]


@pytest.fixture(scope="module")
def node(both: tuple[Cluster, LocalNode]) -> LocalNode:
    """Its node."""
    return both[1]


@pytest.fixture(scope="module")
def pool(both: tuple[Cluster, LocalNode]) -> Iterator[LocalAgent]:
    """Its agent, with two VFs that are made up."""
    agent = LocalAgent(PROGRAM, *both)
    wait_for("two VFs", lambda: agent.pool.get("vfs") == 2, PATIENCE_S)
    yield agent
    agent.kill()


def run(cluster: Cluster, name: str, *command: str, **spec: object) -> None:
    """Has the kubelet run a pod that is managed."""
    container: Object = {"name": "main", "image": BUSYBOX, "command": list(command)}
    container = {key: value for key, value in container.items() if value}
    container |= {"volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}]}
    scratch = {"name": "scratch", "emptyDir": {"sizeLimit": "1Mi"}}
    body = {
        "metadata": {"name": name, "labels": {"managed": "yes"}},
        "spec": {
            "containers": [container],
            "volumes": [scratch],
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "nodeName": "one",
            **spec,
        },
    }
    cluster.create(PODS, body)


def status(cluster: Cluster, name: str) -> Object:
    """A pod's status."""
    found: Object = (cluster.get(f"{PODS}/{name}") or {}).get("status", {})
    return found


def runs(cluster: Cluster, name: str, restarts: int = 0) -> bool:
    """Does its container run, after so many restarts?"""
    found = status(cluster, name).get("containerStatuses") or [{}]
    return "running" in found[0].get("state", {}) and found[0]["restartCount"] >= restarts


def remove(cluster: Cluster, *names: str) -> None:
    """Has the kubelet end pods."""
    for name in names:
        cluster.request("DELETE", f"{PODS}/{name}")
    for name in names:
        wait_for(
            f"{name} is gone", lambda name=name: cluster.get(f"{PODS}/{name}") is None, PATIENCE_S
        )


def of(*names: str) -> set[str]:
    return {f"{NAMESPACE}/{name}" for name in names}


def test_pods_of_a_kubelet_are_guests_while_they_run(
    cluster: Cluster, node: LocalNode, pool: LocalAgent
) -> None:
    for name in "ab":
        run(cluster, name)
    wait_for("both hold a VF", lambda: pool.holders() == of("a", "b"), PATIENCE_S)
    uid = cluster.get(f"{PODS}/a")["metadata"]["uid"]
    networks = {node.run("readlink", f"/proc/{pid}/ns/net") for pid in node.processes(uid)}
    assert len(networks) == 1, "a pod's processes share one network"
    assert networks != {node.run("readlink", "/proc/1/ns/net")}
    run(cluster, "c")
    wait_for(
        "a third one waits", lambda: (pool.pool["pods"], pool.pool["waiting"]) == (3, 1), PATIENCE_S
    )
    remove(cluster, "a")
    wait_for("its VF is the third one's", lambda: pool.holders() == of("b", "c"), PATIENCE_S)
    assert pool.events(NAMESPACE, "a") == []
    remove(cluster, "b", "c")
    wait_for("nobody holds one", lambda: pool.holders() == set(), PATIENCE_S)
    assert pool.pool["pods"] == 0


def test_a_container_that_restarts_keeps_its_pods_vf_and_a_new_sandbox_is_taken_in(
    cluster: Cluster, node: LocalNode, pool: LocalAgent
) -> None:
    run(cluster, "again")
    wait_for("it holds a VF", lambda: pool.holders() == of("again"), PATIENCE_S)
    uid = cluster.get(f"{PODS}/again")["metadata"]["uid"]
    first = pool.pool["holders"][0]

    def network(pid: int) -> str:
        return node.run("readlink", f"/proc/{pid}/ns/net")

    # The sandbox's process, and the container's.
    pause, main = sorted(node.processes(uid))
    before = network(pause)
    node.run("kill", "-9", str(main))
    wait_for("its container is restarted", lambda: runs(cluster, "again", 1), PATIENCE_S)
    assert pool.pool["holders"][0]["vf"] == first["vf"]
    assert network(pause) == before
    node.run("kill", "-9", str(pause))

    def anew() -> bool:
        found = sorted(node.processes(uid))
        return len(found) == 2 and pause not in found and network(found[0]) != before

    wait_for("it has a sandbox of its own again", anew, PATIENCE_S)
    wait_for("and holds a VF", lambda: pool.holders() == of("again"), PATIENCE_S)
    assert pool.condition(NAMESPACE, "again") == ("", "", ""), "nothing was ever amiss"
    remove(cluster, "again")


def test_a_pod_that_the_kubelet_evicts_is_no_guest_any_more(
    cluster: Cluster, pool: LocalAgent
) -> None:
    script = "sleep 20; dd if=/dev/zero of=/scratch/big bs=1M count=4; sleep 600"
    run(cluster, "glutton", "sh", "-c", script, restartPolicy="Never")
    wait_for("it holds a VF", lambda: pool.holders() == of("glutton"), PATIENCE_S)
    wait_for(
        "it is evicted", lambda: status(cluster, "glutton").get("reason") == "Evicted", PATIENCE_S
    )
    wait_for("its VF is taken", lambda: pool.holders() == set(), PATIENCE_S)
    assert pool.pool["pods"] == 0
    remove(cluster, "glutton")


def test_a_pod_that_was_replaced_while_agent_kubelet_and_api_server_were_killed_is_caught_up_with(
    cluster: Cluster, node: LocalNode, pool: LocalAgent
) -> None:
    run(cluster, "stays")
    run(cluster, "goes")
    wait_for("both hold a VF", lambda: pool.holders() == of("stays", "goes"), PATIENCE_S)
    node.kill_kubelet()
    pool.kill()
    cluster.kill_server()
    time.sleep(2)
    cluster.start_server()
    remove(cluster, "goes")
    run(cluster, "comes")
    pool.start()
    wait_for("the new one holds a VF", lambda: pool.holders() == of("stays", "comes"), PATIENCE_S)
    remove(cluster, "stays", "comes")


def test_commands_run_on_a_node_by_its_kubelet_and_nothing_is_left(
    cluster: Cluster, node: LocalNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{binaries()}:{os.environ['PATH']}")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig(ADMIN)))
    new_namespace(cluster, "measure")
    place = f"k8s://one?namespace=measure&image={BUSYBOX}"
    measuring = "/api/v1/namespaces/measure/pods"
    with closing(open_host(place, "sender")) as host:
        done = host.run(["sh", "-c", 'cat; echo "it broke" >&2; exit 3'], stdin=b"given")
        assert (done.exit_code, done.stdout, done.stderr) == (3, "given", "it broke\n")
        with pytest.raises(PlanewiseError, match=r"sh failed \(exit code 3\): it broke"):
            done.check()
        # The node's own network namespace, not a pod's.
        assert node.address in host.run(["ip", "-br", "address"]).stdout
        tool = tmp_path / "tool"
        tool.write_bytes(bytes(range(256)) * 1000)
        there = host.program(str(tool))
        assert host.read(there) == tool.read_bytes()
        probe = host.run([host.probe, "--version"])
        assert probe.exit_code == 0, probe.stderr
        kept = host.directory
        assert node.run("ls", kept)
        assert len(cluster.get(measuring)["items"]) == 1
    wait_for("its pod is gone", lambda: cluster.get(measuring)["items"] == [], PATIENCE_S)
    assert node.run("sh", "-c", f"ls -d {kept} 2>/dev/null || true") == ""
