"""What disturbs a host costs no other guest its VF, and none its reachability for long."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from .stage import BESIDE, HOST, MANAGED, PEER, Stage

BACK_S = 5.0
"""By then every guest is reached as before; an untouched one too, or the machine is too busy to
tell."""


def disturbed(
    stage: Stage,
    said: list[str],
    what: str,
    do: Callable[[], None],
    *,
    untouched: str = BESIDE,
    moved: Collection[str] = (),
) -> None:
    """Does something while the other host probes guests; of these only `moved` may lose VFs."""
    before, life = stage.holdings(), stage.life()
    streams = stage.probed(what, do, (*MANAGED, untouched), said)
    stage.settle()
    assert stage.life() == life, f"the daemon was started anew, or panicked\n{stage.log()}"
    after = stage.holdings()
    evicted = [one for one in before if one not in moved and after[one] != before[one]]
    assert evicted == [], stage.log()
    late = [str(stream) for stream in streams if stream.silence_s > BACK_S]
    assert late == [], stage.log()
    stage.assert_whole(f"after {what}")


FORGED_S = 20

BEYOND = "198.19.0.0/24"
"""To there the other host is the host's gateway."""

FORGE = """
peer=$(ip neighbour show PEER dev pwbr | grep -o '..:..:..:..:..:..')
nsenter -t PID -n python3 - $peer $(cat /sys/class/net/pwbr/address) <<'EOF' &
import socket, sys, time
source, target = (bytes.fromhex(address.replace(":", "")) for address in sys.argv[1:])
port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
port.bind(("eth0", 0))
begun, sent = time.monotonic(), 0
while (passed_s := time.monotonic() - begun) < SECONDS:
    for sent in range(sent + 1, int(1000 * passed_s) + 1):
        port.send(target + source + b"\\x88\\xb5" + bytes(46))
    time.sleep(0.01)
print(sent)
EOF
learned=0 asked=0
while kill -0 $! 2>/dev/null; do
    learned=$((learned + $(bridge fdb show br pwbr | grep -c "^$peer dev veth.* master" || :)))
    asked=$((asked + $(bridge fdb show dev pf0 | grep -c "^$peer .*self" || :)))
    sleep 0.5
done
wait $!
echo $learned $asked
"""
"""1000 frames a second of a container, with the address of a station of the wire.

Prints how many were sent, in how many looks the bridge had the address behind the container's port,
and in how many pf0 asked for it."""


def test_a_container_that_forges_the_gateways_address_cuts_no_guest_on_a_vf_off_from_it(
    stage: Stage, said: list[str]
) -> None:
    stage.settle()
    stage.shell(f"ip route add {BEYOND} via {PEER} dev pwbr; ping -q -n -c 1 -w 30 {PEER}")
    script = FORGE.replace("PEER", PEER).replace("PID", stage.pid(BESIDE))
    looks: list[int] = []

    def forge() -> None:
        looks.extend(map(int, stage.shell(script.replace("SECONDS", str(FORGED_S))).split()))

    # The bridge itself follows the forger, for all that are on it: only another NIC is untouched.
    what = f"the gateway's address forged at 1 kpps for {FORGED_S} s"
    disturbed(stage, said, what, forge, untouched=HOST)
    stage.shell(f"ip route delete {BEYOND}")
    sent, learned, asked = looks
    assert learned > 0, "the bridge never had the address behind the forger's port"
    assert asked == 0, "pf0 asks for the gateway's frames"
    said.append(f"{sent} forged frames: in {learned} looks the bridge believed them, pf0 in none")


CUT = """
if ip link set pf0 vf INDEX state disable 2>/dev/null; then
    echo 'by its PF'
else
    nsenter -t PID -n ip link set pw-vf down
    echo "in its guest: the PF's driver sets no link state for each VF"
fi
while grep -q 'Active Slave: pw-vf' /proc/PID/net/bonding/eth0; do sleep 0.1; done
"""
"""One VF's link is lost; prints how. Its guest's bond goes to the other member by itself."""


def test_a_guest_whose_vf_loses_its_link_is_soon_reached_and_on_a_vf_again(
    stage: Stage, said: list[str]
) -> None:
    stage.settle()
    index = str(stage.holdings()["web"][0]).removeprefix("pf0/")
    how = ""

    def cut() -> None:
        nonlocal how
        begun = time.monotonic()
        how = stage.shell(CUT.replace("INDEX", index).replace("PID", stage.pid("web"))).strip()
        stage.settle()
        said.append(f"a link lost {how}: on a VF again {time.monotonic() - begun:.1f} s later")

    disturbed(stage, said, "link loss on web's VF", cut, moved=("web",))
    if how == "by its PF":
        stage.shell(f"ip link set pf0 vf {index} state auto")
