"""Scalar functions that no other file tries: the PTX that ships, in the emulator, against numpy and Python."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tilec.driver.build import Build, Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ir.elements import is_poison
from tilec.ir.tile import Buffer
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

TARGETS = ("sm_80", "sm_90a")
Arrays = dict[str, Any]


def compiled(text: str, target: str) -> Build:
    source = SourceFile("k.tl", f"import tilelang.language as T\n\n{text}")
    return build_kernel(source, CompileOptions(target=target), Observer())


def run(text: str, target: str, reference: bool = True, **tensors: Any) -> Arrays:
    """The tensors afterwards; the reference must have the same ones."""
    made = compiled(text, target)
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    given.tensors.update(tensors)
    through_tiles = given.copy()
    emulate.emulate_build(made, given)
    if reference:
        emulate.run_reference(made.kernel, through_tiles)
        types = {p.name: p.dtype for p in made.kernel.params if isinstance(p, Buffer)}
        for name, found in given.tensors.items():
            # What nobody has written is one NaN or another.
            has_nan = types[name].is_float and types[name].per_byte == 1
            left = is_poison(found, types[name]) if has_nan else np.zeros(found.shape, np.bool_)
            np.testing.assert_array_equal(found[~left], through_tiles.tensors[name][~left], err_msg=name)
    return given.tensors


# ---- __fns -----------------------------------------------------------------------------------------------------------


def nth_one(mask: int, base: int, offset: int) -> int:
    if base > 31:
        return 0xFFFFFFFF
    if offset == 0:
        return base if mask >> base & 1 else 0xFFFFFFFF
    walk = range(base, 32) if offset > 0 else range(base, -1, -1)
    ones = [place for place in walk if mask >> place & 1]
    return ones[abs(offset) - 1] if abs(offset) <= len(ones) else 0xFFFFFFFF


@pytest.mark.parametrize("target", TARGETS)
def test_the_nth_one(target: str) -> None:
    generator = np.random.default_rng(5)
    mask = generator.integers(0, 1 << 32, 512, dtype=np.uint32)
    base = generator.integers(0, 34, 512, dtype=np.int32)
    offset = generator.integers(-9, 10, 512, dtype=np.int32)
    found = run(
        """
@T.prim_func
def k(M: T.Tensor((512,), "uint32"), B: T.Tensor((512,), "int32"), N: T.Tensor((512,), "int32"),
      P: T.Tensor((512,), "uint32")):
    with T.Kernel(1, threads=128):
        for i in T.Parallel(512):
            P[i] = T.__fns(M[i], B[i], N[i])
""",
        target,
        M=mask,
        B=base,
        N=offset,
    )
    rows = zip(mask.tolist(), base.tolist(), offset.tolist(), strict=True)
    assert found["P"].tolist() == [nth_one(*row) for row in rows]


# ---- fmod ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
def test_remainders_of_every_kind(target: str) -> None:
    odd = [0.0, -0.0, math.inf, -math.inf, math.nan, 2.0**-149, 2.0**-126, 3.4028235e38, 1.0, -1.5, 1e-40, 7.0]
    x, y = (np.array(v, np.float32) for v in zip(*((a, b) for a in odd for b in odd), strict=True))
    text = """
@T.prim_func
def k(X: T.Tensor((144,), "float32"), Y: T.Tensor((144,), "float32"), Z: T.Tensor((144,), "float32")):
    with T.Kernel(1, threads=128):
        for i in T.Parallel(144):
            Z[i] = T.fmod(X[i], Y[i])
"""
    with np.errstate(all="ignore"):
        wanted = np.fmod(x, y)
    z = run(text, target, X=x, Y=y)["Z"]
    np.testing.assert_array_equal(z, wanted)
    np.testing.assert_array_equal(np.signbit(z[z == 0]), np.signbit(wanted[z == 0]))
