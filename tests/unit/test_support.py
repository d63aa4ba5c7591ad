"""The support bundle tells what a helper needs and keeps what nobody else may know."""

from __future__ import annotations

import json
import socket
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise import support
from planewise.errors import PlanewiseError
from planewise.redaction import HIDDEN, Redactor
from planewise.support import Sources

TOKEN = "s3cr3t-of-prometheus"
FINGERPRINT = '{"hostname": "%s", "nics": [{"name": "eth0", "mac": "02:00:5e:10:00:01"}]}'


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    """A host with a configured daemon that does not run."""
    state = tmp_path / "state"
    state.mkdir()
    (state / "journal").write_text(f'00000000 {{"entry": "begin", "why": "asked by {TOKEN}"}}\n')
    (tmp_path / "tokens").write_text(f"# of clients\nprometheus {TOKEN}\n")
    configuration = tmp_path / "planewised.toml"
    configuration.write_text(
        f'state_directory = "{state}"\n[tcp]\nlisten = "192.0.2.10:8443"\n'
        f'tokens = "{tmp_path}/tokens"\n# password = "hunter2"\n'
    )
    monkeypatch.setattr(socket, "gethostname", lambda: "rack7-blade3.example.org")
    return Sources(configuration, tmp_path / "no.sock", "no-such-unit", tmp_path / "runs")


def bundled(tmp_path: Path, sources: Sources) -> dict[str, str]:
    file = tmp_path / "out.tar.gz"
    host = FINGERPRINT % "rack7-blade3.example.org"
    names = support.bundle(file, lambda: host, sources)
    with tarfile.open(file) as archive:
        texts = {}
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            texts[member.name.removeprefix("planewise-support/")] = content.read().decode()
    assert list(texts) == names
    return texts


def test_no_file_of_the_bundle_holds_a_secret_an_address_or_the_hosts_name(
    tmp_path: Path, sources: Sources
) -> None:
    texts = bundled(tmp_path, sources)
    for name, text in texts.items():
        for secret in (TOKEN, "hunter2", "192.0.2.10", "02:00:5e:10:00:01", "rack7-blade3"):
            assert secret not in text, (name, secret)
    assert HIDDEN in texts["daemon/journal"]
    assert json.loads(texts["host.json"]) == {
        "hostname": "host-1",
        "nics": [{"name": "eth0", "mac": "mac-1"}],
    }
    assert "ipv4-1:8443" in texts["daemon/planewised.toml"]


def test_what_cannot_be_had_is_said_in_its_place(tmp_path: Path, sources: Sources) -> None:
    texts = bundled(tmp_path, Sources(tmp_path / "none.toml", *vars_of(sources)))
    assert "cannot be read: No such file" in texts["daemon/planewised.toml"]
    assert "no daemon answers on" in texts["daemon/status.json"]
    assert texts["run.json"].startswith("(there is no run in ")
    assert json.loads(texts["versions.json"])["pydantic"]


def vars_of(sources: Sources) -> tuple[Path, str, Path]:
    return sources.daemon_socket, sources.unit, sources.runs


def test_only_its_owner_may_read_it_and_nothing_is_written_over(
    tmp_path: Path, sources: Sources
) -> None:
    bundled(tmp_path, sources)
    file = tmp_path / "out.tar.gz"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    with pytest.raises(PlanewiseError, match="is there already"):
        support.bundle(file, lambda: "{}", sources)
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "hidden"),
    [
        ("Authorization: Bearer abc.def-123", "abc.def-123"),
        ("https://me:pa55@mirror/debian", "pa55"),
        ("api_key = 'k-1'", "k-1"),
        ('"client_secret": "x y"', "x y"),
        ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY-----", "MII"),
        ("-----BEGIN PRIVATE KEY-----\nMII cut off", "MII"),
        ("prometheus 0f9e8d7c6b5a49382716050f9e8d7c6b5a493827", "0f9e8d7c"),
        ("seen at fe80::1ff:fe23:4567:890a: unreachable", "4567"),
        ("from 10.1.2.3 to 203.0.113.9.", "203.0.113.9"),
        ("/home/alice/planewise", "alice"),
    ],
)
def test_secrets_and_addresses_are_known_by_their_form(text: str, hidden: str) -> None:
    assert hidden not in Redactor()(text)


@pytest.mark.parametrize(
    "text",
    [
        "listening on 127.0.0.1:8123 and [::1]",
        "guests have 198.18.0.7 and 2001:2::7",
        "0000:01:10.0 at 12:30:45, kernel 6.12.38+deb13-amd64",
        "/sys/bus/pci/devices/0000:01:10.0/driver_override",
        "planewise 0.1.0 took 1.5 s",
    ],
)
def test_what_tells_nothing_of_the_host_stays_as_it_is(text: str) -> None:
    assert Redactor()(text) == text


def test_the_same_address_has_the_same_pseudonym_in_all_texts() -> None:
    redact = Redactor()
    assert redact("a 10.0.0.1 b 10.0.0.2") == "a ipv4-1 b ipv4-2"
    assert redact("c 10.0.0.2") == "c ipv4-2"


@given(st.text(st.characters(categories=["L", "N"]), min_size=8, max_size=40), st.text(max_size=60))
def test_a_token_of_the_daemon_is_hidden_wherever_it_stands(token: str, around: str) -> None:
    assert token not in Redactor([token])(f"{around}{token}{around}")
