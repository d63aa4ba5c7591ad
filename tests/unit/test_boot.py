"""What labs and virtual machines boot from: QEMU, kernels, packages, archives, accelerators."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planewise.boot import accelerator, cpio, kernel, packages
from planewise.boot import initramfs as boot_initramfs
from planewise.boot import qemu as boot_qemu
from planewise.boot import tools as boot_tools
from planewise.boot.model import Accelerator, Kernel
from planewise.errors import StorageError, UnsupportedError


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2~bpo12+1)\nCopyright", (10, 0)),
        ("QEMU emulator version 7.2.18 (Debian 1:7.2+dfsg-7+deb12u18)", (7, 2)),
        ("QEMU emulator version 8.1.0-rc1", (8, 1)),
        ("command not found", None),
        ("", None),
    ],
)
def test_qemu_says_its_version(text: str, version: tuple[int, int] | None) -> None:
    assert boot_qemu.parse_version(text) == version


def a_program(directory: Path, name: str, script: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(f"#!/bin/sh\n{script}\n")
    (directory / name).chmod(0o755)


def test_a_qemu_that_is_too_old_or_missing_is_said_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    with pytest.raises(UnsupportedError, match="no qemu-system-x86_64") as caught:
        boot_qemu.find()
    assert "scripts/setup lab" in caught.value.remedy
    a_program(tmp_path / "bin", "qemu-system-x86_64", "echo QEMU emulator version 7.2.18")
    with pytest.raises(UnsupportedError, match=r"version 7\.2, .* came with 8\.1") as caught:
        boot_qemu.find()
    assert "backports" in caught.value.remedy


DEP = """\
kernel/fs/9p/9p.ko.xz: kernel/net/9p/9pnet.ko.xz kernel/fs/netfs/netfs.ko.xz
kernel/net/9p/9pnet.ko.xz: kernel/fs/netfs/netfs.ko.xz
kernel/fs/netfs/netfs.ko.xz:
kernel/drivers/vfio/pci/vfio-pci.ko.xz: kernel/drivers/vfio/vfio.ko.xz
kernel/drivers/vfio/vfio.ko.xz:
"""


def test_modules_load_after_what_they_need() -> None:
    order = [kernel.module_name(path) for path in kernel.load_order(("9p", "vfio-pci"), DEP)]
    assert order == ["netfs", "9pnet", "9p", "vfio", "vfio_pci"]


def test_a_module_counts_whether_it_is_a_file_or_built_in() -> None:
    builtin = "kernel/drivers/virtio/virtio_pci.ko\n"
    assert kernel.missing(("9p", "vfio-pci", "virtio_pci"), DEP, builtin) == ()
    assert kernel.missing(("igb", "9p"), DEP, builtin) == ("igb",)


def test_a_kernel_without_sriov_drivers_is_refused_by_the_missing_modules(tmp_path: Path) -> None:
    image = tmp_path / "vmlinuz"
    image.touch()
    (tmp_path / "modules.dep").write_text(DEP)
    (tmp_path / "modules.builtin").write_text("")
    refusal = kernel.unusable_reason(Kernel("6.12-cloud", image, tmp_path, "machine"))
    assert refusal is not None
    assert "igb, igbvf" in refusal
    gone = Kernel("6.12", tmp_path / "none", tmp_path, "machine")
    assert "not readable" in (kernel.unusable_reason(gone) or "")


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("6.12~rc1-1", "6.12-1"),
        ("6.12.95-1~bpo12+1", "6.12.95-1"),
        ("7.0-1", "1:6.12-1"),
        ("6.9-1", "6.12-1"),
        ("6.12-1", "6.12-1+b1"),
        ("6.12.a-1", "6.12.b-1"),
    ],
)
def test_versions_are_ordered_as_debian_orders_them(older: str, newer: str) -> None:
    for versions in ((older, newer), (newer, older)):
        listing = "".join(f" p | {version} | suite\n" for version in versions)
        assert packages.newest(listing) == newer


def test_the_newest_of_the_suites_versions_is_chosen() -> None:
    listing = (
        " linux-image-amd64 | 6.1.192-2 | mirror bookworm/main amd64 Packages\n"
        " linux-image-amd64 | 6.12.95-1~bpo12+1 | mirror bookworm-backports/main\n"
        " linux-image-amd64 | 6.1.176-1 | mirror bookworm/main amd64 Packages\n"
    )
    assert packages.newest(listing) == "6.12.95-1~bpo12+1"
    assert packages.newest("") is None


def test_a_meta_package_leads_to_the_kernels_own() -> None:
    record = (
        "Package: linux-image-generic\n"
        "Depends: linux-image-6.8.0-31-generic, linux-modules-extra-6.8.0-31-generic, "
        "linux-firmware, intel-microcode | amd64-microcode\n"
    )
    assert packages.dependencies(record, r"linux-(image|modules|modules-extra)-\d.*") == (
        "linux-image-6.8.0-31-generic",
        "linux-modules-extra-6.8.0-31-generic",
    )


def fake_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, download: str) -> Path:
    """An apt-get whose `download` runs a script, and a dpkg-deb that unpacks a file into /lib."""
    programs = tmp_path / "bin"
    a_program(programs, "apt-get", download)
    a_program(programs, "dpkg-deb", 'mkdir -p "$3/lib" && echo x >"$3/lib/$(basename "$2")"')
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return tmp_path / "cache"


def test_a_package_is_unpacked_once_as_on_a_merged_usr_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = fake_apt(tmp_path, monkeypatch, f"touch one.deb; echo >>{tmp_path}/downloads")
    for _ in range(2):
        tree = packages.fetch("tree", ["one"], cache, needs_mib=1)
        assert (tree / "usr/lib/one.deb").read_text() == "x\n"
        assert not (tree / "lib").exists()
    assert (tmp_path / "downloads").read_text() == "\n"
    assert [entry.name for entry in cache.iterdir()] == ["tree"]


def test_a_package_that_cannot_be_had_is_said_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = fake_apt(tmp_path, monkeypatch, "echo 'E: Unable to locate package one' >&2; exit 100")
    with pytest.raises(UnsupportedError, match="Unable to locate package one") as caught:
        packages.fetch("tree", ["one"], cache, needs_mib=1)
    assert "apt-get update" in caught.value.remedy
    assert list(cache.iterdir()) == []


def test_a_full_disk_is_said_before_anything_is_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = fake_apt(tmp_path, monkeypatch, f"touch {tmp_path}/downloaded")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=100 << 20))
    with pytest.raises(StorageError, match="100 MiB free, and unpacking takes 700 MiB"):
        packages.fetch("tree", ["one"], cache, needs_mib=700)
    assert not (tmp_path / "downloaded").exists()


def test_a_disk_that_fills_up_while_unpacking_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = fake_apt(tmp_path, monkeypatch, "touch one.deb")
    a_program(tmp_path / "bin", "dpkg-deb", "echo 'write: No space left on device' >&2; exit 2")
    with pytest.raises(StorageError, match=r"no space left to unpack one\.deb"):
        packages.fetch("tree", ["one"], cache, needs_mib=1)


def test_an_archive_is_what_cpio_reads(tmp_path: Path) -> None:
    if shutil.which("cpio") is None:
        pytest.skip("there is no cpio here")
    content = cpio.archive(
        [cpio.directory("d"), cpio.file("d/f", b"abc", 0o640), cpio.link("d/l", "f")]
    )
    subprocess.run(["cpio", "-id", "--quiet"], input=content, cwd=tmp_path, check=True)
    assert (tmp_path / "d/f").read_bytes() == b"abc"
    assert (tmp_path / "d/f").stat().st_mode & 0o777 == 0o640
    assert os.readlink(tmp_path / "d/l") == "f"  # noqa: PTH115


@given(st.lists(st.tuples(st.text("abc", min_size=1), st.binary(max_size=50))))
def test_archives_joined_end_to_end_stay_aligned(files: list[tuple[str, bytes]]) -> None:
    content = cpio.archive(cpio.file(name, data) for name, data in files)
    assert len(content) % 4 == 0
    assert content.endswith(b"TRAILER!!!\0\0\0\0")


def test_only_a_static_busybox_serves_as_the_first_program() -> None:
    assert boot_tools.is_static(b"\x7fELF" + b"\0" * 100)
    assert not boot_tools.is_static(b"\x7fELF\0/lib64/ld-linux-x86-64.so.2\0")
    assert not boot_tools.is_static(b"#!/bin/sh")


def test_kvm_is_believed_only_when_its_guest_spoke() -> None:
    assert accelerator.conclude(f"noise\n{boot_initramfs.ACCELERATED}\n", "").name == "kvm"
    died = accelerator.conclude("", "KVM internal error. Suberror: 3\nextra data[0]: 0x0")
    assert died.name == "tcg"
    assert "KVM internal error" in died.reason
    assert accelerator.conclude("Linux version 6.12", "").name == "tcg"


def test_kvm_is_tried_once_a_boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[str] = []

    def trial(*_: object) -> Accelerator:
        tries.append("once")
        return Accelerator("kvm", "a trial guest ran")

    boot = tmp_path / "boot_id"
    boot.write_text("first\n")
    monkeypatch.setattr(accelerator, "_BOOT_ID", boot)
    monkeypatch.setattr(accelerator, "_refused", lambda: None)
    monkeypatch.setattr(accelerator, "_try", trial)
    installed = Kernel("6.12", Path("/boot/vmlinuz-6.12"), Path("/lib/modules/6.12"), "machine")
    subject = (Path("/usr/bin/qemu"), (10, 0), installed, Path("/bin/busybox"), tmp_path)
    assert accelerator.find(*subject).name == "kvm"
    assert accelerator.find(*subject).name == "kvm"
    assert len(tries) == 1
    boot.write_text("second\n")
    accelerator.find(*subject)
    assert len(tries) == 2
    (tmp_path / "accelerator.json").write_text("{ cut short")
    accelerator.find(*subject)
    assert len(tries) == 3
