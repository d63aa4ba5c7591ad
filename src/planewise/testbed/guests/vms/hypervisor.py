"""A connection to libvirt: start and end domains, call their agents.

libvirt-python is imported at the first use: users without virtual machines do not need it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Literal

from planewise.errors import PlanewiseError, UnsupportedError

SETUP_REMEDY = "run `scripts/setup vms` in the source tree (as root)"

State = Literal["running", "paused", "gone"]

AGENT_TIMEOUT_S = 240
"""An emulated guest on a busy machine answers late, one that is emulated twice very late."""


class GuestGoneError(PlanewiseError):
    """A virtual machine ended, or its agent no longer answers."""


class HypervisorGoneError(PlanewiseError):
    """libvirt no longer answers."""


class AgentSilentError(PlanewiseError):
    """The agent of a virtual machine does not answer (yet)."""


class Hypervisor:
    """A connection to the libvirt behind a Unix socket. All its calls may come from any thread."""

    def __init__(self, socket: str, place: str) -> None:
        """`place` is the host's name in messages.

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
        """Saves a domain to a file of the host, which ends it.

        Raises:
            PlanewiseError: there is no room, or a device of it cannot be saved.
        """
        with self._sentences(name):
            self._domain(name).save(path)

    def restore(self, path: str, name: str) -> None:
        """Restores the domain `name` from a file of the host.

        Raises:
            PlanewiseError: libvirt or QEMU refuses it.
        """
        with self._sentences(name):
            self._connection.restore(path)

    def attach(self, name: str, xml: str) -> None:
        """Attaches a device to a running domain.

        Raises:
            PlanewiseError: libvirt or QEMU refuses it.
        """
        with self._sentences(name):
            self._domain(name).attachDevice(xml)

    def destroy(self, name: str) -> None:
        """Ends a domain at once; one that has ended is no error."""
        with suppress(GuestGoneError), self._sentences(name):
            self._domain(name).destroy()

    def suspend(self, name: str) -> None:
        """Stops a domain's CPUs; its memory and its NIC stay."""
        with self._sentences(name):
            self._domain(name).suspend()

    def resume(self, name: str) -> None:
        """Starts a suspended domain's CPUs."""
        with self._sentences(name):
            self._domain(name).resume()

    def states(self) -> Mapping[str, State]:
        """States of all active domains."""
        with self._sentences(""):
            state_of: dict[str, State] = {}
            for domain in self._connection.listAllDomains(
                self._libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE
            ):
                with suppress(self._libvirt.libvirtError):  # it may have ended meanwhile
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
        """The answer of the domain's guest agent to a command (qemu-ga-ref(7)).

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
                # Where the guest ends meanwhile, libvirt has no error code but these two: internal,
                # or that of the socket that QEMU closed.
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
        """Translates libvirt's errors to Planewise's."""
        try:
            yield
        except self._libvirt.libvirtError as error:
            raise self._explain(error, name) from error

    def _explain(self, error: Any, name: str) -> PlanewiseError:
        codes, code = self._libvirt, error.get_error_code()
        message = str(error.get_error_message() or error).strip().rstrip(".")
        if (
            code in (codes.VIR_ERR_RPC, codes.VIR_ERR_NO_CONNECT, codes.VIR_ERR_INVALID_CONN)
            or error.get_error_domain() == codes.VIR_FROM_RPC
        ):
            return HypervisorGoneError(
                f"libvirt on {self._place} does not answer: {message}",
                remedy="was it ended? `planewise run --resume` continues the run",
            )
        not_running = code == codes.VIR_ERR_OPERATION_INVALID and "not running" in message
        if code == codes.VIR_ERR_NO_DOMAIN or not_running:
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
        if code == codes.VIR_ERR_NO_SUPPORT or "KVM" in message:
            return UnsupportedError(f"libvirt on {self._place} cannot do it: {message}")
        return PlanewiseError(
            f"libvirt on {self._place} refuses {name or 'to answer'}: {message}",
            remedy="is there enough memory? `free -m` shows it",
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
