"""Every step of the guide is run here, or named with the test that runs the like."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from planewise.advise.model.capacity import ChainWorkload
from planewise.store.models import TrialRecord
from tests.documents import ROOT, Shown, commands_of_others, guides, shown
from tests.unit import importer_samples, made_up_chains, made_up_run
from tests.unit.made_up_run import MadeUp

pytestmark = pytest.mark.linux

ELSEWHERE = {
    r"make (quick|lab|nfv|docker-rtt)|planewise quick": ("Makefile", "setup"),
    r"planewise run experiments/nfv-.*": ("tests/linux/test_chains.py", "vhost-user"),
    r"planewise run experiments/docker-rtt.*": ("tests/linux/test_designs.py", "docker-rtt.yaml"),
    r"planewise run experiments/kvm-.*": ("tests/vm/test_run.py", "kvm-rtt"),
    r"planewise run experiments/my-first.yaml --live": ("tests/linux/test_live.py", "--live"),
    r"planewise run experiments/settings.yaml": ("tests/linux/test_settings.py", "planted"),
    r"planewise run my-design.yaml --lab": ("tests/lab/test_vms.py", "passthrough"),
    r"planewise lab .*": ("tests/lab/test_lab.py", '"lab", "run"'),
    r"planewised vf setup .*": ("tests/lab/test_vf.py", '"vf", "setup"'),
    r"planewise (run experiments/boost.yaml|boost) .*": ("tests/unit/test_boost.py", "boost"),
    r"planewise run experiments/flexvf-groups.yaml .*": ("tests/lab/test_policies.py", "policy"),
    r"planewise fleet (run|report) .*fleets/may": ("tests/linux/test_fleet.py", '"fleet", "run"'),
    r"planewise (run experiments/pastrami-here.yaml .*|campaign runs/pastrami-here/.*)": (
        "tests/linux/test_campaigns.py",
        "sut: router",
    ),
    r"make release": ("packaging/release", "SHA256SUMS"),
    r"planewise clean": ("tests/linux/test_doctor_and_clean.py", '"clean"'),
    r"scripts/setup (lab|vms|nfv)": ("Makefile", "scripts/setup test lab vms"),
}
"""What needs a lab, virtual machines or minutes of its own, and the test that runs the like."""

ALLOCATOR, PACKAGE = "tests/lab/test_allocator.py", "tests/release/test_package.py"
OF_OTHERS = {
    r"(ip link add br-pf|ip link set enp1s0f0) .*": (ALLOCATOR, "ip link set pf1 up master"),
    r"docker (network create|run --network pf) .*": (ALLOCATOR, "planewise.managed=true"),
    r"virsh metadata web .*": ("tests/lab/test_machines.py", "urn:planewise:libvirt:1"),
    r"cat > try.toml .*|export PLANEWISE_SOCKET=.*": (__file__, "text_blocks("),
    r"sha256sum --check SHA256SUMS": ("tests/release/conftest.py", "SHA256SUMS"),
    r"(pipx|mmdebstrap) .*": ("tests/release/test_wheel.py", "root(suite"),
    r"apt install \./planewised_.*": (PACKAGE, "apt-get install"),
    r"(install -m 600|echo \"prometheus) .*": (PACKAGE, "install -m 600"),
    r"systemctl (daemon-reload|enable|stop|start).*|groupadd .*": (
        PACKAGE,
        "enable --now planewised",
    ),
    r"apt purge planewised": (PACKAGE, "purge -y -qq planewised"),
    r"tar -C / -czf .*": (PACKAGE, "tar -C / -czf"),
    r"tar -xzf planewise-static-.*": (
        "tests/release/test_archives.py",
        "--strip-components=1",
    ),
    r"install (-D )?-m (644|755) .*": ("tests/unit/test_service_unit.py", "/usr/local/bin"),
    r"usermod -aG planewise .*": ("tests/linux/test_alloc_access.py", "as_stranger"),
    r"ssh -F .*": ("tests/release/test_package.py", '"ssh", "-F"'),
    r"device=.*|echo .*driver.*|echo .*numvfs|ip link set pf0 vf .*|address=.*": (
        "tests/lab/test_lab.py",
        "drivers_probe",
    ),
}
"""Commands of other programs, and the test that runs the like."""

NOT_RUN = {
    r"docker (load|run --rm) .*": "tests/release/test_archives.py unpacks images",
    r"editor .*": "an editor is a person's",
    r"ssh -L .*": "it wants a desk beside the host",
}

UNTIL_STOPPED = r"planewise alloc (watch|page)|planewised daemon .*"
STANDS_FOR = {"db": "steady", "--minutes 10m": "--minutes 0.5"}
"""Words of the guide that mean something else in the scratch folder: its guests, less time."""
RUNS = {"docs/guide/chains.md": "CHAINS"}
"""The run that RUN means in a document, where it is no run of guests."""

DESIGN = {"blocks": 1, "rtt": {"packets": 20}, "sweep": {"loads": 2, "duration_s": 0.1}}


def steps() -> list[Shown]:
    return [command for command in shown() if command.step]


def is_elsewhere(command: str) -> bool:
    return any(re.fullmatch(pattern, command) for pattern in ELSEWHERE)


HERE = [step for step in steps() if not is_elsewhere(step.command)]


def text_blocks(document: str, first: str) -> str:
    """The indented block of a document whose first line begins so, without the indent."""
    lines = (ROOT / document).read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"    {first}"))
    block = []
    for line in lines[start:]:
        if not line.startswith("    "):
            break
        block.append(line[4:])
    return "\n".join(block) + "\n"


def chains() -> list[TrialRecord]:
    """Trials of chains: two planes, both patterns, two replicates."""
    return [
        made_up_chains.trial(plane, ChainWorkload(pattern, 2, 64), pps, replicate=replicate)
        for plane, pps in (("vhost-user", 5e6), ("bridge", 3e5))
        for pattern in made_up_chains.PATTERNS
        for replicate in range(2)
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with everything that the guide takes for given."""
    folder = tmp_path_factory.mktemp("guide")
    wanted = MadeUp(planes=("veth", "bridge"), blocks=2, packets=50)
    (folder / "RUN").symlink_to(made_up_run.write(folder / "runs" / "first", wanted))
    made_up_chains.write(folder / "CHAINS", chains())
    (folder / "experiments").symlink_to(ROOT / "experiments")
    design = YAML(typ="safe").load((ROOT / "experiments" / "my-first.yaml").read_text()) | DESIGN
    with (folder / "my.yaml").open("w") as file:
        YAML(typ="safe").dump(design, file)
    (folder / "workload.yaml").write_text(text_blocks("docs/guide/advise.md", "pattern:"))
    # Of its loads three decide, and GOOD needs 90 runs there.
    samples = importer_samples.every(importer_samples.trials(30, importer_samples.FINE))
    (folder / "lab").mkdir()
    (folder / "results.csv").write_bytes(samples["csv"])
    (folder / "results.json").write_bytes(samples["nfvbench"])
    one, two = (f"lab/rig_tb{place}_raw_30_k{place}.8_intel_vm.txt" for place in (5, 6))
    for name in ("old.txt", one, two):
        (folder / name).write_bytes(samples["pastrami"])
    socket = folder / "planewised.sock"
    block = text_blocks("docs/guide/allocate.md", "cat > try.toml")
    configuration = block.split("END'\n")[1].split("\nEND")[0]
    (folder / "try.toml").write_text(
        configuration.replace("/tmp/try/planewised.sock", str(socket)).replace(
            "/tmp/try", str(folder / "state")
        )
    )
    daemon = subprocess.Popen(
        ["planewised", "daemon", "--config", "try.toml"], cwd=folder, env=environment(folder)
    )
    try:
        for _ in range(600):
            if socket.exists():
                break
            time.sleep(0.1)
        yield folder
    finally:
        daemon.terminate()
        assert daemon.wait(60) == 0


def environment(folder: Path) -> dict[str, str]:
    scripts = Path(sys.executable).parent
    return {
        **os.environ,
        "PATH": f"{scripts}:{os.environ['PATH']}",
        "PLANEWISE_SOCKET": str(folder / "planewised.sock"),
    }


def typed(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command in the folder as a shell does; what never ends is stopped by Ctrl-C once it
    has said something."""
    for word, meaning in STANDS_FOR.items():
        command = re.sub(rf"(?<!\S){re.escape(word)}(?!\S)", meaning, command)
    with subprocess.Popen(
        ["bash", "-c", f"exec {command}" if ">" not in command else command],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said = ""
            if re.fullmatch(UNTIL_STOPPED, command):
                assert process.stdout is not None
                said = process.stdout.readline()
                process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=200)
        finally:
            process.kill()
        return subprocess.CompletedProcess(command, process.returncode, said + out, err)


def which(step: Shown) -> str:
    """The mark of a command: `apart` where it measures nothing, `long` for minutes of `quick`, of
    which test_runs.py has a short one."""
    if re.match(r"planewise quick", step.command):
        return "long"
    return "linux" if re.match(r"planewise run(?!.*--dry-run)", step.command) else "apart"


@pytest.mark.parametrize(
    "step",
    [pytest.param(step, marks=getattr(pytest.mark, which(step)), id=str(step)) for step in HERE],
)
def test_a_step_of_the_guide_does_what_it_says(step: Shown, folder: Path) -> None:
    if step.command == "planewised daemon --config try.toml":
        return  # the fixture has started it
    command = re.sub(r"(?<=\s)RUN(?!\S)", RUNS.get(step.document, "RUN"), step.command)
    done = typed(command, folder)
    stopped = re.fullmatch(UNTIL_STOPPED, step.command) is not None
    assert done.returncode in ((0, 130) if stopped else (0,)), (done.stdout[-500:], done.stderr)
    assert "Traceback" not in done.stderr


def test_what_is_run_elsewhere_is_run_there() -> None:
    used = {
        pattern for pattern in ELSEWHERE if any(re.fullmatch(pattern, s.command) for s in steps())
    }
    assert used == set(ELSEWHERE), "no document shows these any more"
    for file, needle in (*ELSEWHERE.values(), *OF_OTHERS.values()):
        assert needle in (ROOT / file).read_text(), f"{file} no longer has {needle}"


def test_every_command_of_another_program_has_its_test_or_a_reason() -> None:
    known = {*OF_OTHERS, *NOT_RUN}
    shown_here = [one for document in guides() for one in commands_of_others(document)]
    unknown = [
        str(one)
        for one in shown_here
        if not any(re.fullmatch(pattern, one.command) for pattern in known)
    ]
    assert unknown == []
    used = {
        pattern
        for pattern in known
        if any(re.fullmatch(pattern, one.command) for one in shown_here)
    }
    assert used == known, "no document shows these any more"
