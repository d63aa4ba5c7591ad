"""What the kernel refuses becomes one sentence with a way out."""

from __future__ import annotations

import errno

import pytest

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.apply import explain
from planewise.testbed.hosts import netns
from planewise.testbed.plan import (
    AddIpvlan,
    AddMacvlan,
    AddNamespace,
    SetAddress,
    SetMaster,
    SetSysctl,
    SetUp,
    Step,
)

UP = SetUp("pw-0badcafe-s", "wire0")
IPVLAN = AddIpvlan("pw-0badcafe-s", "wire0", "pw-0badcafe-sm0", "eth0")
MACVLAN = AddMacvlan("pw-0badcafe-s", "wire0", "pw-0badcafe-sm0", "eth0", "02:70:77:00:00:00")


@pytest.mark.parametrize(
    ("step", "code", "kind", "sentence", "remedy"),
    [
        (UP, errno.EPERM, UnsupportedError, "no privilege", "root"),
        (IPVLAN, errno.EOPNOTSUPP, UnsupportedError, "this kernel has no ipvlan", "CONFIG_IPVLAN"),
        (MACVLAN, errno.EOPNOTSUPP, UnsupportedError, "has no macvlan", "modprobe macvlan"),
        (MACVLAN, errno.EBUSY, PlanewiseError, "held by another plane", "bridge and a macvlan"),
        (MACVLAN, errno.EEXIST, PlanewiseError, "taken already", "planewise clean"),
        (UP, errno.ENODEV, PlanewiseError, "vanished", "start again"),
        (
            SetSysctl("n", "net/ipv6/conf/default/accept_ra", "0"),
            errno.ENOENT,
            UnsupportedError,
            "no setting net/ipv6",
            "ipv6.disable",
        ),
        (SetSysctl("n", "net/ipv4/ip_forward", "1"), errno.EROFS, UnsupportedError, "only be read",
         "--privileged"),
        (SetMaster("n", "a", "br0"), errno.EINVAL, PlanewiseError, "Invalid argument", ""),
        (SetAddress("n", "a", "198.18.0.1/15"), errno.EEXIST, PlanewiseError, "taken", "clean"),
    ],
)  # fmt: skip
def test_a_refused_step_is_explained(
    step: Step, code: int, kind: type[PlanewiseError], sentence: str, remedy: str
) -> None:
    error = explain(step, code, "Invalid argument")
    assert type(error) is kind
    assert sentence in error.what
    assert remedy in error.remedy


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (errno.EPERM, UnsupportedError, "root"),
        (errno.ENOSPC, PlanewiseError, "max_net_namespaces"),
        (errno.EINVAL, UnsupportedError, "CONFIG_NET_NS"),
        (errno.EIO, PlanewiseError, ""),
    ],
)
def test_a_namespace_that_cannot_be_made_is_explained(
    code: int, kind: type[PlanewiseError], remedy: str
) -> None:
    error = netns.explain(OSError(code, "so the kernel says"))
    assert type(error) is kind
    assert "so the kernel says" in error.what
    assert remedy in error.remedy


def test_a_namespace_prints_its_loopback_too() -> None:
    assert str(AddNamespace("pw-0badcafe-s")).endswith("link set lo up")
