"""Options of `sweep` and `search`: the system under test and its hosts."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from planewise import targets
from planewise.errors import BadInputError

if TYPE_CHECKING:
    from planewise.measure.runs.sut import Sut
    from planewise.targets import OtherHosts
    from planewise.testbed.model import IpVersion

SenderOption = Annotated[
    str | None,
    Option(
        "--sender",
        metavar="HOST",
        help="Sending host instead of this machine: ssh://server, lab:a or k8s://node.",
    ),
]
ResponderOption = Annotated[
    str | None, Option("--responder", metavar="HOST", help="Host that answers, in the same form.")
]
NicOption = Annotated[str, Option("--nic", help="The interface to use on both (a lab's: pf0).")]
LARGEST_FRAME_BYTES = 9000
"""As in designs."""


def frame_size(asked_bytes: int | None, ip_version: int) -> int:
    """The frame size [bytes, with FCS]: as given, else the smallest that holds the stamps."""
    smallest = 64 if ip_version == 4 else 84
    size_bytes = smallest if asked_bytes is None else asked_bytes
    if not smallest <= size_bytes <= LARGEST_FRAME_BYTES:
        raise BadInputError(
            f"an IPv{ip_version} frame of {size_bytes} bytes is not possible",
            where="--size",
            remedy=f"{smallest} to {LARGEST_FRAME_BYTES}, with the 4 bytes of the FCS",
        )
    return size_bytes


@dataclass(frozen=True)
class SutOptions:
    """The system under test: one of `--plane`, `--router`, or `--tx` with `--rx`."""

    plane: Annotated[str | None, Option(help="Measure this plane, in a testbed built for it.")] = (
        None
    )
    router: Annotated[
        bool, Option("--router", help="Measure a host that routes in its kernel.")
    ] = False
    tx: Annotated[str | None, Option(metavar="IF[@NETNS]", help="Send by this interface.")] = None
    rx: Annotated[str | None, Option(metavar="IF[@NETNS]", help="Receive on this interface.")] = (
        None
    )
    destination: Annotated[
        str, Option("--dst", metavar="IP", help="Destination of the frames (with --tx).")
    ] = ""
    next_hop_mac: Annotated[
        str, Option("--dst-mac", metavar="MAC", help="Next hop; else the kernel resolves it.")
    ] = ""
    ip_version: Annotated[Literal["4", "6"], Option("--ip", help="IP version.")] = "4"
    guest: Annotated[
        Literal["namespace", "container", "vm"],
        Option(help="Kind of guest that sends and receives."),
    ] = "namespace"
    path: Annotated[
        Literal["north-south", "east-west"],
        Option(help="north-south: between two hosts; east-west: within one host."),
    ] = "north-south"
    sender: SenderOption = None
    responder: ResponderOption = None
    nic: NicOption = ""
    size_bytes: Annotated[
        int | None, Option("--size", help="Frame size with FCS [bytes]; default: the smallest.")
    ] = None

    @property
    def named(self) -> bool:
        """Whether any option names a system under test."""
        return bool(self.plane or self.router or self.tx or self.rx)

    def hosts(self) -> OtherHosts | None:
        """The hosts to measure on; None is this machine. BadInputError: options contradict."""
        return targets.chosen(self.sender, self.responder, self.nic, False, None)

    def frame_bytes(self) -> int:
        """The frame size with FCS. BadInputError: no frame can have it."""
        return frame_size(self.size_bytes, int(self.ip_version))

    def sut(self, command: str) -> Sut:
        """The system under test. BadInputError: the options name none or several."""
        from planewise.measure.runs.sut import InterfacesUnderTest, PlaneUnderTest, RouterUnderTest
        from planewise.testbed.model import TrialPath
        from planewise.testbed.planes import plane_for

        version: IpVersion = 6 if self.ip_version == "6" else 4
        interfaces = self.tx is not None or self.rx is not None
        if sum((self.plane is not None, self.router, interfaces)) != 1:
            raise BadInputError(
                "give one of --plane, --router, or --tx with --rx",
                remedy=f"planewise {command} --plane bridge",
            )
        if self.plane is not None:
            plane_for(self.plane, self.guest)
            return PlaneUnderTest(self.plane, version, self.guest, self.path)
        if self.sender or self.guest != "namespace" or self.path != "north-south":
            raise BadInputError(
                "--guest, --path, --sender and --responder go with --plane",
                remedy=f"planewise {command} --plane bridge --guest container",
            )
        if self.router:
            return RouterUnderTest(version)
        if not (self.tx and self.rx and self.destination):
            raise BadInputError(
                "--tx, --rx and --dst go together",
                remedy=f"planewise {command} --tx eth1 --rx eth2 --dst 198.18.0.2",
            )
        _check_addresses(self.destination, self.next_hop_mac, version)
        tx_interface, tx_netns = _end(self.tx, "--tx")
        rx_interface, rx_netns = _end(self.rx, "--rx")
        return InterfacesUnderTest(
            TrialPath(
                tx_netns=tx_netns,
                tx_interface=tx_interface,
                rx_netns=rx_netns,
                rx_interface=rx_interface,
                next_hop_mac=self.next_hop_mac,
                source_ipv4="",
                destination_ipv4=self.destination if version == 4 else "",
                source_ipv6="",
                destination_ipv6=self.destination if version == 6 else "",
            ),
            version,
        )


def _end(text: str, where: str) -> tuple[str, str]:
    """The interface and the namespace of `IF[@NETNS]`.

    Raises:
        BadInputError: there is no such namespace.
    """
    interface, _, netns = text.partition("@")
    if netns and not (Path("/run/netns") / netns).exists():
        below = re.fullmatch(r"if\d+", netns) or netns in dict(socket.if_nameindex()).values()
        raise BadInputError(
            f"there is no network namespace {netns!r}{', which is an interface' if below else ''}",
            where=where,
            remedy=f"leave '@{netns}' out: `ip link` prints the interface below behind the @"
            if below
            else "`ip netns` lists them",
        )
    return interface, netns


def _check_addresses(destination: str, next_hop_mac: str, version: IpVersion) -> None:
    try:
        found_version = ipaddress.ip_address(destination).version
    except ValueError as error:
        raise BadInputError(
            f"'{destination}' is not an IP address",
            where="--dst",
            remedy="give one such as 198.18.0.2; names are not looked up",
        ) from error
    if found_version != version:
        raise BadInputError(
            f"{destination} is an IPv{found_version} address",
            where="--dst",
            remedy=f"give --ip {found_version}, or an IPv{version} address",
        )
    if next_hop_mac and not re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}|rx", next_hop_mac):
        raise BadInputError(
            f"'{next_hop_mac}' is not a MAC address",
            where="--dst-mac",
            remedy="write it as 02:00:00:00:00:01, or rx for that of --rx",
        )
