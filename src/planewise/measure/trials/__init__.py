"""The kinds of trials: each class derived from `Trial` in a file here is found by itself."""

from __future__ import annotations

import importlib
import pkgutil

from planewise.errors import BadInputError
from planewise.measure.designs.design import Design
from planewise.measure.station import Trial
from planewise.testbed.guests.vms.domain import VmOptions
from planewise.testbed.loads.background import STRESS_NG, STRESSORS
from planewise.testbed.planes import PLANES


def _find() -> tuple[type[Trial], ...]:
    kinds = {
        kind
        for module in pkgutil.iter_modules(__path__)
        for kind in vars(importlib.import_module(f"{__name__}.{module.name}")).values()
        if isinstance(kind, type) and issubclass(kind, Trial) and kind is not Trial
    }
    return tuple(sorted(kinds, key=lambda kind: kind.rank))


KINDS = _find()
"""All kinds of trials, in the order in which a visit measures them."""


def kinds_of(design: Design) -> tuple[type[Trial], ...]:
    """The kinds that a design asks for. Pure.

    Raises:
        BadInputError: a run of another planewise has a kind that this one does not.
    """
    parts = design.kinds()
    if unknown := parts.keys() - {kind.key for kind in KINDS}:
        raise BadInputError(
            f"this planewise has no trials called {', '.join(sorted(unknown))}",
            remedy="continue with the version that began the run",
        )
    return tuple(kind for kind in KINDS if kind.key in parts)


def programs_of(design: Design) -> tuple[str, ...]:
    """The programs that a design's trials and background load start in guests. Pure."""
    factors = design.factors
    programs = [program for kind in kinds_of(design) for program in kind.programs(design)]
    if any(factors.background_guests) and not STRESSORS.keys().isdisjoint(factors.load_type):
        programs.append(STRESS_NG)
    return tuple(dict.fromkeys(programs))


def vm_options(design: Design) -> VmOptions:
    """Options of a design's virtual machines. Pure."""
    names = {*design.factors.plane, *design.factors.background_plane}
    # All guests are alike, also those of other planes.
    shared = any(plane.shares_memory for plane in PLANES if plane.name in names)
    return VmOptions(**dict(design.vm), programs=programs_of(design), shared_memory=shared)
