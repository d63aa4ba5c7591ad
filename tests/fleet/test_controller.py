"""The controller over all nodes against a real API server: its VfPools are written by the test."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from tests.fleet.cluster import Cluster, Controller, Object, wait_for
from tests.fleet.conftest import CONTROLLER, Agents, Controllers, verbs

API = "/apis/planewise.io/v1alpha1"
TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1,application/json"


def _fleet(cluster: Cluster) -> Object:
    status: Object = (cluster.get(f"{API}/vffleets/fleet") or {}).get("status", {})
    return status


def _usage(cluster: Cluster, namespace: str) -> Object:
    found = cluster.get(f"{API}/namespaces/{namespace}/vfusages/usage") or {}
    status: Object = found.get("status", {})
    return status


def _row(cluster: Cluster, path: str) -> dict[str, object]:
    """What `kubectl get` shows of the first object."""
    table = cluster.request("GET", f"{API}/{path}", Accept=TABLE)
    shown = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    return dict(zip(shown, table["rows"][0]["cells"], strict=False))


def _holder(namespace: str, pod: str) -> Object:
    return {"vf": "pf0/0", "guest": f"{namespace}/{pod}", "kind": "pod"}


@pytest.fixture(autouse=True)
def _nothing_else(cluster: Cluster) -> Iterator[None]:
    """No pools of earlier tests, and no sums."""

    def clear() -> None:
        for kind in ("vfpools", "vffleets"):
            cluster.request("DELETE", f"{API}/{kind}")

    clear()
    yield
    clear()


def test_the_fleet_and_each_namespace_are_summed_up_and_told_what_would_help(
    cluster: Cluster,
    agent: Agents,
    controller: Controllers,
    namespace: str,
    policy: Callable[..., None],
) -> None:
    policy(namespace)
    # A real agent, whose pods send 1 000 packets a second each, and a node with free VFs.
    node = agent(vfs=1)
    node.pod(namespace, "a")
    node.pod(namespace, "b")
    cluster.write_pool("roomy", vfs=3, held=1, free=2, holders=[_holder("shop", "web")])
    only = controller()
    wait_for("all is summed up", lambda: _fleet(cluster).get("unmetPods") == 1)
    fleet = _fleet(cluster)
    assert [fleet[key] for key in ("nodes", "ready", "silent", "vfs", "held", "free")] == [
        2,
        2,
        0,
        4,
        2,
        2,
    ]
    assert (fleet["pods"], fleet["waiting"]) == (3, 1)
    (more,) = fleet["moreVfs"]
    assert (more["node"], more["vfs"]) == (node.node, 1)
    (other,) = fleet["otherNode"]
    (held,) = node.holders()
    waiting = ({f"{namespace}/a", f"{namespace}/b"} - {held}).pop()
    assert (other["pod"], other["node"], other["to"]) == (waiting, node.node, "roomy")
    assert 500 <= other["packetsPerSecond"] <= 1500
    (complete,) = fleet["conditions"]
    assert (complete["status"], complete["reason"]) == ("True", "AllReport")
    row = _row(cluster, "vffleets")
    assert list(row) == [
        *(
            "Name",
            "Nodes",
            "Ready",
            "Silent",
            "VFs",
            "Held",
            "Free",
            "Waiting",
            "Unmet",
            "Unmet pps",
        ),
        "Reported",
    ]
    assert [row[name] for name in ("Name", "Nodes", "VFs", "Unmet")] == ["fleet", 2, 4, 1]

    wait_for("the namespace is told", lambda: _usage(cluster, namespace).get("unmetPods") == 1)
    usage = _usage(cluster, namespace)
    assert (usage["held"], usage["waiting"], usage["nodes"]) == (1, 1, 1)
    assert usage["holders"] == [
        {"pod": held.removeprefix(f"{namespace}/"), "node": node.node, "vf": "simulated0/0"}
    ]
    row = _row(cluster, f"namespaces/{namespace}/vfusages")
    assert [row[name] for name in ("Nodes", "Held", "Waiting", "Unmet")] == [1, 1, 1, 1]
    metrics = only.metrics()
    assert metrics['nodes{state="ready"}'] == 2
    assert metrics['vfs{state="free"}'] == 2
    assert metrics[f'pods_unmet{{namespace="{namespace}"}}'] == 1
    assert metrics[f'unmet_packets_per_second{{namespace="{namespace}"}}'] >= 500

    for pod in ("a", "b"):
        node.delete_pod(namespace, pod)
    wait_for("its usage is over", lambda: not _usage(cluster, namespace))


def test_one_of_two_controllers_writes_and_the_other_takes_over_when_it_dies_or_is_ended(
    cluster: Cluster, controller: Controllers, said: list[str]
) -> None:
    cluster.write_pool("n1", vfs=1, free=1)
    first = controller()
    wait_for("the first one leads", first.leads)
    second, third = controller(), controller()
    wait_for("they know the pools", lambda: second.metrics().get('nodes{state="ready"}') == 1)
    assert not second.leads()

    first.kill()
    killed = time.monotonic()
    cluster.write_pool("n2", vfs=1, free=1)
    wait_for("another one writes", lambda: _fleet(cluster).get("nodes") == 2, 40)
    said.append(
        f"after kill -9 of the leader another one wrote within {time.monotonic() - killed:.1f} s"
    )
    leading = [one for one in (second, third) if one.leads()]
    assert len(leading) == 1
    (last,) = {second, third} - set(leading)

    leading[0].process.send_signal(signal.SIGTERM)
    ended = time.monotonic()
    assert leading[0].process.wait(10) == 0
    wait_for("the last one leads", last.leads, 12)
    assert time.monotonic() - ended < 12, "a Lease that was given back is not waited for"
    cluster.write_pool("n3", vfs=1, free=1)
    wait_for("it writes", lambda: _fleet(cluster).get("nodes") == 3)
    lease = cluster.get(last.lease_path)["spec"]
    assert (lease["holderIdentity"], lease["leaseTransitions"]) == (last.folder.name, 2)


def test_what_changed_while_the_api_server_was_away_is_summed_up_when_it_is_back(
    cluster: Cluster, controller: Controllers, said: list[str]
) -> None:
    cluster.write_pool("n1", vfs=1, free=1)
    only = controller()
    wait_for("it is summed up", lambda: _fleet(cluster).get("nodes") == 1)
    cluster.kill_server()
    time.sleep(12)
    assert not only.leads(), "without the API server nobody leads for longer than a Lease lasts"
    cluster.start_server()
    cluster.write_pool("n2", vfs=2, free=2)
    cluster.compact()
    cluster.delete(f"{API}/vfpools/n1")
    cluster.compact()
    cluster.kill_server()
    cluster.start_server()
    back = time.monotonic()
    wait_for("it is up to date", lambda: _fleet(cluster).get("vfs") == 2, 60)
    assert _fleet(cluster)["nodes"] == 1
    said.append(
        f"the controller was up to date {time.monotonic() - back:.1f} s after the server was back"
    )


def test_a_thousand_nodes_are_summed_up_within_5_s(
    cluster: Cluster, controller: Controllers, said: list[str]
) -> None:
    def write(index: int) -> None:
        waiters = [{"guest": f"ns-{index % 10}/w{index}", "packetsPerSecond": index}]
        holders = [_holder(f"ns-{index % 10}", f"pod-{index}-{pod}") for pod in range(8)]
        cluster.write_pool(
            f"node-{index}",
            vfs=8,
            held=8,
            free=0,
            pods=9,
            waiting=1,
            holders=holders,
            waiters=waiters,
        )

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(write, range(1000)))
    for index in range(10):
        cluster.create("/api/v1/namespaces", {"metadata": {"name": f"ns-{index}"}})
    only = controller()
    wait_for("all are summed up", lambda: _fleet(cluster).get("nodes") == 1000)
    wait_for("by namespace, too", lambda: _usage(cluster, "ns-9").get("held") == 800)
    times = []

    def free_are(count: int) -> bool:
        return bool(_fleet(cluster)["free"] == count)

    for turn in range(1, 6):
        begun = time.monotonic()
        cluster.write_pool(f"node-{turn}", vfs=8, held=7, free=1)
        wait_for("the change is seen", partial(free_are, turn))
        times.append(time.monotonic() - begun)
    lines = Path(f"/proc/{only.process.pid}/status").read_text().splitlines()
    memory = next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))
    said.append(
        f"1 000 VfPools: a change is in the VfFleet after {max(times):.1f} s at most of "
        f"{len(times)}; the controller had {memory} MiB at most"
    )
    assert max(times) < 5
    assert memory < 256, "the chart's limit"
    assert len(_fleet(cluster)["moreVfs"]) == 20


def _first_failure(cluster: Cluster, one: Controller, namespace: str) -> str:
    """The first thing that a controller does not do; empty: it does all."""
    usage = f"{API}/namespaces/{namespace}/vfusages/usage"

    def some_pods_end() -> bool:
        cluster.write_pool("early", vfs=1, free=1, holders=[])
        cluster.write_pool("late", vfs=1, free=1)
        return True

    def leads_on() -> bool:
        time.sleep(11)
        return one.leads()

    for name, look in (
        ("it leads", one.leads),
        ("the pools are known", lambda: one.metrics().get('nodes{state="ready"}')),
        ("there is a fleet", lambda: cluster.get(f"{API}/vffleets/fleet")),
        ("the fleet has a status", lambda: _fleet(cluster)),
        ("there is a usage", lambda: cluster.get(usage)),
        ("the usage has a status", lambda: _usage(cluster, namespace)),
        ("its pods can end", some_pods_end),
        ("a later pool is known", lambda: one.metrics().get('nodes{state="ready"}') == 2),
        ("a usage that is over goes", lambda: cluster.get(usage) is None),
        ("it leads on", leads_on),
    ):
        try:
            wait_for(name, look, 15)
        except AssertionError:
            return name
    return ""


# What a controller without the verb does not do.
NEEDED = {
    "vfpools:list": "the pools are known",
    "vfpools:watch": "the pools are known",
    "vffleets:create": "there is a fleet",
    "vffleets:patch": "there is a fleet",
    "vffleets/status:patch": "the fleet has a status",
    "vfusages:list": "there is a usage",
    "vfusages:create": "there is a usage",
    "vfusages:patch": "there is a usage",
    "vfusages:delete": "a usage that is over goes",
    "vfusages/status:patch": "the usage has a status",
    "leases:get": "it leads",
    "leases:create": "it leads",
    "leases:update": "it leads on",
}


def test_each_verb_of_the_controllers_role_is_needed(
    cluster: Cluster, controller: Controllers, namespace: str
) -> None:
    assert set(verbs(CONTROLLER)) == set(NEEDED), "the role and this test name the same verbs"
    failures = {}
    for verb in ("", *NEEDED):
        for path in ("vfpools", "vffleets", f"namespaces/{namespace}/vfusages"):
            cluster.request("DELETE", f"{API}/{path}")
        cluster.write_pool("early", vfs=1, held=1, holders=[_holder(namespace, "web")])
        one = controller(without=verb)
        failures[verb] = _first_failure(cluster, one, namespace)
        one.kill()
        cluster.delete_if_there(one.lease_path)
    assert failures == {"": "", **NEEDED}
