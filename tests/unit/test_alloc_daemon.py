"""`planewised daemon` on a made-up host, and everything that `planewise alloc` does with it."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import ssl
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from planewise.commands.alloc import POLICIES
from planewise.errors import BadInputError, PlanewiseError
from planewise.live.gateway import Gateway
from planewise.testbed.vfs.alloc_client import Client
from planewise.testbed.vfs.nic import find_planewised
from tests.command import invoked
from tests.unit.live_page import look

PATIENCE_S = 120

CONFIG = """
socket = "{folder}/run/planewised.sock"
state_directory = "{folder}/state"
sample_s = 0.1
{more}
[alloc]
policy = "activity"
interval_s = 0.2
min_residency_s = 0.0
signal = {{ smoothing = {{ window = 0.5 }} }}
[containers]
docker = ""
[simulated]
vfs = 2
[simulated.guests]
busy = {{ constant = 50000.0 }}
calm = {{ constant = 500.0 }}
"<i>odd</i> name" = {{ constant = 5.0 }}
"""


class Daemon:
    """A daemon with three made-up guests and two VFs."""

    def __init__(self, folder: Path, more: str = "", limits: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.configuration = folder / "planewised.toml"
        self.configuration.write_text(CONFIG.format(folder=folder, more=more))
        self.socket = folder / "run" / "planewised.sock"
        self.client = Client(self.socket)
        self.log = folder / "log"
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                [*limits, find_planewised(), "daemon", "--config", str(self.configuration)],
                stderr=log,
            )

    def alloc(self, *arguments: str) -> str:
        """What `planewise alloc …` prints."""
        done = invoked("alloc", *arguments, "--socket", self.socket, raising=True)
        assert done.exit_code == 0
        return done.stdout

    def until(self, holds: Callable[[], bool]) -> None:
        """Waits until something that must come true has."""
        end = time.monotonic() + PATIENCE_S
        while True:
            assert self.process.poll() is None, self.log.read_text()
            try:
                if holds():
                    return
            except PlanewiseError:
                pass  # it is just starting
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.05)

    def holders(self) -> set[str]:
        """Who has a VF."""
        return {guest.id for guest in self.client.status().guests if guest.vf}

    def stop(self) -> None:
        """Ends it as systemd does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, self.log.read_text()


@contextmanager
def running(folder: Path, more: str = "", limits: tuple[str, ...] = ()) -> Iterator[Daemon]:
    daemon = Daemon(folder, more, limits)
    try:
        daemon.until(lambda: len(daemon.holders()) == 2)
        yield daemon
    finally:
        daemon.process.kill()
        daemon.process.wait()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with running(tmp_path_factory.mktemp("daemon"), '[log]\nformat = "json"') as daemon:
        yield daemon


def test_status_tells_guests_pools_and_moves(daemon: Daemon) -> None:
    daemon.alloc("policy", "activity")
    daemon.until(lambda: daemon.holders() == {"busy", "calm"})
    told = daemon.alloc("status")
    assert "policy activity" in told
    assert re.search(r"busy +simulated0/\d .* [\d.]+ kpps .* Mbit/s", told)
    assert re.search(r"<i>odd</i> name +paravirtual", told)
    assert "2 of 2 VFs held by 3 guests" in told
    parsed = json.loads(daemon.alloc("status", "--json"))
    assert [guest["id"] for guest in parsed["guests"]] == ["<i>odd</i> name", "busy", "calm"]
    move = parsed["moves"][-1]
    assert move["ending"]["how"] == "completed"
    assert len(move["steps"]) >= 5


def test_files_are_opened_beyond_the_soft_limit_since_each_guest_takes_two(tmp_path: Path) -> None:
    with ExitStack() as stack:
        daemon = stack.enter_context(running(tmp_path, limits=("prlimit", "--nofile=32:4096")))
        for _ in range(60):
            caller = stack.enter_context(socket.socket(socket.AF_UNIX))
            caller.settimeout(8)
            caller.connect(str(daemon.socket))
            caller.sendall(b"GET /policy HTTP/1.1\r\nhost: x\r\n\r\n")
            assert caller.recv(9) == b"HTTP/1.1 "


def test_every_order_is_performed(daemon: Daemon) -> None:
    odd = "<i>odd</i> name"
    daemon.alloc("policy", "activity")
    assert daemon.alloc("policy") == "activity\n"
    assert "pinned" in daemon.alloc("pin", odd)
    daemon.until(lambda: odd in daemon.holders() and "calm" not in daemon.holders())
    assert "excluded" in daemon.alloc("exclude", "busy")
    daemon.until(lambda: daemon.holders() == {odd, "calm"})
    for guest in (odd, "busy"):
        daemon.alloc("free", guest)
    daemon.alloc("rebalance")
    daemon.until(lambda: daemon.holders() == {"busy", "calm"})
    assert daemon.alloc("plan") == "Nothing is to be moved.\n"
    assert json.loads(daemon.alloc("rebalance", "--dry-run", "--json"))["moves"] == []
    assert "no guest holds a VF" in daemon.alloc("drain", "--wait")
    assert daemon.client.status().draining
    daemon.alloc("drain", "--off")
    daemon.until(lambda: len(daemon.holders()) == 2)
    assert daemon.alloc("reload")


def test_a_configuration_that_cannot_be_taken_is_refused_and_the_old_one_stays(
    daemon: Daemon,
) -> None:
    good = daemon.configuration.read_text()
    try:
        for change, what in (
            ('format = "plain"', "log cannot be changed while the daemon runs"),
            ('format = "xml"', "planewised.toml:6: unknown variant `xml`"),
        ):
            daemon.configuration.write_text(good.replace('format = "json"', change))
            with pytest.raises(PlanewiseError, match=what):
                daemon.client.order("POST", "/reload")
    finally:
        daemon.configuration.write_text(good)
    assert daemon.alloc("reload")


def test_watch_tells_what_happens(daemon: Daemon) -> None:
    listening, heard = threading.Event(), []
    feed = daemon.client.events(status=True)

    def listen() -> None:
        for kind, told in feed:
            listening.set()
            if kind == "event":
                heard.append(told)
            if kind == "event" and told["event"] == "requested" and "calm" in told["what"]:
                return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    assert listening.wait(PATIENCE_S)
    daemon.alloc("free", "calm")
    listener.join(PATIENCE_S)
    assert f"uid {os.geteuid()}, pid {os.getpid()}" in heard[-1]["caller"]


def test_what_cannot_be_done_is_one_sentence(daemon: Daemon, tmp_path: Path) -> None:
    def refused(*arguments: str, at: Path = daemon.socket) -> PlanewiseError:
        with pytest.raises(PlanewiseError) as caught:
            invoked("alloc", *arguments, "--socket", at, raising=True)
        assert caught.value.remedy
        return caught.value

    assert "there is no guest nobody" in refused("pin", "nobody").what
    assert isinstance(refused("exclude", "a/../b"), BadInputError)
    assert "no policy 'best'" in refused("policy", "best").what
    assert refused("unmark", "busy").exit_code in (1, 2)
    nowhere = tmp_path / "none.sock"
    assert refused("status", at=nowhere).what.startswith(
        "planewised is not running: nothing listens"
    )
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(nowhere))
    assert "planewised is not running" in refused("plan", at=nowhere).what
    assert "connection to" in refused("status", at=tmp_path / ("x" * 200)).what
    with socket.socket(socket.AF_UNIX) as foreign:
        foreign.bind(str(tmp_path / "foreign"))
        foreign.listen()
        threading.Thread(target=lambda: foreign.accept()[0].sendall(b"220 mail\r\n")).start()
        assert "is that planewised's socket" in refused("status", at=tmp_path / "foreign").remedy


def test_the_metrics_are_read_by_the_parser_that_others_use(daemon: Daemon) -> None:
    with daemon.client.raw("/metrics") as answer:
        assert "openmetrics-text; version=1.0.0" in answer.headers["Content-Type"]
        families = {
            family.name: family for family in text_string_to_metric_families(answer.read().decode())
        }
    samples = families["planewise_guest_packets_per_second"].samples
    rates = {sample.labels["guest"]: sample.value for sample in samples}
    assert rates["busy"] == pytest.approx(50_000, rel=0.5)
    assert {sample.labels["source"] for sample in samples} == {"host-side"}
    moves = families["planewise_moves"]
    assert moves.type == "counter"
    given = {"direction": "give", "ending": "completed"}
    done = next(sample.value for sample in moves.samples if sample.labels == given)
    durations = families["planewise_move_duration_seconds"]
    assert durations.type == "histogram"
    counted = [
        sample.value
        for sample in durations.samples
        if sample.name.endswith("_count") and sample.labels == {"direction": "give"}
    ]
    assert counted == [done]
    assert families["planewise_pool_vfs"].samples[0].value == 2
    assert families["process_resident_memory_bytes"].samples[0].value > 1e6


def test_the_description_is_openapi_and_the_answers_are_what_it_says(daemon: Daemon) -> None:
    import jsonschema_rs
    from openapi_spec_validator import validate

    description = daemon.client.get("/openapi.json")
    validate(description)
    policy = description["components"]["schemas"]["WishedPolicy"]["properties"]["policy"]
    assert policy["pattern"] == f"^({'|'.join(POLICIES)})$"
    for path in ("/status", "/plan", "/guests/busy"):
        operation = description["paths"][path.replace("busy", "{guest}")]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        told = daemon.client.get(path)
        jsonschema_rs.validate({**schema, "components": description["components"]}, told)


def test_the_page_of_a_running_daemon_is_alive(daemon: Daemon, tmp_path: Path) -> None:
    daemon.alloc("policy", "activity")
    seen = look(
        tmp_path,
        client=daemon.client,
        ready="text('#guests tbody th').length === 3 && all('#moves tbody tr').length"
        " && all('#guests .spark path').every(one => one.getAttribute('d').length > 40)",
        asked="text('#guests tbody tr')",
    )
    assert seen.console == [], "nothing that the page's own policy forbids"
    assert any("busy" in row and "kpps" in row for row in seen.found["asked"])


def test_the_page_is_shown_to_whoever_has_its_address_and_nobody_else(daemon: Daemon) -> None:
    def get(path: str, cookie: str = "", host: str = "") -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE_S)
        headers = {"Host": host or f"127.0.0.1:{gateway.port}", "Cookie": cookie}
        connection.request("GET", path, headers=headers)
        return connection.getresponse()

    with Gateway(daemon.client.raw, 0) as gateway:
        thread = threading.Thread(target=gateway.serve)
        thread.start()
        try:
            assert get("/").status == 403
            assert get("/?secret=wrong").status == 403
            come = get(gateway.url.removeprefix(f"http://127.0.0.1:{gateway.port}"))
            assert (come.status, come.headers["Location"]) == (303, "/")
            cookie = come.headers["Set-Cookie"].partition(";")[0]
            page = get("/", cookie)
            assert page.status == 200
            assert "default-src 'none'" in page.headers["Content-Security-Policy"]
            assert b"<title>planewised</title>" in page.read()
            events = get("/events?status=true", cookie)
            assert events.readline() == b"event: status\n"
            events.close()
            assert get("/", cookie, host="evil.example").status == 403
            assert get("/plan", cookie).status == 404
        finally:
            gateway.stop()
            thread.join()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(PlanewiseError, match="cannot listen at 127"):
            Gateway(daemon.client.raw, taken.getsockname()[1])


@contextmanager
def command(daemon: Daemon, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`planewise alloc …` in a process of its own, until Ctrl-C."""
    process = subprocess.Popen(
        [sys.executable, "-m", "planewise", "alloc", *arguments, "--socket", str(daemon.socket)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
        assert "Traceback" not in said
    finally:
        process.kill()
        process.communicate()


def test_page_and_watch_go_on_until_they_are_interrupted(daemon: Daemon) -> None:
    with command(daemon, "page") as page:
        assert page.stdout is not None
        url = urlsplit(page.stdout.readline().strip())
        connection = http.client.HTTPConnection(url.netloc, timeout=PATIENCE_S)
        connection.request("GET", f"/?{url.query}")
        assert connection.getresponse().status == 303
    with command(daemon, "watch", "--json") as watch:
        assert watch.stdout is not None
        heard = threading.Event()

        def ask() -> None:
            # Until it is heard: the watch begins when it likes.
            while not heard.wait(0.2):
                daemon.client.order("PUT", "/guests/calm/stance", {"stance": "free"})

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            while (told := json.loads(watch.stdout.readline()))["event"] != "requested":
                pass
            assert "calm" in told["what"]
        finally:
            heard.set()
            asking.join()


def test_the_log_is_one_json_object_a_line(daemon: Daemon) -> None:
    daemon.alloc("free", "calm")

    def lines() -> list[dict[str, Any]]:
        return [json.loads(line) for line in daemon.log.read_text().splitlines() if line[0] == "{"]

    daemon.until(lambda: any(line.get("request") == "free" for line in lines()))
    assert {"timestamp", "level", "message"} <= lines()[-1].keys()


def test_the_socket_comes_and_goes_with_the_daemon(tmp_path: Path) -> None:
    with running(tmp_path) as daemon:
        assert stat.S_IMODE(daemon.socket.stat().st_mode) == 0o600
        second = subprocess.run(
            [find_planewised(), "daemon", "--config", str(daemon.configuration)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 1
        assert "another planewised runs" in second.stderr
        daemon.process.kill()
        daemon.process.wait()
        assert daemon.socket.exists()
        with pytest.raises(PlanewiseError, match="is not running"):
            daemon.client.status()
        again = Daemon(tmp_path)
        again.until(lambda: len(again.holders()) == 2)
        again.stop()
        assert not daemon.socket.exists()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that is its own authority, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "planewised")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(pem))
    private = serialization.PrivateFormat.PKCS8
    paths[1].touch(0o600)
    paths[1].write_bytes(key.private_bytes(pem, private, serialization.NoEncryption()))
    return paths


def test_tcp_is_served_with_tls_and_a_token_or_not_at_all(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    tokens = tmp_path / "tokens"
    tokens.touch(0o600)
    secret = "0123456789abcdef0123456789abcdef"
    reader = "Bearer fedcba9876543210fedcba9876543210"
    tokens.write_text(f"operator {secret} order\nprometheus {reader.split()[1]}\n")
    more = f'[tcp]\nlisten = "127.0.0.1:0"\ncertificate = "{chain}"\nkey = "{key}"\n'
    trusting = ssl.create_default_context(cafile=str(chain))
    with running(tmp_path, f'{more}tokens = "{tokens}"') as daemon:
        said = re.search(r"serves TLS at 127\.0\.0\.1:(\d+)", daemon.log.read_text())
        assert said is not None
        port = int(said[1])

        def ask(method: str, path: str, login: str, origin: str = "") -> tuple[int, Any]:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", port, context=trusting, timeout=PATIENCE_S
            )
            headers = {"Authorization": login} if login else {}
            if origin:
                headers["Origin"] = origin
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        bearer = f"Bearer {secret}"
        assert ask("GET", "/status", bearer)[1]["policy"] == "activity"
        assert ask("POST", "/rebalance", bearer)[0] == 200
        assert ask("GET", "/status", reader)[0] == 200
        assert ask("POST", "/rebalance", reader)[0] == 403
        browser = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        browser.request("GET", "/status")
        with pytest.raises((http.client.HTTPException, OSError)):
            browser.getresponse()
        for wrong in ("", "Bearer x", f"Bearer {secret[:-1]}", "Basic x"):
            code, told = ask("GET", "/status", wrong)
            assert code == 401
            assert "no valid token" in told["what"]
        # What a browser sends along is good for the page, and not for orders.
        basic = "Basic b3BlcmF0b3I6MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
        assert ask("GET", "/status", basic)[0] == 200
        assert ask("POST", "/rebalance", basic)[0] == 403
        assert ask("POST", "/rebalance", bearer, "https://evil.example")[0] == 403
        assert 'caller="token operator"' in daemon.log.read_text()
        # A reload takes other tokens and another certificate; what makes no sense changes nothing.
        tokens.write_text("operator short\n")
        code, told = ask("POST", "/reload", bearer)
        assert code == 400, told
        assert "the token is too short" in told["what"]
        assert ask("GET", "/status", bearer)[0] == 200
        tokens.write_text(f"operator {secret[::-1]} order\n")
        certificate(tmp_path)
        assert ask("POST", "/reload", bearer)[0] == 200
        with pytest.raises(ssl.SSLCertVerificationError):
            ask("GET", "/status", bearer)
        trusting = ssl.create_default_context(cafile=str(chain))
        assert ask("GET", "/status", bearer)[0] == 401
        assert ask("GET", "/status", f"Bearer {secret[::-1]}")[0] == 200
        daemon.stop()
    daemon = Daemon(tmp_path, '[tcp]\nlisten = "127.0.0.1:0"')
    assert daemon.process.wait(PATIENCE_S) == 2
    assert "tcp has no certificate: by TCP the API" in daemon.log.read_text()
    key.chmod(0o644)
    daemon = Daemon(tmp_path, f'{more}tokens = "{tokens}"')
    assert daemon.process.wait(PATIENCE_S) == 2
    assert "every user of this host may use it" in daemon.log.read_text()


def test_systemd_finds_no_fault_with_the_unit_and_takes_it_to_be_well_confined(
    tmp_path: Path,
) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    version = subprocess.run([analyze, "--version"], capture_output=True, text=True, check=True)
    if int(version.stdout.split()[1]) < 250:
        pytest.skip("systemd-analyze before 250 judges no unit's file by itself")
    source = Path(__file__).parents[2] / "crates/planewised/planewised.service"
    unit = tmp_path / "planewised.service"
    unit.write_text(source.read_text().replace("/usr/local/bin/planewised", "/bin/true"))
    verified = subprocess.run([analyze, "verify", unit], capture_output=True, text=True)
    # What it finds in other units of this machine is not ours.
    ours = [line for line in verified.stderr.splitlines() if "planewised" in line]
    assert ours == []
    judged = subprocess.run(
        [analyze, "security", "--offline=true", "--threshold=40", unit],
        capture_output=True,
        text=True,
    )
    assert judged.returncode == 0, judged.stdout[-200:] + judged.stderr
