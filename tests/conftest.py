"""What every test may rely on."""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

# An example that takes long says something of the machine, not of the code. The test command draws
# the same cases each time, so that it passes or fails by what changed; `make seeds` draws new ones,
# and more.
_NEW = "PLANEWISE_NEW_SEEDS" in os.environ
settings.register_profile(
    "planewise",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=not _NEW,
    max_examples=200 if _NEW else 40,
)
settings.load_profile("planewise")

_SAID = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """A shell starts background jobs with SIGINT ignored, and children would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[_SAID] = []


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for line in config.stash[_SAID]:
        terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def said(pytestconfig: pytest.Config) -> list[str]:
    """Takes lines for the summary: figures for people, which no test asserts."""
    return pytestconfig.stash[_SAID]
