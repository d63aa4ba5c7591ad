"""The Helm chart, by Helm and against a real API server. No kubelet starts what it describes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fleet.cluster import ADMIN, ApiError, Cluster, Object
from tests.fleet.conftest import AGENT, CHART, CONTROLLER, NAMESPACE, helm, rendered


def _of(kind: str, name: str, *settings: str) -> Object:
    found = [
        item
        for item in rendered(*settings)
        if item["kind"] == kind and item["metadata"]["name"] == name
    ]
    assert len(found) == 1, f"{kind} {name}: {len(found)} times"
    return found[0]


def test_the_chart_has_no_faults_that_helm_knows() -> None:
    answer = helm("lint", "--strict", str(CHART))
    assert "0 chart(s) failed" in answer.stdout


@pytest.mark.parametrize(
    ("setting", "refused"),
    [
        ("controller.replicas=-1", "minimum"),
        ("controller.replicas=two", "integer"),
        ("controller.metricsPort=80", "minimum"),
        ("image.pullPolicy=Sometimes", "value must be one of"),
        ("agent.configration=x", "additional properties 'configration' not allowed"),
        ("image.repository=", "minLength"),
    ],
)
def test_values_that_make_no_sense_are_refused(setting: str, refused: str) -> None:
    answer = helm("template", "planewise", str(CHART), "--set", setting, check=False)
    assert answer.returncode != 0
    assert refused in answer.stderr, answer.stderr


def test_values_reach_the_objects_that_they_are_for(tmp_path: Path) -> None:
    values = {
        "image": {"repository": "registry.example/planewise", "tag": "1.2"},
        "imagePullSecrets": [{"name": "key"}],
        "agent": {
            "configuration": '[pool]\npfs = ["eth1"]',
            "nodeSelector": {"sriov": "true"},
            "tolerations": [{"operator": "Exists"}],
        },
        "controller": {"replicas": 3, "metricsPort": 9000},
    }
    file = tmp_path / "values.yaml"
    file.write_text(json.dumps(values))
    settings = ("--values", str(file))
    agent = _of("DaemonSet", AGENT, *settings)["spec"]["template"]["spec"]
    assert agent["containers"][0]["image"] == "registry.example/planewise:1.2"
    assert agent["imagePullSecrets"] == [{"name": "key"}]
    assert agent["nodeSelector"] == {"sriov": "true"}
    assert agent["tolerations"] == [{"operator": "Exists"}]
    toml = _of("ConfigMap", AGENT, *settings)["data"]["planewised.toml"]
    assert toml == '[kubernetes]\n[pool]\npfs = ["eth1"]\n'
    slices = ("--set", "agent.resourceSlices=true")
    toml = _of("ConfigMap", AGENT, *slices)["data"]["planewised.toml"]
    assert toml == "[kubernetes]\nresource_slices = true\n"
    controller = _of("Deployment", CONTROLLER, *settings)["spec"]
    assert controller["replicas"] == 3
    container = controller["template"]["spec"]["containers"][0]
    assert container["args"] == ["controller", "--listen", "0.0.0.0:9000"]
    assert container["image"] == "registry.example/planewise:1.2"
    none = {item["metadata"]["name"] for item in rendered("--set", "controller.replicas=0")}
    assert none == {AGENT}, "without a controller there is nothing of it"


def test_the_agent_may_write_slices_only_where_it_publishes_them() -> None:
    def verbs(*settings: str) -> list[str]:
        (found,) = (
            rule["verbs"]
            for rule in _of("ClusterRole", AGENT, *settings)["rules"]
            if rule["resources"] == ["resourceslices"]
        )
        return sorted(found)

    assert verbs() == ["list", "watch"]
    publishing = verbs("--set", "agent.resourceSlices=true")
    assert publishing == ["create", "list", "patch", "watch"]


def test_a_change_of_the_configuration_starts_the_agents_anew() -> None:
    def annotations(*settings: str) -> Object:
        found: Object = _of("DaemonSet", AGENT, *settings)["spec"]["template"]["metadata"][
            "annotations"
        ]
        return found

    assert annotations() != annotations("--set", "agent.configuration=[pool]")
    assert annotations() != annotations("--set", "agent.resourceSlices=true")


def test_helm_installs_the_chart_and_takes_it_away_again(cluster: Cluster, namespace: str) -> None:
    access = ("--kubeconfig", str(cluster.kubeconfig(ADMIN)), "--namespace", namespace)
    helm("install", "planewise", str(CHART), *access)
    paths = {
        "agents": f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{AGENT}",
        "controllers": f"/apis/apps/v1/namespaces/{namespace}/deployments/{CONTROLLER}",
        "role": f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{AGENT}",
    }
    made = {name: cluster.get(path) for name, path in paths.items()}
    assert all(made.values()), made
    assert made["controllers"]["spec"]["replicas"] == 2
    helm("upgrade", "planewise", str(CHART), *access, "--set", "controller.replicas=1")
    assert cluster.get(paths["controllers"])["spec"]["replicas"] == 1
    helm("uninstall", "planewise", *access)
    assert not any(cluster.get(path) for path in paths.values())
    kinds = cluster.get("/apis/apiextensions.k8s.io/v1/customresourcedefinitions")["items"]
    assert len(kinds) == 4, "policies and what is known of the fleet stay"


def test_pod_security_admits_the_controller_everywhere_and_the_agent_where_that_is_allowed(
    cluster: Cluster,
) -> None:
    def refusal(level: str, pod: Object) -> str:
        name = f"{NAMESPACE}-{level}"
        labels = {"pod-security.kubernetes.io/enforce": level}
        if cluster.get(f"/api/v1/namespaces/{name}") is None:
            cluster.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        path = f"/api/v1/namespaces/{name}/pods?dryRun=All"
        try:
            cluster.request("POST", path, {"metadata": {"name": "pod"}, "spec": pod["spec"]})
        except ApiError as error:
            return str(error)
        return ""

    controller = _of("Deployment", CONTROLLER)["spec"]["template"]
    agent = _of("DaemonSet", AGENT)["spec"]["template"]
    assert refusal("restricted", controller) == ""
    assert refusal("privileged", agent) == ""
    assert "privileged" in refusal("baseline", agent)
