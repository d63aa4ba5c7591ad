"""`planewised vf` on real igb and igbvf, vfio-pci and an IOMMU: those of a lab's hosts."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planewise.testbed.hosts.remote import LabHost
from planewise.testbed.vfs.nic import find_planewised
from tests.lengths import either

from .conftest import UpLab

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def host(up: UpLab) -> Iterator[LabHost]:
    """One host of the lab, with planewised at /tmp/planewised."""
    opened = LabHost("t", "a", name="sender")
    opened.put(Path(find_planewised()), "/tmp/planewised")
    yield opened
    opened.close()


def shell(host: LabHost, script: str, timeout_s: float = 120) -> str:
    return host.run(["sh", "-ec", script], timeout_s=timeout_s).check().stdout


def vf(host: LabHost, words: str) -> dict[str, Any]:
    done = host.run(["/tmp/planewised", "vf", *words.split(), "--json"], timeout_s=120).check()
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def carrier(guest: int) -> str:
    return f"ip -n guest{guest} link show eth0 | grep -q LOWER_UP"


def refused(host: LabHost, words: str) -> tuple[int, str]:
    done = host.run(["/tmp/planewised", "vf", *words.split()], timeout_s=120)
    assert done.exit_code != 0, done.stdout
    assert "panicked" not in done.stderr
    return done.exit_code, done.stderr


def pf(host: LabHost, name: str = "pf0") -> dict[str, Any]:
    """What is known of a PF, without what changes by itself."""
    (found,) = vf(host, f"list {name}")["pfs"]
    for netdev in (found["netdev"], *(vf["netdev"] for vf in found["vfs"])):
        for field in ("counters", "carrier", "index"):
            (netdev or {}).pop(field, None)
    return dict(found)


@pytest.fixture(scope="module")
def scenarios() -> Path:
    """The tests of crates/sriov as a static program."""
    built = subprocess.run(
        [
            *("scripts/static", "cargo", "test", "-q", "-p", "pw-sriov", "--test", "scenarios"),
            *("--no-run", "--message-format", "json"),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = [json.loads(line).get("executable") for line in built.splitlines()]
    (program,) = [path for path in found if path]
    return Path(program)


ONLY_MADE_UP = ("whatever_was", "a_record", "a_pf_that", "a_vf_that", "counters_that")
EVERY = " ".join(f"--skip {name}" for name in ONLY_MADE_UP)
BRIEFLY = "a_vf_whose_namespace_died a_vf_goes_to_vfio a_dry_run_changes"


@either("which least", (BRIEFLY, 3), (EVERY, 12))
def test_what_holds_on_a_made_up_kernel_holds_on_the_real_one(
    host: LabHost, scenarios: Path, which: str, least: int
) -> None:
    before = pf(host, "pf1")
    host.put(scenarios, "/tmp/scenarios")
    said = shell(
        host,
        f"PLANEWISE_TEST_PF=pf1 /tmp/scenarios --test-threads=1 {which} 2>&1 || echo FAILED",
        timeout_s=550,
    )
    assert "FAILED" not in said, said
    result = re.search(r"test result: ok\. (\d+) passed; 0 failed; 0 ignored", said)
    assert result, said
    assert int(result[1]) >= least, said
    assert pf(host, "pf1") == before


def test_vfs_in_two_namespaces_reach_each_other_and_count_only_where_a_driver_does(
    host: LabHost,
) -> None:
    before = pf(host)
    set_up = vf(host, "setup pf0 --count 3 --mac-base 02:70:77:00:00:10 --owner test")
    macs = [vf["config"]["mac"] for vf in set_up["pf"]["vfs"]]
    assert macs == [f"02:70:77:00:00:1{i}" for i in range(3)]
    for i in range(2):
        shell(host, f"ip netns add guest{i}")
        moved = vf(host, f"move pf0/{i} --to guest{i} --name eth0 --address 198.18.0.{i + 1}/24")[
            "vf"
        ]
        assert moved["netdev"]["netns"]["path"] == f"/run/netns/guest{i}"
    for i in range(2):  # igbvf looks every two seconds whether its link is up
        shell(host, f"timeout 20 sh -c 'until {carrier(i)}; do sleep 0.1; done'")
    ping = ["ping", "-n", "-c", "5", "-i", "0.2", "-W", "5", "198.18.0.2"]
    answer = host.run(ping, netns="guest0")
    assert " 0% packet loss" in answer.stdout, answer.stdout
    (found,) = vf(host, "list pf0")["pfs"]
    for one in found["vfs"]:
        assert one["counters"] == {
            "status": "unsupported",
            "reason": "the driver igb keeps no counters for VFs",
        }
    assert found["vfs"][0]["netdev"]["counters"]["tx_packets"] >= 5
    text = shell(host, "/tmp/planewised vf list pf0")
    assert text.count("counters unsupported") == 3
    code, said = refused(host, "setup pf0 --count 2 --owner test")
    assert code == 1
    assert "VF 0 is in use: its interface eth0 is in namespace /run/netns/guest0" in said
    # One guest ends with the VF inside, the other is restored from where it is.
    shell(host, "ip netns del guest0")
    vf(host, "restore")
    assert pf(host) == before
    shell(host, "ip netns del guest1")


def test_a_vf_inside_a_process_that_is_killed_is_found_and_brought_home(host: LabHost) -> None:
    vf(host, "setup pf0 --count 1")
    before = pf(host)
    with host.start(["unshare", "--net", "sleep", "600"]) as guest:
        inside = f"[ $(readlink /proc/{guest.pid}/ns/net) != $(readlink /proc/self/ns/net) ]"
        shell(host, f"for i in $(seq 100); do {inside} && exit; sleep 0.1; done; exit 1")
        moved = vf(host, f"move pf0/0 --to pid:{guest.pid} --name inner --owner test")["vf"]
        assert moved["used_by"].startswith("its interface inner is in namespace")
        code, said = refused(host, "bind pf0/0 vfio-pci --owner another")
        assert (code, "belongs to test" in said) == (1, True)
        guest.kill()
    vf(host, "release pf0/0")
    assert pf(host) == before
    vf(host, "restore")


KILLS = """
for wait in 0.1 0.5 1.2; do
    timeout -s KILL $wait /tmp/planewised vf setup pf0 --count 3 >/dev/null 2>&1 || true
    timeout -s KILL $wait /tmp/planewised vf move pf0/1 --to killed --name eth0 \
        >/dev/null 2>&1 || true
    timeout -s KILL $wait /tmp/planewised vf restore >/dev/null 2>&1 || true
    /tmp/planewised vf restore >/dev/null
    /tmp/planewised vf list pf0 | head -n 1
done
"""


def test_after_kills_at_any_time_restore_brings_back_what_was(host: LabHost) -> None:
    before = pf(host)
    shell(host, "ip netns add killed")
    said = shell(host, KILLS)
    assert said.count("pf0 (0000:01:00.0, igb): 0 of 7 VFs\n") == 3, said
    assert pf(host) == before
    shell(host, "ip netns del killed; ! ls /run/planewise/vf/*.json")


TWO = """
/tmp/planewised vf setup pf0 --count 2 --owner one >/tmp/one 2>&1 & one=$!
/tmp/planewised vf setup pf0 --count 3 --owner two >/tmp/two 2>&1 & two=$!
wait $one && echo done || true
wait $two && echo done || true
cat /tmp/one /tmp/two
"""


def test_of_two_callers_at_once_one_gets_the_pf_and_the_other_a_sentence(host: LabHost) -> None:
    before = pf(host)
    said = shell(host, TWO)
    assert said.count("done\n") == 1, said
    assert "pf0 belongs to" in said
    after = pf(host)
    assert (after["owner"], after["num_vfs"]) in (("one", 2), ("two", 3))
    vf(host, "restore")
    assert pf(host) == before


def test_what_cannot_be_is_said(host: LabHost) -> None:
    assert refused(host, "setup pf0 --count 8") == (
        2,
        "planewised: pf0 cannot have 8 VFs: at most 7\n"
        "  `planewised vf list` shows how many each PF can have\n",
    )
    code, said = refused(host, "setup mgmt0 --count 1")
    assert (code, said) == (
        2,
        "planewised: mgmt0 has no SR-IOV\n  these have it: pf0, pf1\n",
    )
    shell(host, "ip route add default dev pf0")
    code, said = refused(host, "setup pf0 --count 1")
    shell(host, "ip route del default dev pf0")
    assert code == 1
    assert "pf0 carries the default route, which would be cut" in said
    code, said = refused(host, "move pf0/0 --to container:none")
    assert (code, "Docker does not answer" in said) == (1, True)
    setup = ["/tmp/planewised", "vf", "setup", "pf0", "--count", "1"]
    done = host.run(["setpriv", "--reuid", "65534", "--clear-groups", *setup])
    assert done.exit_code == 1
    assert "can be changed by root alone" in done.stderr
    # VFs that another program made are recorded, replaced, and made again.
    shell(host, "echo 1 >/sys/class/net/pf0/device/sriov_numvfs")
    vf(host, "setup pf0 --count 2")
    vf(host, "restore")
    assert pf(host)["num_vfs"] == 1
    shell(host, "echo 0 >/sys/class/net/pf0/device/sriov_numvfs")
