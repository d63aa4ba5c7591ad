"""A cluster's control plane for the tests of the node agent, where its programs are kept."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.fleet.cluster import AgentOfNode, Cluster, Controller, Object, binaries

REPOSITORY = Path(__file__).parents[2]

CHART = REPOSITORY / "packaging/kubernetes/chart"
PROGRAM = REPOSITORY / "crates/kube/target/debug/planewised-kubernetes"
AGENT = "planewised"
CONTROLLER = "planewise-controller"
# Each may do what its role in the chart allows; others lack one verb of it each.
USER = "agent"
CONTROLLER_USER = "controller"
NAMESPACE = "planewise"
_USERS = {AGENT: USER, CONTROLLER: CONTROLLER_USER}


def helm(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Helm; skips where it is not kept."""
    program = binaries() / "helm"
    if not os.access(program, os.X_OK):
        pytest.skip("helm is not kept here: `make fleet-test` builds it")
    return subprocess.run([program, *arguments], check=check, capture_output=True, text=True)


def rendered(*settings: str) -> list[Object]:
    """The objects of the chart, as Helm writes them with these `--set` and other arguments."""
    text = helm("template", "planewise", str(CHART), "--namespace", NAMESPACE, *settings).stdout
    return [item for item in YAML(typ="safe").load_all(text) if item]


def crds() -> list[Object]:
    """The kinds of the chart."""
    load = YAML(typ="safe").load
    return [load(path.read_text()) for path in sorted((CHART / "crds").iterdir())]


@functools.cache
def _roles(name: str) -> list[tuple[str, Object]]:
    found = [
        (item["kind"], rule)
        for item in rendered("--set", "agent.resourceSlices=true")
        if item["kind"] in ("ClusterRole", "Role") and item["metadata"]["name"] == name
        for rule in item["rules"]
    ]
    assert found, f"the chart has no role {name}"
    return found


def verbs(role: str = AGENT) -> list[str]:
    """Each verb of a role, as RESOURCE:VERB."""
    return [f"{rule['resources'][0]}:{verb}" for _, rule in _roles(role) for verb in rule["verbs"]]


def user(role: str, without: str = "") -> str:
    """Who has a role, but for one verb."""
    lacking = "-without-" + without.replace("/", "-").replace(":", "-") if without else ""
    return _USERS[role] + lacking


def _bind(cluster: Cluster, role: str, without: str = "") -> None:
    """Gives a user what a role of the chart allows, in the namespace or everywhere as there."""
    name = user(role, without)
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    resource, _, verb = without.partition(":")
    for kind in ("ClusterRole", "Role"):
        allowed = [
            {
                **rule,
                "verbs": [
                    of for of in rule["verbs"] if [of, *rule["resources"]] != [verb, resource]
                ],
            }
            for where, rule in _roles(role)
            if where == kind
        ]
        allowed = [rule for rule in allowed if rule["verbs"]]
        base = rbac if kind == "ClusterRole" else f"{rbac}/namespaces/{NAMESPACE}"
        cluster.create(f"{base}/{kind.lower()}s", {"metadata": {"name": name}, "rules": allowed})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": name}
        binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
        cluster.create(f"{base}/{kind.lower()}bindings", binding)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with our kinds, and users with the roles of the chart, whole and in part."""
    for program in (binaries() / "etcd", binaries() / "kube-apiserver", PROGRAM):
        if not os.access(program, os.X_OK):
            pytest.skip(f"{program.name} is not kept here: `make fleet-test` builds it")
    people = [(role, verb) for role in _USERS for verb in ("", *verbs(role))]
    users = [user(*person) for person in people]
    cluster = Cluster(binaries(), tmp_path_factory.mktemp("cluster"), users)
    try:
        for item in crds():
            cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", item)
        cluster.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
        for person in people:
            _bind(cluster, *person)
        yield cluster
    finally:
        cluster.stop()


Agents = Callable[..., AgentOfNode]


@pytest.fixture
def agent(cluster: Cluster, tmp_path: Path) -> Iterator[Agents]:
    """Starts the agent of another node; `without` is the verb that it lacks."""
    agents: list[AgentOfNode] = []

    def start(vfs: int = 2, without: str = "", slices: bool = True) -> AgentOfNode:
        node = f"{tmp_path.name.replace('_', '-').strip('-')}-{len(agents)}"
        folder = tmp_path / str(len(agents))
        folder.mkdir()
        who = user(AGENT, without)
        agents.append(AgentOfNode(PROGRAM, cluster, node, folder, who, vfs, slices))
        return agents[-1]

    yield start
    for started in agents:
        started.kill()


@pytest.fixture
def namespace(cluster: Cluster, tmp_path: Path) -> str:
    """A namespace of its own, without policies."""
    name = "ns-" + tmp_path.name.replace("_", "-").strip("-")
    cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
def policy(cluster: Cluster) -> Callable[..., None]:
    """Makes a VfPolicy."""

    def make(namespace: str, name: str = "policy", **spec: object) -> None:
        path = f"/apis/planewise.io/v1alpha1/namespaces/{namespace}/vfpolicies"
        cluster.create(
            path,
            {
                "apiVersion": "planewise.io/v1alpha1",
                "kind": "VfPolicy",
                "metadata": {"name": name},
                "spec": spec,
            },
        )

    return make


Controllers = Callable[..., Controller]


@pytest.fixture
def controller(cluster: Cluster, tmp_path: Path) -> Iterator[Controllers]:
    """Starts another controller; `without` is the verb that it lacks."""
    controllers: list[Controller] = []

    def start(without: str = "") -> Controller:
        name = f"replica-{len(controllers)}"
        who = user(CONTROLLER, without)
        controllers.append(Controller(PROGRAM, cluster, tmp_path / name, who, NAMESPACE))
        return controllers[-1]

    yield start
    for started in controllers:
        started.kill()
    for started in controllers:
        cluster.delete_if_there(started.lease_path)
