"""Any file is a design that can be expanded, or one clear error with the file's name in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.fuzz import designs

ROOT = Path(__file__).parents[2]
LAUGHS = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)
"""10¹¹ values in a dozen lines."""
SEEDS = [path.read_bytes() for path in sorted((ROOT / "experiments").rglob("*.yaml"))]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@given(data=st.binary(max_size=200))
@example(data=b"factors: {plane: veth}\nfactors: {plane: veth}")
@example(data=b"factors: &a {plane: *a}")
@example(data=b"factors: {plane: !!python/object:os.system veth}")
@example(data=b"factors: {plane: veth}\nblocks: 1" + b"0" * 5000)
@example(data=b"[" * 20_000)
@example(data=b"{a: " * 3_000)
@example(data=b"factors: {plane: veth, 1: 2, null: 3, [a]: 4}")
@example(data=b"factors: {plane: veth}\nseed: 2024-01-01")
@example(data=b"factors: {plane: veth, frequency_pps: 1e309}")
@example(data=b"factors: {plane: veth, frequency_pps: -.inf}")
@example(data=b"? {plane: veth}\n: factors")
@example(data=b"a: &a [x,x,x,x]\nb: &b [*a,*a,*a,*a]\nfactors: {plane: [*b,*b]}")
@example(data=LAUGHS.encode())
def test_any_bytes_are_a_design_or_a_clear_error(directory: Path, data: bytes) -> None:
    designs.read(data, directory)


@given(
    seed=st.sampled_from(SEEDS),
    cut=st.integers(0, 1500),
    length=st.integers(0, 60),
    new=st.binary(max_size=20),
)
def test_a_damaged_design_is_a_design_or_a_clear_error(
    directory: Path, seed: bytes, cut: int, length: int, new: bytes
) -> None:
    designs.read(seed[:cut] + new + seed[cut + length :], directory)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 10**13)
    | st.floats(width=32)
    | st.sampled_from(["veth", "vf", "same", "vm", "container", "icmp", "stamp", "cpu", "auto"]),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=6,
)
factors = st.dictionaries(
    st.sampled_from(
        ["plane", "guest", "background_plane", "background_guests", "load_type", "load_location",
         "path", "frequency_pps", "size_bytes", "protocol", "plan"]
    ),
    values,
)  # fmt: skip
constraint = st.dictionaries(st.sampled_from(["when", "require", "exclude"]), factors | values)


@given(
    raw=st.fixed_dictionaries(
        {"factors": factors | values},
        optional={
            "constraints": st.lists(constraint, max_size=3) | values,
            "rtt": st.dictionaries(st.sampled_from(["packets", "warmup_packets"]), values),
            "sweep": st.dictionaries(st.sampled_from(["offered_pps", "loads"]), values),
            "blocks": values,
            "budget_s": values,
            "randomise": values,
        },
    )
)
def test_any_value_in_any_key_is_a_design_or_a_clear_error(
    directory: Path, raw: dict[str, object]
) -> None:
    path = directory / "raw.yaml"
    YAML(typ="safe").dump(raw, path)
    designs.read(path.read_bytes(), directory)
