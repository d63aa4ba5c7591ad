"""A control plane of this machine: etcd and kube-apiserver as they are, and a client for tests."""

from __future__ import annotations

import base64
import contextlib
import datetime
import ipaddress
import itertools
import json
import os
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Object = dict[str, Any]
_T = TypeVar("_T")

ADMIN = "administrator"
MERGE = "application/merge-patch+json"
# Every request of an agent is a line of the audit log.
_AUDIT = (
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\n"
    "rules: [{level: Metadata, userGroups: [agents]}, {level: None}]\n"
)


def wait_for(what: str, look: Callable[[], _T], seconds: float = 60) -> _T:
    """Return the first result of `look` that is true; fails when there is none in time."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if result := look():
            return result
        time.sleep(0.1)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def _certificates(folder: Path, of: str) -> None:
    """Writes an authority's certificate, and a key and a certificate from it for an address."""
    now = datetime.datetime.now(datetime.UTC)
    pem = serialization.Encoding.PEM
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("authority", "server")}
    address = x509.IPAddress(ipaddress.ip_address(of))
    for name, key in keys.items():
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(name == "authority", None), critical=True)
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .sign(keys["authority"], hashes.SHA256())
        )
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(pem))
    # Of a key in PKCS #8 the API server does not derive the public key.
    form = serialization.PrivateFormat.TraditionalOpenSSL
    key_bytes = keys["server"].private_bytes(pem, form, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key_bytes)


class ApiError(Exception):
    """The API server refused: its code and its message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Cluster:
    """etcd and an API server; users are allowed what RBAC says, an administrator everything.

    With an address of its own it is there at the port of the service `kubernetes`, whose address
    that then is: pods reach it without a proxy. Their service accounts are then as usual, too.
    """

    def __init__(
        self, binaries: Path, folder: Path, users: list[str], address: str = "127.0.0.1"
    ) -> None:
        self.folder = folder
        self._binaries = binaries
        self._address = address
        self._etcd_port, peer = _free_port(), _free_port()
        alone = address == "127.0.0.1"
        self.port = _free_port() if alone else 443
        services = "198.18.0.1" if alone else address
        self._more = [
            f"--service-cluster-ip-range={ipaddress.ip_network(f'{services}/24', strict=False)}",
            *(["--disable-admission-plugins=ServiceAccount"] if alone else []),
        ]
        _certificates(folder, address)
        (folder / "audit.yaml").write_text(_AUDIT)
        lines = [f"{ADMIN},{ADMIN},1,system:masters"]
        lines += [f"{user},{user},{user},agents" for user in users]
        (folder / "tokens.csv").write_text("\n".join(lines))
        self._tls = ssl.create_default_context(cafile=folder / "authority.pem")
        etcd = f"http://127.0.0.1:{self._etcd_port}"
        self._etcd = self._start(
            "etcd",
            f"--data-dir={folder}/etcd",
            f"--listen-client-urls={etcd}",
            f"--advertise-client-urls={etcd}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster=default=http://127.0.0.1:{peer}",
            "--unsafe-no-fsync",
        )
        self._server: subprocess.Popen[bytes] | None = None
        try:
            self.start_server()
        except BaseException:
            self.stop()
            raise

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{program}.log").open("ab") as log:
            return subprocess.Popen([self._binaries / program, *arguments], stdout=log, stderr=log)

    def start_server(self, *options: str) -> None:
        """Starts the API server, with further options, and waits until it is ready."""
        folder = self.folder
        self._server = self._start(
            "kube-apiserver",
            f"--etcd-servers=http://127.0.0.1:{self._etcd_port}",
            f"--bind-address={self._address}",
            f"--secure-port={self.port}",
            f"--advertise-address={self._address}",
            "--endpoint-reconciler-type=none",
            "--kubelet-preferred-address-types=InternalIP",
            f"--tls-cert-file={folder}/server.pem",
            f"--tls-private-key-file={folder}/key.pem",
            f"--token-auth-file={folder}/tokens.csv",
            "--service-account-issuer=https://127.0.0.1",
            f"--service-account-key-file={folder}/key.pem",
            f"--service-account-signing-key-file={folder}/key.pem",
            "--authorization-mode=RBAC",
            "--allow-privileged=true",
            f"--audit-policy-file={folder}/audit.yaml",
            f"--audit-log-path={folder}/audit.log",
            *self._more,
            *options,
        )
        server = self._server

        def ready() -> bool:
            assert server.poll() is None, (folder / "kube-apiserver.log").read_text()[-2000:]
            try:
                self.request("GET", "/readyz")
            except (OSError, ApiError):
                return False
            return True

        wait_for("the API server is ready", ready, 120)

    def kill_server(self) -> None:
        """Kills the API server as kill -9 does."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None

    def stop(self) -> None:
        """Ends both."""
        self.kill_server()
        self._etcd.kill()
        self._etcd.wait()

    def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        kind: str = "application/json",
        **headers: str,
    ) -> Any:
        """Ask the API server as its administrator; the answer, as JSON where it is.

        Asked again for half a minute while it says that it is not ready for that kind yet (429).
        """
        for _ in range(30):
            try:
                return self._request(method, path, body, kind, headers)
            except ApiError as error:
                if error.code != 429:
                    raise
            time.sleep(1)
        return self._request(method, path, body, kind, headers)

    def _request(
        self, method: str, path: str, body: Object | None, kind: str, headers: dict[str, str]
    ) -> Any:
        request = urllib.request.Request(
            f"https://{self._address}:{self.port}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {ADMIN}", "Content-Type": kind, **headers},
        )
        try:
            with urllib.request.urlopen(request, context=self._tls, timeout=30) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            text = error.read().decode()
            message = json.loads(text)["message"] if text.startswith("{") else text
            raise ApiError(error.code, message) from None
        return json.loads(text) if text.startswith("{") else text

    def create(self, path: str, body: Object) -> Any:
        """Create an object; fields that its schema does not know are refused."""
        return self.request("POST", f"{path}?fieldValidation=Strict", body)

    def get(self, path: str) -> Any:
        """Read an object; none where there is none."""
        try:
            return self.request("GET", path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    def delete(self, path: str) -> None:
        """Delete an object at once."""
        self.request("DELETE", f"{path}?gracePeriodSeconds=0")

    def delete_if_there(self, path: str) -> None:
        """Delete an object; none is fine."""
        with contextlib.suppress(ApiError):
            self.delete(path)

    def write_pool(self, node: str, **status: Any) -> None:
        """Write a VfPool as a node's agent does: with a status of these fields."""
        path = "/apis/planewise.io/v1alpha1/vfpools"
        if self.get(f"{path}/{node}") is None:
            kind = {"apiVersion": "planewise.io/v1alpha1", "kind": "VfPool"}
            self.create(path, {**kind, "metadata": {"name": node}})
        ready = {"type": "Ready", "status": "True", "reason": "AllUsable"}
        body = {"status": {"conditions": [ready], **status}}
        self.request("PATCH", f"{path}/{node}/status", body, MERGE)

    def compact(self) -> None:
        """Has etcd forget all history: a watch that wants to go on from there is told 410."""
        base = f"http://127.0.0.1:{self._etcd_port}/v3/kv"

        def ask(what: str, body: Object) -> Any:
            data = json.dumps(body).encode()
            with urllib.request.urlopen(f"{base}/{what}", data=data, timeout=30) as answer:
                return json.load(answer)

        revision = ask("range", {"key": "AA=="})["header"]["revision"]
        ask("compaction", {"revision": revision, "physical": True})

    def requests_of(self, user: str) -> list[Object]:
        """The requests of a user by the audit log, each once; a watch from its beginning."""
        lines = (self.folder / "audit.log").read_text().splitlines()
        entries = [json.loads(line) for line in lines if line.endswith("}")]
        of_user = [entry for entry in entries if entry["user"]["username"] == user]
        return list({entry["auditID"]: entry for entry in of_user}.values())

    def kubeconfig(self, user: str) -> Path:
        """Return the file that tells how a user reaches the API server."""
        path = self.folder / f"kubeconfig-{user}"
        if path.exists():
            # Who was started with it may be reading it.
            return path
        server = {
            "server": f"https://{self._address}:{self.port}",
            # Not by its file: the configuration may be read elsewhere.
            "certificate-authority-data": base64.b64encode(
                (self.folder / "authority.pem").read_bytes()
            ).decode(),
        }
        path.write_text(
            json.dumps(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "here",
                    "clusters": [{"name": "here", "cluster": server}],
                    "users": [{"name": user, "user": {"token": user}}],
                    "contexts": [{"name": "here", "context": {"cluster": "here", "user": user}}],
                }
            )
        )
        return path


def run_pod(
    cluster: Cluster,
    node: str,
    process: Path,
    namespace: str,
    name: str,
    group: str = "",
    **metadata: Any,
) -> Object:
    """Create a pod that runs on a node; `process` becomes the directory /proc/PID of it."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    pod: Object = cluster.create(
        path,
        {
            "metadata": {"name": name, **metadata},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "none"}],
            },
        },
    )
    uid = group or pod["metadata"]["uid"]
    process.mkdir()
    (process / "cgroup").write_text(f"0::/kubepods/besteffort/pod{uid}/{'0' * 8}\n")
    (process / "stat").write_text(f"1 (pause) S {'0 ' * 18}1 0\n")
    body = {"status": {"phase": "Running"}}
    cluster.request("PATCH", f"{path}/{name}/status", body, MERGE)
    return pod


class NodeView:
    """A node as the cluster tells of it."""

    def __init__(self, cluster: Cluster, node: str) -> None:
        self.cluster = cluster
        self.node = node

    @property
    def pool(self) -> Object:
        """The status of its VfPool; empty while there is none."""
        pool = self.cluster.get(f"/apis/planewise.io/v1alpha1/vfpools/{self.node}")
        status: Object = (pool or {}).get("status", {})
        return status

    def holders(self) -> set[str]:
        """The guests that hold VFs, as its VfPool tells."""
        return {holder["guest"] for holder in self.pool.get("holders", [])}

    def ready(self, kind: str = "Ready") -> tuple[str, str]:
        """Status and reason of a condition of its VfPool."""
        for condition in self.pool.get("conditions", []):
            if condition["type"] == kind:
                return condition["status"], condition["reason"]
        return "", ""

    def condition(self, namespace: str, name: str) -> tuple[str, str, str]:
        """Status, reason and message of the condition that the agent gave a pod."""
        pod = self.cluster.get(f"/api/v1/namespaces/{namespace}/pods/{name}") or {}
        for condition in pod.get("status", {}).get("conditions", []):
            if condition["type"] == "planewise.io/Managed":
                return condition["status"], condition["reason"], condition["message"]
        return "", "", ""

    def events_about(self, namespace: str, about: str) -> list[Object]:
        """All events about an object but its kubelet's."""
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        events: list[Object] = self.cluster.get(path)["items"]
        return [
            event
            for event in events
            if event["regarding"]["name"] == about and event.get("reportingController") != "kubelet"
        ]

    def events(self, namespace: str, about: str) -> list[tuple[str, int]]:
        """The reasons of all events about an object, with how often each was told."""
        return [
            (event["reason"], (event.get("series") or {}).get("count", 1))
            for event in self.events_about(namespace, about)
        ]


class AgentOfNode(NodeView):
    """planewised as the agent of one node of a cluster, on a made-up host."""

    def __init__(
        self,
        program: Path,
        cluster: Cluster,
        node: str,
        folder: Path,
        user: str,
        vfs: int = 2,
        slices: bool = True,
    ) -> None:
        super().__init__(cluster, node)
        self.folder = folder
        self.proc = folder / "proc"
        self.devices = folder / "device-plugins" / "kubelet_internal_checkpoint"
        for directory in (self.proc, self.devices.parent):
            directory.mkdir(parents=True, exist_ok=True)
        self._program = program
        self._pids = itertools.count(1000)
        self._configuration = folder / "planewised.toml"
        self._configuration.write_text(
            f'socket = "{folder}/planewised.sock"\nstate_directory = "{folder}/state"\n'
            "sample_s = 0.2\n[alloc]\ninterval_s = 0.5\nmin_residency_s = 0.0\nmax_moves = 16\n"
            f"[simulated]\nvfs = {vfs}\npods = {{ constant = 1000.0 }}\n"
            f'[kubernetes]\nnode = "{node}"\nkubeconfig = "{cluster.kubeconfig(user)}"\n'
            f'proc = "{self.proc}"\ndevice_plugins = "{self.devices}"\n'
            f"resource_slices = {str(slices).lower()}\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        cluster.create("/api/v1/nodes", {"metadata": {"name": node}})
        self.start()

    def start(self) -> None:
        """Starts it."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program, "daemon", "--config", str(self._configuration)], stderr=log
            )

    def kill(self) -> None:
        """Kills it as kill -9 does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        """What it has logged."""
        return (self.folder / "log").read_text()

    @property
    def slice_path(self) -> str:
        """Where its ResourceSlice is."""
        return f"/apis/resource.k8s.io/v1/resourceslices/{self.node}-planewise.io"

    @property
    def devices_published(self) -> list[Object]:
        """The devices of its ResourceSlice; none while there is none."""
        found = self.cluster.get(self.slice_path) or {}
        devices: list[Object] = found.get("spec", {}).get("devices", [])
        return devices

    def pod(self, namespace: str, name: str, group: str = "", **metadata: Any) -> Object:
        """Creates a pod on its node that runs: with a process where the agent looks for them.

        `group` is the uid in the name of its control group; empty: the pod's.
        """
        process = self.proc / str(next(self._pids))
        return run_pod(self.cluster, self.node, process, namespace, name, group, **metadata)

    def delete_pod(self, namespace: str, name: str) -> None:
        """Deletes a pod, and its processes."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        uid = self.cluster.get(path)["metadata"]["uid"]
        self.cluster.delete(path)
        for process in self.proc.iterdir():
            if uid in (process / "cgroup").read_text():
                shutil.rmtree(process)


class Controller:
    """One replica of the controller over all nodes."""

    def __init__(
        self, program: Path, cluster: Cluster, folder: Path, user: str, namespace: str
    ) -> None:
        folder.mkdir()
        self.folder = folder
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self.lease_path = f"{leases}/planewise-controller"
        self._port = _free_port()
        with (folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [
                    *(program, "controller", "--identity", folder.name, "--namespace", namespace),
                    *("--kubeconfig", cluster.kubeconfig(user)),
                    *("--listen", f"127.0.0.1:{self._port}"),
                ],
                stderr=log,
            )

    def kill(self) -> None:
        """Kills it as kill -9 does."""
        self.process.kill()
        self.process.wait()

    def metrics(self) -> dict[str, float]:
        """Its metrics, by name and labels; empty before it listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics") as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        rows = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name.removeprefix("planewise_fleet_"): float(value) for name, _, value in rows}

    def leads(self) -> bool:
        """Is it the one that writes?"""
        return self.metrics().get("leads") == 1


def binaries() -> Path:
    """Where scripts/fleet-binaries keeps what it builds."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "planewise/fleet/v1.36.3/bin"
