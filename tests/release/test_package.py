"""The Debian package's life on a clean host with systemd: from its installation to its purge."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from planewise.testbed.vfs.alloc_client import Client
from tests.documents import ROOT
from tests.unit.test_operations_kit import dashboard_expressions

from .conftest import LIMIT_S, Clean, artifact

PROMETHEUS = shutil.which("prometheus")
SOCKET = "/run/planewise/planewised.sock"

QUIET = "planewise_(moves_total|move_duration|errors_total)"
"""Metrics of the dashboard that have no series before something moved or failed."""

FILES = r"""
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /tmp -o -path /root \
    -o -path /var/log -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/cache \) -prune \
    -o -printf '%p %y %m %U:%G %l\n' | LC_ALL=C sort
find /run -path /run/lab -prune -o -path '/run/systemd/*' -prune -o -path '/run/udev/*' -prune \
    -o -type f -print -o -type s -print | LC_ALL=C sort
sort /etc/passwd /etc/group
find /etc -type f ! -name '*-' -exec md5sum {} + | LC_ALL=C sort
dpkg-query -W
"""
"""Every file of the host but apt's own notes and logs, its accounts, the content of /etc."""

CONFIGURE = """
ip link add br-pf up type bridge && ip link set pf0 up master br-pf
for name in web batch; do
    ip netns add $name
    ip link add p-$name up master br-pf type veth peer name eth0 netns $name
    ip -n $name link set eth0 up
done
sed -i 's/^pfs = \\[\\]/pfs = ["pf0"]/; s/^level = .*/level = "debug"/' \
    /etc/planewise/planewised.toml
cat >>/etc/planewise/planewised.toml <<'END'
[containers.namespaces]
web = {}
batch = {}
[tcp]
listen = "127.0.0.1:8443"
certificate = "/etc/planewise/certificate.pem"
key = "/etc/planewise/key.pem"
tokens = "/etc/planewise/tokens"
END
chmod 600 /etc/planewise/key.pem
install -m 600 /dev/null /etc/planewise/tokens
echo "prometheus TOKEN" >>/etc/planewise/tokens
"""

REFUSED = """
cp -p /etc/planewise/planewised.toml /root
echo 'nonsense = 1' >>/etc/planewise/planewised.toml
systemctl start planewised || :
while [ $(systemctl is-active planewised) != failed ]; do sleep 1; done
systemctl show -p NRestarts --value planewised
journalctl -u planewised -o cat
cp -p /root/planewised.toml /etc/planewise
rm /root/planewised.toml
systemctl reset-failed planewised
"""
"""A configuration with a mistake: what the unit does about it."""

BACKUP = """
systemctl stop planewised
tar -C / -czf planewised-backup.tar.gz etc/planewise var/lib/planewise
rm -rf /etc/planewise /var/lib/planewise
tar -C / -xzf planewised-backup.tar.gz
systemctl start planewised
"""
"""As the guide has state backed up and restored."""


def shell(clean: Clean, script: str, *, check: bool = True) -> str:
    done = clean.a.run(["sh", "-ec" if check else "-c", script], timeout_s=LIMIT_S)
    assert not check or done.exit_code == 0, (script, done.stdout[-1500:], done.stderr[-1500:])
    return done.stdout


def until(what: str, holds: Callable[[], object]) -> None:
    begun = time.monotonic()
    while not holds():
        assert time.monotonic() - begun < LIMIT_S, f"in vain: {what}"
        time.sleep(1)


def earlier(package: Path, folder: Path) -> Path:
    """An older version: the package that PLANEWISE_PREVIOUS names, else the same, as 0.0.9."""
    package = Path(os.environ.get("PLANEWISE_PREVIOUS", str(package)))
    tree = folder / "tree"
    subprocess.run(["dpkg-deb", "-R", package, tree], check=True)
    control = tree / "DEBIAN" / "control"
    lines = control.read_text().splitlines(keepends=True)
    control.write_text(
        "".join("Version: 0.0.9\n" if line.startswith("Version:") else line for line in lines)
    )
    old = folder / "planewised_0.0.9_amd64.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "-b", tree, old], check=True)
    return old


@contextmanager
def scraping(clean: Clean, folder: Path, token: str) -> Iterator[str]:
    """A Prometheus of this machine that scrapes the host through ssh; gives its own address."""
    assert PROMETHEUS is not None
    (folder / "token").write_text(token)
    (folder / "prometheus.yml").write_text(f"""
global: {{ scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s }}
rule_files: ["{ROOT}/packaging/prometheus/planewise.rules.yaml"]
scrape_configs:
  - job_name: planewise
    scheme: https
    authorization: {{ credentials_file: "{folder}/token" }}
    tls_config: {{ ca_file: "{folder}/certificate.pem", server_name: planewise }}
    static_configs: [{{ targets: ["127.0.0.1:18443"] }}]
""")
    tunnel = ["ssh", "-F", str(clean.ssh_config), "-N", "-L", "127.0.0.1:18443:127.0.0.1:8443", "a"]
    server = [PROMETHEUS, f"--config.file={folder}/prometheus.yml"]
    server += [f"--storage.tsdb.path={folder}/tsdb", "--web.listen-address=127.0.0.1:19090"]
    with (folder / "log").open("w") as log:
        started = [
            subprocess.Popen(argv, stdout=log, stderr=log, start_new_session=True)
            for argv in (tunnel, server)
        ]
        try:
            yield "http://127.0.0.1:19090"
        finally:
            for process in started:
                process.send_signal(signal.SIGTERM)
                process.wait(60)


def asked(address: str, query: str) -> list[float]:
    """The values that Prometheus has of an expression now."""
    url = f"{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            result = json.load(answer)["data"]["result"]
    except OSError:
        return []
    return [float(series["value"][1]) for series in result]


def test_the_package_is_installed_used_upgraded_removed_and_purged_and_leaves_nothing(
    clean: Clean, artifacts: Path, tmp_path: Path
) -> None:
    package = artifact(artifacts, "planewised_*_amd64.deb")
    before = shell(clean, FILES)
    for file in (package, earlier(package, tmp_path)):
        clean.a.put(file, f"/tmp/{file.name}")

    shell(clean, "apt-get install -y -qq /tmp/planewised_0.0.9_amd64.deb")
    state = "systemctl is-active planewised; systemctl is-enabled planewised"
    assert shell(clean, state, check=False).split() == ["inactive", "disabled"]
    for page in ("planewised.8", "pw-probe.1"):
        assert shell(clean, f"ls /usr/share/man/man?/{page.split('.')[0]}*", check=False), page
    restarts, _, told = shell(clean, REFUSED).partition("\n")
    assert restarts == "0"
    assert "unknown field `nonsense`" in told

    token = secrets.token_hex(24)
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", "/CN=planewise"),
            *("-addext", "subjectAltName=DNS:planewise"),
            *("-keyout", tmp_path / "key.pem", "-out", tmp_path / "certificate.pem"),
        ],
        check=True,
        capture_output=True,
    )
    for name in ("key.pem", "certificate.pem"):
        clean.a.put(tmp_path / name, f"/etc/planewise/{name}")
    shell(clean, CONFIGURE.replace("TOKEN", token))
    shell(clean, "systemctl enable --now planewised")
    until("the socket", lambda: shell(clean, f"ls {SOCKET}", check=False))

    client = Client(Path(clean.a.socket(SOCKET)))
    until("a look at the guests", lambda: len(client.status().guests) == 2)
    client.order("PUT", "/guests/batch/stance", {"stance": "pinned"})
    client.order("PUT", "/drain", {"on": True})
    mode = shell(clean, f"stat -c '%a %G' {SOCKET}").strip()
    assert mode == "660 planewise"

    if PROMETHEUS is not None:
        with scraping(clean, tmp_path, token) as address:
            until("a scrape", lambda: asked(address, 'up{job="planewise"}') == [1.0])
            assert asked(address, "planewise_guests") == [2.0]
            assert asked(address, "planewise_draining") == [1.0]
            assert asked(address, 'ALERTS{alertname="PlanewiseDown"}') == []
            panels = [one for one in dashboard_expressions() if not re.search(QUIET, one)]
            until("data in panels", lambda: all(asked(address, one) for one in panels))
            shell(clean, "systemctl stop planewised")
            alert = 'ALERTS{alertname="PlanewiseDown",alertstate="pending"}'
            until("the alert", lambda: asked(address, alert) == [1.0])
            shell(clean, "systemctl start planewised")
            until("a scrape again", lambda: asked(address, 'up{job="planewise"}') == [1.0])

    shell(clean, BACKUP)
    until("the socket", lambda: shell(clean, f"ls {SOCKET}", check=False))
    pid = shell(clean, "systemctl show -p MainPID --value planewised")
    shell(clean, f"apt-get install -y -qq /tmp/{package.name}")
    assert shell(clean, "systemctl show -p MainPID --value planewised") != pid
    until("the socket", lambda: shell(clean, f"ls {SOCKET}", check=False))
    until("a look at the guests", lambda: len(client.status().guests) == 2)
    assert client.status().draining
    client.order("PUT", "/drain", {"on": False})
    stances = {guest.id: guest.stance for guest in client.status().guests}
    assert stances == {"web": "free", "batch": "pinned"}
    assert token in shell(clean, "cat /etc/planewise/tokens")
    assert "warning" not in shell(clean, "journalctl -q -p warning -u planewised -o cat").lower()

    shell(clean, "apt-get remove -y -qq planewised")
    left = shell(clean, "systemctl is-active planewised; ls /etc/planewise /var/lib", check=False)
    assert left.split()[0] == "inactive"
    assert {"planewised.toml", "planewise"} <= set(left.split())
    shell(clean, "apt-get purge -y -qq planewised; rm /tmp/*.deb")
    after = shell(clean, FILES)
    difference = set(before.splitlines()) ^ set(after.splitlines())
    assert not difference, sorted(difference)[:20]


def test_this_machine_has_a_prometheus_to_scrape_with() -> None:
    if PROMETHEUS is None:
        pytest.skip("no prometheus on this machine: the package was not scraped")
    assert os.access(PROMETHEUS, os.X_OK)
