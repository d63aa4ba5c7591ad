"""What the kernel refuses becomes one sentence with a way out."""

from __future__ import annotations

import errno

import pytest

from planewise.errors import PlanewiseError, UnsupportedError
from planewise.testbed.hosts.host import LocalHost
from planewise.testbed.plan import (
    Step,
    ip,
    new_namespace,
    set_address,
    set_master,
    set_sysctl,
    set_up,
)
from planewise.testbed.script import explain, perform

UP = set_up("pw-0badcafe-s", "wire0")
IPVLAN = ip(
    "pw-0badcafe-s",
    "link add link wire0 name eth0 netns pw-0badcafe-sm0 type ipvlan mode l2",
    other="pw-0badcafe-sm0",
    feature="ipvlan",
)
NAMESPACE, *_ = new_namespace("pw-0badcafe-s")
MACVLAN = ip(
    "pw-0badcafe-s",
    "link add link wire0 name eth0 netns pw-0badcafe-sm0 type macvlan mode bridge",
    other="pw-0badcafe-sm0",
    feature="macvlan",
)


@pytest.mark.parametrize(
    ("step", "code", "kind", "sentence", "remedy"),
    [
        (UP, errno.EPERM, UnsupportedError, "no privilege", "root"),
        (IPVLAN, errno.EOPNOTSUPP, UnsupportedError, "this kernel has no ipvlan", "CONFIG_IPVLAN"),
        (MACVLAN, errno.EOPNOTSUPP, UnsupportedError, "has no macvlan", "modprobe macvlan"),
        (MACVLAN, errno.EBUSY, PlanewiseError, "another plane holds", "bridge and a macvlan"),
        (MACVLAN, errno.EEXIST, PlanewiseError, "taken already", "planewise clean"),
        (UP, errno.ENODEV, PlanewiseError, "vanished", "start again"),
        (
            set_sysctl("n", "net/ipv6/conf/default/accept_ra", "0"),
            errno.ENOENT,
            UnsupportedError,
            "no setting net/ipv6",
            "ipv6.disable",
        ),
        (set_sysctl("n", "net/ipv4/ip_forward", "1"), errno.EROFS, UnsupportedError, "only be read",
         "--privileged"),
        (set_master("n", "a", "br0"), errno.EINVAL, PlanewiseError, "Invalid argument", ""),
        (set_address("n", "a", "198.18.0.1/15"), errno.EEXIST, PlanewiseError, "taken", "clean"),
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
    error = explain(NAMESPACE, code, "so the kernel says")
    assert type(error) is kind
    assert "ip netns add pw-0badcafe-s" in error.what
    assert remedy in error.remedy


def test_a_missing_program_is_named_with_the_package_that_has_it() -> None:
    step = Step("", "shell", "no-such-program --now", package="no-such-package")
    host = LocalHost("sender")
    try:
        with pytest.raises(UnsupportedError, match=r"`no-such-program` on sender: apt-get install"):
            perform([step], host)
    finally:
        host.close()
