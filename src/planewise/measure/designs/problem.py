"""What is wrong with a design, as a value."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """Something that is wrong with a design."""

    place: tuple[str | int, ...]
    """Where in the file."""
    what: str
    remedy: str

    @property
    def sentence(self) -> str:
        """What is wrong, and with which key."""
        name = ".".join(str(part) for part in self.place)
        return f"{name}: {self.what}" if name else self.what
