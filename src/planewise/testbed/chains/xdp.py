"""Functions whose interface has an XDP program that routes: namespaces, containers, machines.

The program asks the kernel for routes and neighbours, which are those of functions whose kernel
routes. A veth pair and virtio have XDP of their own; of other interfaces it depends on the driver,
in whose place the kernel runs the program (generic XDP).
"""

from __future__ import annotations

import base64
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from planewise.testbed.chains.bridge import port_of
from planewise.testbed.chains.ends import Ends, netns
from planewise.testbed.chains.guests import Machines, Routers
from planewise.testbed.chains.model import Chain
from planewise.testbed.chains.reading import VnfCounters
from planewise.testbed.hosts.counters import HostCounters
from planewise.testbed.hosts.steering import steer
from planewise.testbed.hosts.xdp import XDP_PASS, XDP_ROUTER, attach
from planewise.testbed.model import GUEST_INTERFACE
from planewise.testbed.plan import Step, run_program
from planewise.testbed.planes import plane

_HEADER_BYTES = 12
"""struct virtio_net_hdr_mrg_rxbuf."""
_ASK = ("ip", "link", "show", "dev", GUEST_INTERFACE)
_GENERIC = "xdpgeneric"
_IN_MACHINE = f"/tmp/{XDP_ROUTER.name}"


def attach_to_namespaces(
    chain: Chain, token: str, programs: tuple[str, str] = (str(XDP_ROUTER), str(XDP_PASS))
) -> tuple[Step, ...]:
    """The steps that give functions the first program, and their ports the second. Pure."""
    router, passing = programs
    steps: list[Step] = []
    for number in chain.numbers:
        mode: Literal["xdp", "xdpdrv"] = "xdp" if chain.on_vfs else "xdpdrv"
        steps.append(attach(netns(token, f"v{number}"), GUEST_INTERFACE, router, mode))
        if not chain.on_vfs:
            steps.append(attach("", port_of(token, number), passing))
    return tuple(steps)


def attach_in_machine() -> str:
    """The line of shell that gives a virtual machine's NIC the program. Pure."""
    # By its path: `ip` is an applet of the guest's shell.
    return f"/bin/{attach('', GUEST_INTERFACE, _IN_MACHINE, 'xdp')}"


class XdpRouters(Routers):
    """Namespaces or containers."""

    def connect(self, macs: Mapping[int, str], ends: Ends) -> None:
        super().connect(macs, ends)
        state, chain = self.parts.state, self.parts.chain
        router, passing = (state.host.program(str(program)) for program in (XDP_ROUTER, XDP_PASS))
        state.perform(attach_to_namespaces(chain, state.token, (router, passing)))
        if not chain.on_vfs:
            self._steer_ports()
            return
        for name in self.namespaces:  # a VF outlives its chain
            detach = ("ip", "link", "set", "dev", GUEST_INTERFACE, "xdp", "off")
            self.parts.opened.callback(state.perform, [run_program(name, detach)])
        host = state.host
        outputs = [host.run(_ASK, netns=name).check().stdout for name in self.namespaces]
        self.remarks = _remarks(outputs)

    def _steer_ports(self) -> None:
        """Steers each function's program to its CPU: on veth it runs on that of the sender."""
        parts, state = self.parts, self.parts.state
        if not parts.chain.through or plane(parts.chain.plane).switch_is_program:
            return  # The sender is the NIC, whose frames are steered already, or the switch.
        for number in parts.numbers[:-1]:
            if parts.cpu(number) != (cpu := parts.cpu(number + 1)):
                steer(state.host, state.machine.netns, [port_of(state.token, number)], [cpu])


class XdpMachines(Machines):
    """Virtual machines, which get the program, and this machine's iproute2 to attach it."""

    def connect(self, macs: Mapping[int, str], ends: Ends) -> None:
        super().connect(macs, ends)
        program = base64.encodebytes(XDP_ROUTER.read_bytes()).decode().splitlines()
        lines = (
            f"base64 -d >{_IN_MACHINE} <<.",
            *program,
            ".",
            attach_in_machine(),
            f"/bin/{shlex.join(_ASK)}",
        )
        outputs = self._machines.run_scripts(dict.fromkeys(macs, lines))
        self.remarks = _remarks([outputs[number] for number in self.parts.numbers])

    def read(self, counters: HostCounters) -> dict[int, VnfCounters]:
        counted = super().read(counters)
        by_virtio = not self.parts.chain.on_vfs and not self.remarks
        return without_headers(counted) if by_virtio else counted


def without_headers(counted: Mapping[int, VnfCounters]) -> dict[int, VnfCounters]:
    """Counters of virtio NICs that XDP sends by, with the bytes of frames alone. Pure.

    virtio_net counts its own header with each frame (`__virtnet_xdp_xmit_one`, Linux 6.12).
    """
    return {
        number: replace(function, bytes=function.bytes - _HEADER_BYTES * function.packets)
        for number, function in counted.items()
    }


def _remarks(outputs: Sequence[str]) -> tuple[str, ...]:
    """Remarks on the functions, by the output of `ip link show` in each. Pure."""
    names = [f"vnf{number}" for number, text in enumerate(outputs, 1) if _GENERIC in text.split()]
    if not names:
        return ()
    return (
        f"the kernel runs the XDP program of {' and '.join(names)} (generic XDP): the NIC's driver "
        "has no XDP",
    )
