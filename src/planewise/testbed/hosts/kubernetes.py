"""Hosts that are Kubernetes nodes: a privileged pod on the node, entered by `kubectl exec`.

Commands run in the node's own namespaces, as they would by ssh; the pod only gives access. It is
deleted when planewise ends, however that ends: `kubectl delete` waits here for the end of a pipe.
"""

from __future__ import annotations

import json
import re
import secrets
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlsplit

from planewise.errors import BadInputError, PlanewiseError, UnsupportedError
from planewise.testbed.hosts.host import FinishedProcess
from planewise.testbed.hosts.remote_host import CONNECT_TIMEOUT_S, RemoteHost

IMAGE = "busybox"
"""The pod's default image: it needs only `sleep` and `nsenter`."""

LABEL = "app.kubernetes.io/name=planewise-measure"

_START_S = 120
"""An image may have to be pulled first."""
_LONGEST_S = 24 * 3600
"""The pod ends by itself then, even without this machine."""
_KUBECTL_S = _START_S + 30
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
# The keepers on the node first see the end of their connections, and clean up.
_DELETER = """
trap '' INT TERM HUP
read -r done || sleep 5
exec "$@" >/dev/null
"""


@dataclass(frozen=True)
class NodeTarget:
    """A node of a cluster, and the options of its pod."""

    text: str
    """As the user wrote it."""
    node: str
    namespace: str = ""
    """Empty: the one of kubectl's context."""
    image: str = IMAGE
    context: str = ""
    """Empty: kubectl's current one."""

    @property
    def kubectl(self) -> tuple[str, ...]:
        """The command of kubectl with its options."""
        options = (("--context", self.context), ("--namespace", self.namespace))
        return ("kubectl", *(f"{option}={value}" for option, value in options if value))


def parse_node(text: str) -> NodeTarget:
    """`k8s://NODE`, as a value; `?namespace=`, `image=` and `context=` may follow. Pure.

    Raises:
        BadInputError: it is none.
    """
    remedy = "k8s://node, or k8s://node?namespace=measure&image=busybox&context=lab"
    try:
        parts = urlsplit(text)
        options = parse_qsl(parts.query, strict_parsing=bool(parts.query))
    except ValueError as error:
        raise BadInputError(f"`{text}` is not a host: {error}", remedy=remedy) from error
    node = re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", parts.netloc)
    if parts.scheme != "k8s" or not node or parts.path or parts.fragment:
        raise BadInputError(f"`{text}` is not a host", remedy=remedy)
    option_values = dict(options)
    unknown = sorted(set(option_values) - {"namespace", "image", "context"})
    if unknown or len(option_values) < len(options):
        what = f"`{unknown[0]}` is unknown" if unknown else "an option stands twice"
        raise BadInputError(f"`{text}` is not a host: {what}", remedy=remedy)
    if "namespace" in option_values and not re.fullmatch(_LABEL, option_values["namespace"]):
        raise BadInputError(f"`{text}` is not a host: that is not a namespace", remedy=remedy)
    return NodeTarget(text, parts.netloc, **option_values)


def pod(target: NodeTarget, name: str) -> dict[str, object]:
    """The measuring pod. Pure."""
    key, _, value = LABEL.partition("=")
    container = {
        "name": "measure",
        "image": target.image,
        # Also of a tag `latest`: nodes without a registry have imported images.
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", str(_LONGEST_S)],
        "securityContext": {"privileged": True},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {key: value}},
        "spec": {
            # Not by the scheduler: also a node that takes no pods now can be measured.
            "nodeName": target.node,
            "tolerations": [{"operator": "Exists"}],
            "hostPID": True,
            "hostNetwork": True,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": _LONGEST_S,
            "automountServiceAccountToken": False,
            "containers": [container],
        },
    }


class KubernetesHost(RemoteHost):
    """A node of a Kubernetes cluster, entered by a pod of ours; connected when made.

    Raises when made:
        UnsupportedError: there is no kubectl.
        PlanewiseError: the cluster refuses the pod, or it does not start.
    """

    remedy = "check with `kubectl get node` that the cluster and the node can be reached"

    def __init__(self, name: str, target: NodeTarget) -> None:
        self._target = target
        self._pod = f"planewise-measure-{secrets.token_hex(4)}"
        super().__init__(name, target.text)

    def socket(self, path: str) -> str:
        """See `Host.socket`: there is none."""
        raise UnsupportedError(
            f"{path} on {self.place} cannot be reached: kubectl forwards no Unix sockets",
            remedy="measure planes of Docker and of virtual machines by ssh://",
        )

    def _connect(self, opened: ExitStack) -> None:
        manifest = json.dumps(pod(self._target, self._pod)).encode()
        self._start_deleter(opened)  # before the pod, so that it is always deleted
        done = self._kubectl("create", "-f", "-", stdin=manifest)
        if done.exit_code != 0:
            raise PlanewiseError(
                f"the measuring pod of {self.place} is refused: {_last(done)}",
                remedy="it is privileged: its namespace must admit that (label "
                "pod-security.kubernetes.io/enforce=privileged), and you must be allowed to "
                "create, exec and delete pods there",
            )
        ready = ("--for=condition=Ready", f"pod/{self._pod}", f"--timeout={_START_S}s")
        done = self._kubectl("wait", *ready)
        if done.exit_code != 0:
            raise PlanewiseError(
                f"the measuring pod does not start on {self.place} within {_START_S} s: "
                f"{self._pod_failure() or _last(done)}",
                remedy="name an image that the node has or can pull: "
                f"k8s://{self._target.node}?image=…; it needs sleep and nsenter",
            )

    def _start_deleter(self, opened: ExitStack) -> None:
        """Starts what deletes the pod with `opened`, or when planewise has ended."""
        delete = ("delete", "pod", self._pod, "--ignore-not-found", "--wait=false")
        deleter = subprocess.Popen(
            ("sh", "-c", _DELETER, "sh", *self._target.kubectl, *delete),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

        def end() -> None:
            with suppress(OSError, subprocess.TimeoutExpired):
                deleter.communicate(b"done\n", CONNECT_TIMEOUT_S)

        opened.callback(end)

    def _kubectl(self, *argv: str, stdin: bytes | None = None) -> FinishedProcess:
        words = (*self._target.kubectl, *argv)
        return self.desk.run(words, stdin=stdin, timeout_s=_KUBECTL_S)

    def _pod_failure(self) -> str:
        """The cluster's reason why the pod does not run."""
        done = self._kubectl("get", "pod", self._pod, "-o", "json")
        if done.exit_code != 0:
            return ""
        status = json.loads(done.stdout).get("status", {})
        for container in status.get("containerStatuses", []):
            if waiting := container.get("state", {}).get("waiting"):
                return f"{waiting.get('reason', '')}: {waiting.get('message', '')}".strip(": ")
        return str(status.get("message") or status.get("reason") or "the node gives no reason")

    def _entering(self, command: str) -> Sequence[str]:
        # Process 1 of the node, which the pod sees, has the node's namespaces. The shell has its
        # path, as busybox may take `sh`, and then `ip`, for its own applets.
        enter = ("nsenter", "-t", "1", "-m", "-u", "-i", "-n", "--", "/bin/sh", "-c", command)
        into = ("exec", "-i", self._pod, "--container=measure", "--")
        return (*self._target.kubectl, *into, *enter)


def _last(done: FinishedProcess) -> str:
    return done.last_line.removeprefix("error: ")
