"""The least that a packet's way through a chain takes: work and wires alone, no queue, no wake-up.

A lower bound, from the same parameters as the throughput: what no plane can undercut. Knows no
measurement.
"""

from __future__ import annotations

from planewise.advise.model.capacity import ChainWorkload, Plane
from planewise.advise.model.ethernet import FCS_BYTES, GAP_BYTES
from planewise.advise.model.pcie import receive_cost, transmit_cost
from planewise.advise.model.profile import Profile


def line_ns(profile: Profile, chain: ChainWorkload) -> float:
    """The time that the frame itself is on the line, there and back [ns]; every plane needs it."""
    return 2 * 8 * (chain.frame_bytes + GAP_BYTES) / profile.nic.line_gbps


def floor_ns(profile: Profile, plane: Plane, chain: ChainWorkload) -> float:
    """Time from the line, through all functions that a packet meets, and back to the line [ns].

    The frame is sent twice on the line (there and back), crosses PCIe, and every core that touches
    it spends what it needs in a full batch. Batching, interrupts, the scheduler and PCIe's own
    round trips come on top: a real latency is several times as long.
    """
    data = chain.frame_bytes - FCS_BYTES
    functions = chain.vnfs if chain.through else 1
    line = line_ns(profile, chain)
    link, rings = profile.link.link(), profile.rings.rings()
    crossing_bytes = receive_cost(link, rings, data).up + transmit_cost(link, rings, data).down
    pcie = 8e9 * crossing_bytes / link.tlp_bps
    cores = profile.cores
    if plane == "vf-passthrough":
        inside = 8 * (data + profile.nic.loop_overhead_bytes) / profile.nic.loop_gbps
        core = cores.vf_ns + cores.vf_byte_ns * data
        return line + functions * (pcie + core) + (functions - 1) * inside
    switch = cores.pmd_ns + cores.pmd_port_ns * chain.vnfs + cores.pmd_byte_ns * data
    crossings = 2 if chain.through else 1
    core = cores.vhost_ns + crossings * (cores.crossing_ns + cores.copy_byte_ns * data)
    return line + pcie + switch + functions * core
