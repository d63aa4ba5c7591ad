"""Tests on real namespaces: as root directly, as a plain user inside a user namespace."""

from __future__ import annotations

import pytest

from planewise.errors import UnsupportedError
from planewise.testbed import privilege

_refusal = ""


def pytest_configure() -> None:
    """Goes on inside a user namespace where that is needed; the process outside only waits."""
    global _refusal
    try:
        privilege.ensure()
    except UnsupportedError as error:
        _refusal = f"{error.what}; {error.remedy}"


@pytest.fixture(autouse=True)
def _may_make_namespaces() -> None:
    if _refusal:
        pytest.skip(_refusal)
