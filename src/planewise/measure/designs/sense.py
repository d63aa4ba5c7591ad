"""Does a design make sense as a whole? Finds the first problem, and a remedy. Pure."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from planewise.errors import BadInputError
from planewise.measure.designs.cells import combinations, factors_in_use
from planewise.measure.designs.design import (
    AS_IS,
    LARGEST_CHAIN_BYTES,
    MAX_COMBINATIONS,
    MAX_TRIALS,
    SAME,
    Design,
    Problem,
)
from planewise.measure.trials import kinds_of
from planewise.measure.trials.applications import REDIS_LEAST_BYTES, is_redis_frame
from planewise.store.models import Level
from planewise.testbed import settings
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.loads.background import STRESSORS
from planewise.testbed.model import GUEST_WORDS, GuestKind
from planewise.testbed.planes import FUNCTIONS_OF, GUESTS_OF, plane, planes_of
from planewise.units import list_text

LEAST_BYTES: Mapping[str, tuple[int, str]] = {
    "stamp": (90, "a STAMP packet"),
    "redis": (REDIS_LEAST_BYTES, "a request to Redis"),
}
"""The smallest frame, with FCS, of a protocol over IPv4 (STAMP: RFC 8762, section 4.2)."""

Place = tuple[str | int, ...]


def find_problem(design: Design) -> Problem | None:
    """The first thing that is wrong with `design`; None when it can be run on some host."""
    return next(_problems(design), None)


def _problems(design: Design) -> Iterator[Problem]:
    yield from _explosion(design)  # first: what follows lists combinations
    yield from _unknown_plane(design)
    yield from _unknown_setting(design)
    yield from _unknown_level(design)
    yield from _excluded_level(design)
    yield from _conflict(design)
    for kind in kinds_of(design):
        yield from kind.problems(design)
    yield from _impossible_function(design)
    yield from _impossible_cell(design)
    yield from _coalescing_elsewhere(design)
    if design.sweep is not None and design.sweep.until_verdict and design.budget_s is None:
        yield Problem(
            ("sweep", "until_verdict"),
            "verdicts get the time that the blocks leave of a budget, and the design has none",
            "add `budget_s`, the seconds of the whole run, or leave `until_verdict` out",
        )
    yield from _impossible_load(design)


def _explosion(design: Design) -> Iterator[Problem]:
    if (count := design.combinations()) > MAX_COMBINATIONS:
        yield Problem(
            ("factors",),
            f"{_count_text(count)} combinations of levels, more than {MAX_COMBINATIONS:,}",
            "leave out levels, or split it into several designs",
        )
    if (trials := design.trials_upper_bound()) > MAX_TRIALS:
        yield Problem(
            ("blocks",),
            f"the design has up to {_count_text(trials)} trials, more than {MAX_TRIALS:,}",
            "leave out levels or blocks",
        )


def _count_text(count: int) -> str:
    # A float of it may be too large to exist.
    return f"{count:,}" if count < 10**9 else f"about 10^{len(str(count)) - 1}"


def _constrained(design: Design) -> Iterator[tuple[Place, str, tuple[Level, ...]]]:
    """Place, factor and levels of everything that a constraint names."""
    for number, constraint in enumerate(design.constraints):
        for part, where in constraint:
            for factor, levels in where.named().items() if where is not None else ():
                yield ("constraints", number, part, factor), factor, levels


def _unknown_plane(design: Design) -> Iterator[Problem]:
    factors = ("plane", "background_plane")
    named = [(("factors", name), name, getattr(design.factors, name)) for name in factors]
    for place, factor, levels in (*named, *_constrained(design)):
        for index, name in enumerate(levels if factor in factors else ()):
            if name not in GUESTS_OF and not (name == SAME and factor == "background_plane"):
                close = difflib.get_close_matches(str(name), GUESTS_OF, n=1)
                hint = f"did you mean {close[0]}? " if close else ""
                yield Problem(
                    (*place, index),
                    f"there is no plane called {name!r}",
                    f"{hint}planes: {', '.join(GUESTS_OF)}",
                )


def _unknown_setting(design: Design) -> Iterator[Problem]:
    for index, level in enumerate(design.factors.setting):
        try:
            options: dict[str, Any] = dict(settings.vm_options(level))
            VmOptions(design.vm.vcpus, **options)
        except BadInputError as error:
            yield Problem(("factors", "setting", index), error.what, error.remedy)


def _unknown_level(design: Design) -> Iterator[Problem]:
    """A constraint on a level that the design does not have: probably a typo."""
    for place, factor, levels in _constrained(design):
        known = getattr(design.factors, factor)
        if factor == "background_plane" and SAME in known:
            known = (*known, *design.factors.plane)
        for level in levels:
            if level not in known:
                yield Problem(
                    place,
                    f"{level} is not a level of `factors.{factor}`",
                    f"its levels: {', '.join(map(str, known))}",
                )


def _excluded_level(design: Design) -> Iterator[Problem]:
    """A level that the constraints leave in no combination."""
    if not design.constraints:
        return
    used = factors_in_use(design)
    missing = {name: set(levels) for name, levels in design.factors if name in used}
    for combination in combinations(design):
        for name, level in combination.items():
            missing.get(name, set()).discard(level)
        if not any(missing.values()):
            return
    for name, levels in design.factors:
        for index, level in enumerate(levels):
            if level in missing.get(name, ()):
                by = {place[1] for place, factor, _ in _constrained(design) if factor == name}
                numbers = list_text([f"{int(number) + 1}" for number in sorted(by)])
                named = f" (it is named by constraint {numbers})" if by else ""
                yield Problem(
                    ("factors", name, index),
                    f"the constraints leave no cell with {name} {level}{named}",
                    "leave the level out, or loosen a constraint",
                )


def _conflict(design: Design) -> Iterator[Problem]:
    """Parts and factors that do not go together: chains have trials of their own."""
    factors = design.factors
    functions, others = max(factors.vnfs), [part for part in design.kinds() if part != "chain"]
    if design.chain is not None:
        if others:
            yield Problem(
                (others[0],), "not in one design with `chain`", "use a separate design for it"
            )
        if 0 in factors.vnfs:
            yield Problem(
                ("factors", "vnfs"),
                "must have 1 to 8 functions",
                "give numbers from 1 to 8, such as `vnfs: [1, 2, 3]`",
            )
        for index, size in enumerate(factors.size_bytes):
            if size != "imix" and size > LARGEST_CHAIN_BYTES:
                yield Problem(
                    ("factors", "size_bytes", index),
                    f"a chain carries frames of up to {LARGEST_CHAIN_BYTES} bytes",
                    "leave larger ones out",
                )
    elif "imix" in factors.size_bytes:
        yield Problem(
            ("factors", "size_bytes", factors.size_bytes.index("imix")),
            "imix is for chains",
            "give sizes in bytes, or measure a chain: `chain: {}` with `factors.vnfs`",
        )
    elif functions and others != ["tcp"]:
        lacks = design.tcp is None
        yield Problem(
            ("factors", "vnfs"),
            "only `chain` and `tcp` measure chains",
            "add `chain: {}`, or leave `vnfs` out" if lacks else "make a separate design for `tcp`",
        )
    if design.functions and not functions:
        yield Problem(
            ("functions",),
            "`functions` belong to a chain, and `factors.vnfs` is 0",
            "give `factors.vnfs` numbers from 1 to 8, and `chain: {}`",
        )
    if functions and factors.setting != ("",):
        yield Problem(("factors", "setting"), "chains have no settings", "leave it out")
    if functions and max(factors.background_guests):
        yield Problem(
            ("factors", "background_guests"), "a chain has no background guests", "leave it out"
        )


def _coalescing_elsewhere(design: Design) -> Iterator[Problem]:
    """Trials that would run at whatever the last RTT trial set."""
    others = [part for part in design.kinds() if part != "rtt"]
    if design.factors.rx_usecs == (AS_IS,) or not others:
        return
    yield Problem(
        ("factors", "rx_usecs"),
        f"interrupt coalescing is varied in round-trip trials, not in those of `{others[0]}`",
        f"use a separate design for `{others[0]}`",
    )


def _impossible_function(design: Design) -> Iterator[Problem]:
    """A function that none of its planes can have, or not one that it names itself."""
    for number, function in enumerate(design.functions):
        names = function.plane or design.factors.plane
        unknown = next((name for name in names if name not in GUESTS_OF), None)
        if unknown is not None:
            yield Problem(
                ("functions", number),
                f"there is no plane called {unknown!r}",
                f"planes of chains: {', '.join(FUNCTIONS_OF)}",
            )
        reasons = (plane(n).function_refusal(function.guest, function.forwarder) for n in names)
        refused = [reason for reason in reasons if reason]
        if refused and (function.plane is not None or len(refused) == len(names)):
            yield Problem(
                ("functions", number), refused[0], "docs/reference/designs.md has the table of them"
            )


def _impossible_cell(design: Design) -> Iterator[Problem]:
    """A cell whose guests cannot have the plane, or whose frames cannot carry the protocol."""
    for levels in combinations(design):
        kind: GuestKind = levels["guest"]  # type: ignore[assignment]
        main, background = str(levels["plane"]), str(levels["background_plane"])
        background = main if background == SAME else background
        if kind not in GUESTS_OF[main] and not design.functions:
            yield _cannot_have(design, kind, "plane", main)
        if levels["background_guests"] and kind not in GUESTS_OF[background]:
            yield _cannot_have(design, kind, "background_plane", background)
        if kind == "process" and not levels["vnfs"]:
            yield Problem(
                ("factors", "guest", design.factors.guest.index("process")),
                "processes are functions of a chain, and `vnfs` is 0",
                "give `factors.vnfs` numbers from 1 to 8",
            )
        if levels["vnfs"] and kind not in FUNCTIONS_OF.get(main, ()):
            if design.functions:
                continue  # left out of the run, which says so
            yield _no_function(design, kind, main)
        if design.tcp is not None and int(levels["vnfs"]) > 1 and levels["path"] == "north-south":
            yield Problem(
                ("factors", "path") if "path" in design.factors.model_fields_set else ("tcp",),
                "a TCP stream goes through all functions of a chain, one after the other",
                "set `factors.path` to east-west",
            )
        yield from _too_small_for_its_protocol(design, levels)


def _too_small_for_its_protocol(design: Design, levels: Mapping[str, Level]) -> Iterator[Problem]:
    protocol = str(levels.get("protocol"))
    if protocol not in LEAST_BYTES:
        return
    (least_bytes, content), size = LEAST_BYTES[protocol], int(levels["size_bytes"])
    if size < least_bytes:
        index = tuple[str, ...](design.factors.protocol).index(protocol)
        leaving_out = _leaving_out("protocol", protocol, "size_bytes", size)
        yield Problem(
            ("factors", "protocol", index),
            f"a frame of {size} bytes cannot carry {content}",
            f"give at least {least_bytes}, or {leaving_out}",
        )
    if protocol == "redis" and not is_redis_frame(size):
        yield Problem(
            ("factors", "size_bytes", design.factors.size_bytes.index(size)),
            f"no request to Redis makes a frame of exactly {size} bytes",
            f"give {size + 1}",
        )


def _impossible_load(design: Design) -> Iterator[Problem]:
    """Stress without `per_guest`, or a load of more than a virtual machine has."""
    factors, per_guest, vcpus = design.factors, design.background.per_guest, design.vm.vcpus
    if per_guest is None:
        for number, load in enumerate(factors.load_type):
            if load in STRESSORS:
                yield Problem(
                    ("factors", "load_type", number),
                    f"{load} load is set for each guest, and the design does not say how much",
                    "add `background: {per_guest: {busy_threads: 1}}`",
                )
    if per_guest is None or "vm" not in factors.guest:
        return
    needed_mib = per_guest.memory_mib * (per_guest.busy_threads or 1)
    room_mib = 32 if design.vm.memory_mib is None else design.vm.memory_mib // 2
    if "memory" in factors.load_type and needed_mib > room_mib:
        yield Problem(
            ("background", "per_guest", "memory_mib"),
            f"a virtual machine has no {needed_mib} MiB for memory load beside its kernel",
            f"set `vm.memory_mib` to {max(256, 2 * needed_mib)}, or give less",
        )
    if per_guest.cpu_share is None or per_guest.cpu_share <= vcpus:
        return
    yield Problem(
        ("background", "per_guest", "cpu_share"),
        f"a virtual machine of {vcpus} virtual CPU{'s' * (vcpus != 1)} cannot burn "
        f"{per_guest.cpu_share:g}",
        f"set `vm.vcpus` to {math.ceil(per_guest.cpu_share)}, or give less",
    )


def _no_function(design: Design, kind: GuestKind, name: str) -> Problem:
    """A guest that can be no function of a chain on this plane, or a plane without chains."""
    factors = design.factors
    if name not in FUNCTIONS_OF:
        return Problem(
            ("factors", "plane", factors.plane.index(name)),
            f"no chain is built on the plane {name}",
            f"planes of chains: {', '.join(FUNCTIONS_OF)}",
        )
    able = FUNCTIONS_OF[name]
    remedy = f"set `factors.guest` to {' or '.join(able)}"
    if any(guest in able for guest in factors.guest):
        remedy = _leaving_out("guest", kind, "plane", name)
    return Problem(
        ("factors", "guest") if "guest" in factors.model_fields_set else ("factors",),
        f"the functions of a chain on {name} are "
        f"{' or '.join(GUEST_WORDS[guest][1] for guest in able)}, not {GUEST_WORDS[kind][1]}",
        remedy,
    )


def _cannot_have(design: Design, kind: GuestKind, factor: str, name: str) -> Problem:
    able = GUESTS_OF[name]
    levels = getattr(design.factors, factor)
    singular, plural = GUEST_WORDS[kind]
    many = " or ".join(GUEST_WORDS[guest][1] for guest in able)
    remedy = (
        f"set `factors.guest` to {' or '.join(able)}, "
        f"or take a plane of {plural}: {', '.join(planes_of(kind))}"
    )
    if any(guest in able for guest in design.factors.guest):
        remedy = _leaving_out("guest", kind, factor, name)
    place = ("factors", factor, levels.index(name)) if name in levels else ("factors", factor)
    return Problem(place, f"{singular} cannot have the plane {name}: it is one of {many}", remedy)


def _leaving_out(factor: str, level: Level, other: str, other_level: Level) -> str:
    """How a design leaves cells with these two levels out."""
    return (
        "leave such cells out: "
        f"`constraints: [{{when: {{{factor}: {level}}}, exclude: {{{other}: {other_level}}}}}]`"
    )
