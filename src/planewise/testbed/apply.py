"""Performs a plan through netlink. The only file here that changes the kernel's network."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
import subprocess
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyroute2 import IPRoute
from pyroute2.netlink.exceptions import NetlinkError

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed import netns
from planewise.testbed.netns import NamespaceThread
from planewise.testbed.plan import (
    AcceptAddress,
    AddBridge,
    AddForwarding,
    AddIpvlan,
    AddMacvlan,
    AddMacvtap,
    AddNamespace,
    AddNeighbour,
    AddRoute,
    AddTap,
    AddVeth,
    AwaitUp,
    DeleteLink,
    Plan,
    ReleaseMaster,
    RemoveAddress,
    RemoveRoute,
    RunProgram,
    SetAddress,
    SetLinkAddress,
    SetMaster,
    SetMtu,
    SetSysctl,
    SetUp,
    Step,
)

_NODAD = 0x02
_ONLINK = 4
_PERMANENT = 0x80
_NTF_SELF = 0x02
_NTF_MASTER = 0x04
_NUD_NOARP = 0x40
_LOOPBACK = 1
_OPEN_SOCKETS = 4
_IFF_UP = 1
_FORWARDING = 3
_UP_S = 10.0
_RUN_S = 60.0
_TUNSETIFF, _TUNSETPERSIST = 0x400454CA, 0x400454CB
_IFF_TAP, _IFF_NO_PI, _IFF_MULTI_QUEUE = 0x0002, 0x1000, 0x0100

_KERNEL_FEATURE = {
    AddVeth: "veth",
    AddBridge: "bridge",
    AddMacvlan: "macvlan",
    AddIpvlan: "ipvlan",
    AddTap: "tun",
    AddMacvtap: "macvtap",
}


def apply(plan: Plan, thread: NamespaceThread, home: str | None = None) -> None:
    """Performs every step of `plan` in order, on `thread`; an empty namespace in it is `home`.

    When interrupted or failed, what was made until then stands; the caller removes the namespaces.

    Raises:
        UnsupportedError: no privilege, or the kernel lacks a feature that a step needs.
        PlanewiseError: a name is taken, or an interface or namespace vanished.
    """
    stop = threading.Event()
    future = thread.submit(None, _perform, plan, thread, home, stop)
    try:
        future.result()
    except BaseException:
        stop.set()
        future.exception()  # waits: the thread must be idle before anybody undoes the plan
        raise


def _perform(plan: Plan, thread: NamespaceThread, home: str | None, stop: threading.Event) -> None:
    with _Links(thread, home) as links:
        for step in plan.steps:
            if stop.is_set():
                return
            try:
                _ACTIONS[type(step)](links, step)
            except NetlinkError as error:
                raise explain(step, error.code, str(error.args[-1])) from error
            except OSError as error:
                raise explain(step, error.errno or 0, error.strerror or str(error)) from error


class _Links:
    """Netlink sockets by namespace, the few most recent ones, with what is known of interfaces."""

    def __init__(self, thread: NamespaceThread, home: str | None) -> None:
        self.thread = thread
        self._home = home
        self._open: OrderedDict[str, Any] = OrderedDict()
        self._index: dict[tuple[str, str], int] = {}

    def __enter__(self) -> _Links:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def enter(self, name: str) -> None:
        """Moves the thread into namespace `name`; empty: into the host's own."""
        self.thread.enter(name or self._home)

    def route(self, name: str) -> Any:
        """The rtnetlink socket of namespace `name`."""
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        self.enter(name)
        self._open[name] = IPRoute()
        if len(self._open) > _OPEN_SOCKETS:
            self._open.popitem(last=False)[1].close()
        return self._open[name]

    def index(self, name: str, interface: str) -> int:
        """Index of an interface; looked up once."""
        key = (name, interface)
        if key not in self._index:
            self.enter(name)
            try:
                self._index[key] = socket.if_nametoindex(interface)
            except OSError as error:  # without an errno
                raise OSError(errno.ENODEV, f"there is no {interface}") from error
        return self._index[key]

    def change(self, netns: str, interface: str, **attributes: object) -> None:
        """Changes an interface of a namespace (`ip link set`)."""
        self.route(netns).link("set", index=self.index(netns, interface), **attributes)

    def descriptor(self, name: str) -> Any:
        """The namespace as an open file."""
        if not (name or self._home):
            return Path("/proc/self/ns/net").open("rb")
        return (netns.RUN / (name or self._home or "")).open("rb")


def _add_namespace(links: _Links, step: AddNamespace) -> None:
    links.thread.enter(None)
    links.thread.create_here(step.name)
    links.route(step.name).link("set", index=_LOOPBACK, state="up")


def _add_veth(links: _Links, step: AddVeth) -> None:
    with links.descriptor(step.peer_netns) as there:
        links.route(step.netns).link(
            "add",
            kind="veth",
            ifname=step.name,
            index=step.index,
            address=step.mac,
            mtu=step.mtu_bytes,
            peer={
                "ifname": step.peer,
                "address": step.peer_mac,
                "mtu": step.mtu_bytes,
                "net_ns_fd": there.fileno(),
            },
        )


def _add_bridge(links: _Links, step: AddBridge) -> None:
    links.route(step.netns).link(
        "add",
        kind="bridge",
        ifname=step.name,
        address=step.mac,
        mtu=step.mtu_bytes,
        br_stp_state=0,
        br_mcast_snooping=0,
        br_ageing_time=step.ageing_s * 100,
    )


def _add_macvlan(links: _Links, step: AddMacvlan) -> None:
    with links.descriptor(step.guest_netns) as there:
        links.route(step.netns).link(
            "add",
            kind="macvlan",
            ifname=step.name,
            link=links.index(step.netns, step.parent),
            macvlan_mode=step.mode,
            address=step.mac,
            net_ns_fd=there.fileno(),
        )


def _add_ipvlan(links: _Links, step: AddIpvlan) -> None:
    with links.descriptor(step.guest_netns) as there:
        links.route(step.netns).link(
            "add",
            kind="ipvlan",
            ifname=step.name,
            link=links.index(step.netns, step.parent),
            ipvlan_mode={"l2": 0, "l3": 1, "l3s": 2}[step.mode],
            net_ns_fd=there.fileno(),
        )


def _add_tap(links: _Links, step: AddTap) -> None:
    links.enter(step.netns)
    several = _IFF_MULTI_QUEUE if step.queues > 1 else 0
    request = struct.pack("16sH22x", step.name.encode(), _IFF_TAP | _IFF_NO_PI | several)
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    finally:
        os.close(descriptor)
    links.change(step.netns, step.name, address=step.mac, mtu=step.mtu_bytes)


def _add_macvtap(links: _Links, step: AddMacvtap) -> None:
    links.route(step.netns).link(
        "add",
        kind="macvtap",
        ifname=step.name,
        index=step.index,
        link=links.index(step.netns, step.parent),
        macvlan_mode=step.mode,
        **({"address": step.mac} if step.mac else {}),
    )


def _set_master(links: _Links, step: SetMaster) -> None:
    links.change(step.netns, step.interface, master=links.index(step.netns, step.bridge))


def _release_master(links: _Links, step: ReleaseMaster) -> None:
    links.change(step.netns, step.interface, master=0)


def _delete_link(links: _Links, step: DeleteLink) -> None:
    links.route(step.netns).link("del", index=links.index(step.netns, step.interface))


def _set_address(links: _Links, step: SetAddress) -> None:
    _change_address(links, step, "add", **({"flags": _NODAD} if ":" in step.address else {}))


def _remove_address(links: _Links, step: RemoveAddress) -> None:
    _change_address(links, step, "delete")


def _change_address(
    links: _Links, step: SetAddress | RemoveAddress, verb: str, **flags: int
) -> None:
    address, _, prefix = step.address.partition("/")
    index = links.index(step.netns, step.interface)
    links.route(step.netns).addr(verb, index=index, address=address, prefixlen=int(prefix), **flags)


def _set_link_address(links: _Links, step: SetLinkAddress) -> None:
    links.change(step.netns, step.interface, address=step.mac)


def _set_up(links: _Links, step: SetUp) -> None:
    links.change(step.netns, step.interface, state="up")


def _set_mtu(links: _Links, step: SetMtu) -> None:
    links.change(step.netns, step.interface, mtu=step.mtu_bytes)


def _add_route(links: _Links, step: AddRoute) -> None:
    via = {"gateway": step.via, "flags": _ONLINK} if step.via else {"scope": 253}
    interface = links.index(step.netns, step.interface)
    links.route(step.netns).route("add", dst=step.destination, oif=interface, **via)


def _remove_route(links: _Links, step: RemoveRoute) -> None:
    interface = links.index(step.netns, step.interface)
    links.route(step.netns).route("delete", dst=step.destination, oif=interface)


def _run_program(links: _Links, step: RunProgram) -> None:
    links.enter(step.netns)
    done = subprocess.run(step.argv, capture_output=True, text=True, check=False, timeout=_RUN_S)
    if done.returncode:
        raise PlanewiseError(f"`{step}` failed: {(done.stderr.strip() or 'it printed nothing')}")


def _add_neighbour(links: _Links, step: AddNeighbour) -> None:
    links.route(step.netns).neigh(
        "replace",
        dst=step.address,
        lladdr=step.mac,
        ifindex=links.index(step.netns, step.interface),
        state=_PERMANENT,
    )


def _add_forwarding(links: _Links, step: AddForwarding) -> None:
    links.route(step.netns).fdb(
        "replace",
        ifindex=links.index(step.netns, step.port),
        lladdr=step.mac,
        state=_NUD_NOARP,
        flags=_NTF_MASTER,
    )


def _accept_address(links: _Links, step: AcceptAddress) -> None:
    links.route(step.netns).fdb(
        "append",
        ifindex=links.index(step.netns, step.interface),
        lladdr=step.mac,
        state=_PERMANENT,
        flags=_NTF_SELF,
    )


def _set_sysctl(links: _Links, step: SetSysctl) -> None:
    links.enter(step.netns)
    (Path("/proc/sys") / step.key).write_text(step.value)


def _await_up(links: _Links, step: AwaitUp) -> None:
    deadline = time.monotonic() + _UP_S
    while late := [
        name
        for name, ready in _readiness(links.route(step.netns))
        if not ready and step.interface in ("", name)
    ]:
        if time.monotonic() > deadline:
            raise PlanewiseError(
                f"{', '.join(late)} in {step.netns} did not come up within {_UP_S:g} s",
                remedy="is the machine overloaded? try again",
            )
        time.sleep(0.002)


def _readiness(route: Any) -> Iterator[tuple[str, bool]]:
    """Every interface that is set up, and whether it carries (a bridge port: forwards) frames."""
    for link in route.get_links():
        if not link["flags"] & _IFF_UP:
            continue
        ready = link.get_attr("IFLA_OPERSTATE") in ("UP", "UNKNOWN")
        info = link.get_attr("IFLA_LINKINFO")
        if info is not None and info.get_attr("IFLA_INFO_SLAVE_KIND") == "bridge":
            port = info.get_attr("IFLA_INFO_SLAVE_DATA")
            ready = ready and port.get_attr("IFLA_BRPORT_STATE") == _FORWARDING
        yield link.get_attr("IFLA_IFNAME"), ready


_ACTIONS: dict[type[Step], Callable[[_Links, Any], None]] = {
    AddNamespace: _add_namespace,
    AddVeth: _add_veth,
    AddBridge: _add_bridge,
    AddMacvlan: _add_macvlan,
    AddIpvlan: _add_ipvlan,
    AddTap: _add_tap,
    AddMacvtap: _add_macvtap,
    SetMaster: _set_master,
    ReleaseMaster: _release_master,
    DeleteLink: _delete_link,
    SetAddress: _set_address,
    RemoveAddress: _remove_address,
    SetLinkAddress: _set_link_address,
    SetUp: _set_up,
    SetMtu: _set_mtu,
    AddRoute: _add_route,
    RemoveRoute: _remove_route,
    RunProgram: _run_program,
    AddNeighbour: _add_neighbour,
    AddForwarding: _add_forwarding,
    AcceptAddress: _accept_address,
    SetSysctl: _set_sysctl,
    AwaitUp: _await_up,
}


def explain(step: Step, code: int, message: str) -> PlanewiseError:
    """One sentence for an error number of the kernel, with the step in it. Pure."""
    if isinstance(step, SetSysctl) and code == errno.ENOENT:
        return UnsupportedError(
            f"this kernel has no setting {step.key}",
            remedy="boot it with IPv6 (without ipv6.disable=1)" if "ipv6" in step.key else "",
        )
    if code == errno.EROFS:
        return UnsupportedError(
            f"/proc/sys may only be read here, as in a container: `{step}`",
            remedy="in Docker, start the container with --privileged",
        )
    if code in (errno.EPERM, errno.EACCES):
        return UnsupportedError(
            f"no privilege to change the network: `{step}` was refused",
            remedy="run as root, or as a plain user on a kernel that allows user namespaces",
        )
    feature = _KERNEL_FEATURE.get(type(step))
    if feature and code in (errno.EOPNOTSUPP, errno.ENOENT, errno.EPROTONOSUPPORT):
        return UnsupportedError(
            f"this kernel has no {feature}",
            remedy=f"as root: modprobe {feature}; "
            f"else a kernel built with CONFIG_{feature.upper()}",
        )
    if isinstance(step, AcceptAddress):
        return PlanewiseError(
            f"{step.interface} takes no further MAC address beside its VFs: `{step}` failed",
            remedy="fewer guests on a bridge while VFs are in use, or a NIC with more filters",
        )
    if code == errno.EEXIST:
        return PlanewiseError(
            f"the name or address is taken already: `{step}`",
            remedy="`planewise clean` removes what dead runs left",
        )
    if code in (errno.ENODEV, errno.ENXIO, errno.ENOENT):
        return PlanewiseError(
            f"an interface or namespace vanished before it could be used: `{step}`",
            remedy="another program removed it; start again",
        )
    if code == errno.EBUSY:
        return PlanewiseError(
            f"the interface is held by another plane: `{step}`",
            remedy="a bridge and a macvlan cannot share one interface",
        )
    return PlanewiseError(f"`{step}` failed: {message or errno.errorcode.get(code, code)}")
