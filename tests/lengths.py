"""Tests that `make test` runs briefly, and `make test-long` at full length."""

from __future__ import annotations

from collections.abc import Sequence

import pytest


def either(names: str, brief: Sequence[object], whole: Sequence[object]) -> pytest.MarkDecorator:
    """Parameters of a test: `brief` always, `whole` where tests marked `long` run."""
    long = pytest.param(*whole, id="whole", marks=pytest.mark.long)
    return pytest.mark.parametrize(names.split(), [pytest.param(*brief, id="brief"), long])
