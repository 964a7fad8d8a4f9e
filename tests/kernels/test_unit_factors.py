"""Products by factors that the program sets to 1: each warp skips them where all of its factors are 1."""

from __future__ import annotations

import numpy as np
import pytest
from test_scalar_names import compiled, run

SCALED = """
@T.prim_func
def k(X: T.Tensor((128, 16), "float16"), Y: T.Tensor((16, 64), "float16"), F: T.Tensor((128,), "float32"),
      B: T.Tensor((128, 64), "float32")):
    with T.Kernel(1, threads=128):
        x = T.alloc_shared((128, 16), "float16")
        y = T.alloc_shared((16, 64), "float16")
        output = T.alloc_fragment((128, 64), "float32")
        grown = T.alloc_fragment((128,), "float32")
        factors = T.alloc_fragment((128,), "float32")
        T.copy(X, x)
        T.copy(Y, y)
        T.gemm(x, y, output, clear_accum=True, policy=T.GemmWarpPolicy.FullRow)
        T.copy(F, grown)
        for i in T.Parallel(128):
            factors[i] = VALUE
        for i, j in T.Parallel(128, 64):
            output[i, j] = PRODUCT
        T.copy(output, B)
"""
"""A thread has four rows of 16 elements."""
CHOICE = "T.if_then_else(grown[i] > 0.5, grown[i] * 4.0, 1.0)"
OTHER_CHOICE = "T.if_then_else(grown[i] <= 0.5, 1.0, grown[i] * 4.0)"
PRODUCT = "output[i, j] * factors[i]"
VOTE = "vote.sync.any.pred"


def write_kernel(value: str = CHOICE, product: str = PRODUCT) -> str:
    return SCALED.replace("VALUE", value).replace("PRODUCT", product)


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(("value", "product"), [(CHOICE, PRODUCT), (OTHER_CHOICE, "factors[i] * output[i, j]")])
def test_warps_of_ones_keep_their_elements(value: str, product: str, target: str) -> None:
    """Some rows of some warps are scaled, of others none is: one row in 40 has another factor."""
    text = write_kernel(value, product)
    assert compiled(text, target).ptx.count(VOTE) == 1
    generator = np.random.default_rng(1)
    grown = np.where(np.arange(128) % 40 == 7, 0.75, generator.uniform(0, 0.5, 128)).astype(np.float32)
    x, y = (generator.integers(-8, 8, shape).astype(np.float16) for shape in ((128, 16), (16, 64)))
    found = run(text, target, F=grown, X=x, Y=y)
    factors = np.where(grown > 0.5, grown * 4, 1).astype(np.float32)
    np.testing.assert_array_equal(found["B"], x.astype(np.float32) @ y.astype(np.float32) * factors[:, None])


@pytest.mark.parametrize(
    ("value", "product"),
    [
        ("grown[i]", PRODUCT),  # nothing says that it may be 1
        ("T.if_then_else(grown[i] > 0.5, grown[i], 0.0)", PRODUCT),
        (CHOICE, "output[i, j] + factors[i]"),  # 1 changes a sum
        (CHOICE, "output[i, j] * factors[i] + 1.0"),
        (CHOICE, "output[(i + 1) % 128, j] * factors[i]"),  # another element
    ],
)
def test_other_nests_have_no_vote(value: str, product: str) -> None:
    assert VOTE not in compiled(write_kernel(value, product), "sm_90a").ptx


def test_every_value_of_a_factor_is_a_choice() -> None:
    """A factor that is set in another way as well may seldom be 1."""
    text = write_kernel().replace(
        "        for i, j in T.Parallel(128, 64):",
        "        for i in T.Parallel(128):\n            factors[i] = factors[i] * 0.5\n"
        "        for i, j in T.Parallel(128, 64):",
    )
    assert VOTE not in compiled(text, "sm_90a").ptx
