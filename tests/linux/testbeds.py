"""Testbeds of namespaces for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager

from planewise.testbed.availability import missing
from planewise.testbed.chains.built import BuiltChain, Feed
from planewise.testbed.chains.dpdk import Driver
from planewise.testbed.chains.model import Chain, Placement
from planewise.testbed.chains.testbed import ChainTestbed
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.model import GuestKind
from planewise.testbed.planes import PLANES as ALL
from planewise.testbed.setting import Arrangement, Setting
from planewise.testbed.testbed import local_testbed

PLANES = [
    plane.name
    for plane in ALL
    if "namespace" in plane.guests and not set(plane.needs) & set(missing())
]
"""Planes of namespaces that this machine has what it takes for, beside the kernel."""


def here(
    plane: str,
    background: str | None = None,
    guests: int = 0,
    mtu_bytes: int = 1500,
    kind: GuestKind = "namespace",
) -> AbstractContextManager[Arrangement]:
    """Main guests on a plane, background guests on another, on this machine."""
    setting = Setting(kind, plane, background or plane, guests, "north-south")
    return local_testbed(setting, mtu_bytes)


@contextmanager
def local_chain(
    chain: Chain, placement: Placement, offered_pps: float, uplink: Driver | None = None
) -> Iterator[BuiltChain]:
    """Builds a chain of processes on this machine, with a generator of `offered_pps`.

    Raises:
        UnsupportedError: a program, huge pages or a privilege is missing.
    """
    with (
        closing(ChainTestbed(None, VmOptions())) as testbed,
        testbed.arrange(
            chain, placement, Feed(lambda _: offered_pps, offered_pps, uplink)
        ) as built,
    ):
        yield built


def chain_shortage(chain: Chain) -> str:
    """What this machine lacks for a chain; empty when it can be built."""
    with closing(ChainTestbed(None, VmOptions())) as testbed:
        return testbed.check(chain)
