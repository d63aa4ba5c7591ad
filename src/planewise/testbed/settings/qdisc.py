"""Setting `qdisc`: the queueing discipline by which the main guests send."""

from __future__ import annotations

from planewise.testbed.settings.host_setting import DEFAULT, HostSetting

_QDISC = (
    r"""tc qdisc show dev "$1" | sed -n 's/^qdisc \([^ ]*\) [^ ]* root.*/\1/p' | grep -vx noqueue"""
)

SETTING = HostSetting(
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
)
