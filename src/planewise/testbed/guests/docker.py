"""A Docker of our own on a host: its daemon, our image, containers and networks.

It runs in process and mount namespaces of its own, beside a Docker that the host may have: the
kernel ends it, its containers and its mounts with the program that started it, however that ends.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts.host import (
    FinishedProcess,
    Host,
    HostProcess,
    ProcessTimeoutError,
    find_probe,
)

if TYPE_CHECKING:
    import docker

GUEST_MIB = 20
"""Memory that an idle container takes: its shim's 15 MiB, pw-probe and the kernel's share."""

START_LIMIT_S = 120.0
"""A daemon starts in a second on hardware, in 5 to 20 on an emulated host."""

API_TIMEOUT_S = 120

_IMAGE = "pw-guest"

# The tmpfs and /proc are this daemon's alone. It would use a containerd that it finds, whose
# containers outlive it. With --kill-child the kernel ends the daemon with unshare; and with the
# first process of a process namespace everything in it.
_INSIDE = """
set -e
mount -t proc proc /proc
mount -t tmpfs -o mode=711 pw-docker "$1/data"
[ ! -d /run/containerd ] || mount -t tmpfs pw-containerd /run/containerd
(until [ -S "$1/docker.sock" ]; do sleep 0.1; done; echo LISTENS >&2) &
exec dockerd --data-root "$1/data/root" --exec-root "$1/data/exec" --pidfile "$1/data/pid" \\
    --host "unix://$1/docker.sock" --exec-opt native.cgroupdriver=cgroupfs --bridge none \\
    --iptables=false --ip6tables=false --ip-forward=false --ip-masq=false --userland-proxy=false
"""
_OUTSIDE = """
mkdir -p "$1/data"
exec unshare --pid --fork --mount --kill-child sh -c "$0" sh "$1"
"""
_FIND = """
for child in $(cat /proc/"$1"/task/*/children); do
    read -r name <"/proc/$child/comm"; [ "$name" != dockerd ] || echo "$child"
done
"""
_LISTENS = "pw-listens"


@dataclass(frozen=True)
class Container:
    """A running container of ours, as its host knows it."""

    name: str
    pid: int
    """Its first process, in the host's numbers."""
    mac: str
    """Of its interface on a Docker network; empty without one."""
    cgroups: tuple[str, ...]
    """Files of its control groups into which a process writes its id to join them."""


@dataclass(frozen=True)
class _Started:
    """A started container, as Docker knows it."""

    id: str
    pid: int
    """Of its first process, in the daemon's numbers."""
    network: str | None


def why_no_docker() -> str:
    """Why this machine's Docker cannot be used for guests; empty where it can."""
    if os.geteuid() != 0:
        return "and only root may give its containers interfaces"
    if not shutil.which("dockerd"):
        return "there is none on this machine (Debian, Ubuntu: docker.io)"
    return ""


class Docker:
    """Our Docker on a host; leaving its `with` block ends it and its containers.

    Raises on entry:
        UnsupportedError: the host has no Docker, or its daemon does not start.
        PlanewiseError: its daemon does not answer.
    """

    def __init__(self, host: Host, token: str) -> None:
        self._host = host
        self._token = token
        self._daemon: HostProcess | None = None
        self._proc = "/proc"
        self._api: docker.DockerClient | None = None
        self._started: dict[str, _Started] = {}

    @property
    def api(self) -> docker.DockerClient:
        """Docker's API; only inside the `with` block."""
        if self._api is None:
            raise RuntimeError("Docker is not open: use it in a with block")
        return self._api

    def __enter__(self) -> Docker:
        try:
            self._connect(self._start())
            with _sentences(self._host.place):
                self.api.api.import_image_from_data(
                    image(Path(find_probe())), repository=_IMAGE, tag=self._token
                )
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        name: str,
        *,
        network: str | None = None,
        interface: Mapping[str, str] | None = None,
    ) -> None:
        """Starts an idle container on a Docker network, or on none; see `locate`.

        `interface` has `ipv4_address` for the Docker network.

        Raises:
            PlanewiseError: Docker refuses, or the container ended at once.
        """
        api = self.api.api
        with _sentences(self._host.place):
            configuration: dict[str, Any] = {}
            if network is not None:
                endpoint = api.create_endpoint_config(**dict(interface or {}))
                configuration["networking_config"] = api.create_networking_config(
                    {network: endpoint}
                )
            container = api.create_container(
                f"{_IMAGE}:{self._token}",
                entrypoint=["/pw-probe"],
                command=["cpu"],
                name=name,
                stop_signal="SIGKILL",
                **configuration,
                host_config=api.create_host_config(
                    network_mode=network or "none",
                    cgroup_parent=f"/pw-{self._token}",
                    # It has no addresses but those that Planewise sets.
                    sysctls={
                        "net.ipv6.conf.all.disable_ipv6": "0",
                        "net.ipv6.conf.default.disable_ipv6": "0",
                        "net.ipv6.conf.default.addr_gen_mode": "1",
                        "net.ipv6.conf.default.accept_ra": "0",
                    },
                ),
            )
            api.start(container["Id"])
            state = api.inspect_container(container["Id"])["State"]
        if not state["Running"]:
            raise PlanewiseError(
                f"the container {name} on {self._host.place} ended at once: "
                f"{state.get('Error') or 'exit code ' + str(state.get('ExitCode'))}",
                remedy="is it a host of this machine's architecture?",
            )
        self._started[name] = _Started(container["Id"], int(state["Pid"]), network)

    def locate(self, names: Sequence[str]) -> tuple[Container, ...]:
        """Running containers that `run` started, as the host knows them.

        Raises:
            PlanewiseError: one of them ended meanwhile.
        """
        started = [self._started[name] for name in names]
        script = f"for pid; do cat {self._proc}/$pid/cgroup; echo; done; cat /proc/mounts"
        done = self._host.run(
            ["sh", "-c", script, "sh", *(str(container.pid) for container in started)]
        )
        *texts, mounts = done.check().stdout.split("\n\n", len(names))
        cgroups = [cgroup_files(text, mounts) for text in texts]
        script = 'for file; do head -n 1 "$file"; done'
        done = self._host.run(["sh", "-c", script, "sh", *(files[0] for files in cgroups)])
        pids = done.check().stdout.split()
        if len(pids) != len(names):
            for error in self.ended(names).values():
                raise error
        return tuple(
            Container(name, int(pid), self._mac(container), files)
            for name, container, pid, files in zip(names, started, pids, cgroups, strict=True)
        )

    def ended(self, names: Sequence[str]) -> dict[str, PlanewiseError]:
        """Those of `names` whose first process has ended, with the reason."""
        started = {name: self._started[name] for name in names if name in self._started}
        # By /proc, as Docker is notified a moment after the end.
        script = (
            f'for pid; do state=gone; read -r _ _ state _ <"{self._proc}/$pid/stat"; '
            "echo $state; done 2>/dev/null"
        )
        pids = (str(container.pid) for container in started.values())
        states = self._host.run(["sh", "-c", script, "sh", *pids]).check().stdout.split()
        reasons: dict[str, PlanewiseError] = {}
        for (name, container), state in zip(started.items(), states, strict=True):
            if state in ("gone", "Z", "X"):
                with suppress(PlanewiseError), _sentences(self._host.place):  # it may be removed
                    self.api.api.wait(container.id, timeout=API_TIMEOUT_S)
                reasons[name] = self._reason_of_end(name)
        return reasons

    def _mac(self, started: _Started) -> str:
        if started.network is None:
            return ""
        with _sentences(self._host.place):
            settings = self.api.api.inspect_container(started.id)["NetworkSettings"]
        return str(settings["Networks"][started.network]["MacAddress"])

    def _reason_of_end(self, name: str) -> PlanewiseError:
        """Why a container has ended."""
        import docker.errors

        what = f"the container {name} on {self._host.place}"
        try:
            with _sentences(self._host.place):
                state = self.api.api.inspect_container(self._started[name].id)["State"]
        except PlanewiseError as error:
            if isinstance(error.__cause__, docker.errors.NotFound):
                return PlanewiseError(
                    f"{what} was removed while it was needed",
                    remedy="leave the testbed alone while it measures",
                )
            return error
        reason = f"exit code {state.get('ExitCode')}"
        if state.get("OOMKilled"):
            reason = "the kernel killed it: out of memory"
        return PlanewiseError(
            f"{what} ended while it was needed: {reason}",
            remedy="fewer background guests, or more memory, if it was that",
        )

    def remove(self, name: str) -> None:
        """Ends and removes a container; a missing one is no error."""
        started = self._started.pop(name, None)
        if started is not None:
            import docker.errors

            with _sentences(self._host.place), suppress(docker.errors.NotFound):
                self.api.api.remove_container(started.id, force=True, v=True)

    def add_network(self, name: str, bridge: str, subnet: str, gateway: str, mtu: int) -> None:
        """Makes a network of Docker's driver `bridge`, on an interface called `bridge`.

        Raises:
            PlanewiseError: Docker refuses.
        """
        import docker.types

        with _sentences(self._host.place):
            self.api.networks.create(
                name,
                driver="bridge",
                ipam=docker.types.IPAMConfig(
                    pool_configs=[docker.types.IPAMPool(subnet=subnet, gateway=gateway)]
                ),
                options={
                    "com.docker.network.bridge.name": bridge,
                    "com.docker.network.bridge.enable_ip_masquerade": "false",
                    "com.docker.network.driver.mtu": str(mtu),
                },
            )

    def close(self) -> None:
        """Ends the daemon. Idempotent."""
        self._started.clear()
        if self._api is not None:
            self._api.close()
            self._api = None
        if self._daemon is not None:
            # Not stop(), which ends containers one by one: all end with the daemon.
            self._daemon.kill()
            with suppress(PlanewiseError):
                self._daemon.wait(API_TIMEOUT_S)
            self._daemon = None
            with suppress(PlanewiseError):
                self._host.run(["sh", "-c", REMOVE_CGROUPS, "sh", f"pw-{self._token}"])

    def _start(self) -> str:
        directory, place = f"{self._host.directory}/docker", self._host.place
        if self._host.run(["sh", "-c", "command -v dockerd"]).exit_code != 0:
            raise UnsupportedError(
                f"there is no Docker on {place}",
                remedy="install it there (Debian, Ubuntu: docker.io), or use namespaces as guests",
            )
        inside = _INSIDE.replace("LISTENS", _LISTENS)
        daemon = self._daemon = self._host.start(["sh", "-c", _OUTSIDE, inside, directory])
        try:
            daemon.wait_ready(_LISTENS, START_LIMIT_S)
            # On a remote host the process has its keeper as another child.
            children = self._host.run(["sh", "-c", _FIND, "sh", str(daemon.pid)]).check().stdout
            self._proc = f"/proc/{children.split()[0]}/root/proc"
        except (PlanewiseError, IndexError) as error:
            late = f" within {START_LIMIT_S:g} s" if isinstance(error, ProcessTimeoutError) else ""
            raise UnsupportedError(
                f"dockerd does not start on {place}{late}: {last_words(daemon.stop())}",
                remedy="start Docker yourself there, or use namespaces as guests",
            ) from error
        return f"{directory}/docker.sock"

    def _connect(self, path: str) -> None:
        import docker
        import docker.errors

        try:
            client = docker.DockerClient(
                base_url=f"unix://{self._host.socket(path)}", timeout=API_TIMEOUT_S
            )
            client.ping()
        except (docker.errors.DockerException, OSError) as error:
            raise PlanewiseError(
                f"Docker's daemon on {self._host.place} does not answer: {_reason(error)}",
                remedy=f"check there with `docker -H unix://{path} info`",
            ) from error
        self._api = client


def name_networks(host: Host, docker: Docker, names: Sequence[str]) -> tuple[Container, ...]:
    """Names running containers' network namespaces in /run/netns; returns the containers.

    Raises:
        PlanewiseError: one of them ended meanwhile.
    """
    located = docker.locate(names)
    attach = "".join(f"ip netns attach {container.name} {container.pid}\n" for container in located)
    host.run(["sh", "-es"], stdin=attach.encode(), timeout_s=120).check()
    return located


REMOVE_CGROUPS = """
for try in $(seq 100); do
    groups=$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$1")
    [ -n "$groups" ] || break
    said=$(find $groups -depth -type d -exec rmdir {} + 2>&1) || sleep 0.05
done
[ -z "$groups" ] || echo "$said" >&2
"""
"""Shell: removes the control groups called $1, of every hierarchy, once their processes have ended
with the daemon; prints those that remain after five seconds."""


def image(probe: Path) -> bytes:
    """Our image as `docker import` reads it: a tar with pw-probe and nothing else. Pure but for
    the file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        content = probe.read_bytes()
        entry = tarfile.TarInfo("pw-probe")
        entry.size, entry.mode = len(content), 0o755
        archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def cgroup_files(text: str, mounts: str) -> tuple[str, ...]:
    """Files into which a process writes its id to join the same control groups. Pure.

    `text` is /proc/PID/cgroup (cgroups(7)), `mounts` /proc/mounts of the host: hierarchies that
    are not mounted are left out.
    """
    mount_points: dict[str, str] = {}
    for line in mounts.splitlines():
        _, point, kind, options = line.split(" ")[:4]
        if kind == "cgroup2":
            mount_points.setdefault("", point)
        elif kind == "cgroup":
            for option in options.split(","):
                mount_points.setdefault(option, point)
    files: dict[str, None] = {}
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        mount_point = mount_points.get(controllers.split(",")[0])
        if mount_point is not None:
            files[f"{mount_point}{path}/cgroup.procs"] = None
    return tuple(files)


def join_command(container: Container, argv: Sequence[str]) -> list[str]:
    """A command that joins a container's control groups, enters its network by name, and executes
    `argv`. Pure.

    In this order: `ip netns exec` would hide the control groups. The command is in the container as
    far as its network and its share of CPU and memory go; files are the host's, as results are
    written there.
    """
    joins = "".join(f"echo $$ >{shlex.quote(file)} && " for file in container.cgroups)
    enter = f"exec nsenter --net=/run/netns/{shlex.quote(container.name)} --"
    return ["sh", "-c", f'{joins}{enter} "$@"', "sh", *argv]


def last_words(done: FinishedProcess) -> str:
    """The message of the last line that dockerd logged. Pure."""
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    if not lines:
        return done.ending
    _, separator, message = lines[-1].rpartition(" msg=")
    if not separator:
        return lines[-1]
    with suppress(ValueError):
        return str(json.loads(message.rpartition('"')[0] + '"'))
    return message


@contextmanager
def _sentences(place: str) -> Iterator[None]:
    """Translates Docker's errors to Planewise's."""
    import docker.errors
    import requests

    try:
        yield
    except docker.errors.APIError as error:
        raise PlanewiseError(f"Docker on {place} refuses: {_reason(error)}") from error
    except (docker.errors.DockerException, requests.RequestException, OSError) as error:
        raise PlanewiseError(
            f"the connection to Docker on {place} was lost: {_reason(error)}",
            remedy="was its daemon ended, or is its disk full?",
        ) from error


def _reason(error: Exception) -> str:
    return str(getattr(error, "explanation", None) or error).strip().splitlines()[0]
