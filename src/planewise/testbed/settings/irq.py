"""Setting `irq`: the CPUs that serve the interrupts of the main guests' virtual functions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from planewise.testbed.hosts.steering import OWN_SYS
from planewise.testbed.model import HOSTS, GuestKind
from planewise.testbed.planes import plane
from planewise.testbed.setting import Arrangement
from planewise.testbed.settings.host_setting import HostSetting, Spot

# By the function's own list: names in /proc/interrupts differ from driver to driver.
_FIND = f"""
pci=$(unshare --mount sh -ec '{OWN_SYS} readlink -f "/sys/class/net/$1/device"' sh "$1")
[ -d "$pci/msi_irqs" ] || {{ echo "it has no interrupts of its own" >&2; exit 1; }}
"""
# A file comes with the first use of its interrupt.
_EACH = 'for irq in $(ls -v "$pci/msi_irqs"); do file=/proc/irq/$irq/smp_affinity;'
_READ = f"echo masks $({_EACH} cat $file 2>/dev/null || cat /proc/irq/default_smp_affinity; done)"
_WRITE = (  # `$@`: a list of CPUs for all, or masks, one for each
    f"list=_list; [ $1 != masks ] || {{ list=; shift; }}; {_EACH} file=$file$list; "
    '[ ! -e $file ] || [ "$(cat $file)" = $1 ] || echo $1 2>/dev/null >$file || { '
    'echo "there is no such CPU, or the driver places its interrupts itself" >&2; exit 1; }; '
    "[ $# -lt 2 ] || shift; done"
)
_NOTE = f"""
for pci in $(readlink -f "/sys/class/net/$1/device" "/sys/class/net/$1/device/virtfn"*); do
    [ ! -d $pci/msi_irqs ] ||
        echo "[ ! -d $pci/msi_irqs ] || {{ pci=$pci; set -- $({_READ}); "'{_WRITE}; }}'
done
"""


class _OfVfs(HostSetting):
    def refusal(self, name: str, kind: GuestKind) -> str:
        reason = "" if plane(name).vfs else f"the guest's interface on {name} is no VF"
        if plane(name).passed_through:
            reason = "the guest's own kernel serves the interrupts of its VF"
        return reason and f"{self.name}: {reason}"

    def spots(self, arrangement: Arrangement) -> Iterator[Spot]:
        path = plane(arrangement.setting.plane)
        for role in HOSTS:
            point = path.nic_point(arrangement.sites[role], arrangement.mains[role])
            yield Spot(arrangement.hosts[role], *point)


SETTING = _OfVfs(
    "irq",
    "CPUs that serve the interrupts of the main guests' VFs (/proc/irq/N/smp_affinity_list)",
    _FIND + _READ,
    f"{_FIND} set -- $2; {_WRITE}",
    "CPUs, such as `1` or `0,2-3`",
    lambda level: re.fullmatch(r"\d+(-\d+)?(,\d+(-\d+)?)*", level) is not None,
    notes=_NOTE,
    verified=False,  # the kernel refuses what it does not take
)
