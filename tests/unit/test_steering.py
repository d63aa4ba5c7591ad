"""Which CPUs generate and which receive."""

import pytest

from planewise.testbed.hosts.steering import CpuSplit, cpu_mask, split_cpus


def test_one_cpu_generates_and_the_others_receive() -> None:
    assert split_cpus([3, 0, 2]) == CpuSplit(0, (2, 3))


def test_a_single_cpu_cannot_be_split() -> None:
    assert split_cpus([5]) is None


@pytest.mark.parametrize(
    ("cpus", "mask"),
    [((), "0"), ((0,), "1"), ((1, 3), "a"), ((31,), "80000000"), ((0, 32), "1,00000001")],
)
def test_masks_are_written_as_the_kernel_reads_them(cpus: tuple[int, ...], mask: str) -> None:
    assert cpu_mask(cpus) == mask
