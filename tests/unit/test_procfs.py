"""What /proc says, as numbers."""

from __future__ import annotations

from planewise import procfs


def test_guest_time_is_not_counted_twice_and_waiting_for_disks_is_idle() -> None:
    ticks = procfs.cpu_ticks("cpu  10 1 5 80 4 1 2 3 9 9\ncpu0 1 0 0 9\nintr 5\n")
    assert ticks[procfs.ALL].total == 106
    assert ticks[procfs.ALL].not_idle == 22
    assert ticks["cpu0"].total == 10


def test_a_damaged_line_is_left_out_and_does_not_spoil_the_others() -> None:
    assert list(procfs.cpu_ticks("cpu 1 2\ncpu0 x 1 2 3 4\ncpu7 1 2 3 4 5 6 7 8\n")) == ["cpu7"]


def test_kilobytes_become_bytes_and_pages_stay_pages() -> None:
    text = "MemTotal:       16 kB\nHugePages_Total:       3\nHugepagesize:       2048 kB\n"
    found = procfs.memory(text)
    assert found == {"MemTotal": 16384, "HugePages_Total": 3, "Hugepagesize": 2 << 20}
