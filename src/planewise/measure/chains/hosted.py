"""The stage for chains on two hosts: servers reached by ssh, or a lab's.

The VFs of both NICs are set up once, when a chain first needs them; chains come and go.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from planewise.errors import PlanewiseError
from planewise.measure.cells import Cell
from planewise.measure.chains.stage import (
    SLACK_S,
    Build,
    ChainStation,
    RoutedStage,
    chain_of,
    longest,
)
from planewise.measure.design import Design
from planewise.testbed.chains import hosted
from planewise.testbed.chains.functions import PROGRAM
from planewise.testbed.chains.generator import generator_pps
from planewise.testbed.chains.hosted import FUNCTIONS, PLANES, HostedChain
from planewise.testbed.chains.machines import FunctionMachines, PassedThrough
from planewise.testbed.chains.model import Chain, Placement, take_turns
from planewise.testbed.chains.pollers import Pollers
from planewise.testbed.containers import Docker
from planewise.testbed.host import Host
from planewise.testbed.machine import Resources, survey
from planewise.testbed.model import HOSTS, HostRole
from planewise.testbed.pair import Pair
from planewise.testbed.vfs import VfPool
from planewise.testbed.vms import booted
from planewise.testbed.vms.guests import LAB_BOOT_LIMIT_S
from planewise.testbed.vms.platform import vm_mib
from planewise.testbed.vms.resources import VmResources, look, memory_shortage, no_iommu


def builds(cells: Sequence[Cell], nic: str) -> dict[str, Build]:
    """By plane, what makes its longest chain among `cells` on two hosts with such a NIC. Pure."""
    return {
        plane: Build({}, hosted.steps(chain_of(cell), nic))
        for plane, cell in longest(cells).items()
    }


class HostedChainStage(RoutedStage):
    """Builds a chain for a visit and removes it after; see `planewise.measure.stage.Stage`."""

    def __init__(self, design: Design, pair: Pair) -> None:
        super().__init__(design)
        self._pair = pair
        self._resources: dict[HostRole, Resources] = {}
        self._cpus: tuple[int, ...] = ()
        self._pools: dict[HostRole, VfPool] = {}
        self._generator_pps = 0.0
        self._memory: VmResources | None = None
        self._docker: Docker | None = None
        self._passed: PassedThrough | None = None
        self._standing = ExitStack()

    @property
    def _functions_host(self) -> Host:
        return self._pair.machines[FUNCTIONS].host

    def _unavailable_reason(self, cell: Cell) -> str:
        if self._tcp:
            return "TCP through chains is measured on one machine: leave --lab, --sender and so on"
        if cell.plane not in PLANES:
            return (
                f"chains on {cell.plane} are built on one machine: run them without --lab, "
                "--sender and --responder"
            )
        if not self._resources:
            self._resources = {role: survey(self._pair.machines[role]) for role in HOSTS}
        chain = chain_of(cell)
        reason = hosted.shortage(chain, self._resources)
        if reason:
            return reason
        try:
            self._place(chain)
            if chain.kind == "vm":
                return self._vm_shortage(chain)
            return self._dpdk_shortage() if chain.forwards == "testpmd" else ""
        except PlanewiseError as error:
            return error.what

    def _vm_shortage(self, chain: Chain) -> str:
        machine = self._pair.machines[FUNCTIONS]
        if self._memory is None:
            self._memory = look(machine, with_vfs=True)
        _ = self._platform
        if not self._memory.iommu:
            return no_iommu(self._memory.place)
        there = self._memory
        return memory_shortage(chain.vnfs, vm_mib(self._options), there.place, there.free_mib)

    def _dpdk_shortage(self) -> str:
        machine = self._pair.machines[FUNCTIONS]
        if machine.host.run(["sh", "-c", f"command -v {PROGRAM}"]).exit_code:
            return f"{PROGRAM} is not installed on {machine.host.place}"
        if self._memory is None:
            self._memory = look(machine, with_vfs=True)
        return "" if self._memory.iommu else no_iommu(self._memory.place)

    def _place(self, chain: Chain) -> Placement:
        if not self._cpus:
            self._cpus = hosted.cpus_of(self._pair.machines[FUNCTIONS].host)
        return take_turns(chain.names, self._cpus, self._wanted.get("vnf", ()))

    @contextmanager
    def station(self, cell: Cell) -> Iterator[ChainStation]:
        """The cell's chain, standing."""
        chain = chain_of(cell)
        if not self._pools:
            self._set_up()
        docker = self._docker_now() if chain.kind == "container" else None
        passed = self._passed_now() if chain.kind == "vm" else None
        if self._passed is not None and chain.plane == "vf":
            self._make_room(chain.vnfs)
        functions, pollers = self._pair.machines[FUNCTIONS].host, None
        if chain.forwards == "testpmd":
            pollers = Pollers(functions, self._pools[FUNCTIONS], self._pair.token)
        with HostedChain(
            chain,
            self._place(chain),
            self._pair.machines,
            self._pools,
            self._pair.token,
            self._generator_pps,
            self._offered_pps,
            docker=docker,
            machines_on=passed,
            pollers=pollers,
        ) as testbed:
            yield ChainStation(testbed, SLACK_S if passed is None else LAB_BOOT_LIMIT_S)

    def _make_room(self, functions: int) -> None:
        """Ends virtual machines that hold VFs which others are to have."""
        assert self._passed is not None
        if self._passed.held and self._pools[FUNCTIONS].free < functions:
            self._passed.close()
            self._passed.__enter__()

    def _docker_now(self) -> Docker:
        if self._docker is None:
            host = self._pair.machines[FUNCTIONS].host
            self._docker = self._standing.enter_context(Docker(host, self._pair.token))
        return self._docker

    def _passed_now(self) -> PassedThrough:
        if self._passed is None:
            machine = self._pair.machines[FUNCTIONS]
            machines = FunctionMachines(
                machine.host,
                self._platform,
                self._options,
                saved=booted.saved_for(machine.host, self._platform, self._options),
            )
            self._passed = self._standing.enter_context(
                PassedThrough(machines, self._pools[FUNCTIONS], self._pair.token)
            )
        return self._passed

    def _set_up(self) -> None:
        self._generator_pps = generator_pps(self._pair.machines[hosted.GENERATING].host)
        pools = {}
        for role, machine in self._pair.machines.items():
            pool = VfPool(machine.host, machine.nic, self._pair.token)
            pools[role] = self._standing.enter_context(pool)
            # A VF sends nothing before its PF is up.
            machine.host.run(["ip", "link", "set", machine.nic, "up"]).check()
        self._pools = pools

    def __exit__(self, *_: object) -> None:
        self._pools, self._docker, self._passed = {}, None, None
        self._standing.close()
