"""The table of what can be measured, in the words of `planewise doctor --matrix`."""

from __future__ import annotations

from planewise.measure.designs.matrix import (
    MEASUREMENTS,
    PLACES,
    MatrixCell,
    functions,
    matrix,
    places,
)
from planewise.measure.trials import KINDS
from planewise.testbed.planes import PLANES


def cells(*refused: str) -> list[MatrixCell]:
    """A guest on a plane that cannot be measured at these places."""
    return [MatrixCell("vm", "p", place, "no" * (place in refused), ()) for place in PLACES]


def test_a_guest_on_a_plane_is_told_in_a_word_where_it_can_be_measured() -> None:
    assert places(cells()) == "yes"
    assert places(cells("here")) == "two hosts"
    assert places(cells("two hosts")) == "here"
    assert places(cells(*PLACES)) == "no"


def test_every_kind_of_trial_between_guests_is_in_the_table() -> None:
    assert {kind.key for kind in KINDS} - {"alloc", "chain", "sweep"} <= {*MEASUREMENTS}


def test_of_functions_of_chains_it_is_told_what_can_forward_in_them() -> None:
    assert functions()["bridge"] == ["kernel, xdp", "kernel, xdp", "no"]
    assert functions()["vhost-user"] == ["testpmd", "testpmd", "kernel, testpmd, xdp"]


def test_virtual_machines_can_have_each_plane_of_theirs_but_where_it_wants_a_real_nic() -> None:
    refused = {cell.plane for cell in matrix() if cell.guest == "vm" and cell.reason}
    theirs = {plane.name for plane in PLANES if "vm" in plane.guests}
    assert refused & theirs == {"macvtap-vf", "vf-passthrough"}


def test_containers_on_vhost_user_are_functions_alone_for_want_of_an_interface() -> None:
    (said,) = {c.reason for c in matrix() if (c.guest, c.plane) == ("container", "vhost-user")}
    assert "in chains alone: it shares memory with a program, and has no interface" in said
