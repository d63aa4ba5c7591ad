"""The rtnetlink socket, told by a kernel that is made up."""

from __future__ import annotations

import errno
import struct
from types import SimpleNamespace

import pytest
from pyroute2.netlink import NLM_F_DUMP_INTR, NLM_F_MULTI, NLMSG_DONE, NLMSG_ERROR
from pyroute2.netlink.rtnl import RTM_DELLINK, RTM_NEWLINK
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg

from planewise.testbed.rtnetlink import CHANGE, RouteSocket


def link(name: str, flags: int = 0) -> bytes:
    message = ifinfmsg()
    message["attrs"] = [("IFLA_IFNAME", name)]
    message["header"]["type"] = RTM_NEWLINK
    message["header"]["flags"] = NLM_F_MULTI | flags
    message.encode()
    return bytes(message.data)


def end(kind: int, code: int = 0, flags: int = 0) -> bytes:
    return struct.pack("=IHHIIi", 20, kind, flags, 0, 0, code)


def answering(
    monkeypatch: pytest.MonkeyPatch, *datagrams: bytes
) -> tuple[RouteSocket, list[bytes]]:
    """A socket that receives these datagrams, and what it has sent."""
    route = RouteSocket()
    sent: list[bytes] = []
    left = list(datagrams)
    route.close()
    made_up = SimpleNamespace(send=sent.append, recv=lambda _: left.pop(0))
    monkeypatch.setattr(route, "_socket", made_up)
    return route, sent


def test_a_dump_ends_with_its_last_datagram(monkeypatch: pytest.MonkeyPatch) -> None:
    route, sent = answering(
        monkeypatch, link("a") + link("with-a-name"), link("c"), end(NLMSG_DONE)
    )
    names = [found.get_attr("IFLA_IFNAME") for found in route.links()]
    assert names == ["a", "with-a-name", "c"]
    assert len(sent) == 1


def test_an_interrupted_dump_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    route, sent = answering(
        monkeypatch,
        link("a") + link("c", NLM_F_DUMP_INTR),
        end(NLMSG_DONE),
        link("a"),
        end(NLMSG_DONE, flags=NLM_F_DUMP_INTR),
        link("a") + link("b") + link("c") + end(NLMSG_DONE),
    )
    assert [found.get_attr("IFLA_IFNAME") for found in route.links()] == ["a", "b", "c"]
    assert len(sent) == 3


def test_what_the_kernel_refuses_is_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    route, _ = answering(monkeypatch, end(NLMSG_ERROR, -errno.ENODEV), end(NLMSG_ERROR))
    with pytest.raises(OSError, match="No such device") as refused:
        route.request(RTM_DELLINK, CHANGE, {"index": 7})
    assert refused.value.errno == errno.ENODEV
    route.request(RTM_DELLINK, CHANGE, {"index": 8})
