"""Products with operands in memories that tensor cores do not read: they are copied to shared tiles first."""

from __future__ import annotations

import numpy as np
import pytest
from snippets import HEAD

from tilec.driver.build import Observer, build_kernel
from tilec.driver.emulation import emulate
from tilec.ops.products.sparse import expand_rows
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions
from tilec.support.source import SourceFile

DENSE = f"""{HEAD}@T.prim_func
def kernel(A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 32), "float16"), C: T.Tensor((64, 32), "float32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_fragment((32, 64), "float16")
        b = T.alloc_shared((32, 32), "float16")
        c = T.alloc_fragment((64, 32), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(A[k * 32, 0], a)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, c, transpose_A=True)
        T.copy(c, C)
"""

SPARSE = f"""{HEAD}@T.prim_func
def kernel(A: T.Tensor((32, 64), "float16"), E: T.Tensor((4, 64), "int16"), B: T.Tensor((64, 32), "float16"),
           C: T.Tensor((64, 32), "float32")):
    with T.Kernel(1, threads=128):
        a_s = T.alloc_shared((32, 64), "float16")
        a = T.alloc_fragment((32, 64), "float16")
        e = T.alloc_shared((4, 64), "int16")
        b = T.alloc_fragment((64, 32), "float16")
        c = T.alloc_fragment((64, 32), "float32")
        T.copy(A, a_s)
        T.copy(a_s, a)
        T.copy(E, e)
        T.copy(B, b)
        T.clear(c)
        T.gemm_sp(a, e, b, c, True, True, False)
        T.copy(c, C)
"""


@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("text", [DENSE, SPARSE], ids=["dense", "sparse"])
def test_operands_are_copied_to_shared_tiles(text: str, target: str) -> None:
    made = build_kernel(SourceFile("kernel.tl", text), CompileOptions(target=target), Observer())
    given = emulate.draw_arguments(made.kernel, made.manifest, 1)
    if "E" in given.tensors:
        metadata = np.random.default_rng(0).choice([4, 8, 12, 9, 13, 14], (64, 16)).astype(np.uint16)
        packed = sum(metadata[:, i::4] << (4 * i) for i in range(4))
        given.tensors["E"] = np.ascontiguousarray(packed.astype(np.uint16).view(np.int16).T)
    emulate.emulate_build(made, given)
    a = given.tensors["A"].T.astype(np.float32)
    if "E" in given.tensors:
        a = expand_rows(a, np.ascontiguousarray(given.tensors["E"].T), made.kernel.params[0].dtype)
    np.testing.assert_allclose(given.tensors["C"], a @ given.tensors["B"].astype(np.float32), rtol=1e-2, atol=1e-2)


def test_the_metadata_is_a_whole_tile() -> None:
    text = SPARSE.replace('e = T.alloc_shared((4, 64), "int16")', 'e = T.alloc_shared((8, 64), "int16")')
    text = text.replace("T.copy(E, e)", "T.copy(E, e[0:4, :])").replace("(a, e, b", "(a, e[0:4, :], b")
    with pytest.raises(CompileError) as error:
        build_kernel(SourceFile("kernel.tl", text), CompileOptions(target="sm_80"), Observer())
    assert error.value.diagnostics[0].title == "T.gemm_sp: a transposed E must be a whole shared tile"
