"""The node's PFs as devices of a ResourceSlice, against a real API server and its scheduler."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.fleet.cluster import ADMIN, MERGE, Cluster, Object, binaries, wait_for
from tests.fleet.conftest import Agents

Policies = Callable[..., None]
SLICE = "SlicePublished"
RESOURCES = "/apis/resource.k8s.io/v1"


def test_a_pf_is_a_device_that_as_many_claims_share_as_it_has_vfs(
    cluster: Cluster, agent: Agents, namespace: str, policy: Policies
) -> None:
    policy(namespace)
    node = agent(vfs=2)
    (device,) = wait_for("there is a slice", lambda: node.devices_published)
    assert device["allowMultipleAllocations"] is True
    assert device["capacity"]["vfs"]["value"] == "2"
    assert device["attributes"]["free"] == {"int": 2}
    wait_for("the pool says so", lambda: node.ready(SLICE) == ("True", "Published"))
    slice_ = cluster.get(node.slice_path)
    (owner,) = slice_["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Node", node.node)
    assert slice_["spec"]["pool"]["name"] == slice_["spec"]["nodeName"] == node.node
    assert node.ready() == ("True", "AllUsable"), "one's own slice hands out nothing"

    for name in "abc":
        node.pod(namespace, name)

    def told(**expected: int) -> bool:
        (device,) = node.devices_published
        return all(device["attributes"][key] == {"int": of} for key, of in expected.items())

    wait_for("it tells who waits", lambda: told(free=0, waiting=1))
    later = cluster.get(node.slice_path)["spec"]["pool"]["generation"]
    assert later > slice_["spec"]["pool"]["generation"]


def test_a_slice_that_others_change_or_delete_is_put_right(cluster: Cluster, agent: Agents) -> None:
    node = agent(vfs=2)
    wait_for("there is a slice", lambda: node.devices_published)
    cluster.request("PATCH", node.slice_path, {"spec": {"devices": []}}, MERGE)
    assert node.devices_published == []
    wait_for("it is put right", lambda: node.devices_published)
    cluster.delete(node.slice_path)
    wait_for("it is there again", lambda: node.devices_published)


def test_nothing_is_published_where_nobody_wants_it(cluster: Cluster, agent: Agents) -> None:
    node, other = agent(slices=False), agent()
    wait_for("both are ready", lambda: node.ready() == other.ready() == ("True", "AllUsable"))
    wait_for("the other one's", lambda: other.devices_published)
    assert cluster.get(node.slice_path) is None
    assert node.ready(SLICE) == ("", "")


@pytest.fixture
def older(cluster: Cluster) -> Iterator[Callable[[str], None]]:
    """Starts the API server anew with an option; as it was afterwards."""

    def start(option: str) -> None:
        cluster.kill_server()
        cluster.start_server(option)

    yield start
    cluster.kill_server()
    cluster.start_server()


def test_an_api_server_without_slices_is_told_of_and_waited_for(
    cluster: Cluster, agent: Agents, older: Callable[[str], None]
) -> None:
    older("--runtime-config=resource.k8s.io/v1=false")
    node = agent()
    wait_for("the pool says so", lambda: node.ready(SLICE) == ("False", "NoResourceSliceKind"))
    assert node.ready() == ("True", "AllUsable"), "all else works"
    wait_for("an event", lambda: node.events("default", node.node) == [("NoResourceSliceKind", 1)])
    cluster.kill_server()
    cluster.start_server()
    wait_for("all is well", lambda: node.ready(SLICE) == ("True", "Published"), 120)
    assert node.devices_published


def test_an_api_server_without_devices_that_claims_share_is_told_of(
    agent: Agents, older: Callable[[str], None]
) -> None:
    older("--feature-gates=DRAConsumableCapacity=false")
    node = agent()
    wait_for("the pool says so", lambda: node.ready(SLICE) == ("True", "NotShared"))
    (device,) = node.devices_published
    assert "allowMultipleAllocations" not in device


@pytest.mark.parametrize("version", ["1.34", "1.35"])
def test_api_servers_of_the_releases_before_are_served(
    cluster: Cluster,
    agent: Agents,
    namespace: str,
    policy: Policies,
    older: Callable[[str], None],
    version: str,
) -> None:
    older(f"--emulated-version={version}")
    assert cluster.get("/version")["emulationMinor"] == version.partition(".")[2]
    policy(namespace)
    node = agent(vfs=1)
    node.pod(namespace, "a")
    wait_for("it holds a VF", lambda: node.holders() == {f"{namespace}/a"})
    wait_for("the slice is told of", lambda: node.ready(SLICE)[0])
    # That claims share a device came later, and is off unless asked for there.
    assert node.ready(SLICE) == ("True", "NotShared")
    assert len(node.devices_published) == 1


@pytest.fixture
def scheduler(cluster: Cluster, tmp_path: Path) -> Iterator[None]:
    """The real scheduler, where it is kept."""
    program = binaries() / "kube-scheduler"
    if not os.access(program, os.X_OK):
        pytest.skip("kube-scheduler is not kept here: `scripts/fleet-binaries scheduler` builds it")
    access = cluster.kubeconfig(ADMIN)
    options = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
    with (tmp_path / "scheduler.log").open("wb") as log:
        process = subprocess.Popen(
            [
                program,
                *(f"--{option}={access}" for option in options),
                *("--leader-elect=false", "--secure-port=0"),
            ],
            stdout=log,
            stderr=log,
        )
    yield
    process.kill()
    process.wait()


def test_the_scheduler_gives_a_pf_to_as_many_pods_as_it_has_vfs_and_no_more(
    cluster: Cluster, agent: Agents, namespace: str, scheduler: None
) -> None:
    agents = [agent(vfs=vfs) for vfs in (1, 2)]
    for each in agents:
        wait_for("the pool says so", lambda each=each: each.ready(SLICE) != ("", ""))
        assert each.ready(SLICE) == ("True", "Published")
    nodes = {each.node: vfs for each, vfs in zip(agents, (1, 2), strict=True)}
    for node in nodes:
        # Nobody tells that a node of this test is ready; the API server holds that against it.
        path = f"/api/v1/nodes/{node}"
        cluster.request("PATCH", path, {"spec": {"taints": None}}, MERGE)
        room = {"cpu": "8", "memory": "8Gi", "pods": "110"}
        body = {"status": {"capacity": room, "allocatable": room}}
        cluster.request("PATCH", f"{path}/status", body, MERGE)
    devices = {"cel": {"expression": 'device.driver == "planewise.io"'}}
    path = f"{RESOURCES}/deviceclasses"
    name = f"{namespace}.planewise.io"
    cluster.create(path, {"metadata": {"name": name}, "spec": {"selectors": [devices]}})
    pods = f"/api/v1/namespaces/{namespace}/pods"
    for index in range(4):
        request = {"name": "vf", "exactly": {"deviceClassName": name}}
        spec: Object = {"devices": {"requests": [request]}}
        claim = {"metadata": {"name": f"claim-{index}"}, "spec": spec}
        cluster.create(f"{RESOURCES}/namespaces/{namespace}/resourceclaims", claim)
        pod = {
            "containers": [
                {"name": "main", "image": "none", "resources": {"claims": [{"name": "vf"}]}}
            ],
            "resourceClaims": [{"name": "vf", "resourceClaimName": f"claim-{index}"}],
        }
        cluster.create(pods, {"metadata": {"name": f"pod-{index}"}, "spec": pod})

    def placed() -> dict[str, int]:
        places = [pod["spec"].get("nodeName", "") for pod in cluster.get(pods)["items"]]
        return {place: places.count(place) for place in places}

    try:
        wait_for("three are placed", lambda: placed() == {**nodes, "": 1})
        (waits,) = (pod for pod in cluster.get(pods)["items"] if "nodeName" not in pod["spec"])
        (why,) = waits["status"]["conditions"]
        assert (why["reason"], why["status"]) == ("Unschedulable", "False")
    finally:
        cluster.delete(f"{path}/{name}")
