"""The initramfs of a lab's hosts. Builds archives; starts nothing.

Two archives make a host's initramfs: `base` (busybox, modules, the first script; one a kernel) and
`personal` (name, keys, ssh configuration; one a host). The first script lays a writable layer over
the outer machine's root, mounted read-only through 9p, and changes into it: the host has every tool
of the outer machine. Another root is mounted the same way; its systemd is the first process, and
the lab adds two units below /run.
"""

from __future__ import annotations

import hashlib
import textwrap
from pathlib import Path

from planewise.boot import cpio
from planewise.boot.initramfs import busybox_entries, module_entries
from planewise.boot.kernel import HOST_MODULES
from planewise.boot.model import Kernel
from planewise.lab.model import MANAGEMENT_HOST, MANAGEMENT_NETWORK, HostId

READY = "pw-lab: ready"
"""The line on the serial console that ends the boot; sshd starts right after it."""

FAILED = "pw-lab: failed: "
"""Prefix of a line that says why a host cannot boot."""

OUTER_TAG = "outer"
CACHE_TAG = "cache"
"""Mount tags of the machine's root and of the cache."""

_INIT = """\
#!/bin/busybox sh
# First process of a host: builds its root, then becomes its init.
b=/bin/busybox
fail() { echo "FAILED_MARK$*"; $b sync; $b poweroff -f; }
$b mkdir -p /proc /sys /dev /outer /cache /layer /root
$b mount -t proc proc /proc && $b mount -t sysfs sys /sys && $b mount -t devtmpfs dev /dev
while read -r module; do
    $b insmod "/modules/$module" || fail "the kernel module $module could not be loaded"
done </modules/order
nine=trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro
$b mount -t 9p -o $nine OUTER_TAG /outer || fail "the outer machine's root could not be mounted"
$b mount -t 9p -o $nine CACHE_TAG /cache || fail "the lab's cache could not be mounted"
$b mount -t tmpfs -o mode=755 layer /layer && $b mkdir /layer/upper /layer/work
lower=/outer
for layer in $($b cat /lab/layers); do lower=/cache/$layer:$lower; done
layers="lowerdir=$lower,upperdir=/layer/upper,workdir=/layer/work,xino=off"
$b mount -t overlay -o "$layers" root /root ||
    fail "the writable layer could not be laid over the outer machine's root"
for directory in proc sys dev run tmp; do $b mkdir -p /root/$directory; done
$b mount -t tmpfs -o mode=755 run /root/run
$b cp -a /lab /root/run/lab
$b cp -a $b /root/run/lab/busybox
init=/run/lab/init
if [ -d /lab/units ]; then
    init=/usr/lib/systemd/systemd
    $b mkdir -p /root/run/systemd && $b cp -a /lab/units /root/run/systemd/system
    [ -s /root/etc/machine-id ] || $b tr -d - </proc/sys/kernel/random/uuid >/root/etc/machine-id
else
    $b ln -s busybox /root/run/lab/init
    $b rm -f /root/etc/inittab && $b cp /lab/etc/inittab /root/etc/inittab
fi
for directory in proc sys dev; do $b mount -o move /$directory /root/$directory; done
exec $b switch_root /root $init
"""

_RC = """\
#!/run/lab/busybox sh
# Runs once, before any login.
b=/run/lab/busybox
fail() { echo "FAILED_MARK$*"; $b sync; $b poweroff -f; }
$b hostname HOST
"""

_RC_WITHOUT_SYSTEMD = """\
$b mkdir -p /dev/pts /dev/shm /run/sshd /run/netns /run/lock /run/home
# No udev: device nodes that load their module when they are opened must exist.
while read -r module name number; do
    case $module in tun | vhost_net | vfio | fuse) ;; *) continue ;; esac
    [ ! -e /dev/$name ] || continue
    case $name in */*) $b mkdir -p /dev/${name%/*} ;; esac
    number=${number#c}
    $b mknod /dev/$name c ${number%:*} ${number#*:}
done </lib/modules/$($b uname -r)/modules.devname
$b mount -t devpts -o gid=5,mode=620,ptmxmode=666 devpts /dev/pts
$b mount -t tmpfs -o mode=1777 shm /dev/shm
$b mount -t cgroup2 cgroup /sys/fs/cgroup
# The state of the outer machine's daemons is hidden from the hosts.
for directory in /var/lib/docker /var/lib/containerd /var/lib/libvirt /var/log /mnt; do
    $b mkdir -p $directory && $b mount -t tmpfs -o mode=755 none $directory
done
for file in passwd shadow group hosts resolv.conf; do
    $b rm -f /etc/$file && $b cp /run/lab/etc/$file /etc/$file
done
$b chmod 600 /etc/shadow
$b ip link set lo up
"""

_RC_WITH_SYSTEMD = """\
# An overlay cannot be the upper directory of another.
for directory in /var/lib/docker /var/lib/containerd; do
    [ ! -d $directory ] || $b mount -t tmpfs -o mode=711 none $directory
done
"""

_RC_NETWORK = """\
pf=0
for device in /sys/bus/pci/drivers/igb/0000:*/net/*; do
    $b ip link set "${device##*/}" name pf$pf && $b ip link set pf$pf up
    pf=$((pf + 1))
done
for device in /sys/bus/virtio/drivers/virtio_net/virtio*/net/*; do
    $b ip link set "${device##*/}" name mgmt0
    $b ip addr add MANAGEMENT_ADDRESS dev mgmt0
    $b ip link set mgmt0 up
done
$b ip link show mgmt0 >/dev/null || fail "the interface for ssh is not there"
[ -x /usr/sbin/sshd ] || fail "there is no /usr/sbin/sshd"
echo "READY_MARK"
"""

_INITTAB = """\
::sysinit:/run/lab/rc
::respawn:/usr/sbin/sshd -D -e -f /run/lab/sshd_config
"""

_UNITS = {
    "pw-lab.service": """\
[Unit]
Before=network-pre.target
Wants=network-pre.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/run/lab/rc
StandardOutput=file:/dev/console
""",
    "pw-lab-sshd.service": """\
[Unit]
Requires=pw-lab.service
After=pw-lab.service
[Service]
ExecStart=/usr/sbin/sshd -D -e -f /run/lab/sshd_config
RuntimeDirectory=sshd
Restart=always
""",
}
_MASKED = ("ssh.service", "ssh.socket", "serial-getty@ttyS0.service")
"""The distribution's sshd would take the port; a getty would restart for ever, as the console is a
file that nothing can be read from."""

_SSHD = """\
ListenAddress {address}
HostKey /run/lab/host_key
AuthorizedKeysFile /run/lab/authorized_keys
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowUsers root
StrictModes no
UsePAM no
UseDNS no
PidFile /run/sshd.pid
LogLevel FATAL
KexAlgorithms curve25519-sha256
Ciphers aes128-gcm@openssh.com,chacha20-poly1305@openssh.com
MaxSessions 256
MaxStartups 64
AcceptEnv LANG LC_* NO_COLOR PLANEWISE_*
SetEnv PATH={path}
Subsystem sftp internal-sftp
"""


def base_name(kernel: Kernel, busybox: Path) -> str:
    """File name of the base archive, which changes with its content."""
    parts = f"{_INIT}{HOST_MODULES}{kernel.modules}{busybox}{busybox.stat().st_mtime_ns}"
    return f"base-{kernel.version}-{hashlib.sha256(parts.encode()).hexdigest()[:12]}.initrd"


def base(kernel: Kernel, busybox: Path) -> bytes:
    """The archive that all hosts with this kernel share.

    Raises:
        PlanewiseError: a module or busybox cannot be read.
    """
    return cpio.archive(
        [
            *busybox_entries(busybox),
            cpio.file("init", _filled(_INIT).encode(), 0o755),
            *module_entries(kernel, HOST_MODULES),
        ]
    )


def personal(
    host: HostId,
    layers: tuple[str, ...],
    host_key: bytes,
    authorized_key: bytes,
    path: str,
    accounts: str,
    groups: str,
    *,
    systemd: bool = False,
) -> bytes:
    """The archive of one host.

    `path` is PATH of its commands; `accounts` and `groups` are the outer machine's /etc/passwd and
    /etc/group. With `systemd` the root has its own init and accounts.
    """
    address = MANAGEMENT_HOST
    rc = (
        _filled(_RC + (_RC_WITH_SYSTEMD if systemd else _RC_WITHOUT_SYSTEMD) + _RC_NETWORK)
        .replace("HOST", host)
        .replace("MANAGEMENT_ADDRESS", f"{address}/{MANAGEMENT_NETWORK.partition('/')[2]}")
    )
    hosts = f"127.0.0.1 localhost\n::1 localhost\n{address} {host}\n"
    return cpio.archive(
        [
            cpio.directory("lab", 0o700),
            cpio.directory("lab/etc", 0o700),
            cpio.file("lab/layers", "".join(f"{layer}\n" for layer in layers).encode()),
            cpio.file("lab/rc", rc.encode(), 0o700),
            cpio.file("lab/host_key", host_key, 0o600),
            cpio.file("lab/authorized_keys", authorized_key, 0o600),
            cpio.file("lab/sshd_config", _SSHD.format(address=address, path=path).encode()),
            cpio.file("lab/etc/inittab", _INITTAB.encode()),
            cpio.file("lab/etc/passwd", accounts_inside(accounts).encode()),
            cpio.file("lab/etc/group", groups.encode()),
            # No password opens any account; "!" would lock it for keys, too.
            cpio.file("lab/etc/shadow", b"root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n", 0o600),
            cpio.file("lab/etc/hosts", hosts.encode()),
            cpio.file("lab/etc/resolv.conf", b""),
            *(_unit_entries() if systemd else ()),
        ]
    )


def _unit_entries() -> list[cpio.Entry]:
    wants = "lab/units/multi-user.target.wants"
    return [
        cpio.directory("lab/units"),
        cpio.directory(wants),
        *(cpio.file(f"lab/units/{name}", text.encode()) for name, text in _UNITS.items()),
        *(cpio.link(f"{wants}/{name}", f"../{name}") for name in _UNITS),
        *(cpio.link(f"lab/units/{name}", "/dev/null") for name in _MASKED),
    ]


def accounts_inside(accounts: str) -> str:
    """The outer machine's /etc/passwd for a host: root gets its own home, and sshd is added."""
    users = [
        line
        for line in accounts.splitlines()
        if line.split(":")[0] not in ("root", "sshd") and line
    ]
    shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
    new = [f"root:x:0:0:root:/run/home:{shell}", "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin"]
    return "".join(f"{line}\n" for line in (*new, *users))


def _filled(script: str) -> str:
    return (
        textwrap.dedent(script)
        .replace("FAILED_MARK", FAILED)
        .replace("READY_MARK", READY)
        .replace("OUTER_TAG", OUTER_TAG)
        .replace("CACHE_TAG", CACHE_TAG)
    )
