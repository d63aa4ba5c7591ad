"""Keeps a design within a budget of load, or says what of it cannot be kept. Pure."""

from __future__ import annotations

from planewise.errors import BadInputError
from planewise.fleet.plan import Budget
from planewise.measure.design import Design
from planewise.measure.trials import kinds_of
from planewise.testbed.load import STRESSORS
from planewise.units import rate_text

WHERE = "--budget-pps"


def within(design: Design, budget: Budget) -> Design:
    """The design with the budget's limits in it.

    A ladder that is sought is sought below the limit; what is written out must keep to it.

    Raises:
        BadInputError: a part of the design offers more, or as much as it can.
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
        each = design.background.per_guest
        if each is None:
            rates.append(("background.rate_pps", design.background.rate_pps))
        elif each.rate_pps == "max":
            raise _too_much("background.per_guest.rate_pps: max", "has no bound", most)
        else:
            guests = max(design.factors.background_guests)
            rates.append(("background.per_guest.rate_pps", guests * each.rate_pps))
    for name, rate in rates:
        if rate > most:
            raise _too_much(name, f"offers {rate_text(rate)}", most)


def _check_cpu(design: Design, most: float) -> None:
    stress = next((one for one in design.factors.load_type if one in STRESSORS), None)
    if stress is not None:
        raise BadInputError(
            f"{stress} load takes all the CPU time that it can get, and the budget bounds it",
            where="factors.load_type",
            remedy="leave it out of a fleet's design",
        )
    if "cpu" not in design.factors.load_type:
        return
    background = design.background
    if background.per_guest is not None:
        raise BadInputError(
            "what each guest burns is a share of a CPU, and the budget one of all CPUs of a node",
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
