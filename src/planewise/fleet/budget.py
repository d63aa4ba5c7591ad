"""Limits a design to a budget of load, or says what exceeds it. Pure."""

from __future__ import annotations

from planewise.errors import BadInputError
from planewise.fleet.plan import Budget
from planewise.measure.designs.design import Design
from planewise.measure.trials import kinds_of
from planewise.testbed.loads.background import STRESSORS
from planewise.units import rate_text

WHERE = "--budget-pps"


def within(design: Design, budget: Budget) -> Design:
    """The design with the budget's limits in it.

    Automatic ladders stay below the limit; loads that the design names must be within it.

    Raises:
        BadInputError: a part of the design offers more than the budget, or has no limit.
    """
    if budget.cpu is not None:
        _check_cpu(design, budget.cpu)
    if budget.pps is None:
        return design
    _check_rates(design, budget.pps)
    if design.sweep is None:
        return design
    lower = min(design.sweep.max_pps, budget.pps)
    return design.model_copy(update={"sweep": design.sweep.model_copy(update={"max_pps": lower})})


def _check_rates(design: Design, most: float) -> None:
    rates: list[tuple[str, float]] = []
    for name, rate in (offer for kind in kinds_of(design) for offer in kind.offered(design)):
        if isinstance(rate, str):
            raise _too_much(name, rate, most)
        rates.append((name, rate))
    if "network" in design.factors.load_type:
        per_guest = design.background.per_guest
        if per_guest is None:
            rates.append(("background.rate_pps", design.background.rate_pps))
        elif per_guest.rate_pps == "max":
            raise _too_much("background.per_guest.rate_pps: max", "has no bound", most)
        else:
            guests = max(design.factors.background_guests)
            rates.append(("background.per_guest.rate_pps", guests * per_guest.rate_pps))
    for name, rate in rates:
        if rate > most:
            raise _too_much(name, f"offers {rate_text(rate)}", most)


def _check_cpu(design: Design, most: float) -> None:
    stress = next(
        (load_type for load_type in design.factors.load_type if load_type in STRESSORS), None
    )
    if stress is not None:
        raise BadInputError(
            f"{stress} load has no limit of CPU time, and the budget has one",
            where="factors.load_type",
            remedy="leave it out of a fleet's design",
        )
    if "cpu" not in design.factors.load_type:
        return
    background = design.background
    if background.per_guest is not None:
        raise BadInputError(
            "the load of each guest is a share of one CPU, the budget a share of all of a node",
            where="background.per_guest",
            remedy="give background.cpu_share",
        )
    if background.cpu_share > most:
        raise BadInputError(
            f"background.cpu_share burns {background.cpu_share:g} of a node's CPUs, "
            f"and the budget allows {most:g}",
            where="--budget-cpu",
            remedy="lower it in the design, or raise the budget",
        )


def _too_much(name: str, why: str, most: float) -> BadInputError:
    return BadInputError(
        f"{name} {why}, and the budget allows {rate_text(most)}",
        where=WHERE,
        remedy="write lower rates out in the design, or raise the budget",
    )
