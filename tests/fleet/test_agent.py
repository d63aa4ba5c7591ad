"""The node agent against a real API server: its code is the real one, its host is made up."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial

import pytest

from tests.fleet.cluster import MERGE, AgentOfNode, ApiError, Cluster, wait_for
from tests.fleet.conftest import USER, Agents, crds, verbs

Policies = Callable[..., None]
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
POOLS = "/apis/planewise.io/v1alpha1/vfpools"
# Longer than the time between two heartbeats of a pool.
REST_S = 70


def _slice(node: str) -> dict[str, object]:
    """A DRA driver hands out the VFs of the made-up host."""
    attributes = {"resource.kubernetes.io/pciBusID": {"string": "ffff:00:00.0"}}
    return {
        "metadata": {"name": f"{node}-dra.example.com"},
        "spec": {
            "driver": "dra.example.com",
            "nodeName": node,
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "vf0", "attributes": attributes}],
        },
    }


def test_pods_hold_vfs_while_they_run_and_the_nodes_pool_tells_who(
    cluster: Cluster, agent: Agents, namespace: str, policy: Policies
) -> None:
    policy(namespace, podSelector={"matchLabels": {"app": "web"}})
    node = agent(vfs=2)
    for name in ("a", "b", "c"):
        node.pod(namespace, name, labels={"app": "web"})
    node.pod(namespace, "other")
    wait_for("two of three hold a VF", lambda: len(node.holders()) == 2)
    pool = node.pool
    assert (pool["vfs"], pool["held"], pool["free"]) == (2, 2, 0)
    assert (pool["pods"], pool["waiting"]) == (3, 1), "who no policy selects is left alone"
    first = sorted(node.holders())[0].removeprefix(f"{namespace}/")
    node.delete_pod(namespace, first)
    others = {f"{namespace}/{name}" for name in {"a", "b", "c"} - {first}}
    wait_for("the VF is the third one's", lambda: node.holders() == others)
    # Another pod of that name is another guest.
    node.pod(namespace, first, labels={"app": "web"})
    wait_for("it waits", lambda: node.pool["waiting"] == 1)

    table = cluster.request(
        "GET", POOLS, Accept="application/json;as=Table;g=meta.k8s.io;v=v1,application/json"
    )
    columns = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    assert columns == [
        *("Name", "Ready", "Reason", "VFs", "Held", "Free", "Unusable", "Pods", "Waiting"),
        "Reported",
    ]
    row = next(row["cells"] for row in table["rows"] if row["cells"][0] == node.node)
    assert row[1:9] == ["True", "AllUsable", 2, 2, 0, 0, 3, 1]
    owner = cluster.get(f"{POOLS}/{node.node}")["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Node", node.node)


def test_a_pod_that_lies_about_its_annotations_is_told_and_gets_what_its_policy_allows(
    agent: Agents, namespace: str, policy: Policies
) -> None:
    policy(namespace, limits={"maxClass": 3})
    node = agent()
    asking = {"planewise.io/class": "255", "planewise.io/stance": "pinned"}
    node.pod(namespace, "greedy", annotations={**asking, "planewise.io/clas": "1"})
    wait_for("it is told", lambda: node.condition(namespace, "greedy")[0])
    status, reason, message = node.condition(namespace, "greedy")
    assert (status, reason) == ("True", "AnnotationsNotFollowed")
    assert "255 is asked for, policy allows 3" in message
    assert "clas is unknown" in message
    wait_for("an event", lambda: node.events(namespace, "greedy") == [(reason, 1)])


def test_a_pod_that_two_policies_or_none_select_is_told_and_not_managed(
    cluster: Cluster, agent: Agents, namespace: str, policy: Policies
) -> None:
    node = agent()
    node.pod(namespace, "asks", annotations={"planewise.io/class": "1"})
    wait_for("no policy", lambda: node.condition(namespace, "asks")[1] == "NoPolicy")
    policy(namespace, "first", limits={"maxClass": 1})
    wait_for("it is managed", lambda: node.holders() == {f"{namespace}/asks"})
    wait_for("and told so", lambda: node.condition(namespace, "asks")[:2] == ("True", "AsAsked"))
    policy(namespace, "second")
    wait_for("two", lambda: node.condition(namespace, "asks")[:2] == ("False", "TwoPolicies"))
    wait_for("its VF is taken", lambda: node.holders() == set())
    told = [reason for reason, _ in node.events(namespace, "asks")]
    assert sorted(told) == ["NoPolicy", "TwoPolicies"]


def test_a_policy_that_contradicts_itself_or_has_unknown_fields_is_refused_by_the_api_server(
    namespace: str, policy: Policies
) -> None:
    for spec, said in (
        ({"defaults": {"class": 2}, "limits": {"maxClass": 1}}, "defaults.class is beyond"),
        ({"defaults": {"stance": "pinned"}}, "limits.allowPinned is false"),
        ({"defaults": {"minSharePercent": 5}}, "defaults.minSharePercent is beyond"),
        ({"defaults": {"stance": "best"}}, "Unsupported value"),
        ({"limits": {"maxClass": 256}}, "should be less than or equal to 255"),
        ({"limit": {}}, 'unknown field "spec.limit"'),
        ({"podSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}, "values go with"),
    ):
        with pytest.raises(ApiError) as refused:
            policy(namespace, **spec)
        assert said in refused.value.message, refused.value.message


def test_vfs_that_a_device_plugin_or_a_dra_driver_hands_out_are_not_given(
    cluster: Cluster, agent: Agents, namespace: str, policy: Policies
) -> None:
    policy(namespace)
    node = agent()
    record = {"Data": {"RegisteredDevices": {"example.com/vf": ["ffff:00:00.0"]}}, "Checksum": 0}
    node.devices.write_text(json.dumps(record))
    wait_for("the node says so", lambda: node.ready() == ("False", "NoUsableVf"))
    assert "the device plugin of example.com/vf" in node.pool["conditions"][0]["message"]
    node.pod(namespace, "web")
    wait_for("it waits", lambda: node.pool["waiting"] == 1)
    assert node.holders() == set()
    wait_for("an event", lambda: ("NoUsableVf", 1) in node.events("default", node.node))
    cluster.create(SLICES, _slice(node.node))
    node.devices.unlink()
    wait_for(
        "it is the driver's",
        lambda: "the DRA driver dra.example.com" in node.pool["conditions"][0]["message"],
    )
    cluster.delete(f"{SLICES}/{node.node}-dra.example.com")
    wait_for("the pod has a VF", lambda: node.holders() == {f"{namespace}/web"})
    assert node.ready() == ("True", "AllUsable")


def test_a_node_without_vfs_says_so(agent: Agents) -> None:
    node = agent(vfs=0)
    wait_for("the node says so", lambda: node.ready() == ("False", "NoVfs"))
    wait_for("an event", lambda: node.events("default", node.node) == [("NoVfs", 1)])


def test_an_api_server_without_our_kinds_is_told_in_one_sentence_and_waited_for(
    cluster: Cluster, agent: Agents
) -> None:
    kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

    def is_gone(path: str) -> bool:
        return cluster.get(path) is None

    ours = {item["metadata"]["name"].partition(".")[0]: item for item in crds()}
    try:
        for plural in ("vfpools", "vfpolicies"):
            cluster.delete(f"{kinds}/{plural}.planewise.io")
            gone = f"{kinds}/{plural}.planewise.io"
            wait_for("the kind is gone", partial(is_gone, gone))
        node = agent()
        told = wait_for("the node is told", lambda: node.events_about("default", node.node))
        (event,) = told
        assert event["reason"] == "NoVfPoolKind"
        assert event["regarding"]["kind"] == "Node"
        assert event["regarding"]["uid"] == node.node, "`kubectl describe node` asks by that"
        assert event["note"] == (
            "the API server knows no VfPools of planewise.io/v1alpha1: "
            "apply packaging/kubernetes/chart/crds"
        )
    finally:
        cluster.create(kinds, ours["vfpools"])
    try:
        wait_for("the pool says so", lambda: node.ready() == ("Unknown", "NotKnown"), 60)
        message = node.pool["conditions"][0]["message"]
        assert "knows no VfPolicies of planewise.io/v1alpha1: apply" in message
        events = wait_for("an event", lambda: node.events_about("default", node.node)[1:])
        uid = cluster.get(f"{POOLS}/{node.node}")["metadata"]["uid"]
        assert [event["regarding"]["uid"] for event in events] == [uid]
    finally:
        cluster.create(kinds, ours["vfpolicies"])
    wait_for("all is well", lambda: node.ready() == ("True", "AllUsable"), 90)


def test_a_static_pod_is_found_by_the_hash_that_its_mirror_bears_and_nobody_else_can_bear_it(
    cluster: Cluster, agent: Agents, namespace: str, policy: Policies
) -> None:
    policy(namespace)
    node = agent(vfs=2)
    hash_ = "0123456789abcdef0123456789abcdef"
    keys = ("kubernetes.io/config.mirror", "kubernetes.io/config.hash")
    node.pod(namespace, "static", group=hash_, annotations=dict.fromkeys(keys, hash_))
    wait_for("it is a guest", lambda: node.holders() == {f"{namespace}/static"})
    victim = node.pod(namespace, "victim")["metadata"]["uid"]
    node.pod(namespace, "liar", group="none", annotations=dict.fromkeys(keys, victim))
    both = {f"{namespace}/static", f"{namespace}/victim"}
    wait_for("the victim is a guest", lambda: node.holders() == both)
    wait_for("the liar is told", lambda: node.condition(namespace, "liar")[1] == "NoProcess")


def test_an_agent_that_was_killed_goes_on_with_the_pods_that_are_there_then(
    agent: Agents, namespace: str, policy: Policies
) -> None:
    policy(namespace)
    node = agent(vfs=1)
    node.pod(namespace, "before")
    wait_for("it has the VF", lambda: node.holders() == {f"{namespace}/before"})
    node.kill()
    node.delete_pod(namespace, "before")
    node.pod(namespace, "after")
    node.start()
    wait_for("the other one has it", lambda: node.holders() == {f"{namespace}/after"})


def test_what_changed_while_the_api_server_was_away_and_history_was_forgotten_is_caught_up_with(
    cluster: Cluster, agent: Agents, namespace: str, policy: Policies, said: list[str]
) -> None:
    policy(namespace)
    node = agent(vfs=2)
    node.pod(namespace, "stays")
    node.pod(namespace, "goes")
    both = {f"{namespace}/stays", f"{namespace}/goes"}
    wait_for("both have one", lambda: node.holders() == both)

    def lists_of_pods() -> int:
        asked = [entry for entry in cluster.requests_of(USER) if entry["verb"] == "list"]
        return sum(
            node.node in entry["requestURI"] and entry["objectRef"]["resource"] == "pods"
            for entry in asked
        )

    assert lists_of_pods() == 1
    cluster.kill_server()
    time.sleep(3)
    # While the agent waits between two tries, others change what it had seen, and etcd forgets it.
    cluster.start_server()
    begun = time.monotonic()
    cluster.compact()
    node.delete_pod(namespace, "goes")
    cluster.compact()
    node.pod(namespace, "comes")
    cluster.compact()
    cluster.kill_server()
    cluster.start_server()
    expected = {f"{namespace}/stays", f"{namespace}/comes"}
    wait_for("it is up to date", lambda: node.holders() == expected, 90)
    assert lists_of_pods() > 1, "the watch could not go on where it had ended"
    said.append(f"up to date {time.monotonic() - begun:.1f} s after the API server was back")


def test_what_others_write_into_a_pool_is_put_right_and_a_pool_that_was_deleted_is_made_again(
    cluster: Cluster, agent: Agents, namespace: str, policy: Policies
) -> None:
    policy(namespace)
    node = agent(vfs=3)
    wait_for("there is a pool", lambda: node.pool.get("vfs") == 3)
    forged = {"status": {"vfs": 99, "holders": [{"vf": "x/0", "guest": "nobody"}]}}
    cluster.request("PATCH", f"{POOLS}/{node.node}/status", forged, MERGE)
    node.pod(namespace, "web")
    wait_for(
        "it is put right", lambda: node.pool["vfs"] == 3 and node.holders() == {f"{namespace}/web"}
    )
    cluster.delete(f"{POOLS}/{node.node}")
    node.delete_pod(namespace, "web")
    wait_for("it is there again", lambda: node.pool.get("held") == 0)


def test_a_pool_is_written_at_most_once_in_10_s_and_at_rest_hardly_anything_is_asked(
    cluster: Cluster, agent: Agents, namespace: str, policy: Policies, said: list[str]
) -> None:
    policy(namespace)
    node = agent(vfs=8)
    wait_for("there is a pool", lambda: node.pool.get("vfs") == 8)

    def asked_since(moment: datetime) -> list[str]:
        # No other agent of this user runs.
        return [
            f"{entry['verb']} {entry['requestURI'].partition('?')[0]}"
            for entry in cluster.requests_of(USER)
            if datetime.fromisoformat(entry["requestReceivedTimestamp"]) >= moment
        ]

    begun = datetime.now(UTC)
    for index in range(12):
        node.pod(namespace, f"pod-{index}")
        time.sleep(1)
    wait_for("eight hold one", lambda: len(node.holders()) == 8)
    writes = [what for what in asked_since(begun) if what == f"patch {POOLS}/{node.node}/status"]
    allowed = 2 + (datetime.now(UTC) - begun).total_seconds() / 10
    assert 0 < len(writes) <= allowed, f"{len(writes)} writes while twelve pods came, one a second"
    rested = datetime.now(UTC)
    time.sleep(REST_S)
    asked = asked_since(rested)
    said.append(f"requests of a node in {REST_S} s at rest: {len(asked)} ({', '.join(asked)})")
    assert 0 < len(asked) < REST_S / 10, "it is alive, and asks less than once in 10 s"


def _failing_checks(
    cluster: Cluster, node: AgentOfNode, namespace: str, policy: Policies
) -> set[str]:
    """What does not work on a node: names of checks, each of which rests on some verb."""
    failing: set[str] = set()

    def check(name: str, look: Callable[[], object]) -> None:
        try:
            wait_for(name, look, 25)
        except AssertionError:
            failing.add(name)

    check("there is a pool", lambda: cluster.get(f"{POOLS}/{node.node}"))
    if failing:
        return failing
    check("the pool has a status", lambda: node.pool)
    check("the node is ready", lambda: node.ready()[0] == "True")
    check("there is a slice", lambda: node.devices_published)
    check("a pod is a guest", lambda: f"{namespace}/early" in node.holders())
    node.pod(namespace, "late")
    check("a later pod is a guest", lambda: f"{namespace}/late" in node.holders())
    check("a pod is told", lambda: node.condition(namespace, "asks")[1] == "AnnotationsNotFollowed")
    check("an event tells it", lambda: node.events(namespace, "asks"))
    if failing:
        return failing
    # Two policies and one again: what was told is told again.
    policy(namespace, "second")
    check(
        "a later policy is followed", lambda: node.condition(namespace, "asks")[1] == "TwoPolicies"
    )
    cluster.delete(f"/apis/planewise.io/v1alpha1/namespaces/{namespace}/vfpolicies/second")
    check(
        "a repeated event is counted",
        lambda: ("AnnotationsNotFollowed", 2) in node.events(namespace, "asks"),
    )
    cluster.create(SLICES, _slice(node.node))
    check("a later slice is followed", lambda: "DRA driver" in json.dumps(node.pool))
    return failing


# A check that fails without the verb.
NEEDED = {
    "pods:list": "the node is ready",
    "pods:watch": "a later pod is a guest",
    "pods/status:patch": "a pod is told",
    "nodes:get": "there is a pool",
    "vfpolicies:list": "the node is ready",
    "vfpolicies:watch": "a later policy is followed",
    "vfpools:create": "there is a pool",
    "vfpools:patch": "there is a pool",
    "vfpools/status:patch": "the pool has a status",
    "resourceslices:list": "the node is ready",
    "resourceslices:watch": "a later slice is followed",
    "resourceslices:create": "there is a slice",
    "resourceslices:patch": "there is a slice",
    "events:create": "an event tells it",
    "events:patch": "a repeated event is counted",
}


def test_each_verb_of_the_role_is_needed(
    cluster: Cluster, agent: Agents, namespace: str, policy: Policies
) -> None:
    assert set(verbs()) == set(NEEDED), "the role and this test name the same verbs"
    lacking = ["", *NEEDED]
    namespaces = [f"{namespace}-{index}" for index in range(len(lacking))]
    for name in namespaces:
        cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
        policy(name)
    nodes = [agent(vfs=4, without=verb) for verb in lacking]
    for name, node in zip(namespaces, nodes, strict=True):
        node.pod(name, "early")
        node.pod(name, "asks", annotations={"planewise.io/class": "9"})
    with ThreadPoolExecutor(len(nodes)) as threads:
        jobs = [
            threads.submit(_failing_checks, cluster, node, name, policy)
            for name, node in zip(namespaces, nodes, strict=True)
        ]
        failing = dict(zip(lacking, [job.result() for job in jobs], strict=True))
    assert failing.pop("") == set(), "with the whole role everything works"
    unharmed = {verb: sorted(failing[verb]) for verb in NEEDED if NEEDED[verb] not in failing[verb]}
    assert not unharmed, "without these verbs other checks fail than the one that needs them"
