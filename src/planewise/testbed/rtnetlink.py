"""A blocking rtnetlink socket for pyroute2's messages. Knows no plan.

Each of pyroute2's own sockets runs an event loop, which takes most of the time of a build of
namespaces: a build opens a socket a namespace, and sends one request after the other.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any

from pyroute2 import netlink
from pyroute2.netlink.rtnl import RTM_GETLINK
from pyroute2.netlink.rtnl.marshal import MarshalRtnl

CHANGE = 0
"""Flags of a request: changes what is there, or removes it."""
CREATE = netlink.NLM_F_CREATE | netlink.NLM_F_EXCL
REPLACE = netlink.NLM_F_CREATE | netlink.NLM_F_REPLACE
APPEND = netlink.NLM_F_CREATE | netlink.NLM_F_APPEND

_HEADER = struct.Struct("=IHHII")
_CODE = struct.Struct("=i")
_MOST_DUMPS = 100
_RECEIVED_BYTES = 65_536
"""More than the kernel puts into one datagram of a dump (32 KiB)."""


def nested(**attributes: object) -> dict[str, object]:
    """The value of an attribute that holds attributes, by the kernel's names."""
    return {"attrs": list(attributes.items())}


class RouteSocket:
    """An rtnetlink socket of the network namespace that the thread is in when it is opened."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, netlink.NETLINK_ROUTE)

    def request(
        self, kind: int, flags: int, fields: Mapping[str, int], **attributes: object
    ) -> None:
        """Sends a message and waits for the kernel's acknowledgement.

        `kind` is RTM_NEWLINK or the like, with the fields and attributes of its struct.

        Raises:
            OSError: the kernel refused.
        """
        self._send(kind, netlink.NLM_F_ACK | flags, {**fields, **nested(**attributes)})
        self._receive()

    def links(self) -> list[Any]:
        """All interfaces of the namespace.

        Raises:
            OSError: they changed during every attempt to list them.
        """
        for _ in range(_MOST_DUMPS):
            self._send(RTM_GETLINK, netlink.NLM_F_DUMP, {})
            links, interrupted = self._receive()
            # An interface that was added or removed meanwhile may hide another.
            if not interrupted:
                return links
        raise OSError(errno.EINTR, os.strerror(errno.EINTR))

    def close(self) -> None:
        """Closes it."""
        self._socket.close()

    def _send(self, kind: int, flags: int, content: Mapping[str, object]) -> None:
        message = MarshalRtnl.msg_map[kind]()
        message.update(content)
        message["header"]["type"] = kind
        message["header"]["flags"] = netlink.NLM_F_REQUEST | flags
        message.encode()
        self._socket.send(message.data)

    def _receive(self) -> tuple[list[Any], bool]:
        """Answers up to an acknowledgement or the end of a dump; whether that was interrupted."""
        answers: list[Any] = []
        interrupted = False
        while True:
            data = self._socket.recv(_RECEIVED_BYTES)
            start = 0
            while start < len(data):
                length, kind, flags, _, _ = _HEADER.unpack_from(data, start)
                interrupted |= bool(flags & netlink.NLM_F_DUMP_INTR)
                if kind in (netlink.NLMSG_ERROR, netlink.NLMSG_DONE):
                    (code,) = _CODE.unpack_from(data, start + _HEADER.size)
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return answers, interrupted
                answer = MarshalRtnl.msg_map[kind](data[start : start + length])
                answer.decode()
                answers.append(answer)
                start += (length + 3) & ~3
