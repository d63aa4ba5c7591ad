"""An Open vSwitch of our own with DPDK's datapath, and nothing in it. Knows no chain.

It lives in a scratch directory and a network namespace (its bridges are interfaces, too), dies with
planewise, and never meets the machine's own Open vSwitch.
"""

from __future__ import annotations

import json
import re
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.chains.reading import PmdCycles
from planewise.testbed.host import Finished, LocalHost, LocalProcess

PROGRAMS = ("/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk",)
"""Where distributions put the variant with DPDK."""
SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
SETUP_REMEDY = "`scripts/setup test` as root, or: apt-get install openvswitch-switch-dpdk dpdk-dev"

BRIDGE = "chain"
_START_S = 120.0
"""It starts in two seconds; on an overloaded machine in many."""
_COMMAND_S = 60.0
_POLL_S = 0.02


@dataclass(frozen=True)
class PortCounters:
    """Since the port was added; the switch's view: `rx` is what it got from there."""

    rx_packets: int
    rx_bytes: int
    tx_packets: int
    tx_bytes: int
    tx_dropped: int
    """Packets for the port that found no room there."""


@dataclass(frozen=True)
class Port:
    """A port to be added."""

    name: str
    number: int
    """By which flows call it."""
    kind: str
    """As Open vSwitch calls its type."""
    options: Mapping[str, str]
    cpu: int | None = None
    """The CPU that polls it; None leaves that to the switch."""


def find_program() -> str | None:
    """Open vSwitch's daemon with DPDK on this machine."""
    return next((path for path in PROGRAMS if Path(path).exists()), None)


class Switch:
    """A running switch; `close` ends it and all of it.

    Raises:
        UnsupportedError: it is not installed, or does not start.
    """

    def __init__(
        self, host: LocalHost, directory: Path, memory_bytes: int, cpus: Sequence[int]
    ) -> None:
        program = find_program()
        if program is None:
            raise UnsupportedError("Open vSwitch with DPDK is not installed", remedy=SETUP_REMEDY)
        self._host = host
        self._directory = directory
        self._numbers: dict[str, int] = {}
        self._processes: list[LocalProcess] = []
        try:
            self._start(program, memory_bytes >> 20, cpus)
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Process id of the daemon."""
        return self._processes[-1].pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return bool(self._processes) and all(process.running for process in self._processes)

    def socket(self, port: str) -> Path:
        """Where a vhost-user port and its function meet."""
        return self._directory / f"{port}.sock"

    def _start(self, program: str, memory_mib: int, cpus: Sequence[int]) -> None:
        place = self._directory
        database = place / "conf.db"
        self._run("ovsdb-tool", "create", str(database), str(SCHEMA)).check()
        self._processes.append(
            self._daemon(
                "ovsdb-server",
                str(database),
                f"--remote=punix:{place}/db.sock",
                f"--unixctl={place}/db.ctl",
                f"--log-file={place}/db.log",
            )
        )
        self._await("Open vSwitch's database", place / "db.sock")
        mask = sum(1 << cpu for cpu in set(cpus))
        settings = {
            "dpdk-init": "true",
            # Nothing of it on disk, no device of the machine touched.
            "dpdk-extra": "--no-pci --in-memory --no-telemetry",
            "dpdk-socket-mem": str(memory_mib),
            # Else it takes 800 MiB for the buffers of its first port.
            "dpdk-socket-limit": str(memory_mib),
            "pmd-cpu-mask": f"{mask:#x}",
        }
        self.configure(
            "--no-wait", "init",
            "--", "set", "Open_vSwitch", ".",
            *(f'other_config:{key}="{value}"' for key, value in settings.items()),
        )  # fmt: skip
        self._processes.append(
            self._daemon(
                program,
                f"unix:{place}/db.sock",
                f"--unixctl={place}/switch.ctl",
                f"--log-file={place}/switch.log",
            )
        )
        self._await("Open vSwitch with DPDK", place / "switch.ctl")
        self.configure(
            "add-br", BRIDGE,
            "--", "set", "bridge", BRIDGE, "datapath_type=netdev", "fail-mode=secure",
        )  # fmt: skip
        said = self.configure("get", "Open_vSwitch", ".", "dpdk_initialized").stdout
        if said.strip() != "true":
            raise UnsupportedError(
                f"Open vSwitch could not start DPDK: {self._last_words()}", remedy=SETUP_REMEDY
            )

    def _daemon(self, program: str, *arguments: str) -> LocalProcess:
        return self._host.start(self._environment(program, *arguments))

    def _run(self, *argv: str, stdin: bytes | None = None) -> Finished:
        return self._host.run(self._environment(*argv), timeout_s=_COMMAND_S, stdin=stdin)

    def _environment(self, *argv: str) -> list[str]:
        place = str(self._directory)
        names = ("OVS_RUNDIR", "OVS_LOGDIR", "OVS_DBDIR", "OVS_SYSCONFDIR", "RUNTIME_DIRECTORY")
        return [
            "env",
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
            *(f"{n}={place}" for n in names),
            *argv,
        ]

    def _await(self, what: str, path: Path) -> None:
        deadline = time.monotonic() + _START_S
        while not path.exists():
            if not self._processes[-1].running:
                raise UnsupportedError(
                    f"{what} ended as soon as it was started: {self._last_words()}",
                    remedy=SETUP_REMEDY,
                )
            if time.monotonic() > deadline:
                raise UnsupportedError(
                    f"{what} does not start within {_START_S:g} s",
                    remedy="end other work on the machine, and try again",
                )
            time.sleep(_POLL_S)

    def _last_words(self) -> str:
        """What it complained of last."""
        lines: list[str] = []
        with suppress(OSError):
            lines = (self._directory / "switch.log").read_text(errors="replace").splitlines()
        bad = [line.split("|", 4)[-1] for line in lines if "|ERR|" in line or "|EMER|" in line]
        return bad[-1] if bad else "it said nothing"

    def configure(self, *arguments: str) -> Finished:
        """Runs ovs-vsctl on its database, and waits until the switch has done what it says.

        Raises:
            PlanewiseError: it failed.
        """
        finished = self._run(
            "ovs-vsctl", f"--db=unix:{self._directory}/db.sock", "--timeout=60", *arguments
        ).check()
        if "Error detected" in finished.stderr:
            raise PlanewiseError(
                f"Open vSwitch could not do what it was told: {self._last_words()}",
                remedy="is there enough free memory, and are there enough huge pages?",
            )
        return finished

    def change_ports(self, add: Sequence[Port], remove: Sequence[str] = ()) -> None:
        """Removes and adds ports, at once."""
        arguments: list[str] = []
        for name in remove:
            arguments += ["--", "--if-exists", "del-port", BRIDGE, name]
            self._numbers.pop(name, None)
        for port in add:
            arguments += [
                *("--", "add-port", BRIDGE, port.name),
                *("--", "set", "interface", port.name, f"type={port.kind}"),
                f"ofport_request={port.number}",
                *(f'options:{key}="{value}"' for key, value in port.options.items()),
            ]
            if port.cpu is not None:
                arguments.append(f'other_config:pmd-rxq-affinity="0:{port.cpu}"')
            self._numbers[port.name] = port.number
        if arguments:
            self.configure(*arguments[1:])

    def set_flows(self, hops: Sequence[tuple[str, str]]) -> None:
        """What comes from the first port of a hop goes to the second; all else is dropped."""
        lines = [
            f"in_port={self._numbers[here]},actions=output:{self._numbers[there]}\n"
            for here, there in hops
        ]
        self._run(
            *("ovs-ofctl", "replace-flows", f"unix:{self._directory}/{BRIDGE}.mgmt", "-"),
            stdin="".join(lines).encode(),
        ).check()

    def ports_up(self, names: Sequence[str]) -> bool:
        """Whether the links of these ports are up: their functions have connected."""
        states = [
            self.configure("--bare", "get", "interface", name, "link_state").stdout.strip()
            for name in names
        ]
        return all(state == "up" for state in states)

    def counters(self) -> dict[str, PortCounters]:
        """Of every port, now."""
        return parse_ports(self._ask("dpctl/show", "-s", "netdev@ovs-netdev"))

    def pmd_cycles(self) -> PmdCycles:
        """Of the threads that poll, now."""
        return parse_cycles(self._ask("dpif-netdev/pmd-stats-show"))

    def _ask(self, method: str, *parameters: str) -> str:
        """Asks the daemon, over its control socket, as ovs-appctl does (ovs-appctl(8))."""
        question = {"id": 0, "method": method, "params": list(parameters)}
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.settimeout(_COMMAND_S)
                line.connect(str(self._directory / "switch.ctl"))
                line.sendall(json.dumps(question).encode())
                heard = b""
                while True:
                    more = line.recv(1 << 16)
                    heard += more
                    with suppress(ValueError):
                        answer = json.loads(heard)
                        break
                    if not more:
                        raise OSError("it hung up")
        except OSError as error:
            raise PlanewiseError(
                f"Open vSwitch does not answer: {error.strerror or error}",
                remedy="it ended unexpectedly; try again",
            ) from error
        if answer.get("error"):
            raise PlanewiseError(f"Open vSwitch refused {method}: {answer['error'].strip()}")
        return str(answer["result"])

    def close(self) -> None:
        """Ends it. Idempotent."""
        for process in reversed(self._processes):
            process.interrupt()
        for process in reversed(self._processes):
            process.stop()
        self._processes.clear()


_PORT = re.compile(r"^  port \d+: (\S+)", re.MULTILINE)


def parse_ports(text: str) -> dict[str, PortCounters]:
    """What `dpctl/show -s` prints, by name of the port. Pure."""
    found = {}
    starts = list(_PORT.finditer(text))
    ends = [start.start() for start in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends[: len(starts)], strict=True):
        part = text[start.end() : end]
        values: dict[str, int] = {}
        for line in part.splitlines():
            for way, what, count in re.findall(r"(RX|TX) (packets|bytes):(\d+)", line):
                values[f"{way} {what}"] = int(count)
            if "TX packets" in line and (dropped := re.search(r"dropped:(\d+)", line)):
                values["TX dropped"] = int(dropped[1])
        found[start[1]] = PortCounters(
            rx_packets=values.get("RX packets", 0),
            rx_bytes=values.get("RX bytes", 0),
            tx_packets=values.get("TX packets", 0),
            tx_bytes=values.get("TX bytes", 0),
            tx_dropped=values.get("TX dropped", 0),
        )
    return found


def parse_cycles(text: str) -> PmdCycles:
    """What `dpif-netdev/pmd-stats-show` prints, over all polling threads. Pure."""
    idle = busy = 0
    for part in re.split(r"^(?=\S)", text, flags=re.MULTILINE):
        if part.startswith("pmd thread"):
            idle += _count(part, "idle cycles")
            busy += _count(part, "processing cycles")
    return PmdCycles(idle, busy)


def _count(text: str, what: str) -> int:
    found = re.search(rf"^\s+{what}: (\d+)", text, re.MULTILINE)
    return int(found[1]) if found else 0
