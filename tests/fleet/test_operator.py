"""The chart as an operator installs it, on a real node and with the control plane's loops."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.cluster import ADMIN, Cluster, NodeView, binaries, wait_for
from tests.fleet.conftest import CHART, REPOSITORY, helm
from tests.fleet.kubelet import BUSYBOX, LocalNode, control_loops, node_of_a_cluster, why_not

pytestmark = pytest.mark.timeout(600)

PATIENCE_S = 120
REFERENCE = REPOSITORY / "docs/reference/kubernetes.md"
IMAGE = "planewised-kubernetes-*.oci.tar"
SIMULATED = """
[alloc]
interval_s = 0.5
min_residency_s = 0.0
[simulated]
vfs = 2
pods = { constant = 1000.0 }
"""


@pytest.fixture(scope="module")
def image() -> Path:
    """The image of the agent; built where it is not there."""
    folder = REPOSITORY / "dist"
    if not list(folder.glob(IMAGE)):
        pytest.skip("no image of the agent: `make fleet-test` builds it into dist")
    (found,) = folder.glob(IMAGE)
    return found


@pytest.fixture(scope="module")
def both(
    tmp_path_factory: pytest.TempPathFactory, image: Path
) -> Iterator[tuple[Cluster, LocalNode]]:
    """A cluster of one node that has the image."""
    if reason := why_not("kube-controller-manager", "kube-scheduler", "helm", "kubectl"):
        pytest.skip(reason)
    with node_of_a_cluster(tmp_path_factory.mktemp("operator")) as (cluster, node):
        node.import_image(image)
        with control_loops(cluster):
            yield cluster, node


def shell(cluster: Cluster, line: str) -> str:
    """A line as an operator writes it, in the repository, with Kubernetes' programs at hand."""
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=CHART.parents[2],
        env=os.environ
        | {
            "PATH": f"{binaries()}:{os.environ['PATH']}",
            "KUBECONFIG": str(cluster.kubeconfig(ADMIN)),
        },
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
    return done.stdout


def available(cluster: Cluster) -> bool:
    """Do the agent and both controllers run and answer?"""
    apps = "/apis/apps/v1/namespaces/planewise"
    agents = cluster.get(f"{apps}/daemonsets/planewised")["status"]
    controllers = cluster.get(f"{apps}/deployments/planewise-controller")["status"]
    return bool(agents.get("numberAvailable") == 1 and controllers.get("availableReplicas") == 2)


@pytest.fixture(scope="module")
def guide(both: tuple[Cluster, LocalNode]) -> dict[str, str]:
    """What the reference's first lines say, each run to the letter: line -> what it says."""
    text = REFERENCE.read_text()
    lines = re.findall(r"^    ((?:kubectl|helm) .*?)\s*(?:#.*)?$", text.partition("\n## ")[0], re.M)
    cluster, _ = both
    pool, fleet = NodeView(cluster, "one"), "/apis/planewise.io/v1alpha1/vffleets/fleet"
    said = {}
    for line in lines:
        if line.startswith("kubectl get vfpools"):
            wait_for("agent and controllers run", lambda: available(cluster), PATIENCE_S)
            wait_for("the node's pool is told", lambda: pool.ready() != ("", ""), PATIENCE_S)
            wait_for("and the fleet's", lambda: "status" in (cluster.get(fleet) or {}), PATIENCE_S)
        said[line] = shell(cluster, line)
    return said


def test_the_reference_followed_to_the_letter_has_an_agent_on_the_node_that_says_what_is_there(
    guide: dict[str, str],
) -> None:
    assert {line.split()[0] for line in guide} == {"kubectl", "helm"}
    head, row = guide["kubectl get vfpools"].splitlines()
    columns = dict(zip(head.split(), row.split(), strict=True))
    # This machine has no SR-IOV.
    assert (columns["NAME"], columns["READY"], columns["REASON"]) == ("one", "False", "NoVfs")
    assert "fleet" in guide["kubectl get vffleets"]


MANIFESTS = """
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: planewise.io/v1alpha1
kind: VfPolicy
metadata: {name: web, namespace: shop}
spec: {podSelector: {matchLabels: {app: web}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 3
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: IMAGE}]
"""


def test_a_deployments_pods_hold_vfs_as_the_tables_tell_and_go_on_when_the_chart_is_taken_away(
    both: tuple[Cluster, LocalNode], guide: dict[str, str], tmp_path: Path
) -> None:
    cluster, _ = both
    values, manifests = tmp_path / "values.json", tmp_path / "web.yaml"
    values.write_text(json.dumps({"agent": {"configuration": SIMULATED}}))
    manifests.write_text(MANIFESTS.replace("IMAGE", BUSYBOX))
    access = ("--kubeconfig", str(cluster.kubeconfig(ADMIN)), "--namespace", "planewise")
    helm("upgrade", "planewise", str(CHART), *access, "--reuse-values", "--values", str(values))
    shell(cluster, f"kubectl apply -f {manifests}")
    pool = NodeView(cluster, "one")

    def told() -> bool:
        return (pool.pool.get("held"), pool.pool.get("waiting")) == (2, 1)

    wait_for("two of three pods hold a VF", told, PATIENCE_S)
    usage = "/apis/planewise.io/v1alpha1/namespaces/shop/vfusages/usage"
    wait_for("the namespace is summed up", lambda: cluster.get(usage), PATIENCE_S)
    head, row = shell(cluster, "kubectl get vfpools").splitlines()
    columns = dict(zip(head.split(), row.split(), strict=True))
    assert (columns["READY"], columns["HELD"], columns["WAITING"]) == ("True", "2", "1")
    # An eviction as a drain asks for it.
    gone = sorted(pool.holders())[0].removeprefix("shop/")
    evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": gone}}
    cluster.request("POST", f"/api/v1/namespaces/shop/pods/{gone}/eviction", evict)
    wait_for("its VF is another one's", lambda: f"shop/{gone}" not in pool.holders(), PATIENCE_S)
    wait_for("as is told", told, PATIENCE_S)

    helm("uninstall", "planewise", *access, "--wait", "--timeout", "90s")
    # What it waits for are its own objects; their pods end a moment later.
    pods = "/api/v1/namespaces/planewise/pods"
    wait_for("its pods are gone", lambda: cluster.get(pods)["items"] == [], PATIENCE_S)
    web = cluster.get("/apis/apps/v1/namespaces/shop/deployments/web")["status"]
    assert web["availableReplicas"] == 3
