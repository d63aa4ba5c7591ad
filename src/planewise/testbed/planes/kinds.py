"""The kinds of guest and of forwarder, and the words for them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

GuestKind = Literal["namespace", "container", "vm", "process"]
Forwarder = Literal["testpmd", "kernel", "xdp"]
"""What sends a function's frames on: dpdk-testpmd, which polls; a kernel that routes; or an XDP
program."""

GUEST_WORDS: Mapping[GuestKind, tuple[str, str]] = MappingProxyType(
    {
        "namespace": ("a network namespace", "network namespaces"),
        "container": ("a container", "containers"),
        "vm": ("a virtual machine", "virtual machines"),
        "process": ("a process", "processes"),
    }
)
"""Singular and plural."""
