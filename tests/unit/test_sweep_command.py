"""What `planewise sweep` and `search` refuse before anything is built, and how PDR is said."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from planewise.commands.judge import pdr_text
from planewise.commands.sut import frame_size
from planewise.errors import BadInputError
from planewise.judge.verdict import LoadEstimate
from planewise.units import rate_text
from tests.command import invoked


@pytest.mark.parametrize(("size", "version"), [(0, 4), (63, 4), (83, 6), (9001, 4), (-1, 6)])
def test_a_frame_size_that_cannot_be_is_refused(size: int, version: int) -> None:
    with pytest.raises(BadInputError, match=f"--size: an IPv{version} frame of {size} bytes"):
        frame_size(size, version)


def test_without_a_size_the_smallest_frame_is_taken() -> None:
    assert (frame_size(None, 4), frame_size(None, 6), frame_size(9000, 6)) == (64, 84, 9000)


@pytest.mark.parametrize("command", ["sweep", "search"])
def test_a_negative_seed_is_bad_input(command: str) -> None:
    result = invoked(command, "--router", "--seed=-1")
    assert result.exit_code == 2
    assert "--seed" in result.output


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


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("eth0.10@lo", "'lo', which is an interface"),
        ("veth0@if7", "'if7', which is an interface"),
        ("eth0@no-such", "no network namespace 'no-such'"),
    ],
)
def test_an_interface_as_ip_link_prints_it_is_not_taken_for_a_namespace(
    end: str, words: str
) -> None:
    result = invoked("sweep", "--tx", end, "--rx", "b", "--dst", "198.18.0.2")
    assert isinstance(result.exception, BadInputError)
    assert words in result.exception.what
    assert result.exception.remedy


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


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--dst", "foo"), "'foo' is not an IP address"),
        (("--dst", "198.18.0.2", "--ip", "6"), "198.18.0.2 is an IPv4 address"),
        (("--dst", "2001:2::2"), "2001:2::2 is an IPv6 address"),
        (("--dst", "198.18.0.2", "--dst-mac", "aa:bb"), "'aa:bb' is not a MAC address"),
    ],
)
def test_an_address_of_the_wrong_kind_is_refused(given: tuple[str, ...], words: str) -> None:
    result = invoked("sweep", "--tx", "a", "--rx", "b", *given)
    assert isinstance(result.exception, BadInputError)
    assert words in result.exception.what
