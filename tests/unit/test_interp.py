from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tilec.interp.run import run_kernel
from tilec.ir.elements import decode_values, encode_values
from tilec.ir.tile import Kernel
from tilec.ir.types import BFLOAT16
from tilec.support.diagnostics import CompileError

Build = Callable[..., Kernel]
Array = NDArray[Any]
Matrix = NDArray[np.float32]
SAMPLES = Path(__file__).parents[2] / "samples"


def sample(kernel: Build, name: str, **defines: int | str) -> Kernel:
    return kernel((SAMPLES / f"{name}.tl").read_text(encoding="utf-8"), **defines)


def random(*shape: int, dtype: str = "float16") -> Array:
    values = np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)
    return encode_values(values, BFLOAT16) if dtype == "bfloat16" else values.astype(dtype)


def wide(array: Array) -> Matrix:
    return decode_values(array, BFLOAT16) if array.dtype == np.uint16 else array.astype(np.float32)


# ---- samples against numpy -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(("m", "n", "k"), [(256, 128, 128), (200, 136, 100), (8, 8, 8)])
def test_gemm(m: int, n: int, k: int, dtype: str, kernel: Build) -> None:
    a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype)
    bias = random(n, dtype=dtype)
    c, d = np.zeros_like(a, shape=(m, n)), np.zeros_like(a, shape=(m, n))
    run_kernel(sample(kernel, "gemm", M=m, N=n, K=k, dtype=dtype), {"A": a, "B": b, "C": c})
    run_kernel(sample(kernel, "gemm_bias_relu", M=m, N=n, K=k, dtype=dtype), {"A": a, "B": b, "bias": bias, "C": d})
    product = wide(a) @ wide(b)
    tolerance = 2**-7 if dtype == "bfloat16" else 2**-10
    np.testing.assert_allclose(wide(c), product, rtol=tolerance, atol=1e-3)
    np.testing.assert_allclose(wide(d), np.maximum(product + wide(bias), 0), rtol=tolerance, atol=1e-3)


def test_softmax(kernel: Build) -> None:
    x = random(33, 1024)
    y = np.zeros_like(x)
    run_kernel(sample(kernel, "softmax", M=33), {"X": x, "Y": y})
    e = np.exp(wide(x) - wide(x).max(1, keepdims=True))
    np.testing.assert_allclose(wide(y), e / e.sum(1, keepdims=True), rtol=2e-3, atol=1e-6)


def test_vector_add(kernel: Build) -> None:
    a, b = random(5000, dtype="float32"), random(5000, dtype="float32")
    c = np.full_like(a, np.nan)
    run_kernel(sample(kernel, "vector_add", N=5000), {"A": a, "B": b, "C": c})
    np.testing.assert_array_equal(c, wide(a) + wide(b))


# ---- one thing at a time ---------------------------------------------------------------------------------------------


def elementwise(body: Build, value: str, dtype: str = "float32", size: int = 8, **scalars: float) -> Array:
    """What `O[i] = value` leaves in block 3 of four blocks of `size`."""
    params = f'O: T.Tensor(({4 * size},), "{dtype}"), I: T.Tensor(({4 * size},), "int32"), n: T.int32, s: T.float32'
    built = body(f"for i in T.Parallel({size}):\n    O[bx * {size} + i] = {value}", params)
    out = np.zeros(4 * size, dtype)
    run_kernel(built, {"O": out, "I": np.arange(4 * size, dtype=np.int32)}, {"n": 5, "s": 0.5, **scalars})
    return out[3 * size :]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("i - 4", [-4, -3, -2, -1, 0, 1, 2, 3]),
        ("(i - 4) // 3", [-2, -1, -1, -1, 0, 0, 0, 1]),
        ("(i - 4) % 3", [2, 0, 1, 2, 0, 1, 2, 0]),
        ("i * s", [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5]),
        ("T.cast(i * -0.5, 'int32')", [0, 0, -1, -1, -2, -2, -3, -3]),
        ("i if i < n else -1", [0, 1, 2, 3, 4, -1, -1, -1]),
        ("T.max(i, 3) + T.min(i, 3)", [3, 4, 5, 6, 7, 8, 9, 10]),
        ("i & 5 | 8", [8, 9, 8, 9, 12, 13, 12, 13]),
        ("i << 1 >> 2", [0, 0, 1, 1, 2, 2, 3, 3]),
        ("I[bx * 8 + i + 4]", [28, 29, 30, 31, 0, 0, 0, 0]),
        ("I[i - 4]", [0, 0, 0, 0, 0, 1, 2, 3]),
        ("I[I[i] * 2]", [0, 2, 4, 6, 8, 10, 12, 14]),
        ("T.sqrt(i) ** 2 + T.abs(i - 4)", [4, 4, 4, 4, 4, 6, 8, 10]),
        ("1.0 * (1 < i <= 3)", [0, 0, 1, 1, 0, 0, 0, 0]),
    ],
)
def test_expressions(value: str, expected: list[float], body: Build) -> None:
    np.testing.assert_allclose(elementwise(body, value), np.asarray(expected), rtol=1e-6)


def test_integers_wrap_and_conversions_saturate(body: Build) -> None:
    np.testing.assert_array_equal(
        elementwise(body, "T.cast(i * 100, 'int8')", "int8"), [0, 100, -56, 44, -112, -12, 88, -68]
    )
    np.testing.assert_array_equal(elementwise(body, "i * 100.0", "int8"), [0, 100, 127, 127, 127, 127, 127, 127])


def test_bfloat16_is_rounded_at_every_step(body: Build) -> None:
    built = body(
        "for i in T.Parallel(2):\n    O[i] = T.bfloat16(1) + i * T.bfloat16(0.00390625)",
        'O: T.Tensor((2,), "bfloat16")',
    )
    out = np.zeros(2, np.uint16)
    run_kernel(built, {"O": out})
    # 1 + 2**-8 is halfway, and goes to the even neighbour.
    np.testing.assert_array_equal(decode_values(out, BFLOAT16), [1, 1])


def test_copies_pad_with_zeros_and_drop_what_is_outside(body: Build) -> None:
    text = """s = T.alloc_shared((4, 4), "float32")
T.copy(A[bx * 3 - 1, 3], s)
T.copy(s, B[bx * 4, 3])
"""
    a = np.arange(1, 61, dtype=np.float32).reshape(10, 6)
    b = np.full((15, 6), -1, np.float32)
    run_kernel(body(text, 'A: T.Tensor((10, 6), "float32"), B: T.Tensor((15, 6), "float32")'), {"A": a, "B": b})
    padded = np.pad(a, ((1, 4), (0, 4)))
    for block in range(4):
        rows = min(4, 15 - block * 4)
        np.testing.assert_array_equal(b[block * 4 : block * 4 + rows, 3:], padded[block * 3 : block * 3 + rows, 3:6])
    assert (b[:, :3] == -1).all()


@pytest.mark.parametrize(("kind", "numpy"), [("sum", np.sum), ("max", np.max), ("min", np.min)])
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("clear", [True, False])
def test_reductions(kind: str, numpy: Callable[..., Matrix], dim: int, clear: bool, body: Build) -> None:
    text = f"""x = T.alloc_fragment((4, 4), "float32")
y = T.alloc_fragment((4,), "float32")
T.copy(A, x)
T.fill(y, 0.25)
T.reduce_{kind}(x, y, dim={dim}, clear={clear})
T.copy(y, B)
"""
    a, b = random(4, 4, dtype="float32"), np.zeros(4, np.float32)
    run_kernel(body(text, 'A: T.Tensor((4, 4), "float32"), B: T.Tensor((4,), "float32")'), {"A": a, "B": b})
    with_old = a if clear else np.insert(a, 0, 0.25, axis=dim if dim >= 0 else 1)
    np.testing.assert_allclose(b, numpy(with_old, axis=dim), rtol=1e-6)


def test_reduce_absmax(body: Build) -> None:
    text = 'x = T.alloc_fragment((4, 4), "float32")\ny = T.alloc_fragment((4, 1), "float32")\n'
    text += "T.copy(A, x)\nT.reduce_absmax(x, y)\nT.copy(y, B)"
    a, b = random(4, 4, dtype="float32"), np.zeros((4, 1), np.float32)
    run_kernel(body(text, 'A: T.Tensor((4, 4), "float32"), B: T.Tensor((4, 1), "float32")'), {"A": a, "B": b})
    np.testing.assert_array_equal(b[:, 0], np.abs(wide(a)).max(1))


@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("clear", [False, True])
def test_gemm_variants(transpose_a: bool, transpose_b: bool, clear: bool, body: Build) -> None:
    a_shape, b_shape = ((8, 4) if transpose_a else (4, 8)), ((16, 8) if transpose_b else (8, 16))
    text = f"""a = T.alloc_shared({a_shape}, "float16")
b = T.alloc_shared({b_shape}, "float16")
c = T.alloc_fragment((4, 16), "float32")
T.copy(A, a)
T.copy(B, b)
T.fill(c, 1)
T.gemm(a, b, c, {transpose_a}, {transpose_b}, clear_accum={clear})
T.copy(c, C)
"""
    params = f'A: T.Tensor({a_shape}, "float16"), B: T.Tensor({b_shape}, "float16"), C: T.Tensor((4, 16), "float32")'
    a, b, c = random(*a_shape), random(*b_shape), np.zeros((4, 16), np.float32)
    run_kernel(body(text, params), {"A": a, "B": b, "C": c})
    product = (wide(a).T if transpose_a else wide(a)) @ (wide(b).T if transpose_b else wide(b))
    np.testing.assert_allclose(c, product + (0 if clear else 1), rtol=1e-5, atol=1e-5)


def test_integer_gemm_is_exact(body: Build) -> None:
    text = """a = T.alloc_shared((4, 512), "int8")
b = T.alloc_shared((512, 4), "int8")
c = T.alloc_fragment((4, 4), "int32")
T.fill(a, 127)
T.fill(b, -128)
T.gemm(a, b, c, clear_accum=True)
T.copy(c, C)
"""
    c = np.zeros((4, 4), np.int32)
    run_kernel(body(text, 'C: T.Tensor((4, 4), "int32")'), {"C": c})
    assert (c == -127 * 128 * 512).all()


def test_loops_conditions_and_binds(body: Build) -> None:
    text = """x = T.alloc_fragment((4,), "int32")
T.clear(x)
for k in T.serial(bx, n, 2):
    step = k * 10
    if k % 3 == 0:
        for i in T.Parallel(4):
            if i < bx:
                x[i] += step
            else:
                x[i] -= 1
T.copy(x, O[bx * 4])
"""
    out = np.zeros(16, np.int32)
    run_kernel(body(text, 'O: T.Tensor((16,), "int32"), n: T.int32'), {"O": out}, {"n": 9})
    expected = np.zeros((4, 4), np.int32)
    for block in range(4):
        for k in range(block, 9, 2):
            if k % 3 == 0:
                expected[block] += np.where(np.arange(4) < block, 10 * k, -1).astype(np.int32)
    np.testing.assert_array_equal(out.reshape(4, 4), expected)


def test_accumulation_into_a_tensor_keeps_what_it_held(body: Build) -> None:
    out = np.arange(8, dtype=np.float32)
    run_kernel(body("for i in T.Parallel(2):\n    O[bx * 2 + i] += 10", 'O: T.Tensor((8,), "float32")'), {"O": out})
    np.testing.assert_array_equal(out, np.arange(8) + 10)


def test_reading_before_writing_shows(body: Build) -> None:
    out = np.zeros(4, np.float32)
    run_kernel(body('x = T.alloc_fragment((4,), "float32")\nT.copy(x, O)', 'O: T.Tensor((4,), "float32")'), {"O": out})
    assert np.isnan(out).all()


def test_max_and_min_pass_over_nan(body: Build) -> None:
    values = elementwise(body, "T.max(T.log(i - 4.0), 0.0)")
    assert not np.isnan(values.astype(np.float32)).any()


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def code(call: Callable[[], None]) -> str:
    with pytest.raises(CompileError) as caught:
        call()
    return caught.value.diagnostics[0].code


def test_inputs_are_checked(body: Build) -> None:
    built = body("pass", 'A: T.Tensor((4,), "float16"), n: T.int32')
    right = np.zeros(4, np.float16)
    assert code(lambda: run_kernel(built, {}, {"n": 1})) == "missing-input"
    assert code(lambda: run_kernel(built, {"A": right})) == "missing-input"
    assert code(lambda: run_kernel(built, {"A": right.astype(np.float32)}, {"n": 1})) == "wrong-input"
    assert code(lambda: run_kernel(built, {"A": np.zeros(5, np.float16)}, {"n": 1})) == "wrong-input"


def test_tiles_may_not_be_left(body: Build) -> None:
    params = 'A: T.Tensor((4,), "float32"), n: T.int32'
    tile = 's = T.alloc_shared((4,), "float32")\nT.clear(s)\n'
    tensors, scalars = {"A": np.zeros(4, np.float32)}, {"n": 3}
    run_kernel(
        body(f"{tile}for i in T.Parallel(4):\n    if i + n < 4:\n        s[i + n] = A[i]", params), tensors, scalars
    )
    for text in ("for i in T.Parallel(4):\n    s[i + n] = A[i]", "T.copy(A[0:2], s[n : n + 2])"):
        built = body(tile + text, params)
        assert code(partial(run_kernel, built, tensors, scalars)) == "out-of-range"
