"""What `planewise sweep` and `search` refuse before anything is built, and how PDR is said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from planewise.commands.judge import pdr_text
from planewise.commands.sut import frame_size
from planewise.errors import BadInputError
from planewise.judge.verdict import LoadEstimate
from planewise.testbed.hosts.host import LocalHost
from planewise.units import rate_text
from tests.command import in_this_process, invoked


@pytest.mark.parametrize(("size", "version"), [(0, 4), (63, 4), (83, 6), (9001, 4), (-1, 6)])
def test_a_frame_size_that_cannot_be_is_refused(size: int, version: int) -> None:
    with pytest.raises(BadInputError, match=f"--size: an IPv{version} frame of {size} bytes"):
        frame_size(size, version)


def test_without_a_size_the_smallest_frame_is_taken() -> None:
    assert (frame_size(None, 4), frame_size(None, 6), frame_size(9000, 6)) == (64, 84, 9000)


@pytest.mark.parametrize("command", ["sweep", "search"])
def test_the_way_out_names_the_command_that_was_given(command: str) -> None:
    result = invoked(command)
    assert isinstance(result.exception, BadInputError)
    assert f"planewise {command} --plane" in result.exception.remedy


@pytest.mark.parametrize(
    ("pdr", "text"),
    [
        (None, "not known: the first load already loses more"),
        (LoadEstimate(20e3, 19e3, 21e3), "20 kpps (95 %: 19 kpps to 21 kpps)"),
        (
            LoadEstimate(20e3, 19e3, math.inf),
            "at least 19 kpps; the loads end too early to say more",
        ),
        (LoadEstimate(20e3, 0, math.inf), "not known: there are too few loads and runs"),
    ],
)
def test_a_pdr_beyond_the_ladder_is_only_a_bound(pdr: LoadEstimate | None, text: str) -> None:
    assert pdr_text(pdr, "the first load already loses more", rate_text) == text


def test_the_out_directory_is_looked_at_before_anything_is_measured(tmp_path: Path) -> None:
    from planewise.store.rundir import check_free

    check_free(tmp_path / "new" / "run")
    check_free(tmp_path)
    file = tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(BadInputError, match="where the run directory should be"):
        check_free(file)
    with pytest.raises(BadInputError, match="not empty"):
        check_free(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


ENDS = ("--tx", "a", "--rx", "b", "--dst")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--plane", "nope"), "no plane called 'nope'"),
        (("--plane", "veth", "--router"), "give one of"),
        (("--tx", "a"), "--tx, --rx and --dst go together"),
        (("--router", "--ip", "5"), "'5' is not one of '4', '6'"),
        (("--router", "--loads", "10k,fast"), "`fast` is not a rate"),
        (("--router", "--loads", "10k"), "a curve needs two loads"),
        (("--router", "--duration", "0"), "--duration: 0 is out of range"),
        (("--router", "--runs", "0"), "--runs: 0 is out of range"),
        (("--router", "--seed=-1"), "--seed"),
        (("--tx", "eth0.10@lo", *ENDS[2:], "198.18.0.2"), "'lo', which is an interface"),
        (("--tx", "veth0@if7", *ENDS[2:], "198.18.0.2"), "'if7', which is an interface"),
        (("--tx", "eth0@none", *ENDS[2:], "198.18.0.2"), "no network namespace 'none'"),
        ((*ENDS, "foo"), "'foo' is not an IP address"),
        ((*ENDS, "198.18.0.2", "--ip", "6"), "198.18.0.2 is an IPv4 address"),
        ((*ENDS, "2001:2::2"), "2001:2::2 is an IPv6 address"),
        ((*ENDS, "198.18.0.2", "--dst-mac", "aa:bb"), "'aa:bb' is not a MAC address"),
    ],
)
def test_bad_flags_of_a_sweep_get_one_clear_sentence_before_anything_is_built(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    monkeypatch.setattr(LocalHost, "perform", lambda *_: pytest.fail("something was built"))
    run = ("sweep", *arguments, "--out", tmp_path / "run")
    code, _, said = in_this_process(capsys, monkeypatch, *run)
    assert code == 2
    assert words in said.replace("\n", " ")
    assert not (tmp_path / "run").exists()
