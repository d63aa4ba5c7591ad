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
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyroute2.netlink import rtnl
from pyroute2.netlink.rtnl.ifaddrmsg import IFA_F_NODAD
from pyroute2.netlink.rtnl.ndmsg import NTF_MASTER, NTF_SELF, NUD_NOARP, NUD_PERMANENT

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts import netns
from planewise.testbed.hosts.netns import NamespaceThread
from planewise.testbed.hosts.signals import result_of, uninterrupted
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
from planewise.testbed.rtnetlink import APPEND, CHANGE, CREATE, REPLACE, RouteSocket, nested

_ONLINK = 4
_MAIN_TABLE = 254
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

    After an interrupt or error, nothing is undone: the caller removes the namespaces.

    Raises:
        UnsupportedError: no privilege, or the kernel lacks a feature that a step needs.
        PlanewiseError: a name is taken, or an interface or namespace vanished.
    """
    stop = threading.Event()
    future = thread.submit(None, _perform, plan, thread, home, stop)
    try:
        result_of(future)
    except BaseException:
        with uninterrupted():
            stop.set()
        # The thread must be idle before anybody undoes the plan.
        with suppress(Exception):
            result_of(future)
        raise


def _perform(plan: Plan, thread: NamespaceThread, home: str | None, stop: threading.Event) -> None:
    with _Links(thread, home) as links:
        for step in plan.steps:
            if stop.is_set():
                return
            try:
                _ACTIONS[type(step)](links, step)
            except OSError as error:
                raise explain(step, error.errno or 0, error.strerror or str(error)) from error


class _Links:
    """The most recent netlink sockets, by namespace, and the indexes of interfaces."""

    def __init__(self, thread: NamespaceThread, home: str | None) -> None:
        self.thread = thread
        self._home = home
        self._open: OrderedDict[str, RouteSocket] = OrderedDict()
        self._index: dict[tuple[str, str], int] = {}

    def __enter__(self) -> _Links:
        return self

    def __exit__(self, *_: object) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def enter(self, name: str) -> None:
        """Moves the thread into namespace `name`; empty: into the host's own."""
        self.thread.enter(name or self._home)

    def route(self, name: str) -> RouteSocket:
        """The rtnetlink socket of namespace `name`."""
        if name in self._open:
            self._open.move_to_end(name)
            return self._open[name]
        self.enter(name)
        self._open[name] = RouteSocket()
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

    def change(self, netns: str, interface: str, up: bool = False, **attributes: object) -> None:
        """Changes an interface of a namespace (`ip link set`)."""
        fields = {"index": self.index(netns, interface)}
        if up:
            fields |= {"flags": _IFF_UP, "change": _IFF_UP}
        self.route(netns).request(rtnl.RTM_NEWLINK, CHANGE, fields, **attributes)

    def descriptor(self, name: str) -> Any:
        """The namespace as an open file."""
        if not (name or self._home):
            return Path("/proc/self/ns/net").open("rb")
        return (netns.RUN / (name or self._home or "")).open("rb")


def _add_namespace(links: _Links, step: AddNamespace) -> None:
    links.thread.enter(None)
    links.thread.create_namespace(step.name)
    links.change(step.name, "lo", up=True)


def _add_link(
    route: RouteSocket, kind: str, data: Mapping[str, object], index: int = 0, **attributes: object
) -> None:
    """Adds an interface of a kind, with the `data` of that kind."""
    info = nested(IFLA_INFO_KIND=kind, IFLA_INFO_DATA=nested(**data))
    route.request(rtnl.RTM_NEWLINK, CREATE, {"index": index}, **attributes, IFLA_LINKINFO=info)


def _add_veth(links: _Links, step: AddVeth) -> None:
    with links.descriptor(step.peer_netns) as namespace:
        peer = nested(
            IFLA_IFNAME=step.peer,
            IFLA_ADDRESS=step.peer_mac,
            IFLA_MTU=step.mtu_bytes,
            IFLA_NET_NS_FD=namespace.fileno(),
        )
        _add_link(
            links.route(step.netns),
            "veth",
            {"VETH_INFO_PEER": peer},
            index=step.index,
            IFLA_IFNAME=step.name,
            IFLA_ADDRESS=step.mac,
            IFLA_MTU=step.mtu_bytes,
        )


def _add_bridge(links: _Links, step: AddBridge) -> None:
    _add_link(
        links.route(step.netns),
        "bridge",
        {
            "IFLA_BR_STP_STATE": 0,
            "IFLA_BR_MCAST_SNOOPING": 0,
            "IFLA_BR_AGEING_TIME": step.ageing_s * 100,
        },
        IFLA_IFNAME=step.name,
        IFLA_ADDRESS=step.mac,
        IFLA_MTU=step.mtu_bytes,
    )


def _add_macvlan(links: _Links, step: AddMacvlan) -> None:
    with links.descriptor(step.guest_netns) as namespace:
        _add_link(
            links.route(step.netns),
            "macvlan",
            {"IFLA_MACVLAN_MODE": step.mode},
            IFLA_IFNAME=step.name,
            IFLA_ADDRESS=step.mac,
            IFLA_LINK=links.index(step.netns, step.parent),
            IFLA_NET_NS_FD=namespace.fileno(),
        )


def _add_ipvlan(links: _Links, step: AddIpvlan) -> None:
    with links.descriptor(step.guest_netns) as namespace:
        _add_link(
            links.route(step.netns),
            "ipvlan",
            {"IFLA_IPVLAN_MODE": {"l2": 0, "l3": 1, "l3s": 2}[step.mode]},
            IFLA_IFNAME=step.name,
            IFLA_LINK=links.index(step.netns, step.parent),
            IFLA_NET_NS_FD=namespace.fileno(),
        )


def _add_tap(links: _Links, step: AddTap) -> None:
    links.enter(step.netns)
    multi_queue = _IFF_MULTI_QUEUE if step.queues > 1 else 0
    request = struct.pack("16sH22x", step.name.encode(), _IFF_TAP | _IFF_NO_PI | multi_queue)
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _TUNSETIFF, request)
        fcntl.ioctl(descriptor, _TUNSETPERSIST, 1)
    finally:
        os.close(descriptor)
    links.change(step.netns, step.name, IFLA_ADDRESS=step.mac, IFLA_MTU=step.mtu_bytes)


def _add_macvtap(links: _Links, step: AddMacvtap) -> None:
    _add_link(
        links.route(step.netns),
        "macvtap",
        {"IFLA_MACVTAP_MODE": step.mode},
        index=step.index,
        IFLA_IFNAME=step.name,
        IFLA_LINK=links.index(step.netns, step.parent),
        **({"IFLA_ADDRESS": step.mac} if step.mac else {}),
    )


def _set_master(links: _Links, step: SetMaster) -> None:
    links.change(step.netns, step.interface, IFLA_MASTER=links.index(step.netns, step.bridge))


def _release_master(links: _Links, step: ReleaseMaster) -> None:
    links.change(step.netns, step.interface, IFLA_MASTER=0)


def _delete_link(links: _Links, step: DeleteLink) -> None:
    fields = {"index": links.index(step.netns, step.interface)}
    links.route(step.netns).request(rtnl.RTM_DELLINK, CHANGE, fields)


def _set_address(links: _Links, step: SetAddress) -> None:
    flags = {"IFA_FLAGS": IFA_F_NODAD} if ":" in step.address else {}
    _change_address(links, step, rtnl.RTM_NEWADDR, CREATE, **flags)


def _remove_address(links: _Links, step: RemoveAddress) -> None:
    _change_address(links, step, rtnl.RTM_DELADDR, CHANGE)


def _change_address(
    links: _Links, step: SetAddress | RemoveAddress, kind: int, flags: int, **attributes: object
) -> None:
    address, _, prefix = step.address.partition("/")
    fields = {
        "family": _family(address),
        "prefixlen": int(prefix),
        "index": links.index(step.netns, step.interface),
    }
    addresses = {"IFA_LOCAL": address, "IFA_ADDRESS": address}
    links.route(step.netns).request(kind, flags, fields, **addresses, **attributes)


def _set_link_address(links: _Links, step: SetLinkAddress) -> None:
    links.change(step.netns, step.interface, IFLA_ADDRESS=step.mac)


def _set_up(links: _Links, step: SetUp) -> None:
    links.change(step.netns, step.interface, up=True)


def _set_mtu(links: _Links, step: SetMtu) -> None:
    links.change(step.netns, step.interface, IFLA_MTU=step.mtu_bytes)


def _add_route(links: _Links, step: AddRoute) -> None:
    via = {"RTA_GATEWAY": step.via} if step.via else {}
    fields = {
        "proto": rtnl.rt_proto["static"],
        "scope": rtnl.rt_scope["universe" if step.via else "link"],
        "type": rtnl.rt_type["unicast"],
        "flags": _ONLINK if step.via else 0,
    }
    _change_route(links, step, rtnl.RTM_NEWROUTE, CREATE, fields, **via)


def _remove_route(links: _Links, step: RemoveRoute) -> None:
    _change_route(links, step, rtnl.RTM_DELROUTE, CHANGE, {"scope": rtnl.rt_scope["nowhere"]})


def _change_route(
    links: _Links,
    step: AddRoute | RemoveRoute,
    kind: int,
    flags: int,
    fields: Mapping[str, int],
    **attributes: object,
) -> None:
    address, _, prefix = step.destination.partition("/")
    route = {"family": _family(address), "dst_len": int(prefix), "table": _MAIN_TABLE}
    interface = links.index(step.netns, step.interface)
    links.route(step.netns).request(
        kind, flags, {**fields, **route}, RTA_DST=address, RTA_OIF=interface, **attributes
    )


def _run_program(links: _Links, step: RunProgram) -> None:
    links.enter(step.netns)
    done = subprocess.run(step.argv, capture_output=True, text=True, check=False, timeout=_RUN_S)
    if done.returncode:
        raise PlanewiseError(f"`{step}` failed: {(done.stderr.strip() or 'it printed nothing')}")


def _add_neighbour(links: _Links, step: AddNeighbour) -> None:
    family = _family(step.address)
    fields = {"family": family, "state": NUD_PERMANENT}
    _add_entry(links, step.interface, step, REPLACE, fields, NDA_DST=step.address)


def _add_forwarding(links: _Links, step: AddForwarding) -> None:
    fields = {"family": socket.AF_BRIDGE, "state": NUD_NOARP, "flags": NTF_MASTER}
    _add_entry(links, step.port, step, REPLACE, fields)


def _accept_address(links: _Links, step: AcceptAddress) -> None:
    state = NUD_NOARP | NUD_PERMANENT
    fields = {"family": socket.AF_BRIDGE, "state": state, "flags": NTF_SELF}
    _add_entry(links, step.interface, step, APPEND, fields)


def _add_entry(
    links: _Links,
    interface: str,
    step: AddNeighbour | AddForwarding | AcceptAddress,
    flags: int,
    fields: Mapping[str, int],
    **attributes: object,
) -> None:
    """Adds a neighbour or forwarding entry: both are neighbours to rtnetlink."""
    fields = {**fields, "ifindex": links.index(step.netns, interface)}
    links.route(step.netns).request(
        rtnl.RTM_NEWNEIGH, flags, fields, **attributes, NDA_LLADDR=step.mac
    )


def _family(address: str) -> int:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _set_sysctl(links: _Links, step: SetSysctl) -> None:
    links.enter(step.netns)
    (Path("/proc/sys") / step.key).write_text(step.value)


def _await_up(links: _Links, step: AwaitUp) -> None:
    deadline = time.monotonic() + _UP_S
    while down := [
        name
        for name, ready in _readiness(links.route(step.netns))
        if not ready and step.interface in ("", name)
    ]:
        if time.monotonic() > deadline:
            raise PlanewiseError(
                f"{', '.join(down)} in {step.netns} did not come up within {_UP_S:g} s",
                remedy="is the machine overloaded? try again",
            )
        time.sleep(0.002)


def _readiness(route: RouteSocket) -> Iterator[tuple[str, bool]]:
    """Every interface that is set up, and whether it carries (a bridge port: forwards) frames."""
    for link in route.links():
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
