"""The generator of load trials on one host, and its own maximum rate."""

from __future__ import annotations

from planewise.measure.trials.probe import CalibrationOutput, parse
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.steering import CpuSplit
from planewise.testbed.model import IpVersion

_CALIBRATION_S = 120.0
"""It takes a fraction of a second, but long where an emulated guest gets little of a busy CPU."""


class Generator:
    """pw-probe as generator on a host, or in a virtual machine `netns`."""

    def __init__(
        self, host: Host, cpus: CpuSplit | None = None, *, netns: str | None = None
    ) -> None:
        self.host = host
        """Where pw-probe runs; it enters the namespaces of both ends itself."""
        self.netns = netns
        self.cpus = cpus
        """CPUs that generate and receive; None leaves them to the kernel."""
        self._max_pps: dict[tuple[int, IpVersion], float] = {}
        self.kept_pps: dict[tuple[object, ...], float] = {}
        """The highest load that it has sent in full, by cell and frame size."""

    def max_pps(self, size_bytes: int, ip_version: IpVersion = 4) -> float:
        """Its maximum rate [packet/s] into a private veth pair, measured once a frame size."""
        key = (size_bytes, ip_version)
        if key not in self._max_pps:
            # pw-probe takes a virtual machine's NIC for a physical one and sends from user space;
            # the kernel's generator would not fit into a small guest's memory either.
            backend = () if self.netns is None else ("--backend", "af_packet")
            finished = self.host.run(
                [
                    *(self.host.probe, "trial", "--calibrate-only"),
                    *("--size", str(size_bytes), "--ip", str(ip_version)),
                    *backend,
                    *self.placement(),
                ],
                netns=self.netns,
                timeout_s=_CALIBRATION_S,
            )
            self._max_pps[key] = parse(finished, CalibrationOutput).max_pps
        return self._max_pps[key]

    def placement(self) -> list[str]:
        """The probe's options for the generator's CPUs."""
        if self.cpus is None:
            return []
        carrier = self.cpus.receivers[-1]
        return ["--tx-cpu", str(self.cpus.generator), "--carrier-cpu", str(carrier)]
