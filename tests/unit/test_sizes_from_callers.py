"""What the callers of a function would say: sizes that the file does not define, and which tensors come back."""

from __future__ import annotations

import pytest

from tilec.driver.build import load_kernel
from tilec.driver.observer import Observer
from tilec.ir.tile import Kernel
from tilec.support.diagnostics import CompileError
from tilec.support.options import CompileOptions, Value
from tilec.support.source import SourceFile

EAGER = """\
import tilelang
import tilelang.language as T
@tilelang.jit
def halved(A, B: T.Tensor[(rows, 8), dtype]):
    A: T.Tensor((rows, columns), "float32")
    C = T.empty((rows, columns), "float32")
    with T.Kernel(rows // 8, threads=64) as bx:
        for i, j in T.Parallel(8, columns):
            C[bx * 8 + i, j] = A[bx * 8 + i, j] * 0.5 + T.float32(B[bx * 8 + i, 0])
    return C
"""
FACTORY = """\
import tilelang
import tilelang.language as T
@tilelang.jit(out_idx={out_idx})
def made():
    @T.prim_func
    def kernel({parameters}):
        with T.Kernel(1, threads=64) as bx:
            for i in T.Parallel(64):
                B[i] = A[i] * a + n
    return kernel
"""
A, B, SCALE, COUNT = 'A: T.Tensor((64,), "float32")', 'B: T.Tensor((64,), "float32")', "a: T.float32", "n: T.int32"


def kernel(text: str, **defines: Value) -> Kernel:
    return load_kernel(SourceFile("kernel.tl", text), CompileOptions(defines=tuple(defines.items())), Observer())


def test_sizes_that_only_the_command_line_gives() -> None:
    made = kernel(EAGER, rows=32, columns=16, dtype="float16")
    assert [(p.name, getattr(p, "shape", None)) for p in made.params] == [
        ("A", (32, 16)),
        ("B", (32, 8)),
        ("C", (32, 16)),
    ]
    with pytest.raises(CompileError, match="columns has no value"):
        kernel(EAGER, rows=32, dtype="float16")
    with pytest.raises(CompileError, match="-D other is not a constant of the file"):
        kernel(EAGER, rows=32, columns=16, dtype="float16", other=1)


@pytest.mark.parametrize(
    ("out_idx", "parameters", "outputs"),
    [
        ("[-1]", (A, B, SCALE, COUNT), ("B",)),
        ("-1", (SCALE, A, COUNT, B), ("B",)),
        ("[-2]", (A, B, SCALE, COUNT), ("A",)),
        ("[-1, 0]", (A, SCALE, B, COUNT), ("B", "A")),
        ("[3]", (SCALE, A, COUNT, B), ("B",)),
    ],
)
def test_scalars_behind_the_last_tensor_are_not_counted(
    out_idx: str, parameters: tuple[str, ...], outputs: tuple[str, ...]
) -> None:
    assert kernel(FACTORY.format(out_idx=out_idx, parameters=", ".join(parameters))).outputs == outputs


def test_scalars_are_not_returned() -> None:
    with pytest.raises(CompileError, match="only tensors are returned"):
        kernel(FACTORY.format(out_idx="[2]", parameters=", ".join((A, B, SCALE, COUNT))))
    with pytest.raises(CompileError, match="there is no parameter -3"):
        kernel(FACTORY.format(out_idx="[-3]", parameters=", ".join((A, B, SCALE, COUNT))))
