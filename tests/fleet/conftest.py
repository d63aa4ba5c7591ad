"""A cluster's control plane for the tests of the node agent, where its programs are kept."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.fleet.cluster import AgentOfNode, Cluster, Object, binaries

REPOSITORY = Path(__file__).parents[2]

MANIFESTS = REPOSITORY / "packaging/kubernetes"
AGENT = REPOSITORY / "crates/kube/target/debug/planewised-kubernetes"
# May do what the role of agent.yaml allows; the others lack one verb of it each.
USER = "agent"


def manifests(name: str) -> list[Object]:
    """The objects of a file."""
    return list(YAML(typ="safe").load_all((MANIFESTS / name).read_text()))


def rules() -> list[Object]:
    """What the agent's role allows."""
    role = next(item for item in manifests("agent.yaml") if item["kind"] == "ClusterRole")
    return list(role["rules"])


def verbs() -> list[str]:
    """Each verb of the role, as RESOURCE:VERB."""
    return [f"{rule['resources'][0]}:{verb}" for rule in rules() for verb in rule["verbs"]]


def _user(verb: str) -> str:
    return "without-" + verb.replace("/", "-").replace(":", "-")


def _bind(cluster: Cluster, user: str, allowed: list[Object]) -> None:
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    cluster.create(f"{rbac}/clusterroles", {"metadata": {"name": user}, "rules": allowed})
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    binding = {"metadata": {"name": user}, "roleRef": reference, "subjects": [subject]}
    cluster.create(f"{rbac}/clusterrolebindings", binding)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A control plane with our kinds, and users with the agent's role, whole and in part."""
    for program in (binaries() / "etcd", binaries() / "kube-apiserver", AGENT):
        if not os.access(program, os.X_OK):
            pytest.skip(f"{program.name} is not kept here: `make fleet-test` builds it")
    users = [USER, *map(_user, verbs())]
    cluster = Cluster(binaries(), tmp_path_factory.mktemp("cluster"), users)
    try:
        for name in ("vfpolicies.yaml", "vfpools.yaml"):
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            cluster.create(path, manifests(name)[0])
        _bind(cluster, USER, rules())
        for verb in verbs():
            resource, without = verb.split(":")
            rest = [
                {**rule, "verbs": [verb for verb in rule["verbs"] if verb != without]}
                if rule["resources"] == [resource]
                else rule
                for rule in rules()
            ]
            _bind(cluster, _user(verb), [rule for rule in rest if rule["verbs"]])
        yield cluster
    finally:
        cluster.stop()


Agents = Callable[..., AgentOfNode]


@pytest.fixture
def agent(cluster: Cluster, tmp_path: Path) -> Iterator[Agents]:
    """Starts the agent of another node; `without` is the verb that it lacks."""
    agents: list[AgentOfNode] = []

    def start(vfs: int = 2, without: str = "") -> AgentOfNode:
        node = f"{tmp_path.name.replace('_', '-').strip('-')}-{len(agents)}"
        folder = tmp_path / str(len(agents))
        folder.mkdir()
        user = _user(without) if without else USER
        agents.append(AgentOfNode(AGENT, cluster, node, folder, user, vfs))
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
