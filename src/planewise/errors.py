"""What a person reads when something cannot be done: what, where, and the way out.

Every error that may reach a user is a `PlanewiseError`. The command line prints it as one
sentence and a remedy; nothing else of Python's ever reaches the terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class PlanewiseError(Exception):
    """It could not be done (exit code 1).

    `what` is one clear sentence with the place in it; `remedy` says what to do next.
    """

    exit_code = 1

    def __init__(self, what: str, *, remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


class BadInputError(PlanewiseError):
    """The user's input is wrong: a file, a flag, a name (exit code 2).

    `where` names file and line (or flag) and is put in front of the sentence.
    """

    exit_code = 2

    def __init__(self, what: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(f"{where}: {what}" if where else what, remedy=remedy)
        self.where = where


class UnsupportedError(PlanewiseError):
    """This machine lacks an ability (kernel, privilege, device, tool).

    Tests skip on it by name: the message is the reason, the remedy the way out.
    """


class StorageError(PlanewiseError):
    """Results cannot be written (disk full, no permission): going on would lose them."""


class VerdictNotGoodError(PlanewiseError):
    """It was measured, but `--require-good` asked for GOOD and the verdict is another."""

    exit_code = 3


def first_fault(error: ValidationError) -> tuple[str, str]:
    """Where a value from outside is first at fault (`hosts.0.name`), and what is wrong there."""
    first = error.errors()[0]
    message = str(first["msg"]).removeprefix("Value error, ")
    return ".".join(str(part) for part in first["loc"]), f"{message[:1].lower()}{message[1:]}"
