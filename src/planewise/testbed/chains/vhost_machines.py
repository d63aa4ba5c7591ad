"""Chains on vhost-user whose functions are virtual machines that route. Knows no measurement."""

from __future__ import annotations

from planewise.testbed.chains import uplink
from planewise.testbed.chains.machines import FunctionMachines, function_guest, told
from planewise.testbed.chains.model import Chain, Placement
from planewise.testbed.chains.reading import task_s
from planewise.testbed.chains.routing import routing
from planewise.testbed.chains.vhost_user import StartFunction, VhostChain
from planewise.testbed.host import LocalHost
from planewise.testbed.vms import booted
from planewise.testbed.vms.domain import VhostUserNic, VmOptions
from planewise.testbed.vms.platform import Platform

_MTU_BYTES = 1500


class VhostMachines(VhostChain):
    """As `VhostChain`; its functions' kernels route, so that frames must be IP: from an uplink.

    Raises on entry:
        UnsupportedError: this machine lacks what virtual machines need.
        PlanewiseError: a virtual machine did not come up.
    """

    def __init__(
        self,
        chain: Chain,
        placement: Placement,
        driver: uplink.Driver,
        offered_pps: float | None,
        platform: Platform,
        options: VmOptions,
    ) -> None:
        """`options` have their memory shared."""
        super().__init__(chain, placement, driver, offered_pps)
        self._platform = platform
        self._options = options
        self._machines: FunctionMachines | None = None

    @property
    def machines(self) -> FunctionMachines:
        """The functions; only inside the `with` block."""
        if self._machines is None:
            raise RuntimeError("the chain is not built: use it in a with block")
        return self._machines

    def _start_function(self, step: StartFunction, host: LocalHost) -> None:
        # QEMU waits for the switch, which has the port only later: all are started then.
        if self._machines is not None:
            return
        saved = booted.saved_for(host, self._platform, self._options)
        self._machines = self._stack.enter_context(
            FunctionMachines(host, self._platform, self._options, saved=saved)
        )

    def _await_functions(self) -> None:
        numbers = range(1, self.chain.vnfs + 1)
        macs = {number: uplink.mac_of(number) for number in numbers}
        names = {number: f"pw-{self._token}-v{number}" for number in numbers}
        self.machines.start(
            [
                (
                    function_guest("responder", names[number], number, "vhost-user", macs[number]),
                    VhostUserNic(macs[number], str(self.switch.socket(f"vnf{number}"))),
                )
                for number in numbers
            ],
            _MTU_BYTES,
        )
        self.machines.wake(numbers)
        steps = routing(self.chain, str, macs, uplink.END_MACS)
        self.machines.tell({number: told(steps, str(number)) for number in numbers})
        self.machines.pin({number: self.placement.cpu(f"vnf{number}") for number in numbers})

    def _passed(self) -> dict[str, tuple[int, int]]:
        read = self.machines.read()
        return {f"vnf{number}": (one.received or 0, one.packets) for number, one in read.items()}

    def _spent(self, whole: bool) -> tuple[dict[str, float], dict[str, float]]:
        # A virtual machine sleeps when there is nothing to do: its CPU time is spent on packets.
        pids = self.machines.pids
        return {}, {f"vnf{number}": task_s(pid) for number, pid in pids.items()}
