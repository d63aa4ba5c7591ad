"""Probes that send at the same time, until they are ended. Knows nothing of what they send into."""

from __future__ import annotations

from planewise.testbed.host import HostProcess


class Streams:
    """The probes of a generator, of which each sends a part of the traffic."""

    def __init__(self) -> None:
        self._probes: list[HostProcess] = []

    def __len__(self) -> int:
        return len(self._probes)

    def add(self, probe: HostProcess) -> None:
        """One more, which runs."""
        self._probes.append(probe)

    def check(self) -> None:
        """All still send.

        Raises:
            PlanewiseError: one has failed, with what it said.
        """
        for probe in self._probes:
            if not probe.running:
                probe.wait().check()

    def stop(self) -> None:
        """Ends all of them, at the same time. Idempotent."""
        for probe in self._probes:
            probe.interrupt()
        for probe in self._probes:
            probe.stop()
        self._probes.clear()
