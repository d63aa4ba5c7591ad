"""The settings: each file here that defines `SETTING` (or `SETTINGS`) is found by itself.

A level of the factor `setting` is `default`, or settings with a level each, joined by ` + `:
`offload.tso=off + mtu=9000`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from itertools import chain
from types import MappingProxyType

from planewise.errors import BadInputError
from planewise.testbed.model import GuestKind, IpVersion
from planewise.testbed.setting import Arrangement
from planewise.testbed.settings.host_setting import DEFAULT as DEFAULT
from planewise.testbed.settings.host_setting import HostSetting, Spot


def _find() -> Mapping[str, HostSetting]:
    found: list[HostSetting] = []
    for module in pkgutil.iter_modules(__path__):
        content = importlib.import_module(f"{__name__}.{module.name}")
        found += getattr(content, "SETTINGS", ())
        found += (content.SETTING,) if hasattr(content, "SETTING") else ()
    return MappingProxyType({setting.name: setting for setting in found})


SETTINGS: Mapping[str, HostSetting] = _find()
"""All settings, by name."""


def parsed(level: str) -> tuple[tuple[HostSetting, str], ...]:
    """The settings that a level of the factor `setting` changes, each with its own level. Pure.

    Raises:
        BadInputError: there is no such setting, or it has no such level.
    """
    if level in ("", DEFAULT):
        return ()
    pairs = []
    for part in level.split(" + "):
        name, _, value = part.partition("=")
        setting = SETTINGS.get(name)
        if setting is None:
            close = get_close_matches(name, SETTINGS, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise BadInputError(
                f"there is no setting called {name!r}",
                remedy=f"{hint}settings: {', '.join(SETTINGS)}",
            )
        if not setting.accepts(value):
            raise BadInputError(
                f"{name} has no level {value!r}", remedy=f"its levels: {setting.levels}"
            )
        pairs.append((setting, value))
    return tuple(pairs)


def refusal(level: str, plane: str, kind: GuestKind) -> str:
    """Why a level does not exist for a plane and kind of guest; empty where it does. Pure."""
    reasons = (setting.refusal(plane, kind) for setting, _ in parsed(level))
    return next(filter(None, reasons), "")


def programs_of(level: str) -> tuple[str, ...]:
    """The programs that a host needs for a level. Pure."""
    return tuple(program for setting, _ in parsed(level) for program in setting.programs)


def ip_version(level: str) -> IpVersion | None:
    """The IP version that trials send at a level; None: the usual one. Pure."""
    value = {setting.name: value for setting, value in parsed(level)}.get("ip_version")
    return None if value is None else 6 if value == "6" else 4


def vm_options(level: str) -> tuple[tuple[str, int], ...]:
    """Fields of `VmOptions` with which virtual machines' NICs are made at a level. Pure."""
    return tuple(
        chain.from_iterable(setting.vm_options(value).items() for setting, value in parsed(level))
    )


@contextmanager
def applied(level: str, arrangement: Arrangement) -> Iterator[None]:
    """Sets a level on a built testbed, and restores what was there.

    After a kill `planewise clean` removes interfaces with their namespaces, and restores a server's
    NIC and sysctls from the ledger.

    Raises:
        PlanewiseError: the kernel refuses a level; what was changed is restored.
    """
    with ExitStack() as restored:
        for setting, value in parsed(level):
            # All are read before any is written: a child's MTU follows its parent's.
            before = [(spot, setting.read(spot)) for spot in setting.spots(arrangement)]
            restored.callback(_write_all, setting, before)
            for spot, _ in before:
                setting.change(spot, value)
        yield


def _write_all(setting: HostSetting, levels: list[tuple[Spot, str]]) -> None:
    for spot, level in levels:
        setting.write(spot, level)
