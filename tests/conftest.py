"""What every test may rely on."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# An example that takes long says something of the machine, not of the code.
settings.register_profile("planewise", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("planewise")


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and children would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
