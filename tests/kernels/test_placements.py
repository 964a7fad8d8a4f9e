"""Shared tiles with a T.Layout of their own: the same results, wherever elements lie."""

from __future__ import annotations

import re

import numpy as np
import pytest
from harness import HERE, agrees, built

from tilec.driver.emulation import emulate

KERNEL = HERE / "placements.tl"
MAPS = ("padded", "rotated", "turned", "blocks", "exchanged", "backwards", "pairs")


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("how", MAPS)
def test_every_map(how: str, target: str) -> None:
    made = agrees(KERNEL, target, strict=False, entry="moved", how=how)
    assert "cp.async.bulk" not in made.ptx  # TMA knows none of these


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("how", MAPS)
def test_neighbours_that_are_named_one_by_one(how: str, target: str) -> None:
    made = agrees(KERNEL, target, strict=False, entry="named", how=how)
    together = "st.shared.b32" in made.ptx or "st.shared.v2" in made.ptx
    assert together == (how in ("padded", "exchanged", "pairs"))


@pytest.mark.parametrize(("how", "chunk"), [("padded", "16"), ("exchanged", "16"), ("pairs", "4"), ("turned", None)])
def test_cp_async_moves_what_lies_together(how: str, chunk: str | None) -> None:
    made = agrees(KERNEL, "sm_80", strict=False, entry="moved", how=how)
    assert set(re.findall(r"cp\.async\.c[ag]\.\S+ \S+, \S+, (\d+)", made.ptx)) == ({chunk} if chunk else set())


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_padding_without_conflicts_suits_ldmatrix(target: str) -> None:
    made = agrees(KERNEL, target, entry="product")  # strict: a bank conflict would be a warning
    assert "ldmatrix" in made.ptx and "wgmma" not in made.ptx


def transposed(array: np.ndarray) -> np.ndarray:
    """The memory of a tensor whose elements lie as the kernel's `transposed` says."""
    b, rows, h, d = np.indices(array.shape)
    memory = np.empty((2, 5, 2, 2, 2, 32), array.dtype)
    memory[b, rows // 8, h, d // 8, d % 2, 4 * (rows % 8) + d % 8 // 2] = array
    return memory.reshape(array.shape)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_a_tensor_in_an_order_of_its_own(target: str) -> None:
    _, summed = built(KERNEL, target, entry="summed")
    given = emulate.draw_arguments(summed.kernel, summed.manifest, 2)
    given.tensors["Q"][...] = 0
    found = given.copy()
    emulate.emulate_build(summed, found)
    a = given.tensors["A"]
    np.testing.assert_array_equal(found.tensors["Q"], transposed(2 * a))
    np.testing.assert_array_equal(found.tensors["R"], transposed(a))
    _, straightened = built(KERNEL, target, entry="straightened")
    again = emulate.draw_arguments(straightened.kernel, straightened.manifest, 2)
    again.tensors["Q"][...] = transposed(a)
    emulate.emulate_build(straightened, again)
    np.testing.assert_array_equal(again.tensors["R"], a.astype(np.float16))
