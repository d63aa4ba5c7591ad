"""Many nodes' real agents, on made-up daemons in one process, and the controller over them.

The whole size, with the API server away for 60 s:

    PLANEWISE_FLEET_NODES=1000 pytest tests/fleet/test_scale.py
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.fleet.cluster import Cluster, run_pod, wait_for
from tests.fleet.conftest import PROGRAM, USER, Controllers

NODES = int(os.environ.get("PLANEWISE_FLEET_NODES", "50"))
WHOLE = NODES >= 1000
REST_S = 60
AWAY_S = 60 if WHOLE else 15
pytestmark = pytest.mark.timeout(1800 if WHOLE else 300)
FLEET = "/apis/planewise.io/v1alpha1/vffleets/fleet"


def _memory_mib(process: int) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith("VmHWM"))


def test_agents_of_many_nodes_ask_for_little_and_are_up_to_date_after_the_api_server_was_away(
    cluster: Cluster,
    controller: Controllers,
    namespace: str,
    policy: Callable[..., None],
    tmp_path: Path,
    said: list[str],
) -> None:
    names = [f"many-{index}" for index in range(NODES)]
    pods = [(node, f"{node}-{pod}") for pod in "ab" for node in names]

    def add_node(name: str) -> None:
        cluster.create("/api/v1/nodes", {"metadata": {"name": name}})
        (tmp_path / name).mkdir()

    def add_pod(node: str, pod: str) -> None:
        run_pod(cluster, node, tmp_path / node / str(1 + (pod[-1] == "b")), namespace, pod)

    def end_pod(node: str) -> None:
        cluster.delete(f"/api/v1/namespaces/{namespace}/pods/{node}-b")
        shutil.rmtree(tmp_path / node / "2")

    def fleet(**expected: int) -> bool:
        status = (cluster.get(FLEET) or {}).get("status", {})
        return all(status.get(key) == value for key, value in expected.items())

    policy(namespace)
    cluster.request("DELETE", "/apis/planewise.io/v1alpha1/vfpools")
    one = controller()
    threads = ThreadPoolExecutor(8)
    list(threads.map(add_node, names))
    program = PROGRAM.parent / "examples/nodes"
    arguments = [str(cluster.kubeconfig(USER)), str(tmp_path), "many", str(NODES), "1"]
    with (tmp_path / "log").open("wb") as log:
        agents = subprocess.Popen([program, *arguments], stderr=log)
    try:
        wait_for("all nodes are known", lambda: fleet(nodes=NODES, ready=NODES), 60 + NODES)
        list(threads.map(add_pod, *zip(*pods, strict=True)))
        begun = time.monotonic()
        wait_for("one pod of each node has its VF", lambda: fleet(held=NODES, waiting=NODES), 120)
        said.append(
            f"{NODES} nodes: {time.monotonic() - begun:.1f} s after the last of {2 * NODES} pods "
            "came the VfFleet knew them all"
        )
        # Whatever is written late after that.
        time.sleep(15)
        rested = datetime.now(UTC)
        time.sleep(REST_S)
        asked = sum(
            datetime.fromisoformat(entry["requestReceivedTimestamp"]) >= rested
            for entry in cluster.requests_of(USER)
        )
        rate = asked / NODES / (REST_S / 10)
        said.append(
            f"{NODES} nodes at rest: {rate:.2f} requests a node and 10 s; "
            f"the controller had {_memory_mib(one.process.pid)} MiB at most"
        )
        assert 0 < rate < 1

        cluster.kill_server()
        time.sleep(AWAY_S)
        cluster.start_server()
        back = time.monotonic()
        list(threads.map(end_pod, names))
        wait_for("nobody waits any more", lambda: fleet(nodes=NODES, pods=NODES, waiting=0), 120)
        said.append(
            f"{NODES} nodes, the API server away for {AWAY_S} s: all were up to date "
            f"{time.monotonic() - back:.1f} s after it was back"
        )
    finally:
        agents.kill()
        agents.wait()
        threads.shutdown()
