"""The kinds of guest, and the words for them. Knows no plane, no host and no kernel."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

GuestKind = Literal["namespace", "container", "vm", "process"]

GUEST_WORDS: Mapping[GuestKind, tuple[str, str]] = MappingProxyType(
    {
        "namespace": ("a network namespace", "network namespaces"),
        "container": ("a container", "containers"),
        "vm": ("a virtual machine", "virtual machines"),
        "process": ("a process", "processes"),
    }
)
"""Singular and plural."""
