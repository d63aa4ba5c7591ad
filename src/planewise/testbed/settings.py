"""Settings of interfaces and kernels that a design varies; each is an entry of `SETTINGS`.

A level of the factor `setting` is `default`, or settings with a level each, joined by ` + `:
`offload.tso=off + mtu=9000`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.resources import files
from types import MappingProxyType
from typing import Literal

from planewise.errors import BadInputError, PlanewiseError
from planewise.testbed.hosts.host import Host
from planewise.testbed.hosts.steering import OWN_SYS, cpu_mask
from planewise.testbed.model import GUEST_WORDS, HOSTS, GuestKind, IpVersion
from planewise.testbed.planes import Plane, plane
from planewise.testbed.planes.vxlan import VxlanPlane
from planewise.testbed.setting import Arrangement

DEFAULT = "default"
"""Level of the factor `setting`: everything as the testbed makes it."""


@dataclass(frozen=True)
class Spot:
    """An interface where a setting is read and written."""

    host: Host
    netns: str
    """Empty: the host's own namespace."""
    interface: str

    def __str__(self) -> str:
        return f"{self.interface} of {self.netns or self.host.place}"


@dataclass(frozen=True)
class HostSetting:
    """A property of an interface or a kernel."""

    name: str
    """As a level of the factor `setting` has it before the equals sign."""
    description: str
    """One sentence: what it changes, and where."""
    reads: str
    """Shell that prints the level of the interface `$1`."""
    writes: str
    """Shell that sets the level `$2`; `$3` is the path of `file` on the host."""
    levels: str = "on, off"
    """Its levels, in words."""
    accepts: Callable[[str], bool] = ("on", "off").__contains__
    """Whether it has a level."""
    places: tuple[Literal["uplink", "bridge", "port", "guest"], ...] = ("port", "guest")
    """Where it is set, a parent before what sits on it: NIC and switch, the host's bridge, the
    host's end of the main guest's interface where there is one, or that interface."""
    programs: tuple[str, ...] = ()
    """Programs that a host needs."""
    file: str = ""
    """A file of this machine that it needs."""
    machine_wide: tuple[str, ...] = ()
    """Files below /proc/sys that it writes on a server, restored as noted in the ledger."""
    refuses: Callable[[Plane], str] = lambda _: ""
    """Why it does not exist for a plane, as a clause; empty where it does."""
    verified: bool = True
    """Whether reading a level gives the one that was written."""

    def refusal(self, name: str, kind: GuestKind) -> str:
        """Why it does not exist for a plane and kind of guest, as a sentence; empty where it does.
        Pure."""
        if kind not in ("namespace", "container"):
            reason = f"the interface of {GUEST_WORDS[kind][0]} has a kernel of its own"
        elif plane(name).vfs:
            reason = f"the guest's interface on {name} is a VF, which is the NIC's"
        else:
            reason = self.refuses(plane(name))
        return reason and f"{self.name}: {reason}"

    def spots(self, arrangement: Arrangement) -> Iterator[Spot]:
        """The interfaces that it changes."""
        for place in self.places:
            for role in HOSTS:
                host, site = arrangement.hosts[role], arrangement.sites[role]
                guest, port = arrangement.mains[role], arrangement.ports[role]
                if place == "guest":
                    yield Spot(host, guest.netns, guest.interface)
                    continue
                own = {"uplink": (site.nic, site.uplink), "bridge": (site.bridge,), "port": (port,)}
                for interface in dict.fromkeys(filter(None, own[place])):
                    yield Spot(host, site.netns, interface)

    def read(self, spot: Spot) -> str:
        """Its present level; PlanewiseError when it cannot be read."""
        if level := self._run(spot, self.reads, "read"):
            return level
        raise PlanewiseError(f"{self.name} of {spot} is not reported")

    def write(self, spot: Spot, level: str) -> None:
        """Sets a level; PlanewiseError when the kernel refuses."""
        file = spot.host.program(self.file) if self.file else ""
        self._run(spot, self.writes, f"set to {level}", level, file)

    def change(self, spot: Spot, level: str) -> None:
        """Sets a level and checks that the kernel took it.

        Raises:
            PlanewiseError: it did not.
        """
        self.write(spot, level)
        if self.verified and (now := self.read(spot)) != level:
            raise PlanewiseError(
                f"{self.name} of {spot} stays {now}: its driver does not take {level}",
                remedy="leave the level out for this plane (`constraints` in the design)",
            )

    def _run(self, spot: Spot, script: str, aim: str, *words: str) -> str:
        argv = ("sh", "-ec", script, "sh", spot.interface, *words)
        done = spot.host.run(argv, netns=spot.netns or None)
        if done.exit_code == 0:
            return done.stdout.strip()
        said = done.stderr.strip().splitlines() or [done.ending]
        raise PlanewiseError(f"{self.name} of {spot} cannot be {aim}: {said[-1]}")


def _between(low: int, high: int) -> Callable[[str], bool]:
    return lambda level: level.isdigit() and low <= int(level) <= high


def _offload(name: str, feature: str, short: str) -> HostSetting:
    """A feature, as `ethtool -k` lists it and `ethtool -K` names it."""

    def refuses(plane: Plane) -> str:
        inherited = type(plane).host_interface is Plane.host_interface
        return f"an interface of {plane.name} has the NIC's offloads" if inherited else ""

    return HostSetting(
        f"offload.{name}",
        f"{feature} of the main guests' interfaces and of their host ends",
        rf'ethtool -k "$1" | sed -n "s/^{feature}: \(on\|off\).*/\1/p"',
        f'ethtool -K "$1" {short} "$2"',
        programs=("ethtool",),
        refuses=refuses,
    )


def _mtu_refusal(plane: Plane) -> str:
    if isinstance(plane, VxlanPlane):
        return f"{plane.name} needs room for its tunnel's headers"
    own = plane.switch_is_program
    return f"the switch of {plane.name} is a program, which has its own MTU" if own else ""


_LINK = 'link=$(ip -o link show dev "$1"); echo "$link"'
_BRIDGE_KEYS = tuple(f"net/bridge/bridge-nf-call-{family}" for family in ("iptables", "ip6tables"))
_BRIDGE_FILES = " ".join(f"/proc/sys/{key}" for key in _BRIDGE_KEYS)
_QDISC = (
    r"""tc qdisc show dev "$1" | sed -n 's/^qdisc \([^ ]*\) [^ ]* root.*/\1/p' | grep -vx noqueue"""
)
_RPS = f'unshare --mount sh -ec \'{OWN_SYS} file=/sys/class/net/"$1"/queues/rx-0/rps_cpus; '

_ALL = (
    HostSetting(
        "bridge_netfilter",
        "iptables and nftables see bridged packets (net.bridge.bridge-nf-call-iptables)",
        f"values=$(cat {_BRIDGE_FILES}); case $values in *1*) echo on;; *) echo off;; esac",
        f"for file in {_BRIDGE_FILES}; do\n[ $2 = on ] && echo 1 >$file || echo 0 >$file; done",
        places=("bridge",),
        machine_wide=_BRIDGE_KEYS,
        refuses=lambda plane: (
            ""
            if plane.switch is not None and plane.switch.name == "bridge"
            else f"frames of {plane.name} pass no Linux bridge"
        ),
    ),
    HostSetting(
        "ip_version",
        "IP version that trials send; frames of IPv6 have 20 bytes more of header",
        "",
        "",
        "4, 6",
        ("4", "6").__contains__,
        places=(),  # guests always have addresses of both versions
        refuses=lambda plane: (
            f"Docker's network on {plane.name} has IPv4 alone" if plane.container_network else ""
        ),
    ),
    HostSetting(
        "mtu",
        "largest packet [bytes] of guests, host ends, switch and NIC",
        rf"{_LINK} | sed 's/.* mtu \([0-9]*\) .*/\1/'",
        'ip link set "$1" mtu "$2"',
        "1280 to 9000",
        _between(1280, 9000),  # IPv6 needs 1280
        ("uplink", "port", "guest"),
        refuses=_mtu_refusal,
    ),
    _offload("tso", "tcp-segmentation-offload", "tso"),
    _offload("gso", "generic-segmentation-offload", "gso"),
    _offload("gro", "generic-receive-offload", "gro"),
    _offload("tx-checksum", "tx-checksumming", "tx"),
    _offload("rx-checksum", "rx-checksumming", "rx"),
    HostSetting(
        "qdisc",
        "queueing discipline by which the main guests send; load trials bypass it",
        f"{_QDISC} || echo {DEFAULT}",  # its kind alone
        f'if [ "$2" != {DEFAULT} ]; then tc qdisc replace dev "$1" root $2\n'
        f'elif {_QDISC} >/dev/null; then tc qdisc delete dev "$1" root; fi',
        "words of tc, such as `tbf rate 1gbit burst 64kb latency 10ms`",
        lambda level: level.split(" ", 1)[0].isidentifier(),
        ("guest",),
        ("tc",),
        verified=False,  # tc itself says what the kernel does not take
    ),
    HostSetting(
        "rps",  # the hosts' own interfaces are steered in load trials already (`hosts.steering`)
        "receive work of the main guests' interfaces spread over all CPUs",
        f'{_RPS} mask=$(cat "$file"); case $mask in *[1-9a-f]*) echo on;; *) echo off;; esac\' '
        'sh "$1"',
        f'{_RPS} echo "$2" >"$file"\' sh "$1" '
        f"$([ $2 = on ] && echo {cpu_mask(range(os.cpu_count() or 1))} || echo 0)",
        places=("guest",),
    ),
    HostSetting(
        "tx_queue_length",  # a veth pair has no queue, unless `qdisc` gives it one
        "transmit queue [frames] of the main guests' interfaces and of their host ends",
        rf"{_LINK} | sed -n 's/.* qlen \([0-9]*\).*/\1/p' | grep . || echo 0",
        'ip link set "$1" txqueuelen "$2"',
        "1 to 100000",
        _between(1, 100_000),
    ),
    HostSetting(
        "xdp_generic",
        "an XDP program in generic mode that passes frames, at the guests' host ends",
        'link=$(ip link show dev "$1"); case $link in *xdp*) echo on;; *) echo off;; esac',
        'if [ "$2" = on ]; then ip link set "$1" xdpgeneric object "$3" section xdp\n'
        'else ip link set "$1" xdpgeneric off; fi',
        places=("port",),
        file=str(files("planewise.testbed") / "bpf" / "pass.bpf.o"),
        refuses=lambda plane: (
            ""
            if plane.name in ("veth", "routed", "bridge")
            else f"{plane.name} has no veth end on the host"
        ),
    ),
)

SETTINGS: Mapping[str, HostSetting] = MappingProxyType({setting.name: setting for setting in _ALL})
"""All settings, by name."""


def parsed(level: str) -> tuple[tuple[HostSetting, str], ...]:
    """The settings that a level of the factor `setting` changes, each with its own level. Pure.

    Raises:
        BadInputError: there is no such setting, or it has no such level.
    """
    if level in ("", DEFAULT):
        return ()
    pairs = []
    for part in level.split(" + "):
        name, _, value = part.partition("=")
        setting = SETTINGS.get(name)
        if setting is None:
            close = get_close_matches(name, SETTINGS, n=1)
            hint = f"did you mean {close[0]}? " if close else ""
            raise BadInputError(
                f"there is no setting called {name!r}",
                remedy=f"{hint}settings: {', '.join(SETTINGS)}",
            )
        if not setting.accepts(value):
            raise BadInputError(
                f"{name} has no level {value!r}", remedy=f"its levels: {setting.levels}"
            )
        pairs.append((setting, value))
    return tuple(pairs)


def refusal(level: str, plane: str, kind: GuestKind) -> str:
    """Why a level does not exist for a plane and kind of guest; empty where it does. Pure."""
    reasons = (setting.refusal(plane, kind) for setting, _ in parsed(level))
    return next(filter(None, reasons), "")


def programs_of(level: str) -> tuple[str, ...]:
    """The programs that a host needs for a level. Pure."""
    return tuple(program for setting, _ in parsed(level) for program in setting.programs)


def ip_version(level: str) -> IpVersion | None:
    """The IP version that trials send at a level; None: the usual one. Pure."""
    value = {setting.name: value for setting, value in parsed(level)}.get("ip_version")
    return None if value is None else 6 if value == "6" else 4


@contextmanager
def applied(level: str, arrangement: Arrangement) -> Iterator[None]:
    """Sets a level on a built testbed, and restores what was there.

    After a kill `planewise clean` removes interfaces with their namespaces, and restores a server's
    NIC and sysctls from the ledger.

    Raises:
        PlanewiseError: the kernel refuses a level; what was changed is restored.
    """
    with ExitStack() as restored:
        for setting, value in parsed(level):
            # All are read before any is written: a child's MTU follows its parent's.
            before = [(spot, setting.read(spot)) for spot in setting.spots(arrangement)]
            restored.callback(_write_all, setting, before)
            for spot, _ in before:
                setting.change(spot, value)
        yield


def _write_all(setting: HostSetting, levels: list[tuple[Spot, str]]) -> None:
    for spot, level in levels:
        setting.write(spot, level)
