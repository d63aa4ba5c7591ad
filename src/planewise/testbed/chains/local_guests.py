"""Chains on this machine's bridge whose functions are containers or virtual machines.

What is no namespace is started here; all else is `kernel.py`'s. Knows no measurement.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from planewise.testbed.apply import apply
from planewise.testbed.chains import kernel
from planewise.testbed.chains.kernel import KernelChain
from planewise.testbed.chains.machines import FunctionMachines, function_guest, told
from planewise.testbed.chains.model import Chain, Placement
from planewise.testbed.chains.reading import CpuTime, Sent, task_s
from planewise.testbed.containers import Docker
from planewise.testbed.host import Host, LocalHost
from planewise.testbed.model import Guest
from planewise.testbed.netns import NamespaceThread
from planewise.testbed.plan import Plan
from planewise.testbed.vms import booted
from planewise.testbed.vms.domain import VmOptions
from planewise.testbed.vms.guests import nic_of
from planewise.testbed.vms.platform import Platform

_MTU_BYTES = 1500
_ATTACH_S = 120.0


def contain(docker: Docker, host: Host, names: Sequence[str]) -> None:
    """Starts containers whose network namespaces have these names on the host.

    Raises:
        PlanewiseError: Docker refuses, or one ended at once.
    """
    for name in names:
        docker.run(name)
    lines = [f"ip netns attach {one.name} {one.pid}\n" for one in docker.locate(names)]
    host.run(["sh", "-es"], stdin="".join(lines).encode(), timeout_s=_ATTACH_S).check()


def _perform(plan: Plan) -> None:
    thread = NamespaceThread("apply")
    try:
        apply(plan, thread)
    finally:
        thread.close()


class ContainedChain(KernelChain):
    """A chain whose functions are containers: the kernel routes in the network of each.

    Raises on entry:
        UnsupportedError: no privilege, no Docker, or this kernel has not what it needs.
    """

    def __init__(
        self, chain: Chain, placement: Placement, *, offered_pps: float | None = None
    ) -> None:
        super().__init__(chain, placement, offered_pps=offered_pps)
        self._started = ExitStack()

    def _plan(self, token: str) -> Plan:
        self._token = token
        return kernel.plan_switch(token)

    def _populate(self) -> None:
        docker = self._started.enter_context(Docker(self.host, self._token))
        names = [self.netns(f"v{number}") for number in range(1, self.chain.vnfs + 1)]
        contain(docker, self.host, names)
        functions = kernel.plan_functions(self._token, self.chain)
        _perform(Plan((*functions.steps, *kernel.plan_links(self._token, self.chain).steps)))

    def _hosts(self) -> list[LocalHost]:
        self._started.close()
        return super()._hosts()


class MachineChain(KernelChain):
    """A chain whose functions are virtual machines, each with a virtio NIC on the bridge.

    Raises on entry:
        UnsupportedError: no privilege, or this machine lacks what virtual machines need.
        PlanewiseError: a virtual machine did not come up.
    """

    def __init__(
        self,
        chain: Chain,
        placement: Placement,
        platform: Platform,
        options: VmOptions,
        *,
        offered_pps: float | None = None,
    ) -> None:
        super().__init__(chain, placement, offered_pps=offered_pps)
        self._platform = platform
        self._options = options
        self._started = ExitStack()
        self._machines: FunctionMachines | None = None

    @property
    def machines(self) -> FunctionMachines:
        """The functions; only inside the `with` block."""
        if self._machines is None:
            raise RuntimeError("the chain is not built: use it in a with block")
        return self._machines

    def _plan(self, token: str) -> Plan:
        self._token = token
        first = kernel.plan_switch(token)
        functions = kernel.plan_functions(token, self.chain, queues=self._options.queues)
        return Plan((*first.steps, *functions.steps))

    def _populate(self) -> None:
        # In the namespace of the bridge: that is where the taps are.
        home = LocalHost("functions", self.netns("s"))
        self._started.callback(home.close)
        saved = booted.saved_for(home, self._platform, self._options)
        self._machines = self._started.enter_context(
            FunctionMachines(home, self._platform, self._options, saved=saved)
        )
        numbers = range(1, self.chain.vnfs + 1)
        guests = [self._guest(number) for number in numbers]
        self._machines.start(
            [
                (one, nic_of("virtio", one, kernel.port_of(one.index), self._machines.guests))
                for one in guests
            ],
            _MTU_BYTES,
        )
        self._machines.wake(numbers)
        self._machines.tell(told_of(self.chain))
        _perform(kernel.plan_links(self._token, self.chain))

    def _guest(self, number: int) -> Guest:
        name, mac = self.netns(f"v{number}"), kernel.mac_of(number)
        return function_guest("responder", name, number, self.chain.plane, mac)

    def _place(self, cpus: Mapping[int, int]) -> None:
        self.machines.pin(cpus)

    def _passed(self) -> Sequence[tuple[int, int]]:
        return [(one.received or 0, one.packets) for one in self.machines.read().values()]

    def _sent(self) -> Sequence[Sent]:
        # A bridge is between who sent them and what arrives.
        return [replace(one, received=None) for one in self.machines.read().values()]

    def _kernel_s(self, cpu: int, spent: CpuTime) -> float:
        own = zip(self.machines.pids.items(), self.chain.names, strict=True)
        return super()._kernel_s(cpu, spent) + sum(
            task_s(pid) for (_, pid), name in own if self.placement.cpu(name) == cpu
        )

    def _hosts(self) -> list[LocalHost]:
        # Libvirt first: its sockets and consoles are in its host's directory.
        self._started.close()
        self._machines = None
        return super()._hosts()


def told_of(chain: Chain) -> dict[int, tuple[str, ...]]:
    """By number, what each function of a chain on this machine is told. Pure."""
    steps = kernel.routes(chain, str)
    return {number: told(steps, str(number)) for number in range(1, chain.vnfs + 1)}


def steps(chain: Chain, placement: Placement) -> tuple[str, ...]:
    """What makes a chain of containers or virtual machines, for people. Pure."""
    token = "0" * 8
    names = {number: f"pw-{token}-v{number}" for number in range(1, chain.vnfs + 1)}
    first = [*kernel.plan_switch(token).steps]
    functions = kernel.plan_functions(token, chain).steps
    started = []
    if chain.kind == "container":
        for name in names.values():
            started += [
                f"docker run --network none --name {name}",
                f"ip netns attach {name} <its process>",
            ]
        made = (*first, *started, *functions)
    else:
        for number, name in names.items():
            cpu = placement.cpu(f"vnf{number}")
            started += [
                f"start the virtual machine {name} with a virtio NIC on "
                f"{kernel.port_of(number)}, on CPU {cpu}",
                *(f"in {name}: {line}" for line in told_of(chain)[number]),
            ]
        made = (*first, *functions, *started)
    return tuple(map(str, (*made, *kernel.plan_links(token, chain).steps)))
