"""T.ptx_cp_async: copies by single threads, ordered by groups and by a barrier."""

from __future__ import annotations

import numpy as np
import pytest
from harness import HERE, built

from tilec.driver.emulation import emulate

KERNELS = HERE / "thread_copies.tl"
ON_BOTH = ("gathered", "masked", "two_groups", "in_nests")


@pytest.mark.parametrize(
    ("entry", "target"), [*((e, "sm_80") for e in ON_BOTH), *((e, "sm_90a") for e in (*ON_BOTH, "by_roles"))]
)
def test_results(entry: str, target: str) -> None:
    """Compare each kernel, emulated on an unfriendly but legal machine, with its tile IR run by numpy."""
    _, made = built(KERNELS, target, entry=entry)
    found = emulate.draw_arguments(made.kernel, made.manifest, 2)
    if entry == "gathered":
        found.tensors["rows"][:] = np.arange(32) * 5 % 120  # some are outside of A
    expected = found.copy()
    emulate.emulate_build(made, found, options=emulate.RunOptions(adversary=1))
    emulate.run_reference(made.kernel, expected)
    for r in emulate.compare_arguments(made.kernel, made.manifest, found, expected):
        assert r.matches, f"{r.name}{list(r.worst)} is {r.found}, expected {r.expected} ± {r.allowed}"


def test_rows_outside_the_tensor_are_zero() -> None:
    """Check that `gathered` copies zeros for the rows that lie behind A."""
    _, made = built(KERNELS, "sm_90a", entry="gathered")
    given = emulate.draw_arguments(made.kernel, made.manifest, 3)
    rows = np.arange(32) * 5 % 120
    given.tensors["rows"][:] = rows
    padded = np.concatenate([given.tensors["A"], np.zeros((24, 64), np.float16)])
    emulate.emulate_build(made, given)
    np.testing.assert_array_equal(given.tensors["B"], padded[rows])


def test_a_role_waits_for_no_copy_of_its_own() -> None:
    """Check that the producer of `by_roles` arrives by cp.async, and neither waits for groups nor stores."""
    _, made = built(KERNELS, "sm_90a", entry="by_roles")
    producer = made.ptx[made.ptx.rindex("mbarrier.try_wait") :]
    assert "cp.async.cg.shared.global" in producer and "cp.async.mbarrier.arrive.noinc" in producer
    assert "wait_group" not in producer and "st.shared" not in producer


def test_copies_whose_alignment_is_not_certain_pass_through_registers() -> None:
    """Check that the PTX of `in_nests` has no cp.async."""
    _, made = built(KERNELS, "sm_90a", entry="in_nests")
    assert "cp.async.ca" not in made.ptx and "cp.async.cg" not in made.ptx
