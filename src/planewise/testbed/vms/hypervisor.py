"""libvirt as we need it: start and end domains, talk to their agents. Knows no plane, no testbed.

libvirt-python is imported when it is first needed: who has no virtual machines needs none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

from planewise.errors import PlanewiseError, UnsupportedError

SETUP_REMEDY = "run `scripts/setup lab` in the source tree (as root)"

State = Literal["running", "paused", "gone"]

AGENT_TIMEOUT_S = 240
"""An emulated guest on a busy machine answers late, one that is emulated twice very late."""


class GuestGoneError(PlanewiseError):
    """A virtual machine ended, or its agent answers no longer."""


class HypervisorGoneError(PlanewiseError):
    """libvirt answers no longer."""


class AgentSilentError(PlanewiseError):
    """The agent of a virtual machine does not answer (yet)."""


class Hypervisor:
    """A connection to the libvirt behind a Unix socket. All its calls may come from any thread."""

    def __init__(self, socket: str, place: str) -> None:
        """`place` is how sentences call the host.

        Raises:
            UnsupportedError: libvirt-python is not installed.
            HypervisorGoneError: nobody answers.
        """
        self._libvirt, self._qemu = libraries()
        self._place = place
        with self._sentences(""):
            self._connection = self._libvirt.open(f"qemu+unix:///system?socket={socket}")

    def close(self) -> None:
        """Ends the connection, not the domains."""
        with suppress(self._libvirt.libvirtError):
            self._connection.close()

    @property
    def alive(self) -> bool:
        """Whether libvirt still answers."""
        try:
            with self._sentences(""):
                self._connection.getLibVersion()
        except PlanewiseError:
            return False
        return True

    def start(self, xml: str, name: str) -> None:
        """Starts a transient domain.

        Raises:
            PlanewiseError: libvirt refuses it, or QEMU does not start.
        """
        with self._sentences(name):
            self._connection.createXML(xml, 0)

    def save(self, name: str, path: str) -> None:
        """Ends a domain, and keeps it in a file of the host.

        Raises:
            PlanewiseError: there is no room, or a device of it cannot be kept.
        """
        with self._sentences(name):
            self._domain(name).save(path)

    def restore(self, path: str, name: str) -> None:
        """Lets the domain `name` go on that is kept in a file of the host.

        Raises:
            PlanewiseError: libvirt or QEMU refuses it.
        """
        with self._sentences(name):
            self._connection.restore(path)

    def attach(self, name: str, xml: str) -> None:
        """Plugs a device into a domain that runs.

        Raises:
            PlanewiseError: libvirt or QEMU refuses it.
        """
        with self._sentences(name):
            self._domain(name).attachDevice(xml)

    def destroy(self, name: str) -> None:
        """Ends a domain at once; one that is gone is no error."""
        with suppress(GuestGoneError), self._sentences(name):
            self._domain(name).destroy()

    def suspend(self, name: str) -> None:
        """Stops a domain's CPUs; its memory and its place on the network stay."""
        with self._sentences(name):
            self._domain(name).suspend()

    def resume(self, name: str) -> None:
        """Lets a suspended domain go on."""
        with self._sentences(name):
            self._domain(name).resume()

    def states(self) -> Mapping[str, State]:
        """Every domain that is there."""
        with self._sentences(""):
            state_of: dict[str, State] = {}
            for domain in self._connection.listAllDomains(
                self._libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
            ):
                with suppress(self._libvirt.libvirtError):  # it may end while we look
                    paused = domain.state()[0] == self._libvirt.VIR_DOMAIN_PAUSED
                    state_of[domain.name()] = "paused" if paused else "running"
            return state_of

    def agent(
        self,
        name: str,
        execute: str,
        arguments: Mapping[str, object] | None = None,
        timeout_s: int = AGENT_TIMEOUT_S,
    ) -> Any:
        """What a command of the domain's guest agent returns (qemu-ga-ref(7)).

        Raises:
            GuestGoneError: the domain ended.
            AgentSilentError: the agent does not answer, or is not there yet.
            PlanewiseError: the agent refuses the command.
        """
        command = json.dumps({"execute": execute, "arguments": dict(arguments or {})})
        with self._sentences(name):
            domain = self._domain(name)
            try:
                answer = self._qemu.qemuAgentCommand(domain, command, timeout_s, 0)
            except self._libvirt.libvirtError as error:
                # A guest that ends while its agent is asked: libvirt has only words for that, or
                # the error of the socket that QEMU closed.
                codes = (self._libvirt.VIR_ERR_INTERNAL_ERROR, self._libvirt.VIR_ERR_SYSTEM_ERROR)
                if error.get_error_code() in codes:
                    raise self._gone_error(name) from error
                raise
            return json.loads(answer)["return"]

    def _gone_error(self, name: str) -> GuestGoneError:
        return GuestGoneError(
            f"the virtual machine {name} on {self._place} ended",
            remedy="its console, or the kernel's log (`dmesg`), may say why",
        )

    def _domain(self, name: str) -> Any:
        return self._connection.lookupByName(name)

    @contextmanager
    def _sentences(self, name: str) -> Iterator[None]:
        """libvirt's errors as ours."""
        try:
            yield
        except self._libvirt.libvirtError as error:
            raise self._explain(error, name) from error

    def _explain(self, error: Any, name: str) -> PlanewiseError:
        codes, code = self._libvirt, error.get_error_code()
        words = str(error.get_error_message() or error).strip().rstrip(".")
        if (
            code in (codes.VIR_ERR_RPC, codes.VIR_ERR_NO_CONNECT, codes.VIR_ERR_INVALID_CONN)
            or error.get_error_domain() == codes.VIR_FROM_RPC
        ):
            return HypervisorGoneError(
                f"libvirt on {self._place} does not answer: {words}",
                remedy="was it ended? `planewise run --resume` continues the run",
            )
        gone = code == codes.VIR_ERR_OPERATION_INVALID and "not running" in words
        if code == codes.VIR_ERR_NO_DOMAIN or gone:
            return self._gone_error(name)
        if code in (
            codes.VIR_ERR_AGENT_UNRESPONSIVE,
            codes.VIR_ERR_AGENT_UNSYNCED,
            codes.VIR_ERR_AGENT_COMMAND_TIMEOUT,
        ):
            return AgentSilentError(
                f"the agent of the virtual machine {name} does not answer",
                remedy="is the machine overloaded? use fewer guests",
            )
        if code == codes.VIR_ERR_NO_SUPPORT or "KVM" in words:
            return UnsupportedError(f"libvirt on {self._place} cannot do it: {words}")
        return PlanewiseError(
            f"libvirt on {self._place} refuses {name or 'to answer'}: {words}",
            remedy="is there memory enough? `free -m` tells",
        )


def libraries() -> tuple[Any, Any]:
    """The modules `libvirt` and `libvirt_qemu`.

    Raises:
        UnsupportedError: libvirt-python is not installed.
    """
    try:
        import libvirt
        import libvirt_qemu
    except ImportError as error:
        raise UnsupportedError(
            "the Python package libvirt-python is not installed, and virtual machines need it",
            remedy=SETUP_REMEDY,
        ) from error
    # Without this it writes every error on stderr, too.
    libvirt.registerErrorHandler(lambda *_: None, None)
    return libvirt, libvirt_qemu
