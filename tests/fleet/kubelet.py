"""Real nodes: a kubelet with containerd and a bridge CNI, in namespaces of their own."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from planewise.boot import packages, tools
from planewise.testbed.hosts.host import find_probe
from tests.fleet.cluster import ADMIN, Cluster, NodeView, binaries, wait_for

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).parent / "node.sh"
HERE = "/run/pw-node"
"""Where a node has its sockets and what its runtime keeps: in its own /run."""

BUSYBOX = "planewise/busybox:1"
"""An image with a shell."""
PROBE = "planewise/probe:1"
"""An image of pw-probe."""
_PAUSE = "planewise/pause:1"

_CONTAINERD = """\
version = 3
root = "{here}/root"
state = "{here}/state"
[grpc]
address = "{here}/containerd.sock"
[plugins.'io.containerd.internal.v1.opt']
path = "{here}/opt"
[plugins.'io.containerd.nri.v1.nri']
disable = true
[plugins.'io.containerd.cri.v1.images']
snapshotter = "native"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "docker.io/{pause}"
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{bin}"]
conf_dir = "{directory}/cni"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
"""


def why_not(*programs: str) -> str | None:
    """Why there can be no node here, or None."""
    needed = (
        "etcd",
        "kube-apiserver",
        "kubelet",
        "containerd",
        "ctr",
        "bridge",
        "loopback",
        *programs,
    )
    for name in needed:
        if not os.access(binaries() / name, os.X_OK):
            return f"{name} is not kept here: `scripts/fleet-binaries node` builds it"
    if shutil.which("runc", path=os.environ["PATH"] + ":/usr/sbin:/sbin") is None:
        return "runc is not installed: apt-get install runc"
    return "a node needs root" if os.geteuid() else None


def artifacts() -> ModuleType:
    """The program that puts released images together."""
    spec = importlib.util.spec_from_file_location("artifacts", ROOT / "packaging/artifacts.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def write_images(directory: Path) -> None:
    """Writes the images that pods of tests are made of."""
    busybox = tools.find(packages.cache_directory()).busybox.read_bytes()
    probe = Path(find_probe()).read_bytes()
    made: list[tuple[str, dict[str, tuple[bytes, int]], list[str]]] = [
        # What a pod's first container does: nothing.
        ("pause", {"busybox": (busybox, 0o755)}, ["/busybox", "sleep", "86400"]),
        (
            "busybox",
            {
                f"bin/{name}": (busybox, 0o755)
                for name in ("busybox", "sh", "sleep", "nsenter", "dd")
            },
            ["/bin/sleep", "86400"],
        ),
        ("probe", {"pw-probe": (probe, 0o755)}, ["/pw-probe", "reflect", "--poll-us", "0"]),
    ]
    for name, files, entry in made:
        archive = artifacts().oci_archive(name, "1", "amd64", 0, files, {"Entrypoint": entry})
        (directory / f"{name}.tar").write_bytes(archive)


@dataclass(frozen=True)
class NodeFiles:
    """What a node is started with."""

    name: str
    pods: str
    """Where its pods' addresses are from, as 198.18.241.0/24."""
    gateway: str = ""
    """Their router; empty: the first of these addresses, which the bridge has then."""
    group: str = "/"
    """The control group below which the kubelet makes its own."""

    def write(self, directory: Path, there: str) -> None:
        """Writes them into a folder, which is `there` where the node runs."""
        for folder in ("cni", "images"):
            (directory / folder).mkdir()
        write_images(directory / "images")
        containerd = _CONTAINERD.format(here=HERE, pause=_PAUSE, bin=binaries(), directory=there)
        (directory / "containerd.toml").write_text(containerd)
        addresses = {"subnet": self.pods}
        if self.gateway:
            # The gateway is told apart from the pods: they begin after it.
            first = ipaddress.ip_address(self.gateway) + 9
            addresses |= {"gateway": self.gateway, "rangeStart": str(first)}
        network = {
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "pwbr",
                    "isGateway": not self.gateway,
                    "ipam": {
                        "type": "host-local",
                        "dataDir": f"{HERE}/addresses",
                        "ranges": [[addresses]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                }
            ],
        }
        (directory / "cni/pods.conflist").write_text(json.dumps(network))
        kubelet = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{HERE}/containerd.sock",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.group,
            "cgroupsPerQOS": True,
            "enforceNodeAllocatable": ["pods"],
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "evictionHard": {"memory.available": "10Mi"},
            "imageGCHighThresholdPercent": 100,
            "volumeStatsAggPeriod": "5s",
            "resolvConf": "",
            "podLogsDir": f"{HERE}/logs",
            "volumePluginDir": f"{HERE}/volume-plugins",
        }
        (directory / "kubelet.yaml").write_text(json.dumps(kubelet))


def child_of(process: subprocess.Popen[bytes]) -> int:
    """The process that one which enters namespaces has started there; 0: none yet, or no more."""
    words = ["pgrep", "-P", str(process.pid)]
    found = subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()
    return int(found[0]) if found else 0


class LocalNode:
    """A node on this machine: what it writes to is its own, but for control groups."""

    def __init__(self, directory: Path, files: NodeFiles, address: str, here: str) -> None:
        """`address` is the node's and `here` this machine's, at the two ends of a veth pair."""
        self.directory = directory
        self.name, self.address = files.name, address
        self._group = files.group
        directory.mkdir()
        files.write(directory, str(directory))
        with (directory / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    # Should the tests be killed, the node and all its pods go, too.
                    *("setpriv", "--pdeathsig", "KILL"),
                    *("unshare", "--mount", "--pid", "--net", "--uts", "--fork", "--kill-child"),
                    *("--mount-proc", "--propagation", "private", "sh", str(SCRIPT)),
                ],
                stdout=log,
                stderr=log,
                env=os.environ
                | {
                    "DIRECTORY": str(directory),
                    "BIN": str(binaries()),
                    "NODE": self.name,
                    "ADDRESS": address,
                    "ALONE": "yes",
                },
            )
        try:
            self.pid = wait_for("the node's first process", lambda: child_of(self._process))
            end = f"pw{self._process.pid}"
            for words in (
                f"ip link add {end} type veth peer name eth0 netns {self.pid}",
                f"ip address add {here}/32 peer {address} dev {end}",
                f"ip link set {end} up",
                f"ip route add {files.pods} via {address} dev {end}",
            ):
                subprocess.run(words.split(), check=True)
            self.run("ip", "link", "set", "lo", "up")
            self.run("ip", "address", "add", f"{address}/32", "peer", here, "dev", "eth0")
            self.run("ip", "link", "set", "eth0", "up")
            self.run("ip", "route", "add", "default", "via", here)
            self.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        except BaseException:
            self.stop()
            raise

    def join(self, cluster: Cluster) -> None:
        """Starts its kubelet as a node of this cluster, and waits until it is ready."""
        # Not seen before it is whole.
        copied = shutil.copy(cluster.kubeconfig(ADMIN), self.directory / "kubeconfig.part")
        Path(copied).rename(self.directory / "kubeconfig")

        def ready() -> bool:
            assert self._process.poll() is None, self.log()
            node = cluster.get(f"/api/v1/nodes/{self.name}") or {}
            conditions = node.get("status", {}).get("conditions", [])
            return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)

        try:
            wait_for("the node is ready", ready, 180)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()}") from None

    def log(self) -> str:
        """The ends of what its programs say."""
        names = ("log", "containerd.log", "kubelet.log")
        files = [self.directory / name for name in names]
        return "\n".join(
            f"{path.name}: {path.read_text()[-3000:]}" for path in files if path.exists()
        )

    def enter(self, words: Sequence[str]) -> list[str]:
        """A command, run in the node's namespaces."""
        spaces = ("--mount", "--pid", "--net", "--uts")
        return ["nsenter", "-t", str(self.pid), *spaces, "--", *words]

    def run(self, *words: str, check: bool = True) -> str:
        """Runs a command in the node's namespaces; gives what it says."""
        done = subprocess.run(self.enter(words), capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def import_image(self, file: Path) -> None:
        """Gives the node an image, as its administrator does."""
        ctr = (str(binaries() / "ctr"), "--address", f"{HERE}/containerd.sock")
        options = ("images", "import", "--local", "--snapshotter", "native")
        self.run(*ctr, "--namespace", "k8s.io", *options, str(file))

    def processes(self, uid: str) -> list[int]:
        """The processes of a pod, oldest first, as the node sees them."""
        script = (
            'for p in /proc/[0-9]*; do grep -qs "pod$1" $p/cgroup && echo ${p#/proc/}; done; true'
        )
        return [int(line) for line in self.run("sh", "-c", script, "sh", uid).split()]

    def kill_kubelet(self) -> None:
        """Kills its kubelet as kill -9 does; it comes back by itself."""
        self.run("kill", "-9", (self.directory / "kubelet.pid").read_text().strip())

    def stop(self) -> None:
        """Ends it and all its pods."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        groups = self._group.strip("/") or "kubepods"
        until = time.monotonic() + 30
        while left := self._groups(groups):
            for group in left:
                # The last process of a group may be ending.
                try:
                    group.rmdir()
                except OSError:
                    break
            if time.monotonic() > until:
                raise AssertionError(f"control groups are left: {left[:3]}")
            time.sleep(0.1)

    @staticmethod
    def _groups(name: str) -> list[Path]:
        """What is left of control groups, the innermost first."""
        tops = [*Path("/sys/fs/cgroup").glob(f"*/{name}"), Path("/sys/fs/cgroup") / name]
        found = [Path(below) for top in tops for below, _, _ in os.walk(top)]
        return sorted(found, key=lambda group: -len(group.parts))


class LocalAgent(NodeView):
    """planewised as a program of a node, with two VFs that are made up."""

    def __init__(self, program: Path, cluster: Cluster, node: LocalNode) -> None:
        super().__init__(cluster, node.name)
        self._local = node
        self._program = program
        self._configuration = node.directory / "planewised.toml"
        self._configuration.write_text(
            f'socket = "{HERE}/planewised.sock"\nstate_directory = "{HERE}/planewised"\n'
            "sample_s = 0.2\n[alloc]\ninterval_s = 0.5\nmin_residency_s = 0.0\nmax_moves = 16\n"
            "[simulated]\nvfs = 2\npods = { constant = 1000.0 }\n"
            f'[kubernetes]\nnode = "{node.name}"\nkubeconfig = "{node.directory}/kubeconfig"\n'
        )
        self.start()

    def start(self) -> None:
        """Starts it."""
        words = [str(self._program), "daemon", "--config", str(self._configuration)]
        with (self._local.directory / "agent.log").open("ab") as log:
            self._process = subprocess.Popen(self._local.enter(words), stderr=log)

    def kill(self) -> None:
        """Kills it as kill -9 does."""
        if child := child_of(self._process):
            os.kill(child, signal.SIGKILL)
        self._process.wait()


@contextmanager
def node_of_a_cluster(folder: Path) -> Iterator[tuple[Cluster, LocalNode]]:
    """A control plane without its loops, and a node of it."""
    here = "198.18.240.1"
    files = NodeFiles("one", "198.18.241.0/24")
    with ExitStack() as stack:
        node = LocalNode(folder / "node", files, "198.18.240.2", here)
        stack.callback(node.stop)
        (folder / "server").mkdir()
        cluster = Cluster(binaries(), folder / "server", [], here)
        stack.callback(cluster.stop)
        node.join(cluster)
        yield cluster, node


@contextmanager
def control_loops(
    cluster: Cluster, names: Sequence[str] = ("kube-controller-manager", "kube-scheduler")
) -> Iterator[None]:
    """The real controller manager and scheduler."""
    access = cluster.kubeconfig(ADMIN)
    options = {
        "kube-scheduler": (),
        "kube-controller-manager": (
            "--use-service-account-credentials=false",
            f"--service-account-private-key-file={cluster.folder}/key.pem",
            f"--root-ca-file={cluster.folder}/authority.pem",
        ),
    }
    started: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            program = binaries() / name
            if not os.access(program, os.X_OK):
                pytest.skip(f"{name} is not kept here: `scripts/fleet-binaries node` builds it")
            given = [
                f"--{option}={access}"
                for option in (
                    "kubeconfig",
                    "authentication-kubeconfig",
                    "authorization-kubeconfig",
                )
            ]
            with (cluster.folder / f"{name}.log").open("ab") as log:
                words = [program, *given, "--leader-elect=false", "--secure-port=0", *options[name]]
                started.append(subprocess.Popen(words, stdout=log, stderr=log))
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
