"""Host profiles that come with Planewise, and profiles by name or file."""

from __future__ import annotations

from pathlib import Path

from planewise.advise.model.profile import Profile, load_profile, shipped


def find_profile(name: str) -> Profile:
    """The profile in the file `name`, or the shipped one of that name.

    Raises:
        BadInputError: it is none, or there is none of that name.
    """
    path = Path(name)
    return load_profile(path) if path.suffix == ".toml" or path.exists() else shipped(name)
