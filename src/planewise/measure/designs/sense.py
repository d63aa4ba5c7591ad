"""Does a design make sense as a whole? Finds the first thing that cannot be, and the way out. Pure.

Knows which planes and guests there are, not which of them this machine can build.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from planewise.measure.designs.cells import combinations, factors_in_use
from planewise.measure.designs.design import (
    AS_IS,
    LARGEST_CHAIN_BYTES,
    MAX_COMBINATIONS,
    MAX_TRIALS,
    SAME,
    Constraint,
    Design,
    Problem,
    has_level,
)
from planewise.measure.trials import kinds_of
from planewise.measure.trials.applications import REDIS_LEAST_BYTES, is_redis_frame
from planewise.store.models import Level
from planewise.testbed.loads.background import STRESSORS
from planewise.testbed.planes import FUNCTIONS_OF, GUESTS_OF, plane, planes_of
from planewise.testbed.planes.kinds import GUEST_WORDS, GuestKind

LEAST_BYTES: Mapping[str, tuple[int, str]] = {
    "stamp": (90, "a STAMP packet"),
    "redis": (REDIS_LEAST_BYTES, "a request to Redis"),
}
"""The smallest frame, with FCS, of a protocol over IPv4 (STAMP: RFC 8762, section 4.2), and what it
carries."""


def find_problem(design: Design) -> Problem | None:
    """The first thing that is wrong with `design`; None when it can be run somewhere."""
    return (
        _explosion(design)
        or _unknown_plane(design)
        or _unknown_level(design)
        or _contradiction(design)
        or _conflict(design)
        or _impossible_trial(design)
        or _impossible_function(design)
        or _impossible_cell(design)
        or _coalescing_elsewhere(design)
        or _impossible_load(design)
    )


def _explosion(design: Design) -> Problem | None:
    count = design.combinations()
    if count > MAX_COMBINATIONS:
        return Problem(
            ("factors",),
            f"{_count_text(count)} combinations of levels, more than {MAX_COMBINATIONS:,}",
            "leave out levels, or make several designs of it",
        )
    trials = design.trials_upper_bound()
    if trials > MAX_TRIALS:
        return Problem(
            ("blocks",),
            f"the design has up to {_count_text(trials)} trials, more than {MAX_TRIALS:,}",
            "leave out levels or blocks",
        )
    return None


def _count_text(count: int) -> str:
    # A float of it may be too large to exist.
    return f"{count:,}" if count < 10**9 else f"about 10^{len(str(count)) - 1}"


def _unknown_plane(design: Design) -> Problem | None:
    for place, name in _planes_named(design):
        if name not in GUESTS_OF and not (name == SAME and "background_plane" in place):
            close = difflib.get_close_matches(name, GUESTS_OF, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            return Problem(
                place,
                f"there is no plane called {name!r}",
                f"{hint}planes: {', '.join(GUESTS_OF)}",
            )
    return None


def _planes_named(design: Design) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for factor in ("plane", "background_plane"):
        for index, name in enumerate(getattr(design.factors, factor)):
            yield ("factors", factor, index), name
    for number, constraint in enumerate(design.constraints):
        for part, where in constraint:
            for factor, levels in where.named().items() if where is not None else ():
                if factor in ("plane", "background_plane"):
                    for index, name in enumerate(levels):
                        yield ("constraints", number, part, factor, index), str(name)


def _unknown_level(design: Design) -> Problem | None:
    """A constraint about a level that the design has not: a slip of the pen, mostly."""
    for number, constraint in enumerate(design.constraints):
        for part, where in constraint:
            for factor, levels in where.named().items() if where is not None else ():
                design_levels = getattr(design.factors, factor)
                if factor == "background_plane" and SAME in design_levels:
                    design_levels = (*design_levels, *design.factors.plane)
                for level in levels:
                    if level not in design_levels:
                        return Problem(
                            ("constraints", number, part, factor),
                            f"{level} is not a level of `factors.{factor}`",
                            f"its levels: {', '.join(map(str, design_levels))}",
                        )
    return None


def _contradiction(design: Design) -> Problem | None:
    """A level that the constraints leave in no combination."""
    if not design.constraints:
        return None
    missing = {name: set(levels) for name, levels in design.factors}
    for combination in combinations(design):
        for name, level in combination.items():
            missing.get(name, set()).discard(level)
        if not any(missing.values()):
            return None
    in_use = factors_in_use(design)
    for name, levels in design.factors:
        if name not in in_use:
            continue  # no trial has it
        for index, level in enumerate(levels):
            if level in missing[name]:
                return _explain(design, name, level, index)
    return None


def _explain(design: Design, name: str, level: Level, index: int) -> Problem:
    chain = _follow(design, name, level)
    if chain is None or len(chain) == 0:
        return Problem(
            ("factors", name, index),
            f"the constraints leave no cell with {name} {level}",
            "leave the level out, or loosen a constraint",
        )
    last = chain[-1]
    steps = ", ".join(
        f"constraint {step.number + 1} wants {step.factor} {' or '.join(step.required)}"
        for step in chain
    )
    back = last.factor == name
    return Problem(
        ("constraints", last.number),
        f"the constraints {'go round in a circle' if back else 'contradict each other'}: "
        f"with {name} {level}, {steps}",
        f"change one of them, or leave {name} {level} out",
    )


@dataclass(frozen=True)
class _Step:
    """What one constraint asks for, once those before it hold."""

    number: int
    factor: str
    required: tuple[str, ...]


def _follow(design: Design, name: str, level: Level) -> list[_Step] | None:
    """What the requirements lead to from one level on; None when they lead to no contradiction.

    The chain holds only the steps that lead to its last one, at which no level is left.
    """
    domains: dict[str, tuple[Level, ...]] = dict(design.factors)
    domains[name] = (level,)
    because: dict[str, list[_Step]] = {}
    changed = True
    while changed:
        changed = False
        for number, constraint in enumerate(design.constraints):
            if constraint.require is None or not _holds(constraint, domains):
                continue
            causes = [] if constraint.when is None else list(constraint.when.named())
            for factor, required in constraint.require.named().items():
                remaining = tuple(
                    level for level in domains[factor] if _fits(level, factor, required, domains)
                )
                if remaining == domains[factor]:
                    continue
                step = _Step(number, factor, tuple(str(level) for level in required))
                earlier = [link for cause in causes for link in because.get(cause, [])]
                if not remaining:
                    return [*dict.fromkeys((*because.get(factor, ()), *earlier, step))]
                domains[factor] = remaining
                because[factor] = [*because.get(factor, []), *earlier, step]
                changed = True
    return None


def _holds(constraint: Constraint, domains: dict[str, tuple[Level, ...]]) -> bool:
    """Whether `when` is true of all levels that remain."""
    if constraint.when is None:
        return True
    return all(
        all(_fits(level, factor, choices, domains) for level in domains[factor])
        for factor, choices in constraint.when.named().items()
    )


def _fits(
    level: Level, factor: str, choices: tuple[Level, ...], domains: dict[str, tuple[Level, ...]]
) -> bool:
    """Whether a level is one of `choices`, whatever the plane is that `same` stands for."""
    planes = domains["plane"]
    return all(has_level({"plane": name, factor: level}, factor, choices) for name in planes) or (
        factor == "plane" and level in choices
    )


def _conflict(design: Design) -> Problem | None:
    """Parts and factors that do not go together: chains are measured by trials of their own."""
    factors = design.factors
    functions = max(factors.vnfs)
    if design.chain is not None:
        for part in design.kinds():
            if part != "chain":
                return Problem(
                    (part,),
                    "not in one design with `chain`",
                    "make a design of its own for it",
                )
        if 0 in factors.vnfs:
            return Problem(
                ("factors", "vnfs"),
                "a chain of 0 functions is none",
                "give numbers from 1 to 8, such as `vnfs: [1, 2, 3]`",
            )
        for index, size in enumerate(factors.size_bytes):
            if size != "imix" and size > LARGEST_CHAIN_BYTES:
                return Problem(
                    ("factors", "size_bytes", index),
                    f"a chain carries frames of up to {LARGEST_CHAIN_BYTES} bytes",
                    "leave larger ones out",
                )
    else:
        if "imix" in factors.size_bytes:
            return Problem(
                ("factors", "size_bytes", factors.size_bytes.index("imix")),
                "imix is for chains",
                "give sizes in bytes, or measure a chain: `chain: {}` with `factors.vnfs`",
            )
        if functions and design.tcp is None:
            return Problem(
                ("factors", "vnfs"),
                "chains are measured by `chain` or `tcp`, and the design has neither",
                "add `chain: {}`, or leave `vnfs` out",
            )
        if functions and design.kinds().keys() - {"tcp"}:
            return Problem(
                ("factors", "vnfs"),
                "chains are measured by `chain` or `tcp` alone",
                "make a design of its own for `tcp`",
            )
    if design.functions and not functions:
        return Problem(
            ("functions",),
            "they are those of a chain, and `factors.vnfs` is 0",
            "give `factors.vnfs` numbers from 1 to 8, and `chain: {}`",
        )
    if functions and max(factors.background_guests):
        return Problem(
            ("factors", "background_guests"),
            "a chain has no background guests",
            "leave it out",
        )
    return None


def _impossible_trial(design: Design) -> Problem | None:
    """A problem that a kind of trial has with the design."""
    problems = (kind.problem(design) for kind in kinds_of(design))
    return next((problem for problem in problems if problem is not None), None)


def _coalescing_elsewhere(design: Design) -> Problem | None:
    """Trials that would run at whatever the last RTT trial set, or RTT trials without a NIC."""
    if design.factors.rx_usecs == (AS_IS,):
        return None
    for part in design.kinds():
        if part != "rtt":
            return Problem(
                ("factors", "rx_usecs"),
                f"interrupt coalescing is varied in round-trip trials, not in those of `{part}`",
                f"make a design of its own for `{part}`",
            )
    return None


def _impossible_function(design: Design) -> Problem | None:
    """A function that none of its planes can have, or not one that it names itself."""
    for number, function in enumerate(design.functions):
        planes = function.plane or design.factors.plane
        unknown = next((name for name in planes if name not in GUESTS_OF), None)
        if unknown is not None:
            return Problem(
                ("functions", number),
                f"there is no plane called {unknown!r}",
                f"planes of chains: {', '.join(FUNCTIONS_OF)}",
            )
        refused = [
            reason for name in planes
            if (reason := plane(name).function_refusal(function.guest, function.forwarder))
        ]  # fmt: skip
        if refused and (function.plane is not None or len(refused) == len(planes)):
            return Problem(
                ("functions", number), refused[0], "docs/reference/designs.md has the table of them"
            )
    return None


def _impossible_cell(design: Design) -> Problem | None:
    """A cell whose guests cannot have the plane, or whose frames cannot carry the protocol."""
    for levels in combinations(design):
        kind: GuestKind = levels["guest"]  # type: ignore[assignment]
        plane = str(levels["plane"])
        background = str(levels["background_plane"])
        background = plane if background == SAME else background
        if kind not in GUESTS_OF[plane] and not design.functions:
            return _cannot_have(design, kind, "plane", plane)
        if levels["background_guests"] and kind not in GUESTS_OF[background]:
            return _cannot_have(design, kind, "background_plane", background)
        if kind == "process" and not levels["vnfs"]:
            return Problem(
                ("factors", "guest", design.factors.guest.index("process")),
                "processes are functions of a chain, and `vnfs` is 0",
                "give `factors.vnfs` numbers from 1 to 8",
            )
        if levels["vnfs"] and kind not in FUNCTIONS_OF.get(plane, ()):
            if design.functions:
                continue  # left out of the run, which says so
            return _no_function(design, kind, plane)
        several = int(levels["vnfs"]) > 1 and levels["path"] == "north-south"
        if design.tcp is not None and several:
            return Problem(
                ("factors", "path") if "path" in design.factors.model_fields_set else ("tcp",),
                "a TCP stream goes through all functions of a chain, one after the other",
                "set `factors.path` to east-west",
            )
        if problem := _too_small_for_its_protocol(design, levels):
            return problem
    return None


def _too_small_for_its_protocol(design: Design, levels: Mapping[str, Level]) -> Problem | None:
    protocol = str(levels.get("protocol"))
    if protocol not in LEAST_BYTES:
        return None
    (least_bytes, content), size = LEAST_BYTES[protocol], int(levels["size_bytes"])
    if size < least_bytes:
        return Problem(
            ("factors", "protocol", tuple[str, ...](design.factors.protocol).index(protocol)),
            f"a frame of {size} bytes cannot carry {content}",
            f"give at least {least_bytes}, or leave such cells out: "
            f"`constraints: [{{when: {{protocol: {protocol}}}, exclude: {{size_bytes: {size}}}}}]`",
        )
    if protocol == "redis" and not is_redis_frame(size):
        return Problem(
            ("factors", "size_bytes", design.factors.size_bytes.index(size)),
            f"no request to Redis makes a frame of exactly {size} bytes",
            f"give {size + 1}",
        )
    return None


def _impossible_load(design: Design) -> Problem | None:
    """Stress without `per_guest`, or a load of more than a virtual machine has."""
    per_guest = design.background.per_guest
    for number, load in enumerate(design.factors.load_type):
        if load in STRESSORS and per_guest is None:
            return Problem(
                ("factors", "load_type", number),
                f"{load} load is what each guest does, and the design does not say how much",
                "add `background: {per_guest: {busy_threads: 1}}`",
            )
    if problem := _more_than_its_memory(design):
        return problem
    if "vm" not in design.factors.guest or per_guest is None or per_guest.cpu_share is None:
        return None
    if per_guest.cpu_share <= design.vm.vcpus:
        return None
    return Problem(
        ("background", "per_guest", "cpu_share"),
        f"a virtual machine of {design.vm.vcpus} virtual CPU{'s' * (design.vm.vcpus != 1)} cannot "
        f"burn {per_guest.cpu_share:g}",
        f"set `vm.vcpus` to {math.ceil(per_guest.cpu_share)}, or give less",
    )


def _more_than_its_memory(design: Design) -> Problem | None:
    per_guest, factors = design.background.per_guest, design.factors
    if per_guest is None or "vm" not in factors.guest or "memory" not in factors.load_type:
        return None
    needed_mib = per_guest.memory_mib * (per_guest.busy_threads or 1)
    room = 32 if design.vm.memory_mib is None else design.vm.memory_mib // 2
    if needed_mib <= room:
        return None
    return Problem(
        ("background", "per_guest", "memory_mib"),
        f"a virtual machine has no {needed_mib} MiB for memory load beside its kernel",
        f"set `vm.memory_mib` to {max(256, 2 * needed_mib)}, or give less",
    )


def _no_function(design: Design, kind: GuestKind, plane: str) -> Problem:
    """A guest that can be no function of a chain on this plane, or a plane without chains."""
    factors = design.factors
    if plane not in FUNCTIONS_OF:
        return Problem(
            ("factors", "plane", factors.plane.index(plane)),
            f"no chain is built on the plane {plane}",
            f"planes of chains: {', '.join(FUNCTIONS_OF)}",
        )
    able = FUNCTIONS_OF[plane]
    many = " or ".join(GUEST_WORDS[guest][1] for guest in able)
    if any(guest in able for guest in factors.guest):
        remedy = (
            "leave these cells out: "
            f"`constraints: [{{when: {{guest: {kind}}}, exclude: {{plane: {plane}}}}}]`"
        )
    else:
        remedy = f"set `factors.guest` to {' or '.join(able)}"
    place = ("factors", "guest") if "guest" in factors.model_fields_set else ("factors",)
    return Problem(
        place,
        f"the functions of a chain on {plane} are {many}, not {GUEST_WORDS[kind][1]}",
        remedy,
    )


def _cannot_have(design: Design, kind: GuestKind, factor: str, plane: str) -> Problem:
    able: Sequence[GuestKind] = GUESTS_OF[plane]
    levels = getattr(design.factors, factor)
    singular, _ = GUEST_WORDS[kind]
    many = " or ".join(GUEST_WORDS[guest][1] for guest in able)
    if any(guest in able for guest in design.factors.guest):
        remedy = (
            "leave these cells out: "
            f"`constraints: [{{when: {{guest: {kind}}}, exclude: {{{factor}: {plane}}}}}]`"
        )
    else:
        remedy = (
            f"set `factors.guest` to {' or '.join(able)}, "
            f"or take a plane of {GUEST_WORDS[kind][1]}: {', '.join(planes_of(kind))}"
        )
    place = ("factors", factor, levels.index(plane)) if plane in levels else ("factors", factor)
    return Problem(place, f"{singular} cannot have the plane {plane}: it is one of {many}", remedy)
