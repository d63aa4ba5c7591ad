"""One lab for all tests of this directory, in a state directory of its own.

Modules share its hosts: each leaves them as it found them, but for the one that takes the lab down,
which comes last.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from planewise import lab
from planewise.boot import qemu
from planewise.errors import UnsupportedError
from planewise.testbed.hosts.remote import LabHost
from tests.command import PLANEWISE, UNREPORTED

LAB = lab.LabSpec("t", pfs=2, memory_mib=1024, cpus=1)
"""An emulated host has one thread for all its CPUs: a second one only costs."""

_LAST = "test_lab.py"
"""The module that has a host panic, and takes the lab down."""

NESTED = pytest.mark.skipif(
    not os.environ.get("PLANEWISE_NESTED"),
    reason="takes minutes of a machine that has nothing else to do (set PLANEWISE_NESTED=1)",
)
"""Virtual machines in a lab's host: CPUs that are emulated by emulated CPUs."""

Run = Callable[..., subprocess.CompletedProcess[str]]


class Silence:
    """A progress that nobody watches."""

    def begin(self, what: str, total_s: float) -> None:
        pass

    def step(self, what: str, done_s: float) -> None:
        pass


@dataclass(frozen=True)
class UpLab:
    """The lab that is up, and how long that took."""

    status: lab.LabStatus
    boot_s: float


def why_not() -> str | None:
    """Why there can be no lab here, or None."""
    if os.environ.get("PLANEWISE_NO_LAB"):
        return "QEMU is not allowed here (PLANEWISE_NO_LAB)"
    try:
        qemu.find()
    except UnsupportedError as error:
        return f"{error.what}: {error.remedy}"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = [i for i, item in enumerate(items) if Path(__file__).parent in item.path.parents]
    here = sorted((items[i] for i in places), key=lambda item: item.path.name == _LAST)
    for place, item in zip(places, here, strict=True):
        items[place] = item
    reason = why_not()
    for item in here:
        item.add_marker("lab")
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test that failed says how the labs' hosts fared, and the ends of their logs."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()  # type: ignore[attr-defined]
    if not report.failed or Path(__file__).parent not in item.path.parents:
        return
    for status in lab.statuses():
        for host in status.hosts:
            about = f"{status.record.name}/{host.host}: {host.finding.state} {host.finding.reason}"
            report.sections.append((about.strip(), "\n".join(host.last_lines)))


@pytest.fixture(scope="session")
def state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where this session's labs live; no other lab of this machine is seen or touched."""
    directory = Path("/tmp") / f"pw-test-{os.getpid()}"
    directory.mkdir(mode=0o700)
    before = os.environ.get("PLANEWISE_LAB_STATE")
    os.environ["PLANEWISE_LAB_STATE"] = str(directory)
    yield directory
    lab.leftovers(remove=True)
    if before is None:
        del os.environ["PLANEWISE_LAB_STATE"]
    else:
        os.environ["PLANEWISE_LAB_STATE"] = before
    if directory.is_dir():
        directory.rmdir()


@pytest.fixture(scope="module")
def up(state_directory: Path, said: list[str]) -> UpLab:
    """Two hosts with two PFs each: found up, or brought up where they are not."""
    begun, begun_s = time.monotonic(), time.time()
    status = lab.up(LAB, Silence())
    found = UpLab(status, time.monotonic() - begun)
    if status.record.created_s >= begun_s:
        said.append(f"both hosts up after {found.boot_s:.1f} s ({status.record.accelerator})")
    return found


@pytest.fixture(scope="module")
def hosts(up: UpLab) -> Iterator[dict[str, LabHost]]:
    """Connections to both hosts."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(closing(LabHost("t", name, name=name))) for name in lab.HOSTS
        }


@pytest.fixture
def planewise(state_directory: Path) -> Run:
    """Runs the command line."""

    def run(
        *argv: str, stdin: str = "", timeout_s: float = 120, report: bool = True
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*(PLANEWISE if report else UNREPORTED), *argv],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    return run
