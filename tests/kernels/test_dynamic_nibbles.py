"""Tensors of four-bit elements whose rows have a length known at launch, against numpy: it is even, or refused."""

from __future__ import annotations

import pytest
from snippets import HEAD, runs

from tilec.driver.build import Build, Observer, build_kernel
from tilec.host.header import Style, Variant, build_header
from tilec.support.options import CompileOptions
from tilec.support.sizes import SizeError, evaluate_size, solve_scalars
from tilec.support.source import SourceFile

ELEMENTS = f"""{HEAD}
n = T.dynamic("n")
E2M1 = "float4_e2m1fn"


@T.prim_func
def kernel(A: T.Tensor((3, n), "int4"), B: T.Tensor((3, 2 * n), "int4"), C: T.Tensor((3, n), "int32")):
    with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
        for i, j in T.Parallel(3, 64):
            one = T.cast(A[i, bx * 64 + j], "int32")
            C[i, bx * 64 + j] = one * 100 + T.cast(B[i, 2 * (bx * 64 + j) + 1], "int32")
"""
TILES = f"""{HEAD}
n = T.dynamic("n")
E2M1 = "float4_e2m1fn"


@T.prim_func
def kernel(A: T.Tensor((16, n), E2M1), B: T.Tensor((16, n), E2M1), C: T.Tensor((16, n), "float16")):
    with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
        tile = T.alloc_shared((16, 64), "float4_e2m1fn")
        wide = T.alloc_fragment((16, 64), "float16")
        T.copy(A[0, bx * 64], tile)
        T.copy(tile, wide)
        T.copy(wide, C[0, bx * 64])
        T.copy(tile, B[0, bx * 64])
"""


def build(text: str) -> Build:
    return build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_90a"), Observer())


@pytest.mark.parametrize("length", [2, 64, 70, 130])
@pytest.mark.parametrize("text", [ELEMENTS, TILES], ids=["elements", "tiles"])
def test_rows_of_a_length_known_at_launch(text: str, length: int) -> None:
    """Check lengths with and without a last tile that is not full."""
    runs(text, "sm_90a", sizes={"n": length})


def test_the_length_is_read_off_the_bytes() -> None:
    """Check that an array of 35 bytes a row has 70 elements, which the tensor of the results must have as well."""
    made = build(ELEMENTS)
    shapes = {"A": (3, 35), "B": (3, 70), "C": (3, 70)}
    assert made.manifest.sizes(shapes, {}) == {"n": 70}
    with pytest.raises(SizeError, match="n is 70 by"):
        made.manifest.sizes(shapes | {"C": (3, 71)}, {})


def test_an_odd_length_is_refused_at_launch() -> None:
    """Check the refusal in Python, and that the header for C++ has one."""
    made = build(ELEMENTS)
    with pytest.raises(SizeError, match="n is 71, and must be a multiple of 2"):
        made.manifest.sizes({}, {"n": 71})
    header = build_header("kernel", [Variant("sm_90a", made.cubin, b"", (made.manifest,))], Style())
    assert "n is not a multiple of 2" in header


def test_exact_quotients_are_inverted() -> None:
    size = ("shr", ("add", "n", 1), 1)
    assert evaluate_size(size, {"n": 7}) == 4
    assert solve_scalars({"A": (size,)}, {"A": (4,)}) == {"n": 7}
