"""Errors that users read: what failed, on what, and the remedy.

Every error that may reach a user is a `PlanewiseError`. The command line prints it as one
sentence and a remedy; nothing else of Python's ever reaches the terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class PlanewiseError(Exception):
    """Something failed (exit code 1).

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

    Tests skip on it by name: the message is the reason, the remedy what to do.
    """


class StorageError(PlanewiseError):
    """Results cannot be written (disk full, no permission): going on would lose them."""


class NewerVersionWarning(UserWarning):
    """A file has fields of a newer version, which are ignored."""


class VerdictNotGoodError(PlanewiseError):
    """`--require-good` was given, and the verdict is not GOOD (exit code 3)."""

    exit_code = 3


def first_fault(error: ValidationError) -> tuple[str, str]:
    """The first invalid field of a value from outside (`hosts.0.name`), and what is wrong."""
    fault = error.errors()[0]
    message = str(fault["msg"]).removeprefix("Value error, ")
    return ".".join(str(part) for part in fault["loc"]), f"{message[:1].lower()}{message[1:]}"
